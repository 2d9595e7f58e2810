"""Checks of the certificates in other divergences: the least sum of powers by both solvers, the
least total variation by the outside one and exactly, all from their definitions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import sympy

from derivations.formulas.renyi import (
    EXCHANGED,
    LEVELLED,
    LEVELLED_TREE,
    MARGIN,
    SCALED,
    VARIATION,
    VARIATION_TREE,
)
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, exact_cases, least_of, tallied
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.examination import Examined, examined
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.problems import Problem
from proofs_check.methods.steps import Identities, identity, proved
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational
_ORDERS = (Fraction(1, 2), Fraction(2), Fraction(5), Fraction(1, 5), Fraction(3, 2))
# what certify takes goes from .05 to 64, a hundredth beside 1 left out; for solvers of 50 digits
_WIDER = (*_ORDERS, Fraction(1, 20), Fraction(99, 100), Fraction(101, 100), Fraction(32))


def _targets(effort: Effort, count: int) -> Iterator[list[Fraction]]:
    rng = random.Random(effort.seed)
    for number in range(count):
        drawn = sorted((rng.randint(1, 40) for _ in range(2 + number % 5)), reverse=True)
        yield [Fraction(x, sum(drawn)) for x in drawn]
    yield list(large_target().target_probs)


def _widths(effort: Effort, count: int) -> Iterator[tuple[list[Fraction], int]]:
    """Targets with a width each; of large ones, widths that have few sets of competitors."""
    for number, probs in enumerate(_targets(effort, count)):
        yield probs, len(probs) - 1 if len(probs) == MANY else 1 + number % (len(probs) - 1)
    yield list(large_target(WIDE + 2).target_probs), WIDE


def _divergence(own: list[Any], other: list[Any], order: Any) -> Any:
    """log(sum p^a q^(1-a))/(a - 1), for the checks alone."""
    powers = (p**order * q ** (1 - order) for p, q in zip(own, other, strict=True))
    return mpmath.log(mpmath.fsum(powers)) / (order - 1)


def _solved(probs: list[Fraction], hub: int, spokes: Any, sign: int, order: Fraction | None) -> Any:
    """The least divergence over drafts with sign (q_hub - q_i) >= 0: sum p^a q^(1-a), convex in q
    for a > 1 and concave below, or (None) the total variation."""
    import cvxpy

    own = [float(p) for p in probs]
    draft = cvxpy.Variable(len(own), nonneg=True)
    constraints = [cvxpy.sum(draft) == 1]
    constraints += [sign * (draft[hub] - draft[list(spokes)]) >= 0]
    if order is None:
        return clarabel(cvxpy.sum(cvxpy.abs(draft - own)) / 2, constraints)
    powers = cvxpy.sum(
        cvxpy.hstack(
            [p ** float(order) * cvxpy.power(draft[i], 1 - order) for i, p in enumerate(own)]
        )
    )
    total = clarabel(powers, constraints) if order > 1 else -clarabel(-powers, constraints)
    return mpmath.log(total) / to_mp(order - 1)


@proved("renyi.single", LEVELLED)
def prove_single(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    level = sympy.sqrt((R(1, 4) + R(9, 100)) / 2)
    yield "order 2", formula(sympy, probs, 1, R(2)), 2 * sympy.log(R(1, 5) + 2 * level)
    root = ((sympy.sqrt(R(1, 2)) + sympy.sqrt(R(3, 10))) / 2) ** 2
    yield "order 1/2", formula(sympy, probs, 1, R(1, 2)), -sympy.log(R(1, 5) + 2 * root)


@proved("renyi.tree", LEVELLED_TREE)
def prove_tree(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    level = sympy.sqrt((R(1, 4) + R(9, 100) + R(1, 25)) / 3)
    yield "width 2, order 2", formula(sympy, probs, 2, R(2)), 2 * sympy.log(3 * level)
    yield identity("as wide as the vocabulary", formula(sympy, probs, 3, R(2)), sympy.oo)


@proved("renyi.margin", MARGIN)
def prove_margin(formula: Formula, effort: Effort) -> Identities:
    yield "order 2", formula(sympy, R(1, 3), R(2)), sympy.log(R(10, 9))
    root = (sympy.sqrt(R(3, 2)) + sympy.sqrt(R(1, 2))) / 2
    yield "order 1/2", formula(sympy, R(1, 2), R(1, 2)), -2 * sympy.log(root)


@tallied(
    "renyi.margin",
    method="optimiser",
    told="targets of two and three tokens, the draft's two likely ones level",
)
def solve_margin(formula: Formula, effort: Effort) -> Cases:
    """The least D_a over p_2 and the draft's common level of both tokens, by thirds in each."""
    orders = (*_ORDERS, Fraction(1, 20), Fraction(101, 100), Fraction(20))
    for order, gap in itertools.product(orders, ("0.01", "0.3", "0.99")):
        a, g = to_mp(order), MP.mpf(gap)

        def at(own: Any, a: Any = a, g: Any = g) -> Any:
            rest = 1 - 2 * own - g
            target = [own + g, own, *([rest] if rest > MP.mpf("1e-15") else [])]

            def at_level(level: Any) -> Any:
                draft = [level, level, *([1 - 2 * level] if len(target) > 2 else [])]
                return _divergence(target, draft, a)

            if len(target) == 2:
                return at_level(MP.mpf(1) / 2)
            return _least(at_level, own, min(own + g, MP.mpf("0.4999999")))

        # D_a falls in p_2: the end itself, and by thirds that nothing before it is less
        end = (1 - g) / 2
        least = min(at(end), *(at(end * k / 7) for k in range(1, 7)))
        yield f"order {order}, g={gap}", formula(MP, g, a), least, least


