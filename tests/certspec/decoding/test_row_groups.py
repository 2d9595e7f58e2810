"""A batch shared out among cores: the tokens and records of one group, errors that come through,
callbacks in order."""

import threading
from functools import partial

import pytest
import torch
from numba import types

import certspec as cs
from certspec.decoding import groups as row_groups
from certspec.decoding.batch import Batch
from certspec.decoding.block_cache import BlockCache
from certspec.decoding.drafting import StaticPolicy
from certspec.decoding.groups import Workload, decode_shared, num_groups
from certspec.decoding.loop import decode_batch
from certspec.decoding.policies import BestFirst, WithinBudget
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, Request, RoundCounts, StoppingRules
from certspec.decoding.schedules import Throughout
from certspec.models.cpu.rounds import run_rounds
from certspec.models.cpu.runner import CpuRunner
from certspec.models.trees import chain
from tests.support.interrupts import NEEDS_TIMER, interrupted_after


@pytest.fixture
def runners(tiny):
    return tuple(
        CpuRunner(model, tiny.num_tokens, num_threads=3) for model in (tiny.target, tiny.draft)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"draft_length": 4},
        {"tree": 3},
        {"rule": cs.TopM(8)},
        {"draft_length": WithinBudget(0.1, width=2)},
        {"rule": [cs.StrictGreedy(), cs.TopM(8), cs.Additive(0.3), cs.Multiplicative(0.1)] * 2},
    ],
    ids=["chain", "tree", "relaxed", "adaptive", "own rules"],
)
def test_groups_give_the_tokens_and_records_of_each_prompt_alone(tiny, runners, many, options):
    alone = cs.generate(tiny, many, max_new_tokens=20, rules=[cs.Additive(0.3)], **options)
    shared = cs.generate(
        tiny,
        many,
        max_new_tokens=20,
        rules=[cs.Additive(0.3)],
        batch_size=8,
        runners=runners,
        **options,
    )
    assert shared.sequences == alone.sequences
    assert shared.finish_reasons == alone.finish_reasons
    assert list(map(repr, shared.steps)) == list(map(repr, alone.steps))
    assert shared.metrics["num_rounds"] == alone.metrics["num_rounds"]
    assert len(runners[0]._siblings) == 2
    assert [runner.num_threads for runner in runners] == [3, 3]


def test_an_error_in_one_group_is_raised_and_the_next_run_is_as_good_as_new(
    tiny, runners, many, monkeypatch
):
    expected = cs.generate(tiny, many, max_new_tokens=6).sequences
    broken = runners[0].sibling(0)
    before = threading.active_count()
    monkeypatch.setattr(
        broken, "prefill", lambda prompts: (_ for _ in ()).throw(RuntimeError("a group fell over"))
    )
    with pytest.raises(RuntimeError, match="a group fell over"):
        cs.generate(tiny, many, max_new_tokens=6, batch_size=8, runners=runners)
    monkeypatch.undo()
    assert [runner.num_threads for runner in runners] == [3, 3]
    assert (
        cs.generate(tiny, many, max_new_tokens=6, batch_size=8, runners=runners).sequences
        == expected
    )
    assert (
        threading.active_count() <= before + 2
    )  # helpers of the engine's own passes may have come


def test_who_listens_hears_every_step_in_order_from_one_thread(tiny, runners, many):
    heard, threads = [], set()

    def listen(record):
        heard.append((record.round, record.prompt, record.position))
        threads.add(threading.get_ident())

    cs.generate(tiny, many, max_new_tokens=6, batch_size=8, runners=runners, on_step=listen)
    assert heard == sorted(heard)
    assert threads == {threading.get_ident()}


def test_groups_are_as_many_as_cores_of_two_rows_or_more(tiny, runners, many):
    def requests(count, should_stop=None):
        stopping = StoppingRules(frozenset(), 4)
        return [
            Request(index, many[index], Throughout(cs.StrictGreedy()), stopping, should_stop)
            for index in range(count)
        ]

    plan = DecodingPlan(StaticPolicy(chain(2)))
    assert [num_groups(*runners, requests(count), 8, plan) for count in (1, 3, 4, 6, 8)] == [
        1,
        1,
        2,
        3,
        3,
    ]
    assert num_groups(*runners, requests(8), 4, plan) == 2
    assert num_groups(*runners, requests(8, lambda sequence, new: None), 8, plan) == 1
    processed = DecodingPlan(StaticPolicy(chain(2)), processors=((lambda ids, scores: scores,),))
    assert num_groups(*runners, requests(8), 8, processed) == 1
    assert num_groups(object(), runners[1], requests(8), 8, plan) == 1


def test_a_batch_that_is_told_to_end_ends(tiny, runners, many):

    ended = threading.Event()
    ended.set()
    request = Request(0, many[2], Throughout(cs.StrictGreedy()), StoppingRules(frozenset(), 4))
    batch = Batch(*runners, [request], DecodingPlan(StaticPolicy(chain(2))))
    decode_batch(batch, StepList(), RoundCounts(), ended=ended)
    assert request.tokens == [] and request.reason is None


def test_whichever_group_has_room_takes_the_next_prompt(tiny, many, monkeypatch):
    expected = cs.generate(tiny, many, max_new_tokens=6).sequences
    runners = tuple(
        CpuRunner(model, tiny.num_tokens, num_threads=2) for model in (tiny.target, tiny.draft)
    )
    late, others, taken = runners[0].sibling(0), threading.Event(), []
    methods = {name: getattr(runners[0], name) for name in ("prefill", "join")}

    def begin(prompts, prefill=late.prefill):
        assert others.wait(60), "the prompts that waited were not taken by the other group"
        return prefill(prompts)

    def take(name, prompts):
        taken.extend(prompts)
        if len(taken) == 6:  # two at first, and the four that waited
            others.set()
        return methods[name](prompts)

    monkeypatch.setattr(late, "prefill", begin)
    for name in methods:
        monkeypatch.setattr(runners[0], name, partial(take, name))
    assert (
        cs.generate(tiny, many, max_new_tokens=6, batch_size=4, runners=runners).sequences
        == expected
    )


