"""What a divergence guarantees where tokens are sampled: distribution-preserving speculative
sampling accepts with probability 1 - TV(p, q), and ``sampling_acceptance(.3)`` says that KL(p||q)
<= .3 nats leaves at least .6193 of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from certspec.certificates.pools import numbers_or_none
from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import UNIT

__all__ = ["sampling_acceptance"]

_kernels = load_kernels("sampling", "numpy")
_constants = load_kernels("constants")
_ROUNDINGS, _SUM_ERROR = _constants.SAMPLING_ROUNDINGS, _constants.SET_ERROR
_HALVINGS = 60
_SUBSETS_OF = 10  # of a row's likeliest tokens every set is looked at; the rest counts as divisible
_NEAR = 1e-6  # a set so near to the steepest pair loses as much as it


def sampling_acceptance(kl: Any, target_probs: Any = None) -> Any:
    """The least probability with which speculative sampling accepts a draft token at this
    KL(target || draft).

    With x_k = 1 - acceptance at the k-th of n drafted tokens, all n are accepted with at least 1 -
    x_1 - ... - x_n, and in the mean at least the sum of the positive ones of 1 - x_1, 1 - x_1 -
    x_2, ...; KL may be its mean over the target's own texts there, without ``target_probs``. Claims
    sampling.dual, sampling.set, sampling.block, sampling.tokens.

    Args:
        kl: nats, a number or an array of any shape, +inf allowed.
        target_probs: the target's distribution, (vocab,) for one ``kl`` or (rows, vocab) for
            (rows,) of them, whose entries sum to 1 within 2^-41: the bound is then that of drafts
            of these targets, sharp where at most ten tokens are likely (what is left of a row
            counts as divisible). None: that of any pair.

    Returns a float, or float64 of the shape of ``kl``: a lower bound also in its rounding.

    Raises InvalidArgument for a negative or NaN ``kl``, rows that are no distributions, or shapes
    that do not match.

    Example:
        >>> import certspec as cs
        >>> round(cs.sampling_acceptance(0.3), 4)
        0.6193
        >>> cs.sampling_acceptance([0.1, 0.3, 0.7, 1.5]).round(4)
        array([0.7776, 0.6193, 0.4327, 0.2165])
        >>> round(cs.sampling_acceptance(0.3, target_probs=[0.9, 0.1]), 4)
        0.645
    """
    values = numbers_or_none(kl)
    if values is None or not (values >= 0).all():
        raise InvalidArgument(f"kl: expected nats of at least 0, got {kl!r}")
    if target_probs is None:
        found = _over_all_pairs(values)
    else:
        rows = _rows(target_probs, values.shape)
        flat = [_of_target(row, float(k)) for row, k in zip(rows, values.reshape(-1), strict=True)]
        found = np.maximum(np.reshape(flat, values.shape), _over_all_pairs(values))
    return float(found) if found.ndim == 0 else found


def _over_all_pairs(kl: np.ndarray) -> np.ndarray:
    """The best of the lines of claim sampling.dual: any tilt gives a bound."""
    finite = np.minimum(kl, 700.0)
    low = 0.5 * np.log(8.0 * np.maximum(finite, 1e-18)) - 1.0
    high = finite + 3.0
    for _ in range(
        _HALVINGS
    ):  # of log y; the line at y touches the curve at KL = log v - m (v - 1)
        middle = (low + high) / 2.0
        tilt = np.exp(middle)
        top = -tilt / np.expm1(-tilt)
        below = np.log(top) - top * np.exp(-tilt) * (top - 1.0) < finite
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    tilt = np.exp(high)
    top = -tilt / np.expm1(-tilt)
    size = 1.0 + np.log(top) + top * np.exp(-tilt) + finite
    bound = _kernels.acceptance_at(finite, tilt) - _ROUNDINGS * UNIT * size / tilt
    # weaker, but good where KL is tiny
    pinsker = _one_less(np.sqrt(finite) * np.sqrt(0.5) * (1.0 + _ROUNDINGS * UNIT))
    found: np.ndarray = np.maximum(np.maximum(bound, pinsker), 0.0)
    return np.where(kl <= 700.0, found, 0.0)


def _one_less(loss: Any) -> Any:
    """1 - loss, from below: 1 - 1e-17 would round to 1."""
    return np.where(loss > 0.0, np.nextafter(1.0 - loss, -np.inf), 1.0)


def _rows(target_probs: Any, shape: tuple[int, ...]) -> np.ndarray:
    rows = numbers_or_none(target_probs)
    if (
        rows is None
        or rows.ndim != len(shape) + 1
        or rows.shape[:-1] != shape
        or not rows.shape[-1]
        or len(shape) > 1
    ):
        raise InvalidArgument(
            f"target_probs: expected (vocab,) or (rows, vocab) for kl of shape {shape}, got "
            f"{target_probs!r}"
        )
    flat = rows.reshape(-1, rows.shape[-1])
    sums = flat.sum(axis=1)
    wrong = ~(((flat >= 0) & (flat <= 1)).all(axis=1) & (abs(sums - 1) <= _SUM_ERROR / 2))
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidArgument(
            "target_probs: expected probabilities that sum to 1 within 2^-41 (a float32 softmax "
            f"doesn't), got a sum of {float(sums[row])!r} in row {row}"
        )
    return flat


def _of_target(probs: np.ndarray, kl: float) -> float:
    """1 less the largest loss a - b over the probabilities a that sets of tokens have (claim
    sampling.set), d(a || b) = kl. The loss is concave in a, so the sets beside its maximum
    decide."""
    if kl > 700.0:
        return 0.0
    ordered = np.sort(probs)[::-1]
    sums = np.zeros(1)
    for prob in ordered[:_SUBSETS_OF]:
        sums = np.concatenate([sums, sums + prob])
    rest = float(ordered[_SUBSETS_OF:].sum())
    best = _steepest(kl)
    starts = np.maximum(sums - _SUM_ERROR, 0.0)
    ends = np.minimum(sums + rest + _SUM_ERROR, 1.0)
    if ((starts - _NEAR <= best) & (best <= ends + _NEAR)).any():
        return 0.0  # the bound over all pairs is as good
    left, right = ends[ends < best], starts[starts > best]
    sides = [
        *(left.max(keepdims=True) if len(left) else ()),
        *(right.min(keepdims=True) if len(right) else ()),
    ]
    return float(_one_less(max(_loss(float(a), kl) for a in sides))) if sides else 0.0


def _steepest(kl: float) -> float:
    """The a of the pair that loses most at this KL, found by thirds."""
    low, high = 0.0, 1.0
    for _ in range(100):
        one, two = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (one, high) if _loss(one, kl) < _loss(two, kl) else (low, two)
    return (low + high) / 2.0


def _loss(a: float, kl: float) -> float:
    """The largest a - b with d(a || b) <= kl, from above."""
    low, high = 0.0, a
    for _ in range(_HALVINGS):
        b = (low + high) / 2.0
        far = _divergence(a, b) > kl + _ROUNDINGS * UNIT * (1.0 + kl)
        low, high = (b, high) if far else (low, b)
    return min(a, (a - low) * (1.0 + _ROUNDINGS * UNIT))


def _divergence(a: float, b: float) -> float:
    if b <= 0.0:
        return np.inf if a > 0.0 else 0.0
    first = a * np.log(a / b) if a > 0.0 else 0.0
    return float(first + ((1.0 - a) * np.log((1.0 - a) / (1.0 - b)) if a < 1.0 else 0.0))
