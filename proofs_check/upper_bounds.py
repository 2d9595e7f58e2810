"""Checks of the upper bounds at a margin: attained by explicit targets, exceeded by none of the certificates solved
from their definition, and ordered over the whole domain."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import sympy
from sympy import log

from derivations.claim import Formula
from derivations.single_token import single_certificate
from derivations.strict import pair_cost, phi
from derivations.tree import tree_certificate
from derivations.upper_bounds import (
    UPPER_RELAXED,
    UPPER_SINGLE,
    UPPER_STRICT,
    UPPER_TREE,
    single_vertex,
)
from proofs_check.algebra import prove_identities
from proofs_check.cases import against_definition
from proofs_check.conic import against_cone
from proofs_check.jets import all_enclosed, values
from proofs_check.outcome import Evidence
from proofs_check.problems import Problem, single_problems, tree_problems
from proofs_check.registry import Effort, check

R = sympy.Rational


def _strict(effort: Effort) -> list[Problem]:
    found = []
    for problem in single_problems(effort):
        probs = problem.target_probs
        if problem.hub == 1:
            found.append(problem.with_arguments(probs[0] - probs[1], len(probs)))
    return found


@check("upper.strict", method="algebra")
def prove_strict(formula: Formula, effort: Effort) -> Evidence:
    identities = []
    for gap, count in ((R(1, 3), 2), (R(1, 5), 5), (R(1, 2), 9)):
        top, own = (1 + (count - 1) * gap) / count, (1 - gap) / count
        identities.append((f"attained, g={gap}, V={count}", formula(sympy, gap, count), pair_cost(sympy, top, own)))
    return prove_identities(UPPER_STRICT, identities, [{}])


@check("upper.strict", method="enclosure")
def enclose_strict(formula: Formula, effort: Effort) -> Evidence:
    """phi(g) <= bound <= g log 2: the bound is convex in s at fixed g, and falls from s = g to s = 1."""
    away = F(1, 16)
    pieces: list[Any] = []
    for count in (3, 10, 1000):
        pieces.append((f"bound >= phi, V={count}", values(lambda n, g, V=count: formula(n, g, V) - phi(n, g)),
                       [(away, 1 - away)]))  # fmt: skip
        pieces.append((f"bound <= g log 2, V={count}",
                       values(lambda n, g, V=count: g * n.log(g * 0 + 2) - formula(n, g, V)),
                       [(away, 1 - away)]))  # fmt: skip
    return all_enclosed(pieces, max_boxes=20_000, detail="g in [1/16, 15/16]; the rest by lemma.pair")


@check("upper.strict", method="optimiser")
def solve_strict(formula: Formula, effort: Effort) -> Evidence:
    return against_definition(formula, _strict(effort), effort, relation=">=")


@check("upper.strict", method="conic")
def witness_strict(formula: Formula, effort: Effort) -> Evidence:
    return against_cone(formula, _strict(effort), relation=">=")


GAPS = (F(1, 10), F(1, 4), F(3, 10), F(5, 13), F(1, 2), F(3, 5), F(13, 20), F(9, 10), F(1))


def _attaining() -> list[Problem]:
    found = []
    for gap in GAPS:
        target = tuple(single_vertex(gap))
        if len(target) > 8:
            continue
        others = tuple(range(len(target) - 1))
        found.append(Problem(f"U attained at d={gap}", target, len(target) - 1, others, 1, (gap,)))
    return found


def _single(effort: Effort) -> list[Problem]:
    found = []
    for problem in single_problems(effort):
        gap = problem.target_probs[0] - problem.target_probs[problem.hub]
        if gap > 0:
            found.append(problem.with_arguments(gap))
    return found


@check("upper.single", method="algebra")
def prove_single(formula: Formula, effort: Effort) -> Evidence:
    identities = []
    for gap in (R(1, 4), R(3, 10), R(5, 13), R(3, 5), R(9, 10)):
        target = single_vertex(gap)
        value = single_certificate(sympy, target, len(target) - 1)
        identities.append((f"attained at d={gap}", formula(sympy, gap), value))
    identities.append(("U(1/2) = log(3/2)", formula(sympy, R(1, 2)), log(R(3, 2))))
    return prove_identities(UPPER_SINGLE, identities, [{}])


@check("upper.single", method="enclosure")
def enclose_single(formula: Formula, effort: Effort) -> Evidence:
    """phi(d) <= U(d) <= log(1+d) on each [1/(N+1), 1/N] apart from its ends, in both branches, N = 1..6."""
    pieces: list[Any] = []
    for whole in range(1, 7):
        low, high = F(1, whole + 1), F(1, whole)
        inset = (high - low) / 64
        boundary = F(whole + 1, whole * (whole + 2))  # r = N d/(N+1)
        for start, end in ((low + inset, boundary - inset / 8), (boundary + inset / 8, high - inset)):
            box = [(start, end)]
            pieces.append((f"log(1+d) - U, N={whole}",
                           lambda n, d, N=whole: n.log(1 + d) - _branch(formula, n, d, N), box))  # fmt: skip
            pieces.append((f"U - phi, N={whole}",
                           lambda n, d, N=whole: _branch(formula, n, d, N) - phi(n, d), box))  # fmt: skip
    return all_enclosed(pieces, max_boxes=20_000, detail="the ends by algebra: U(1/N) = log(1 + 1/N)")


class _Known:
    """A margin whose floor(1/d) is known: intervals have no floor."""

    def __init__(self, inner: Any, whole: int) -> None:
        self.inner, self.whole = inner, whole

    def __rtruediv__(self, other: Any) -> int:
        return self.whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __mul__(self, other: Any) -> Any:
        return self.inner * other

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class _Lifted:
    """The interval arithmetic, with a known margin taken back to its interval."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def log(self, value: Any) -> Any:
        return self.numbers.log(value)

    def xlogx(self, value: Any) -> Any:
        return self.numbers.xlogx(value.inner if isinstance(value, _Known) else value)