def test_long_prompts_begin_first(tiny, many, monkeypatch):
    runners = tuple(
        CpuRunner(model, tiny.num_tokens, num_threads=2) for model in (tiny.target, tiny.draft)
    )
    expected = cs.generate(tiny, many, max_new_tokens=6).sequences
    lengths = []
    for target in (runners[0], runners[0].sibling(0)):
        monkeypatch.setattr(target, "prefill", partial(_note_lengths, lengths, target.prefill))
    assert (
        cs.generate(tiny, many, max_new_tokens=6, batch_size=4, runners=runners).sequences
        == expected
    )
    assert [30, 11] in lengths and [12, 7] in lengths


def _note_lengths(lengths, prefill, prompts):
    lengths.append([len(prompt) for prompt in prompts])
    return prefill(prompts)


@pytest.fixture
def by_turns():
    """Requests of equal prompts' lengths that end at once, or late, in turns: a group's each."""

    def make(count):
        return [
            Request(
                i,
                [4 + i, 9, 5, 6],
                Throughout(cs.StrictGreedy()),
                StoppingRules(frozenset(), 1 if i % 2 else 60),
            )
            for i in range(count)
        ]

    return make


@pytest.mark.parametrize("policy", [StaticPolicy(chain(3)), StaticPolicy(chain(0)), BestFirst(6)])
def test_a_group_without_rows_takes_some_over(runners, by_turns, policy, monkeypatch):
    """The second group's rows end at once, so that the first one's are shared out; with a draft,
    without, in Python."""

    def decode(batch_size):
        requests = by_turns(8)
        steps, counts = StepList(), RoundCounts()
        work = Workload(requests, batch_size, DecodingPlan(policy), steps, counts)
        with torch.inference_mode():
            decode_shared(*runners, work)
        steps.sort()
        return (
            [request.tokens for request in requests],
            list(map(repr, steps)),
            sum(counts.accepted),
        )

    expected = decode(1)
    for runner in runners:
        runner.num_threads = 2
    adopted, adopt, waits = [], CpuRunner.adopt, threading.Event()
    wait, prefill = row_groups._Group.wait, runners[0].prefill
    monkeypatch.setattr(row_groups._Group, "wait", lambda self: (waits.set(), wait(self))[1])
    monkeypatch.setattr(
        runners[0], "prefill", lambda prompts: (waits.wait(60), prefill(prompts))[1]
    )
    monkeypatch.setattr(
        CpuRunner,
        "adopt",
        lambda self, other, rows: (
            adopted.append((self, other, len(rows))),
            adopt(self, other, rows),
        ),
    )
    assert decode(8) == expected
    assert (runners[0].sibling(0), runners[0], 2) in adopted
    assert ((runners[1].sibling(0), runners[1], 2) in adopted) == (policy.depth > 0)
    assert [runner.num_threads for runner in runners] == [2, 2]


def test_an_error_ends_groups_that_wait_for_rows(runners, by_turns, monkeypatch):
    for runner in runners:
        runner.num_threads = 2
    waits, calls, commit = threading.Event(), [], BlockCache.commit
    wait = row_groups._Group.wait

    def begin(self):
        waits.set()
        return wait(self)

    def fail(self, kept):
        calls.append(self)
        if waits.is_set():
            raise RuntimeError("a group fell over")
        commit(self, kept)

    monkeypatch.setattr(row_groups._Group, "wait", begin)
    monkeypatch.setattr(row_groups._Group, "share", lambda self, batch: None)
    monkeypatch.setattr(BlockCache, "commit", fail)
    work = Workload(by_turns(4), 4, DecodingPlan(BestFirst(6)), StepList(), RoundCounts())
    with torch.inference_mode(), pytest.raises(RuntimeError, match="a group fell over"):
        decode_shared(*runners, work)
    assert [runner.num_threads for runner in runners] == [2, 2]


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_no_further_thread_can_start_the_others_decode_all_rows(
    tiny, runners, many, monkeypatch, allowed
):
    expected = cs.generate(tiny, many, max_new_tokens=12).sequences
    started, start = [], threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("certspec-rows"):
            if len(started) == allowed:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    shared = cs.generate(tiny, many, max_new_tokens=12, batch_size=6, runners=runners)
    assert shared.sequences == expected
    assert len(started) == allowed and not any(thread.is_alive() for thread in started)
    assert [runner.num_threads for runner in runners] == [3, 3]


@NEEDS_TIMER
def test_ctrl_c_in_compiled_rounds_is_an_interrupt_and_the_next_run_is_as_good_as_new(
    tiny, runners, many
):
    expected = cs.generate(tiny, many, max_new_tokens=6, runners=runners, batch_size=8).sequences

    def run():
        for _ in range(1000):
            cs.generate(tiny, many * 4, max_new_tokens=90, batch_size=8, runners=runners)

    for seconds in (0.05, 0.11, 0.17):
        assert interrupted_after(seconds, run) < 1.0
    again = cs.generate(tiny, many, max_new_tokens=6, runners=runners, batch_size=8).sequences
    assert again == expected


def test_compiled_rounds_return_nothing_that_numba_makes_by_calling_python(tiny, runners, many):
    cs.generate(tiny, many, max_new_tokens=6, runners=runners, batch_size=8)
    returned = {each.return_type for each in run_rounds.nopython_signatures}
    assert returned and not any(isinstance(each, types.BaseNamedTuple) for each in returned)
