"""Checks of the drafter-side certificates: every competitor's region solved from its definition,
the least taken. The witnesses take the rules as inequalities between target probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import partial
from typing import Any

import mpmath
import sympy
from sympy import Rational, log, sqrt

from derivations.language.claim import Formula, get_claim
from proofs_check.methods.cases import Tally, exactly
from proofs_check.methods.numbers import MP, working_digits
from proofs_check.methods.projection import Projection, Row, project, reaches
from proofs_check.methods.projection_cases import BaseCase, base_draws, register_projections
from proofs_check.methods.steps import prove_identities
from proofs_check.methods.targets import MANY, WIDE, large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

_NOTHING = "t=1: no target has p_j > p_y + 1, nothing is rejected"
SLACKS = (F(1, 50), F(3, 10), F(19, 20))
ALPHAS = (F(1, 100), F(1, 2), F(1))


def _each_competitor(probs: tuple[F, ...], row: Callable[[int], Row]) -> list[Projection]:
    return [Projection(probs, (row(j),)) for j in range(1, len(probs))]


def _strict(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort):
        yield label, _each_competitor(probs, lambda j: reaches(j, 0)), probs[:2]


def _tree(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort, max_vocab=6):
        for m in {1, 2, len(probs) - 1} & set(range(1, len(probs))):
            projections = [
                Projection(probs, tuple(reaches(j, i) for i in range(m)))
                for j in range(m, len(probs))
            ]
            yield f"{label}, m={m}", projections, (probs, m)


def _top(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort, max_vocab=5):
        for m in {1, 2, len(probs) - 1} & set(range(1, len(probs))):
            projections = [
                Projection(probs, tuple(reaches(i, 0) for i in rivals))
                for rivals in itertools.combinations(range(1, len(probs)), m)
            ]
            yield f"{label}, m={m}", projections, (probs, m)


def _additive(effort: Effort) -> Iterator[BaseCase]:
    for number, (label, probs) in enumerate(base_draws(effort)):
        slack = SLACKS[number % 3]
        yield (
            f"{label}, t={slack}",
            _each_competitor(probs, partial(reaches, loser=0, by=slack)),
            (*probs[:2], slack),
        )
    yield f"{_NOTHING}, {label}", [], (*probs[:2], F(1))


def _multiplicative(effort: Effort) -> Iterator[BaseCase]:
    for number, (label, probs) in enumerate(base_draws(effort)):
        alpha = ALPHAS[number % 3]
        row = partial(reaches, loser=0, factor=alpha)
        yield f"{label}, alpha={alpha}", _each_competitor(probs, row), (*probs[:2], alpha)


def _gate(effort: Effort, *, factor: bool = False) -> Iterator[BaseCase]:
    last: list[BaseCase] = []
    for number, (label, probs) in enumerate(base_draws(effort, max_vocab=5)):
        parameter = (ALPHAS if factor else SLACKS)[number % 3]
        if len(probs) > 2:
            row = (
                partial(reaches, loser=0, factor=parameter)
                if factor
                else partial(reaches, loser=0, by=parameter)
            )
            pairs = itertools.combinations(range(1, len(probs)), 2)
            top = [Projection(probs, (reaches(a, 0), reaches(b, 0))) for a, b in pairs]
            name = "alpha" if factor else "t"
            yield (
                f"{label}, m=2, {name}={parameter}",
                [*_each_competitor(probs, row), *top],
                (probs, 2, parameter),
            )
            last = [(f"{label}, m=2, t=1: by rank alone", top, (probs, 2, F(1)))]
    if not factor:
        yield from last


def _absolute(effort: Effort) -> Iterator[BaseCase]:
    for label, probs in base_draws(effort):
        for tau in (F(1, 50), F(3, 5)):
            row: Row = (((0, F(-1)),), -tau)
            yield f"{label}, tau={tau}", [Projection(probs, (row,))], (probs[0], tau)


def _competitor(effort: Effort) -> Iterator[BaseCase]:
    for number, (label, probs) in enumerate(base_draws(effort)):
        slack = SLACKS[number % 3]
        for first in range(1, len(probs), 2):
            candidates = tuple(range(first, len(probs)))
            projections = [Projection(probs, (reaches(j, 0, slack),)) for j in candidates]
            yield f"{label}, t={slack}, j from {first + 1}", projections, (probs, slack, candidates)
    yield f"{_NOTHING}, {label}", [], (probs, F(1), candidates)


def _maximum(effort: Effort) -> Iterator[BaseCase]:
    for number, (label, probs) in enumerate(base_draws(effort, max_vocab=6)):
        slack = SLACKS[number % 3]
        others = range(1, len(probs))
        projections = [
            Projection(probs, (reaches(j, 0, slack), *(reaches(j, i) for i in others if i != j)))
            for j in others
        ]
        yield (f"{label}, t={slack}, j the maximum", projections, (probs, slack, tuple(others)))
    yield f"{_NOTHING}, {label}", [], (probs, F(1), tuple(others))


# Of a large draft many tokens have the same probability, and one of each value is solved: the
# others' projections are the same.
_LARGE = large_target(values=9).target_probs
_PLACES = sorted({1, *(_LARGE.index(prob) for prob in _LARGE)} - {0})


def _large_each(row: Callable[[int], Row], *arguments: Any) -> Iterator[BaseCase]:
    yield "large", [Projection(_LARGE, (row(j),)) for j in _PLACES], arguments


def _large_tree() -> Iterator[BaseCase]:
    probs = large_target().target_probs
    projections = [
        Projection(probs, tuple(reaches(j, i) for i in range(WIDE))) for j in range(WIDE, MANY)
    ]
    yield f"large, m={WIDE}", projections, (probs, WIDE)


def _large_sets(row: Callable[[int], Row] | None, *parameter: Any) -> Iterator[BaseCase]:
    """All sets of 16 of 17 rivals, and the one set of 63; with a rule's own row for each token."""
    for size, m in ((WIDE + 2, WIDE), (MANY, MANY - 1)):
        probs = large_target(size).target_probs
        projections = [
            Projection(probs, tuple(reaches(i, 0) for i in rivals))
            for rivals in itertools.combinations(range(1, size), m)
        ]
        if row is not None:
            projections += _each_competitor(probs, row)
        yield f"large, m={m}", projections, (probs, m, *parameter)


