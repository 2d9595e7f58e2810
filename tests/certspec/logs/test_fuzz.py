"""Logs changed at random become a run or an UnreadableInput, never another error.

``CERTSPEC_FUZZ=20000 python -m pytest -n 0 tests/certspec/logs/test_fuzz.py`` tries as many logs of
each kind; without it 120."""

import json
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import certspec as cs
from certspec.logs.import_run import import_logs
from certspec.runs.table import read_run
from tests.support import written_logs as written
from tests.support.odd_documents import AS_LONG_AS_ASKED, change

RULES = (cs.StrictGreedy(), cs.Additive(0.3), cs.Tree(2))


def document_of(draw):
    name = draw.choice(sorted(written.WRITERS))
    document = written.WRITERS[name](written.logprobs(draw.randrange(1, 4), draw.randrange(9)))
    for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3, 8])):
        change(document, draw)
    return document


@pytest.mark.parametrize("kind", ["target", "target and draft"])
@AS_LONG_AS_ASKED
@given(seed=st.integers(0, 2**62))
def test_a_changed_log_is_a_run_or_unreadable_input(tmp_path_factory, kind, seed):
    draw = random.Random(seed)
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        paths = []
        for name in kind.split(" and "):
            documents = [document_of(draw) for _ in range(draw.randrange(1, 4))]
            # ascii() of a lone surrogate is what a server's JSON holds
            text = draw.choice(["\n", "\n\n"]).join(json.dumps(each) for each in documents)
            if draw.randrange(20) == 0:
                text = text[: draw.randrange(len(text) + 1)]
            paths.append(folder / f"{name}.jsonl")
            paths[-1].write_text(text, encoding="utf-8")
        try:
            run = import_logs(
                paths[0], paths[1] if len(paths) > 1 else None, folder / "run", rules=RULES
            )
        except (cs.UnreadableInput, cs.InvalidArgument) as error:
            # no rule left of those asked for is the only other refusal
            assert isinstance(error, cs.UnreadableInput) or "no rule is left" in str(error)
            assert not list((folder / "run").glob("*.parquet"))
            return
        table = read_run(folder / "run")
        assert table.num_steps == run.num_positions > 0
        for values in (table.certificate, table.certificate_lower):
            for column in values:
                assert (column >= 0.0).all()  # a NaN fails it
    finally:
        shutil.rmtree(folder)
