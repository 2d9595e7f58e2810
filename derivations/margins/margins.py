"""Margin-only bounds for single-token rules: the least certificate that a target with a given
margin p1 - p2 can have, whatever its vocabulary. Example: at a margin of .2 every strict
certificate is at least phi(.2) = .0201 nats."""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy import log

from derivations.formulas.strict import pair_cost, phi, xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import JOINING, PAIR, PAIR_OF_ONE, PAIR_WEIGHTS, TRANSPORTED

__all__ = [
    "BELOW",
    "LAST_DOMAIN",
    "MARGIN_DOMAIN",
    "PAIR_MONOTONE",
    "additive_at_least",
    "additive_exactly",
    "mass_and_gap",
    "multiplicative_margin",
    "strict_margin",
    "top_margin",
]

A, B, S, D, M, T, ALPHA = sympy.symbols("a b s d m t alpha", positive=True)
X = sympy.Symbol("x", positive=True)
SLACK = sympy.Symbol("r", nonnegative=True)


def mass_and_gap(numbers: Any, mass: Any, gap: Any) -> Any:
    """s phi(d/s): the pair cost of two tokens of joint mass s that differ by d."""
    return pair_cost(numbers, (mass + gap) / 2, (mass - gap) / 2)


def strict_margin(numbers: Any, gap: Any) -> Any:
    """phi(g), g = p1 - p2; attained by ((1+g)/2, (1-g)/2)."""
    return phi(numbers, gap)


def additive_at_least(numbers: Any, gap: Any, slack: Any) -> Any:
    """phi(max(g, t)) over targets with p1 - p2 >= g; +inf at t = 1, where nothing can be
    rejected."""
    return math.inf if slack >= 1 else phi(numbers, max(gap, slack))


def additive_exactly(numbers: Any, gap: Any, slack: Any) -> Any:
    """The infimum over targets with p1 - p2 = g exactly; below t it is not the at-least form."""
    if gap > slack:
        return phi(numbers, gap)
    if slack >= (1 + gap) / 2:  # p_j = p_1 - t = 0 at most, which is accepted
        return math.inf
    if 2 * gap >= slack:
        return mass_and_gap(numbers, (2 + 2 * gap - slack) / 3, slack)
    top = (1 + gap + slack) / 3
    return numbers.log(gap * 0 + 3) + sum(
        xlogx(numbers, part) for part in (top, top - gap, top - slack)
    )


def multiplicative_margin(numbers: Any, gap: Any, alpha: Any) -> Any:
    """phi(g) for g >= b = (1-alpha)/(1+alpha); below, the chord g phi(b)/b."""
    corner = (1 - alpha) / (1 + alpha)
    return phi(numbers, gap) if gap >= corner else gap * phi(numbers, corner) / corner


def top_margin(numbers: Any, gap: Any, top_m: int) -> Any:
    """s phi(g/s), s = (2 + (m-1) g)/(m+1); the same function in p1 - p2 and in p1 - p_{m+1}."""
    return mass_and_gap(numbers, (2 + (top_m - 1) * gap) / (top_m + 1), gap)


_PAIR = A * log(2 * A / (A + B)) + B * log(2 * B / (A + B))
_TRANSPORT = Step(
    "Transport (claim lemma.transport): sending all tokens outside a finite set I to the uniform "
    "law on I does not increase KL, and keeps every difference p_a - p_b, q_a - q_b inside I.",
    how="cited",
    cites=("lemma.transport",),
    instances=(TRANSPORTED,),
)
BELOW = Step(
    "C_p >= T2(p_1, p_j) for every rejected j (claim single.dual with the pool {1, j}).",
    how="cited",
    cites=("single.dual",),
    instances=(PAIR_WEIGHTS,),
)

PAIR_MONOTONE = (
    Step(
        "T2(a, b) increases in a: its derivative is log(2a/(a+b)) >= 0 for a >= b.",
        sympy.diff(_PAIR, A),
        log(2 * A / (A + B)),
    ),
    Step(
        "T2 decreases in b: its derivative is log(2b/(a+b)) <= 0.",
        sympy.diff(_PAIR, B),
        log(2 * B / (A + B)),
    ),
    Step(
        "At a fixed gap d it decreases in b: the derivative of T2(b+d, b) is log(4 b "
        "(b+d)/(2b+d)^2) <= 0, since (2b+d)^2 - 4 b (b+d) = d^2.",
        (2 * B + D) ** 2 - 4 * B * (B + D),
        D**2,
    ),
    Step(
        "Hence s phi(d/s) decreases in s at fixed d: the derivative is log(1 - x^2)/2 <= 0, x = "
        "d/s.",
        sympy.diff(S * phi(sympy, D / S), S),
        (log(1 + D / S) + log(1 - D / S)) / 2,
    ),
)

