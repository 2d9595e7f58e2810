"""Checks of the certificates from truncated lists: the coarse problems solved from their
definitions, drafts and tails drawn at random, and the given counterexample in rational numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import partial
from typing import Any

import mpmath
import numpy
import sympy
from sympy import Rational, log

from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Relation, Tally, exact_cases, exactly, solve, tallied
from proofs_check.methods.conic import TOLERANCE, check_by_solvers, clarabel, spread
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.problems import Problem
from proofs_check.methods.steps import prove_known
from proofs_check.methods.targets import MANY, WIDE, generate_targets, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check, check_by

R = Rational
COUNTEREXAMPLE = (F(36, 100), F(30, 100), F(17, 100), F(17, 100))
ITS_DRAFT = (F(345, 1000), F(295, 1000), F(355, 1000), F(5, 1000))


def _lists(effort: Effort) -> Iterator[tuple[str, tuple[F, ...], int]]:
    """(label, target, k) with 2 <= k < V."""
    for target in generate_targets(effort.seed, effort.per_family, min_vocab=3, max_vocab=7):
        for k in sorted({2, len(target.target_probs) - 1}):
            yield f"{target}, k={k}", target.target_probs, k
    yield "the theory's example, k=2", COUNTEREXAMPLE, 2
    if effort.large:
        yield "large", large_target(MANY + 1).target_probs, MANY


def _coarse(probs: tuple[F, ...], k: int) -> tuple[tuple[F, ...], F]:
    return probs[:k], sum(probs[k:], F(0))


def _inside_problems(effort: Effort) -> Iterator[Problem]:
    for label, probs, k in _lists(effort):
        listed, tail = _coarse(probs, k)
        for j in {1, k - 1}:
            spokes = tuple(i for i in range(k) if i != j)
            yield Problem(f"{label}, j={j + 1}", (*listed, tail), j, spokes, 1, (listed, j))


def _tail_problems(effort: Effort) -> Iterator[Problem]:
    for label, probs, k in _lists(effort):
        listed, tail = _coarse(probs, k)
        yield Problem(label, (*listed, tail), k, tuple(range(k)), 1, (listed, tail))


def _accepted_problems(effort: Effort) -> Iterator[Problem]:
    for label, probs, k in _lists(effort):
        for j in {k, len(probs) - 1}:
            bound = min(probs[k - 1], sum(probs[k:], F(0)))
            spokes = tuple(i for i in range(len(probs)) if i != j)
            yield Problem(f"{label}, j={j + 1}", probs, j, spokes, 1, (probs[:k], bound))


PROBLEMS: dict[str, tuple[Callable[[Effort], Iterator[Problem]], Relation]] = {
    "lumped.inside": (_inside_problems, "="),
    "lumped.tail": (_tail_problems, "="),
    "lumped.accepted": (_accepted_problems, "<="),
}
_FIVE = [R(5, 10), R(2, 10), R(1, 10)]
_PAIR = R(5, 10) * log(R(5, 10) / R(3, 10)) + R(1, 10) * log(R(1, 10) / R(3, 10))
_TAIL_PAIR = R(5, 10) * log(R(5, 10) / R(35, 100)) + R(2, 10) * log(R(2, 10) / R(35, 100))
KNOWN: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "lumped.inside": [
        ((_FIVE, 2), _PAIR),
        (([R(4, 10), R(3, 10)], 1), R(4, 10) * log(R(8, 7)) + R(3, 10) * log(R(6, 7))),
    ],
    "lumped.tail": [
        ((_FIVE, R(2, 10)), _TAIL_PAIR),
        (([R(3, 10), R(2, 10)], R(5, 10)), sympy.S.Zero),
    ],
    "lumped.single": [((_FIVE, R(2, 10), [2]), _TAIL_PAIR), ((_FIVE, R(2, 10), []), _TAIL_PAIR)],
    "lumped.accepted": [((_FIVE, R(1, 10)), _PAIR)],
    # m = 2: with one competitor listed and one in the lump all three pool at 1/3; two in the lump
    # cost more
    "lumped.tree": [
        (
            ([R(5, 10), R(2, 10)], R(3, 10), 2, 5),
            log(R(3, 2)) / 2 + log(R(3, 5)) / 5 + R(3, 10) * log(R(9, 10)),
        ),
        (  # of one unlisted token no two can be in the tail, though they would be cheaper
            ([R(50, 100), R(1, 100)], R(49, 100), 2, 1),
            log(R(100, 51)) / 2 + log(R(2, 51)) / 100,
        ),
    ],
    "lumped.kl": [
        (
            ([R(1, 2), R(1, 4), R(1, 4)], [R(1, 4), R(1, 4), R(1, 2)], 1),
            R(1, 2) * log(2) + R(1, 2) * log(R(2, 3)),
        )
    ],
    "lumped.entropy": [
        (([R(1, 2), R(1, 5)], R(3, 10)), log(2) / 2 + R(2, 5) * log(5) + log(10) / 10)
    ],
    "lumped.corners": [(((R(1, 4), R(1, 2)), (R(1, 8), R(1, 4))), R(1, 2) * log(4))],
}


check_by({"steps": partial(prove_known, KNOWN)}, KNOWN)
for _claim, (_problems, _relation) in PROBLEMS.items():
    check_by_solvers(_claim, _problems, relation=_relation, at_most=6)


def _compare_single(relation: str, formula: Formula, effort: Effort) -> Evidence:
    """Every rejected listed token, and the lump, as the draft's maximum, each solved from its
    definition."""
    tally = Tally.at_digits("optimiser", effort.digits, relation)  # type: ignore[arg-type]
    again = 0
    for number, (label, probs, k) in enumerate(_lists(effort)):
        listed, tail = _coarse(probs, k)
        for rejected in (tuple(range(1, k)), (k - 1,)) if k < MANY else ((k - 2, k - 1),):
            problems = [
                Problem("", (*listed, tail), j, tuple(i for i in range(k) if i != j), 1, ())
                for j in rejected
            ]
            problems.append(Problem("", (*listed, tail), k, tuple(range(k)), 1, ()))
            for digits in _digits(effort, number):
                brackets = [solve(problem, digits) for problem in problems]
                with working_digits(digits + 30):
                    value = MP.mpf(formula(MP, *exactly((listed, tail)), rejected))
                    tally.add(
                        label, value, min(b.lower for b in brackets), min(b.upper for b in brackets)
                    )
                again += digits == effort.second_digits
        if tally.refuted:
            break
    return tally.evidence(
        f"{effort.digits} digits, every competitor and the lump; {again} cases again at "
        f"{effort.second_digits}"
    )


def _digits(effort: Effort, number: int) -> tuple[int, ...]:
    """The working digits, and for every tenth case the second precision as well."""
    return (effort.digits, effort.second_digits) if number % 10 == 3 else (effort.digits,)


check("lumped.single", method="optimiser")(partial(_compare_single, "="))
check("refuted.lumped.inside-alone", method="optimiser")(partial(_compare_single, "<="))


@check("refuted.lumped.inside-alone", method="exact-cases")
def refute_at_the_example(formula: Formula, effort: Effort) -> Evidence:
    """The draft's argmax is token 3, rejected and unlisted, at a K_O below the claimed
    threshold."""

    def holds(case: tuple[tuple[F, ...], tuple[F, ...]]) -> object:
        with working_digits(40):
            target, draft = exactly(case)
            pairs = [*zip(target[:2], draft[:2], strict=True), (sum(target[2:]), sum(draft[2:]))]
            divergence = mpmath.fsum(p * mpmath.log(p / q) for p, q in pairs)
            threshold = formula(MP, target[:2], sum(target[2:]), (1,))
            rejected = max(range(4), key=lambda i: draft[i]) != 0
            certified = divergence < threshold
        return True if not (rejected and certified) else f"K_O {mpmath.nstr(divergence, 3)}"

    return exact_cases(holds, [("p = (.36, .30, .17, .17)", (COUNTEREXAMPLE, ITS_DRAFT))])


def _tree_regions(
    probs: tuple[F, ...], k: int, width: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(r, listed competitors): every split of m competitors between the list and the tail."""
    for r in range(min(width, len(probs) - k) + 1):
        for chosen in itertools.combinations(range(1, k), width - r):
            yield r, chosen


