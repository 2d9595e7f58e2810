"""Rows of logits made to catch a certifying kernel out: ties, saturation, masks, flat and heavy
tails, and drafts that sit a hair on either side of a rule's boundary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from certspec.rules import Rule

__all__ = [
    "BAND",
    "FAMILIES",
    "NEAR_FAMILIES",
    "as_dtype",
    "boundary_drafts",
    "boundary_pairs",
    "near_rows",
    "target_rows",
    "with_tail",
]
FAMILIES = ("normal", "flat", "heavy", "near-tie", "tie", "saturated", "masked", "grid")
# Of these every row has a certificate to sit beside; "steep": a few tokens over a tail of any mass
# down to 1e-12.
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
    """(rows, width) logits: the (rows, n) head spread over the columns, at the same ones in every
    row, and between them a tail whose mass is e**-14 to 1 times the largest weight."""
    rows, vocab = head.shape
    mass = generator.uniform(-14, 0, (rows, 1))
    spread = 2.5
    # the mean of exp(spread x) over normal x is exp(spread**2 / 2)
    level = head.max(axis=1, keepdims=True) + mass - np.log(width - vocab) - spread**2 / 2
    logits: np.ndarray = generator.standard_normal((rows, width)) * spread + level
    logits[:, generator.choice(width, vocab, replace=False)] = head
    return logits


def boundary_drafts(generator: np.random.Generator, target_logits: np.ndarray) -> np.ndarray:
    """(rows, vocab) float64 draft logits at the certificate of a random competitor, tilted by 1e-3
    to 1e-12 either way.

    The cheapest draft that lets rank j win levels the pool {1..k} u {j} (theorem A1). A tilt of the
    competitor's logit makes it the draft's argmax, or just not; a third of the rows are ordinary
    drafts at a random distance instead."""
    rows, vocab = target_logits.shape
    order, gaps, weights = _sorted_weights(torch.from_numpy(target_logits))
    rank = np.minimum(generator.geometric(0.35, rows), vocab - 1)
    index = np.arange(rows)
    pooled, level = _single_pool(weights, torch.from_numpy(rank))
    draft = torch.where(pooled, torch.log(level), gaps).numpy()
    sign = generator.choice([-1.0, 1.0], rows)
    draft[index, rank] += sign * 10.0 ** generator.uniform(-12, -3, rows)
    ordinary = generator.random(rows) < 1 / 3
    noise = generator.normal(size=draft.shape) * 10.0 ** generator.uniform(-8, 0, (rows, 1))
    draft[ordinary] = (gaps.numpy() + noise)[ordinary]
    return _unsorted(torch.from_numpy(draft), order).numpy()


def _unsorted(values: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(values).scatter_(1, order, values)


def _sorted_weights(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(order, gaps to the maximum and their exponentials in that order) of (rows, vocab) logits,
    all downwards."""
    gaps, order = torch.sort(logits, dim=1, descending=True, stable=True)
    gaps = gaps - gaps[:, :1]
    return order, gaps, torch.exp(gaps)


def _first(holds: Tensor) -> Tensor:
    """(rows,) the first column where (rows, vocab) ``holds``, the number of columns where it
    nowhere does."""
    return torch.where(
        holds, torch.arange(holds.shape[1], device=holds.device), holds.shape[1]
    ).amin(dim=1)


def _at(values: Tensor, rank: Tensor) -> Tensor:
    return values.gather(1, rank[:, None])


