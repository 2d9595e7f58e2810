"""Checks of the certificates over a box of logits: by the outside conic solver with the target
free, by every corner of the box, and exactly in rationals."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy
import sympy

from derivations.formulas.robust import (
    DIVERGENCE_BOX,
    ENTROPY_BOX,
    SINGLE_BOX,
    THRESHOLD_BOX,
    TREE_BOX,
    best_levels,
)
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, exact_cases, least_of, tallied
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.numbers import MP, divergence, to_mp
from proofs_check.methods.problems import Problem
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational
_GROWTHS = (Fraction(101, 100), Fraction(6, 5), Fraction(2))
_WIDER = (Fraction(1001, 1000), Fraction(6, 5), Fraction(3))  # where Clarabel fails


def _targets(effort: Effort, count: int, most: int) -> Iterator[tuple[Fraction, ...]]:
    rng = random.Random(effort.seed)
    for number in range(count):
        size = 2 + number % (most - 1)
        power = rng.choice((1, 3, 6))
        drawn = sorted((rng.randint(1, 40) ** power for _ in range(size)), reverse=True)
        yield tuple(Fraction(x, sum(drawn)) for x in drawn)


def _corners(weights: Any, growth: Any) -> Iterator[list[Any]]:
    """Every corner of the box; of a large one some at which the first or the last tokens have
    grown."""
    count = len(weights)
    cuts = [[1] * k + [growth] * (count - k) for k in (0, 1, 2, count // 2, count - 1)]
    every = itertools.product((1, growth), repeat=count)
    for ends in every if count < MANY else [*cuts, *(cut[::-1] for cut in cuts)]:
        moved = [w * end for w, end in zip(weights, ends, strict=True)]
        yield [w / sum(moved) for w in moved]


def _least_by_cone(weights: Any, growth: Any, hub: int, spokes: Any, sign: int) -> Any:
    """min KL(p' || q) over the box and the drafts with sign (q_hub - q_i) >= 0: p' = t w', jointly
    convex; for a tree the hub stays the target's largest."""
    import cvxpy

    low = numpy.array([float(w) for w in weights])
    target = cvxpy.Variable(len(low), nonneg=True)
    draft = cvxpy.Variable(len(low), nonneg=True)
    scale = cvxpy.Variable(nonneg=True)
    constraints = [cvxpy.sum(target) == 1, cvxpy.sum(draft) == 1]
    constraints += [target >= scale * low, target <= scale * low * float(growth)]
    constraints += [sign * (draft[hub] - draft[list(spokes)]) >= 0]
    if sign < 0:
        constraints += [target[hub] >= target]
    return clarabel(cvxpy.sum(cvxpy.rel_entr(target, draft)), constraints)


@proved("robust.tree", TREE_BOX)
def prove_tree(formula: Formula, effort: Effort) -> Identities:
    """(6, 3, 1)/10, growth 3/2: weights 6, 4.5, 1.5, and 6 log(6/5.25) + 4.5 log(4.5/5.25) of
    12."""
    probs = [R(6, 10), R(3, 10), R(1, 10)]
    pair = (6 * sympy.log(R(8, 7)) + R(9, 2) * sympy.log(R(6, 7))) / 12
    yield "strict, growth 3/2", formula(sympy, probs, 1, R(3, 2)), pair
    yield "strict, growth 2: a tie", formula(sympy, probs, 1, R(2)), sympy.S.Zero
    cut = (6 * sympy.log(R(4, 3)) + 3 * sympy.log(R(2, 3))) / 15
    yield "width 2, growth 3: token 2 stops at token 1", formula(sympy, probs, 2, R(3)), cut


@check("robust.tree", method="conic")
def solve_trees(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    small = [
        (probs, 1 + number % (len(probs) - 1))
        for number, probs in enumerate(_targets(effort, 10, 5))
    ]
    large = [(large_target(WIDE + 2).target_probs, WIDE), (large_target().target_probs, MANY - 1)]
    for number, (probs, width) in enumerate([*small, *large]):
        growth = _GROWTHS[number % 3]
        found = min(
            _least_by_cone(probs, growth, 0, chosen, -1)
            for chosen in itertools.combinations(range(1, len(probs)), width)
        )
        value = formula(
            MP,
            [MP.mpf(p.numerator) / p.denominator for p in probs],
            width,
            MP.mpf(growth.numerator) / growth.denominator,
        )
        tally.add(f"{probs}, m={width}, growth {growth}", MP.mpf(value), found, found)
    return tally.evidence("cvxpy, Clarabel, target and draft free, all competitor sets")


@tallied("robust.tree", method="search", relation="<=", told="every corner, and the one named")
def search_trees(formula: Formula, effort: Effort) -> Cases:
    """No target of the box is cheaper to fool, each solved from its definition: its corners, and
    the one at which no token is raised above the first."""
    cases = [*_targets(effort, 6, 3), large_target().target_probs]
    for number, probs in enumerate(cases):
        growth = _WIDER[number % 3]
        width = 1 + number % (len(probs) - 1) if len(probs) < MANY else MANY - 1
        named = [min(p * growth, probs[0]) for p in probs]
        laws = [[w / sum(named) for w in named]]
        laws += _corners(probs, growth) if len(probs) < MANY else []
        value = formula(MP, list(map(to_mp, probs)), width, to_mp(growth))
        least = mpmath.inf
        for law in laws:
            ordered = tuple(sorted(law, reverse=True))
            sets = itertools.combinations(range(1, len(law)), width)
            problems = [Problem("", ordered, 0, chosen, -1, ()) for chosen in sets]
            least = min(least, least_of(problems, effort.digits)[1])
        yield f"{probs}, m={width}, growth {growth}", value, least, least


@proved("robust.single", SINGLE_BOX)
def prove_single(formula: Formula, effort: Effort) -> Identities:
    """Two tokens: the corner (1, growth b) of (1, b), its pair cost over its sum."""
    low, rival = R(1), R(1, 2)
    pair = (sympy.log(R(20, 16)) + R(3, 5) * sympy.log(R(12, 16))) / R(8, 5)
    yield "(1, 1/2), growth 6/5", formula(sympy, [low, rival], [low, R(3, 5)], 1, R(6, 5)), pair
    spread = (sympy.log(R(5, 4)) + R(3, 5) * sympy.log(R(3, 4))) / (R(8, 5) + R(3, 10))
    yield (
        "and 1/4 off the pool",
        formula(sympy, [low, rival, R(1, 4)], [low, R(3, 5), None], 1, R(6, 5)),
        spread,
    )


@check("robust.single", method="conic")
def solve_singles(formula: Formula, effort: Effort) -> Evidence:
    """At the best levels the bound is the minimum: target and draft both free."""
    tally = Tally("conic", confirm=TOLERANCE, refute=5 * TOLERANCE)
    for number, probs in enumerate([*_targets(effort, 16, 7), large_target().target_probs]):
        growth, rival = _GROWTHS[number % 3], len(probs) - 1 - number % 2 * (len(probs) > 2)
        if probs[rival] * growth >= probs[0]:
            continue
        weights = [MP.mpf(p.numerator) / p.denominator for p in probs]
        grown = MP.mpf(growth.numerator) / growth.denominator
        levels = best_levels(MP, weights, rival, grown)
        others = [i for i in range(len(probs)) if i != rival]
        found = _least_by_cone(probs, growth, rival, others, 1)
        value = formula(MP, weights, levels, rival, grown)
        tally.add(f"{probs}, j={rival + 1}, growth {growth}", value, found, found)
    return tally.evidence("cvxpy, Clarabel, target and draft free, at the best levels")


@tallied("robust.single", method="search", relation="<=", told="corners and drafts by definition")
def search_singles(formula: Formula, effort: Effort) -> Cases:
    """Levels of any kind against KL of laws written down: every corner, several drafts whose
    maximum is at j."""
    rng = random.Random(effort.seed)
    for number, probs in enumerate(_targets(effort, 16, 6)):
        growth, rival = MP.mpf(_WIDER[number % 3].numerator), len(probs) - 1
        growth = growth / _WIDER[number % 3].denominator
        weights = [MP.mpf(p.numerator) / p.denominator for p in probs]
        levels = best_levels(MP, weights, rival, growth, turns=number % 4)
        value = formula(MP, weights, levels, rival, growth)
        least = mpmath.inf
        for target in _corners(weights, growth):
            for _ in range(3):
                mix = MP.mpf(rng.random())
                level = sum(target[i] for i, v in enumerate(levels) if v is not None)
                level /= sum(v is not None for v in levels)
                draft = [
                    level if levels[i] is not None else min(p, level) for i, p in enumerate(target)
                ]
                draft = [q * (1 - mix * MP.mpf("1e-3") * (i != rival)) for i, q in enumerate(draft)]
                least = min(least, divergence(target, [q / sum(draft) for q in draft]))
        yield f"{probs}, j={rival + 1}", value, least, least


@proved("robust.threshold", THRESHOLD_BOX)
def prove_threshold(formula: Formula, effort: Effort) -> Identities:
    weights = [R(1), R(1, 2), R(1, 2)]
    yield "additive 1/4", formula(sympy, R(1), -R(1, 4), None, weights, R(6, 5)), R(13, 20)
    yield "multiplicative 1/10", formula(sympy, R(1, 10), R(0), None, weights, R(6, 5)), R(3, 25)
    yield "absolute 1/5", formula(sympy, R(0), R(1, 5), None, weights, R(2)), R(2, 3)
    yield "capped at 1/5", formula(sympy, R(1), R(0), R(1, 5), weights, R(2)), R(2, 3)


@check("robust.threshold", method="exact-cases")
def compare_decisions(formula: Formula, effort: Effort) -> Evidence:
    """Every corner of the box, the argmax kept where it is, in rationals: accepted at all of them
    exactly where the weight reaches the number; beside a cap, where it does."""
    rules = (
        (Fraction(1), Fraction(-3, 10), None),
        (Fraction(1), Fraction(-1, 100), None),
        (Fraction(1, 10), Fraction(0), None),
        (Fraction(4, 5), Fraction(-1, 10), Fraction(1, 4)),
        (Fraction(0), Fraction(1, 5), None),
        (Fraction(1, 2), Fraction(1, 20), Fraction(1, 3)),
        (Fraction(1, 4), Fraction(-1, 2), None),
    )

    def holds(case: Any) -> Any:
        probs, rule, growth, token = case
        weights = [p / probs[0] for p in probs]
        scale, offset, cap = rule
        least: Any = None
        for law in _corners(weights, growth):
            tau = scale * law[0] + offset
            spare = law[token] - (tau if cap is None else min(tau, cap))
            least = spare if least is None else min(least, spare)
        # Beside a cap a lower weight may do: of (1, 15/19, 29/38) token 3 has 1/10 or 4/5 p_1 - 2/5
        # at every corner of growth 4, and the numbers are .785 and .979.
        if cap is not None:
            parts = [
                formula(None, scale, offset, None, weights, growth),
                formula(None, Fraction(0), cap, None, weights, growth),
            ]
            said = formula(None, scale, offset, cap, weights, growth)
            if said != min(parts):
                return f"{said} beside {parts}"
            return True if (weights[token] < said) or least >= 0 else "accepted too early"
        said = weights[token] >= formula(None, scale, offset, cap, weights, growth)
        return True if said == (least >= 0) else f"least spare {float(least):.3g}, said {said}"

    cases = [
        (f"{probs}, {rule}, growth {growth}, token {token + 1}", (probs, rule, growth, token))
        for probs in _targets(effort, 40, 5)
        for rule in rules
        for growth in _WIDER
        for token in range(1, len(probs))
    ]
    large, growth = large_target().target_probs, _WIDER[1]
    cases += [
        (f"large, {rule}, the last token", (large, rule, growth, MANY - 1)) for rule in rules[:3]
    ]
    return exact_cases(holds, cases)


@proved("robust.entropy", ENTROPY_BOX)
def prove_entropy(formula: Formula, effort: Effort) -> Identities:
    """A uniform target: log 2 - 1/8 at r = 1/2; and (3, 1)/4."""
    yield "uniform", formula(sympy, [R(1, 2), R(1, 2)], R(1, 2)), sympy.log(2) - R(1, 8)
    top, excess = -sympy.log(R(3, 4)), sympy.log(3) / 4
    yield (
        "(3, 1)/4",
        formula(sympy, [R(3, 4), R(1, 4)], R(1)),
        top + excess * sympy.exp(-2) - R(1, 2),
    )


@tallied("robust.entropy", method="search", relation="<=", told="every corner")
def search_entropy(formula: Formula, effort: Effort) -> Cases:
    for number, probs in enumerate([*_targets(effort, 40, 7), large_target().target_probs]):
        radius = MP.mpf((4, 100, 900)[number % 3]) / 1000
        law = [MP.mpf(p.numerator) / p.denominator for p in probs]
        least = min(
            -mpmath.fsum(p * mpmath.log(p) for p in corner)
            for corner in _corners(law, mpmath.exp(2 * radius))
        )
        yield f"{probs}, r={radius}", formula(MP, law, radius), least, least


@proved("robust.divergence", DIVERGENCE_BOX)
def prove_divergence(formula: Formula, effort: Effort) -> Identities:
    """One token: both ends give 0 at the tilts r and -r, log W; a pair at r = 0 is its own KL."""
    one = [R(1)]
    yield "one token", formula(sympy, one, one, R(1, 3), (R(1, 3), -R(1, 3))), sympy.S.Zero
    kl = sympy.log(R(3, 2)) / 2 + sympy.log(R(3, 4)) / 2
    pair, other = [R(1, 2), R(1, 2)], [R(1, 3), R(2, 3)]
    yield "r = 0 at the tilt KL", formula(sympy, pair, other, sympy.S.Zero, (kl, kl)), kl


@tallied("robust.divergence", method="search", relation=">=", told="every corner, several tilts")
def search_divergence(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for number, probs in enumerate([*_targets(effort, 40, 8), large_target().target_probs]):
        radius = MP.mpf((4, 100, 900)[number % 3]) / 1000
        law = [MP.mpf(p.numerator) / p.denominator for p in probs]
        draft = [p * mpmath.exp(MP.mpf(rng.gauss(0, 0.6))) for p in law]
        draft = [q / sum(draft) for q in draft]
        corners = list(_corners(law, mpmath.exp(2 * radius)))
        largest = max(divergence(corner, draft) for corner in corners)
        masses = (mpmath.exp(radius), mpmath.exp(-radius))
        for shift in (0, MP.mpf(rng.gauss(0, 0.02))):
            tilts = [largest + mpmath.log(mass) + shift for mass in masses]
            yield f"{probs}, r={radius}", formula(MP, law, draft, radius, tilts), largest, largest
