"""Prompt files changed at random become a run or an UnreadableInput, never another error.

``CERTSPEC_FUZZ=20000 python -m pytest -n 0 tests/certspec/scoring/test_prompt_fuzz.py`` tries as
many files; without it 120."""

import copy
import json
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import certspec as cs
from certspec.decoding.prompts import prompt_token_ids
from certspec.runs.folder import RunFolder
from certspec.runs.stream import open_run
from certspec.runs.table import read_run
from certspec.scoring.batches import plan_batches
from certspec.scoring.prompts import PromptFile
from certspec.scoring.run import RunSettings, score_run
from tests.support.odd_documents import AS_LONG_AS_ASKED, change

RECORDS = [
    {"prompt": "a river runs", "id": 7},
    {"prompt": "\ufeff\u2028the s\u00e9a\x00<|end|>"},
    {"messages": [{"role": "user", "content": "tell me of the sea"}]},
    {
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": "a river"},
            {"role": "assistant", "content": "runs", "tool_calls": [{"name": "down"}]},
            {"role": "user", "content": "why? " * 3},
        ],
        "n": 1.5,
    },
]
# of models whose templates refuse a role, ask for more than content, or stay silent
TEMPLATES = [
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content | trim }}{% endfor %}",
    "{% for m in messages %}{{ m.content + m.tool_calls[0].name }}{% endfor %}",
    "{% for m in messages %}",
    "{{ '' }}",
    None,
]
NAMES = ["prompts.jsonl", "prompts.ndjson", "prompts.JSON", "prompts.txt", "pr\u00f6mpts.jsonl"]


def bytes_of(draw):
    """The bytes of a prompt file: some lines changed, and now and then the bytes as well."""
    lines = []
    for _ in range(draw.randrange(1, 4)):
        document = [copy.deepcopy(draw.choice(RECORDS))]
        for _ in range(draw.choice([0, 0, 1, 1, 2, 4])):
            change(document, draw)
        lines += [json.dumps(each, ensure_ascii=draw.randrange(3) > 0) for each in document]
    text = draw.choice(["\n", "\r\n", "\n\n", "\r"]).join(lines)
    encoding = draw.choice([*["utf-8"] * 8, "utf-8-sig", "utf-16", "latin-1"])
    raw = bytearray(text.encode(encoding, "surrogatepass" if "utf" in encoding else "replace"))
    how = draw.randrange(12)
    if how == 0:
        del raw[draw.randrange(len(raw) + 1) :]
    elif how == 1 and raw:
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    return bytes(raw)


@AS_LONG_AS_ASKED
@given(seed=st.integers(0, 2**62))
def test_a_changed_prompt_file_is_a_run_or_unreadable_input(tiny, tmp_path_factory, seed):
    draw = random.Random(seed)
    pair = copy.copy(tiny)
    if draw.randrange(2):
        pair.tokenizer = copy.deepcopy(tiny.tokenizer)
        pair.tokenizer.chat_template = draw.choice(TEMPLATES)
    chat, folder = draw.randrange(4) > 0, tmp_path_factory.mktemp("fuzz")
    try:
        path = folder / draw.choice(NAMES)
        path.write_bytes(bytes_of(draw))
        try:
            prompts = PromptFile.check(path)
        except cs.UnreadableInput as error:
            assert str(path) in str(error)
            return
        batches = list(plan_batches(prompts, pair.tokenizer, batch_size=2, context=48, chat=chat))
        counts = [len(batch.prompts) + len(batch.skipped) for batch in batches]
        assert sum(counts) == prompts.num_prompts > 0
        for prompt in prompts:
            try:
                prompt_token_ids([prompt.messages], pair.tokenizer, pair.num_tokens)
            except cs.InvalidArgument as error:
                assert str(error).startswith("prompt 0: ")
        if draw.randrange(3):
            return  # a whole run takes longer
        chosen = RunSettings((cs.StrictGreedy(),), steps=2, batch_size=2, chat=chat)
        score_run(pair, prompts, RunFolder(folder / "run"), chosen)
        num_left_out = sum(len(batch.skipped) for batch in batches)
        try:
            assert read_run(folder / "run").num_steps > 0
            assert num_left_out < prompts.num_prompts
        except cs.UnreadableInput as error:
            assert num_left_out == prompts.num_prompts
            assert f"{num_left_out} prompts left out (first: line " in str(error)
    finally:
        shutil.rmtree(folder)


def test_prompts_that_the_chat_template_refuses_are_left_out_by_name(tiny, tmp_path):
    pair = copy.copy(tiny)
    pair.tokenizer = copy.deepcopy(tiny.tokenizer)
    pair.tokenizer.chat_template = TEMPLATES[0]
    path = tmp_path / "prompts.jsonl"
    refused = {"messages": [{"role": "tool", "content": "a river"}]}
    for good in ([RECORDS[0]], []):
        path.write_text("".join(json.dumps(each) + "\n" for each in [*good, refused]))
        folder = RunFolder(tmp_path / f"run-{len(good)}")
        score_run(pair, PromptFile.check(path), folder, RunSettings((cs.StrictGreedy(),), steps=2))
        if good:
            [skip] = read_run(folder.path).skipped
            assert skip["line"] == 2 and skip["reason"].endswith("got roles must alternate")
            continue
        for read in (read_run, open_run):
            with pytest.raises(cs.UnreadableInput, match=r"1 prompts left out \(first: line 1: .*"):
                read(folder.path)
