"""Bounds that survive rounding: an upper bound of the divergence and a lower bound of the certificate, from the assumed
error model. This module knows the model's constants and no kernel's order of summation."""

from __future__ import annotations

import sympy
from sympy import Rational, exp, log, sqrt

from derivations.claim import Claim, Derivation, Mutant, Step, declare
from derivations.evaluation import CERTIFICATE_LOWER, KL_UPPER
from derivations.rewrites import as_formula, mutate

__all__ = ["CERTIFICATE_BELOW", "KL_ABOVE"]

A, B, ROOT, CONSTANT = sympy.symbols("a b x k", positive=True)
D, E = sympy.symbols("d e", real=True)
P, Q, W, LEVEL, RHO = sympy.symbols("p q w c rho", positive=True)
SLACK = sympy.Symbol("r", nonnegative=True)
_POSITIVE_ROOT = (B * sqrt(2) + sqrt(2 * B**2 + 4 * (1 - A) * CONSTANT)) / (2 * (1 - A))

KL_ABOVE = Derivation(
    "An upper bound of KL from its computed value",
    (
        Step(
            "An error e in d = log(p/q) changes d + exp(-d) - 1 by e (1 - exp(-d)) + exp(-d)(exp(-e) - 1 + e).",
            ((D + E) + exp(-(D + E)) - 1) - (D + exp(-D) - 1),
            E * (1 - exp(-D)) + exp(-D) * (exp(-E) - 1 + E),
        ),
        Step(
            "Weighted by p: p (1 - exp(-d)) = p - q, so the first part sums to at most eta sum |p - q|",
            P * (1 - Q / P),
            P - Q,
        ),
        Step("and sum |p - q| <= sqrt(2 KL) (Pinsker).", how="prose"),
        Step(
            "p exp(-d) = q, and exp(-e) - 1 + e <= e^2 for |e| <= 1, so the second part sums to at most eta^2.",
            how="prose",
        ),
        Step(
            "Errors of p and of the sum are relative: a KL; rounding of the terms adds 28 u to eta in b.", how="prose"
        ),
        Step(
            "So KL <= K + a KL + b sqrt(2 KL) + eta^2. In x = sqrt KL: (1 - a) x^2 - b sqrt2 x - k <= 0, k = K + "
            "eta^2.",
            how="prose",
        ),
        Step(
            "The parabola's positive root bounds x.",
            sympy.expand((1 - A) * _POSITIVE_ROOT**2 - B * sqrt(2) * _POSITIVE_ROOT - CONSTANT),
            0,
        ),
        Step(
            "Its square is the bound; TINY covers weights that underflow, 16 u the roundings of this formula.",
            how="prose",
        ),
    ),
)
CERTIFICATE_BELOW = Derivation(
    "A lower bound of the certificate from float64 weights",
    (
        Step(
            "Let w be the computed weights, exact weights W = w (1 + x), |x| <= rho, c' a number >= the mean of "
            "w. Claim "
            "single.dual (weights w, target W): S C >= sum W log(w/c') = sum w log(w/c') + sum x w log(w/c').",
            how="prose",
        ),
        Step(
            "The kernels sum c' phi(w/c' - 1) = w log(w/c') - w + c'.",
            LEVEL * ((W / LEVEL) * log(W / LEVEL) - (W / LEVEL - 1)),
            W * log(W / LEVEL) - W + LEVEL,
        ),
        Step(
            "Their surplus is n c' - sum w, at most the raised mean's slack (n + 6) u times the mass: subtracted as "
            "(2 n + 40) u mass, which also covers the rounding of each term.",
            how="prose",
        ),
        Step(
            "The perturbation is at most rho sum |w log(w/c')| = rho (V + 2 N), V the signed sum and N its "
            "negative part.",
            how="prose",
        ),
        Step("x log(c'/x) is stationary at x = c'/e,", sympy.diff(W * log(LEVEL / W), W).subs(W, LEVEL / sympy.E), 0),
        Step(
            "with value c'/e and second derivative -1/x < 0: each negative term is at most c'/e.",
            (W * log(LEVEL / W)).subs(W, LEVEL / sympy.E),
            LEVEL / sympy.E,
        ),
        Step(
            "So 2 N <= 2 n c'/e < mass, since 2/e < 3/4; and rho (V + 2N) <= rho V + rho mass.",
            Rational(3, 4) - 2 / Rational(271, 100),
            0,
            "nonnegative",
        ),
        Step("Dividing by a normaliser that is too small by at most its relative error gives the bound.", how="prose"),
    ),
)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, real=True)


declare(
    Claim(
        id="bound.kl_upper",
        sentence="KL <= ((b sqrt2 + sqrt(2 b^2 + 4 (1-a)(K + eta^2)))/(2 (1-a)))^2 whenever the computed K satisfies "
        "|K - KL| <= a KL + b sqrt(2 KL) + eta^2, b = eta + 28 u.",
        domain="K >= 0, 0 <= a < 1, 0 <= eta <= 1",
        theory="F (KL_up)",
        relation=">=",
        formula=as_formula(KL_UPPER),
        derivation=KL_ABOVE,
        mutants=(
            Mutant(
                "(1-a) left out under the root",
                as_formula(KL_UPPER, lambda form: form.subs(_symbol("relative_error"), 0)),
            ),
            Mutant(
                "eta^2 left out, b halved",
                as_formula(KL_UPPER, mutate(_symbol("log_ratio_error"), _symbol("log_ratio_error") / 2)),
            ),
        ),
    )
)
declare(
    Claim(
        id="bound.certificate_lower",
        sentence="The certificate is at least the dual value at the computed weights, less the stated slacks.",
        domain="weights within a relative error rho <= 1/64 of the exact ones; any pool with w >= c' off the "
        "competitor",
        theory="F (C_low) with A2",
        relation="<=",
        formula=as_formula(CERTIFICATE_LOWER),
        derivation=CERTIFICATE_BELOW,
        mutants=(
            Mutant("no slack for the weights", as_formula(CERTIFICATE_LOWER, mutate(_symbol("weight_error"), 0))),
            Mutant(
                "slack with the wrong sign",
                as_formula(CERTIFICATE_LOWER, mutate(_symbol("weight_error"), -_symbol("weight_error"))),
            ),
        ),
    )
)
