"""Rounds of draft trees on a GPU beside rounds of a chain, and beside the loop that asks the device
level by level: random weights, where wanted with the accept pattern of the bundled pair. Turns are
taken, figures are medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from certspec.decoding.cuda_rounds import round_shape
from certspec.decoding.drafting import DraftPolicy
from certspec.decoding.generation import generate, inference
from certspec.decoding.policies import Adaptive
from certspec.decoding.profiles import DraftingProfile, MonotoneMap
from certspec.decoding.round_writer import own_rules
from certspec.errors import InvalidArgument
from certspec.kernels.rule_table import rule_table
from certspec.models.cuda.layouts import GrowthLayout, RowState
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner
from certspec.models.pairs import Pair
from certspec.rules import StrictGreedy
from certspec.studies.bench.decode_cuda import bundled_accepts, launch_times, waited
from certspec.studies.bench.replay import ReplayedRounds, ReplayingRunner, UncertifiedReplay
from certspec.studies.bench.spreads import in_turns, spread, warmed_up

__all__ = ["measure_tree_rounds", "measure_tree_speeds", "stopped_chain"]


def stopped_chain(drafted: int, most: int) -> Adaptive:
    """A chain of at most ``most`` tokens that stops after ``drafted`` of them, whatever the draft
    says: by a profile that gives every token a chance of one half."""
    if not 1 <= drafted <= most:
        raise InvalidArgument(f"stopped chain: expected 1 to {most} drafted tokens, got {drafted}")
    chance = MonotoneMap((0.0, 1.0), (0.5, 0.5))
    worth = (
        1.5 * 0.5**drafted
    )  # half way between the chances of the last node that is run and of the next one
    profile = DraftingProfile(
        "stopped", 0, 0.1, 0.0, (chance,), draft_cost=worth, node_cost=0.0, rate=1.0
    )
    return Adaptive(profile, depth=most)


def measure_tree_rounds(
    target: CudaRunner,
    draft: CudaRunner,
    policies: Mapping[str, DraftPolicy],
    context: int = 512,
    repeats: int = 30,
) -> dict[str, dict[str, float]]:
    """Milliseconds on the GPU of a whole round of each tree after ``context`` tokens, one CUDA
    graph: where a longest path is accepted and moved in the caches, where nothing is, and where
    nothing is certified either; and of a verify pass over as many positions alone."""
    prompt = list(range(1, context + 1))
    for runner in (target, draft):
        runner.prefill([prompt])
        runner.reserve(context + 256)
    launches: dict[tuple[str, str], Callable[[], Any]] = {}
    rounds: list[TreeRounds] = []
    found: dict[str, dict[str, float]] = {}
    for name, policy in policies.items():
        shape = round_shape(policy)
        if shape is None:
            raise InvalidArgument(
                f"trees: expected one that rounds on the device can draft, got {name}"
            )
        nodes = shape.num_nodes if isinstance(shape, GrowthLayout) else len(shape)
        found[name] = {"nodes": nodes, "depth": shape.depth}
        target.forward(torch.ones((1, nodes + 1), dtype=torch.int64))
        target.commit([[]])
        launches[name, "verify_ms"] = target.graph_of(1, nodes + 1).replay
        table = rule_table(own_rules(StrictGreedy(), policy))
        for figure, pattern, kind in (
            ("round_ms", (shape.depth,), ReplayedRounds),
            ("rejected_ms", (0,), ReplayedRounds),
            ("uncertified_ms", (0,), UncertifiedReplay),
        ):
            each = kind(target, draft, 1, shape, table, pattern=pattern, strict=True)
            rounds.append(each)
            launches[name, figure] = each.begin

    def restart() -> None:  # the same place in the cache every time
        for each in rounds:
            each.start([RowState(prompt[-2], prompt[-1], context)], [0], [0])

    times = launch_times(launches, restart, repeats)
    for (name, figure), values in times.items():
        found[name][figure] = statistics.median(values)
    for name, own in found.items():
        for figure, one, other in (
            ("certificates_us", "rejected_ms", "uncertified_ms"),
            ("moves_us", "round_ms", "rejected_ms"),
        ):
            pairs = zip(times[name, one], times[name, other], strict=True)
            own[figure] = 1e3 * statistics.median([a - b for a, b in pairs])
    return found


def measure_tree_speeds(
    pair: Pair,
    runners: tuple[ReplayingRunner, CudaRunner],
    policies: Mapping[str, DraftPolicy],
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Tokens a second of ``generate`` with each tree, records and host included, while the accept
    pattern of the bundled pair under the same tree is replayed; and milliseconds a round without a
    pattern (random weights accept next to nothing), on the device and in the loop on the host."""
    patterns = {name: bundled_accepts(policy, 8, 48) for name, policy in policies.items()}
    ways: dict[tuple[str, str], Callable[[Sequence[int]], Any]] = {}
    for name, policy in policies.items():
        for figure, pattern, on_device in (
            ("tokens_per_second", patterns[name], True),
            ("round_ms", (), True),
            ("loop_round_ms", (), False),
        ):
            decode = _way(pair, runners, policy, num_tokens, pattern, on_device)
            ways[name, figure] = waited(decode)
    found: dict[tuple[str, str], list[float]] = {key: [] for key in ways}
    with inference(pair.target, pair.draft):
        warmed_up(ways, prompts[0])
        for turn in in_turns(ways, prompts, repeats):
            if turn.way[1] == "tokens_per_second":
                found[turn.way].append(turn.result["num_emitted"] / turn.seconds)
            else:
                found[turn.way].append(1e3 * turn.seconds / turn.result["num_rounds"])
    return {
        name: {
            "mean_accepted": statistics.fmean(patterns[name]),
            **{
                figure: spread(values) for (other, figure), values in found.items() if other == name
            },
        }
        for name in policies
    }


def _way(
    pair: Pair,
    runners: tuple[ReplayingRunner, CudaRunner],
    policy: DraftPolicy,
    num_tokens: int,
    pattern: tuple[int, ...],
    on_device: bool,
) -> Callable[[Sequence[int]], Any]:
    def decode(prompt: Sequence[int]) -> Any:
        runners[0].makes_rounds = on_device
        try:
            with runners[0].replaying(pattern):
                return generate(
                    pair,
                    [list(prompt)],
                    tree=policy,
                    max_new_tokens=num_tokens,
                    runners=runners,
                    eos_token_ids=[],
                ).metrics
        finally:
            runners[0].makes_rounds = True

    return decode