def _single_pool(weights: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, vocab) bool and (rows, 1): the pool {1..k} u {j} of sorted weights and its mean, j =
    ``rank`` >= 1."""
    ranks = torch.arange(weights.shape[1], device=weights.device)
    means = (torch.cumsum(weights, dim=1) + _at(weights, rank)) / (ranks + 2)
    follows = torch.nn.functional.pad(weights[:, 1:], (0, 1))
    last = _first((follows <= means) | (ranks + 1 >= rank[:, None]))
    return (ranks <= last[:, None]) | (ranks == rank[:, None]), _at(means, last)


def _tree_pool(weights: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """The pool {1} u {i in 2..m+1: weight below the mean} and its mean, m = ``width`` below the
    vocabulary."""
    ranks = torch.arange(weights.shape[1], device=weights.device)
    inside = (ranks >= 1) & (ranks <= width[:, None])
    # with the ranks from i to m + 1, for every i: the pool starts at the least i whose weight is
    # below that mean
    suffix = torch.cumsum(torch.where(inside, weights, 0.0).flip(1), dim=1).flip(1)
    means = (1.0 + suffix) / (2 + width[:, None] - ranks).clamp(min=1)
    first = torch.minimum(_first(inside & (weights < means)), width + 1)
    pooled = (ranks == 0) | (inside & (ranks >= first[:, None]))
    level = torch.where(pooled, weights, 0.0).sum(dim=1) / pooled.sum(dim=1)
    return pooled, level[:, None]


def _first_rejected(rules: Sequence[Rule], weights: Tensor) -> Tensor:
    """(rules, rows): the first rejected rank of sorted weights by single-token rules; the
    vocabulary's size where nothing is rejected, -1 for trees."""
    probs = weights / weights.sum(dim=1, keepdim=True)
    ranks = torch.arange(weights.shape[1], device=weights.device)
    found = torch.full((len(rules), len(weights)), -1, device=weights.device)
    surprise = torch.where(probs > 0, torch.log(probs), 0.0)
    for number, rule in enumerate(rules):
        threshold = rule.threshold
        if threshold is None:
            continue
        level = torch.full_like(
            probs[:, :1], threshold.cap if threshold.offset > -math.inf else -math.inf
        )
        if threshold.offset > -math.inf:
            level = torch.minimum(level, threshold.scale * probs[:, :1] + threshold.offset)
        if threshold.entropy_scale < math.inf:
            smoothed = torch.log(probs + threshold.smoothing) if threshold.smoothing else surprise
            mean = (probs * torch.where(probs > 0, smoothed, 0.0)).sum(dim=1, keepdim=True)
            level = torch.minimum(level, threshold.entropy_scale * torch.exp(mean))
        rejected = probs <= level if threshold.strictly_above else probs < level
        if threshold.top_m:
            rejected |= ranks >= threshold.top_m
        found[number] = _first(rejected)
    return found


