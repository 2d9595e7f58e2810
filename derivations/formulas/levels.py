"""Two combinatorial tools of every certificate: the running average that finds a pool, and the swap
of two tokens. Example: .1 is joined by the numbers .6, .3, .2 in this order while they exceed the
average of what is there: .6 does, and then .3 does not exceed .35, so that the pool is {.1, .6}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["EXCHANGE", "LEVEL", "running_level", "swap_change"]

X, A, N, C = sympy.symbols("x a n c", positive=True)
PA, PB, QA, QB = sympy.symbols("p_a p_b q_a q_b", positive=True)
R, T, Z = sympy.symbols("r t z", nonnegative=True)


def running_level(numbers: Any, anchor: Any, others: Sequence[Any]) -> Any:
    """The average of ``anchor`` and the largest others, which join one by one while they exceed the
    average."""
    total, count = anchor, 1
    for value in sorted(others, reverse=True):
        if not value * count > total:
            break
        total, count = total + value, count + 1
    return total / count


def _one_more(numbers: Any, anchor: Any, others: Sequence[Any]) -> Any:
    ranked = sorted(others, reverse=True)
    level = running_level(numbers, anchor, others)
    more = ranked[: len([value for value in ranked if value > level]) + 1]
    return sum(more, anchor) / (len(more) + 1)


def swap_change(numbers: Any, own_a: Any, own_b: Any, other_a: Any, other_b: Any) -> Any:
    """What KL(p || q) loses when q_a and q_b are swapped: (p_a - p_b)(log q_b - log q_a)."""
    return (own_a - own_b) * (numbers.log(other_b) - numbers.log(other_a))


def _half_a_swap(numbers: Any, own_a: Any, own_b: Any, other_a: Any, other_b: Any) -> Any:
    return own_a * (numbers.log(other_b) - numbers.log(other_a))


_JOINED = (N * A + X) / (N + 1)
LEVEL = Derivation(
    "A pool is found by the running average",
    (
        Step(
            "A number x joins n numbers of average a: the average moves by (x - a)/(n + 1),",
            _JOINED - A,
            (X - A) / (N + 1),
        ),
        Step("up where x = a + t,", ((N * A + A + T) / (N + 1)) - A, 0, "nonnegative"),
        Step(
            "yet not beyond x: x - average = n (x - a)/(n + 1),", X - _JOINED, N * (X - A) / (N + 1)
        ),
        Step("not negative there.", (A + T) - (N * A + A + T) / (N + 1), 0, "nonnegative"),
        Step(
            "Members joined earlier are larger (x + r), so every member lies above the final "
            "average;",
            (A + T + R) - (N * A + A + T) / (N + 1),
            0,
            "nonnegative",
        ),
        Step(
            "the first number left out is at most the average, c - r, and those after it are "
            "smaller, c - r - z: the pool is exactly the numbers above its average.",
            C - (C - R - Z),
            0,
            "nonnegative",
        ),
        Step(
            "The level is unique: at a root the pool's members balance, c - a - sum (x - c) = 0, "
            "which is c (1 + n) = a + sum x, the average; here with n members of mean x.",
            C - A - N * (X - C),
            C * (1 + N) - (A + N * X),
        ),
        Step(
            "c - a - sum (x - c)_+ rises by at least the step of c, as (x - c)_+ falls: with x = "
            "c + t + r, raised to c + t, by t + t;",
            ((C + T) - ((C + T + R) - (C + T))) - (C - ((C + T + R) - C)),
            T + T,
        ),
        Step("strictly more than nothing: no second root.", T + T - T, 0, "nonnegative"),
        Step(
            "Numbers below the average join from the smallest up in the same way, with all signs "
            "turned: it moves by",
            -A - (-_JOINED),
            (X - A) / (N + 1),
        ),
    ),
)
EXCHANGE = Derivation(
    "Swapping two tokens",
    (
        Step(
            "All other tokens keep their terms. Swapping q_a and q_b takes from KL(p || q)",
            (PA * log(PA / QA) + PB * log(PB / QB)) - (PA * log(PA / QB) + PB * log(PB / QA)),
            swap_change(sympy, PA, PB, QA, QB),
        ),
        Step(
            "Swapping p_a and p_b in KL(p || q) takes the same.",
            (PA * log(PA / QA) + PB * log(PB / QB)) - (PB * log(PB / QA) + PA * log(PA / QB)),
            swap_change(sympy, PA, PB, QA, QB),
        ),
        Step(
            "With p_a = p_b + r and q_b = q_a (1 + t) it is r log(1 + t):",
            swap_change(sympy, PB + R, PB, QA, QA * (1 + T)),
            R * log(1 + T),
        ),
        Step(
            "not negative: the likelier token takes the larger partner at no cost.",
            R * log(1 + T),
            0,
            "nonnegative",
        ),
    ),
)

declare(
    Claim(
        id="lemma.level",
        sentence="Numbers that join in order while they exceed the running average form exactly "
        "the set above their final average, and no other level has that property.",
        domain="any anchor and any finite list of numbers",
        theory="A (tools, running average)",
        relation="=",
        formula=running_level,
        derivation=LEVEL,
        mutants=(Mutant("one number more joins", _one_more),),
    )
)
declare(
    Claim(
        id="lemma.exchange",
        sentence="Swapping two tokens of one law lowers KL by (p_a - p_b)(log q_b - log q_a), "
        "which is >= 0 where p_a >= p_b and q_b >= q_a.",
        domain="any two laws, any two tokens of positive probability",
        theory="A (tools, exchange)",
        relation="=",
        formula=swap_change,
        derivation=EXCHANGE,
        mutants=(Mutant("only one of the two tokens counted", _half_a_swap),),
        min_methods=3,
    )
)