STRICT_MARGIN = Derivation(
    "Two tokens carry all the mass",
    (
        BELOW,
        *PAIR_MONOTONE,
        Step(
            "C_p = s phi(g/s) with s = p_1 + p_2 <= 1, so C_p >= phi(g); equality at s = 1.",
            (S * phi(sympy, D / S)).subs(S, 1),
            phi(sympy, D),
        ),
        Step(
            "phi is increasing, its derivative is artanh(g) >= 0, so the at-least form is the "
            "same.",
            sympy.diff(phi(sympy, X), X),
            (log(1 + X) - log(1 - X)) / 2,
        ),
    ),
)
_ADDITIVE_TOP = (1 + D + T) / 3
ADDITIVE = Derivation(
    "The runner-up may sit between the top and the rejected token",
    (
        BELOW,
        *PAIR_MONOTONE,
        Step(
            "At least: p_1 - p_j >= max(g, t) and p_1 + p_j <= 1 give phi(max(g, t)); limit p = "
            "((1+t)/2, (1-t)/2).",
            how="cited",
            cites=("lemma.pair", "lemma.phi"),
            instances=(PAIR_OF_ONE,),
        ),
        _TRANSPORT,
        Step(
            "Exactly g <= t: I = {1, 2, j}: p = (a, a-g, 1+g-2a), and p_j <= a - t reads a >= "
            "(1+g+t)/3.",
            1 + D - 2 * _ADDITIVE_TOP,
            _ADDITIVE_TOP - T,
        ),
        Step(
            "The value grows with a. Runner-up outside the pool: d/da T2(a, 1+g-2a) = "
            "log(2a/(a+b)) - 2 log(2b/(a+b)),",
            sympy.diff(_PAIR.subs(B, 1 + D - 2 * A), A).subs(D, B - 1 + 2 * A),
            log(2 * A / (A + B)) - 2 * log(2 * B / (A + B)),
        ),
        Step(
            "that is log(a (a+b)/(2 b^2)), >= 0 since a = b + r: a (a+b) - 2 b^2 = 3 b r + r^2;",
            ((B + SLACK) * (2 * B + SLACK) - 2 * B**2),
            0,
            "nonnegative",
        ),
        Step(
            "inside the pool: d/da of a log a + (a-g) log(a-g) + b log b is log(a (a-g)/b^2),",
            sympy.diff(A * log(A) + (A - D) * log(A - D) + (1 + D - 2 * A) * log(1 + D - 2 * A), A),
            log(A) + log(A - D) - 2 * log(1 + D - 2 * A),
        ),
        Step(
            "and with a - g = b + r: a (a-g) - b^2 = (b + r + g)(b + r) - b^2 >= 0. So a is "
            "least: a = (1+g+t)/3.",
            sympy.expand((B + SLACK + D) * (B + SLACK) - B**2),
            0,
            "nonnegative",
        ),
        Step(
            "The runner-up a - g lies outside the pool {1, j} iff a - g <= c = a - t/2, that is g "
            ">= t/2; then s = 2a - t.",
            2 * _ADDITIVE_TOP - T,
            (2 + 2 * D - T) / 3,
        ),
        Step(
            "Rejected is p_j < a - t, that is a > (1+g+t)/3, and p_j >= 0 is a <= (1+g)/2: there "
            "is such an a iff t < (1+g)/2, and else nothing is rejected.",
            (1 + D) / 2 - _ADDITIVE_TOP,
            ((1 + D) / 2 - T) / 3,
        ),
    ),
)
MULTIPLICATIVE = Derivation(
    "A straight chord from the origin",
    (
        BELOW,
        *PAIR_MONOTONE,
        Step("Minimise T2(a, b) over b <= min(alpha a, a - g, 1 - a).", how="definition"),
        Step(
            "The two first bounds cross where alpha a = a - g, at a = g/(1-alpha), k = alpha:",
            at.k * (at.g / (1 - at.k)),
            at.g / (1 - at.k) - at.g,
        ),
        Step(
            "Up to there b = a - g, the gap is fixed and T2 falls;",
            how="cited",
            cites=("lemma.pair",),
            instances=(PAIR,),
        ),
        Step(
            "beyond, b = alpha a and T2 = a T2(1, alpha) rises.",
            _PAIR.subs(B, ALPHA * A),
            A * _PAIR.subs({B: ALPHA * A}).subs(A, 1),
        ),
        Step(
            "At a = g/(1-alpha) the sum is s = g (1+alpha)/(1-alpha) = g/b.",
            D / (1 - ALPHA) + ALPHA * D / (1 - ALPHA),
            D / ((1 - ALPHA) / (1 + ALPHA)),
        ),
        Step(
            "If s >= 1, that is g >= b, the mass runs out first: a = (1+g)/2 and the value is "
            "phi(g).",
            pair_cost(sympy, (1 + D) / 2, (1 - D) / 2),
            phi(sympy, D),
        ),
        Step(
            "The chord is approached with the remaining mass 1 - s spread over n tokens, each of "
            "which tends to 0,",
            sympy.limit((1 - at.s) / at.n, at.n, sympy.oo),
            0,
        ),
        Step(
            "so that it falls below the pair's level: the certificate is the pair's.",
            how="cited",
            cites=("lemma.level",),
            instances=(JOINING,),
        ),
    ),
)
_LEVEL = (1 - D) / (M + 1)
TOP_MARGIN = Derivation(
    "The first m tokens block the view",
    (
        BELOW,
        *PAIR_MONOTONE,
        Step(
            "In g: each of p_2..p_m is >= b = p_{m+1} and p_2 = a - g >= b. T2 grows in a, so a = "
            "b + g; the mass gives (m+1) b + g <= 1.",
            (M + 1) * _LEVEL + D,
            1,
        ),
        Step(
            "T2(b + g, b) falls in b, so b = (1-g)/(m+1), and s = 2b + g.",
            2 * _LEVEL + D,
            (2 + (M - 1) * D) / (M + 1),
        ),
        Step(
            "In g_m = p_1 - p_{m+1}, a = b + g_m, and p_2, ..., p_m >= b again: it is the same "
            "programme, as the m + 1 largest hold at least",
            (at.b + at.g) + at.n * at.b,
            (at.n + 1) * at.b + at.g,
        ),
        Step(
            "It grows in g, so exact and at-least forms agree: with b = (1-g)/(m+1), a = (1+m "
            "g)/(m+1) both move outwards.",
            _LEVEL + D,
            (1 + M * D) / (M + 1),
        ),
    ),
)
MARGIN_DOMAIN = "0 <= g <= 1, any vocabulary"
LAST_DOMAIN = "0 <= d <= 1, any vocabulary"


