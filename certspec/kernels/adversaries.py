"""Rows of logits made to catch a certifying kernel out: ties, saturation, masks, flat and heavy tails, and drafts that
sit a hair on either side of a rule's boundary. Knows rules by their normal form and nothing about kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from certspec.rules import Rule

__all__ = ["BAND", "FAMILIES", "NEAR_FAMILIES", "boundary_drafts", "boundary_pairs", "target_rows", "with_tail"]

FAMILIES = ("normal", "flat", "heavy", "near-tie", "tie", "saturated", "masked", "grid")
# Of these every row has a certificate to sit beside; "steep": a few tokens over a tail of any mass down to 1e-12.
NEAR_FAMILIES = ("normal", "heavy", "near-tie", "steep", "steep", "masked", "grid", "steep")
BAND = (1e-12, 1e-3)  # |KL / certificate - 1| of a boundary pair


def target_rows(generator: np.random.Generator, family: str, rows: int, vocab: int) -> np.ndarray:
    """(rows, vocab) float64 target logits of a family."""
    scale = {"flat": 0.05, "heavy": 8.0, "saturated": 300.0}.get(family, 2.5)
    logits = generator.normal(size=(rows, vocab)) * scale
    first, second = generator.integers(0, vocab, (2, rows))
    index = np.arange(rows)
    if family in ("near-tie", "tie"):
        gap = 0.0 if family == "tie" else 10.0 ** generator.uniform(-12, -1, rows)
        top = logits.max(axis=1)
        logits[index, first] = top + 0.5
        logits[index, second] = top + 0.5 - gap
    elif family == "masked":
        logits[generator.random((rows, vocab)) < 0.4] = -np.inf
        logits[index, first] = 1.0
    elif family == "steep":
        heads = generator.integers(2, 11, (rows, 1))
        ranks = np.argsort(np.argsort(-logits, axis=1), axis=1)
        logits -= np.where(ranks < heads, 0.0, generator.uniform(0, 25, (rows, 1)))
    elif family == "grid":  # as bfloat16 logits are: many exact ties
        logits = np.round(logits * 4) / 4
    return logits


def with_tail(generator: np.random.Generator, head: np.ndarray, width: int) -> np.ndarray:
    """(rows, width) logits: the (rows, n) head spread over the columns, at the same ones in every row, and between them
    a tail whose mass is e**-25 to e**-1 of the largest weight."""
    rows, vocab = head.shape
    mass = generator.uniform(-25, -1, (rows, 1))
    spread = 2.5
    # the mean of exp(spread x) over normal x is exp(spread**2 / 2)
    level = head.max(axis=1, keepdims=True) + mass - np.log(width - vocab) - spread**2 / 2
    logits: np.ndarray = generator.standard_normal((rows, width)) * spread + level
    logits[:, generator.choice(width, vocab, replace=False)] = head
    return logits


def boundary_drafts(generator: np.random.Generator, target_logits: np.ndarray) -> np.ndarray:
    """(rows, vocab) float64 draft logits at the certificate of a random competitor, tilted by 1e-3 to 1e-12 either way.

    The cheapest draft that lets rank j win levels the pool {1..k} u {j} (theorem A1). A tilt of the competitor's logit
    makes it the draft's argmax, or just not; a third of the rows are ordinary drafts at a random distance instead.
    """
    rows, vocab = target_logits.shape
    order, gaps, weights = _sorted_weights(target_logits)
    rank = np.minimum(generator.geometric(0.35, rows), vocab - 1)
    index = np.arange(rows)
    pooled, level = _single_pool(weights, rank)
    with np.errstate(divide="ignore"):
        draft = np.where(pooled, np.log(level), gaps)
    sign = generator.choice([-1.0, 1.0], rows)
    draft[index, rank] += sign * 10.0 ** generator.uniform(-12, -3, rows)
    ordinary = generator.random(rows) < 1 / 3
    noise = generator.normal(size=draft.shape) * 10.0 ** generator.uniform(-8, 0, (rows, 1))
    draft[ordinary] = (gaps + noise)[ordinary]
    return _unsorted(draft, order)


def _unsorted(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    result = np.empty_like(values)
    np.put_along_axis(result, order, values, 1)
    return result


def _sorted_weights(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(order, gaps to the maximum and their exponentials in that order) of (rows, vocab) logits, all downwards."""
    order = np.argsort(-logits, axis=1, kind="stable")
    gaps: np.ndarray = np.take_along_axis(logits, order, 1)
    gaps = gaps - gaps[:, :1]
    return order, gaps, np.exp(gaps)


def _single_pool(weights: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, vocab) bool and (rows, 1): the pool {1..k} u {j} of sorted weights and its mean, j = ``rank`` >= 1."""
    rows, vocab = weights.shape
    ranks = np.arange(vocab)
    heads = np.cumsum(weights, axis=1) + weights[np.arange(rows), rank][:, None]
    means = heads / np.arange(2, vocab + 2)
    follows = np.concatenate([weights[:, 1:], np.zeros((rows, 1))], axis=1)
    last = ((follows <= means) | (ranks + 1 >= rank[:, None])).argmax(axis=1)
    pooled = (ranks <= last[:, None]) | (ranks == rank[:, None])
    return pooled, np.take_along_axis(means, last[:, None], 1)


def _tree_pool(weights: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pool {1} u {i in 2..m+1: weight below the mean} and its mean, m = ``width`` below the vocabulary."""
    ranks = np.arange(weights.shape[1])
    inside = (ranks >= 1) & (ranks <= width[:, None])
    # with the ranks from i to m + 1, for every i: the pool starts at the least i whose weight is below that mean
    suffix = np.cumsum(np.where(inside, weights, 0.0)[:, ::-1], axis=1)[:, ::-1]
    means = (1.0 + suffix) / np.maximum(2 + width[:, None] - ranks, 1)
    joins = inside & (weights < means)
    first = np.where(joins.any(axis=1), joins.argmax(axis=1), width + 1)
    pooled = (ranks == 0) | (inside & (ranks >= first[:, None]))
    level = np.where(pooled, weights, 0.0).sum(axis=1) / pooled.sum(axis=1)
    return pooled, level[:, None]