def _large_candidates(largest: bool) -> Iterator[BaseCase]:
    slack = SLACKS[1]
    projections = [
        Projection(
            _LARGE,
            (reaches(j, 0, slack), *(reaches(j, i) for i in range(1, MANY) if largest and i != j)),
        )
        for j in _PLACES
    ]
    yield f"large, t={slack}", projections, (_LARGE, slack, tuple(range(1, MANY)))


def _large_absolute() -> Iterator[BaseCase]:
    tau = _LARGE[0] / 3
    yield "large", [Projection(_LARGE, ((((0, F(-1)),), -tau),))], (_LARGE[0], tau)


LARGE: dict[str, Callable[[], Iterator[BaseCase]]] = {
    "drafter.strict": partial(_large_each, lambda j: reaches(j, 0), *_LARGE[:2]),
    "drafter.tree": _large_tree,
    "drafter.top": partial(_large_sets, None),
    "drafter.additive": partial(
        _large_each, partial(reaches, loser=0, by=SLACKS[1]), *_LARGE[:2], SLACKS[1]
    ),
    "drafter.multiplicative": partial(
        _large_each, partial(reaches, loser=0, factor=ALPHAS[1]), *_LARGE[:2], ALPHAS[1]
    ),
    "drafter.gate": partial(_large_sets, partial(reaches, loser=0, by=SLACKS[1]), SLACKS[1]),
    "drafter.gate.multiplicative": partial(
        _large_sets, partial(reaches, loser=0, factor=ALPHAS[1]), ALPHAS[1]
    ),
    "drafter.absolute": _large_absolute,
    "drafter.competitor": partial(_large_candidates, False),
    "drafter.maximum": partial(_large_candidates, True),
}


def _wider_tree() -> Iterator[BaseCase]:
    probs = large_target(7).target_probs
    each = [Projection(probs, tuple(reaches(j, i) for i in range(5))) for j in (5, 6)]
    yield "m=5", each, (probs, 5)


