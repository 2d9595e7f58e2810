"""The evaluation forms of the margin-only drafter-side certificates, for scalars outside the
kernels: accurate from the smallest margins up. The theorems:
``derivations.margins.projection_margins``, ``radius_margins``."""

from __future__ import annotations

from dataclasses import replace

import sympy
from sympy import Max, Piecewise, Rational, exp, log
from sympy.codegen.cfunctions import expm1, log1p

from derivations.kernels.drafter_kernels import SURPLUS
from derivations.kernels.margin_kernels import EXCESS_COST
from derivations.kernels.reverse_margin_kernels import lag
from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["TOPICS"]

gap, slack, alpha, width = sympy.symbols("gap slack alpha width", real=True)
opened, tilt, top = sympy.symbols("opened tilt top", real=True)
rest, level, chord, kept = sympy.symbols("rest level chord kept", real=True)
excess_cost = sympy.Function("excess_cost", real=True)
surplus = sympy.Function("surplus", real=True)


_spec = kernel_family(
    "derivations.kernels.drafter_margin_kernels",
    "0 <= gap < 1 (+inf at 1) and the rule's own range",
    ("python",),
)


TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "drafter_margins": (
        EXCESS_COST,
        replace(SURPLUS, printers=("python",)),
        # sum q phi(p/q - 1) over the target ((1-t)/2, (1+t)/2) and the draft ((1+g)/2, (1-g)/2)
        _spec(
            "additive_radius_margin",
            "gap slack",
            Piecewise(
                (sympy.oo, Max(gap, slack) >= 1),
                (
                    (1 - gap) / 2 * excess_cost(opened / (1 - gap))
                    + (1 + gap) / 2 * excess_cost(-opened / (1 + gap)),
                    True,
                ),
            ),
            "drafter.margin.additive",
            "Additive t, q1 - q2 = g or >= g: d_bin((1+t)/2 || (1-g)/2) [nats].",
            lets={"opened": gap + slack},
        ),
        _spec(
            "tree_radius_margin",
            "gap width rest",
            Piecewise(
                (sympy.oo, rest <= 0),
                ((width * lag(gap) + rest * excess_cost(width * gap / rest)) / (width + 1), True),
            ),
            "drafter.margin.tree",
            "Greedy tree of width m, q_m - q_{m+1} = g or >= g, rest = 1 - mg: -[m log(1+g) + "
            "log(1-mg)]/(m+1) [nats].",
        ),
        # For the largest level l at which it is at most 1, 1 - exp(-l) is the chord's slope.
        _spec(
            "chord_use",
            "level alpha",
            Piecewise(
                (-log1p(-chord * chord) / ((1 - alpha) * level), chord * chord <= Rational(1, 2)),
                (alpha * level / log1p(chord), True),
            ),
            "drafter.margin.chord",
            "Factor alpha < 1: at most 1 for a level that chord_radius_margin may have.",
            lets={"chord": -expm1(-level)},
        ),
        _spec(
            "chord_radius_margin",
            "gap level",
            Piecewise(
                (-log1p(-gap * chord), gap * chord <= Rational(1, 2)),
                (-log(kept + gap * exp(-level)), True),
            ),
            "drafter.margin.chord",
            "Factor alpha, q1 - q2 = g or >= g, and a level that it allows [nats].",
            lets={"chord": -expm1(-level), "kept": 1 - gap},
        ),
        _spec(
            "pair_tilt",
            "gap alpha",
            (log1p(gap) - log1p(-gap) - log(alpha)) / (1 + alpha),
            "drafter.margin.multiplicative",
            "l = log(q1/(alpha q2))/(1 + alpha) of the draft ((1+g)/2, (1-g)/2).",
        ),
        # psi = q1 exp(-l) (surplus(l) + surplus(-alpha l)/alpha) in one form, and 1 - psi
        # in the other: psi is at most .75 up to l = 2, and at least .29 from there on
        _spec(
            "pair_radius_margin",
            "gap tilt alpha",
            Piecewise(
                (
                    -log1p(-top * exp(-tilt) * (surplus(tilt) + surplus(-alpha * tilt) / alpha)),
                    tilt <= 2,
                ),
                (-log(top * exp(-tilt) + (1 - gap) / 2 * exp(alpha * tilt)), True),
            ),
            "drafter.margin.multiplicative eval.surplus",
            "Factor alpha, the draft ((1+g)/2, (1-g)/2) and its pair_tilt [nats].",
            lets={"top": (1 + gap) / 2},
        ),
    )
}
