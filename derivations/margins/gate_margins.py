"""Margin-only bounds for gates, which reject what lies beyond a rank or below a threshold: in p1 -
p2 and in p1 - p_{m+1}."""

from __future__ import annotations

from typing import Any

import sympy

from derivations.formulas.strict import pair_cost, phi
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import PAIR_OF_ONE, UNORDERED
from derivations.margins.margins import (
    LAST_DOMAIN,
    MARGIN_DOMAIN,
    PAIR_MONOTONE,
    additive_at_least,
    additive_exactly,
    mass_and_gap,
    multiplicative_margin,
    top_margin,
)

__all__ = [
    "gate_at_least",
    "gate_exactly",
    "gate_last_at_least",
    "gate_last_exactly",
    "gate_multiplicative",
    "gate_multiplicative_last",
    "multiplicative_inside",
]

D, M, T, X = sympy.symbols("d m t x", positive=True)


def gate_at_least(numbers: Any, gap: Any, top_m: int, slack: Any) -> Any:
    """Top-m and additive together, p1 - p2 >= g: the smaller of the two bounds, since rejection is
    a union."""
    return min(top_margin(numbers, gap, top_m), additive_at_least(numbers, gap, slack))


def gate_exactly(numbers: Any, gap: Any, top_m: int, slack: Any) -> Any:
    """The same with p1 - p2 = g exactly."""
    return min(top_margin(numbers, gap, top_m), additive_exactly(numbers, gap, slack))


def gate_last_exactly(numbers: Any, gap: Any, top_m: int, slack: Any) -> Any:
    """The gate over targets with p1 - p_{m+1} = d exactly."""
    if gap <= slack:
        return top_margin(numbers, gap, top_m)
    if 2 * gap <= 1 + slack:
        return mass_and_gap(numbers, (2 + (top_m - 1) * (2 * gap - slack)) / (top_m + 1), slack)
    return phi(numbers, 2 * gap - 1)


def gate_last_at_least(numbers: Any, gap: Any, top_m: int, slack: Any) -> Any:
    """The gate over targets with p1 - p_{m+1} >= d."""
    if slack >= 1:
        return top_margin(numbers, gap, top_m)
    if gap <= slack:
        return min(top_margin(numbers, gap, top_m), phi(numbers, slack))
    return phi(numbers, slack if 2 * gap <= 1 + slack else 2 * gap - 1)


def gate_multiplicative(numbers: Any, gap: Any, top_m: int, alpha: Any) -> Any:
    """Top-m and multiplicative together, p1 - p2 = g or >= g: the smaller of the two bounds."""
    return min(top_margin(numbers, gap, top_m), multiplicative_margin(numbers, gap, alpha))


def multiplicative_inside(numbers: Any, gap: Any, alpha: Any) -> Any:
    """The least certificate of a token inside the gate at p1 - p_{m+1}: d T2(1, alpha), phi(2d-1)
    past 1/(1+alpha)."""
    if gap * (1 + alpha) <= 1:
        return gap * pair_cost(numbers, 1 + alpha * 0, alpha)
    return phi(numbers, 2 * gap - 1)


def gate_multiplicative_last(numbers: Any, gap: Any, top_m: int, alpha: Any) -> Any:
    """The same gate in d = p1 - p_{m+1}, exactly or at least."""
    return min(top_margin(numbers, gap, top_m), multiplicative_inside(numbers, gap, alpha))


