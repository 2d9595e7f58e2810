"""The generated scalars of kernels, each beside the formula of its claim, or beside what the
claim's derivation says of it, written out by hand. Numba's, torch's and Triton's text alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction as F
from random import Random
from typing import Any

import sympy

from derivations.arithmetic.rewrites import excess_by_series
from derivations.formulas.robust import box_threshold
from derivations.formulas.single_token import pooled_value, single_pool
from derivations.formulas.tree import tree_pool
from proofs_check.methods.examination import Examined, examined
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.printed_loops import Looped, Run

UNIT = F(1, 2**53)
COVER = F(65, 64)  # of products of two errors
SHARES = (F(0), F(1, 16), F(1, 4), F(1, 2), F(7, 8))
SOME = (F(1, 16), F(1, 3), F(1, 2), F(3, 4))
ERRORS = (F(0), F(1, 2**50), F(1, 1000), F(1, 64))
SIZES = (F(2), F(3), F(40), F(2**20))
INFINITE = float("inf")


def _magnitude(value: Any) -> Any:
    return value if value >= 0 else -value


# ---- scalars of KL, entropy and pools
examined(
    "eval.bregman",
    Examined("divergence.bregman_term", {"p": SOME, "d": (F(-3), F(0), F(1, 3), F(5))}),
    Examined(
        "divergence.far_term",
        {"p": SHARES, "q": SOME, "d": (F(-40), F(-31))},
        reference=lambda n, p, q, d: p * d + q - p,
    ),
)
examined(
    "eval.difference", Examined("divergence.difference_form", {"a": SOME, "b": SOME, "c": SOME})
)
examined("eval.entropy", Examined("divergence.entropy", {"a": SOME, "b": SOME}))
examined("eval.pool", Examined("pool.pool_term", {"w": SHARES, "c": SOME}))
examined(
    "eval.strict",
    Examined("pool.pair_cost", {"a": SHARES, "b": SHARES}, where=lambda a, b: bool(a >= b)),
)
DEVIATIONS = tuple(F(k, 40) for k in range(-39, 100, 3))
EXCESSES = (F(-1), *DEVIATIONS, F(1, 5), F(-1, 5), F(7), F(10**6))


def _excess(n: Any, excess: Any) -> Any:
    """The series of claim eval.excess up to 1/5, the definition beyond."""
    if excess <= -1:
        return excess * 0 + 1
    if abs(excess) * 5 <= 1:
        return excess_by_series(n, excess)
    return (1 + excess) * n.log1p(excess) - excess


examined(
    "eval.excess",
    *(
        Examined(f"{topic}.excess_cost", {"u": EXCESSES}, reference=_excess, opened=True)
        for topic in ("margins", "reverse_margins", "drafter_margins")
    ),
)
DEVIATIONS = (*DEVIATIONS, F(1, 8), F(-1, 8), F(9), F(-30))
examined(
    "eval.surplus",
    Examined("drafter.surplus", {"d": DEVIATIONS}, opened=True),
    Examined("drafter_margins.surplus", {"d": DEVIATIONS}, opened=True),
)

# ---- thresholds
_RULE = {
    "cap": (F(1, 3), INFINITE),
    "scale": (F(0), F(1, 2), F(1)),
    "offset": (F(-1, 4), F(0), F(1, 8), INFINITE),
    "entropy_scale": (F(2, 5), INFINITE),
    "normaliser": (F(1), F(5, 2)),
    "entropy_gap": (F(-3), F(-1, 2), F(0)),
}
examined("rule.threshold", Examined("threshold.relative_threshold", _RULE))
examined(
    "bound.threshold",
    Examined(
        "threshold.threshold_upper",
        _RULE | {"normaliser_error": ERRORS, "entropy_error": ERRORS},
        where=lambda *letters: letters[2] != INFINITE,
    ),
    Examined(
        "bounds.entropy_gap_error",
        {"gap": SHARES, "span": SIZES, "sum": ERRORS, "e": ERRORS},
        reference=lambda n, gap, span, total, e: COVER * gap * ((span + 12) * UNIT + total + e),
    ),
    Examined(
        "bounds.smoothed_entropy_error",
        {"gap": (F(-2), F(0), F(3)), "log_s": SHARES, "span": SIZES, "sum": ERRORS, "e": ERRORS},
        reference=lambda n, gap, log_s, span, total, e: (
            COVER * (_magnitude(gap) + 2 * log_s + 4) * ((span + 24) * UNIT + total + 2 * e)
        ),
    ),
)

# ---- bounds
examined("bound.weight", Examined("bounds.relative_weight_error", {"span": (F(0), F(3), F(745))}))
examined(
    "bound.normaliser", Examined("bounds.relative_normaliser_error", {"gap": SHARES, "sum": ERRORS})
)
examined(
    "bound.log_ratio",
    Examined(
        "bounds.log_ratio_bound",
        {"a": SHARES, "e": ERRORS, "b": SHARES, "f": ERRORS, "reach": SIZES},
    ),
)
examined(
    "bound.kl_upper",
    Examined("bounds.kl_upper", {"kl": SHARES, "a": ERRORS, "eta": ERRORS}),
    Examined(
        "bounds.relative_term_error",
        {"w": ERRORS, "e": ERRORS, "v": ERRORS, "f": ERRORS, "sum": ERRORS},
        reference=lambda n, w, e, v, f, total: COVER * (max(w + e, v + f) + total + 32 * UNIT),
    ),
    Examined(
        "bounds.difference_error",
        {"eta": ERRORS, "a": ERRORS, "s": SHARES, "t": SHARES},
        reference=lambda n, eta, a, s, t: COVER * (eta + a * (s + t)),
    ),
)
examined(
    "bound.certificate_lower",
    Examined(
        "bounds.certificate_lower",
        {"V": SHARES, "m": SOME, "n": SIZES, "rho": ERRORS, "S": (F(1), F(7, 2)), "e": ERRORS},
    ),
    Examined(
        "bounds.raised_mean",
        {"m": SOME, "n": SIZES},
        reference=lambda n, mass, size: mass / size * (1 + (size + 6) * UNIT),
    ),
)

# ---- radii
examined(
    "bound.radius",
    Examined(
        "drafter.radius_lower",
        {"gain": SHARES, "kept": SOME, "reach": SHARES, "size": SIZES, "tokens": SIZES},
    ),
    Examined(
        "drafter.tilted_mass",
        {"top": SOME, "second": SOME, "rest": SHARES, "fall": SHARES, "rise": SHARES},
        reference=lambda n, top, second, rest, fall, rise: (
            top * n.exp(-fall) + second * n.exp(rise) + rest
        ),
    ),
)
examined(
    "bound.radius.entropy",
    Examined("drafter.searched_radius_lower", {"radius": SHARES, "reach": SHARES, "tokens": SIZES}),
)


def _clipped(value: Any) -> Any:
    """A multiplier between 0 and 640: any number there is a valid one (claim drafter.dual)."""
    return max(value * 0, min(value * 0 + 640, value))


# of 59/64 and 1/16 the additive radius takes the logarithm of less than a half
TOPS = (F(1, 4), F(1, 2), F(7, 8), F(59, 64))
SECONDS = (F(1, 2**1000), F(1, 16), F(1, 8), F(1, 4))


def _additive_root(n: Any, top: Any, second: Any, slack: Any) -> Any:
    """u of claim drafter.additive: q_j (1-t) u^2 - t r0 u - q_y (1+t) = 0, r0 = 1 - q_y - q_j."""
    rest = 1 - top - second
    root = n.sqrt(slack * slack * rest * rest + 4 * second * top * (1 - slack * slack))
    return (slack * rest + root) / (2 * second * (1 - slack))


def _inside(top: F, second: F, *others: F) -> bool:
    return second <= top and top + second < 1


examined(
    "drafter.additive",
    Examined(
        "drafter.additive_tilt",
        {"top": TOPS, "second": SECONDS, "slack": (F(0), F(1, 4), F(9, 10))},
        given=lambda n, top, second, slack: (top, second, 1 - top - second, slack),
        reference=lambda n, *letters: _clipped(n.log(_additive_root(n, *letters))),
        where=_inside,
    ),
)
examined(
    "drafter.multiplicative",
    Examined(
        "drafter.multiplicative_tilt",
        {"top": TOPS, "second": SECONDS, "alpha": SOME},
        reference=lambda n, top, second, alpha: _clipped(
            n.log(top / (alpha * second)) / (1 + alpha)
        ),
    ),
)
examined(
    "drafter.absolute",
    Examined(
        "drafter.absolute_tilt",
        {"top": TOPS, "tau": SOME},
        given=lambda n, top, tau: (top, 1 - top, tau),
        reference=lambda n, top, tau: _clipped(n.log(top * (1 - tau) / (tau * (1 - top)))),
    ),
    Examined(
        "drafter.absolute_radius",
        {"top": TOPS, "tau": (F(0), *SOME)},
        given=lambda n, top, tau: (top, 1 - top, tau),
    ),
)
examined(
    "drafter.strict",
    Examined(
        "drafter.strict_radius",
        {"top": TOPS, "second": (F(0), *SECONDS)},
        given=lambda n, top, second: (top, second, 1 - top - second),
        where=_inside,
    ),
)


# ---- radii as sums that do not cancel. The law is (top, second, rest), of sum 1
examined(
    "drafter.tree",
    Examined(
        "drafter.pool_radius",
        {"level": SOME, "rest": (F(0), F(1, 64), F(1, 5)), "size": (F(1, 2), F(1), F(3, 2))},
        given=lambda n, level, rest, size: ((1 - rest) / level - size, level, rest, size),
        reference=lambda n, level, rest, size: -n.log(rest + size * level),
        where=lambda level, rest, size: 0 < rest + size * level <= 1,
    ),
)
_U, _T, _S, _H = sympy.symbols("u slack second h", positive=True)
# q_y of the root u, from q_j (1-t) u^2 - t r0 u - q_y (1+t) = 0 and q_y + q_j + r0 = 1
_TOP = (_S * (1 - _T) * _U**2 - _T * _U * (1 - _S)) / (1 + _T - _T * _U)
examined(
    "drafter.additive",
    Examined(
        "drafter.additive_radius",
        {"top": TOPS, "second": (F(0), *SECONDS), "slack": (F(0), F(1, 4), F(9, 10))},
        given=lambda n, top, second, slack: (top, second, 1 - top - second, slack),
        where=_inside,
        chart={"top": _TOP},
        # q_j (1-t) u + q_y (1+t)/u, the root of the discriminant: a sum of what is positive
        roots=(sympy.factor(_S * (1 - _T) * _U + _TOP * (1 + _T) / _U),),
    ),
)
_ALPHA = sympy.Symbol("alpha", positive=True)
examined(
    "drafter.multiplicative",
    Examined(
        "drafter.multiplicative_radius",
        {"top": TOPS, "second": (F(0), *SECONDS), "alpha": SOME},
        given=lambda n, top, second, alpha: (top, second, 1 - top - second, alpha),
        where=_inside,
        chart={"top": sympy.exp(-_H), "second": sympy.exp(-_H - (1 + _ALPHA) * _U) / _ALPHA},
    ),
)

# ---- what holds on every server
_GROWN: dict[str, tuple[F, ...]] = {
    "growth": (F(1), F(101, 100), F(2)),
    "error": (F(0), F(1, 2**40), F(1, 64)),
}


def _box_threshold(
    n: Any, cap: Any, scale: Any, offset: Any, least: Any, total: Any, gap: Any, g: Any, e: Any
) -> Any:
    """Claim robust.threshold for the cap, the threshold from the top and the entropy's, each raised
    by its share of the error; a probability above 1 is no token's."""

    def reaching(share: Any) -> Any:
        if share * total > total:
            return share * total
        return box_threshold(n, 0, share, None, [1, total - 1], g)

    from_top = offset * total
    if offset <= 1:
        from_top = box_threshold(n, scale, offset, None, [1, total - 1], g)
        raised = (scale - offset) * (g + total) if offset <= 0 else g * (scale + offset * total)
        from_top = from_top + e * raised
    wanted = least * n.exp(gap) / total
    return min(min(reaching(cap) * (1 + e), from_top), reaching(wanted) * (1 + e))


