"""Comparing a formula, case by case, with a value that was bracketed without it. One tolerance to confirm, a wider one
to refute; between the two the case is undecided. Knows nothing about where the brackets come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import mpmath

from derivations.claim import Formula
from proofs_check.numbers import MP, to_mp, working_digits
from proofs_check.optimise import Bracket
from proofs_check.outcome import Evidence, Verdict

__all__ = ["Tally", "against_definition", "exact_cases"]


class Tally:
    """Collects residuals; ``relation`` is "=", "<=" (formula below the truth) or ">=" (formula above it)."""

    def __init__(self, method: str, *, confirm: mpmath.mpf, refute: mpmath.mpf, relation: str = "=") -> None:
        if relation not in ("=", "<=", ">="):
            raise ValueError(f"Tally: expected relation =, <= or >=, got {relation!r}")
        self.method, self.confirm, self.refute, self.relation = method, confirm, refute, relation
        self.worst, self.point, self.cases = mpmath.mpf(0), "", 0

    def add(self, label: str, formula_value: mpmath.mpf, lower: mpmath.mpf, upper: mpmath.mpf) -> None:
        """Enter one case whose true value lies in [lower, upper]."""
        self.cases += 1
        over, under = formula_value - upper, lower - formula_value
        residual = {"=": max(over, under, upper - lower), "<=": over, ">=": under}[self.relation]
        if mpmath.isnan(residual):  # +inf against +inf agrees; +inf against a number does not
            residual = mpmath.mpf(0) if formula_value == lower == upper else mpmath.inf
        if residual > self.worst or not self.point:
            self.worst, self.point = max(residual, self.worst), label

    @property
    def refuted(self) -> bool:
        return bool(self.worst > self.refute)

    def evidence(self, detail: str = "") -> Evidence:
        if self.refuted:
            verdict = Verdict.REFUTED
        else:
            verdict = Verdict.VERIFIED if self.worst <= self.confirm and self.cases else Verdict.UNDECIDED
        digits = float(-mpmath.log10(self.worst)) if 0 < self.worst < mpmath.inf else None
        return Evidence(self.method, verdict, digits, mpmath.nstr(self.worst, 3), self.point, self.cases, detail=detail)


def against_definition(
    formula: Formula,
    problems: Iterable[tuple[str, Callable[[int], Bracket], tuple[Any, ...]]],
    *,
    digits: int,
    second_digits: int | None = None,
    relation: str = "=",
) -> Evidence:
    """Each problem is (label, solve, arguments): ``formula(numbers, *arguments)`` against ``solve(digits)``.

    Confirmed within 10**-(digits - 10), that is 1e-40 at 50 digits. With ``second_digits`` every tenth problem is
    solved again at that precision, and the two brackets must overlap.
    """
    confirm, refute = mpmath.mpf(10) ** -(digits - 10), mpmath.mpf(10) ** -(digits - 20)
    tally = Tally("optimiser", confirm=confirm, refute=refute, relation=relation)
    repeated = 0
    for number, (label, solve, arguments) in enumerate(problems):
        bracket = solve(digits)
        with working_digits(digits + 30):
            tally.add(label, MP.mpf(formula(MP, *exactly(arguments))), bracket.lower, bracket.upper)
            if tally.refuted:
                break
        if second_digits is not None and number % 10 == 3:
            again = solve(second_digits)
            with working_digits(second_digits + 10):
                slack = mpmath.mpf(10) ** -(digits - 5)
                if again.lower > bracket.upper + slack or bracket.lower > again.upper + slack:
                    return Evidence("optimiser", Verdict.UNDECIDED, None, "brackets differ", label, tally.cases)
            repeated += 1
    again_at = f"; {repeated} cases again at {second_digits}" if repeated else ""
    return tally.evidence(f"{digits} digits{again_at}")


def exact_cases(holds: Callable[[Any], Any], cases: Iterable[tuple[str, Any]]) -> Evidence:
    """``holds(case)`` in rational arithmetic: True, or a non-zero exact residual (or False) that refutes."""
    count = 0
    for label, case in cases:
        count += 1
        verdict = holds(case)
        if verdict is not True:
            return Evidence("exact-cases", Verdict.REFUTED, None, str(verdict), label, count)
    verdict = Verdict.VERIFIED if count else Verdict.UNDECIDED
    return Evidence("exact-cases", verdict, None, "0 (exact)", "", count, detail="rational arithmetic")


def exactly(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fractions, also inside tuples, as numbers of the present mpmath precision."""
    return tuple(
        exactly(item) if isinstance(item, tuple) else to_mp(item) if isinstance(item, Fraction) else item
        for item in arguments
    )
