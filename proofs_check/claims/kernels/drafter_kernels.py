"""Checks of the evaluation forms of radii: the series against exact rationals, signs by enclosure,
and the loss of random pools both ways."""

from __future__ import annotations

import mpmath
import sympy
from sympy import Rational, factorial

from derivations.kernels.drafter_kernels import SURPLUS_FORM, SURPLUS_TERMS
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import generate_targets
from proofs_check.registry import Effort


@proved("eval.surplus", SURPLUS_FORM)
def prove_series(formula: Formula, effort: Effort) -> Identities:
    """Below 1/8 the printed form is the Taylor polynomial, exactly; beyond, exp(d) - 1 - d."""
    for d in (Rational(1, 16), Rational(-1, 9), Rational(1, 8)):
        taylor = sum(d**n / factorial(n) for n in range(2, SURPLUS_TERMS + 1))
        yield f"series at {d}", formula(sympy, d), taylor
    yield "direct form at 1", formula(sympy, Rational(1)), sympy.E - 2


@tallied(
    "eval.surplus",
    method="search",
    confirm=mpmath.mpf(2) ** -54,
    refute=mpmath.mpf(2) ** -50,
    more=30,
    told="relative",
)
def search_surplus(formula: Formula, effort: Effort) -> Cases:
    """Relative distance from exp(d) - 1 - d down to |d| = 1e-20, and the loss of whole pools."""
    sizes = [mpmath.mpf(k) / 80 for k in range(1, 21)] + [
        mpmath.mpf(10) ** -k for k in range(2, 21)
    ]
    for size in sizes:
        for d in (size, -size):
            yield (
                f"d={mpmath.nstr(d, 6)}",
                formula(MP, d) / (mpmath.expm1(d) - d),
                MP.mpf(1),
                MP.mpf(1),
            )
    for target in generate_targets(effort.seed, effort.per_family):
        probs = [to_mp(p) for p in target.target_probs if p > 0]
        level = mpmath.exp(mpmath.fsum(mpmath.log(p) for p in probs) / len(probs))
        loss = mpmath.fsum(probs) - len(probs) * level
        value = level * mpmath.fsum(formula(MP, mpmath.log(p / level)) for p in probs)
        if loss > mpmath.mpf(10) ** -40:
            yield f"pool {target}", value / loss, MP.mpf(1), MP.mpf(1)
