"""The evaluation forms of the margin-only drafter-side certificates, for scalars outside the
kernels: accurate from the smallest margins up. The theorems:
``derivations.margins.projection_margins``, ``radius_margins``."""

from __future__ import annotations

from dataclasses import replace

import sympy
from sympy import Max, Piecewise, Rational, exp, log
from sympy.codegen.cfunctions import log1p

from derivations.kernels.drafter_kernels import SURPLUS
from derivations.kernels.margin_kernels import EXCESS_COST
from derivations.kernels.reverse_margin_kernels import lag
from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["TOPICS"]

gap, slack, alpha, width = sympy.symbols("gap slack alpha width", real=True)
opened, tilt, top, fall = sympy.symbols("opened tilt top fall", real=True)
second, rest, fallen = sympy.symbols("second rest fallen", real=True)
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
        # psi = q1 exp(-l) (surplus(l) + surplus(-alpha l)/alpha), l = log(q1/(alpha q2))/(1 +
        # alpha); far out, exp(-l) surplus(l) = 1 - exp(-l) (1 + l)
        _spec(
            "multiplicative_radius_margin",
            "top second rest tilt alpha",
            Piecewise(
                (-log1p(-fallen), fallen <= Rational(1, 2)),
                (-log(rest + top * exp(-tilt) + second * exp(alpha * tilt)), True),
            ),
            "drafter.margin.multiplicative eval.surplus",
            "Factor alpha, a draft of q1 = top, q2 = second, others = rest and that multiplier "
            "[nats].",
            lets={
                "fall": Piecewise(
                    (exp(-tilt) * surplus(tilt), tilt <= 8), (1 - exp(-tilt) * (1 + tilt), True)
                ),
                "fallen": top * (fall + exp(-tilt) * surplus(-alpha * tilt) / alpha),
            },
        ),
    )
}
