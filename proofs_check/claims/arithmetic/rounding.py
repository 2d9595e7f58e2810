"""Checks of the rounding bounds: errors of the model simulated at high precision, the worst signs
included, intervals over all spans, and the trees' dual form against minima solved from their
definition."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction as F

import mpmath
import sympy
from sympy import Rational, log

from derivations.arithmetic.rounding import LOG_RATIO, NORMALISER, TREE_DUAL, WEIGHT
from derivations.kernels.evaluation import UNIT
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.enclosure import enclose_sign
from proofs_check.methods.numbers import MP
from proofs_check.methods.problems import Problem, tree_problems
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

mpf = mpmath.mpf
U = mpf(2) ** -53
R = Rational
COVER = R(65, 64)


@check("bound.weight", method="steps")
def prove_weight(formula: Formula, effort: Effort) -> Evidence:
    return prove_identities(
        WEIGHT, [("span 100", formula(sympy, R(100)), COVER * 108 * UNIT)], [{}]
    )


@check("bound.weight", method="enclosure")
def enclose_weight(formula: Formula, effort: Effort) -> Evidence:
    """(bound - (exp(span u)(1 + 8 u) - 1))/u >= 0 over spans of 0 to 745; the lower error is the
    smaller one."""
    return enclose_sign(
        lambda n, span: (
            formula(n, span) / n.number(F(1, 2**53))
            - n.expm1(span * n.number(F(1, 2**53))) * (2**53 + 8)
            - 8
        ),
        [(F(0), F(745))],
        detail="all spans",
    )


@tallied(
    "bound.weight",
    method="search",
    relation=">=",
    confirm=mpf(0),
    refute=U / 100,
    told="errors at their worst",
)
def simulate_weight(formula: Formula, effort: Effort) -> Cases:
    """The gap rounded once and exp off by 8 u, both at their worst, at spans up to 745."""
    for span in (mpf(0), mpf("1e-8"), mpf(1), mpf(30), mpf(300), mpf(745)):
        bound = MP.mpf(formula(MP, span))
        for sign in (1, -1):
            wrong = abs(mpmath.exp(sign * span * U) * (1 + sign * 8 * U) - 1)
            yield f"span {mpmath.nstr(span, 4)}, sign {sign}", bound, wrong, wrong


@check("bound.normaliser", method="steps")
def prove_normaliser(formula: Formula, effort: Effort) -> Evidence:
    found = formula(sympy, R(3), R(1, 1000))
    return prove_identities(NORMALISER, [("gap 3", found, COVER * (11 * UNIT + R(1, 1000)))], [{}])


@tallied(
    "bound.normaliser",
    method="search",
    relation=">=",
    confirm=mpf(0),
    refute=U / 100,
    told="simulated errors",
)
def simulate_normaliser(formula: Formula, effort: Effort) -> Cases:
    """Every weight at its worst in one direction, then the sum as well: never beyond the bound."""
    rng = random.Random(effort.seed)
    for count in (2, 5, 40):
        for spread in (1, 30, 700):
            gaps = [mpf(0)] + [mpf(rng.uniform(0, spread)) for _ in range(count - 1)]
            weights = [mpmath.exp(-g) for g in gaps]
            total = mpmath.fsum(weights)
            mean_gap = mpmath.fsum(g * w for g, w in zip(gaps, weights, strict=True)) / total
            for sum_error, sign in ((mpf(0), 1), (count * U, 1), (mpf("1e-3"), 1), (count * U, -1)):
                moved = [mpmath.exp(-g * (1 - sign * U)) * (1 + sign * 8 * U) for g in gaps]
                error = abs(mpmath.fsum(moved) * (1 + sign * sum_error) / total - 1)
                yield (
                    f"{count} weights, spread {spread}, {mpmath.nstr(sum_error, 3)}",
                    MP.mpf(formula(MP, mean_gap, sum_error)),
                    error,
                    error,
                )


@check("bound.log_ratio", method="steps")
def prove_log_ratio(formula: Formula, effort: Effort) -> Evidence:
    found = formula(sympy, R(2), R(1, 1000), R(3), R(1, 2000), R(50))
    expected = COVER * (R(3, 2000) + 40 * UNIT + 150 * UNIT)
    return prove_identities(LOG_RATIO, [("a ratio", found, expected)], [{}])


@tallied(
    "bound.log_ratio",
    method="search",
    relation=">=",
    confirm=mpf(0),
    refute=U / 100,
    told="simulated errors",
)
def simulate_log_ratio(formula: Formula, effort: Effort) -> Cases:
    """d = (h - g) + (log T - log S), every operation at its worst in one direction."""
    rng = random.Random(effort.seed)
    for error in (U, mpf("1e-12"), mpf("1e-3")):
        for _ in range(20):
            g, h = mpf(rng.uniform(0, 700)), mpf(rng.uniform(0, 40))
            log_s, log_t = mpf(rng.uniform(0, 12)), mpf(rng.uniform(0, 12))
            exact = (h - g) + (log_t - log_s)
            for sign in (1, -1):
                other = mpf(rng.choice((0.5, 1, 2))) * error
                moved_t = (log_t + mpmath.log(1 + sign * other)) * (1 + sign * 8 * U)
                moved_s = (log_s + mpmath.log(1 - sign * error)) * (1 - sign * 8 * U)
                gaps = h * (1 + sign * U) - g * (1 - sign * U)
                computed = (gaps + (moved_t - moved_s)) + sign * U * (abs(gaps) + abs(exact))
                found = abs(computed - exact)
                reach = g + log_s + h + log_t
                yield (
                    f"error {mpmath.nstr(error, 3)}, reach {mpmath.nstr(reach, 5)}",
                    MP.mpf(formula(MP, log_s, error, log_t, other, reach)),
                    found,
                    found,
                )


def _tree_dual_problems(effort: Effort) -> Iterator[Problem]:
    """The true pool and smaller ones, exact weights and weights off by up to 5 %, with levels that
    fit them."""
    rng = random.Random(effort.seed)
    for problem in tree_problems(effort):
        probs = problem.target_probs
        for exact in (True, False):
            pool, total = [0], probs[0]
            for i in sorted(problem.spokes, key=lambda i: probs[i]):
                if not probs[i] * len(pool) < total or probs[i] == 0:
                    break
                pool.append(i)
                total += probs[i]
                slack = F(0) if exact else F(rng.randint(0, 50), 1000)
                chosen = {k: probs[k] * (1 - slack) if k else probs[0] for k in pool}
                level = sum(chosen.values(), F(0)) / len(pool)
                if all(chosen[k] <= level for k in pool[1:]):
                    yield problem.with_arguments(
                        probs, tuple(chosen.get(k) for k in range(len(probs))), level
                    )


@check("tree.dual", method="steps")
def prove_tree_dual(formula: Formula, effort: Effort) -> Evidence:
    top, own = R(3, 5), R(1, 5)
    value = top * log(R(3, 2)) + own * log(R(1, 2))
    found = formula(sympy, [top, own, own], [top, own, None], R(2, 5))
    return prove_identities(TREE_DUAL, [("equality at w = p, c' = c", found, value)], [{}])


check_by_solvers("tree.dual", _tree_dual_problems, relation="<=", at_most=6)
