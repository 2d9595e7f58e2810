"""Closed-form minima of the lumped divergence over the drafts that a rule rejects, row by row in numpy float64.
This module knows probabilities and masses only: no rules, no log formats, no tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certspec.kernels.loading import load_kernels

__all__ = ["entropy_interval", "lumped_kl", "lumped_kl_upper", "pool_value", "tree_pool_value"]

Floats = NDArray[np.float64]
pool_term = load_kernels("pool", "numpy").pool_term


def _pool_term(mass: Floats, mean: Floats) -> Floats:
    """The emitted pool term c phi(m/c - 1) >= 0: rounding may leave it a hair below 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        term: Floats = np.maximum(pool_term(mass, mean), 0.0)
    return term


def pool_value(probs: Floats, competitor: Floats) -> Floats:
    """min KL over laws in which a token of mass ``competitor`` is at least as probable as every listed one.

    ``probs``: (rows, k) listed masses in any order, 0 where absent; ``competitor``: (rows,). The pool is
    {i : p_i > c} with the competitor, c its mean; the value c * sum phi(p/c - 1) in nats. The competitor may itself be
    listed: it is never above c, so it isn't counted twice. 0 where nothing listed exceeds it. (Theory A1, E1, E2.)
    """
    ordered = -np.sort(-probs, axis=1)
    num_rows, num_listed = ordered.shape
    sizes = np.arange(1, num_listed + 1)
    means = (np.cumsum(ordered, axis=1) + competitor[:, None]) / (sizes + 1)
    following = np.concatenate([ordered[:, 1:], np.full((num_rows, 1), -1.0)], axis=1)
    last = np.argmax(means >= following, axis=1)  # the first size at which the next listed token isn't above the mean
    mean = means[np.arange(num_rows), last]
    terms = np.where(sizes - 1 <= last[:, None], _pool_term(ordered, mean[:, None]), 0.0)
    value = terms.sum(axis=1) + _pool_term(competitor, mean)
    return np.where(ordered[:, 0] <= competitor, 0.0, value)


def tree_pool_value(top: Floats, others: Floats, width: int, num_in_tail: int, tail: Floats) -> Floats:
    """min lumped KL over drafts whose ``width`` best tokens, ``num_in_tail`` of them unlisted, lack the argmax.

    ``top``: (rows,) the argmax's mass; ``others``: (rows, n) the other listed masses, -1 where absent; ``tail``:
    (rows,) the lump's mass. +inf where fewer than ``width - num_in_tail`` other tokens are listed. (Theory A3, E3.)
    """
    num_listed = width - num_in_tail
    rivals = -np.sort(-others, axis=1)[:, :num_listed]
    feasible = np.ones(len(top), dtype=bool)
    if num_listed:
        feasible = (rivals[:, -1] >= 0.0) if rivals.shape[1] == num_listed else np.zeros(len(top), dtype=bool)
    masses = np.maximum(rivals, 0.0)
    weights = np.ones_like(masses)
    if num_in_tail:
        masses = np.concatenate([masses, tail[:, None]], axis=1)
        weights = np.concatenate([weights, np.full((len(top), 1), float(num_in_tail))], axis=1)
    order = np.argsort(masses / weights, axis=1, kind="stable")
    masses, weights = np.take_along_axis(masses, order, 1), np.take_along_axis(weights, order, 1)
    zero = np.zeros((len(top), 1))
    means = (top[:, None] + np.concatenate([zero, np.cumsum(masses, 1)], 1)) / (
        1.0 + np.concatenate([zero, np.cumsum(weights, 1)], 1)
    )
    following = np.concatenate([masses / weights, np.full((len(top), 1), np.inf)], axis=1)
    size = np.argmax(following >= means, axis=1)  # ratios below the running mean join the pool, smallest first
    mean = means[np.arange(len(top)), size]
    joined = np.arange(masses.shape[1]) < size[:, None]
    terms = np.where(joined, weights * _pool_term(masses / weights, mean[:, None]), 0.0)
    value = _pool_term(top, mean) + terms.sum(axis=1)
    return np.where(feasible, np.where(top > 0.0, value, 0.0), np.inf)


def lumped_kl(target_probs: Floats, draft_probs: Floats, target_tail: Floats, draft_tail: Floats) -> Floats:
    """K_O = sum_O p log(p/q) + p_T log(p_T/q_T) in nats, summed as terms >= 0. (Theory E.)

    ``target_probs``, ``draft_probs``: (rows, k), both 0 where a token isn't in O; tails: (rows,).
    """
    target = np.concatenate([target_probs, target_tail[:, None]], axis=1)
    draft = np.concatenate([draft_probs, draft_tail[:, None]], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.log(target) - np.log(draft)
        terms = target * (gap + np.expm1(-gap))
    return np.where(target > 0.0, terms, draft).sum(axis=1)  # a target zero leaves the term q


def lumped_kl_upper(
    target_probs: Floats,
    log_ratios: Floats,
    error: Floats,
    target_tail: tuple[Floats, Floats],
    draft_tail: tuple[Floats, Floats],
) -> Floats:
    """The largest K_O that logprobs within ``error`` nats of the logged ones allow.

    ``log_ratios``: (rows, k) log(p/q), 0 where not in O; each tail is an interval (low, high), (rows,). The lump's term
    is jointly convex, so that its box's corners hold the maximum; +inf where the draft's tail may be empty. (Theory E.)
    """
    highest = log_ratios + 2.0 * error[:, None]
    signed = np.where(highest > 0.0, error[:, None], -error[:, None])
    listed = np.where(target_probs > 0.0, target_probs * np.exp(signed) * highest, 0.0).sum(axis=1)
    corners = [_mass_log_ratio(target_tail[side], draft_tail[0]) for side in (0, 1)]
    return np.maximum(listed + np.maximum(*corners), 0.0)


def _mass_log_ratio(target_mass: Floats, draft_mass: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = target_mass * (np.log(target_mass) - np.log(draft_mass))
    return np.where(target_mass > 0.0, value, 0.0)


def entropy_interval(
    probs: Floats, atom_bound: Floats, tail: Floats, smoothing: float, num_unlisted: Floats | None
) -> tuple[Floats, Floats]:
    """Least and greatest -sum p log(p + smoothing) in nats that an unseen tail allows. (Theory E4.)

    ``probs``: (rows, k) listed, 0 where absent; each unlisted token has at most ``atom_bound`` (rows,), together
    ``tail``. The summand is concave, so few large atoms give the least and an even spread over ``num_unlisted`` tokens
    the greatest (its supremum where their number is unknown).
    """
    listed = _entropy_term(probs, smoothing).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        num_atoms = np.where(atom_bound > 0.0, np.floor(tail / atom_bound), 0.0)
    rest = np.clip(tail - num_atoms * atom_bound, 0.0, None)
    lower = listed + num_atoms * _entropy_term(atom_bound, smoothing) + _entropy_term(rest, smoothing)
    with np.errstate(divide="ignore", invalid="ignore"):
        if num_unlisted is None:
            spread = tail * (-np.log(smoothing) if smoothing > 0.0 else np.inf)
        else:
            spread = -tail * np.log(tail / num_unlisted + smoothing)
    upper = listed + np.where(tail > 0.0, spread, 0.0)
    return lower, np.maximum(lower, upper)


def _entropy_term(mass: Floats, smoothing: float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mass > 0.0, -mass * np.log(mass + smoothing), 0.0)