def _first_rejected(rules: Sequence[Rule], weights: np.ndarray) -> np.ndarray:
    """(rules, rows): the first rejected rank of sorted weights by single-token rules; the vocabulary's size where
    nothing is rejected, -1 for trees."""
    probs = weights / weights.sum(axis=1, keepdims=True)
    ranks = np.arange(weights.shape[1])
    found = np.full((len(rules), len(weights)), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = np.where(probs > 0, np.log(np.where(probs > 0, probs, 1.0)), 0.0)
        for number, rule in enumerate(rules):
            threshold = rule.threshold
            if threshold is None:
                continue
            level = np.full((len(weights), 1), threshold.cap)
            if threshold.offset > -np.inf:
                level = np.minimum(level, threshold.scale * probs[:, :1] + threshold.offset)
            else:
                level = np.full_like(level, -np.inf)
            if threshold.entropy_scale < np.inf:
                smoothed = np.log(probs + threshold.smoothing) if threshold.smoothing else surprise
                mean = (probs * np.where(probs > 0, smoothed, 0.0)).sum(axis=1, keepdims=True)
                level = np.minimum(level, threshold.entropy_scale * np.exp(mean))
            rejected = probs <= level if threshold.strictly_above else probs < level
            if threshold.top_m:
                rejected |= ranks >= threshold.top_m
            found[number] = np.where(rejected.any(axis=1), rejected.argmax(axis=1), weights.shape[1])
    return found


def boundary_pairs(
    generator: np.random.Generator, target_logits: np.ndarray, rules: Sequence[Rule],
    rounded: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:  # fmt: skip
    """(rows, vocab) float64 draft logits, each of them representable (``rounded`` makes them so), whose KL from a
    representable target lies at the certificate of one of ``rules``, drawn by row, times 1 -+ BAND: log-uniform, above
    and below in turn.

    The cheapest draft that lets a rejected token win levels a pool (theorems A1 and A3). Its level is put at logit 0,
    beside which any dtype has numbers down to its least exponent: a tilt e of the competitor (in a tree, -e of the
    first token) moves KL by e |c - p|, to first order. What rounding the other logits adds to KL is measured, and is
    the least distance that is asked for; a second pooled token takes up what rounding the tilt leaves.
    """
    rows, vocab = target_logits.shape
    index = np.arange(rows)
    order, gaps, weights = _sorted_weights(target_logits)
    first = _first_rejected(rules, weights)
    widths = np.array([rule.tree_width for rule in rules])[:, None] + np.zeros((1, rows), int)
    usable = np.where(widths > 0, widths < vocab, (first >= 1) & (first < vocab))
    drawn = np.where(usable, generator.random(usable.shape), -1.0).argmax(axis=0)
    rank, width = first[drawn, index], widths[drawn, index]
    is_tree = width > 0
    rank = np.where(usable[drawn, index] & ~is_tree, rank, 1)
    width = np.where(is_tree & (width < vocab), width, 1)
    pools = [_single_pool(weights, rank), _tree_pool(weights, width)]
    pooled, level = (np.where(is_tree[:, None], tree, single) for single, tree in zip(*pools, strict=True))
    total = weights.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(pooled & (weights > 0), weights * np.log(weights / level), 0.0)
        certificate = ratios.sum(axis=1) / total
        draft = np.where(pooled, 0.0, rounded(gaps - np.log(level)))
    tilted = np.where(is_tree, 0, rank)
    # the other end of the pool: the first token, or a tree's last one
    other = np.where(is_tree, width, 0)
    slope, other_slope = ((level[:, 0] - weights[index, at]) / total for at in (tilted, other))
    excess = np.maximum(_divergence(weights, gaps, draft) - certificate, 0.0)
    sign = np.where(index % 2 == 0, 1.0, -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # what float64 can tell of KL, and above the certificate also what rounding has added
        least = np.maximum(BAND[0] * 1.5, (3e-15 + np.where(sign > 0, 1.1 * excess, 0.0)) / certificate)
        least = np.minimum(np.nan_to_num(least, nan=1.0), BAND[1] / 1.5)
        distance = np.exp(generator.uniform(np.log(least), np.log(BAND[1] / 1.5)))
        wanted = certificate * (1.0 + sign * distance)
        for at, gradient in ((tilted, slope), (other, other_slope)):
            tilt = (wanted - _divergence(weights, gaps, draft)) / gradient
            tilt = np.where(np.isfinite(tilt), np.clip(tilt, -1.0, 1.0), 0.0)
            draft[index, at] = rounded(draft[index, at] + tilt)
    return _unsorted(draft, order)


def _divergence(weights: np.ndarray, gaps: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """(rows,) KL of sorted target weights from draft logits, by terms that are all positive."""
    others = np.exp(draft)
    shift = np.log(weights.sum(axis=1) / others.sum(axis=1))[:, None]
    probs = weights / weights.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        ratios = np.where(weights > 0, gaps - draft - shift, 0.0)
    tail = others / others.sum(axis=1, keepdims=True)
    return np.where(weights > 0, probs * (ratios + np.expm1(-np.minimum(ratios, 700.0))), tail).sum(axis=1)
