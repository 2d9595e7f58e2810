"""Lengths of runs: how far a guarantee reaches, and how far drafts were accepted. Works on arrays of flags and knows
nothing about files or models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Replay", "RunLengths", "drafted_steps", "forward_run_lengths", "replay_rounds", "run_lengths"]


@dataclass(frozen=True)
class RunLengths:
    """Two means over the same flags, because they answer different questions.

    ``mean_over_starts``: start at any step, count the consecutive steps that hold (0 where the first does not);
    runs are cut at the end of their sequence (``share_cut`` of the starts). ``mean_over_maximal_runs``: the steps that
    hold over the number of maximal runs (0.0 where there is none). ``share_of_steps``: steps that hold.
    """

    mean_over_starts: float
    mean_over_maximal_runs: float
    share_of_steps: float
    share_cut: float


@dataclass(frozen=True)
class Replay:
    """Rounds of drafts of at most ``draft_length`` tokens replayed over recorded decisions.

    ``num_accepted_draft``: (rounds,) accepted draft tokens a round, bonus and correction not counted; rounds that the
    end of a sequence cut before they were decided are left out and counted in ``num_cut_rounds``.
    """

    draft_length: int
    num_accepted_draft: np.ndarray
    num_cut_rounds: int


def forward_run_lengths(holds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each step the number of consecutive steps from it on that hold, inside its sequence: (rows,) int64.

    ``holds``: (rows,) bool; ``starts``: (sequences + 1,) row offsets.
    """
    rows = np.arange(len(holds))
    failing = np.where(holds, len(holds), rows)
    next_failing = np.minimum.accumulate(failing[::-1])[::-1]
    ends = np.repeat(starts[1:], np.diff(starts))
    return np.minimum(next_failing, ends) - rows


def run_lengths(holds: np.ndarray, starts: np.ndarray) -> RunLengths:
    """Both mean run lengths of ``holds``: (rows,) bool over sequences with row offsets ``starts``."""
    lengths = forward_run_lengths(holds, starts)
    ends = np.repeat(starts[1:], np.diff(starts))
    is_first = np.zeros(len(holds), dtype=bool)
    is_first[starts[:-1]] = True
    held_before = np.concatenate([[False], holds[:-1]]) & ~is_first
    num_runs = int((holds & ~held_before).sum())
    return RunLengths(
        mean_over_starts=float(lengths.mean()),
        mean_over_maximal_runs=float(holds.sum() / num_runs) if num_runs else 0.0,
        share_of_steps=float(holds.mean()),
        share_cut=float(((np.arange(len(holds)) + lengths == ends) & holds).mean()),
    )


def replay_rounds(accepted: np.ndarray, starts: np.ndarray, draft_length: int) -> Replay:
    """Replay rounds: draft ``draft_length`` tokens, take the accepted prefix and one token of the target, go on.

    Under strict greedy the history after each round is the target's own greedy text, so the replay is what decoding
    sees. A relaxed rule's own decoding leaves that text at its first accepted token that is not the argmax; the replay
    keeps to it.
    """
    lengths = forward_run_lengths(accepted, starts).tolist()
    counts: list[int] = []
    num_cut = 0
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        row = first
        while row < end:
            num_accepted = min(lengths[row], draft_length)
            if num_accepted < draft_length and row + num_accepted == end:
                num_cut += 1
            else:
                counts.append(num_accepted)
            row += num_accepted + 1
    return Replay(draft_length, np.asarray(counts, dtype=np.int64), num_cut)


def drafted_steps(accepted: np.ndarray, starts: np.ndarray, draft_length: int) -> np.ndarray:
    """(rows,) bool: in the rounds of ``replay_rounds``, whether a step's token is an accepted draft token (else it is
    the round's own token of the target)."""
    lengths = forward_run_lengths(accepted, starts).tolist()
    drafted = np.zeros(len(accepted), dtype=bool)
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        row = first
        while row < end:
            num_accepted = min(lengths[row], draft_length)
            drafted[row : row + num_accepted] = True
            row += num_accepted + 1
    return drafted