def _branch(formula: Formula, numbers: Any, gap: Any, whole: int) -> Any:
    return formula(_Lifted(numbers), _Known(gap, whole))


@check("upper.single", method="optimiser")
def solve_single(formula: Formula, effort: Effort) -> Evidence:
    problems = [*_attaining(), *_single(effort)]
    return against_definition(formula, problems, effort, relation=">=")


@check("upper.single", method="conic")
def witness_single(formula: Formula, effort: Effort) -> Evidence:
    """Equality at the attaining targets."""
    return against_cone(formula, _attaining())


def _tree(effort: Effort) -> list[Problem]:
    found = []
    for problem in tree_problems(effort):
        width = len(problem.spokes)
        if problem.spokes == tuple(range(1, width + 1)):
            gap = problem.target_probs[0] - problem.target_probs[width]
            found.append(problem.with_arguments(gap, width))
    return found


@check("upper.tree", method="algebra")
def prove_tree(formula: Formula, effort: Effort) -> Evidence:
    thin = sympy.Symbol("e", positive=True)
    identities = []
    for width in (1, 2, 4):
        gap = R(1, 3)
        target = [gap + thin, *[thin] * width]
        level = sum(target) / (width + 1)
        value = sympy.limit(sum(p * log(p / level) for p in target), thin, 0)
        identities.append((f"approached, m={width}", formula(sympy, gap, width), value))
    one_hot = [R(1), R(0), R(0), R(0)]
    identities += [
        (f"attained, m={m}", formula(sympy, R(1), m), tree_certificate(sympy, one_hot, m)) for m in (1, 2, 3)
    ]
    return prove_identities(UPPER_TREE, identities, [{}])


@check("upper.tree", method="optimiser")
def solve_tree(formula: Formula, effort: Effort) -> Evidence:
    return against_definition(formula, _tree(effort), effort, relation=">=")


@check("upper.tree", method="conic")
def witness_tree(formula: Formula, effort: Effort) -> Evidence:
    return against_cone(formula, _tree(effort), relation=">=")


def _relaxed(effort: Effort) -> list[Problem]:
    half = (F(1, 2), F(1, 2), F(0))
    tied = Problem("(1/2, 1/2, 0), j=3", half, 2, (0, 1), 1, (F(1, 2),))
    return [tied, *(p.with_arguments(p.target_probs[0]) for p in single_problems(effort))]


@check("upper.relaxed", method="algebra")
def prove_relaxed(formula: Formula, effort: Effort) -> Evidence:
    value = single_certificate(sympy, [R(1, 2), R(1, 2), R(0)], 2)
    return prove_identities(UPPER_RELAXED, [("attained by (1/2, 1/2, 0)", formula(sympy, R(1, 2)), value)], [{}])


@check("upper.relaxed", method="optimiser")
def solve_relaxed(formula: Formula, effort: Effort) -> Evidence:
    return against_definition(formula, _relaxed(effort), effort, relation=">=")


@check("upper.relaxed", method="conic")
def witness_relaxed(formula: Formula, effort: Effort) -> Evidence:
    return against_cone(formula, _relaxed(effort), relation=">=")
