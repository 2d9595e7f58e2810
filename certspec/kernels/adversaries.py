"""Rows of logits made to catch a certifying kernel out: ties, saturation, masks, flat and heavy tails, and drafts that
sit a hair on either side of a rule's boundary. Knows nothing about kernels."""

from __future__ import annotations

import numpy as np

__all__ = ["FAMILIES", "boundary_drafts", "target_rows"]

FAMILIES = ("normal", "flat", "heavy", "near-tie", "tie", "saturated", "masked", "grid")


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
    elif family == "grid":  # as bfloat16 logits are: many exact ties
        logits = np.round(logits * 4) / 4
    return logits


def boundary_drafts(generator: np.random.Generator, target_logits: np.ndarray) -> np.ndarray:
    """(rows, vocab) float64 draft logits at the certificate of a random competitor, tilted by 1e-3 to 1e-12 either way.

    The cheapest draft that lets rank j win levels the pool {1..k} u {j} (theorem A1). A tilt of the competitor's logit
    makes it the draft's argmax, or just not; a third of the rows are ordinary drafts at a random distance instead.
    """
    rows, vocab = target_logits.shape
    order = np.argsort(-target_logits, axis=1, kind="stable")
    gaps: np.ndarray = np.take_along_axis(target_logits, order, 1)
    weights = np.exp(gaps - gaps[:, :1])
    rank = np.minimum(generator.geometric(0.35, rows), vocab - 1)
    index = np.arange(rows)
    competitor = weights[index, rank]
    heads = np.cumsum(weights, axis=1) + competitor[:, None]
    means = heads / np.arange(2, vocab + 2)
    ranks = np.arange(vocab)
    follows = np.concatenate([weights[:, 1:], np.zeros((rows, 1))], axis=1)
    stops = (follows <= means) | (ranks + 1 >= rank[:, None])
    last = stops.argmax(axis=1)
    pooled = (ranks <= last[:, None]) | (ranks == rank[:, None])
    level = np.take_along_axis(means, last[:, None], 1)
    with np.errstate(divide="ignore"):
        draft = np.where(pooled, np.log(level), gaps - gaps[:, :1])
    sign = generator.choice([-1.0, 1.0], rows)
    draft[index, rank] += sign * 10.0 ** generator.uniform(-12, -3, rows)
    ordinary = generator.random(rows) < 1 / 3
    noise = generator.normal(size=draft.shape) * 10.0 ** generator.uniform(-8, 0, (rows, 1))
    draft[ordinary] = (gaps - gaps[:, :1] + noise)[ordinary]
    result = np.empty_like(draft)
    np.put_along_axis(result, order, draft, 1)
    return result
