"""Whole rounds in one compiled call against the loop in Python: tokens, records, counts, and who is
left to Python."""

import numpy as np
import pytest

import certspec as cs
from certspec.decoding.batch import Batch
from certspec.decoding.cpu_rounds import CpuRounds
from certspec.decoding.requests import DecodingPlan, Request, StoppingRules
from certspec.decoding.schedules import Between, Throughout
from certspec.errors import InvalidLogits
from certspec.models.cpu.runner import CpuRunner

STRICT = cs.StrictGreedy()
ALWAYS = Throughout(STRICT)


@pytest.fixture
def runners(tiny):
    """Of one thread each, so that all rows are one group."""
    return tuple(
        CpuRunner(model, tiny.num_tokens, num_threads=1) for model in (tiny.target, tiny.draft)
    )


@pytest.fixture
def rounds(monkeypatch):
    """Row rounds that were compiled."""
    done, run = [], CpuRounds.run

    def count(self, batch, writer, counts):
        before = counts.num_target_passes
        run(self, batch, writer, counts)
        done.append((counts.num_target_passes - before) * len(batch.active))

    monkeypatch.setattr(CpuRounds, "run", count)
    return done


@pytest.fixture(scope="module")
def profile(tiny, prompts):
    return cs.calibrate(tiny, prompts, max_new_tokens=24, costs=(0.15, 0.05))


def in_python(monkeypatch):
    monkeypatch.setattr(CpuRounds, "serves", lambda *arguments: False)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(
    "options",
    [
        {"draft_length": 0},
        {"draft_length": 1},
        {"draft_length": 4},
        {"tree": 3},
        {"rule": cs.Tree(2)},
        {"draft_length": cs.WithinBudget(0.1, 8, 2)},
        {"draft_length": cs.WithinBudget(0.0, 4, 2)},
        {"rule": [STRICT, cs.Tree(3)] * 4, "tree": 3},
        {"draft_length": 3, "eos_token_ids": range(4, 20)},
    ],
    ids=[
        "none",
        "chain of 1",
        "chain",
        "tree",
        "tree rule",
        "wide",
        "no budget",
        "own rules",
        "eos",
    ],
)
def test_rounds_are_those_of_the_loop(
    tiny, runners, many, rounds, options, batch_size, monkeypatch
):
    asked = {
        "max_new_tokens": 20,
        "rules": [cs.Additive(0.3)],
        "batch_size": batch_size,
        "runners": runners,
    }
    compiled = cs.generate(tiny, many, **asked, **options)
    # in Python: a batch's first round, for the prompts' last logits have no pending token, and the
    # second one where the draft has run nothing in the first
    assert (
        compiled.metrics["num_rounds"] - 2 * len(many)
        <= sum(rounds)
        < compiled.metrics["num_rounds"]
    )
    in_python(monkeypatch)
    expected = cs.generate(tiny, many, **asked, **options)
    assert compiled.sequences == expected.sequences
    assert compiled.finish_reasons == expected.finish_reasons
    assert list(map(repr, compiled.steps)) == list(map(repr, expected.steps))
    assert compiled.metrics == expected.metrics


@pytest.mark.parametrize("width", [1, 3])
def test_adaptive_drafts_are_those_of_the_loop(
    tiny, runners, many, rounds, profile, width, monkeypatch
):
    options = {
        "draft_length": cs.Adaptive(profile, 8, width),
        "max_new_tokens": 40,
        "batch_size": 4,
        "runners": runners,
    }
    compiled = cs.generate(tiny, many, **options)
    assert rounds
    in_python(monkeypatch)
    expected = cs.generate(tiny, many, **options)
    assert list(map(repr, compiled.steps)) == list(map(repr, expected.steps))
    assert compiled.metrics == expected.metrics


def test_caches_and_waiting_rows_that_run_full_end_a_call_and_no_more(
    tiny, runners, many, monkeypatch
):
    options = {"draft_length": 4, "max_new_tokens": 40, "batch_size": 4, "runners": runners}
    expected = cs.generate(tiny, many, **options)
    monkeypatch.setattr("certspec.models.cpu.runner._FIRST_CAPACITY", 1)
    monkeypatch.setattr("certspec.decoding.step_writer._WAITING_BYTES", 1)
    monkeypatch.setattr("certspec.decoding.step_writer._MIN_WAITING", 1)
    monkeypatch.setattr("certspec.decoding.cpu_rounds._WORK_A_CALL", 1)
    found = cs.generate(tiny, many, **options)
    assert found.sequences == expected.sequences
    assert list(map(repr, found.steps)) == list(map(repr, expected.steps))
    assert found.metrics == expected.metrics


def test_a_row_whose_logits_are_no_numbers_is_named(tiny, runners, many, monkeypatch):
    lend, calls = CpuRunner.lend, []

    def spoil(self, room, nodes):
        calls.append(self is runners[0])
        if calls.count(True) == 2:  # the target's second call
            self._packed.vectors[-1] = np.nan
        return lend(self, room, nodes)

    monkeypatch.setattr(CpuRunner, "lend", spoil)
    monkeypatch.setattr("certspec.decoding.cpu_rounds._WORK_A_CALL", 1)
    with pytest.raises(
        InvalidLogits, match=r"prompt \d, round 2, after \d+ new tokens: target_logits"
    ):
        cs.generate(tiny, many[:4], max_new_tokens=20, batch_size=4, runners=runners)


class Held:
    """A cache as ``serves`` looks at it."""

    def __init__(self, runner):
        self.compiled, self.last_rows = runner, None


def requests(schedules, most=8, should_stop=None):
    return [
        Request(index, [1, 2], schedule, StoppingRules(frozenset(), most), should_stop)
        for index, schedule in enumerate(schedules)
    ]


def test_only_what_needs_nobody_between_rounds_is_compiled(runners):
    from certspec.decoding.drafting import StaticPolicy
    from certspec.decoding.policies import BestFirst
    from certspec.models.trees import chain

    def served(schedules=(ALWAYS,), policy=None, request=None, **plan):
        plan = DecodingPlan(StaticPolicy(chain(3)) if policy is None else policy, **plan)
        rows = requests(schedules, **(request or {}))
        caches = Held(runners[0]), Held(runners[1])
        return CpuRounds(plan).serves(Batch(*runners, rows, plan, caches))

    assert served()
    assert served((ALWAYS, Throughout(cs.Tree(2))), extra=(cs.TopM(4),))
    assert not served((ALWAYS, Throughout(cs.TopM(4))))
    assert not served((Between(5, 6, STRICT, cs.Tree(2)),))
    assert not served(policy=BestFirst(8))
    assert served(policy=StaticPolicy(chain(0)))
    assert not served(on_step=print)
    assert not served(processors=(lambda ids, scores: scores,))
    assert not served(request={"should_stop": lambda tokens, new: None})
    assert served(draft_limit=10)
    assert not served(draft_limit=9)
    assert not served([ALWAYS] * 2000)
    runners[0].num_threads = 2
    assert not served()