def _wider_gate(name: str, parameter: F) -> Iterator[BaseCase]:
    probs = large_target(4).target_probs
    given: dict[str, Any] = {name: parameter}
    row = partial(reaches, loser=0, **given)
    top = Projection(probs, tuple(reaches(i, 0) for i in (1, 2, 3)))
    yield f"m=3, {parameter}", [*_each_competitor(probs, row), top], (probs, 3, parameter)


ENDS: dict[str, Callable[[], Iterator[BaseCase]]] = {
    "drafter.tree": _wider_tree,
    "drafter.gate": partial(_wider_gate, "by", F(1, 50)),
    "drafter.gate.multiplicative": partial(_wider_gate, "factor", F(19, 20)),
}
CASES: dict[str, Callable[[Effort], Iterator[BaseCase]]] = {
    "drafter.strict": _strict,
    "drafter.tree": _tree,
    "drafter.top": _top,
    "drafter.additive": _additive,
    "drafter.multiplicative": _multiplicative,
    "drafter.gate": _gate,
    "drafter.gate.multiplicative": partial(_gate, factor=True),
    "drafter.absolute": _absolute,
    "drafter.competitor": _competitor,
    "drafter.maximum": _maximum,
}

R = Rational
_PROBS = [R(16, 30), R(9, 30), R(4, 30), R(1, 30)]
_LOG_TWO_PAIR = -log(1 - (sqrt(R(16, 30)) - sqrt(R(9, 30))) ** 2)
# (3/4, 1/4), t = 1/5: q_j u^2 = q_y (1+t)/(1-t), u^2 = 9/2: the target (2/5, 3/5)
_ADDITIVE = R(2, 5) * log(R(2, 5) / R(3, 4)) + R(3, 5) * log(R(3, 5) / R(1, 4))
# (2/3, 1/3), alpha = 1/2: alpha p_j = p_y, so the target (1/3, 2/3)
_HALF = R(1, 3) * log(R(1, 3) / R(2, 3)) + R(2, 3) * log(R(2, 3) / R(1, 3))
_TREE = -log(
    1 - R(16, 21) - R(1, 21) + 2 * R(4, 21)
)  # lift 1/21 over 16/21: geometric mean 4/21 = q_2
# Closed values written out by hand for rational drafts.
KNOWN: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "drafter.strict": [((R(16, 30), R(9, 30)), _LOG_TWO_PAIR), ((R(1, 2), R(1, 2)), sympy.S.Zero)],
    **{
        claim: [
            (([R(16, 21), R(4, 21), R(1, 21)], 2), _TREE),
            ((_PROBS, 1), _LOG_TWO_PAIR),
            ((_PROBS, len(_PROBS)), sympy.oo),
            *zero,
        ]
        for claim, zero in (
            ("drafter.tree", [(([R(3, 4), R(1, 4), R(0)], 2), sympy.oo)]),
            ("drafter.top", [(([R(3, 4), R(1, 4), R(0)], 2), log(4))]),
        )
    },
    "drafter.additive": [
        ((R(3, 4), R(1, 4), R(1, 5)), _ADDITIVE),
        ((R(16, 30), R(9, 30), R(0)), _LOG_TWO_PAIR),
    ],
    "drafter.multiplicative": [
        ((R(2, 3), R(1, 3), R(1, 2)), _HALF),
        ((R(16, 30), R(9, 30), R(1)), _LOG_TWO_PAIR),
    ],
    "drafter.gate": [(([R(3, 4), R(1, 4), R(0)], 2, R(1, 5)), _ADDITIVE)],
    "drafter.gate.multiplicative": [(([R(2, 3), R(1, 3), R(0)], 2, R(1, 2)), _HALF)],
    "drafter.absolute": [((R(3, 4), R(2, 5)), _ADDITIVE), ((R(3, 4), R(4, 5)), sympy.S.Zero)],
    "drafter.competitor": [((_PROBS, R(0), [1, 2]), _LOG_TWO_PAIR)],
    "drafter.maximum": [((_PROBS, R(0), [1, 2, 3]), _LOG_TWO_PAIR)],
}


