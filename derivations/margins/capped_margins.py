"""Margin-only bounds for rules whose rejected tokens are small in themselves: an absolute
threshold, and the entropy rule's simple bound."""

from __future__ import annotations

import math
from typing import Any

import sympy

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import PAIR
from derivations.margins.margins import BELOW, MARGIN_DOMAIN, PAIR_MONOTONE, mass_and_gap

__all__ = ["CAPPED", "CAPPED_ABSOLUTE", "absolute_margin", "entropy_margin"]

D, T = sympy.symbols("d t", positive=True)


def absolute_margin(numbers: Any, gap: Any, tau: Any) -> Any:
    """s phi(g/s), s = min(1, g + 2 tau), for g >= tau; 0 below, where the argmax itself can be
    rejected; +inf at tau = 0, where nothing can."""
    if tau <= 0:
        return math.inf
    return gap * 0 if gap < tau else mass_and_gap(numbers, min(1 + gap * 0, gap + 2 * tau), gap)


def entropy_margin(numbers: Any, gap: Any, epsilon: Any, delta: Any) -> Any:
    """s phi(g/s), s = min(1, g + 2 eps, g (1+delta)/(1-delta)): a lower bound, for delta <= 1."""
    if gap == 0:
        return gap
    mass = min(1 + gap * 0, gap + 2 * epsilon)
    return mass_and_gap(
        numbers, mass if delta == 1 else min(mass, gap * (1 + delta) / (1 - delta)), gap
    )


def _single_tau(numbers: Any, gap: Any, tau: Any) -> Any:
    return mass_and_gap(numbers, min(1 + gap * 0, gap + tau), gap)


def _single_epsilon(numbers: Any, gap: Any, epsilon: Any, delta: Any) -> Any:
    return mass_and_gap(numbers, min(1 + gap * 0, gap + epsilon), gap)


CAPPED = Derivation(
    "A rejected token is small in itself",
    (
        BELOW,
        *PAIR_MONOTONE,
        Step(
            "Rejection means p_j = b <= cap (b < tau: none at tau = 0); p_1 = a >= b + g.",
            how="definition",
        ),
        Step(
            "T2(a, b) grows in a: take a = b + g.",
            how="cited",
            cites=("lemma.pair",),
            instances=(PAIR,),
        ),
        Step(
            "T2(b + g, b) = s phi(g/s), s = g + 2b, falls in b: take b = min(cap, (1-g)/2).",
            D + 2 * (1 - D) / 2,
            1,
        ),
        Step(
            "Entropy rule: b <= delta exp(-H) <= delta p_1 (H >= -log p_1), so b <= delta (b + "
            "g): b <= delta g/(1 - delta),",
            D + 2 * T * D / (1 - T),
            D * (1 + T) / (1 - T),
        ),
        Step(
            "The pair's mass is a + b = g + 2 b, at most g + 2 eps as b <= eps: with eps = b + r,",
            (at.g + 2 * (at.b + at.r)) - ((at.b + at.g) + at.b),
            2 * at.r,
        ),
        Step(
            "and b <= delta a = delta (b + g) says b <= delta g/(1-delta), where the mass is g "
            "(1+delta)/(1-delta); here delta = k.",
            at.g + 2 * at.k * at.g / (1 - at.k),
            at.g * (1 + at.k) / (1 - at.k),
        ),
        Step("Hence s = min(1, g + 2 eps, g (1+delta)/(1-delta)) bounds it.", how="definition"),
    ),
)
CAPPED_ABSOLUTE = Derivation(
    "A rejected token is small in itself, and so is the argmax where the margin is below tau",
    (
        *CAPPED.steps,
        Step(
            "For g < tau the argmax itself may be rejected, at p_1 = a, g < a < tau, p_2 = a - g, "
            "the rest of the mass on n tokens, each of which tends to 0: the target as its own "
            "draft is then rejected, and the infimum is 0.",
            sympy.limit((1 - at.s) / at.n, at.n, sympy.oo),
            0,
        ),
    ),
)

declare(
    Claim(
        id="margin.absolute",
        sentence="Absolute threshold tau, p1 - p2 = g or >= g: s phi(g/s), s = min(1, g + 2 tau); "
        "0 for g < tau, +inf at tau = 0.",
        domain=MARGIN_DOMAIN + ", 0 <= tau <= 1",
        theory="B (tools), absolute rule",
        relation="=",
        formula=absolute_margin,
        derivation=CAPPED_ABSOLUTE,
        mutants=(
            Mutant("tau for 2 tau", _single_tau),
            Mutant(
                "not 0 below tau",
                lambda n, gap, tau: mass_and_gap(n, min(1 + gap * 0, gap + 2 * tau), gap),
            ),
        ),
    )
)
declare(
    Claim(
        id="margin.entropy.simple",
        sentence="Entropy rule (delta <= 1), p1 - p2 >= g: every certificate is at least s "
        "phi(g/s), s = min(1, g + 2 eps, g (1+delta)/(1-delta)).",
        domain=MARGIN_DOMAIN
        + ", 0 < eps <= 1, 0 < delta <= 1, at eps = delta = 1 only exactly g < 1 (a token of mass "
        "1 is rejected there); not attained everywhere",
        theory="B (entropy, simple)",
        relation="<=",
        formula=entropy_margin,
        derivation=CAPPED,
        mutants=(Mutant("eps for 2 eps", _single_epsilon),),
    )
)
