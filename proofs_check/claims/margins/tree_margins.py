"""Checks of the margin-only bounds for trees: exact algebra at the extremal target, and the infimum
over all targets solved from its definition."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction as F
from functools import partial

import sympy

from derivations.formulas.tree import tree_certificate
from derivations.language.claim import Formula
from derivations.margins.tree_margins import TREE_LAST, TREE_TOP_TWO
from proofs_check.methods.conic import check_by_solvers, least_by_cone
from proofs_check.methods.margin_programmes import Case, least, tree_programme
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import MANY, WIDE
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

R = sympy.Rational


def _cases(last_gap: bool, effort: Effort, widths: tuple[int, ...] = (1, 2, 4)) -> Iterator[Case]:
    for m in widths:
        for gap in (F(1, 10), F(1, 2), F(9, 10)) if m < 4 else (F(1, 5), F(4, 5)):
            last = m if last_gap else 1
            for margin in ("exactly", "at least") if gap == F(1, 2) else ("exactly",):
                make = partial(tree_programme, m + 1, m, gap, last=last, margin=margin)
                yield f"tree {m}, p1 - p{last + 1} {margin} {gap}", [make], (gap, m)
    yield (
        "tree 2, one more token",
        [partial(tree_programme, 4, 2, F(2, 5), last=2 if last_gap else 1, margin="exactly")],
        (F(2, 5), 2),
    )


def _large(last_gap: bool) -> Iterator[Case]:
    last, gap = WIDE if last_gap else 1, F(1, 2)
    make = partial(tree_programme, MANY, WIDE, gap, last=last, margin="exactly")
    yield f"tree {WIDE}, p1 - p{last + 1} exactly {gap}, V={MANY}", [make], (gap, WIDE)


def _ends(last_gap: bool) -> Iterator[Case]:
    for m, gap in ((3, F(1, 100)), (2, F(99, 100))):
        last = m if last_gap else 1
        make = partial(tree_programme, m + 1, m, gap, last=last, margin="exactly")
        yield f"tree {m}, p1 - p{last + 1} exactly {gap}", [make], (gap, m)


@proved("margin.tree.p1-p2", TREE_TOP_TWO)
def prove_top_two(formula: Formula, effort: Effort) -> Identities:
    for m, gap in ((1, R(1, 3)), (2, R(1, 4)), (4, R(2, 3))):
        target = [(1 + m * gap) / (m + 1)] + [(1 - gap) / (m + 1)] * m
        yield f"m={m}, g={gap}", formula(sympy, gap, m), tree_certificate(sympy, target, m)
    yield from _at_margin_one(formula)


@proved("margin.tree.p1-p(m+1)", TREE_LAST)
def prove_last(formula: Formula, effort: Effort) -> Identities:
    """Targets (x w, x, ..., x, x/w) with rational w: their margin is rational, and the certificate
    is the bound."""
    for m, ratio in ((1, R(3)), (2, R(2)), (4, R(5))):
        middle = 1 / (m - 1 + ratio + 1 / ratio)
        target = [middle * ratio, *[middle] * (m - 1), middle / ratio]
        gap = target[0] - target[-1]
        yield f"m={m}, w={ratio}", formula(sympy, gap, m), tree_certificate(sympy, target, m)
    yield from _at_margin_one(formula)


def _at_margin_one(formula: Formula) -> Identities:
    """A single target has it, whose m competitors are without mass."""
    for m in (1, 3):
        yield f"m={m}, margin 1", formula(sympy, R(1), m), sympy.log(m + 1)


for _claim, _last in (("margin.tree.p1-p2", False), ("margin.tree.p1-p(m+1)", True)):
    check_by_solvers(
        _claim,
        partial(_cases, _last),
        optimiser=least,
        conic=least_by_cone,
        large=partial(_large, _last),
        ends=partial(_ends, _last),
    )


@check("refuted.tree.folklore", method="exact-cases")
def refute_folklore_at_a_point(formula: Formula, effort: Effort) -> Evidence:
    """m = 8, g = .9, p = (8.2, .1 x 8)/9: the certificate of that target lies below the claimed
    bound."""
    from proofs_check.methods.cases import exact_cases

    def holds(case: tuple[int, sympy.Rational]) -> object:
        width, gap = case
        target = [(1 + width * gap) / (width + 1)] + [(1 - gap) / (width + 1)] * width
        excess = sympy.N(formula(sympy, gap, width) - tree_certificate(sympy, target, width), 40)
        return True if excess < 1e-30 else f"claimed minus certificate: {sympy.N(excess, 5)}"

    return exact_cases(
        holds, [(f"m={m}, g={gap}", (m, gap)) for m in (2, 7, 8) for gap in (R(1, 2), R(9, 10))]
    )


@check("refuted.tree.folklore", method="conic")
def refute_folklore_by_cone(formula: Formula, effort: Effort) -> Evidence:
    make = partial(tree_programme, 9, 8, F(9, 10), last=1, margin="exactly")
    return least_by_cone(
        formula, [("tree 8, p1 - p2 = 9/10", [make], (F(9, 10), 8))], relation="<="
    )
