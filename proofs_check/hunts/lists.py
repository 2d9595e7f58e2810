"""``python -m proofs_check.hunts.lists --truncations 1000000``: random pairs of distributions,
truncated at random, judged in full and from the lists: no certificate may be false. The rules are
applied by their definitions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.lumped import (
    OUTSIDE,
    UNKNOWN,
    DraftLists,
    LumpedCertificates,
    TargetLists,
    lumped_certificates,
)
from certspec.errors import InvalidArgument
from certspec.rules import Absolute, Additive, Gated, Rule, default_rules

__all__ = ["Truncation", "count_false", "full_accepted", "main", "random_pairs", "truncate"]

Floats = NDArray[np.float64]

SOUNDNESS_RULES: tuple[Rule, ...] = (
    *default_rules(),
    Additive(0.0),
    Gated(top_m=3, additive=0.4),
    Gated(top_m=6, multiplicative=0.2),
    Absolute(0.25),
)


@dataclass(frozen=True)
class Truncation:
    """One batch of truncated pairs with the same number of listed tokens."""

    target: TargetLists
    draft: DraftLists


def random_pairs(rng: np.random.Generator, num_rows: int, num_tokens: int) -> tuple[Floats, Floats]:
    """(rows, tokens) target and draft probabilities: peaked and flat, near ties, drafts from close
    to unrelated."""
    sharpness = rng.choice([0.05, 0.3, 1.0, 3.0, 30.0], size=(num_rows, 1))
    target = rng.gamma(sharpness, size=(num_rows, num_tokens)) + 1e-12
    near_tie = rng.random(num_rows) < 0.2
    target[near_tie, 1] = target[near_tie, 0] * (1.0 + rng.normal(0.0, 1e-3, near_tie.sum()))
    target /= target.sum(axis=1, keepdims=True)
    spread = rng.choice([1e-3, 1e-2, 0.05, 0.2, 1.0, 4.0], size=(num_rows, 1))
    draft = target * np.exp(spread * rng.normal(size=target.shape))
    swapped = (
        rng.random(num_rows) < 0.3
    )  # the hard ones: mass moved onto one token, just enough to make it the best
    best, moved = draft.argmax(axis=1), rng.integers(0, num_tokens, num_rows)
    every_row = np.arange(num_rows)
    lifted = draft[every_row, best] * (1.0 + rng.normal(0.0, 1e-2, num_rows))
    draft[every_row[swapped], moved[swapped]] = lifted[swapped]
    draft /= draft.sum(axis=1, keepdims=True)
    return target, draft


def full_accepted(target: Floats, draft: Floats, rule: Rule) -> NDArray[np.bool_]:
    """Whether the rule accepts, from its definition on whole distributions; (rows,). The lowest id
    wins a tie."""
    every_row = np.arange(len(target))
    if rule.tree_width:
        ahead = draft > draft[every_row, target.argmax(axis=1)][:, None]
        tied = draft == draft[every_row, target.argmax(axis=1)][:, None]
        before = tied & (np.arange(target.shape[1]) < target.argmax(axis=1)[:, None])
        return (ahead | before).sum(axis=1) < rule.tree_width
    threshold = rule.threshold
    if threshold is None:
        raise InvalidArgument(f"{rule.label}: expected a rule with a threshold or a tree width")
    token = draft.argmax(axis=1)
    prob = target[every_row, token]
    before = (target == prob[:, None]) & (np.arange(target.shape[1]) < token[:, None])
    rank = 1 + (target > prob[:, None]).sum(axis=1) + before.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(target > 0.0, target * np.log(target + threshold.smoothing), 0.0).sum(
            axis=1
        )
    tau = np.array(
        [threshold.value(top, h) for top, h in zip(target.max(axis=1), entropy, strict=True)]
    )
    passes: NDArray[np.bool_] = np.asarray(prob > tau if threshold.strictly_above else prob >= tau)
    return np.asarray(passes & (rank <= threshold.top_m) if threshold.top_m else passes)


def truncate(
    rng: np.random.Generator,
    target: Floats,
    draft: Floats,
    num_listed: int,
    *,
    error: float = 0.0,
    num_tokens: int | None = None,
) -> Truncation:
    """The target's ``num_listed`` best tokens, and of the draft its own list, in one of the ways
    that logs have.

    A third of the rows doesn't say which tokens the draft ranks; where the draft's list is its own
    top-k, the target's tokens beyond it have no draft value."""
    num_rows, num_columns = target.shape
    order = np.argsort(-target, axis=1, kind="stable")[:, :num_listed]
    target_lists = np.take_along_axis(target, order, 1)
    draft_order = np.argsort(-draft, axis=1, kind="stable")
    draft_rank = np.argsort(draft_order, axis=1, kind="stable")
    draft_values = np.take_along_axis(draft, order, 1)
    own_list = np.less(rng.random(num_rows), 0.5)
    unlisted = own_list[:, None] & (np.take_along_axis(draft_rank, order, 1) >= num_listed)
    draft_values[unlisted] = np.nan
    column_of = np.full((num_rows, num_columns), OUTSIDE)
    np.put_along_axis(column_of, order, np.broadcast_to(np.arange(num_listed), order.shape), 1)
    best = np.take_along_axis(column_of, draft_order[:, :num_listed], 1)
    outside = np.where(
        best == OUTSIDE, np.take_along_axis(draft, draft_order[:, :num_listed], 1), 0.0
    ).sum(axis=1)
    best[rng.random(num_rows) < 1 / 3] = UNKNOWN
    with np.errstate(divide="ignore"):
        shift = error * rng.uniform(-1.0, 1.0, (2, *order.shape))
        logged = (
            np.minimum(np.log(target_lists) + shift[0], 0.0),
            np.minimum(np.log(draft_values) + shift[1], 0.0),
        )
    listed = np.minimum.accumulate(
        logged[0], axis=1
    )  # as logged lists are sorted; still within ``error`` of the truth
    num_ranked = np.full(num_rows, num_listed)
    return Truncation(
        TargetLists(listed, num_ranked, error, num_tokens),
        DraftLists(
            logged[1], best, np.where(own_list, outside, 0.0), error, np.ones(num_rows, dtype=bool)
        ),
    )


