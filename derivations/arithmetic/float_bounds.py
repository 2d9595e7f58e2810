"""Bounds that survive rounding: an upper bound of KL and a lower bound of the certificate, from an
error model: every operation within u = 2^-53, exp and log within 8 u.

Example: a computed KL of .01 with relative errors of 1e-13 gives an upper bound that is larger by
1.6e-14; what is certified is that KL, so raised, lies below the certificate, so lowered."""

from __future__ import annotations

import sympy
from sympy import Rational, exp, log, sqrt

from derivations.arithmetic.rewrites import as_formula, mutate, symbol
from derivations.kernels.evaluation import CERTIFICATE_LOWER, KL_UPPER, UNIT
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["CERTIFICATE_BELOW", "KL_ABOVE", "MASS_LOSS", "NEGATIVE_PART", "SUM_LOSS"]

A, B, ROOT, CONSTANT = sympy.symbols("a b x k", positive=True)
D, E, X = sympy.symbols("d e x", real=True)
E_SUM = sympy.Symbol("e", positive=True)
P, Q, W, LEVEL, RHO = sympy.symbols("p q w c rho", positive=True)
SLACK = sympy.Symbol("r", nonnegative=True)
_POSITIVE_ROOT = (B * sqrt(2) + sqrt(2 * B**2 + 4 * (1 - A) * CONSTANT)) / (2 * (1 - A))

KL_ABOVE = Derivation(
    "An upper bound of KL from its computed value",
    (
        Step(
            "An error e in d = log(p/q) changes d + exp(-d) - 1 by e (1 - exp(-d)) + "
            "exp(-d)(exp(-e) - 1 + e).",
            ((D + E) + exp(-(D + E)) - 1) - (D + exp(-D) - 1),
            E * (1 - exp(-D)) + exp(-D) * (exp(-E) - 1 + E),
        ),
        Step(
            "Weighted by p: p (1 - exp(-d)) = p - q, so the first part sums to at most eta sum |p "
            "- q|",
            P * (1 - Q / P),
            P - Q,
        ),
        Step(
            "and sum |p - q| <= sqrt(2 KL) (Pinsker): merge the tokens with p > q into one, x "
            "against y (claim lemma.transport); then sum |p - q| = 2 (x - y), and d/dy [d_bin(x "
            "|| y) - 2 (x-y)^2] is",
            sympy.diff(P * log(P / Q) + (1 - P) * log((1 - P) / (1 - Q)) - 2 * (P - Q) ** 2, Q),
            (Q - P) * (1 - 2 * Q) ** 2 / (Q * (1 - Q)),
        ),
        Step(
            "of the sign of y - x: the least value is at y = x, 0.",
            (P * log(P / Q) + (1 - P) * log((1 - P) / (1 - Q)) - 2 * (P - Q) ** 2).subs(Q, P),
            0,
        ),
        Step(
            "p exp(-d) = q: the second part is at most q (exp(-e) - 1 + e),",
            P * exp(-log(P / Q)),
            Q,
        ),
        Step(
            "and exp(-e) - 1 + e <= e^2 for |e| <= 1 (enclosed): its value and slope are 0 at 0, "
            "and its curvature",
            sympy.diff(E**2 - exp(-E) + 1 - E, E, 2),
            2 - exp(-E),
        ),
        Step(
            "Errors of p and of the sum are relative: a KL; rounding of the terms adds 28 u to "
            "eta in b. So KL <= K + a KL + b sqrt(2 KL) + eta^2. In x = sqrt KL: (1 - a) x^2 - b "
            "sqrt2 x - k <= 0, k = K + eta^2.",
            ROOT**2 - CONSTANT - A * ROOT**2 - B * sqrt(2 * ROOT**2),
            (1 - A) * ROOT**2 - B * sqrt(2) * ROOT - CONSTANT,
        ),
        Step(
            "The parabola's positive root bounds x.",
            sympy.expand((1 - A) * _POSITIVE_ROOT**2 - B * sqrt(2) * _POSITIVE_ROOT - CONSTANT),
            0,
        ),
        Step(
            "Its square is the bound; TINY covers weights that underflow, and the factor 1 + 16 u "
            "the roundings "
            "of this formula: fewer than 16 operations, each within u, with room for products.",
            (1 + 16 * UNIT) - (1 + UNIT) ** 15,
            0,
            "nonnegative",
        ),
    ),
)
SIZE, MASS, SUM, UNITS = sympy.symbols("n m V u", positive=True)
# What the computed V = fl(sum c' phi(w/c' - 1)) and m = fl(sum w) allow to say of n weights:
# sum w log(w/c') >= V (1 - SUM_LOSS) - m MASS_LOSS, and 2 N <= m NEGATIVE_PART, N the sum of the
# negative terms.
SUM_LOSS = (SIZE + 14) * UNIT
MASS_LOSS = (2 * SIZE + 34) * UNIT
NEGATIVE_PART = Rational(3, 4) * (1 + (2 * SIZE + 16) * UNIT)
CERTIFICATE_BELOW = Derivation(
    "A lower bound of the certificate from float64 weights",
    (
        Step(
            "Let w be the computed weights, W = w (1 + x) the exact ones, |x| <= rho, c' a number "
            ">= the mean of w. "
            "By claim single.dual (weights w, target W) S C >= sum W log(w/c'); token by token",
            W * (1 + X) * log(W / LEVEL),
            W * log(W / LEVEL) + X * (W * log(W / LEVEL)),
        ),
        Step(
            "The kernels sum c' phi(w/c' - 1) = w log(w/c') - w + c'.",
            LEVEL * ((W / LEVEL) * log(W / LEVEL) - (W / LEVEL - 1)),
            W * log(W / LEVEL) - W + LEVEL,
        ),
        Step(
            "A term's rounding is 12 u |c' (1+x) log(1+x)| at most, x = w/c' - 1; that is c' phi "
            "+ (w - c'), so over the pool 12 u V + 12 u sum |w - c'|, and sum |w - c'| <= sum w + "
            "n c': 24 u m.",
            LEVEL * (1 + X) * log(1 + X),
            LEVEL * ((1 + X) * log(1 + X) - X) + LEVEL * X,
        ),
        Step(
            "Summing n terms >= 0 adds (n-1) u V: in all (n + 14) u V with room for the products "
            "of errors.",
            (12 + (SIZE - 1) + 3) * UNITS,
            (SIZE + 14) * UNITS,
        ),
        Step(
            "The surplus n c' - sum w is the raised mean's (n + 6) u and m's own (n - 1) u: (2n + "
            "10) u m, products included; with the 24 u m it makes (2n + 34) u m.",
            ((SIZE + 6) + (SIZE - 1) + 5 + 24) * UNITS,
            (2 * SIZE + 34) * UNITS,
        ),
        Step(
            "The perturbation sum |x| |w log(w/c')| is at most rho (V' + 2 N), V' the signed sum "
            "and N its negative part: a term of either sign, t = t_+ - t_-, has |t| = t + 2 t_-.",
            (SUM - MASS) + 2 * MASS,
            SUM + MASS,
        ),
        Step(
            "x log(c'/x) is stationary at x = c'/e,",
            sympy.diff(W * log(LEVEL / W), W).subs(W, LEVEL / sympy.E),
            0,
        ),
        Step(
            "with value c'/e and second derivative -1/x < 0: each negative term is at most c'/e.",
            (W * log(LEVEL / W)).subs(W, LEVEL / sympy.E),
            LEVEL / sympy.E,
        ),
        Step(
            "So 2 N <= 2 n c'/e <= 3/4 n c', since 2/e < 3/4.",
            Rational(3, 4) - 2 / Rational(271, 100),
            0,
            "nonnegative",
        ),
        Step(
            "S C >= (1 - rho) V' - 2 rho N, and V' >= V (1 - (n+14) u) - m (2n+34) u. The printed "
            "bound takes off (n + 16) u + rho of V: less than both together by",
            (1 - (SIZE + 14) * UNITS) * (1 - RHO) - (1 - RHO - (SIZE + 16) * UNITS),
            2 * UNITS + RHO * (SIZE + 14) * UNITS,
        ),
        Step(
            "and (2n + 40) u + rho of m: more than what may be lost by",
            (2 * SIZE + 40) * UNITS
            + RHO
            - (2 * SIZE + 34) * UNITS * (1 - RHO)
            - Rational(3, 4) * RHO * (1 + (2 * SIZE + 16) * UNITS),
            6 * UNITS
            + RHO / 4
            + RHO * UNITS * ((2 * SIZE + 34) - Rational(3, 4) * (2 * SIZE + 16)),
        ),
        Step(
            "Dividing by the computed S: the exact one is at most S (1 + e); (1 - k e - 4 u)(1 + "
            "e) <= 1, k = 65/64.",
            1 - (1 - Rational(65, 64) * E_SUM - 4 * UNITS) * (1 + E_SUM),
            E_SUM / 64 + Rational(65, 64) * E_SUM**2 + 4 * UNITS * (1 + E_SUM),
        ),
    ),
)


