"""Acceptance metrics under every convention in use, each by name, because the conventions collide: some count the bonus
token and some don't. This module sees counts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["acceptance_metrics"]


def acceptance_metrics(
    accepted: Sequence[int],
    drafted: Sequence[int],
    nodes: Sequence[int] | None = None,
    *,
    num_spec_tokens: int | None = None,
) -> dict[str, Any]:
    """Metrics of verification rounds: ``accepted[i]`` draft tokens accepted of ``drafted[i]`` drafted positions
    (``nodes[i]`` tree nodes; the same for a chain).

    A round that drafted nothing is a plain target step and counts in ``num_plain_steps`` only. A token accepted past an
    end of sequence counts as accepted, as it does in vLLM; ``num_emitted`` elsewhere counts what came out. Rates over
    nothing are None.

    - vLLM: ``mean_acceptance_length`` = 1 + accepted / rounds (bonus in), ``draft_acceptance_rate`` = accepted /
      drafted, ``acceptance_histogram[a]`` = rounds that accepted exactly a, ``num_spec_steps``,
      ``num_accepted_draft_tokens``, ``num_draft_tokens``, ``num_spec_tokens`` (the configured draft length).
    - ``gpt_fast_mean_accepted``: accepted / rounds (bonus out).
    - ``sglang_accept_rate``: accepted / drafted tree nodes. ``sglang_accept_length``: tokens a verify pass (bonus in).
    - ``spec_bench_mean_accepted_tokens``: mean over rounds of accepted + 1 (bonus in).
    - ``acceptance_rate_by_position[i]``: rounds that accepted more than i, over rounds that drafted more than i.
    """
    nodes = drafted if nodes is None else nodes
    rounds = [(a, d, n) for a, d, n in zip(accepted, drafted, nodes, strict=True) if d > 0]
    num_rounds = len(rounds)
    num_accepted = sum(a for a, _, _ in rounds)
    num_drafted = sum(d for _, d, _ in rounds)
    num_nodes = sum(n for _, _, n in rounds)
    longest = max([num_spec_tokens or 0, *(d for _, d, _ in rounds)])
    histogram = [0] * (longest + 1)
    for count, _, _ in rounds:
        histogram[count] += 1
    mean_accepted = _ratio(num_accepted, num_rounds)
    return {
        "mean_acceptance_length": None if mean_accepted is None else 1.0 + mean_accepted,
        "draft_acceptance_rate": _ratio(num_accepted, num_drafted),
        "acceptance_histogram": histogram,
        "num_spec_steps": num_rounds,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": longest if num_spec_tokens is None else num_spec_tokens,
        "gpt_fast_mean_accepted": mean_accepted,
        "sglang_accept_rate": _ratio(num_accepted, num_nodes),
        "sglang_accept_length": _ratio(num_accepted + num_rounds, num_rounds),
        "spec_bench_mean_accepted_tokens": _ratio(sum(a + 1 for a, _, _ in rounds), num_rounds),
        "acceptance_rate_by_position": [
            _ratio(sum(a > i for a, _, _ in rounds), sum(d > i for _, d, _ in rounds)) for i in range(longest)
        ],
        "num_draft_nodes": num_nodes,
        "num_plain_steps": len(accepted) - num_rounds,
    }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