def _tree_cases(effort: Effort) -> Iterator[tuple[str, tuple[F, ...], int, int]]:
    for label, probs, k in _lists(effort):
        for width in (1, 2, 3) if k == 2 else (1, 2):
            if any(True for _ in _tree_regions(probs, k, width)) and len(probs) <= 5:
                yield f"{label}, m={width}", probs, k, width
    # three unlisted tokens are nearer than the listed one
    yield "(50, 1, 17, 16, 16)/100, m=3", tuple(F(x, 100) for x in (50, 1, 17, 16, 16)), 2, 3
    yield f"large, m={MANY}", large_target(MANY + 1).target_probs, MANY, MANY


@check("lumped.tree", method="optimiser")
def solve_lumped_tree(formula: Formula, effort: Effort) -> Evidence:
    """The lump cut into r equal tokens that all reach token 1, beside every choice of listed
    competitors."""
    tally = Tally.at_digits("optimiser", effort.digits)
    again = 0
    for number, (label, probs, k, width) in enumerate(_tree_cases(effort)):
        listed, tail = _coarse(probs, k)
        for digits in _digits(effort, number):
            brackets = [
                solve(Problem("", fine, 0, (*chosen, *range(k, k + r)), -1, ()), digits)
                for r, chosen in _tree_regions(probs, k, width)
                for fine in [(*listed, *[tail / r] * r) if r else (*listed, tail)]
            ]
            with working_digits(digits + 30):
                value = MP.mpf(formula(MP, *exactly((listed, tail)), width, len(probs) - k))
                tally.add(
                    label, value, min(b.lower for b in brackets), min(b.upper for b in brackets)
                )
            again += digits == effort.second_digits
        if tally.refuted:
            break
    return tally.evidence(
        f"{effort.digits} digits, all splits of the competitors; {again} cases again at "
        f"{effort.second_digits}"
    )