@dataclass
class _Count:
    truncations: int = 0
    judged: int = 0
    certified: int = 0
    false_certificates: int = 0
    wrong_accepted: int = 0

    def add(self, judged: LumpedCertificates, truths: Sequence[NDArray[np.bool_]]) -> None:
        self.truncations += judged.certified.shape[1]
        for index, truth in enumerate(truths):
            certified, accepted = judged.certified[index], judged.accepted[index]
            self.judged += len(truth)
            self.certified += int(certified.sum())
            self.false_certificates += int((certified & ~truth).sum())
            self.wrong_accepted += int(
                ((accepted == 1) & ~truth).sum() + ((accepted == 0) & truth).sum()
            )


def count_false(
    num_truncations: int, seed: int = 0, rules: Sequence[Rule] = SOUNDNESS_RULES
) -> dict[str, int]:
    """Judge ``num_truncations`` random truncations under every rule, half of them with rounded
    logprobs."""
    rng, count = np.random.default_rng(seed), _Count()
    while count.truncations < num_truncations:
        num_tokens = int(rng.choice([3, 4, 6, 12, 40]))
        target, draft = random_pairs(
            rng, min(20_000, num_truncations - count.truncations), num_tokens
        )
        error = float(rng.choice([0.0, 0.0, 1e-6, 1e-3]))
        listed = int(rng.integers(1, num_tokens + 1))
        pair = truncate(
            rng,
            target,
            draft,
            listed,
            error=error,
            num_tokens=num_tokens if rng.random() < 0.5 else None,
        )
        truths = [full_accepted(target, draft, rule) for rule in rules]
        count.add(lumped_certificates(pair.target, rules, pair.draft), truths)
    return dict(vars(count))


def count_false_of_real_rows(
    target_logits: Floats, draft_logits: Floats, num_truncations: int, seed: int = 0
) -> dict[str, int]:
    """The same over random truncations, 1 to 64 tokens long, of given rows of logits; (rows,
    tokens) each."""
    rng, count = np.random.default_rng(seed), _Count()
    target, draft = _softmax(target_logits), _softmax(draft_logits)
    truths = [full_accepted(target, draft, rule) for rule in SOUNDNESS_RULES]
    num_tokens, deepest = target.shape[1], min(64, target.shape[1])
    target, draft = _best_of_both(target, draft, deepest)
    while count.truncations < num_truncations:
        listed = int(rng.integers(1, deepest + 1))
        error = float(rng.choice([0.0, 0.0, 1e-6, 1e-3]))
        size = num_tokens if rng.random() < 0.5 else None
        pair = truncate(rng, target, draft, listed, error=error, num_tokens=size)
        count.add(lumped_certificates(pair.target, SOUNDNESS_RULES, pair.draft), truths)
    return dict(vars(count))


def _best_of_both(target: Floats, draft: Floats, depth: int) -> tuple[Floats, Floats]:
    """Columns of the ``depth`` best tokens of either row, in the order of their ids: all that a
    truncation can list."""
    best = [np.argsort(-probs, axis=1, kind="stable")[:, :depth] for probs in (target, draft)]
    ids = np.sort(np.concatenate(best, axis=1), axis=1)
    again = np.concatenate([np.zeros((len(ids), 1), dtype=bool), np.diff(ids, axis=1) == 0], axis=1)
    kept = [np.where(again, 0.0, np.take_along_axis(probs, ids, 1)) for probs in (target, draft)]
    return kept[0], kept[1]


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line of JSON; exit code 1 if a certificate was false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truncations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rows",
        help=".npz with target_logits and draft_logits, (rows, tokens): truncate these instead",
    )
    options = parser.parse_args(arguments)
    if options.rows:
        stored = np.load(options.rows)
        rows = [stored[name].astype(np.float64) for name in ("target_logits", "draft_logits")]
        result = count_false_of_real_rows(rows[0], rows[1], options.truncations, options.seed)
    else:
        result = count_false(options.truncations, options.seed)
    print(json.dumps(result))
    return int(result["false_certificates"] > 0 or result["wrong_accepted"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
