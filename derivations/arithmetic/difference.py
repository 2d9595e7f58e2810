"""KL(p || q) from sums of unnormalised weights: E_p[z - y] less the difference of the logarithms of
both sums, gaps taken to each row's maximum. One pass over the logits serves it, but it cancels
where KL is small: of two logarithms near 11 (a vocabulary of 60,000) and a KL of 1e-6, seven digits
are lost."""

from __future__ import annotations

import sympy
from sympy import exp, log

from derivations.arithmetic.rewrites import as_formula
from derivations.kernels.evaluation import DIFFERENCE
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["DIFFERENCE_OF_SUMS"]

GAP, OTHER_GAP = sympy.symbols("g h", nonpositive=True)
SUM, OTHER_SUM = sympy.symbols("S T", positive=True)

DIFFERENCE_OF_SUMS = Derivation(
    "KL from one pass over unnormalised weights",
    (
        Step(
            "p = exp(g)/S and q = exp(h)/T with g = z - max z, h = y - max y, so log(p/q) = (g - "
            "h) - (log S - log T);",
            sympy.expand_log(
                log(exp(GAP)) - log(SUM) - log(exp(OTHER_GAP)) + log(OTHER_SUM), force=True
            ),
            (GAP - OTHER_GAP) - (log(SUM) - log(OTHER_SUM)),
        ),
        Step(
            "averaging over p leaves the second bracket as it is, because p sums to 1.",
            at.x * at.f + (1 - at.x) * at.f,
            at.f,
        ),
    ),
)

declare(
    Claim(
        id="eval.difference",
        sentence="KL(target || draft) = E_p[(z - max z) - (y - max y)] - (log S - log T), S and T "
        "the sums of weights.",
        domain="finite logits wherever p > 0 (masked target tokens contribute nothing)",
        theory="F (plain sum)",
        relation="=",
        formula=as_formula(DIFFERENCE),
        derivation=DIFFERENCE_OF_SUMS,
        mutants=(
            Mutant(
                "the normalisers exchanged",
                as_formula(
                    DIFFERENCE, lambda form: 2 * sympy.Symbol("cross_gap", real=True) - form
                ),
            ),
        ),
    )
)
