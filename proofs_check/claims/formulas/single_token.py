"""Checks of the single-token certificate: pooling, its KKT point and the best competitor. The
witnesses start from the constraint alone."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from sympy import log, symbols

from derivations.formulas.single_token import COMPETITOR, POOLING, PREFIXES
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, exact_cases, solve, tallied
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.joint import JointProgramme, minimise_jointly
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.problems import single_problems
from proofs_check.methods.steps import Identities, prove_identities, proved
from proofs_check.methods.targets import MANY, generate_targets
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check


@proved("single.pool", POOLING)
def prove_pooled_value(formula: Formula, effort: Effort) -> Identities:
    """For pools of 2 to 4 tokens: the formula equals sum p log(p/c) with c from stationarity,
    symbolically."""
    for size in (2, 3, 4):
        # rational targets decide which tokens pool; the value is then compared exactly
        target = [sympy.Rational(12 - k, 100) for k in range(size - 1)]
        target = [*target, 1 - sum(target) - sympy.Rational(2, 100), sympy.Rational(2, 100)]
        target.sort(reverse=True)
        level = sympy.Symbol("c", positive=True)
        competitor = len(target) - 1
        pools = [k for k in range(1, len(target)) if _is_level(target, k, competitor)]
        pooled = [*target[: pools[0]], target[competitor]]
        solution = sympy.solve(
            -target[competitor] / level + 1 - sum(x / level - 1 for x in pooled[:-1]), level
        )[0]
        derived = sum(x * log(x / solution) for x in pooled)
        yield f"pool of {len(pooled)} in {target}", formula(sympy, target, competitor), derived


def _is_level(target: list[Any], pooled: int, competitor: int) -> bool:
    """Does the level of the first ``pooled`` tokens and the competitor lie above exactly the
    others?"""
    level = (sum(target[:pooled]) + target[competitor]) / (pooled + 1)
    others = [x for i, x in enumerate(target) if i >= pooled and i != competitor]
    return bool(target[pooled - 1] > level and all(x <= level for x in others))


check_by_solvers("single.pool", single_problems)


@proved("single.kkt", POOLING)
def prove_multipliers(formula: Formula, effort: Effort) -> Identities:
    """The KKT residuals of the formula's point vanish on a pool of two or three with an untouched
    token."""
    for target in ([7, 1, 0], [6, 5, 2, 1], [50, 40, 5, 3, 2]):
        probs = [sympy.Rational(x, sum(target)) for x in target]
        for j in range(1, len(probs)):
            for name, residual in _kkt_equations(formula(probs, j), probs, j):
                yield f"{name}, {probs}, j={j + 1}", residual, sympy.S.Zero


def _kkt_equations(point: Any, probs: Any, competitor: int) -> Iterator[tuple[str, Any]]:
    draft, slopes, bounds = point
    yield "sum of the draft", sum(draft) - 1
    for i, prob in enumerate(probs):
        pull = slopes[i] if i != competitor else -sum(slopes)
        cost = prob / draft[i] if prob > 0 else 0
        yield f"stationarity at {i + 1}", -cost + 1 + pull - bounds[i]
        yield f"slackness of draft_{i + 1} <= draft_j", slopes[i] * (draft[competitor] - draft[i])
        yield f"slackness of draft_{i + 1} >= 0", bounds[i] * draft[i]


@check("single.kkt", method="exact-cases")
def verify_kkt_exactly(formula: Formula, effort: Effort) -> Evidence:
    def holds(case: tuple[tuple[Fraction, ...], int]) -> Any:
        probs, competitor = case
        draft, slopes, bounds = formula(list(probs), competitor)
        for name, residual in _kkt_equations((draft, slopes, bounds), probs, competitor):
            if residual != 0:
                return f"{name}: residual {float(residual):.3g}"
        signs = [*slopes, *bounds, *draft, *(draft[competitor] - value for value in draft)]
        return True if min(signs) >= 0 else f"a multiplier or slack of {float(min(signs)):.3g}"

    problems = single_problems(effort, every_competitor=True)
    return exact_cases(
        holds, ((p.label, (p.target_probs, p.hub)) for p in problems if p.target_probs[p.hub] < 1)
    )


@check("single.kkt", method="optimiser", twice=True)
def compare_points(formula: Formula, effort: Effort) -> Evidence:
    """The optimiser's draft and the formula's: KL is strongly convex, so half of the digits of the
    gap carry over."""
    tally = Tally("optimiser", confirm=mpmath.mpf("1e-22"), refute=mpmath.mpf("1e-12"))
    for problem in single_problems(effort):
        found = solve(problem, effort.digits).draft_probs
        draft = formula(list(problem.target_probs), problem.hub)[0]
        with working_digits(effort.digits):
            distance = max(abs(a - to_mp(b)) for a, b in zip(found, draft, strict=True))
            tally.add(problem.label, distance, MP.mpf(0), MP.mpf(0))
        if tally.refuted:
            break
    return tally.evidence("distance of the optimiser's draft")


@check("single.competitor", method="steps")
def prove_exchange(formula: Formula, effort: Effort) -> Evidence:
    """The exchange step, and the formula against the two costs of a three-token target,
    symbolically compared."""
    probs = [sympy.Rational(5, 9), sympy.Rational(3, 9), sympy.Rational(1, 9)]
    top, second = symbols("p1 p2", positive=True)
    pair = (top * log(2 * top / (top + second)) + second * log(2 * second / (top + second))).subs(
        {top: probs[0], second: probs[1]}
    )
    return prove_identities(
        COMPETITOR, [("rejected {2, 3} of (5, 3, 1)/9", formula(sympy, probs, [1, 2]), pair)], [{}]
    )


@check("single.competitor", method="optimiser", twice=True)
def enumerate_competitors(formula: Formula, effort: Effort) -> Evidence:
    """The minimum over every rejected token, each solved from its definition, for every lower level
    set."""
    tally = Tally.at_digits("optimiser", effort.digits)
    by_target: dict[tuple[Fraction, ...], list[Any]] = {}
    for problem in single_problems(effort, every_competitor=True):
        by_target.setdefault(problem.target_probs, []).append(problem)
    for probs, problems in by_target.items():
        if 7 < len(probs) < MANY:
            continue
        brackets = [solve(problem, effort.digits) for problem in problems]
        with working_digits(effort.digits + 30):
            numbers = tuple(to_mp(prob) for prob in probs)
            for first in range(len(problems)):
                rejected = [problem.hub for problem in problems[first:]]
                value = formula(MP, numbers, rejected)
                lower, upper = (
                    min(b.lower for b in brackets[first:]),
                    min(b.upper for b in brackets[first:]),
                )
                tally.add(f"{problems[0].label}, rejected {rejected}", value, lower, upper)
        if tally.refuted:
            break
    return tally.evidence(f"{effort.digits} digits, every rejected token solved")


@proved("single.prefixes", PREFIXES)
def prove_prefixes(formula: Formula, effort: Effort) -> Identities:
    """(5, 2, 2, 1)/10 and token 4: pools of two, three and four."""
    probs = [sympy.Rational(x, 10) for x in (5, 2, 2, 1)]
    for size in (1, 2, 3):
        pooled = [*probs[:size], probs[3]]
        level = sum(pooled) / len(pooled)
        value = sum(x * log(x / level) for x in pooled)
        yield f"{size} others", formula(sympy, probs, 3, size), value


@check("single.prefixes", method="optimiser")
def level_prefixes(formula: Formula, effort: Effort) -> Evidence:
    """The least KL with that many equalities, the draft alone free."""
    tally = Tally.at_digits("optimiser", effort.digits)
    targets = [t.target_probs for t in generate_targets(effort.seed, 1, max_vocab=6)]
    for probs in (target for target in targets if min(target) > 0):
        fixed = [({i: Fraction(1)}, p) for i, p in enumerate(probs[1:], 1)]
        j = len(probs) - 1
        for size in range(1, j):
            programme = JointProgramme(len(probs), equalities=list(fixed))
            for i in range(size):
                programme.apart(programme.draft(i), programme.draft(j), Fraction(0))
            found = minimise_jointly(programme, digits=effort.digits)
            with working_digits(effort.digits + 30):
                value = MP.mpf(formula(MP, tuple(map(to_mp, probs)), j, size))
                tally.add(f"{probs}, k={size}", value, found.lower, found.upper)
            if tally.refuted:
                return tally.evidence()
    return tally.evidence(f"{effort.digits} digits, a draft with k equalities")


@tallied("single.prefixes", method="search", relation="<=", told="beside the solved certificates")
def order_prefixes(formula: Formula, effort: Effort) -> Cases:
    """V(k - 1) <= V(k), and the certificate between V(k) up to the pool and V(k) from it on; the
    pool is read off the solved draft, which lowers its tokens."""
    for problem in single_problems(effort):
        found, probs, j = solve(problem, effort.digits), problem.target_probs, problem.hub
        lowered = [to_mp(p) - q > 1e-15 for p, q in zip(probs, found.draft_probs, strict=True)]
        pooled, numbers = sum(lowered), tuple(map(to_mp, probs))
        before = MP.mpf(0)
        for size in range(min(len(probs) - 1, pooled + 3) + 1):
            value, label = MP.mpf(formula(MP, numbers, j, size)), f"{problem.label}, k={size}"
            yield label, before, value, value
            if size <= pooled:
                yield label, value, found.lower, found.upper
            if size >= pooled:
                yield label, -value, -found.upper, -found.lower
            before = value
