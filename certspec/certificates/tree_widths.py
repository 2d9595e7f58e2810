"""How wide a draft tree has to be so that a divergence budget certifies it: the inverse, in the
width, of the tree's certificates.

    tree_width_for(0.5, margin=0.5)      # 7: its certificate is the first above 0.5 nats
    tree_width_for(0.1, margin=0.1)      # 38"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from certspec.certificates.margins import margin_certificate
from certspec.certificates.written import read_abs_error, written_errors
from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.rules import Tree, as_index, as_real

__all__ = ["tree_width_for"]

_constants = load_kernels("constants")

_SMALL_BUDGET_WIDTH = 2**40


def tree_width_for(
    kl_budget: float,
    *,
    margin: float | None = None,
    probabilities: Sequence[float] | Any = None,
    num_tokens: int | None = None,
    abs_error: float | None = None,
) -> int:
    """The least width m whose tree certificate exceeds ``kl_budget`` nats.

    A draft with KL(target || draft) <= kl_budget then has the target's argmax among its m best
    tokens for certain. Both certificates grow with m, and each is taken from below, its rounding
    off.

    Args:
        kl_budget: nats, at least 0.
        margin: p1 - p2 in (0, 1], for any target with at least that margin (claim
            margin.tree.p1-p2); give this or ``probabilities``.
        probabilities: (n,) the target's largest probabilities in any order, of sum at most 1 (claim
            tree.competitors). What the list leaves of 1 may be any number of further tokens, so
            only widths below n are known.
        num_tokens: the vocabulary's size, where it is known: a tree that holds all tokens
            certifies any budget.
        abs_error: how far each of ``probabilities`` may be from the target's own; None reads it off
            them as ``drafter_certificate_from_top`` does. The first is lowered by it and the others
            raised, which lowers every certificate.

    Raises InvalidArgument for a budget that is negative, NaN or infinite, a margin outside (0, 1],
    probabilities that are none, a list that is too short for the budget, a ``num_tokens`` that is
    none or less than n, and an ``abs_error`` that is none.

    Example:
        >>> import certspec as cs
        >>> cs.tree_width_for(0.3, margin=0.5)
        3
        >>> cs.tree_width_for(0.3, probabilities=[0.7, 0.2, 0.05])
        2
    """
    budget, error = as_real(kl_budget), read_abs_error("tree_width_for", abs_error)
    if not 0.0 <= budget < math.inf:
        raise InvalidArgument(
            f"tree_width_for: expected kl_budget a finite number of nats >= 0, got {kl_budget!r}"
        )
    if (margin is None) == (probabilities is None):
        raise InvalidArgument(
            "tree_width_for: expected exactly one of margin=... and probabilities=..."
        )
    size = None if num_tokens is None else as_index(num_tokens, otherwise=0)
    if size is not None and size < 1:
        raise InvalidArgument(
            f"tree_width_for: expected num_tokens an integer of at least 1, got {num_tokens!r}"
        )
    if margin is not None:
        if error is not None:
            raise InvalidArgument(
                f"tree_width_for: expected abs_error beside probabilities, got {abs_error!r} "
                "beside margin, which holds for any margin that is larger"
            )
        return _width_for_margin(budget, margin, size)
    try:
        given = np.asarray(probabilities)
        if given.dtype.kind not in "fiub":
            raise TypeError(f"got {given.dtype}")
        if given.ndim != 1 or not given.size:
            raise ValueError(f"expected shape (n,), got {given.shape}")
        probs = np.sort(given.astype(np.float64))[::-1]
    except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError) as error:
        raise InvalidArgument(
            f"tree_width_for: expected probabilities as numbers: {error}"
        ) from None
    if error is None:
        errors = written_errors(probs[None], str(given.dtype))[0]
    else:
        errors = np.full_like(probs, error)
    return _width_for_probs(budget, probs, errors, size)


def _width_for_margin(kl_budget: float, margin: float, num_tokens: int | None) -> int:
    if not 0.0 < as_real(margin) <= 1.0:
        raise InvalidArgument(
            f"tree_width_for: expected margin in (0, 1] (at 0 no width suffices), got {margin!r}"
        )
    high = 1
    while not margin_certificate(Tree(high), margin) > kl_budget:
        if num_tokens is not None and high >= num_tokens:
            return num_tokens
        high *= 2
        if high > _SMALL_BUDGET_WIDTH:
            raise InvalidArgument(
                f"tree_width_for: no width up to 2^40 exceeds kl_budget={kl_budget!r} at margin "
                f"{margin!r}"
            )
    low = high // 2  # certificate(low) <= budget < certificate(high)
    while low + 1 < high:
        middle = (low + high) // 2
        if margin_certificate(Tree(middle), margin) > kl_budget:
            high = middle
        else:
            low = middle
    return high if num_tokens is None else min(high, num_tokens)


def _width_for_probs(
    kl_budget: float, probs: np.ndarray, errors: np.ndarray, num_tokens: int | None
) -> int:
    total, slack = float(probs.sum()), _constants.INPUT_SLACK + float(errors.sum())
    if not (total <= 1.0 + slack and float(probs[-1]) >= 0.0):
        raise InvalidArgument(
            f"tree_width_for: expected probabilities >= 0 of sum at most 1, got a sum of {total!r} "
            f"and a least one of {float(probs[-1])!r}"
        )
    complete = num_tokens == len(probs)
    if complete and total < 1.0 - slack:
        raise InvalidArgument(
            f"tree_width_for: expected probabilities of sum 1 where num_tokens={num_tokens} says "
            f"that there are no others, got a sum of {total!r}"
        )
    if num_tokens is not None and num_tokens < len(probs):
        raise InvalidArgument(
            f"tree_width_for: expected num_tokens an integer of at least {len(probs)}, as many as "
            f"there are probabilities, got {num_tokens!r}"
        )
    nearest = probs + errors
    nearest[0] = probs[0] - errors[0]  # below 0 at worst, and then no width is known
    for width, certificate in enumerate(_tree_certificates(nearest), 1):
        if certificate > kl_budget:
            return width
    if not complete:
        raise InvalidArgument(
            f"tree_width_for: expected more than {len(probs)} probabilities: no width below that "
            f"exceeds kl_budget={kl_budget!r}"
            + ("" if num_tokens else f"; num_tokens={len(probs)} says that there are no more")
        )
    return len(probs)


def _tree_certificates(probs: np.ndarray) -> Iterator[float]:
    """Bounds below the certificates of widths 1, 2, ... of a sorted row: token 1 pools with those
    of 2..m+1 below the level. Taken off: 1,024 u of the pool's mass and of the value (claim
    kernel.tree_rows)."""
    slack = _constants.MARGIN_SLACK
    excess_cost = load_kernels("margins", "python").excess_cost
    for width in range(1, len(probs)):
        pooled, mass = [float(probs[0])], float(probs[0])
        for prob in probs[width:0:-1]:
            if not prob * len(pooled) < mass:
                break
            pooled.append(float(prob))
            mass += float(prob)
        level = mass / len(pooled)
        if level > 0.0:
            value = level * math.fsum(excess_cost(prob / level - 1.0) for prob in pooled)
            yield max(0.0, value * (1.0 - slack) - slack * mass)
        else:
            yield 0.0
