"""The drafter-side certificate of the entropy rule, bounded from below: a search over one number,
the draft token's probability v under the target.

The least divergence at which the rule rejects the token is not unimodal in v, so v's range is cut
into cells, and weak duality bounds each cell from below; the least of these bounds holds
everywhere. The cells that bound least are cut again. (Claims drafter.entropy.*.)"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.pools import TopProbs, pool_kernels
from certspec.kernels.loading import load_kernels
from certspec.rules import Entropy

__all__ = ["entropy_radius_lower"]

_constants = load_kernels("constants")

Floats = NDArray[np.float64]
_CELLS, _SPAN = (
    64,
    14.0,
)  # cells of the draft token's probability, over so many nats below its ceiling
_GRID = 2.0**40  # multipliers are multiples of 1/_GRID, so that kappa = 1 - nu is exact
_MULTIPLIERS = (
    1.0 - np.round(np.concatenate([np.geomspace(1.0, 0.02, 24), [0.0]]) * _GRID) / _GRID
)  # nu in [0, 1]
_ZOOM_CELLS, _ZOOM_PARTS, _ZOOM_MULTIPLIERS = 6, 12, 9
_NEAR_ONE = _constants.NEAR_ONE
_BUCKETS, _BUCKET_WIDTH = 160, 0.25  # nats
_ROOM = _constants.ATOM_ROOM  # nats; what rounding may take from the logarithm of an atom's size
_VANISHING = (
    _constants.VANISHING_LOG_PROB
)  # nats; smaller probabilities may underflow, and are counted as of this size


def entropy_radius_lower(
    xp: ModuleType,
    top: TopProbs,
    rule: Entropy,
    num_tokens: int,
    *,
    rounded: bool = False,
    num_present: Any = None,
) -> Any:
    """A lower bound of inf KL(target || draft) over targets with p_y <= eps and H(p) + log p_y <=
    log delta [nats].

    For p_y = v and any nu = 1 - kappa in [0, 1], every such target has KL >= L_nu(v) = kappa (v log
    v + (1-v) log(1-v)) - v log q_y - (1-v) kappa log sum_{i != y} q_i^(1/kappa) + nu log(v/delta)
    (claim drafter.entropy.dual), with equality at the best nu. The value is the least over cells of
    v of the best nu's bound on the cell. Returns (rows,) like ``top``. ``rounded``: less all that
    float64 may have rounded up (claim bound.radius.entropy; needs positive probabilities).
    ``num_present``: (rows,) how many tokens are not masked; None: those with a probability.
    """
    probs, tail = _numpy(xp, top.probs), _numpy(xp, top.tail)
    atoms, masses = _atoms(
        probs, tail, None if top.weights is None else _numpy(xp, top.weights), _numpy(xp, top.total)
    )
    num_others = (masses > 0.0).sum(axis=1) if num_present is None else _numpy(xp, num_present) - 1
    if rounded:
        floor = np.full((len(probs), 1), _VANISHING)
        atoms = np.column_stack([atoms, floor])
        masses = np.column_stack([masses, np.exp(floor) * num_tokens])
    gain = _smoothing_gain(rule, num_tokens)
    log_delta = math.log(rule.delta) + gain
    with np.errstate(all="ignore"):
        ceiling = min(rule.epsilon, _largest_rejected(log_delta))
        # cells need room below it, and a larger one can only lower the bound
        ceiling = max(ceiling, _constants.SMALLEST_ARGUMENT)
        # above _NEAR_ONE the divergence of y against all others is bound enough
        value = _least(np.log(probs[:, 0]), atoms, masses, min(ceiling, _NEAR_ONE), log_delta)
        if ceiling > _NEAR_ONE:
            value = np.minimum(value, _beyond(probs[:, 0], tail + probs[:, 1:].sum(axis=1)))
    if rounded:
        others = probs[:, 1] if probs.shape[1] > 1 else tail
        scale = abs(math.log(rule.delta)) + gain - math.log(ceiling) + _SPAN + 4.0
        reach = scale - np.log(probs[:, 0]) - np.maximum(np.log(others), _VANISHING)
        value = pool_kernels(np).searched_radius_lower(value, reach, num_tokens)
    # one token with all the mass: no other law is at a finite divergence
    certain = 0.0 if rule.epsilon >= 1.0 and log_delta >= 0.0 else np.inf
    value = np.where(num_others == 0, certain, value)
    return value if xp is np else xp.from_numpy(value).to(top.probs.device)


def _largest_rejected(log_delta: float) -> float:
    """The largest p_y that the entropy part can reject: log v + h(v) <= log delta, h the binary
    entropy (all other mass on one token). The left side rises once and then falls to 0 at v = 1, so
    for delta < 1 the set is one interval."""
    if log_delta >= 0.0:
        return 1.0
    low, high = 0.0, 0.5
    for _ in range(59):
        v = (low + high) / 2.0
        if math.log(v) - v * math.log(v) - (1.0 - v) * math.log1p(-v) <= log_delta:
            low = v
        else:
            high = v
    # the left side has v (d/dv) >= 1 up to v = 1/2, so its rounding moves v by no more than itself
    return high * (1.0 + _constants.SHARE_ROUNDING * (4.0 - log_delta))


def _beyond(own: Floats, rest: Floats) -> Floats:
    """The least divergence of (v, 1 - v) against (q_y, 1 - q_y) over v >= _NEAR_ONE: 0 where q_y is
    there itself."""
    value = _NEAR_ONE * np.log(_NEAR_ONE / own) + (1.0 - _NEAR_ONE) * np.log(
        (1.0 - _NEAR_ONE) / rest
    )
    return np.where(own < _NEAR_ONE, np.maximum(value, 0.0), 0.0)


def _smoothing_gain(rule: Entropy, num_tokens: int) -> float:
    """-sum p log(p + s) >= H - s V: a smoothed rule with delta rejects no more than a plain one
    with delta exp(s V)."""
    return rule.smoothing * num_tokens


def _numpy(xp: ModuleType, values: Any) -> Any:
    return values if xp is np or values is None else values.detach().cpu().numpy()


def _atoms(
    probs: Floats, tail: Floats, weights: Floats | None, total: Floats | None
) -> tuple[Floats, Floats]:
    """Log-sizes and masses, (rows, A) each, with sum q^b <= sum mass * size^(b-1) for every b >= 1:
    the listed tokens themselves, and all others in buckets by their largest size."""
    listed = np.log(np.maximum(probs[:, 1:], _constants.SMALLEST_ARGUMENT))
    if weights is None or total is None:
        last = np.log(np.maximum(np.minimum(probs[:, -1], tail), _constants.SMALLEST_ARGUMENT))
        return np.column_stack([listed, last]) + _ROOM, np.column_stack([probs[:, 1:], tail])
    num_rows = len(probs)
    highest = np.log(
        np.maximum(probs[:, -1], _constants.SMALLEST_ARGUMENT)
    )  # no unlisted token is larger
    present = weights > 0.0
    rows = np.broadcast_to(np.arange(num_rows)[:, None], weights.shape)[present]
    share = weights[present] / total[rows]
    bucket = np.clip(
        ((highest[rows] - np.log(share)) / _BUCKET_WIDTH).astype(np.int64), 0, _BUCKETS - 1
    )
    flat = np.bincount(rows * _BUCKETS + bucket, weights=share, minlength=num_rows * _BUCKETS)
    sizes = highest[:, None] - _BUCKET_WIDTH * np.arange(_BUCKETS)[None, :]
    return np.column_stack([listed, sizes]) + _ROOM, np.column_stack(
        [probs[:, 1:], flat.reshape(num_rows, _BUCKETS)]
    )


def _power_sums(sizes: Floats, masses: Floats, kappa: Floats) -> Floats:
    """kappa log sum mass size^(1/kappa - 1), for kappa of shape (rows, ..., n); its limit log max
    size at kappa = 0."""
    shape = (len(sizes),) + (1,) * (kappa.ndim - 1) + (sizes.shape[1],)
    own, mass = sizes.reshape(shape), masses.reshape(shape)
    highest = np.where(mass > 0.0, own, -np.inf).max(axis=-1)
    more = ((1.0 - kappa) / np.maximum(kappa, _constants.SMALLEST_ARGUMENT))[
        ..., None
    ]  # 1/kappa - 1
    with np.errstate(all="ignore"):
        terms = np.where(
            mass > 0.0, mass * np.exp((own - highest[..., None]) * more - highest[..., None]), 0.0
        )
        value = highest + kappa * np.log(terms.sum(axis=-1))
    return np.where(kappa > 0.0, value, highest)


def _least(
    own_log: Floats, sizes: Floats, masses: Floats, epsilon: float, log_delta: float
) -> Floats:
    num_rows = len(own_log)
    edges = np.concatenate([[0.0], epsilon * np.exp(-np.linspace(_SPAN, 0.0, _CELLS))])
    kappa = np.broadcast_to(1.0 - _MULTIPLIERS, (num_rows, len(_MULTIPLIERS)))
    sums = _power_sums(sizes, masses, kappa)
    low, high = (
        np.broadcast_to(edges[:-1], (num_rows, _CELLS)),
        np.broadcast_to(edges[1:], (num_rows, _CELLS)),
    )
    bounds = _cell_bounds(
        low[..., None],
        high[..., None],
        own_log[:, None, None],
        kappa[:, None],
        sums[:, None],
        log_delta,
    )
    cells, best = bounds.max(axis=-1), bounds.argmax(axis=-1)
    lowest = np.argsort(cells, axis=1)[:, :_ZOOM_CELLS]
    every_row = np.arange(num_rows)[:, None]
    finer = _zoom(
        low[every_row, lowest],
        high[every_row, lowest],
        best[every_row, lowest],
        own_log,
        sizes,
        masses,
        log_delta,
    )
    cells[every_row, lowest] = np.maximum(cells[every_row, lowest], finer)
    return np.maximum(cells.min(axis=1), 0.0)


def _zoom(
    low: Floats,
    high: Floats,
    best: NDArray[np.int64],
    own_log: Floats,
    sizes: Floats,
    masses: Floats,
    log_delta: float,
) -> Floats:
    """The same bounds on (rows, n) chosen cells, each cut into parts, with multipliers near the
    best one."""
    last = len(_MULTIPLIERS) - 1
    first, end = _MULTIPLIERS[np.maximum(best - 1, 0)], _MULTIPLIERS[np.minimum(best + 1, last)]
    steps = np.linspace(0.0, 1.0, _ZOOM_MULTIPLIERS)
    kappa = np.round((1.0 - (first[..., None] + (end - first)[..., None] * steps)) * _GRID) / _GRID
    sums = _power_sums(sizes, masses, kappa)
    edges = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, _ZOOM_PARTS + 1)
    edges[..., -1] = high  # not an ulp of the cell may be left out
    own, starts, ends = own_log[:, None, None, None], edges[..., :-1, None], edges[..., 1:, None]
    bounds = _cell_bounds(starts, ends, own, kappa[..., None, :], sums[..., None, :], log_delta)
    return bounds.max(axis=-1).min(axis=-1)


def _cell_bounds(
    low: Floats, high: Floats, own_log: Floats, kappa: Floats, sums: Floats, log_delta: float
) -> Floats:
    """A lower bound of L_nu on [low, high]: concave up to v = nu, convex beyond (claim
    drafter.entropy.cells)."""
    turn = np.clip(1.0 - kappa, low, high)
    ends = np.minimum(
        _dual(low, own_log, kappa, sums, log_delta), _dual(turn, own_log, kappa, sums, log_delta)
    )
    beyond = _convex_part(turn, high, own_log, kappa, sums, log_delta)
    throughout = _convex_part(low, high, own_log, kappa, sums, log_delta)
    return np.where((turn > low) & (kappa < 1.0), np.minimum(ends, beyond), throughout)


def _convex_part(
    low: Floats, high: Floats, own_log: Floats, kappa: Floats, sums: Floats, log_delta: float
) -> Floats:
    """Two tangents bound a convex function from below: before any x the first, beyond it the
    second, falls at least to its value at x (claim drafter.entropy.tangents). x is where they meet,
    to rounding; elsewhere they bound less."""
    start, end = (
        _dual(low, own_log, kappa, sums, log_delta),
        _dual(high, own_log, kappa, sums, log_delta),
    )
    rise, fall = _slope(low, own_log, kappa, sums), -_slope(high, own_log, kappa, sums)
    width = high - low
    meeting = np.clip((end - start + fall * width) / (rise + fall), 0.0, width)
    crossed = np.minimum(start + rise * meeting, end + fall * (width - meeting))
    inside = np.where(
        (rise < 0.0) & (fall < 0.0),
        np.minimum(crossed, np.minimum(start, end)),
        np.minimum(start, end),
    )
    inside = np.where((rise < 0.0) & (fall < 0.0) & ~np.isfinite(crossed), -np.inf, inside)
    from_zero = np.where(fall >= 0.0, end, -np.inf)  # on [0, high]: falling throughout, or no bound
    return np.where(low > 0.0, inside, from_zero)


def _dual(v: Floats, own_log: Floats, kappa: Floats, sums: Floats, log_delta: float) -> Floats:
    entropy_part = v * np.log(np.maximum(v, _constants.SMALLEST_ARGUMENT))
    entropy_part = entropy_part + (1.0 - v) * np.log1p(-v)  # v is at most _NEAR_ONE
    price = np.where(kappa != 1, (1.0 - kappa) * (np.log(v) - log_delta), 0.0)
    return kappa * entropy_part - v * own_log - (1.0 - v) * sums + price


def _slope(v: Floats, own_log: Floats, kappa: Floats, sums: Floats) -> Floats:
    return kappa * (np.log(v) - np.log1p(-v)) + (1.0 - kappa) / v - own_log + sums