declare(
    Claim(
        id="bound.kl_upper",
        sentence="KL <= ((b sqrt2 + sqrt(2 b^2 + 4 (1-a)(K + eta^2)))/(2 (1-a)))^2 whenever the "
        "computed K satisfies |K - KL| <= a KL + b sqrt(2 KL) + eta^2, b = eta + 28 u.",
        domain="K >= 0, 0 <= a < 1, 0 <= eta <= 1",
        theory="F (KL_up)",
        relation=">=",
        formula=as_formula(KL_UPPER),
        derivation=KL_ABOVE,
        mutants=(
            Mutant(
                "(1-a) left out under the root",
                as_formula(KL_UPPER, lambda form: form.subs(symbol("relative_error"), 0)),
            ),
            Mutant(
                "eta^2 left out, b halved",
                as_formula(
                    KL_UPPER, mutate(symbol("log_ratio_error"), symbol("log_ratio_error") / 2)
                ),
            ),
        ),
    )
)
declare(
    Claim(
        id="bound.certificate_lower",
        sentence="The certificate is at least the dual value at the computed weights, less the "
        "stated slacks.",
        domain="weights within a relative error rho <= 1/64 of the exact ones; any pool with w >= "
        "c' off the competitor",
        theory="F (C_low) with A2",
        relation="<=",
        formula=as_formula(CERTIFICATE_LOWER),
        derivation=CERTIFICATE_BELOW,
        mutants=(
            Mutant(
                "no slack for the weights",
                as_formula(CERTIFICATE_LOWER, mutate(symbol("weight_error"), 0)),
            ),
            Mutant(
                "slack with the wrong sign",
                as_formula(
                    CERTIFICATE_LOWER, mutate(symbol("weight_error"), -symbol("weight_error"))
                ),
            ),
        ),
    )
)
