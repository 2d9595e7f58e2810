"""Replays rounds of speculative decoding over a run's recorded steps, all prompts at once, for one
way of drafting. Accepted drafts come in streaks, so nothing is assumed independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certspec.runs.lengths import iterate_rounds

__all__ = ["Rounds", "replay"]


@dataclass(frozen=True)
class Rounds:
    """What came of a replay, by prompt: ``num_tokens`` emitted, ``num_rounds`` verify steps,
    ``nats_lost`` by accepted tokens that are not the argmax (NaN where a log doesn't tell),
    ``cost`` of its rounds (0 without costs)."""

    num_tokens: np.ndarray
    num_rounds: np.ndarray
    nats_lost: np.ndarray
    cost: np.ndarray


def replay(
    chain: np.ndarray,
    starts: np.ndarray,
    draft_length: int | np.ndarray,
    *,
    leaf: np.ndarray | None = None,
    nats: np.ndarray | None = None,
    cost: np.ndarray | None = None,
) -> Rounds:
    """Replay drafts of ``draft_length`` tokens; each round takes the accepted ones and one token of
    the target.

    ``draft_length`` may be (rows,): of a round that begins at the row; so may ``cost``.

    ``chain``: (rows,) bool, the draft's best token is accepted and drafting goes on behind it;
    ``leaf``: (rows,) bool, where it is not, another candidate of a tree is the target's token: it
    is accepted and ends the path (the greedy tree: the draft's own chain with its m best candidates
    at each node). ``nats``: (rows,) loss where a chain token is accepted. More accepted steps never
    need more rounds, so a replay of certified flags bounds the rounds from above."""
    summed = np.concatenate([[0.0], np.cumsum(nats if nats is not None else np.zeros(len(chain)))])
    num_rounds = np.zeros(len(starts) - 1, dtype=np.int64)
    nats_lost = np.zeros(len(starts) - 1)
    spent = np.zeros(len(starts) - 1)
    for each in iterate_rounds(chain, starts, draft_length, leaf):
        num_rounds[each.sequences] += 1
        nats_lost[each.sequences] += summed[each.rows + each.chain] - summed[each.rows]
        if cost is not None:
            spent[each.sequences] += cost[each.rows]
    return Rounds(np.diff(starts), num_rounds, nats_lost, spent)
