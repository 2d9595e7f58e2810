"""The generated scalars of kernels, each beside the formula of its claim, or beside what the
claim's derivation says of it, written out by hand. Numba's, torch's and Triton's text alike."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

from derivations.arithmetic.rewrites import excess_by_series
from proofs_check.methods.examination import Examined, examined

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


TOPS, SECONDS = (F(1, 4), F(1, 2), F(7, 8)), (F(1, 2**1000), F(1, 16), F(1, 8), F(1, 4))


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
