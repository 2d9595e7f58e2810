"""The evaluation forms of radii and reverse certificates: accurate near ties, where the closed
forms cancel, and near one-hot laws. The theorems: ``derivations.formulas.projections``,
``drafter``, ``reverse``."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Abs, Integer, Max, Min, Piecewise, Rational, exp, log, sqrt
from sympy.codegen.cfunctions import expm1, log1p

from derivations.kernels.evaluation import SECOND_ORDER, UNIT
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = [
    "LARGEST_TILT",
    "RADIUS_LOWER",
    "SEARCHED_RADIUS_LOWER",
    "SURPLUS",
    "SURPLUS_FORM",
    "SURPLUS_TERMS",
    "TOPICS",
    "surplus_series",
]

LARGEST_TILT = (
    640  # a multiplier; where all probabilities are 2^-900 or more, 624 and less are the best ones
)
SURPLUS_TERMS = 11  # with |d| <= 1/8 the first term left out is below 2^-57 of the sum
deviation, level, rest, size, surplus_sum, lost = sympy.symbols(
    "deviation level rest size surplus_sum lost", real=True
)
top, second, slack, alpha, tau, tilt, root, mean = sympy.symbols(
    "top second slack alpha tau tilt root mean", real=True
)
change, log_total, scaled, radius, num_tokens = sympy.symbols(
    "change log_total scaled radius num_tokens", real=True
)
fall, rise, gain, kept, reach, error = sympy.symbols("fall rise gain kept reach error", real=True)
surplus = sympy.Function("surplus", real=True)  # the kernel below, called by the others


def surplus_series(d: Any) -> Any:
    """exp(d) - 1 - d by its Taylor series in Horner form: d^2/2 (1 + d/3 (1 + d/4 (...)))."""
    value = d * 0 + 1
    for term in range(SURPLUS_TERMS, 2, -1):
        value = 1 + d / term * value
    return d * d / 2 * value


def _minus_log(lost_mass: sympy.Expr, kept_mass: sympy.Expr) -> sympy.Expr:
    """-log(1 - lost), by the kept mass itself where little is kept."""
    return Piecewise((-log1p(-lost_mass), lost_mass <= Rational(1, 2)), (-log(kept_mass), True))


_spec = kernel_family(
    "derivations.kernels.drafter_kernels",
    "probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself",
    ("numpy", "torch", "triton"),
)


def _clipped(multiplier: sympy.Expr) -> sympy.Expr:
    return Max(0, Min(LARGEST_TILT, multiplier, evaluate=False), evaluate=False)


_ROOT = slack * rest + sqrt(
    slack * slack * rest * rest + 4 * top * second * (1 - slack) * (1 + slack)
)
SURPLUS = _spec(
    "surplus",
    "deviation",
    Piecewise(
        (surplus_series(deviation), Abs(deviation) <= Rational(1, 8)),
        (expm1(deviation) - deviation, True),
    ),
    "eval.surplus",
    "exp(d) - 1 - d >= 0, to a few units in the last place also near d = 0.",
)
RADIUS_LOWER = _spec(
    "radius_lower",
    "gain kept reach size num_tokens",
    Max(0, radius - error, evaluate=False),
    "bound.radius",
    "A bound below the exact radius, gain - log(kept) less all rounding; reach bounds the sum of "
    "size multipliers [nats].",
    lets={
        "radius": gain - log(kept),
        "error": SECOND_ORDER
        * UNIT
        * (1600 + 2 * num_tokens + (size + 4) * reach + 12 * Abs(log(kept))),
    },
)
SEARCHED_RADIUS_LOWER = _spec(
    "searched_radius_lower",
    "radius reach num_tokens",
    Max(0, radius - error, evaluate=False),
    "bound.radius.entropy",
    "The same for the entropy rule's search; reach bounds the sizes of the logarithms that enter "
    "[nats].",
    lets={"error": SECOND_ORDER * UNIT * (4000 + 4 * num_tokens + 64 * reach)},
)
TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "drafter": (
        SURPLUS,
        RADIUS_LOWER,
        SEARCHED_RADIUS_LOWER,
        _spec(
            "tilted_mass",
            "top second rest fall rise",
            top * exp(-fall) + second * exp(rise) + rest,
            "drafter.dual bound.radius",
            "E_q exp f for a multiplier that lets y fall and j rise: a sum of positive terms.",
        ),
        _spec(
            "additive_tilt",
            "top second rest slack",
            _clipped(log(scaled) - log(2 * (1 - slack) * second)),
            "drafter.additive drafter.dual",
            "The multiplier log u of the additive rule, as near as float64 has it.",
            lets={"scaled": _ROOT},
        ),
        _spec(
            "multiplicative_tilt",
            "top second alpha",
            _clipped((log(top) - log(alpha * second)) / (1 + alpha)),
            "drafter.multiplicative drafter.dual",
            "The multiplier of the multiplicative rule.",
        ),
        _spec(
            "absolute_tilt",
            "top rest tau",
            _clipped((log(top) - log(tau)) + (log(1 - tau) - log(rest))),
            "drafter.absolute drafter.dual",
            "The multiplier of an absolute threshold.",
        ),
        _spec(
            "pool_radius",
            "surplus_sum level rest size",
            _minus_log(lost, rest + size * level),
            "projection.lift projection.sink eval.surplus drafter.tree drafter.top reverse.single "
            "reverse.tree",
            "-log(1 - sum_S q + |S| g) from the sum of surplus(log(q/g)) over the pool S [nats].",
            lets={"lost": level * surplus_sum},
        ),
        _spec(
            "strict_radius",
            "top second rest",
            Piecewise(
                (sympy.oo, second <= 0),
                (_minus_log(lost, rest + 2 * sqrt(top) * sqrt(second)), True),
            ),
            "drafter.strict eval.surplus",
            "-log(1 - (sqrt q1 - sqrt q2)^2); +inf at q2 = 0 [nats].",
            lets={"root": (top - second) / (sqrt(top) + sqrt(second)), "lost": root * root},
        ),
        _spec(
            "additive_radius",
            "top second rest slack",
            Piecewise(
                (sympy.oo, second <= 0),
                (
                    second * exp(tilt - log_total) * surplus(log_total - tilt)
                    + top * exp(-tilt - log_total) * surplus(log_total + tilt)
                    + rest * exp(-log_total) * surplus(log_total),
                    True,
                ),
            ),
            "drafter.additive eval.surplus",
            "Additive slack t < 1, as the sum of p (d + exp(-d) - 1) over y, j and the rest "
            "[nats].",
            lets={
                "scaled": _ROOT,
                "tilt": log(scaled) - log(2 * (1 - slack) * second),
                "change": second * expm1(tilt) + top * expm1(-tilt),
                "log_total": Piecewise(
                    (log1p(change), change >= -Rational(1, 2)),
                    (log(top * exp(-tilt) + second * exp(tilt) + rest), True),
                ),
            },
        ),
        _spec(
            "multiplicative_radius",
            "top second rest alpha",
            Piecewise(
                (sympy.oo, second <= 0), (_minus_log(lost, rest + (1 + 1 / alpha) * mean), True)
            ),
            "drafter.multiplicative eval.surplus",
            "Factor alpha: the weighted geometric mean's form, its loss as a sum of surpluses "
            "[nats].",
            lets={
                "tilt": (log(top) - log(alpha * second)) / (1 + alpha),
                "mean": top * exp(-tilt),
                "lost": mean * (surplus(tilt) + surplus(-alpha * tilt) / alpha),
            },
        ),
        _spec(
            "absolute_radius",
            "top rest tau",
            Piecewise(
                (Integer(0), top <= tau),
                (-log(rest), tau <= 0),
                (
                    tau * surplus(log(top) - log(tau))
                    + (1 - tau) * surplus(log(rest) - log(1 - tau)),
                    True,
                ),
            ),
            "drafter.absolute eval.surplus",
            "d_bin(tau || q_y) for q_y > tau, else 0 [nats].",
        ),
    )
}


def _surplus_formula(numbers: Any, d: Any) -> Any:
    """The printed form near 0, and the direct one elsewhere."""
    return surplus_series(d) if abs(d) * 8 <= 1 else numbers.exp(d) - 1 - d


def _two_terms(numbers: Any, d: Any) -> Any:
    return d * d / 2 * (1 + d / 3)


D, LEVEL = sympy.symbols("d g", positive=True)
A, B, ALPHA = sympy.symbols("a b alpha", positive=True)
Q1, Q2, G2 = sympy.symbols("q_1 q_2 g_2", positive=True)
SURPLUS_FORM = Derivation(
    "A pool's loss as a sum of terms that are never negative",
    (
        Step(
            "sum_S q - |S| g = g sum_S (exp(d_i) - 1) with d_i = log(q_i/g);",
            Q1 + Q2 - 2 * LEVEL,
            LEVEL * ((exp(log(Q1 / LEVEL)) - 1) + (exp(log(Q2 / LEVEL)) - 1)),
        ),
        Step(
            "g is the geometric mean, so sum d_i = 0 and each term may be lowered by its d_i; d = "
            "log w - log g, for n members whose logarithms sum to l:",
            at.l - at.n * (at.l / at.n),
            0,
        ),
        Step(
            "exp(d) - 1 - d has derivative exp(d) - 1, negative below 0 and positive above, and "
            "vanishes at 0: it is never negative.",
            sympy.diff(exp(D) - 1 - D, D),
            exp(D) - 1,
        ),
        Step(
            "The multiplicative rule: with q_y = mu e^l and q_j = mu e^(-alpha l)/alpha, q_y + "
            "q_j - (1 + 1/alpha) mu is mu times surplus(l) + surplus(-alpha l)/alpha.",
            G2 * exp(A) + G2 * exp(-ALPHA * A) / ALPHA - (1 + 1 / ALPHA) * G2,
            G2 * ((exp(A) - 1 - A) + (exp(-ALPHA * A) - 1 + ALPHA * A) / ALPHA),
        ),
        Step(
            "Its pair: (sqrt a - sqrt b) = (a - b)/(sqrt a + sqrt b).",
            (A - B) / (sqrt(A) + sqrt(B)),
            sqrt(A) - sqrt(B),
        ),
        Step(
            "The series: the N-th derivative of exp is 1 at 0, so the Taylor terms are d^n/n!; "
            "the sum of the printed ones up to d^4:",
            sympy.expand(D**2 / 2 * (1 + D / 3 * (1 + D / 4))),
            D**2 / 2 + D**3 / 6 + D**4 / 24,
        ),
    ),
)
declare(
    Claim(
        id="eval.surplus",
        sentence="A pool's loss sum_S q - |S| g is g sum_S surplus(log(q/g)), surplus(d) = exp(d) "
        "- 1 - d >= 0; the "
        "printed series differs from it by less than 2^-54 of itself for |d| <= 1/8.",
        domain="positive probabilities, g their geometric mean",
        theory="C, D (evaluation)",
        relation="=",
        formula=_surplus_formula,
        derivation=SURPLUS_FORM,
        mutants=(Mutant("two terms of the series", _two_terms),),
    )
)