examined(
    "robust.threshold",
    Examined(
        "robust.box_threshold",
        {
            "cap": (F(1, 3), F(9, 10), F(2)),
            "scale": (F(0), F(1, 2), F(1)),
            "offset": (F(-3, 4), F(-1, 4), F(0), F(1, 8), F(7, 8), F(1), F(3, 2)),
            "entropy_scale": (F(2, 5), F(9)),
            "normaliser": (F(5, 4), F(5, 2)),
            "entropy_ceiling": (F(-1), F(0)),
        }
        | _GROWN,
        reference=_box_threshold,
    ),
)


def _two_sides(
    n: Any, up: Any, up_product: Any, total: Any, total_product: Any, tilt: Any, radius: Any
) -> Any:
    """sum p exp(x) (1 + t - log(p/q) - x) of two tokens, one raised and one lowered."""
    tokens = ((up, up_product, radius), (total - up, total_product - up_product, -radius))
    return sum(p * n.exp(x) * (1 + tilt - product / p - x) for p, product, x in tokens)


examined(
    "robust.divergence",
    Examined(
        "robust.box_mass",
        {
            "up": (F(1, 4), F(1, 3)),
            "up_product": (F(-1, 8), F(1, 5)),
            "total": (F(1, 2), F(1)),
            "total_product": (F(1, 7), F(1, 2)),
            "tilt": (F(-1, 9), F(3, 8)),
            "radius": (F(0), F(1, 10), F(1)),
        },
        reference=_two_sides,
    ),
    Examined(
        "robust.box_divergence",
        {"tilt": (F(-1, 3), F(0), F(2)), "mass": SOME},
        reference=lambda n, tilt, mass: tilt - n.log(mass),
    ),
)