def _wrong_corner(numbers: Any, gap: Any, alpha: Any) -> Any:
    corner = 1 - alpha
    return gap * phi(numbers, corner) / corner if gap < corner else phi(numbers, gap)


def _steeper_chord(numbers: Any, gap: Any, alpha: Any) -> Any:
    return multiplicative_margin(numbers, gap, alpha) * (1 + alpha)


def _wrong_mass(numbers: Any, gap: Any, top_m: int) -> Any:
    return mass_and_gap(numbers, (2 + top_m * gap) / (top_m + 2), gap)


_CLAIMS: list[tuple[str, str, str, str, Any, Derivation, tuple[Mutant, ...]]] = [
    (
        "margin.strict",
        "The least strict certificate at margin g = p1 - p2, exactly or at least, is phi(g).",
        "",
        "B (strict)",
        strict_margin,
        STRICT_MARGIN,
        (
            Mutant("g^2", lambda numbers, gap: gap * gap),
            Mutant("2 phi(g/2)", lambda numbers, gap: 2 * phi(numbers, gap / 2)),
        ),
    ),
    (
        "margin.additive.at-least",
        "Additive slack t, p1 - p2 >= g: the infimum is phi(max(g, t)); +inf at t = 1.",
        ", 0 <= t <= 1",
        "B (additive, at least)",
        additive_at_least,
        ADDITIVE,
        (
            Mutant(
                "phi(g + t)",
                lambda numbers, gap, slack: phi(numbers, min(gap + slack, gap * 0 + 1)),
            ),
        ),
    ),
    (
        "margin.additive.exact",
        "Additive slack t, p1 - p2 = g exactly: phi(g) for g > t; s phi(t/s), s = (2+2g-t)/3, for "
        "t/2 <= g <= t; a three-token value below; +inf for t >= (1+g)/2.",
        ", 0 <= t <= 1",
        "B (additive, exactly)",
        additive_exactly,
        ADDITIVE,
        (Mutant("the at-least form", additive_at_least),),
    ),
    (
        "margin.multiplicative",
        "Factor alpha: phi(g) for g >= b = (1-alpha)/(1+alpha), the chord g phi(b)/b below.",
        ", 0 < alpha <= 1",
        "B (multiplicative)",
        multiplicative_margin,
        MULTIPLICATIVE,
        (
            Mutant("the chord with b = 1 - alpha", _wrong_corner),
            Mutant("the chord steepened by 1 + alpha", _steeper_chord),
        ),
    ),
    (
        "margin.top",
        "Top-m: s phi(g/s), s = (2+(m-1)g)/(m+1), in g = p1 - p2 and in g = p1 - p_{m+1}.",
        ", m >= 1",
        "B (top-m)",
        top_margin,
        TOP_MARGIN,
        (
            Mutant("m + 1 for m", _wrong_mass),
            Mutant("the strict bound", lambda numbers, gap, top_m: phi(numbers, gap)),
        ),
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
