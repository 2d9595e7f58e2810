"""Checks of the margin-only bounds for radii and reverse certificates: base and moved law both
free, from the definitions alone, by mpmath and by an outside conic solver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction as F
from functools import partial
from typing import Any

import sympy
from sympy import Rational

from derivations.formulas.projections import bernoulli_divergence, geometric_value
from proofs_check.methods.conic import check_by_solvers, least_by_cone
from proofs_check.methods.joint import JointProgramme
from proofs_check.methods.margin_programmes import Case, least, with_tail
from proofs_check.methods.steps import prove_known
from proofs_check.methods.targets import MANY, WIDE
from proofs_check.registry import Effort, check_by

__all__ = [
    "CASES",
    "ENDS",
    "EXTREMAL",
    "HIGH",
    "LARGE",
    "LOW",
    "lifted",
    "register",
    "sorted_base",
    "sunk",
]

R = Rational
GAPS = (F(1, 10), F(2, 5), F(4, 5))
LOW, HIGH = F(1, 100), F(99, 100)
BOTH = (True, False)  # margin known exactly, or only from below


def sorted_base(num_tokens: int, gap: F, pair: tuple[int, int], exactly: bool) -> JointProgramme:
    """KL(moved || base): ``programme.target`` is moved, ``programme.draft`` is base, sorted, with
    one margin given."""
    programme = JointProgramme(num_tokens)
    larger, smaller = programme.draft(pair[0]), programme.draft(pair[1])
    (programme.apart if exactly else programme.at_least)(larger, smaller, gap)
    for i in range(num_tokens - 1):
        if (i, i + 1) != pair:
            programme.at_least(programme.draft(i), programme.draft(i + 1))
    return programme


def lifted(
    num_tokens: int,
    gap: F,
    pair: tuple[int, int],
    exactly: bool,
    *,
    hub: int,
    rivals: tuple[int, ...],
    opened: F = F(0),
    slack: F | None = None,
    factor: F | None = None,
) -> JointProgramme:
    """moved[hub] >= moved[i] + opened; optionally base[0] - base[hub] >= slack, base[hub] <= factor
    base[0]."""
    programme = sorted_base(num_tokens, gap, pair, exactly)
    for i in rivals:
        programme.at_least(programme.target(hub), programme.target(i), opened)
    if slack is not None:
        programme.at_least(programme.draft(0), programme.draft(hub), slack)
    if factor is not None:
        programme.row_at_least({programme.draft(0): factor, programme.draft(hub): F(-1)}, 0)
    return programme


def sunk(
    num_tokens: int, gap: F, pair: tuple[int, int], exactly: bool, *, width: int
) -> JointProgramme:
    programme = sorted_base(num_tokens, gap, pair, exactly)
    for i in range(1, width + 1):
        programme.at_least(programme.target(i), programme.target(0))
    return programme


def _strict(effort: Effort) -> Iterator[Case]:
    for gap in GAPS:
        for exactly in BOTH if gap == GAPS[1] else (True,):
            make = partial(lifted, 3, gap, (0, 1), exactly, hub=1, rivals=(0,))
            yield f"strict radius, exactly {exactly}, {gap}", [make], (gap,)


def _additive(effort: Effort) -> Iterator[Case]:
    for slack in (F(1, 5), F(3, 5)):
        for gap in GAPS:
            for exactly in BOTH if gap == GAPS[1] else (True,):
                make = partial(lifted, 3, gap, (0, 1), exactly, hub=1, rivals=(0,), opened=slack)
                yield f"additive radius {slack}, exactly {exactly}, {gap}", [make], (gap, slack)
    yield "additive radius 1: nothing is rejected", [], (GAPS[0], F(1))


def _tree_radius(effort: Effort) -> Iterator[Case]:
    for m in (1, 2, 3):
        for gap in (F(1, 20), F(1, 4)):
            for exactly in BOTH if m == 2 else (True,):
                make = partial(
                    lifted, m + 2, gap, (m - 1, m), exactly, hub=m, rivals=tuple(range(m))
                )
                yield f"tree radius {m}, exactly {exactly}, {gap}", [make], (gap, m)


def _single(effort: Effort) -> Iterator[Case]:
    for gap in GAPS:
        yield f"reverse, j of any rank, {gap}", [partial(_any_rank, gap)], (gap,)


def _any_rank(gap: F, num_tokens: int = 3) -> JointProgramme:
    """Token 1 the base's maximum, token j = 2 at the gap below it, the others anywhere below token
    1."""
    programme = JointProgramme(num_tokens)
    programme.apart(programme.draft(0), programme.draft(1), gap)
    for i in range(2, num_tokens):
        programme.at_least(programme.draft(0), programme.draft(i))
    for i in (0, *range(2, num_tokens)):
        programme.at_least(programme.target(1), programme.target(i))
    return programme


def _slack(effort: Effort) -> Iterator[Case]:
    for slack in (F(1, 5), F(3, 5)):
        for gap in GAPS:
            makes = [
                partial(lifted, 3, gap, (0, 1), False, hub=j, rivals=(0, 3 - j), slack=slack)
                for j in (1, 2)
            ]
            yield f"reverse additive {slack}, at least {gap}", makes, (gap, slack)


def _factor(effort: Effort) -> Iterator[Case]:
    for alpha in (F(1, 10), F(1, 2)):
        for gap in (F(1, 10), F(9, 10)):
            for exactly in BOTH if alpha == F(1, 2) else (True,):
                make = partial(_factor_programme, gap=gap, alpha=alpha, exactly=exactly)
                yield (
                    f"reverse multiplicative {alpha}, exactly {exactly}, {gap}, tail of 10^6",
                    [partial(with_tail, make, 3, 1, 10**6)],
                    (gap, alpha),
                )


def _factor_programme(num_tokens: int, *, gap: F, alpha: F, exactly: bool) -> JointProgramme:
    return lifted(num_tokens, gap, (0, 1), exactly, hub=1, rivals=(0, 2), factor=alpha)


def _top(effort: Effort) -> Iterator[Case]:
    for m in (2, 3):
        for last in (1, m):
            for gap in (F(1, 10), F(3, 5)):
                make = partial(lifted, m + 1, gap, (0, last), m == 3, hub=m, rivals=tuple(range(m)))
                yield f"reverse top {m}, p1 - p{last + 1}, {gap}", [make], (gap, m)


def _tree(last_gap: bool, effort: Effort) -> Iterator[Case]:
    for m in (1, 2, 4):
        for gap in GAPS[:2] if m == 4 else GAPS:
            for exactly in BOTH if (m, gap) == (2, GAPS[1]) else (True,):
                last = m if last_gap else 1
                make = partial(sunk, m + 1 + (m == 2), gap, (0, last), exactly, width=m)
                yield (
                    f"reverse tree {m}, p1 - p{last + 1}, exactly {exactly}, {gap}",
                    [make],
                    (gap, m),
                )


CASES: dict[str, Callable[[Effort], Iterator[Case]]] = {
    "drafter.margin.strict": _strict,
    "drafter.margin.additive": _additive,
    "drafter.margin.tree": _tree_radius,
    "reverse.margin.single": _single,
    "reverse.margin.additive": _slack,
    "reverse.margin.multiplicative": _factor,
    "reverse.margin.top": _top,
    "reverse.margin.tree.p1-p2": partial(_tree, False),
    "reverse.margin.tree.p1-p(m+1)": partial(_tree, True),
}


def _large_pair(opened: F | None) -> Iterator[Case]:
    make = partial(lifted, MANY, GAPS[1], (0, 1), True, hub=1, rivals=(0,), opened=opened or F(0))
    yield f"radius, {opened}, V={MANY}", [make], (GAPS[1],) if opened is None else (GAPS[1], opened)


def _large_slack() -> Iterator[Case]:
    gap, slack = GAPS[1], F(1, 5)
    makes = [
        partial(
            lifted,
            MANY,
            gap,
            (0, 1),
            False,
            hub=j,
            rivals=tuple(i for i in range(MANY) if i != j),
            slack=slack,
        )
        for j in (1, 2, MANY // 2, MANY - 1)
    ]
    yield f"reverse additive {slack}, V={MANY}", makes, (gap, slack)


def _large_radius() -> Iterator[Case]:
    gap = F(1, 40)
    make = partial(lifted, MANY, gap, (WIDE - 1, WIDE), True, hub=WIDE, rivals=tuple(range(WIDE)))
    yield f"tree radius {WIDE}, {gap}, V={MANY}", [make], (gap, WIDE)


def _large_top() -> Iterator[Case]:
    rivals = tuple(i for i in range(MANY) if i != WIDE)
    make = partial(lifted, MANY, F(3, 5), (0, 1), True, hub=WIDE, rivals=rivals)
    yield f"reverse top {WIDE}, V={MANY}", [make], (F(3, 5), WIDE)


def _large_tree(last_gap: bool) -> Iterator[Case]:
    pair = (0, WIDE if last_gap else 1)
    make = partial(sunk, MANY, GAPS[1], pair, True, width=WIDE)
    yield f"sunk {WIDE}, p1 - p{pair[1] + 1}, V={MANY}", [make], (GAPS[1], WIDE)


def _large_single() -> Iterator[Case]:
    yield f"reverse, V={MANY}", [partial(_any_rank, GAPS[1], MANY)], (GAPS[1],)


def _pair_ends() -> Iterator[Case]:
    for gap in (LOW, HIGH):
        yield f"{gap}", [partial(lifted, 3, gap, (0, 1), True, hub=1, rivals=(0,))], (gap,)


def _additive_ends() -> Iterator[Case]:
    for gap, slack in ((LOW, LOW), (HIGH, F(1, 50)), (F(1, 2), F(19, 20)), (HIGH, F(19, 20))):
        make = partial(lifted, 3, gap, (0, 1), True, hub=1, rivals=(0,), opened=slack)
        yield f"{gap}, {slack}", [make], (gap, slack)


def _radius_ends() -> Iterator[Case]:
    for m, gap in ((1, LOW), (1, HIGH), (3, F(33, 100))):
        make = partial(lifted, m + 1, gap, (m - 1, m), True, hub=m, rivals=tuple(range(m)))
        yield f"m={m}, {gap}", [make], (gap, m)


def _any_rank_ends() -> Iterator[Case]:
    for gap in (LOW, HIGH):
        yield f"{gap}", [partial(_any_rank, gap)], (gap,)


def _slack_ends() -> Iterator[Case]:
    for gap, slack in ((LOW, LOW / 2), (LOW / 2, LOW), (HIGH, F(1, 50)), (F(1, 2), F(19, 20))):
        makes = [
            partial(lifted, 3, gap, (0, 1), False, hub=j, rivals=(0, 3 - j), slack=slack)
            for j in (1, 2)
        ]
        yield f"{gap}, {slack}", makes, (gap, slack)


def _factor_ends() -> Iterator[Case]:
    for gap, alpha in ((LOW, LOW), (LOW, F(19, 20)), (HIGH, F(19, 20)), (HIGH, LOW)):
        make = partial(_factor_programme, gap=gap, alpha=alpha, exactly=True)
        yield f"{gap}, {alpha}", [partial(with_tail, make, 3, 1, 10**6)], (gap, alpha)


def _top_ends() -> Iterator[Case]:
    for m, last, gap in ((3, 3, LOW), (3, 1, HIGH)):
        make = partial(lifted, m + 1, gap, (0, last), True, hub=m, rivals=tuple(range(m)))
        yield f"m={m}, p1 - p{last + 1} {gap}", [make], (gap, m)


def _tree_ends(last_gap: bool) -> Iterator[Case]:
    for m, gap in ((3, LOW), (2, HIGH)):
        make = partial(sunk, m + 1, gap, (0, m if last_gap else 1), True, width=m)
        yield f"m={m}, {gap}", [make], (gap, m)


ENDS: dict[str, Callable[[], Iterator[Case]]] = {
    "drafter.margin.strict": _pair_ends,
    "drafter.margin.additive": _additive_ends,
    "drafter.margin.tree": _radius_ends,
    "reverse.margin.single": _any_rank_ends,
    "reverse.margin.additive": _slack_ends,
    "reverse.margin.multiplicative": _factor_ends,
    "reverse.margin.top": _top_ends,
    "reverse.margin.tree.p1-p2": partial(_tree_ends, False),
    "reverse.margin.tree.p1-p(m+1)": partial(_tree_ends, True),
    "drafter.margin.top.q1-q2": partial(_tree_ends, False),
    "drafter.margin.top.q1-q(m+1)": partial(_tree_ends, True),
}


def _none() -> Iterator[Case]:
    """Of a rule whose programmes have a tail that stands for many tokens."""
    yield from ()


LARGE: dict[str, Callable[[], Iterator[Case]]] = {
    "drafter.margin.strict": partial(_large_pair, None),
    "drafter.margin.additive": partial(_large_pair, F(1, 5)),
    "drafter.margin.tree": _large_radius,
    "reverse.margin.single": _large_single,
    "reverse.margin.additive": _large_slack,
    "reverse.margin.multiplicative": _none,
    "reverse.margin.top": _large_top,
    "reverse.margin.tree.p1-p2": partial(_large_tree, False),
    "reverse.margin.tree.p1-p(m+1)": partial(_large_tree, True),
    "drafter.margin.multiplicative": _none,
    "drafter.margin.top.q1-q2": partial(_large_tree, False),
    "drafter.margin.top.q1-q(m+1)": partial(_large_tree, True),
}


def _pool(probs: list[Any], *indices: int) -> Any:
    return geometric_value(sympy, probs, indices or range(len(probs)))


# (arguments, value of the extremal law, written as a pool of it)
EXTREMAL: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "drafter.margin.strict": [
        ((R(3, 5),), _pool([R(4, 5), R(1, 5)])),
        ((R(1, 3),), _pool([R(2, 3), R(1, 3)])),
    ],
    "drafter.margin.additive": [
        ((R(1, 2), R(1, 5)), bernoulli_divergence(sympy, R(3, 5), R(1, 4)))
    ],
    "drafter.margin.tree": [((R(1, 4), 2), _pool([R(5, 12), R(5, 12), R(2, 12)]))],
    "reverse.margin.single": [((R(3, 5),), _pool([R(4, 5), R(1, 5)]))],
    "reverse.margin.additive": [
        ((R(1, 5), R(3, 5)), _pool([R(4, 5), R(1, 5)])),
        ((R(3, 5), R(1, 5)), _pool([R(4, 5), R(1, 5)])),
    ],
    "reverse.margin.multiplicative": [
        ((R(1, 4), R(1, 4)), _pool([R(1, 3), R(1, 12), R(7, 12)], 0, 1)),
        ((R(3, 5), R(1, 4)), _pool([R(4, 5), R(1, 5)])),
    ],
    "reverse.margin.top": [((R(1, 5), 3), _pool([R(8, 20), R(4, 20), R(4, 20), R(4, 20)], 0, 3))],
    "reverse.margin.tree.p1-p2": [((R(1, 5), 3), _pool([R(8, 20), R(4, 20), R(4, 20), R(4, 20)]))],
    # eta = 1/2, m = 3: x = 1/(2 + 8/3) = 3/14, p = (6, 3, 3, 2)/14, d = 4/14
    "reverse.margin.tree.p1-p(m+1)": [
        ((R(4, 14), 3), _pool([R(6, 14), R(3, 14), R(3, 14), R(2, 14)]))
    ],
}


def register(claims: Iterable[str]) -> None:
    """Three routes for each claim that has CASES and EXTREMAL laws."""
    check_by({"steps": partial(prove_known, EXTREMAL)}, claims)
    for claim in claims:
        check_by_solvers(
            claim,
            CASES[claim],
            optimiser=least,
            conic=least_by_cone,
            large=LARGE[claim],
            ends=ENDS[claim],
            at_most=5,
        )


register(tuple(CASES))