GATE = Derivation(
    "A gate rejects the union",
    (
        Step(
            "The gate's rejected set is the union of the top-m and the additive one, so C = "
            "min(C_top, C_additive).",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        Step(
            "An infimum of a minimum is the minimum of the infima, at the same margin.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        *PAIR_MONOTONE,
        Step(
            "p_1 - p_{m+1} = d > t: the competitor is token 2, p_2 = a - t, with p_3..p_{m+1} >= "
            "a - d. The mass 1 gives a.",
            ((1 + T + (M - 1) * D) / (M + 1))
            + ((1 + T + (M - 1) * D) / (M + 1) - T)
            + (M - 1) * ((1 + T + (M - 1) * D) / (M + 1) - D),
            1,
        ),
        Step(
            "Its pair mass is s = 2a - t.",
            2 * (1 + T + (M - 1) * D) / (M + 1) - T,
            (2 + (M - 1) * (2 * D - T)) / (M + 1),
        ),
        Step(
            "For d > (1+t)/2 the tail vanishes: p = (d, 1-d), and the gap of the pair is 2d - 1.",
            D - (1 - D),
            2 * D - 1,
        ),
        Step(
            "At least d: p_1 = d + r, and p_j <= 1 - p_1 gives a gap p_1 - p_j >= 2 d - 1; the "
            "excess is",
            ((at.d + at.r) - (1 - (at.d + at.r))) - (2 * at.d - 1),
            0,
            "nonnegative",
        ),
        Step(
            "rejection gives a gap of at least t. A pair of either gap, of mass at most 1, costs "
            "at least phi of it: the slack t decides, phi(t), unless d forces more.",
            how="cited",
            cites=("lemma.pair", "lemma.phi"),
            instances=(PAIR_OF_ONE,),
        ),
    ),
)

MULTIPLICATIVE_GATE = Derivation(
    "A multiplicative gate",
    (
        *GATE.steps[:2],
        *PAIR_MONOTONE,
        Step(
            "p_1 - p_{m+1} = d, competitor j <= m, b = p_j <= alpha a, a = p_1 >= d; the tokens "
            "after it are at least a - d.",
            how="definition",
        ),
        Step(
            "T2 falls in b: b = alpha a, unless the mass a + b <= 1 forbids it.",
            how="cited",
            cites=("lemma.pair",),
            instances=(
                Instance("lemma.pair", (at.a, at.k * at.a), at.a * pair_cost(sympy, 1, at.k)),
            ),
        ),
        Step(
            "T2(a, alpha a) = a T2(1, alpha) grows with a, so a is least: a = d, p_{m+1} = 0, "
            "value d T2(1, alpha).",
            pair_cost(sympy, D, T * D),
            D * pair_cost(sympy, sympy.S.One, T),
        ),
        Step(
            "The mass d (1 + alpha) <= 1 allows it up to d = 1/(1+alpha). Beyond, b <= 1 - a: "
            "T2(a, 1-a) grows with a, so again a = d: phi(2d - 1).",
            pair_cost(sympy, (1 + X) / 2, (1 - X) / 2),
            phi(sympy, X),
        ),
        Step(
            "The two agree where they meet, d = 1/(1+alpha): 2d - 1 = (1-alpha)/(1+alpha).",
            2 / (1 + T) - 1,
            (1 - T) / (1 + T),
        ),
        Step(
            "d T2(1, alpha) is linear in d, with slope T2(1, alpha) = x >= 0,",
            at.diff(at.y * at.x, at.y),
            at.x,
        ),
        Step(
            "and phi(2d - 1) increases, so exact and at-least forms agree. Competitor m+1: the "
            "top-m bound.",
            how="cited",
            cites=("lemma.phi", "margin.top"),
            instances=(
                Instance(
                    "margin.top", (at.x, 2), (2 + at.x) / 3 * phi(sympy, 3 * at.x / (2 + at.x))
                ),
            ),
        ),
    ),
)

_CLAIMS: list[tuple[str, str, str, str, Any, Derivation, tuple[Mutant, ...]]] = [
    (
        "margin.gate.at-least",
        "Gate, p1 - p2 >= g: min of the top-m bound and phi(max(g, t)).",
        ", m >= 2, 0 <= t < 1",
        "B (gate, at least g)",
        gate_at_least,
        GATE,
        (
            Mutant("the additive bound alone", lambda n, g, m, t: additive_at_least(n, g, t)),
            Mutant("the top-m bound alone", lambda n, g, m, t: top_margin(n, g, m)),
        ),
    ),
    (
        "margin.gate.exact",
        "Gate, p1 - p2 = g exactly: min of the top-m bound and A_t(g), the exact additive bound.",
        ", m >= 2, 0 <= t < 1",
        "B (gate, exactly g)",
        gate_exactly,
        GATE,
        (Mutant("the at-least form", gate_at_least),),
    ),
    (
        "margin.gate.last.exact",
        "Gate, p1 - p_{m+1} = d: top-m(d) for d <= t, s phi(t/s) up to (1+t)/2, phi(2d-1) beyond.",
        ", m >= 2, 0 <= t < 1",
        "B (gate, exactly g_m)",
        gate_last_exactly,
        GATE,
        (Mutant("p1 - p2 for p1 - p_{m+1}", gate_exactly),),
    ),
    (
        "margin.gate.last.at-least",
        "Gate, p1 - p_{m+1} >= d: min(top-m(d), phi(t)) for d <= t, phi(t) up to (1+t)/2, "
        "phi(2d-1) beyond.",
        ", m >= 2, 0 <= t < 1",
        "B (gate, g_m at least d)",
        gate_last_at_least,
        GATE,
        (
            Mutant("the exact form", gate_last_exactly),
            Mutant("p1 - p2 for p1 - p_{m+1}", gate_at_least),
        ),
    ),
    (
        "margin.gate.multiplicative",
        "Gate with factor alpha, p1 - p2 = g or >= g: min of the top-m bound and the "
        "multiplicative bound.",
        ", m >= 2, 0 < alpha <= 1",
        "B (gate, multiplicative)",
        gate_multiplicative,
        MULTIPLICATIVE_GATE,
        (
            Mutant("the top-m bound alone", lambda n, g, m, alpha: top_margin(n, g, m)),
            Mutant(
                "the multiplicative bound alone",
                lambda n, g, m, alpha: multiplicative_margin(n, g, alpha),
            ),
        ),
    ),
    (
        "margin.gate.multiplicative.last",
        "Gate with factor alpha, p1 - p_{m+1} = d or >= d: min of top-m(d) and d T2(1, alpha), "
        "phi(2d-1) for d > 1/(1+alpha).",
        ", m >= 2, 0 < alpha <= 1",
        "B (gate, multiplicative)",
        gate_multiplicative_last,
        MULTIPLICATIVE_GATE,
        (
            Mutant("the multiplicative bound in p1 - p2", gate_multiplicative),
            Mutant("the top-m bound alone", lambda n, g, m, alpha: top_margin(n, g, m)),
        ),
    ),
]
for _id, _sentence, _extra, _theory, _formula, _derivation, _mutants in _CLAIMS:
    declare(
        Claim(
            id=_id,
            sentence=_sentence,
            domain=(LAST_DOMAIN if ".last" in _id else MARGIN_DOMAIN) + _extra,
            theory=_theory,
            relation="=",
            formula=_formula,
            derivation=_derivation,
            mutants=_mutants,
        )
    )