def _least(function: Any, low: Any, high: Any) -> Any:
    """The least value of a function that falls and then rises."""
    for _ in range(60):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if function(one) < function(two) else (one, high)
    return function((low + high) / 2)


@proved("variation.single", VARIATION)
def prove_variation(formula: Formula, effort: Effort) -> Identities:
    yield "two tokens pool", formula(sympy, [R(1, 2), R(3, 10), R(1, 5)], 1), R(1, 10)
    yield "all three", formula(sympy, [R(1, 2), R(2, 5), R(1, 10)], 2), R(7, 30)


@proved("variation.tree", VARIATION_TREE)
def prove_variation_tree(formula: Formula, effort: Effort) -> Identities:
    yield "width 2", formula(sympy, [R(1, 2), R(3, 10), R(1, 5)], 2), R(1, 6)
    yield "one joins", formula(sympy, [R(1, 2), R(9, 20), R(1, 20)], 2), R(9, 40)
    yield identity("as wide as the vocabulary", formula(sympy, [R(1, 2), R(1, 2)], 2), sympy.oo)


_Case = tuple[list[Fraction], Any, list[tuple[int, tuple[int, ...], int]]]


def _programmes(effort: Effort, count: int, claim: str) -> Iterator[_Case]:
    """(target, competitor, rejected set or width, the programmes (hub, spokes, sign) of which the
    least counts)."""
    if claim.endswith(".tree"):
        for probs, width in _widths(effort, count):
            sets = itertools.combinations(range(1, len(probs)), width)
            yield probs, width, [(0, chosen, -1) for chosen in sets]
        return
    for number, probs in enumerate(_targets(effort, count)):
        last = len(probs) - 1
        if claim.endswith(".competitor"):
            first = last - 2 if last >= 8 else 1 + number % last
            rejected = list(range(first, last + 1))
            yield probs, rejected, [_at(j, probs) for j in rejected]
            continue
        for j in {1, last} if claim == "variation.single" else {last - number % 2 * (last > 1)}:
            yield probs, j, [_at(j, probs)]


def _at(hub: int, probs: list[Fraction]) -> tuple[int, tuple[int, ...], int]:
    return hub, tuple(i for i in range(len(probs)) if i != hub), 1


def _check_by_cones(claim: str, count: int, orders: Sequence[Fraction | None]) -> None:
    @check(claim, method="conic")
    def solve(formula: Formula, effort: Effort) -> Evidence:
        tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
        cases = _programmes(effort, count, claim)
        for number, (probs, place, programmes) in enumerate(cases):
            order = orders[number % len(orders)]
            found = min(_solved(probs, hub, rest, sign, order) for hub, rest, sign in programmes)
            given = () if order is None else (to_mp(order),)
            value = formula(MP, list(map(to_mp, probs)), place, *given)
            tally.add(f"{probs}, {place}, order {order}", value, found, found)
        return tally.evidence("cvxpy, Clarabel; of trees all competitor sets")


_check_by_cones("renyi.single", 10, _ORDERS)
_check_by_cones("renyi.tree", 9, _ORDERS)
_check_by_cones("variation.single", 17, (None,))
_check_by_cones("variation.tree", 12, (None,))


_MOST_SOLVED = 8  # programmes of a case, at 50 digits each; the outside solver takes the others


def _check_by_optimiser(claim: str, count: int) -> None:
    @check(claim, method="optimiser")
    def solve(formula: Formula, effort: Effort) -> Evidence:
        tally = Tally.at_digits("optimiser", effort.digits)
        for number, (probs, place, programmes) in enumerate(_programmes(effort, count, claim)):
            if len(programmes) > _MOST_SOLVED:
                continue
            order = _WIDER[number % len(_WIDER)]
            problems = (Problem("", tuple(probs), *each, (), order) for each in programmes)
            least = least_of(problems, effort.digits)
            with working_digits(effort.digits + 30):
                value = formula(MP, list(map(to_mp, probs)), place, to_mp(order))
                tally.add(f"{probs}, {place}, order {order}", value, *least)
            if tally.refuted:
                break
        return tally.evidence(f"{effort.digits} digits")


