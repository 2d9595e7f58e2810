"""Answers are graded as stated, and programs can't do what they may not."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from certspec.studies.coder import answers, judging, questions, sandbox
from certspec.studies.coder.intervals import wilson


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He pays 3 x 6 = $18.\n#### 18", 18),
        ("#### $1,234.00 for 5 days", 1234),
        (r"so \[ \boxed{104} \] dollars for the 2 of them", 104),
        (r"\boxed{x} is 7", 7),
        ("It takes 12 minutes, and 7.5 hours.", "7.5"),
        ("The change is -3 degrees", -3),
        ("none", None),
    ],
)
def test_the_number_of_an_answer_is_found(text, number):
    assert answers.final_number(text) == (None if number is None else Decimal(number))


def test_numbers_are_compared_as_numbers():
    assert answers.is_right_number("so 1,000.0 it is", "1000")
    assert not answers.is_right_number("so 1,000.5 it is", "1,000")


def task(name):
    return questions.read_tests()[name]


def canonical(name):
    return task(name)["prompt"] + task(name)["canonical_solution"]


@pytest.mark.parametrize(
    "form",
    [
        "Here it is:\n```python\n{whole}```\nIt works.",
        "```\nx = 1\n```\nand\n```python\n{whole}\n",  # cut off before the block ended
        "{whole}",
        "```python\n{body}```",
    ],
)
def test_right_code_passes_however_it_is_given(form):
    name = "HumanEval/38"  # its tests use a helper that only the task defines
    text = form.format(whole=canonical(name), body=task(name)["canonical_solution"])
    assert answers.verdict_on_code(text, task(name)) == "passed"


def test_wrong_code_and_no_code_fail():
    name = "HumanEval/0"
    wrong = "```python\ndef has_close_elements(numbers, threshold):\n    return True\n```"
    assert answers.verdict_on_code(wrong, task(name)) == "AssertionError"
    assert answers.verdict_on_code("I can't.", task(name)) == "SyntaxError"


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("while True: pass", "timed out"),
        ("import time; time.sleep(60)", "timed out"),
        ("import socket; socket.socket()", "PermissionError"),
        ("import os; os.system('true')", "PermissionError"),
        ("open('kept', 'w')", "PermissionError"),
        ("x = [0] * 10**10", "MemoryError"),
        ("import os; os._exit(0)", "killed"),
        ("print('x' * 10**7)", "passed"),
    ],
)
def test_a_program_is_held_to_its_limits(source, verdict):
    assert sandbox.run_program(source, sandbox.Limits(seconds=1, clock=5.0)) == verdict


def test_wilson_is_the_textbook_interval():
    assert wilson(90, 164) == pytest.approx((0.4724, 0.6230), abs=2e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=2e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def row(name, rule, text, **changes):
    counts = {"tokens": 12, "rounds": 4, "drafted": 10, "accepted": 8, "certified": 5, "false": 0}
    counts |= {"not_argmax": 1, "nats_lost": 0.5, "batch_size": 1, "batch_seconds": 0.5}
    return {"id": name, "rule": rule, "text": text, "end": "eos", **counts, **changes}


def test_saved_answers_are_judged_once_and_added_up_by_rule(tmp_path, monkeypatch):
    asked = next(q for q in questions.read_questions() if q.kind == questions.ARITHMETIC)
    code = f"```python\n{canonical('HumanEval/2')}```"
    rows = [
        row("HumanEval/2", "strict", code),
        row(asked.id, "strict", f"#### {asked.answer}"),
        row("HumanEval/2", "top:2", "no", end="length", batch_seconds=0.25),
        row(asked.id, "top:2", f"#### {asked.answer}", batch_seconds=0.125),
    ]
    text = "".join(json.dumps(each) + "\n" for each in rows) + '{"id": "cut off'
    (tmp_path / "quality.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "quality.json").write_text('{"way": "engine"}', encoding="utf-8")
    judging.judge(tmp_path, questions.PROMPTS, workers=1)
    monkeypatch.setattr(judging, "verdict_on_code", None)  # all verdicts are known by now
    judging.judge(tmp_path, questions.PROMPTS, workers=1)
    found = json.loads((tmp_path / "quality.json").read_text("utf-8"))
    strict, relaxed = found["rules"]
    assert found["way"] == "engine" and strict["tokens_per_pass"] == 3.0
    assert [strict["kinds"][kind]["right"] for kind in strict["kinds"]] == [1, 1]
    assert relaxed["kinds"]["HumanEval"]["lost"] == 1 and relaxed["cut"] == 1
    assert relaxed["kinds"]["gsm8k-test"]["right"] == 1
    assert relaxed["tokens_per_second"] == pytest.approx(96.0)  # but for the first batch


def test_a_run_that_is_cut_short_has_a_fair_sample_of_either_kind():
    blocks = questions.checkable(questions.read_questions(), 64)
    assert sum(map(len, blocks)) == 420
    assert all(len({asked.kind for asked in block}) == 1 for block in blocks)
    kinds = [block[0].kind for block in blocks]
    assert kinds[:3].count(questions.CODE) in (1, 2)
    assert [len(block) for block in questions.checkable(questions.read_questions(), 64, 3)] == [
        3,
        3,
    ]
