"""Tasks are graded as stated, prompts are long enough, reduced runs agree with certify, and tables
come from the committed results."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import certspec as cs
from certspec.models.prompt_templates import draw_prompts
from certspec.studies.recipe.data import Chat, read_corpus
from certspec.studies.smollm import __main__ as evidence
from certspec.studies.smollm import prompts, publishing, scores, tasks


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("counting", "Sure: {}", "Sure: 1, 2, 3"),
        ("arithmetic", "{question} = {sum}", "{question} = 99"),
        ("python", "Here:\n```python\ndef f(x):\n    return x\n```\n", "```python\ndef f(x:\n```"),
        ("python", "```\ndef f():\n    pass\n```", "```python\ndef f():\n    pass\n"),
        ("python", "```py\ndef f():\n    pass\n```", "```python\nx = 1\n```"),
    ],
)
def test_right_and_wrong_answers_are_told_apart(kind, right, wrong):
    task = tasks.TASKS[kind](random.Random(1), 0)
    numbers = [
        int(word)
        for word in task.prompt.replace(".", " ").replace("?", " ").split()
        if word.isdigit()
    ]
    if kind == "counting":
        right = right.format(", ".join(map(str, range(numbers[0], numbers[1] + 1))))
    if kind == "arithmetic":
        question = f"{numbers[0]} + {numbers[1]}"
        right, wrong = (
            right.format(question=question, sum=sum(numbers)),
            wrong.format(question=question),
        )
    assert task.is_right(right)
    assert not task.is_right(wrong)


def test_a_copied_sentence_counts_and_a_changed_one_does_not():
    task = tasks.TASKS["copying"](random.Random(0), 0)
    sentence = task.prompt.partition(": ")[2]
    assert task.is_right(f'"{sentence}"')
    assert not task.is_right(sentence.replace("found", "saw"))


def test_every_prompt_is_long_enough_and_quotes_an_answer_of_its_own():
    rng = random.Random(0)
    chats = [
        Chat(
            kind,
            f"prompt {number}",
            " ".join(rng.choices(["word", "fox", "end."], k=90)) + f" {number}",
            True,
        )
        for number in range(60)
        for kind in prompts.FRAMES
    ]
    records = prompts.build_prompts(chats, 100, lambda text: len(text.split()), seed=0)
    assert len(records) == 100 == len({record["prompt"] for record in records})
    assert all(len(record["prompt"].split()) >= prompts.MIN_TOKENS for record in records)
    assert records == prompts.build_prompts(chats, 100, lambda text: len(text.split()), seed=0)
    with pytest.raises(ValueError, match="expected 4000 long enough answers of kind 'story', got"):
        prompts.build_prompts(chats, 10_000, len, seed=0)


def test_tree_certificates_from_listed_probabilities_are_those_of_certify():
    logits = 4.0 * np.random.default_rng(0).standard_normal((30, 40))
    rules = [cs.Tree(width) for width in range(1, 9)]
    found = cs.certify(logits, None, rules)
    ours = scores.tree_certificates_of(np.ascontiguousarray(found.target_top_probs[:, :9]))
    np.testing.assert_allclose(ours, found.certificate, rtol=1e-9, atol=1e-12)


def test_the_whole_recipe_runs_at_a_tiny_size_and_its_results_can_be_published(tmp_path):
    rng = random.Random(0)
    corpus = tmp_path / "chats.jsonl"
    words = [
        "the",
        "fox",
        "found",
        "a",
        "star.",
        "old",
        "friend",
        "and",
        "ran",
        "home",
        "with",
        "light",
    ]
    with corpus.open("w", encoding="utf-8") as file:
        for kind, prompt in draw_prompts(400, seed=0):
            row = {"kind": kind, "prompt": prompt, "finished": True}
            file.write(json.dumps({**row, "response": " ".join(rng.choices(words, k=120))}) + "\n")
    assert len(read_corpus(corpus)) == 400
    bundled = evidence.__file__.replace("studies/smollm/__main__.py", "models/bundled/target")
    out = tmp_path / "out"
    evidence.main(
        [
            "all",
            "--model",
            bundled,
            "--corpus",
            str(corpus),
            "--out",
            str(out),
            "--device",
            "cpu",
            "--tiny",
            "--steps",
            "2",
        ]
    )
    score = json.loads((out / "results/score.json").read_text("utf-8"))
    assert all(row["num_false_certificates"] == 0 for row in score["summary"]["rules"])
    evidence.main(
        ["tables", "--results", str(out / "results"), "--out", str(tmp_path / "published")]
    )
    text = (tmp_path / "published/evidence.md").read_text("utf-8")
    for title in (
        "The paper's claims",
        "What relaxation costs",
        "Right answers",
        "Losses of the draft",
    ):
        assert title in text
    assert (tmp_path / "published/frontier.png").stat().st_size > 1000


def test_the_committed_results_can_be_published(tmp_path):
    paths = publishing.publish(None, tmp_path)
    assert paths[0].read_text("utf-8").count("### ") >= 1


def test_tables_without_results_say_where_they_are(tmp_path):
    with pytest.raises(SystemExit, match=r"got none; the committed results are in a checkout"):
        evidence.main(["tables", "--results", str(tmp_path), "--out", str(tmp_path / "out")])