_check_by_optimiser("renyi.single", 11)  # the large one at order 5
_check_by_optimiser("renyi.tree", 9)
_check_by_optimiser("renyi.competitor", 9)


def _least_variation(probs: list[Fraction], hub: int, spokes: Any, sign: int) -> Fraction | None:
    """The least total variation at sign (q_hub - q_i) >= 0, exactly: what any set of spokes says of
    every draft (of more than 8 the outermost ones), where a draft that levels a set with the hub
    has no more; None where none has."""
    own = [sign * p for p in probs]  # a tree is the same programme, turned upside down
    outermost = sorted(spokes, key=lambda i: -own[i])
    sizes = range(len(spokes) + 1)
    sets = (
        [chosen for size in sizes for chosen in itertools.combinations(spokes, size)]
        if len(spokes) <= 8
        else [tuple(outermost[:size]) for size in sizes]
    )
    # each of the set loses what the hub gains: (k + 1) TV >= sum (p_i - p_hub)
    least = max(sum((own[i] - own[hub] for i in s), Fraction(0)) / (len(s) + 1) for s in sets)
    nearest = None
    for chosen in sets:
        level = sum((probs[i] for i in chosen), probs[hub]) / (len(chosen) + 1)
        draft = [level if i in {hub, *chosen} else p for i, p in enumerate(probs)]
        if all(sign * (draft[hub] - draft[i]) >= 0 for i in spokes):
            far = sum(abs(p - q) for p, q in zip(probs, draft, strict=True)) / 2
            nearest = far if nearest is None else min(far, nearest)
    return least if nearest == least else None


def _check_exactly(claim: str, count: int) -> None:
    @check(claim, method="exact-cases")
    def compare(formula: Formula, effort: Effort) -> Evidence:
        def holds(case: _Case) -> Any:
            probs, place, programmes = case
            found = [_least_variation(probs, *programme) for programme in programmes]
            known = [value for value in found if value is not None]
            return len(known) == len(found) and formula(None, probs, place) == min(known)

        cases = ((str(case[:2]), case) for case in _programmes(effort, count, claim))
        return exact_cases(holds, cases)


_check_exactly("variation.single", 40)
_check_exactly("variation.tree", 40)
_check_exactly("variation.competitor", 40)


@proved("renyi.competitor", EXCHANGED)
def prove_competitor(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    level = sympy.sqrt((R(1, 4) + R(9, 100)) / 2)
    yield "order 2", formula(sympy, probs, [1, 2], R(2)), 2 * sympy.log(R(1, 5) + 2 * level)


@proved("variation.competitor", EXCHANGED)
def prove_nearest(formula: Formula, effort: Effort) -> Identities:
    yield "rejected {2, 3}", formula(sympy, [R(1, 2), R(3, 10), R(1, 5)], [1, 2]), R(1, 10)


@proved("renyi.scaled", SCALED)
def prove_scaled(formula: Formula, effort: Effort) -> Identities:
    yield "chi-square", formula(sympy, sympy.log(R(10, 9)), 2), R(1, 9)
    yield "Hellinger's", formula(sympy, -2 * sympy.log(R(9, 10)), 1), R(1, 10)


@tallied("renyi.scaled", method="search", told="pairs of laws, each by its own definition")
def search_scaled(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for probs in _targets(effort, 25):
        own = list(map(to_mp, probs))
        other = [p * mpmath.exp(MP.mpf(rng.gauss(0, 0.5))) for p in own]
        other = [q / sum(other) for q in other]
        pairs = list(zip(own, other, strict=True))
        chi = mpmath.fsum((p - q) ** 2 / q for p, q in pairs)
        hellinger = mpmath.fsum((mpmath.sqrt(p) - mpmath.sqrt(q)) ** 2 for p, q in pairs) / 2
        for order, truth in ((2, chi), (1, hellinger)):
            nats = _divergence(own, other, MP.mpf(order) / (1 if order == 2 else 2))
            yield f"{probs}, {order}", formula(MP, nats, order), truth, truth


def _of_spread(numbers: Any, spread: Any, order: Any) -> Any:
    return order / (order - 1) * numbers.log(1 + spread)


examined(
    "renyi.single",
    Examined(
        "divergences.renyi_certificate",
        {
            "spread": (Fraction(-1, 2), Fraction(-1, 9), Fraction(1, 8), Fraction(1, 2)),
            "order": (Fraction(1, 2), Fraction(2), Fraction(5), Fraction(1, 5)),
        },
        reference=_of_spread,
    ),
    Examined(
        "divergences.renyi_certificate_far",
        {
            "kept": (Fraction(1, 50), Fraction(1, 9), Fraction(1, 2)),
            "order": (Fraction(1, 2), Fraction(1, 5), Fraction(1, 20)),
        },
        reference=lambda numbers, kept, order: _of_spread(numbers, kept - 1, order),
    ),
)
