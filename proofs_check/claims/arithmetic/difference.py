"""Checks of the one-pass form of KL: SymPy on three tokens, and a search against the definition at
high precision."""

from __future__ import annotations

from typing import Any

import mpmath
import sympy
from sympy import exp, log, symbols

from derivations.arithmetic.difference import DIFFERENCE_OF_SUMS
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check


@check("eval.difference", method="steps")
def prove_difference_form(formula: Formula, effort: Effort) -> Evidence:
    depths = [sympy.S.Zero, *symbols("g_2 g_3", positive=True)]
    other_depths = [symbols("h_1", positive=True), sympy.S.Zero, symbols("h_3", positive=True)]
    total, other_total = (sum(exp(-depth) for depth in side) for side in (depths, other_depths))
    probs = [exp(-depth) / total for depth in depths]
    cross = sum(
        p * (other - own) for p, own, other in zip(probs, depths, other_depths, strict=True)
    )
    ratios = [
        (-own - log(total)) - (-other - log(other_total))
        for own, other in zip(depths, other_depths, strict=True)
    ]
    direct = sum(p * ratio for p, ratio in zip(probs, ratios, strict=True))
    samples: list[Any] = random_rationals(
        [depth for depth in (*depths, *other_depths) if depth != 0]
    )
    identity = ("three tokens", formula(sympy, cross, log(total), log(other_total)), direct)
    return prove_identities(DIFFERENCE_OF_SUMS, [identity], samples)


@tallied("eval.difference", method="search", more=20, told="KL, both ways")
def search_difference_form(formula: Formula, effort: Effort) -> Cases:
    for target in generate_targets(effort.seed, effort.per_family):
        own = [to_mp(prob) for prob in target.target_probs if prob > 0]
        weights = [p * (i + 1) for i, p in enumerate(reversed(own))]
        other = [weight / mpmath.fsum(weights) for weight in weights]
        sides = [[mpmath.log(p / max(side)) for p in side] for side in (own, other)]
        sums = [mpmath.log(mpmath.fsum(map(mpmath.exp, gaps))) for gaps in sides]
        cross = mpmath.fsum(p * (g - h) for p, g, h in zip(own, *sides, strict=True))
        direct = mpmath.fsum(p * mpmath.log(p / q) for p, q in zip(own, other, strict=True))
        yield str(target), formula(MP, cross, *sums), direct, direct
