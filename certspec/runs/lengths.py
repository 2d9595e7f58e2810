"""Lengths of runs: how far a guarantee reaches, and how far drafts were accepted. From the flags
1 1 0 1 of a sequence, steps hold 2, 1, 0 and 1 in a row from each start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Replay",
    "RoundsAtOnce",
    "RunLengths",
    "count_runs",
    "drafted_steps",
    "forward_run_lengths",
    "iterate_rounds",
    "mean_lengths",
    "replay_rounds",
    "run_lengths",
]


@dataclass(frozen=True)
class RunLengths:
    """Two means over the same flags, because they answer different questions.

    ``mean_over_starts``: start at any step, count the consecutive steps that hold (0 where the
    first does not); runs are cut at the end of their sequence (``share_cut`` of the starts).
    ``mean_over_maximal_runs``: the steps that hold over the number of maximal runs (0.0 where there
    is none). ``share_of_steps``: steps that hold."""

    mean_over_starts: float
    mean_over_maximal_runs: float
    share_of_steps: float
    share_cut: float


@dataclass(frozen=True)
class Replay:
    """Rounds of drafts of at most ``draft_length`` tokens replayed over recorded decisions.

    ``num_accepted_draft``: (rounds,) accepted draft tokens a round, bonus and correction not
    counted; rounds that the end of a sequence cut before they were decided are left out and counted
    in ``num_cut_rounds``."""

    draft_length: int
    num_accepted_draft: np.ndarray
    num_cut_rounds: int


def forward_run_lengths(holds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each step the number of consecutive steps from it on that hold, inside its sequence:
    (rows,) int64.

    ``holds``: (rows,) bool; ``starts``: (sequences + 1,) row offsets.
    """
    rows = np.arange(len(holds))
    next_failing = np.minimum.accumulate(np.where(holds, len(holds), rows)[::-1])[::-1]
    return np.minimum(next_failing, np.repeat(starts[1:], np.diff(starts))) - rows


def run_lengths(holds: np.ndarray, starts: np.ndarray) -> RunLengths:
    """Both mean run lengths of ``holds``: (rows,) bool over sequences with row offsets
    ``starts``."""
    return mean_lengths(count_runs(holds, starts))


def count_runs(holds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """What ``mean_lengths`` needs, as integers that may be added over blocks of whole sequences:
    (5,) int64."""
    lengths = forward_run_lengths(holds, starts)
    ends = np.repeat(starts[1:], np.diff(starts))
    is_first = np.zeros(len(holds), dtype=bool)
    is_first[starts[:-1]] = True
    held_before = np.concatenate([[False], holds[:-1]]) & ~is_first
    num_cut = ((np.arange(len(holds)) + lengths == ends) & holds).sum()
    return np.array(
        [len(holds), lengths.sum(), holds.sum(), (holds & ~held_before).sum(), num_cut],
        dtype=np.int64,
    )


def mean_lengths(counts: np.ndarray) -> RunLengths:
    """Means from the (summed) counts of ``count_runs``."""
    num_steps, total, num_holding, num_runs, num_cut = (int(count) for count in counts)
    return RunLengths(
        mean_over_starts=total / num_steps,
        mean_over_maximal_runs=num_holding / num_runs if num_runs else 0.0,
        share_of_steps=num_holding / num_steps,
        share_cut=num_cut / num_steps,
    )


def replay_rounds(
    accepted: np.ndarray, starts: np.ndarray, draft_length: int, leaf: np.ndarray | None = None
) -> Replay:
    """Replay rounds: draft ``draft_length`` tokens, take the accepted prefix and one token of the
    target, go on.

    ``leaf``: (rows,) bool, where the draft's best token is not accepted, another candidate of a
    tree is: it is accepted and ends its path (the greedy tree that decoding drafts: only the
    draft's own chain is expanded). Under strict greedy the history after each round is the target's
    own greedy text, so the replay is what decoding sees. A relaxed rule's own decoding leaves that
    text at its first accepted token that is not the argmax; the replay keeps to it."""
    counts: list[np.ndarray] = []
    num_cut = 0
    for each in iterate_rounds(accepted, starts, draft_length, leaf):
        counts.append(each.accepted[~each.is_cut])
        num_cut += int(each.is_cut.sum())
    joined = np.concatenate(counts) if counts else np.zeros(0, dtype=np.int64)
    return Replay(draft_length, joined, num_cut)


def drafted_steps(accepted: np.ndarray, starts: np.ndarray, draft_length: int) -> np.ndarray:
    """(rows,) bool: in the rounds of ``replay_rounds``, whether a step's token is an accepted draft
    token (else it is the round's own token of the target)."""
    changes = np.zeros(len(accepted) + 1, dtype=np.int64)
    for each in iterate_rounds(accepted, starts, draft_length):
        np.add.at(changes, each.rows, 1)
        np.add.at(changes, each.rows + each.accepted, -1)
    return np.cumsum(changes[:-1]) > 0


@dataclass(frozen=True)
class RoundsAtOnce:
    """One round of each of some ``sequences`` (indices): the ``rows`` where they begin, the draft's
    own ``chain`` tokens and all draft tokens that are ``accepted``, and ``is_cut``: the sequence
    ends before the round is decided."""

    sequences: np.ndarray
    rows: np.ndarray
    chain: np.ndarray
    accepted: np.ndarray
    is_cut: np.ndarray


def iterate_rounds(
    chain: np.ndarray,
    starts: np.ndarray,
    draft_length: int | np.ndarray,
    leaf: np.ndarray | None = None,
) -> Iterator[RoundsAtOnce]:
    """The rounds of ``replay_rounds``, one of every sequence that still goes on at a time.
    ``draft_length`` may be (rows,): of a round that begins at the row."""
    rows = np.arange(len(chain))
    ends = np.repeat(starts[1:], np.diff(starts))
    spine = np.minimum(forward_run_lengths(chain, starts), draft_length)
    is_cut = (spine < draft_length) & (rows + spine == ends)
    accepted = spine
    if leaf is not None:
        accepted = spine + (
            leaf[np.minimum(rows + spine, len(chain) - 1)] & (spine < draft_length) & ~is_cut
        )
    sequences, place = np.arange(len(starts) - 1), starts[:-1]
    while True:
        going = place < starts[sequences + 1]
        sequences, place = sequences[going], place[going]
        if not len(place):
            return
        yield RoundsAtOnce(sequences, place, spine[place], accepted[place], is_cut[place])
        place = place + accepted[place] + 1
