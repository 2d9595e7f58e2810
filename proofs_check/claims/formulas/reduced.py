"""Checks of certificates over a part of the vocabulary: the outside solver with the draft held to
D, rejected tokens told by the rule's own words on the whole target."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy

from derivations.formulas.reduced import REDUCED
from derivations.language.claim import Formula
from proofs_check.methods.cases import Tally
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.numbers import MP
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational


def _targets(effort: Effort, count: int) -> Iterator[tuple[list[Fraction], list[int]]]:
    """A falling target and a part of its tokens, at least two."""
    rng = random.Random(effort.seed)
    for number in range(count):
        size = 3 + number % 5
        drawn = sorted((rng.randint(1, 40) for _ in range(size)), reverse=True)
        kept = sorted(rng.sample(range(size), rng.randint(2, size - 1)))
        yield [Fraction(x, sum(drawn)) for x in drawn], kept
    yield list(large_target().target_probs), [0, *range(3, MANY, 3)]


def _least(probs: list[Fraction], kept: list[int], beaten: Any, sign: int, hub: int) -> Any:
    """min sum_D p/P_D log(p/P_D/q) over drafts of the whole vocabulary that have no mass off D and
    sign (q_hub - q_i) >= 0."""
    import cvxpy

    total = float(sum(probs[i] for i in kept))
    draft = cvxpy.Variable(len(probs), nonneg=True)
    off = [i for i in range(len(probs)) if i not in kept]
    constraints = [cvxpy.sum(draft) == 1, draft[off] == 0]
    constraints += [sign * (draft[hub] - draft[list(beaten)]) >= 0]
    inside = [float(probs[i]) / total for i in kept]
    return clarabel(cvxpy.sum(cvxpy.rel_entr(inside, draft[kept])), constraints)


def _mp(probs: list[Fraction]) -> list[Any]:
    return [MP.mpf(p.numerator) / p.denominator for p in probs]


@proved("reduced.single", REDUCED)
def prove_single(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    pair = R(5, 7) * sympy.log(R(10, 7)) + R(2, 7) * sympy.log(R(4, 7))
    yield "D = {1, 3}, strict", formula(sympy, probs, [0, 2], [0]), pair
    yield "D = {2, 3}, argmax out of D", formula(sympy, probs, [1, 2], [0]), sympy.S.Zero


@check("reduced.single", method="conic")
def solve_single(formula: Formula, effort: Effort) -> Evidence:
    """Every rejected token of D in turn may be the draft's argmax; additive thresholds of p."""
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    for number, (probs, kept) in enumerate(_targets(effort, 12)):
        slack = Fraction(number % 4, 20) if len(probs) < MANY else probs[0] - probs[MANY - 8]
        accepted = [i for i, p in enumerate(probs) if p >= probs[0] - slack]
        rejected = [i for i in kept if i not in accepted]
        if not rejected:
            continue
        found = min(_least(probs, kept, [i for i in kept if i != j], 1, j) for j in rejected)
        value = formula(MP, _mp(probs), kept, accepted)
        tally.add(f"{probs}, D={kept}, slack {slack}", value, found, found)
    return tally.evidence("cvxpy, Clarabel, the draft of the whole vocabulary, no mass off D")


def _wide() -> tuple[list[Fraction], list[int]]:
    """A part of 18 tokens of many, of which 16 may be chosen in 17 ways."""
    return list(large_target().target_probs), [*range(0, 3 * (WIDE + 2), 3)]


@proved("reduced.tree", REDUCED)
def prove_tree(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    pair = R(5, 7) * sympy.log(R(10, 7)) + R(2, 7) * sympy.log(R(4, 7))
    yield "D = {1, 3}, width 1", formula(sympy, probs, [0, 2], 1), pair


@check("reduced.tree", method="conic")
def solve_tree(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    for probs, drawn in [*_targets(effort, 10), _wide()]:
        kept = sorted({0, *drawn})
        width = 1 + len(drawn) % (len(kept) - 1) if len(kept) > 2 else 1
        if len(probs) >= MANY:
            width = min(WIDE, len(kept) - 2) if len(kept) <= WIDE + 2 else len(kept) - 1
        found = min(
            _least(probs, kept, chosen, -1, 0)
            for chosen in itertools.combinations([i for i in kept if i], width)
        )
        tally.add(
            f"{probs}, D={kept}, m={width}", formula(MP, _mp(probs), kept, width), found, found
        )
    return tally.evidence("cvxpy, Clarabel, all sets of m competitors in D")
