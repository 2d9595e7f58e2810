"""Margin-only bounds for gates, the union of a rank and a threshold, in p1 - p2 and in p1 - p_{m+1}. This module knows
margins and rule parameters, and no target."""

from __future__ import annotations

from typing import Any

import sympy

from derivations.claim import Claim, Derivation, Mutant, Step, declare
from derivations.margins import (
    MARGIN_DOMAIN,
    PAIR_MONOTONE,
    additive_at_least,
    additive_exactly,
    mass_and_gap,
    top_margin,
)
from derivations.strict import phi

__all__ = ["gate_at_least", "gate_exactly", "gate_last_at_least", "gate_last_exactly"]

D, M, T = sympy.symbols("d m t", positive=True)


def gate_at_least(numbers: Any, gap: Any, top_m: int, slack: Any) -> Any:
    """Top-m and additive together, p1 - p2 >= g: the smaller of the two bounds, since rejection is a union."""
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


GATE = Derivation(
    "A gate rejects the union",
    (
        Step(
            "The gate's rejected set is the union of the top-m and the additive one, so C = min(C_top, C_additive).",
            how="prose",
        ),
        Step("An infimum of a minimum is the minimum of the infima, at the same margin.", how="prose"),
        *PAIR_MONOTONE,
        Step(
            "p_1 - p_{m+1} = d > t: the competitor is token 2, p_2 = a - t, with p_3..p_{m+1} >= a - d. The mass "
            "1 gives a.",
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
            "At least d: the tail may vanish earlier; the slack t then decides, phi(t), unless d forces more.",
            how="prose",
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
        "Gate, p1 - p2 = g exactly: min of the top-m bound and the exact additive bound.",
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
        "Gate, p1 - p_{m+1} >= d: min(top-m(d), phi(t)) for d <= t, phi(t) up to (1+t)/2, phi(2d-1) beyond.",
        ", m >= 2, 0 <= t < 1",
        "B (gate, g_m at least d)",
        gate_last_at_least,
        GATE,
        (Mutant("the exact form", gate_last_exactly), Mutant("p1 - p2 for p1 - p_{m+1}", gate_at_least)),
    ),
]
for _id, _sentence, _extra, _theory, _formula, _derivation, _mutants in _CLAIMS:
    declare(
        Claim(
            id=_id,
            sentence=_sentence,
            domain=MARGIN_DOMAIN + _extra,
            theory=_theory,
            relation="=",
            formula=_formula,
            derivation=_derivation,
            mutants=_mutants,
        )
    )