def boundary_pairs(
    generator: np.random.Generator,
    target_logits: Tensor,
    rules: Sequence[Rule],
    rounded: Callable[[Tensor], Tensor],
) -> Tensor:
    """(rows, vocab) float64 draft logits, each of them representable (``rounded`` makes them so),
    whose KL from a representable float64 target lies at the certificate of one of ``rules``, drawn
    by row, times 1 -+ BAND: log-uniform, above and below in turn. On the target's device.

    The cheapest draft that lets a rejected token win levels a pool (theorems A1 and A3). Its level
    is put at logit 0, beside which any dtype has numbers down to its least exponent: a tilt e of
    the competitor (in a tree, -e of the first token) moves KL by e |c - p|, to first order. What
    rounding the other logits adds to KL is measured, and is the least distance that is asked for; a
    second pooled token takes up what rounding the tilt leaves."""
    rows, vocab = target_logits.shape
    device = target_logits.device
    index = torch.arange(rows, device=device)
    order, gaps, weights = _sorted_weights(target_logits)
    first = _first_rejected(rules, weights)
    widths = torch.tensor([rule.tree_width for rule in rules], device=device)[:, None].expand(
        len(rules), rows
    )
    usable = torch.where(widths > 0, widths < vocab, (first >= 1) & (first < vocab))
    chances = torch.from_numpy(generator.random(tuple(usable.shape))).to(device)
    drawn = torch.where(usable, chances, -1.0).argmax(dim=0)
    is_usable, rank, width = usable[drawn, index], first[drawn, index], widths[drawn, index]
    is_tree = width > 0
    rank = torch.where(is_usable & ~is_tree, rank, 1)
    width = torch.where(is_tree & (width < vocab), width, 1)
    pools = [_single_pool(weights, rank), _tree_pool(weights, width)]
    pooled, level = (
        torch.where(is_tree[:, None], tree, single) for single, tree in zip(*pools, strict=True)
    )
    total = weights.sum(dim=1)
    ratios = torch.where(pooled & (weights > 0), weights * torch.log(weights / level), 0.0)
    certificate = ratios.sum(dim=1) / total
    draft = torch.where(pooled, 0.0, rounded(gaps - torch.log(level)))
    tilted = torch.where(is_tree, 0, rank)
    # the other end of the pool: the first token, or a tree's last one
    other = torch.where(is_tree, width, 0)
    slope, other_slope = ((level - _at(weights, at))[:, 0] / total for at in (tilted, other))
    excess = (_divergence(weights, gaps, draft) - certificate).clamp(min=0.0)
    sign = torch.where(index % 2 == 0, 1.0, -1.0)
    # what float64 can tell of KL, and above the certificate also what rounding has added
    least = ((3e-15 + torch.where(sign > 0, 1.1 * excess, 0.0)) / certificate).clamp(
        min=BAND[0] * 1.5
    )
    least = torch.nan_to_num(least, nan=1.0).clamp(max=BAND[1] / 1.5)
    share = torch.from_numpy(generator.uniform(size=rows)).to(device)
    distance = torch.exp(torch.log(least) + (math.log(BAND[1] / 1.5) - torch.log(least)) * share)
    wanted = certificate * (1.0 + sign * distance)
    for at, gradient in ((tilted, slope), (other, other_slope)):
        tilt = (wanted - _divergence(weights, gaps, draft)) / gradient
        tilt = torch.where(torch.isfinite(tilt), tilt.clamp(-1.0, 1.0), 0.0)
        draft[index, at] = rounded(draft[index, at] + tilt)
    return _unsorted(draft, order)


def _divergence(weights: Tensor, gaps: Tensor, draft: Tensor) -> Tensor:
    """(rows,) KL of sorted target weights from draft logits, by terms that are all positive."""
    others = torch.exp(draft)
    sums = weights.sum(dim=1, keepdim=True), others.sum(dim=1, keepdim=True)
    shift = torch.log(sums[0] / sums[1])
    probs = weights / sums[0]
    ratios = torch.where(weights > 0, gaps - draft - shift, 0.0)
    return torch.where(
        weights > 0, probs * (ratios + torch.expm1(-ratios.clamp(max=700.0))), others / sums[1]
    ).sum(dim=1)


def as_dtype(rows: Tensor, dtype: str) -> Tensor:
    """The rows as numbers of the torch dtype of this name."""
    return rows.to(getattr(torch, dtype))


def near_rows(
    generator: np.random.Generator,
    rules: Sequence[Rule],
    families: Sequence[str],
    rows: int,
    vocab: int,
    columns: int,
    dtype: str,
    device: str,
) -> tuple[Tensor, Tensor]:
    """(rows, columns) target and draft logits on ``device`` in ``dtype``, pairs of
    ``boundary_pairs``, as many of each of the ``families``. Rows wider than ``vocab`` have a tail
    beside their ``vocab`` columns, see ``with_tail``."""

    def rounded(values: Tensor) -> Tensor:
        return as_dtype(values, dtype).double()

    sides = []
    for number, family in enumerate(families):
        count = (number + 1) * rows // len(families) - number * rows // len(families)
        head = target_rows(generator, family, count, vocab)
        target = torch.from_numpy(with_tail(generator, head, columns) if columns > vocab else head)
        target = rounded(target.to(device))
        sides.append((target, boundary_pairs(generator, target, rules, rounded)))
    targets, drafts = zip(*sides, strict=True)
    return as_dtype(torch.cat(targets), dtype), as_dtype(torch.cat(drafts), dtype)
