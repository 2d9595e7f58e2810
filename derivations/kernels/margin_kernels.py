"""The evaluation forms of the margin-only bounds, for scalars outside the kernels: accurate to a
few units in the last place from the smallest margins to the cap. The theorems:
``derivations.margins.margins`` and ``tree_margins``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Integer, Max, Min, Piecewise, Rational, sqrt
from sympy.codegen.cfunctions import log1p

from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["EXCESS_COST", "TOPICS", "excess_series"]

SERIES_TERMS = 9  # with |u| <= 1/5, |r| <= 1/9: the first term left out is below 2^-56 of the sum
gap, slack, alpha, width, tau = sympy.symbols("gap slack alpha width tau", real=True)
epsilon, delta, capped, mass = sympy.symbols("epsilon delta capped mass", real=True)
excess, ratio, square, root, growth = sympy.symbols("excess ratio square root growth", real=True)
excess_cost = sympy.Function("excess_cost", real=True)  # the kernel below, called by the others


def excess_series(u: Any, r: Any, r_squared: Any) -> Any:
    """(1+u) log(1+u) - u by log(1+u) - u = 2 (artanh r - r) - r u, r = u/(2+u), artanh cut after
    SERIES_TERMS."""
    series = (
        r_squared * 0 + Rational(1, 2 * SERIES_TERMS + 1) if isinstance(u, sympy.Expr) else None
    )
    if series is None:
        series = r_squared * 0 + 1 / (r_squared * 0 + 2 * SERIES_TERMS + 1)
    for term in range(SERIES_TERMS - 1, 0, -1):
        series = (
            Rational(1, 2 * term + 1) if isinstance(u, sympy.Expr) else 1 / (r * 0 + 2 * term + 1)
        ) + r_squared * series
    return (1 + u) * (2 * r * r_squared * series - r * u) + u * u


def group_cost(level: sympy.Expr, groups: Sequence[tuple[sympy.Expr, sympy.Expr]]) -> sympy.Expr:
    """c sum n phi(u) over groups (n tokens, excess u over the level c); the excesses average to
    0."""
    return level * sum(count * excess_cost(excess) for count, excess in groups)


def mass_and_gap(joint_mass: sympy.Expr, difference: sympy.Expr) -> sympy.Expr:
    """s phi(d/s)."""
    share = difference / joint_mass
    return group_cost(joint_mass / 2, [(Integer(1), share), (Integer(1), -share)])


def phi(share: sympy.Expr) -> sympy.Expr:
    return mass_and_gap(Integer(1), share)


def top(difference: sympy.Expr) -> sympy.Expr:
    return mass_and_gap((2 + (width - 1) * difference) / (width + 1), difference)


def _additive_exactly() -> sympy.Expr:
    parts = [
        (Integer(1), gap + slack),
        (Integer(1), slack - 2 * gap),
        (Integer(1), gap - 2 * slack),
    ]
    return Piecewise(
        (phi(gap), gap > slack),
        (sympy.oo, gap <= 2 * slack - 1),  # no rounding: 2 t - 1 is a float from t = 1/2 on
        (mass_and_gap((2 + 2 * gap - slack) / 3, slack), 2 * gap >= slack),
        (group_cost(Rational(1, 3), parts), True),
    )


def _additive_at_least() -> sympy.Expr:
    return Piecewise((sympy.oo, slack >= 1), (phi(Max(gap, slack)), True))


def _gate_last_exactly() -> sympy.Expr:
    middle = mass_and_gap((2 + (width - 1) * (2 * gap - slack)) / (width + 1), slack)
    return Piecewise(
        (top(gap), gap <= slack), (middle, 2 * gap <= 1 + slack), (phi(2 * gap - 1), True)
    )


def _gate_last_at_least() -> sympy.Expr:
    return Piecewise(
        (top(gap), slack >= 1),
        (Min(top(gap), phi(slack), evaluate=False), gap <= slack),
        (phi(slack), 2 * gap <= 1 + slack),
        (phi(2 * gap - 1), True),
    )


def _multiplicative() -> sympy.Expr:
    corner = (1 - alpha) / (1 + alpha)
    return Piecewise((phi(gap), gap >= corner), (gap * phi(corner) / corner, True))


def _multiplicative_inside() -> sympy.Expr:
    pair = group_cost(
        (1 + alpha) / 2,
        [(Integer(1), (1 - alpha) / (1 + alpha)), (Integer(1), (alpha - 1) / (1 + alpha))],
    )
    return Piecewise((gap * pair, gap * (1 + alpha) <= 1), (phi(2 * gap - 1), True))


_spec = kernel_family(
    "derivations.kernels.margin_kernels",
    "0 <= gap <= 1 and the rule's own range",
    ("python",),
    ("eval.pool",),
)


EXCESS_COST = _spec(
    "excess_cost",
    "excess",
    Piecewise(
        (Integer(1), excess <= -1),
        (excess_series(excess, ratio, square), sympy.Abs(excess) <= Rational(1, 5)),
        ((1 + excess) * log1p(excess) - excess, True),
    ),
    "eval.excess",
    "phi(u) = (1+u) log(1+u) - u, to a few units in the last place also near u = 0.",
    lets={"ratio": excess / (2 + excess), "square": ratio * ratio},
)
ENTROPY_SIMPLE = _spec(
    "entropy_margin",
    "gap epsilon delta",
    Piecewise((Integer(0), gap <= 0), (mass_and_gap(mass, gap), True)),
    "margin.entropy.simple",
    "Entropy rule, delta <= 1, p1 - p2 = g or >= g: a bound, not always attained [nats].",
    lets={
        "capped": Min(1, gap + 2 * epsilon),
        "mass": Piecewise(
            (capped, delta >= 1), (Min(capped, gap * (1 + delta) / (1 - delta)), True)
        ),
    },
)
# d log(1+v) - log(1 + v^2/((1+v)(m+1))), v = w - 1 written without the difference of two nearly
# equal numbers
TREE_LAST = _spec(
    "tree_margin_last",
    "gap width",
    gap * log1p(growth) - log1p(growth * growth / ((1 + growth) * (width + 1))),
    "margin.tree.p1-p(m+1)",
    "T_m(d) for d < 1: greedy tree of width m, p1 - p_{m+1} = d or >= d; log(m+1) at d = 1 [nats].",
    lets={
        "root": sqrt(gap * gap * (width - 1) * (width - 1) + 4 * ((1 - gap) * (1 + gap))),
        "growth": (gap * (width + 1) + gap * gap * (width - 3) * (width + 1) / (root + 2))
        / (2 * (1 - gap)),
    },
)


TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "margins": (
        EXCESS_COST,
        _spec(
            "strict_margin",
            "gap",
            phi(gap),
            "margin.strict",
            "phi(g): strict, p1 - p2 = g or >= g [nats].",
        ),
        _spec(
            "additive_margin_at_least",
            "gap slack",
            _additive_at_least(),
            "margin.additive.at-least",
            "Additive t, p1 - p2 >= g [nats].",
        ),
        _spec(
            "additive_margin_exactly",
            "gap slack",
            _additive_exactly(),
            "margin.additive.exact",
            "Additive t, p1 - p2 = g [nats].",
        ),
        _spec(
            "multiplicative_margin",
            "gap alpha",
            _multiplicative(),
            "margin.multiplicative",
            "Multiplicative alpha, p1 - p2 = g or >= g [nats].",
        ),
        _spec(
            "top_margin",
            "gap width",
            top(gap),
            "margin.top",
            "Top-m in p1 - p2 or in p1 - p_{m+1}, exactly or at least [nats].",
        ),
        _spec(
            "gate_last_margin_exactly",
            "gap width slack",
            _gate_last_exactly(),
            "margin.gate.last.exact",
            "Top-m and additive t, p1 - p_{m+1} = d [nats].",
        ),
        _spec(
            "gate_last_margin_at_least",
            "gap width slack",
            _gate_last_at_least(),
            "margin.gate.last.at-least",
            "Top-m and additive t, p1 - p_{m+1} >= d [nats].",
        ),
        _spec(
            "gate_last_multiplicative",
            "gap alpha",
            _multiplicative_inside(),
            "margin.gate.multiplicative.last",
            "A token inside a multiplicative gate, p1 - p_{m+1} = d or >= d [nats].",
        ),
        _spec(
            "tree_margin_top_two",
            "gap width",
            group_cost(1 / (width + 1), [(Integer(1), width * gap), (width, -gap)]),
            "margin.tree.p1-p2",
            "Greedy tree of width m, p1 - p2 = g or >= g [nats].",
        ),
        TREE_LAST,
        ENTROPY_SIMPLE,
        _spec(
            "absolute_margin",
            "gap tau",
            Piecewise(
                (sympy.oo, tau <= 0),
                (Integer(0), gap < tau),
                (mass_and_gap(Min(1, gap + 2 * tau), gap), True),
            ),
            "margin.absolute",
            "Absolute threshold tau, p1 - p2 = g or >= g; 0 for g < tau, +inf at tau = 0 [nats].",
        ),
    )
}
