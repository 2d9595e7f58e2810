"""The generated functions of margins, reverse margins and drafter margins, each beside the formula
of its claim."""

from __future__ import annotations

import math
from fractions import Fraction as F
from typing import Any

import sympy

from derivations.formulas.drafter import multiplicative_radius
from derivations.margins.gate_margins import multiplicative_inside
from derivations.margins.radius_margins import factor_inside_reverse
from proofs_check.methods.examination import Examined, examined

# dyadic, so that a margin that lies on a boundary lies there in every arithmetic
GAPS = tuple(F(k, 16) for k in range(17))
SLACKS = tuple(F(k, 16) for k in (0, 1, 2, 4, 6, 8, 9, 12, 15))
ALPHAS = (F(1, 19), F(1, 9), F(1, 4), F(3, 7), F(1, 2), F(2, 3), F(9, 10))
WIDTHS = (F(1), F(2), F(3), F(4), F(8), F(16))
# m = 1 + k; the target (w, 1, ..., 1, 1/w) of a tree, and (1/(1-e), 1, ..., 1/(1+e)), e = 1/(1+s)
K, W, S, H = sympy.symbols("k w s h", positive=True)
E = 1 / (1 + S)

examined("margin.strict", Examined("margins.strict_margin", {"gap": GAPS}))
examined(
    "margin.additive.at-least",
    Examined(
        "margins.additive_margin_at_least", {"gap": GAPS, "slack": (*SLACKS, F(1), F(11, 10))}
    ),
)
examined(
    "margin.additive.exact",
    Examined("margins.additive_margin_exactly", {"gap": GAPS, "slack": SLACKS}),
)
examined(
    "margin.multiplicative",
    Examined("margins.multiplicative_margin", {"gap": GAPS, "alpha": ALPHAS}),
)
examined("margin.top", Examined("margins.top_margin", {"gap": GAPS, "width": WIDTHS}))
examined(
    "margin.gate.last.exact",
    Examined(
        "margins.gate_last_margin_exactly", {"gap": GAPS, "width": WIDTHS[1:], "slack": SLACKS}
    ),
)
examined(
    "margin.gate.last.at-least",
    Examined(
        "margins.gate_last_margin_at_least",
        {"gap": GAPS, "width": WIDTHS[1:], "slack": (*SLACKS, F(1), F(3, 2))},
    ),
)
examined(
    "margin.gate.multiplicative.last",
    Examined(
        "margins.gate_last_multiplicative",
        {"gap": GAPS, "alpha": ALPHAS},
        reference=multiplicative_inside,
    ),
)
examined(
    "margin.tree.p1-p2", Examined("margins.tree_margin_top_two", {"gap": GAPS, "width": WIDTHS})
)
examined(
    "margin.tree.p1-p(m+1)",
    Examined(
        "margins.tree_margin_last",
        {"gap": GAPS[1:-1], "width": WIDTHS},
        chart={"width": 1 + K, "gap": (W**2 - 1) / (K * W + W**2 + 1)},
    ),
)
examined(
    "margin.entropy.simple",
    Examined(
        "margins.entropy_margin",
        {
            "gap": GAPS,
            "epsilon": (F(1, 20), F(1, 10), F(1, 4), F(9, 10), F(1)),
            "delta": (F(1, 20), F(1, 3), F(3, 5), F(9, 10), F(1)),
        },
    ),
)
examined(
    "margin.absolute",
    Examined("margins.absolute_margin", {"gap": GAPS[1:], "tau": (F(0), *ALPHAS, F(1))}),
)
examined("reverse.margin.single", Examined("reverse_margins.pair_reverse_margin", {"gap": GAPS}))
examined(
    "reverse.margin.additive",
    Examined("reverse_margins.additive_reverse_margin", {"gap": GAPS, "slack": SLACKS}),
)
examined(
    "reverse.margin.multiplicative",
    Examined("reverse_margins.multiplicative_reverse_margin", {"gap": GAPS, "alpha": ALPHAS}),
)
examined(
    "reverse.margin.top",
    Examined("reverse_margins.top_reverse_margin", {"gap": GAPS, "width": WIDTHS}),
)
examined(
    "reverse.margin.gate.multiplicative.last",
    Examined(
        "reverse_margins.gate_last_multiplicative_reverse",
        {"gap": GAPS, "alpha": ALPHAS},
        reference=factor_inside_reverse,
    ),
)
examined(
    "reverse.margin.tree.p1-p2",
    Examined("reverse_margins.tree_reverse_margin_top_two", {"gap": GAPS, "width": WIDTHS}),
)
examined(
    "reverse.margin.tree.p1-p(m+1)",
    Examined(
        "reverse_margins.tree_reverse_margin_last",
        {"gap": GAPS[1:-1], "width": WIDTHS},
        chart={"width": 1 + K, "gap": 2 * E / (K + 2 - K * E**2)},
    ),
)
examined(
    "drafter.margin.additive",
    Examined(
        "drafter_margins.additive_radius_margin", {"gap": GAPS, "slack": (*SLACKS, F(1), F(11, 10))}
    ),
)
examined(
    "drafter.margin.tree",
    Examined(
        "drafter_margins.tree_radius_margin",
        {"gap": (*GAPS, F(1, 3), F(1, 16)), "width": WIDTHS},
        given=lambda n, gap, width: (gap, width, 1 - width * gap),
        where=lambda gap, width: gap * width <= 1,
    ),
)


def _second(n: Any, top: Any, tilt: Any, alpha: Any) -> Any:
    """q2 of the multiplier log(q1/(alpha q2))/(1 + alpha)."""
    return top * n.exp(-(1 + alpha) * tilt) / alpha


examined(
    "drafter.margin.multiplicative",
    Examined(
        "drafter_margins.multiplicative_radius_margin",
        {
            "top": (F(1, 10), F(1, 2), F(9, 10), F(99, 100)),
            "tilt": (F(1, 20), F(1), F(5), F(7), F(9)),
            "alpha": (F(1, 10), F(1, 2), F(1)),
        },
        given=lambda n, top, tilt, alpha: (
            top,
            _second(n, top, tilt, alpha),
            1 - top - _second(n, top, tilt, alpha),
            tilt,
            alpha,
        ),
        reference=lambda n, top, tilt, alpha: multiplicative_radius(
            n, top, _second(n, top, tilt, alpha), alpha
        ),
        chart={"top": sympy.exp(-H)},
        where=lambda top, tilt, alpha: (
            float(_second(math, float(top), float(tilt), float(alpha))) <= min(top, 1 - top)
        ),
    ),
)
