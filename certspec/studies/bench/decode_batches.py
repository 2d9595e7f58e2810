"""Batches on a GPU at the shapes of Qwen3-4B and 0.6B, random weights: prompts that join as rows
end against batches one after another, the host's share of a round, and what a step and a round take
by context and number of rows, beside the time that a copy of as many bytes takes."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from certspec.decoding.drafting import StaticPolicy
from certspec.decoding.groups import Workload, decode_shared
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, Request, RoundCounts, StoppingRules
from certspec.decoding.schedules import Throughout
from certspec.kernels.rule_table import rule_table
from certspec.models.cuda.layouts import RowState
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner
from certspec.models.trees import chain
from certspec.rules import StrictGreedy
from certspec.studies.bench.decode_cuda import launch_times, waited
from certspec.studies.bench.replay import ReplayingRunner
from certspec.studies.bench.spreads import in_turns, ratio_spread, spread, tokens_per_second

__all__ = ["CONTEXTS", "measure_contexts", "measure_host", "measure_joining"]

Runners = tuple[ReplayingRunner, CudaRunner]
Asked = tuple[Sequence[int], int]  # a prompt, and how many tokens it gets

CONTEXTS = (512, 2048, 8192, 32768)
_CHAIN = 3
_PATTERN = (3, 1, 2, 0, 3, 2, 1, 2)  # accepted round by round, 1.75 in the mean
_BATCH = 8
_VOCABULARY = 151_936
_REPEATS = 15  # of a step or a round at one context


def measure_joining(runners: Runners, num_requests: int = 16, repeats: int = 2) -> dict[str, Any]:
    """Tokens a second of requests of 64 to 512 tokens for prompts as long, eight at a time, where
    the next joins as a row ends and where a batch waits for the one before it; ratios within a
    repeat. ``captures``: CUDA graphs that each way makes, one after the other, beyond those that
    are there, and all ways in all turns after that."""
    chance = random.Random(0)
    asked = [
        (chance.choices(range(_VOCABULARY), k=chance.randint(64, 512)), chance.randint(64, 512))
        for _ in range(num_requests)
    ]
    ways: dict[str, Callable[[Sequence[Asked]], int]] = {}
    for name, length in (("no draft", 0), (f"chain of {_CHAIN}", _CHAIN)):
        ways[f"{name}, joining"] = partial(_decode, runners, length=length)
        ways[f"{name}, batch after batch"] = partial(_decode, runners, length=length, joining=False)
    ways = {name: waited(way) for name, way in ways.items()}
    captures: dict[str, int] = {}
    for name, way in ways.items():
        with _counted_captures() as made:
            way(asked)
        captures[name] = made[0]
    with _counted_captures() as made:
        turns = list(in_turns(ways, [asked], repeats))
    speeds = tokens_per_second(turns, int)
    return {
        "requests": num_requests,
        "new_tokens": sum(count for _, count in asked),
        "tokens_per_second": {name: spread(values) for name, values in speeds.items()},
        "joining_over_batches": {
            name: ratio_spread(speeds[f"{name}, joining"], speeds[f"{name}, batch after batch"])
            for name in ("no draft", f"chain of {_CHAIN}")
        },
        "captures": {**captures, "all turns": made[0]},
    }


def _decode(runners: Runners, asked: Sequence[Asked], length: int, joining: bool = True) -> int:
    """Tokens emitted. Where nobody joins, each batch is a call of its own."""
    requests = [
        Request(index, prompt, Throughout(StrictGreedy()), StoppingRules(frozenset(), count))
        for index, (prompt, count) in enumerate(asked)
    ]
    plan = DecodingPlan(StaticPolicy(chain(length)))
    size = len(requests) if joining else _BATCH
    with torch.inference_mode(), runners[0].replaying(_PATTERN if length else ()):
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            decode_shared(*runners, Workload(part, _BATCH, plan, StepList(), RoundCounts()))
    return sum(request.num_emitted for request in requests)


@contextmanager
def _counted_captures() -> Iterator[list[int]]:
    """The number of CUDA graphs made inside, in a list."""
    made, make = [0], torch.cuda.CUDAGraph

    def counted() -> Any:
        made[0] += 1
        return make()

    torch.cuda.CUDAGraph = counted  # type: ignore[misc, assignment]
    try:
        yield made
    finally:
        torch.cuda.CUDAGraph = make  # type: ignore[misc]


def measure_host(runners: Runners, num_tokens: int = 128) -> dict[str, dict[str, float]]:
    """Medians over the rounds of a generation, in milliseconds: from one round's end to the next
    one's (``round``), what the device works in it (``device``), how long the host works in it and
    does not wait (``host``), and how long the device waits for the host (``idle``, the rest of the
    round)."""
    found: dict[str, dict[str, float]] = {}
    prompt = list(range(1, 257))
    for batch in (1, _BATCH):
        for name, length in (("no draft", 0), (f"chain of {_CHAIN}", _CHAIN)):
            asked = [(prompt, num_tokens)] * batch
            for _ in range(2):  # compiles, captures, warms up
                _decode(runners, asked, length)
            (rounds,) = (
                each
                for each in runners[0].kept_rounds.values()
                if each.batch == batch and each.depth == length
            )
            with _timed(rounds) as times:
                _decode(runners, asked, length)
            torch.cuda.synchronize()
            found[f"batch {batch}, {name}"] = times.medians()
    return found


@dataclass
class _RoundTimes:
    """Of each round in turn: when it was over, how long the host waited for it, and the events
    around it on the device."""

    ends: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    events: list[tuple[Any, Any]] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        periods = 1e3 * np.diff(self.ends)
        waits = 1e3 * np.array(self.waits[1:])
        device = np.array([one.elapsed_time(other) for one, other in self.events[1:]])
        count = min(len(periods), len(device))
        return {
            "round_ms": float(np.median(periods)),
            "device_ms": float(np.median(device)),
            "host_ms": float(np.median(periods - waits)),
            "idle_ms": float(np.median(periods[:count] - device[:count])),
        }


@contextmanager
def _timed(rounds: TreeRounds) -> Iterator[_RoundTimes]:
    times, begin, finish = _RoundTimes(), rounds.begin, rounds.finish

    def timed_begin() -> None:
        events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        events[0].record()
        begin()
        events[1].record()
        times.events.append((events[0], events[1]))

    def timed_finish() -> Any:
        began = time.perf_counter()
        scores = finish()
        times.ends.append(time.perf_counter())
        times.waits.append(times.ends[-1] - began)
        return scores

    own = vars(rounds)  # before the methods of the class
    own.update(begin=timed_begin, finish=timed_finish)
    try:
        yield times
    finally:
        del own["begin"], own["finish"]


def measure_contexts(
    runners: Runners,
    bandwidth: float,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = (1, _BATCH),
) -> list[dict[str, Any]]:
    """Milliseconds on the GPU of a step without a draft and of a round of a chain, by rows that
    have run so many tokens, all in one cache with room for the longest; ``floor``: the bytes of
    weights, keys and values that the passes read at the ``bandwidth`` of a copy. One batch more has
    a row of the longest context and others of the shortest."""
    target, draft = runners
    room = max(contexts) + 64
    table = rule_table((StrictGreedy(),))
    rows: list[dict[str, Any]] = []
    for batch in batches:
        with torch.inference_mode():
            for runner in runners:
                runner.read_prompts([[1, 2]] * batch, [room] * batch)
            step, round_ = (
                TreeRounds(target, drafted, batch, chain(length), table, strict=True)
                for drafted, length in ((None, 0), (draft, _CHAIN))
            )
            lengths = [[context] * batch for context in contexts]
            if batch > 1:
                lengths.append([max(contexts)] + [min(contexts)] * (batch - 1))
            for own in lengths:
                rows.append(_measure_lengths(runners, (step, round_), own, bandwidth))
        del step, round_
    return rows


def _measure_lengths(
    runners: Runners, both: tuple[TreeRounds, TreeRounds], lengths: Sequence[int], bandwidth: float
) -> dict[str, Any]:
    target, draft = runners
    states = [RowState(1, 2, length) for length in lengths]

    def restart() -> None:  # the same place in the cache every time
        for each in both:
            each.start(states, target.cache_rows, draft.cache_rows)

    times = launch_times({"step": both[0].begin, "round": both[1].begin}, restart, _REPEATS)
    one, other = (_bytes_read(runner, sum(lengths)) for runner in runners)
    floors = {"step": one, "round": one + _CHAIN * other}
    found: dict[str, Any] = {
        "rows": len(lengths),
        "context": lengths[0] if len(set(lengths)) == 1 else f"{lengths[0]}, others {lengths[-1]}",
        "cache_bytes": sum(
            store.nbytes
            for runner in runners
            for store in (runner.live_cache().keys, runner.live_cache().values)
        ),
    }
    for name, values in times.items():
        found[f"{name}_ms"] = statistics.median(values)
        found[f"{name}_floor_ms"] = 1e3 * floors[name] / bandwidth
        found[f"{name}_over_floor"] = found[f"{name}_ms"] / found[f"{name}_floor_ms"]
    return found


def _bytes_read(runner: CudaRunner, num_tokens: int) -> int:
    """By a pass after so many tokens, of all rows: the weights, and the tokens' keys and values."""
    geometry, weights = runner.geometry, runner.layers.weights
    matrices = [part for part in vars(weights.stacked).values() if part is not None]
    each = geometry.num_layers * geometry.kv_width * weights.embedding.element_size()
    return sum(part.nbytes for part in [*matrices, weights.head]) + 2 * each * num_tokens
