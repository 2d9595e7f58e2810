"""The evaluation forms of the margin-only reverse certificates, for scalars outside the kernels:
accurate from the smallest margins up. The theorems: ``derivations.margins.projection_margins``."""

from __future__ import annotations

import sympy
from sympy import Max, Piecewise, Rational, log, sqrt
from sympy.codegen.cfunctions import log1p

from derivations.kernels.margin_kernels import EXCESS_COST
from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["TOPICS", "lag"]

gap, slack, alpha, width = sympy.symbols("gap slack alpha width", real=True)
high, low, share, near, root = sympy.symbols("high low share near root", real=True)
rest, lean, short, odds = sympy.symbols("rest lean short odds", real=True)
_HALF = Rational(1, 2)
excess_cost = sympy.Function("excess_cost", real=True)


_spec = kernel_family(
    "derivations.kernels.reverse_margin_kernels",
    "0 <= gap < 1 (+inf at 1) and the rule's own range",
    ("python",),
)


def _pair(difference: sympy.Expr) -> sympy.Expr:
    """1 - g^2 as a product where it is small: 1 - g is exact there."""
    square = difference * difference
    return Piecewise(
        (sympy.oo, difference >= 1),
        (-log1p(-square) / 2, square <= _HALF),
        (-log((1 - difference) * (1 + difference)) / 2, True),
    )


def lag(x: sympy.Expr) -> sympy.Expr:
    """x - log(1+x) >= 0, as (1+x) phi(u) at 1 + u = 1/(1+x): nothing cancels."""
    return (1 + x) * excess_cost(-x / (1 + x))


TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "reverse_margins": (
        EXCESS_COST,
        _spec(
            "pair_reverse_margin",
            "gap",
            _pair(gap),
            "reverse.margin.single",
            "-log(1-g^2)/2 [nats].",
        ),
        _spec(
            "additive_reverse_margin",
            "gap slack",
            _pair(Max(gap, slack)),
            "reverse.margin.additive",
            "Additive t, p1 - p2 >= g [nats].",
        ),
        _spec(
            "multiplicative_reverse_margin",
            "gap alpha",
            Piecewise(
                (_pair(gap), rest <= alpha * (1 + gap)),
                (-log1p(-share), share <= _HALF),
                (-log(rest + 2 * gap * near / (1 + near)), True),
            ),
            "reverse.margin.multiplicative",
            "Multiplicative alpha, p1 - p2 = g or >= g [nats].",
            lets={
                "near": sqrt(alpha),
                "rest": 1 - gap,
                "share": gap * (1 - alpha) / (1 + near) ** 2,
            },
        ),
        _spec(
            "top_reverse_margin",
            "gap width",
            Piecewise(
                (sympy.oo, gap >= 1),
                (-log1p(-share * share), share * share <= _HALF),
                (-log((width - 1) * low + 2 * sqrt(high * low)), True),
            ),
            "reverse.margin.top",
            "Top-m in p1 - p2 or in p1 - p_{m+1}, exactly or at least [nats].",
            lets={
                "high": (1 + width * gap) / (width + 1),
                "low": (1 - gap) / (width + 1),
                "share": gap / (sqrt(high) + sqrt(low)),
            },
        ),
        _spec(
            "gate_last_multiplicative_reverse",
            "gap alpha",
            Piecewise(
                (_pair(2 * gap - 1), gap * alpha > rest),
                (-log1p(-gap * share * share), gap * share * share <= _HALF),
                (-log(rest + gap * near * (2 - near)), True),
            ),
            "reverse.margin.gate.multiplicative.last",
            "A token inside a multiplicative gate, p1 - p_{m+1} = d or >= d [nats].",
            lets={"near": sqrt(alpha), "rest": 1 - gap, "share": (1 - alpha) / (1 + near)},
        ),
        _spec(
            "tree_reverse_margin_top_two",
            "gap width",
            Piecewise(
                (sympy.oo, gap >= 1), ((lag(width * gap) + width * lag(-gap)) / (width + 1), True)
            ),
            "reverse.margin.tree.p1-p2",
            "Greedy tree of width m, p1 - p2 = g or >= g [nats].",
        ),
        # with z = eta^2/(1-eta^2): log(1 + 2 z/(m+1)) - log(1+z)/(m+1)
        _spec(
            "tree_reverse_margin_last",
            "gap width",
            log1p(2 * odds / (width + 1)) - log1p(odds) / (width + 1),
            "reverse.margin.tree.p1-p(m+1)",
            "Greedy tree of width m, p1 - p_{m+1} = d < 1 or >= d [nats].",
            lets={
                "root": sqrt(1 + (width - 1) * (width + 1) * gap * gap),
                "lean": (width + 1) * gap / (1 + root),
                "short": 2 * (1 - gap) / (1 + root + (width - 1) * gap),  # 1 - lean
                "odds": lean * lean / (short * (1 + lean)),
            },
        ),
    )
}