# ---- the loops over pools, in lists of up to 64 tokens and trees of up to 16
_EXACT_MEAN = {"raised_mean": lambda mass, size: mass / size}


def _lists() -> Iterator[list[F]]:
    """Weights in descending order: drawn, all alike, in steps, and with one token a hair above the
    level of those after it, by less than a rounding."""
    rng = Random(21)
    for size in (2, 3, 5, 17, 64):
        for power in (1, 4):
            drawn = [F(rng.randint(1, 60)) ** power for _ in range(size)]
            yield sorted((w / max(drawn) for w in drawn), reverse=True)
        yield [F(1)] * size
        yield [F(1, k) for k in range(1, size + 1)]
    yield [F(1), F(1, 2), F(1, 2), F(1, 4)]
    yield [F(1) + F(1, 2**60), F(1)]  # above the mean of both by a hair


def _single_pools(load: Callable[..., Run]) -> Iterator[tuple[str, Any, Any]]:
    run, rounded = load(**_EXACT_MEAN), load()
    for weights in _lists():
        for rejected in sorted({1, len(weights) // 2, len(weights) - 1}):
            head = len(single_pool(weights[: rejected + 1], rejected)) - 1
            true = (head, sum(weights[:head]) + weights[rejected])
            yield f"{len(weights)} weights, rejected {rejected}", run(weights, rejected), true
    # a rounding: not certainly above the mean with it
    hair = [to_mp(F(1) + F(1, 2**60)), to_mp(F(1))]
    yield "a hair above", rounded(hair, 1), (0, hair[1])
    yield "far above", rounded([to_mp(F(1)), to_mp(F(1, 2))], 1), (1, to_mp(F(3, 2)))


def _tree_pools(load: Callable[..., Run]) -> Iterator[tuple[str, Any, Any]]:
    run = load()
    for weights in _lists():
        for width in sorted({1, min(4, len(weights) - 1), min(16, len(weights) - 1)}):
            pool = len(tree_pool(weights, range(1, width + 1))) - 1
            tail = width + 1 - pool
            true = (tail, weights[0] + sum(weights[tail : width + 1]))
            yield f"{len(weights)} weights, width {width}", run(weights, width), true


def _pool_values(load: Callable[..., Run]) -> Iterator[tuple[str, Any, Any]]:
    """The value over S, by definition; the bound, of terms at the raised mean, by its claim."""
    run = load()
    error, total_error = F(1, 2**45), F(1, 2**44)
    for weights in _lists():
        last, total = len(weights) - 1, sum(weights)
        for head, tail in ((0, last), (min(2, last), last), (1, max(1, last - 3))):
            pooled = [*weights[:head], *weights[tail:]]
            mass, size = sum(pooled), len(pooled)
            level = mass / size * (1 + (size + 6) * UNIT)
            parts = [to_mp(w / level) for w in pooled]
            raised = to_mp(level) * sum(u * MP.log(u) - u + 1 for u in parts)
            kept = raised * to_mp(1 - error - (size + 16) * UNIT)
            kept = kept - to_mp(mass * ((2 * size + 40) * UNIT + error))
            lower = kept / to_mp(total) * to_mp(1 - COVER * total_error - 4 * UNIT)
            value = pooled_value(MP, [to_mp(w) for w in pooled]) / to_mp(total)
            given = map(to_mp, (mass, error, total, total_error))
            found = run([to_mp(w) for w in weights], head, tail, last, *given)
            yield f"{len(weights)} weights, {head}, {tail}", found, (value, max(lower, lower * 0))


examined("single.pool", Looped("pool.single_token_pool", _single_pools, "up to 64 tokens"))
examined("tree.pool", Looped("pool.tree_pool", _tree_pools, "up to 64 tokens, widths to 16"))
examined(
    "bound.certificate_lower", Looped("pool.pool_certificate", _pool_values, "up to 64 tokens")
)
