"""The generated functions of margins, reverse margins and drafter margins, each beside the formula
of its claim."""

from __future__ import annotations

import math
from fractions import Fraction as F
from typing import Any

import sympy

from derivations.formulas.drafter import multiplicative_radius
from derivations.margins.gate_margins import multiplicative_inside
from derivations.margins.radius_margins import chord_use, factor_inside_reverse
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
    Examined("margins.additive_margin_exactly", {"gap": GAPS, "slack": (*SLACKS, F(1))}),
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
    Examined("margins.absolute_margin", {"gap": GAPS, "tau": (F(0), *ALPHAS, F(1))}),
)
examined("reverse.margin.single", Examined("reverse_margins.pair_reverse_margin", {"gap": GAPS}))
examined(
    "reverse.margin.additive",
    Examined("reverse_margins.additive_reverse_margin", {"gap": GAPS, "slack": (*SLACKS, F(1))}),
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


LEVELS = (F(1, 20), F(1, 2), F(1), F(5, 4), F(3), F(9))
examined(
    "drafter.margin.chord",
    Examined(
        "drafter_margins.chord_use",
        {"level": LEVELS, "alpha": (F(1, 10), F(1, 2), F(9, 10))},
        reference=chord_use,
    ),
    Examined("drafter_margins.chord_radius_margin", {"gap": GAPS, "level": LEVELS}),
)


def _pair(n: Any, tilt: Any, alpha: Any) -> tuple[Any, Any]:
    """q1 and q2 of sum 1 whose multiplier log(q1/(alpha q2))/(1 + alpha) that is."""
    ratio = n.exp(-(1 + alpha) * tilt) / alpha
    return 1 / (1 + ratio), ratio / (1 + ratio)


def _gap(n: Any, tilt: Any, alpha: Any) -> Any:
    top, second = _pair(n, tilt, alpha)
    return top - second


examined(
    "drafter.margin.multiplicative",
    Examined(
        "drafter_margins.pair_tilt",
        {"gap": GAPS[:-1], "alpha": ALPHAS},
        reference=lambda n, gap, alpha: n.log((1 + gap) / (1 - gap) / alpha) / (1 + alpha),
    ),
    Examined(
        "drafter_margins.pair_radius_margin",
        {"tilt": (F(1, 20), F(1), F(5), F(7), F(9)), "alpha": (F(1, 10), F(1, 2), F(1))},
        given=lambda n, tilt, alpha: (_gap(n, tilt, alpha), tilt, alpha),
        reference=lambda n, tilt, alpha: multiplicative_radius(n, *_pair(n, tilt, alpha), alpha),
        where=lambda tilt, alpha: float(_gap(math, float(tilt), float(alpha))) >= 0,
    ),
)
