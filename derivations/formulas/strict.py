"""The strict rule: accept only the target's argmax. Its certificate is the cost of lifting the
runner-up to a tie: for p_1 = .6 and p_2 = .3, .6 log(.6/.45) + .3 log(.3/.45) = .0510 nats."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import log

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import BEST_OF_TWO, PAIR_POOL

__all__ = ["STRICT", "pair_cost", "phi", "xlogx"]

TOP, RUNNER_UP, LEVEL = sympy.symbols("p1 p2 c", positive=True)


def xlogx(numbers: Any, value: Any) -> Any:
    """x log x with 0 log 0 = 0; intervals that touch 0 use the arithmetic's own ``xlogx``."""
    own = getattr(numbers, "xlogx", None)
    if own is not None:
        return own(value)
    return value * 0 if value == 0 else value * numbers.log(value)


def phi(numbers: Any, gap: Any) -> Any:
    """phi(x) = ((1+x) log(1+x) + (1-x) log(1-x)) / 2 on [0, 1], the strict certificate of ((1+x)/2,
    (1-x)/2)."""
    return (xlogx(numbers, 1 + gap) + xlogx(numbers, 1 - gap)) / 2


def pair_cost(numbers: Any, larger: Any, smaller: Any) -> Any:
    """T2(a, b) = a log(2a/(a+b)) + b log(2b/(a+b)): the cost of making two probabilities equal."""
    total = larger + smaller
    if total == 0:
        return total
    return xlogx(numbers, larger) + xlogx(numbers, smaller) - total * numbers.log(total / 2)


def _average_left_out(numbers: Any, larger: Any, smaller: Any) -> Any:
    total = larger + smaller
    return xlogx(numbers, larger) + xlogx(numbers, smaller) - total * numbers.log(total)


def _geometric_mean(numbers: Any, larger: Any, smaller: Any) -> Any:
    half = (xlogx(numbers, larger) + xlogx(numbers, smaller)) / 2
    return -numbers.log(1 - (numbers.sqrt(larger) - numbers.sqrt(smaller)) ** 2) + 0 * half


_SUM, _GAP = sympy.symbols("s d", positive=True)
_DRAFT_TOP = sympy.Symbol("q1", positive=True)

STRICT = Derivation(
    "Two tokens meet at their average",
    (
        Step(
            "Rejection means that some token other than token 1 attains the draft's maximum; the "
            "best competitor is token 2, and the tokens outside the pool keep q_i = p_i.",
            how="cited",
            cites=("single.competitor", "single.pool"),
            instances=(PAIR_POOL, BEST_OF_TWO),
        ),
        Step(
            "Minimise f = -p1 log q1 - p2 log q2 with q1 <= q2: what the others leave is q1 + q2 "
            "= 1 - x = p1 + p2.",
            1 - (1 - at.a - at.b),
            at.a + at.b,
        ),
        Step(
            "On q2 = p1 + p2 - q1 the derivative of f in q1 has the sign of q1 - p1:",
            sympy.diff(
                -TOP * log(_DRAFT_TOP) - RUNNER_UP * log(TOP + RUNNER_UP - _DRAFT_TOP), _DRAFT_TOP
            ),
            (_DRAFT_TOP - TOP) * (TOP + RUNNER_UP) / (_DRAFT_TOP * (TOP + RUNNER_UP - _DRAFT_TOP)),
        ),
        Step(
            "So f falls up to q1 = p1, and q1 is as large as q1 <= q2 allows: q1 = q2 = c with 2 "
            "c = p1 + p2, and c <= p1 as p1 = p2 + r.",
            (at.b + at.r) - ((at.b + at.r) + at.b) / 2,
            0,
            "nonnegative",
        ),
        Step(
            "The value p1 log(p1/c) + p2 log(p2/c) at that level is the pair cost.",
            (TOP * log(TOP / LEVEL) + RUNNER_UP * log(RUNNER_UP / LEVEL)).subs(
                LEVEL, (TOP + RUNNER_UP) / 2
            ),
            pair_cost(sympy, TOP, RUNNER_UP),
        ),
        Step(
            "In sum s = p1 + p2 and gap d = p1 - p2 it is s phi(d/s).",
            pair_cost(sympy, (_SUM + _GAP) / 2, (_SUM - _GAP) / 2),
            _SUM * phi(sympy, _GAP / _SUM),
        ),
    ),
)

declare(
    Claim(
        id="strict.closed",
        sentence="The strict certificate is p1 log(2 p1/(p1+p2)) + p2 log(2 p2/(p1+p2)) = s "
        "phi(d/s).",
        domain="p1 >= p2 >= 0 the two largest target probabilities (designated convention: ties "
        "included)",
        theory="A1 (strict)",
        relation="=",
        formula=pair_cost,
        derivation=STRICT,
        mutants=(
            Mutant("the average's factor 2 is lost", _average_left_out),
            Mutant("the reverse direction's closed form", _geometric_mean),
        ),
        statement=sympy.Eq(sympy.Symbol("C"), pair_cost(sympy, TOP, RUNNER_UP), evaluate=False),
    )
)
