"""Comparing a formula, case by case, with a value that was bracketed without it. One tolerance to
confirm, a wider one to refute; between the two the case is undecided.

Example: a witness brackets a minimum in [.0510, .0510 + 1e-50]; a formula that gives .0511 is off
by 1e-4 and refuted, one that agrees to 45 digits is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any, Literal

import mpmath

from derivations.language.claim import Formula
from proofs_check.methods.domain import TOKENS, Domain, joined
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.optimise import Bracket, minimise_with_hub
from proofs_check.methods.problems import Problem
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

__all__ = [
    "Cases",
    "Relation",
    "Tally",
    "against_definition",
    "exact_cases",
    "exactly",
    "least_of",
    "solve",
    "tallied",
]

Relation = Literal["=", "<=", ">="]
Cases = Iterator[tuple[str, Any, Any, Any]]  # label, the formula's value, bounds of the truth


class Tally:
    """Collects residuals; ``relation`` is "=", "<=" (formula below the truth) or ">=" (formula
    above it)."""

    def __init__(
        self, method: str, *, confirm: mpmath.mpf, refute: mpmath.mpf, relation: Relation = "="
    ) -> None:
        self.method, self.confirm, self.refute, self.relation = method, confirm, refute, relation
        self.worst, self.point, self.cases = mpmath.mpf(0), "", 0
        self.domain: Domain = {}

    @classmethod
    def at_digits(cls, method: str, digits: int, relation: Relation = "=") -> Tally:
        """Confirm within 10**-(digits - 10), refute beyond 10**-(digits - 20)."""
        ten = mpmath.mpf(10)
        return cls(
            method, confirm=ten ** -(digits - 10), refute=ten ** -(digits - 20), relation=relation
        )

    def add(
        self, label: str, formula_value: mpmath.mpf, lower: mpmath.mpf, upper: mpmath.mpf
    ) -> None:
        """Enter one case whose true value lies in [lower, upper]."""
        self.cases += 1
        if isinstance(formula_value, mpmath.mpc):  # outside its domain: on no side of the truth
            self.worst, self.point = mpmath.inf, label
            return
        over, under = formula_value - upper, lower - formula_value
        residual = {"=": max(over, under, upper - lower), "<=": over, ">=": under}[self.relation]
        if mpmath.isnan(residual):  # +inf against +inf agrees; +inf against a number does not
            residual = mpmath.mpf(0) if formula_value == lower == upper else mpmath.inf
        if residual > self.worst or not self.point:
            self.worst, self.point = max(residual, self.worst), label

    def of_tokens(self, *counts: int) -> None:
        """Note how many tokens the solved cases have, where the formula's arguments don't say."""
        self.domain = joined([self.domain, *({TOKENS: (count, count)} for count in counts)])

    @property
    def refuted(self) -> bool:
        return bool(self.worst > self.refute)

    def evidence(self, detail: str = "") -> Evidence:
        if self.refuted:
            verdict = Verdict.REFUTED
        else:
            verdict = (
                Verdict.VERIFIED if self.worst <= self.confirm and self.cases else Verdict.UNDECIDED
            )
        digits = float(-mpmath.log10(self.worst)) if 0 < self.worst < mpmath.inf else None
        return Evidence(
            self.method,
            verdict,
            digits,
            mpmath.nstr(self.worst, 3),
            self.point,
            self.cases,
            detail=detail,
            domain=self.domain,
        )


def tallied(
    claim: str,
    *,
    method: str,
    relation: Relation = "=",
    confirm: Any = None,
    refute: Any = None,
    more: int = 0,
    told: str = "",
) -> Callable[[Callable[[Formula, Effort], Cases]], Callable]:
    """Register a generator of cases as the check of a claim by a method.

    Each case is what ``Tally.add`` takes, computed with ``more`` digits than the effort's. Without
    ``confirm`` and ``refute`` the tolerances are those of ``Tally.at_digits``. An example::

        @tallied("kernel.filter_size", method="search", relation=">=", confirm=0, refute=1e-20)
        def search_size(formula, effort):
            yield "one pair", formula(MP, kl), mean, mean
    """

    def register(cases: Callable[[Formula, Effort], Cases]) -> Callable:
        @check(claim, method=method)
        @wraps(cases)
        def compare(formula: Formula, effort: Effort) -> Evidence:
            tally = Tally.at_digits(method, effort.digits, relation)
            if refute is not None:
                tally.confirm, tally.refute = mpmath.mpf(confirm), mpmath.mpf(refute)
            with working_digits(effort.digits + more):
                for case in cases(formula, effort):
                    tally.add(*case)
                    if tally.refuted:
                        break
            return tally.evidence(told)

        return compare

    return register


def against_definition(
    formula: Formula, problems: Iterable[Problem], effort: Effort, *, relation: Relation = "="
) -> Evidence:
    """``formula(numbers, *problem.arguments)`` against the bracketed solution of each problem.

    Confirmed within 10**-(digits - 10), that is 1e-40 at 50 digits; refuted beyond 10**-(digits -
    20). Every tenth problem is solved again at the second precision, and the two brackets must
    overlap."""
    digits, again_at = effort.digits, effort.second_digits
    tally = Tally.at_digits("optimiser", digits, relation)
    repeated = 0
    for number, problem in enumerate(problems):
        bracket = solve(problem, digits)
        tally.of_tokens(len(problem.target_probs))
        with working_digits(digits + 30):
            value = MP.mpf(formula(MP, *exactly(problem.arguments)))
            tally.add(problem.label, value, bracket.lower, bracket.upper)
        if tally.refuted:
            break
        if number % 10 == 3:
            if not _overlap(bracket, solve(problem, again_at), digits):
                return Evidence(
                    "optimiser",
                    Verdict.UNDECIDED,
                    None,
                    "brackets differ",
                    problem.label,
                    tally.cases,
                )
            repeated += 1
    return tally.evidence(f"{digits} digits; {repeated} cases again at {again_at}")


def _overlap(first: Bracket, second: Bracket, digits: int) -> bool:
    with working_digits(2 * digits):
        slack = mpmath.mpf(10) ** -(digits - 5)
        return bool(second.lower <= first.upper + slack and first.lower <= second.upper + slack)


def solve(problem: Problem, digits: int) -> Bracket:
    """The bracket of a problem, solved once a process however many claims and mutants ask for
    it."""
    return _solve_once(
        problem.target_probs, problem.hub, problem.spokes, problem.sign, digits, problem.order
    )


def least_of(problems: Iterable[Problem], digits: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Bounds of the least value of several problems: the minimum over the union of their
    regions."""
    brackets = [solve(problem, digits) for problem in problems]
    return min(b.lower for b in brackets), min(b.upper for b in brackets)


@lru_cache(maxsize=20_000)
def _solve_once(
    target_probs: tuple[Fraction, ...],
    hub: int,
    spokes: tuple[int, ...],
    sign: int,
    digits: int,
    order: Fraction | None,
) -> Bracket:
    return minimise_with_hub(target_probs, hub, spokes, sign=sign, digits=digits, order=order)


def exact_cases(holds: Callable[[Any], Any], cases: Iterable[tuple[str, Any]]) -> Evidence:
    """``holds(case)`` in rational arithmetic: True, or a non-zero exact residual (or False) that
    refutes."""
    count = 0
    for label, case in cases:
        count += 1
        verdict = holds(case)
        if verdict is not True:
            return Evidence("exact-cases", Verdict.REFUTED, None, str(verdict), label, count)
    verdict = Verdict.VERIFIED if count else Verdict.UNDECIDED
    return Evidence(
        "exact-cases", verdict, None, "0 (exact)", "", count, detail="rational arithmetic"
    )


def exactly(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fractions, also inside tuples, as numbers of the present mpmath precision."""
    return tuple(
        exactly(item)
        if isinstance(item, tuple)
        else to_mp(item)
        if isinstance(item, Fraction)
        else item
        for item in arguments
    )
