"""Checks of the margin-only bounds for gates: the same three routes as for single rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import partial
from typing import Any

import sympy

from proofs_check.claims.margins.margins import (
    BOTH,
    HIGH,
    LOW,
    SLACKS,
    CasesOf,
    Extremal,
    Large,
    register,
)
from proofs_check.methods.margin_programmes import Case, Margin, margin_programme, with_tail
from proofs_check.methods.targets import MANY, WIDE
from proofs_check.registry import Effort

R = sympy.Rational


def _gate(margin: Margin, last_gap: bool, effort: Effort) -> Iterator[Case]:
    for m in (2, 3):
        for slack in SLACKS:
            for gap in (F(1, 10), F(19, 100), F(2, 5), F(4, 5)) if m == 2 else (F(3, 10),):
                yield _gate_case(m + 1, m, slack, gap, margin, last_gap)
    yield _gate_case(3, 2, F(1), F(2, 5), margin, last_gap)  # by rank alone


def _gate_case(num_tokens: int, m: int, slack: F, gap: F, margin: Margin, last_gap: bool) -> Case:
    last = m if last_gap else 1
    makes: list[Callable[[], Any]] = [
        partial(
            margin_programme,
            num_tokens,
            j,
            gap,
            last=last,
            margin=margin,
            slack=slack if j < m else None,
        )
        for j in range(1, m + 1)
        if _feasible(j, last, gap, slack, m, margin)
    ]
    kind = f"p1 - p{last + 1} {margin} {gap}, V={num_tokens}"
    return f"gate {m}, {slack}, {kind}", makes, (gap, m, slack)


def _large_gate(margin: Margin, last_gap: bool) -> Iterator[Case]:
    # (Clarabel stops early at a slack of 1/5: .0205 where smaller programmes give .0201)
    yield _gate_case(MANY, WIDE, F(1, 2), F(2, 5), margin, last_gap)


def _feasible(j: int, last: int, gap: F, slack: F, m: int, margin: Margin) -> bool:
    """Can token j (0-based, inside the gate) lie ``slack`` below the top at that margin?"""
    if j == m:
        return True  # rejected by rank alone
    if slack >= 1:
        return False  # nothing lies more than 1 below the top
    if margin == "at least":
        return True
    if last == j:
        return gap >= slack
    if last > j:  # p_1 - p_{m+1} = gap bounds every earlier drop
        return gap > slack
    return slack < (1 + gap) / 2  # last = 1 < j: the room below token 2


def _multiplicative_gate(last_gap: bool, effort: Effort) -> Iterator[Case]:
    for m, alpha in ((2, F(1, 2)), (3, F(1, 10))):
        for gap in (F(1, 10), F(9, 20), F(19, 20)):
            for margin in BOTH if gap == F(9, 20) else BOTH[:1]:
                yield _multiplicative_case(m, alpha, gap, margin, last_gap)


def _multiplicative_case(m: int, alpha: F, gap: F, margin: Margin, last_gap: bool) -> Case:
    last = m if last_gap else 1
    inside = partial(
        margin_programme, competitor=1, gap=gap, last=last, factor=alpha, margin=margin
    )
    beyond = partial(margin_programme, m + 1, m, gap, last=last, margin=margin)
    # p_{m+1} -> 0 over a tail that keeps its mass: the distance to the infimum is of the order of
    # 1/tail
    return (
        f"gate {m}, x {alpha}, p1 - p{last + 1} {margin} {gap}",
        [partial(with_tail, inside, m + 2, 1, 10**60), beyond],
        (gap, m, alpha),
    )


def _large_multiplicative(last_gap: bool) -> Iterator[Case]:
    yield _multiplicative_case(WIDE, F(1, 2), F(9, 20), "exactly", last_gap)


def _gate_ends(margin: Margin, last_gap: bool) -> Iterator[Case]:
    for m, slack, gap in ((2, LOW, LOW / 2), (2, LOW, F(1, 2)), (3, F(19, 20), HIGH)):
        yield _gate_case(m + 1, m, slack, gap, margin, last_gap)


def _multiplicative_ends(last_gap: bool) -> Iterator[Case]:
    for m, alpha, gap in ((2, LOW, LOW), (3, F(19, 20), LOW), (2, F(19, 20), HIGH)):
        yield _multiplicative_case(m, alpha, gap, "exactly", last_gap)


ENDS: Large = {
    "margin.gate.at-least": partial(_gate_ends, "at least", False),
    "margin.gate.exact": partial(_gate_ends, "exactly", False),
    "margin.gate.last.exact": partial(_gate_ends, "exactly", True),
    "margin.gate.last.at-least": partial(_gate_ends, "at least", True),
    "margin.gate.multiplicative": partial(_multiplicative_ends, False),
    "margin.gate.multiplicative.last": partial(_multiplicative_ends, True),
}
LARGE: Large = {
    "margin.gate.at-least": partial(_large_gate, "at least", False),
    "margin.gate.exact": partial(_large_gate, "exactly", False),
    "margin.gate.last.exact": partial(_large_gate, "exactly", True),
    "margin.gate.last.at-least": partial(_large_gate, "at least", True),
    "margin.gate.multiplicative": partial(_large_multiplicative, False),
    "margin.gate.multiplicative.last": partial(_large_multiplicative, True),
}


CASES: dict[str, CasesOf] = {
    "margin.gate.at-least": partial(_gate, "at least", False),
    "margin.gate.exact": partial(_gate, "exactly", False),
    "margin.gate.last.exact": partial(_gate, "exactly", True),
    "margin.gate.last.at-least": partial(_gate, "at least", True),
    "margin.gate.multiplicative": partial(_multiplicative_gate, False),
    "margin.gate.multiplicative.last": partial(_multiplicative_gate, True),
}
# Extremal targets in rationals: (arguments, target, 0-based competitor) at which the bound is the
# certificate itself.
EXTREMAL: Extremal = {
    "margin.gate.at-least": [
        ((R(1, 5), 3, R(9, 10)), [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], 3),
        ((R(1, 2), 3, R(1, 5)), [R(3, 4), R(1, 4), R(0), R(0)], 1),
    ],
    "margin.gate.exact": [
        ((R(1, 5), 3, R(9, 10)), [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], 3),
        ((R(1, 10), 2, R(1, 5)), [R(12, 30), R(9, 30), R(9, 30)], 2),
    ],
    "margin.gate.last.exact": [
        ((R(2, 5), 2, R(1, 5)), [R(8, 15), R(5, 15), R(2, 15)], 1),
        ((R(4, 5), 2, R(1, 5)), [R(4, 5), R(1, 5), R(0)], 1),
        ((R(1, 2), 2, R(3, 10)), [R(6, 10), R(3, 10), R(1, 10)], 1),
    ],
    "margin.gate.last.at-least": [
        ((R(1, 2), 2, R(3, 10)), [R(13, 20), R(7, 20), R(0)], 1),
        ((R(2, 5), 2, R(1, 5)), [R(3, 5), R(2, 5), R(0)], 1),
        ((R(4, 5), 2, R(1, 5)), [R(4, 5), R(1, 5), R(0)], 1),
    ],
    "margin.gate.multiplicative": [
        ((R(1, 5), 3, R(1, 10)), [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], 3),
        ((R(9, 10), 3, R(1, 2)), [R(19, 20), R(1, 20), R(0), R(0)], 1),
    ],
    "margin.gate.multiplicative.last": [
        ((R(1, 5), 3, R(1, 10)), [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], 3),
        ((R(2, 3), 2, R(1, 2)), [R(2, 3), R(1, 3), R(0)], 1),
        ((R(9, 10), 3, R(1, 2)), [R(9, 10), R(1, 10), R(0), R(0)], 1),
    ],
}
register(CASES, EXTREMAL, LARGE, ENDS)