@check("lumped.tree", method="conic")
def witness_lumped_tree(formula: Formula, effort: Effort) -> Evidence:
    """The coarse problem itself, q_T >= r q_1, by the outside solver."""
    import cvxpy

    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    cases = list(_tree_cases(effort))
    wide = (f"large, m={WIDE}", large_target(WIDE + 2).target_probs, WIDE + 1, WIDE)
    for label, probs, k, width in [*spread(cases, 5, lambda case: len(case[1])), wide]:
        listed, tail = _coarse(probs, k)
        target = numpy.array([float(x) for x in (*listed, tail)])
        present = [i for i, p in enumerate(target) if p > 0]
        least = mpmath.inf
        for r, chosen in _tree_regions(probs, k, width):
            draft = cvxpy.Variable(k + 1, nonneg=True)
            rows = [
                cvxpy.sum(draft) == 1,
                draft[k] >= r * draft[0],
                *(draft[i] >= draft[0] for i in chosen),
            ]
            cost = cvxpy.sum(cvxpy.rel_entr(target[present], draft[present]))
            least = min(least, clarabel(cost, rows))
        value = MP.mpf(formula(MP, *exactly((listed, tail)), width, len(probs) - k))
        tally.add(label, value, least, least)
        if tally.refuted:
            break
    return tally.evidence("cvxpy, Clarabel, coarse")


@tallied("lumped.kl", method="search", relation="<=", more=10, told="random drafts")
def search_log_sum(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for label, probs, k in _lists(effort):
        weights = [mpmath.mpf(rng.randint(1, 1000)) for _ in probs]
        draft = [w / mpmath.fsum(weights) for w in weights]
        target = [to_mp(p) for p in probs]
        exact = mpmath.fsum(
            p * mpmath.log(p / q) for p, q in zip(target, draft, strict=True) if p > 0
        )
        yield label, MP.mpf(formula(MP, target, draft, k)), exact, exact


@tallied(
    "lumped.entropy", method="search", relation="<=", more=10, told="targets and extremal tails"
)
def search_entropies(formula: Formula, effort: Effort) -> Cases:
    """The targets themselves, and tails of the extremal shape, where the bound is attained."""
    for label, probs, k in _lists(effort):
        listed, tail = _coarse(probs, k)
        if not listed[-1]:
            continue
        copies = int(tail / listed[-1])
        extremal = (*listed, *[listed[-1]] * copies, tail - copies * listed[-1])
        for name, law in (("itself", probs), ("extremal tail", extremal)):
            exact = -mpmath.fsum(to_mp(p) * mpmath.log(to_mp(p)) for p in law if p > 0)
            yield f"{label}, {name}", MP.mpf(formula(MP, *exactly((listed, tail)))), exact, exact


@tallied("lumped.corners", method="search", relation=">=", told="points of random boxes")
def search_boxes(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for _ in range(20):
        masses, drafts = (
            sorted(mpmath.mpf(rng.randint(1, 10**6)) / 10**6 for _ in range(2)) for _ in range(2)
        )
        bound = MP.mpf(formula(MP, tuple(masses), tuple(drafts)))
        for a, b in itertools.product(range(5), repeat=2):
            x = masses[0] + (masses[1] - masses[0]) * a / 4
            y = drafts[0] + (drafts[1] - drafts[0]) * b / 4
            exact = x * mpmath.log(x / y)
            yield f"x={mpmath.nstr(x, 6)}, y={mpmath.nstr(y, 6)}", bound, exact, exact