register_projections(CASES, KNOWN, LARGE, ENDS)


# (rule, a draft on the boundary, vanishing entries as None, parameter, the region as one set of
# rows per competitor)
EDGES: list[tuple[str, list[F | None], Any, list[tuple[Row, ...]]]] = [
    ("strict", [F(1, 2), F(1, 2)], None, [(reaches(1, 0),)]),
    ("strict", [F(1), None, None], None, [(reaches(1, 0),), (reaches(2, 0),)]),
    ("strict", [F(1)], None, []),
    ("additive", [F(1), None], F(1, 5), [(reaches(1, 0, F(1, 5)),)]),
    ("multiplicative", [F(1), None], F(1, 2), [(reaches(1, 0, 0, F(1, 2)),)]),
    ("additive", [F(3, 4), F(1, 4)], F(1), []),
    ("tree", [F(3, 5), F(2, 5), None], 2, [(reaches(2, 0), reaches(2, 1))]),
    ("tree", [F(3, 5), F(2, 5)], 2, []),
    ("top", [F(3, 5), F(2, 5), None], 2, [(reaches(1, 0), reaches(2, 0))]),
    ("top", [F(3, 5), F(2, 5)], 2, []),
    ("top", [F(1, 3), F(1, 3), F(1, 3)], 2, [(reaches(1, 0), reaches(2, 0))]),
    ("top", [F(2, 5), F(2, 5), F(1, 5)], 2, [(reaches(1, 0), reaches(2, 0))]),
]
_LIMITS = [sympy.S.Zero, *[sympy.oo] * 7, -log(R(2, 5)), sympy.oo]
_LIMITS += [sympy.S.Zero, -log((2 + 2 * sympy.sqrt(2)) / 5)]  # a tie of two is no edge of top-2


@check("drafter.edges", method="steps")
def prove_edges(formula: Formula, effort: Effort) -> Evidence:
    identities = []
    for (rule, draft, parameter, _), limit in zip(EDGES, _LIMITS, strict=True):
        probs = [R(x.numerator, x.denominator) if x is not None else R(0) for x in draft]
        exact = (
            sympy.Rational(parameter.numerator, parameter.denominator)
            if isinstance(parameter, F)
            else parameter
        )
        found = sympy.sympify(formula(sympy, rule, probs, exact))
        # infinities can't be subtracted: compare exp(-r), which is 0 there
        identities.append((f"{rule} at {probs}", sympy.exp(-found), sympy.exp(-limit)))
    return prove_identities(get_claim("drafter.edges").derivation, identities, [{}])


@check("drafter.edges", method="optimiser", twice=True)
def approach_edges(formula: Formula, effort: Effort) -> Evidence:
    """The projection with 10^-45 and 10^-90 for the zeros: a finite limit is approached like their
    cube root, an infinite one makes the radius grow by a share of log 10^45."""
    tally = Tally("optimiser", confirm=mpmath.mpf(10) ** -28, refute=mpmath.mpf(10) ** -20)
    for rule, draft, parameter, regions in EDGES:
        label = f"{rule} at {[float(x or 0) for x in draft]}"
        probs = tuple(x if x is not None else F(0) for x in draft)
        with working_digits(effort.digits + 20):
            value = MP.mpf(formula(MP, rule, exactly((probs,))[0], *exactly((parameter,))))
            near = [_near_edge(draft, regions, F(1, 10**power), effort) for power in (45, 90)]
            # radii that grow in proportion to log(1/eps) have an infinite limit
            limit = mpmath.inf if near[1] > near[0] + 20 or near[1] == mpmath.inf else near[1]
            tally.add(label, value, limit, limit)
        if tally.refuted:
            break
    return tally.evidence("zeros approached")


def _near_edge(
    draft: list[F | None], regions: list[tuple[Row, ...]], tiny: F, effort: Effort
) -> mpmath.mpf:
    if not regions:
        return mpmath.inf
    zeros = draft.count(None)
    probs = tuple(tiny if x is None else x * (1 - zeros * tiny) for x in draft)
    return min(project(Projection(probs, rows), effort.second_digits).upper for rows in regions)
