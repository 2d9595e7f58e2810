"""What is taken off every margin's bound for the roundings of its evaluation, and why that is
enough.

Example: float64 evaluates T_2 at the largest margin below 1 as the difference of 36.7 and 35.6; if
both logarithms are off by 4 ulp, each its own way, and every other operation by u = 2^-53, the
result is 566 u too large: more than half of the 1,024 u that are taken off."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import log

from derivations.kernels.evaluation import MARGIN_SLACK
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["MARGIN_ROUNDING", "excess_phi", "lowered", "lowered_margin"]

X, Y, Z, H, K, L, C = sympy.symbols("x y z h k l c", positive=True)
G, T, M, S, R = sympy.symbols("g t m s r", nonnegative=True)
U, E = sympy.symbols("u e", positive=True)


def lowered_margin(numbers: Any, computed: Any) -> Any:
    """The computed bound less 2^-43 of it."""
    return lowered(computed, int(1 / MARGIN_SLACK))


def lowered(computed: Any, parts: int) -> Any:
    """Less one of so many parts."""
    return computed * (parts - 1) / parts


def excess_phi(excess: Any) -> Any:
    """phi(u) = (1+u) log(1+u) - u."""
    return (1 + excess) * log(1 + excess) - excess


A = sympy.Symbol("a", positive=True)
_LOST = 1 - (1 + 1 / A) * sympy.exp(-L) + sympy.exp(-(1 + A) * L) / A
_STRICT = (excess_phi(X) + excess_phi(-X)) / 2
_SLOPE = 2 * excess_phi(U) - U * log(1 + U)
_Z = (L - 1) ** 2 / (L * 3)  # with L for W, m = 2
MARGIN_ROUNDING = Derivation(
    "Roundings of a margin's bound, counted in u",
    (
        Step(
            "Sums, products, quotients and roots are within a relative u, log and log1p within "
            "8 u; a letter, a constant, and a letter times a power of two are exact.",
            how="definition",
        ),
        Step(
            "A sum of one sign keeps the larger count, a and a + r, and one for itself:",
            (X + Y) * (1 + at.a + R) - X * (1 + at.a) - Y * (1 + at.a + R),
            0,
            "nonnegative",
        ),
        Step(
            "An error of u reaches phi(u) = (1+u) log(1+u) - u at most twice, relative, for u >= "
            "0: 2 phi(u) - u log(1+u) is 0 at 0,",
            _SLOPE.subs(U, 0),
            0,
        ),
        Step("and so is its slope,", sympy.diff(_SLOPE, U).subs(U, 0), 0),
        Step("which rises.", sympy.diff(_SLOPE, U, 2), U / (1 + U) ** 2),
        Step(
            "Near u = -1 the slope log(1+u) of phi is infinite; over a step h it integrates to at "
            "most h (1 + log(1/h)), from 1 + u = 0 on:",
            sympy.diff(H * (1 - log(H)), H),
            -log(H),
        ),
        Step(
            "T_m(d) = d log W - log(1+z); errors of its parts are multiples of log(1+z) and of "
            "z/(1+z). At fixed W it is c z/(1+z) - log(1+z), c = log W (W+1)/(W-1):",
            (log(L) * (L - 1 / L) / ((L - 1) ** 2 / L)) - log(L) * (L + 1) / (L - 1),
            0,
        ),
        Step(
            "z/((1+z) log(1+z)) falls in z: the numerator of its slope is log(1+z) - z <= 0;",
            sympy.diff(Z / ((1 + Z) * log(1 + Z)), Z) * ((1 + Z) * log(1 + Z)) ** 2,
            log(1 + Z) - Z,
        ),
        Step(
            "(1+z) log(1+z)/z rises: that of its slope is z - log(1+z). So all are worst at the "
            "largest z, that of m = 2.",
            sympy.diff((1 + Z) * log(1 + Z) / Z, Z) * Z**2,
            Z - log(1 + Z),
        ),
        Step(
            "There, with e = 1/W: 1 - d = e (1+2e)/(1+e+e^2),",
            1 - (L**2 - 1) / (L**2 + L + 1),
            ((1 + 2 / L) / L) / (1 + 1 / L + 1 / L**2),
        ),
        Step("and 1 + z = W (1+e+e^2)/3.", 1 + _Z, L * (1 + 1 / L + 1 / L**2) / 3),
        Step(
            "log(1 + k t) <= k log(1+t), k = 1 + r >= 1: 0 at t = 0, and slope k/(1+t) - k/(1 + k "
            "t) is not negative. So of the reverse T_m's difference the second part is at most "
            "half of the first.",
            (1 + R) / (1 + T) - (1 + R) / (1 + (1 + R) * T),
            0,
            "nonnegative",
        ),
        Step(
            "A comparison of computed numbers may go the wrong way, next to where both ways agree. "
            "Rounding is monotone: t > fl((1+g)/2) only where t > (1+g)/2, as t is a float.",
            how="definition",
        ),
        Step(
            "Elsewhere the wrong way has the lower value, or one within 2 u. Factor: the chord and "
            "phi meet at the corner, phi is convex with phi(0) = 0, so the larger of them counts.",
            how="definition",
        ),
        Step(
            "Gate in p1 - p(m+1), additive: M phi(t/M), taken at M > 1 for M = 1, falls in M, as "
            "phi(x) - x phi'(x) = log(1 - x^2)/2 <= 0 for phi(x) = ((1+x) log(1+x) + (1-x) "
            "log(1-x))/2;",
            (excess_phi(X) + excess_phi(-X)) / 2
            - X * sympy.diff((excess_phi(X) + excess_phi(-X)) / 2, X),
            log(1 + X) / 2 + log(1 - X) / 2,
        ),
        Step(
            "with a factor a: phi(2g-1) and g (1+a) phi(c) are both phi(c) at g (1+a) = 1, rise in "
            "g, and the second is linear: within 2 u of it, it moves by 2 u.",
            (2 / (1 + at.a) - 1) - (1 - at.a) / (1 + at.a),
            0,
        ),
        Step(
            "Reverse, with a factor a = n^2, k = (1-n)/(1+n): the larger of -log(1-g^2)/2 and "
            "-log(1 - g k), as (1 - g k)^2 - (1-g^2) has the sign of g - 2k/(1+k^2),",
            (1 - G * K) ** 2 - (1 - G**2),
            G * (1 + K**2) * (G - 2 * K / (1 + K**2)),
        ),
        Step(
            "and 2k/(1+k^2) is the corner (1-a)/(1+a).",
            (2 * (1 - at.n) / (1 + at.n)) / (1 + ((1 - at.n) / (1 + at.n)) ** 2),
            (1 - at.n**2) / (1 + at.n**2),
        ),
        Step(
            "Its gate, s = 1 - n: 4g(1-g) - (1 - g s^2)^2 is positive between its roots 1/(1+a) "
            "and (1+a)/(4+s^4), where -log(1 - g s^2) is the larger,",
            4 * G * (1 - G) - (1 - G * S**2) ** 2,
            -(4 + S**4) * (G - 1 / (1 + (1 - S) ** 2)) * (G - (1 + (1 - S) ** 2) / (4 + S**4)),
        ),
        Step(
            "and above both the other is. Where the roots are within 3 u, s is small, and each "
            "value rises in g to the common one, which -log(1 - g s^2) is within 4 u of.",
            how="definition",
        ),
        Step(
            "A factor's pair: an error of l reaches h = 1 - (1 + 1/a) exp(-l) + exp(-(1+a) l)/a at "
            "most twice: 2 h - l h' is 0 at 0,",
            (2 * _LOST - L * sympy.diff(_LOST, L)).subs(L, 0),
            0,
        ),
        Step(
            "and rises: exp(l)/(1 + 1/a) times its slope is, with t = a l,",
            (sympy.diff(2 * _LOST - L * sympy.diff(_LOST, L), L) * sympy.exp(L) / (1 + 1 / A)),
            (1 - (1 + A * L) * sympy.exp(-A * L)) + L * (1 - sympy.exp(-A * L)),
        ),
        Step(
            "not negative, as exp(t) >= 1 + t. h rises in l, and in a as (1 - exp(-t))/t falls: "
            "q1 h <= (1 - exp(-2))^2 up to l = 2, q1 h >= (1 - 3 exp(-2))/2 beyond. For any l, "
            "-log(q1 exp(-l) + q2 exp(a l)) is a lower bound (claim drafter.margin.chord): there "
            "an error of l does no harm.",
            how="definition",
        ),
        Step(
            "The chord's bound holds at every margin, and is taken unless the pair's multiplier "
            "is certainly beyond the chord's end: its use, and it, are known within 64 u.",
            how="definition",
        ),
    ),
)

declare(
    Claim(
        id="kernel.margins",
        sentence="A printed margin as float64 evaluates it, less 2^-43 of it, is not above the "
        "exact one.",
        domain="margins_python, reverse_margins_python and drafter_margins_python, all margins "
        "below 1 and parameters, trees in p1 - p(m+1) of m <= 2^20; the multiplier of a factor's "
        "pair as printed, too; bounds of at least 2^-1000",
        theory="F (margins)",
        relation="<=",
        formula=lowered_margin,
        derivation=MARGIN_ROUNDING,
        mutants=(
            Mutant("half of it", lambda n, computed: lowered(computed, int(2 / MARGIN_SLACK))),
            Mutant("nothing taken off", lambda n, computed: computed),
            Mutant("added", lambda n, computed: lowered(computed, -int(1 / MARGIN_SLACK))),
        ),
        min_methods=3,
    )
)
