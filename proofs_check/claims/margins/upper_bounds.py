"""Checks of the upper bounds at a margin: attained by explicit targets, exceeded by none of the
certificates solved from their definition, and ordered over the whole domain."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction as F

import sympy
from sympy import log

from derivations.formulas.single_token import single_certificate
from derivations.formulas.strict import pair_cost, phi
from derivations.formulas.tree import tree_certificate
from derivations.language.claim import Formula
from derivations.margins.margins import mass_and_gap
from derivations.margins.upper_bounds import (
    UPPER_RELAXED,
    UPPER_SINGLE,
    UPPER_STRICT,
    UPPER_TREE,
    single_vertex,
)
from proofs_check.methods.cases import against_definition
from proofs_check.methods.conic import against_cone, check_by_solvers
from proofs_check.methods.problems import Problem, one_hot_tree, single_problems, tree_problems
from proofs_check.methods.slopes import Identity, Region, Slope, enclose_regions
from proofs_check.methods.steps import Identities, prove_identities, proved
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational


def _strict(effort: Effort) -> Iterator[Problem]:
    for problem in single_problems(effort):
        probs = problem.target_probs
        if problem.hub == 1:
            yield problem.with_arguments(probs[0] - probs[1], len(probs))


@proved("upper.strict", UPPER_STRICT)
def prove_strict(formula: Formula, effort: Effort) -> Identities:
    for gap, count in ((R(1, 3), 2), (R(1, 5), 5), (R(1, 2), 9)):
        top, own = (1 + (count - 1) * gap) / count, (1 - gap) / count
        yield (
            f"attained, g={gap}, V={count}",
            formula(sympy, gap, count),
            pair_cost(sympy, top, own),
        )


@check("upper.strict", method="enclosure")
def enclose_strict(formula: Formula, effort: Effort) -> Evidence:
    """phi(g) <= bound <= g log 2 for all real V >= 2: with v = 2/V the bound falls in v, from g log
    2 to phi(g)."""
    gap, share = sympy.symbols("g v", positive=True)
    mass = gap + share * (1 - gap)
    bound = mass_and_gap(sympy, mass, gap)
    falls = Slope(
        "-d/dv = (1-g)/2 log(s^2/(s^2-g^2)), s = g + v (1-g)",
        bound,
        share,
        (((1 - gap) / 2, mass**2 / (mass**2 - gap**2)),),
        {},
        sign=-1,
    )
    ends = [
        Identity("phi(g) at v = 1, V = 2", bound.subs(share, 1), phi(sympy, gap)),
        Identity("g log 2 as v falls to 0, V grows", sympy.limit(bound, share, 0), gap * log(2)),
    ]
    regions = [Region("all margins", (R(1, 3), R(1, 5)), bound)]
    return enclose_regions(
        formula, (gap, 2 / share), regions, [*ends, falls], "0 <= g <= 1, V >= 2"
    )


check_by_solvers("upper.strict", _strict, relation=">=")


GAPS = (
    F(1, 10),
    F(1, 4),
    F(3, 10),
    F(5, 13),
    F(1, 2),
    F(3, 5),
    F(13, 20),
    F(9, 10),
    F(1),
    F(1, 64),
)


def _attaining() -> Iterator[Problem]:
    for gap in GAPS:
        target = tuple(single_vertex(gap))
        last = len(target) - 1
        if last < 8 or last > 60:
            yield Problem(f"U attained at d={gap}", target, last, tuple(range(last)), 1, (gap,))


def _single(effort: Effort) -> Iterator[Problem]:
    for problem in single_problems(effort):
        gap = problem.target_probs[0] - problem.target_probs[problem.hub]
        if gap > 0:
            yield problem.with_arguments(gap)


@proved("upper.single", UPPER_SINGLE)
def prove_single(formula: Formula, effort: Effort) -> Identities:
    for gap in (R(1, 4), R(3, 10), R(5, 13), R(3, 5), R(9, 10)):
        target = single_vertex(gap)
        value = single_certificate(sympy, target, len(target) - 1)
        yield f"attained at d={gap}", formula(sympy, gap), value
    yield "U(1/2) = log(3/2)", formula(sympy, R(1, 2)), log(R(3, 2))


@check("upper.single", method="enclosure")
def enclose_single(formula: Formula, effort: Effort) -> Evidence:
    """phi(d) <= U(d) <= log(1+d) for every d in (0, 1]: d = 1/(N+x), N = floor(1/d) a symbol, x
    from 0 to 1.

    Below U: U >= d log 2 >= phi(d), as t log(1+1/t) grows and phi(d) <= d^2 log 2. Above: the first
    branch's slack is
    >= 0 because N <= N + x; the second's is concave in x, 0 at x = 1, and the first's at x =
    N/(N+1).
    """
    whole, x, t, u = sympy.symbols("N x t u", positive=True)
    z = sympy.Symbol("z", nonnegative=True)
    gap = 1 / (whole + x)
    first = whole * gap * log((whole + 1) / whole)
    second = log(whole + 2) - log(whole + x) + x * gap * log(x)
    regions = [
        Region("r not pooled", (2, R(1, 3)), first),
        Region("r pooled", (2, R(4, 5)), second),
    ]
    scaled, pooled, slack = t * log(1 + 1 / t), (second - first) / gap, log(1 + gap) - second
    corner, beyond = (
        whole / (whole + 1),
        1 - z * x / (1 + z),
    )  # beyond: x from N/(N+1) to 1, in boxes, with N = 1/z
    rising = log(1 + u) - u / (1 + u)
    statements: list[Identity | Slope] = [
        Slope("log(1+u) - u/(1+u) grows with u = 1/t", rising, u, (), {}, rest=u / (1 + u) ** 2),
        Identity("from 0", rising.subs(u, 0), 0),
        Identity("and is the slope of t log(1+1/t)", sympy.diff(scaled, t), rising.subs(u, 1 / t)),
        Identity(
            "log 2 at t = 1: unpooled, U is d times its value at N >= 1",
            first,
            gap * scaled.subs(t, whole),
        ),
        Identity(
            "and log(1+d) is d times its value at N + x",
            log(1 + gap),
            gap * scaled.subs(t, whole + x),
        ),
        Identity("the branches meet at x = N/(N+1)", pooled.subs(x, corner), 0),
        Slope(
            "beyond it the pooled value is the larger",
            pooled,
            x,
            ((1, x * (whole + 2) / (whole + x)),),
            {whole: 1 / z, x: beyond},
        ),
        Identity("the pooled slack is 0 at x = 1", slack.subs(x, 1), 0),
        Slope(
            "and concave in x",
            sympy.diff(slack, x),
            x,
            ((2 * whole / (whole + x) ** 3, 1 / x),),
            {whole: 1 / z},
            sign=-1,
            rest=1 / (whole + x + 1) ** 2 - 1 / (whole + x) ** 2 + whole / (x * (whole + x) ** 2),
        ),
    ]
    return enclose_regions(
        formula, (gap,), regions, statements, "0 < d <= 1, every N = floor(1/d)", {whole + x: whole}
    )


@check("upper.single", method="optimiser")
def solve_single(formula: Formula, effort: Effort) -> Evidence:
    return against_definition(formula, [*_attaining(), *_single(effort)], effort, relation=">=")


@check("upper.single", method="conic")
def witness_single(formula: Formula, effort: Effort) -> Evidence:
    """Equality at the attaining targets."""
    return against_cone(formula, list(_attaining()))


def _tree(effort: Effort) -> Iterator[Problem]:
    for problem in tree_problems(effort):
        width = len(problem.spokes)
        if problem.spokes == tuple(range(1, width + 1)):
            yield problem.with_arguments(
                problem.target_probs[0] - problem.target_probs[width], width
            )
    yield one_hot_tree().with_arguments(F(1), len(one_hot_tree().spokes))


@proved("upper.tree", UPPER_TREE)
def prove_tree(formula: Formula, effort: Effort) -> Identities:
    thin = sympy.Symbol("e", positive=True)
    for width in (1, 2, 4):
        gap = R(1, 3)
        target = [gap + thin, *[thin] * width]
        level = sum(target) / (width + 1)
        value = sympy.limit(sum(p * log(p / level) for p in target), thin, 0)
        yield f"approached, m={width}", formula(sympy, gap, width), value
    one_hot = [R(1), R(0), R(0), R(0)]
    yield from [
        (f"attained, m={m}", formula(sympy, R(1), m), tree_certificate(sympy, one_hot, m))
        for m in (1, 2, 3)
    ]


check_by_solvers("upper.tree", _tree, relation=">=")


def _relaxed(effort: Effort) -> list[Problem]:
    tied = [
        Problem(f"{n} tied, one of 0", (*[F(1, n)] * n, F(0)), n, tuple(range(n)), 1, (F(1, n),))
        for n in (2, 10)
    ]
    return [*tied, *(p.with_arguments(p.target_probs[0]) for p in single_problems(effort))]


@check("upper.relaxed", method="steps")
def prove_relaxed(formula: Formula, effort: Effort) -> Evidence:
    value = single_certificate(sympy, [R(1, 2), R(1, 2), R(0)], 2)
    return prove_identities(
        UPPER_RELAXED, [("attained by (1/2, 1/2, 0)", formula(sympy, R(1, 2)), value)], [{}]
    )


check_by_solvers("upper.relaxed", _relaxed, relation=">=")
