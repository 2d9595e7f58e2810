"""Checks of the certificates in other divergences: the least sum of powers, and the least total
variation, by the outside solver from their definitions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import sympy

from derivations.formulas.renyi import HOELDER, MARGIN, VARIATION, renyi_divergence
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, tallied
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.examination import Examined, examined
from proofs_check.methods.numbers import MP
from proofs_check.methods.steps import Identities, identity, proved
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational
_ORDERS = (Fraction(1, 2), Fraction(2), Fraction(5), Fraction(1, 5), Fraction(3, 2))


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


def _mp(value: Fraction) -> Any:
    return MP.mpf(value.numerator) / value.denominator


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
    return mpmath.log(total) / _mp(order - 1)


@proved("renyi.single", HOELDER)
def prove_single(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    level = sympy.sqrt((R(1, 4) + R(9, 100)) / 2)
    yield "order 2", formula(sympy, probs, 1, R(2)), 2 * sympy.log(R(1, 5) + 2 * level)
    root = ((sympy.sqrt(R(1, 2)) + sympy.sqrt(R(3, 10))) / 2) ** 2
    yield "order 1/2", formula(sympy, probs, 1, R(1, 2)), -sympy.log(R(1, 5) + 2 * root)


@tallied("renyi.single", method="search", relation="<=", told="drafts written down")
def search_single(formula: Formula, effort: Effort) -> Cases:
    """No draft with its maximum at j is nearer: the definition at drafts near the best one."""
    rng = random.Random(effort.seed)
    for number, probs in enumerate(_targets(effort, 25)):
        own, order = list(map(_mp, probs)), _mp(_ORDERS[number % 5])
        j = len(own) - 1
        value = formula(MP, own, j, order)
        least = mpmath.inf
        for level in [
            *sorted(own)[: -1 : 1 + len(own) // 8],
            sum(own) / len(own),
            own[0] * MP.mpf("0.8"),
        ]:
            for _ in range(3):
                shift = 1 + MP.mpf(rng.random()) / 5
                draft = [min(p, level * shift) for p in own]
                draft[j] = max(draft)
                draft = [q / sum(draft) for q in draft]
                least = min(least, renyi_divergence(MP, own, draft, order))
        yield f"{probs}, order {_ORDERS[number % 5]}", value, least, least


@proved("renyi.tree", HOELDER)
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
    confirm=mpmath.mpf("1e-9"),
    refute=mpmath.mpf("1e-6"),
    told="targets of two and three tokens, the draft's two likely ones level",
)
def solve_margin(formula: Formula, effort: Effort) -> Cases:
    """The least D_a over p_2 and the draft's common level of both tokens, by thirds in each."""
    for order, gap in itertools.product((*_ORDERS, Fraction(20)), ("0.05", "0.3", "0.9")):
        a, g = _mp(order), MP.mpf(gap)

        def at(own: Any, a: Any = a, g: Any = g) -> Any:
            rest = 1 - 2 * own - g
            target = [own + g, own, *([rest] if rest > MP.mpf("1e-15") else [])]

            def at_level(level: Any) -> Any:
                draft = [level, level, *([1 - 2 * level] if len(target) > 2 else [])]
                return renyi_divergence(MP, target, draft, a)

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


@proved("variation.tree", VARIATION)
def prove_variation_tree(formula: Formula, effort: Effort) -> Identities:
    yield "width 2", formula(sympy, [R(1, 2), R(3, 10), R(1, 5)], 2), R(1, 6)
    yield "one joins", formula(sympy, [R(1, 2), R(9, 20), R(1, 20)], 2), R(9, 40)
    yield identity("as wide as the vocabulary", formula(sympy, [R(1, 2), R(1, 2)], 2), sympy.oo)


def _programmes(effort: Effort, count: int, claim: str) -> Iterator[tuple[Any, int, list[Any]]]:
    """(target, competitor or width, the programmes (hub, spokes, sign) of which the least
    counts)."""
    if claim.endswith(".tree"):
        for probs, width in _widths(effort, count):
            sets = itertools.combinations(range(1, len(probs)), width)
            yield probs, width, [(0, chosen, -1) for chosen in sets]
        return
    for number, probs in enumerate(_targets(effort, count)):
        last = len(probs) - 1
        for j in {1, last} if claim == "variation.single" else {last - number % 2 * (last > 1)}:
            yield probs, j, [(j, [i for i in range(len(probs)) if i != j], 1)]


def _check_by_cones(claim: str, count: int, orders: Sequence[Fraction | None], loose: int) -> None:
    @check(claim, method="conic")
    def solve(formula: Formula, effort: Effort) -> Evidence:
        tally = Tally("conic", confirm=loose * TOLERANCE, refute=10 * loose * TOLERANCE)
        cases = _programmes(effort, count, claim)
        for number, (probs, place, programmes) in enumerate(cases):
            order = orders[number % len(orders)]
            found = min(_solved(probs, hub, rest, sign, order) for hub, rest, sign in programmes)
            given = () if order is None else (_mp(order),)
            value = formula(MP, list(map(_mp, probs)), place, *given)
            tally.add(f"{probs}, {place}, order {order}", value, found, found)
        return tally.evidence("cvxpy, Clarabel; of trees all competitor sets")


_check_by_cones("renyi.single", 10, _ORDERS, 20)
_check_by_cones("renyi.tree", 9, _ORDERS, 20)
_check_by_cones("variation.single", 17, (None,), 1)
_check_by_cones("variation.tree", 12, (None,), 1)


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
