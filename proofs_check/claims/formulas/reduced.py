"""Checks of certificates over a part of the vocabulary: both solvers with the draft held to D,
rejected tokens told by the rule's own words on the whole target."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import sympy

from derivations.formulas.reduced import REDUCED
from derivations.language.claim import Formula
from proofs_check.methods.cases import Tally, least_of
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.problems import Problem
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


def _problem(
    probs: list[Fraction], kept: list[int], beaten: Iterable[int], sign: int, hub: int
) -> Problem:
    """The same over the drafts on D alone."""
    total = sum((probs[i] for i in kept), Fraction(0))
    places = {i: place for place, i in enumerate(kept)}
    given = tuple(probs[i] / total for i in kept)
    return Problem("", given, places[hub], tuple(places[i] for i in beaten), sign, ())


@proved("reduced.single", REDUCED)
def prove_single(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    pair = R(5, 7) * sympy.log(R(10, 7)) + R(2, 7) * sympy.log(R(4, 7))
    yield "D = {1, 3}, strict", formula(sympy, probs, [0, 2], [0]), pair
    yield "D = {2, 3}, argmax out of D", formula(sympy, probs, [1, 2], [0]), sympy.S.Zero


def _wide() -> tuple[list[Fraction], list[int]]:
    """A part of 18 tokens of many, of which 16 may be chosen in 17 ways."""
    return list(large_target().target_probs), [*range(0, 3 * (WIDE + 2), 3)]


@proved("reduced.tree", REDUCED)
def prove_tree(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    pair = R(5, 7) * sympy.log(R(10, 7)) + R(2, 7) * sympy.log(R(4, 7))
    yield "D = {1, 3}, width 1", formula(sympy, probs, [0, 2], 1), pair


# label, the formula's arguments, and programmes of which the least counts
_Case = tuple[str, tuple[Any, ...], list[tuple[list[Fraction], list[int], list[int], int, int]]]


def _singles(effort: Effort) -> Iterator[_Case]:
    """Every rejected token of D in turn may be the draft's argmax; additive thresholds of p."""
    for number, (probs, kept) in enumerate(_targets(effort, 12)):
        slack = Fraction(number % 4, 20) if len(probs) < MANY else probs[0] - probs[MANY - 8]
        accepted = [i for i, p in enumerate(probs) if p >= probs[0] - slack]
        rejected = [i for i in kept if i not in accepted]
        programmes = [(probs, kept, [i for i in kept if i != j], 1, j) for j in rejected]
        if rejected:
            yield f"{probs}, D={kept}, slack {slack}", (probs, kept, accepted), programmes


def _trees(effort: Effort) -> Iterator[_Case]:
    """All sets of m competitors in D."""
    for probs, drawn in [*_targets(effort, 10), _wide()]:
        kept = sorted({0, *drawn})
        width = 1 + len(drawn) % (len(kept) - 1) if len(kept) > 2 else 1
        if len(probs) >= MANY:
            width = min(WIDE, len(kept) - 2) if len(kept) <= WIDE + 2 else len(kept) - 1
        sets = itertools.combinations([i for i in kept if i], width)
        programmes = [(probs, kept, list(chosen), -1, 0) for chosen in sets]
        yield f"{probs}, D={kept}, m={width}", (probs, kept, width), programmes


_MOST_SOLVED = 8  # programmes of a case, at 50 digits each; the outside solver takes the others


def _check_by_both(claim: str, cases: Callable[[Effort], Iterator[_Case]]) -> None:
    @check(claim, method="optimiser")
    def solve(formula: Formula, effort: Effort) -> Evidence:
        tally = Tally.at_digits("optimiser", effort.digits)
        for label, (probs, *rest), programmes in cases(effort):
            if len(programmes) > _MOST_SOLVED:
                continue
            least = least_of((_problem(*each) for each in programmes), effort.digits)
            with working_digits(effort.digits + 30):
                tally.add(label, formula(MP, list(map(to_mp, probs)), *rest), *least)
            if tally.refuted:
                break
        return tally.evidence(f"{effort.digits} digits, the draft on D")

    @check(claim, method="conic")
    def solve_outside(formula: Formula, effort: Effort) -> Evidence:
        tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
        for label, (probs, *rest), programmes in cases(effort):
            found = min(_least(*each) for each in programmes)
            tally.add(label, formula(MP, list(map(to_mp, probs)), *rest), found, found)
            if tally.refuted:
                break
        return tally.evidence("cvxpy, Clarabel, the draft of the whole vocabulary, no mass off D")


_check_by_both("reduced.single", _singles)
_check_by_both("reduced.tree", _trees)
