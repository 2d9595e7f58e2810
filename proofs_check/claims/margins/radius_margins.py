"""Checks of the drafter-side margin bounds: multiplicative, top-m and gate, with draft and target
both free."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction as F
from functools import partial

import sympy
from sympy import Rational

from derivations.formulas.drafter import multiplicative_radius
from derivations.formulas.projections import bernoulli_divergence, geometric_value
from derivations.language.claim import Formula
from derivations.margins.radius_margins import CHORD, best_ratio, chord_use
from proofs_check.claims.margins.projection_margins import (
    CASES,
    ENDS,
    EXTREMAL,
    HIGH,
    LARGE,
    LOW,
    lifted,
    register,
    sorted_base,
    sunk,
)
from proofs_check.methods.branches import branches
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.joint import JointProgramme
from proofs_check.methods.margin_programmes import Case, with_tail
from proofs_check.methods.numbers import MP
from proofs_check.methods.slopes import Slope, enclose_statements
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import MANY, WIDE
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

R = Rational


def _multiplicative(effort: Effort) -> Iterator[Case]:
    for alpha, gap, exactly in (
        (F(1, 2), F(1, 10), True),
        (F(1, 2), F(1, 10), False),
        (F(1, 2), F(3, 5), True),
        (F(1, 10), F(1, 5), True),
    ):
        tailed = partial(
            with_tail, partial(_factor, gap=gap, alpha=alpha, exactly=exactly), 3, 1, 10**60
        )
        yield f"multiplicative radius {alpha}, exactly {exactly}, {gap}", [tailed], (gap, alpha)


def _factor(num_tokens: int, *, gap: F, alpha: F, exactly: bool) -> JointProgramme:
    """The moved law has p_1 <= alpha p_2."""
    programme = sorted_base(num_tokens, gap, (0, 1), exactly)
    return programme.row_at_least({programme.target(1): alpha, programme.target(0): F(-1)}, 0)


def _top(last_gap: bool, effort: Effort) -> Iterator[Case]:
    for m, gap, exactly in ((2, F(2, 5), True), (2, F(2, 5), False), (3, F(1, 10), True)):
        pair = (0, m if last_gap else 1)
        make = partial(sunk, m + 1 + (m == 2), gap, pair, exactly, width=m)
        yield f"top radius {m}, q1 - q{pair[1] + 1}, exactly {exactly}, {gap}", [make], (gap, m)


def _gate(effort: Effort, *, factor: bool = False) -> Iterator[Case]:
    parameters = (F(1, 10), F(1, 2), F(1, 2)) if factor else (F(1, 10), F(3, 5), F(1, 2))
    for (m, gap), parameter in zip(
        ((2, F(2, 5)), (2, F(1, 10)), (3, F(3, 5))), parameters, strict=True
    ):
        ranked = partial(sunk, m + 1, gap, (0, 1), True, width=m)
        if factor:
            other = partial(
                with_tail, partial(_factor, gap=gap, alpha=parameter, exactly=True), 3, 1, 10**60
            )
        else:
            other = partial(lifted, m + 1, gap, (0, 1), True, hub=1, rivals=(0,), opened=parameter)
        yield (
            f"gate radius {m}, {'x ' if factor else ''}{parameter}, {gap}",
            [ranked, other],
            (gap, m, parameter),
        )


def _gate_last(effort: Effort) -> Iterator[Case]:
    """Competitor m+1 by rank; competitor j <= m with the slack. (Clarabel returns +inf from d =
    7/10 on.)"""
    for m, slack, gap in ((2, F(1, 5), F(3, 10)), (2, F(1, 5), F(13, 20)), (3, F(1, 2), F(1, 10))):
        yield _gate_last_case(m, slack, gap)


def _gate_last_case(m: int, slack: F, gap: F) -> Case:
    makes = [
        partial(
            lifted,
            m + 1,
            gap,
            (0, m),
            False,
            hub=j,
            rivals=tuple(i for i in range(m + 1) if i != j),
            slack=None if j == m else slack,
        )
        for j in range(1, m + 1)
    ]
    return f"reverse gate {m}, {slack}, p1 - p{m + 1} at least {gap}", makes, (gap, m, slack)


def _factor_gate_last(effort: Effort) -> Iterator[Case]:
    for m, alpha, gap, exactly in (
        (2, F(1, 2), F(1, 10), True),
        (2, F(1, 2), F(9, 20), False),
        (2, F(1, 2), F(3, 5), True),
        (3, F(1, 10), F(9, 20), True),
    ):
        yield _factor_gate_case(m, alpha, gap, exactly)


def _factor_gate_case(m: int, alpha: F, gap: F, exactly: bool) -> Case:
    inside = partial(_inside_gate, gap=gap, last=m, exactly=exactly, alpha=alpha)
    beyond = partial(lifted, m + 1, gap, (0, m), exactly, hub=m, rivals=tuple(range(m)))
    return (
        f"reverse gate {m}, x {alpha}, p1 - p{m + 1}, exactly {exactly}, {gap}",
        [partial(with_tail, inside, m + 2, 1, 10**60), beyond],
        (gap, m, alpha),
    )


def _inside_gate(num_tokens: int, *, gap: F, last: int, exactly: bool, alpha: F) -> JointProgramme:
    """Token 2 the competitor, at most alpha times token 1, and p_1 - p_{last+1} given."""
    return lifted(num_tokens, gap, (0, last), exactly, hub=1, rivals=(0, 2), factor=alpha)


def _multiplicative_ends() -> Iterator[Case]:
    for gap, alpha in ((LOW, LOW), (HIGH, F(19, 20))):
        make = partial(_factor, gap=gap, alpha=alpha, exactly=True)
        yield f"{gap}, {alpha}", [partial(with_tail, make, 3, 1, 10**60)], (gap, alpha)


def _gate_ends(factor: bool) -> Iterator[Case]:
    for m, gap, parameter in ((2, LOW, LOW), (3, HIGH, F(19, 20)), (2, HIGH, LOW)):
        ranked = partial(sunk, m + 1, gap, (0, 1), True, width=m)
        tailed = partial(
            with_tail, partial(_factor, gap=gap, alpha=parameter, exactly=True), 3, 1, 10**60
        )
        opened = partial(lifted, m + 1, gap, (0, 1), True, hub=1, rivals=(0,), opened=parameter)
        yield f"{gap}, {parameter}", [ranked, tailed if factor else opened], (gap, m, parameter)


def _gate_last_ends() -> Iterator[Case]:
    for m, slack, gap in ((2, LOW, LOW / 2), (2, F(19, 20), F(1, 2)), (3, LOW, HIGH)):
        yield _gate_last_case(m, slack, gap)


def _factor_gate_ends() -> Iterator[Case]:
    for m, alpha, gap in ((2, LOW, LOW), (2, F(19, 20), HIGH), (3, F(19, 20), LOW)):
        yield _factor_gate_case(m, alpha, gap, True)


ENDS |= {
    "drafter.margin.multiplicative": _multiplicative_ends,
    "drafter.margin.gate": partial(_gate_ends, False),
    "drafter.margin.gate.multiplicative": partial(_gate_ends, True),
    "reverse.margin.gate.last": _gate_last_ends,
    "reverse.margin.gate.multiplicative.last": _factor_gate_ends,
}


def _large_gate(factor: bool) -> Iterator[Case]:
    gap, parameter = F(3, 5), F(1, 2)
    ranked = partial(sunk, MANY, gap, (0, 1), True, width=WIDE)
    tailed = partial(
        with_tail, partial(_factor, gap=gap, alpha=parameter, exactly=True), 3, 1, 10**60
    )
    opened = partial(lifted, MANY, gap, (0, 1), True, hub=1, rivals=(0,), opened=parameter)
    other = tailed if factor else opened
    yield f"gate radius {WIDE}, {parameter}, V={MANY}", [ranked, other], (gap, WIDE, parameter)


def _large_gate_last() -> Iterator[Case]:
    slack, gap = F(1, 5), F(3, 10)
    makes = [
        partial(
            lifted,
            MANY,
            gap,
            (0, WIDE),
            False,
            hub=j,
            rivals=tuple(i for i in range(MANY) if i != j),
            slack=slack if j < WIDE else None,
        )
        for j in (1, 2, WIDE // 2, WIDE - 1, WIDE)
    ]
    yield f"reverse gate {WIDE}, {slack}, V={MANY}", makes, (gap, WIDE, slack)


def _large_factor_gate() -> Iterator[Case]:
    gap, alpha = F(9, 20), F(1, 2)
    inside = partial(_inside_gate, gap=gap, last=WIDE, exactly=True, alpha=alpha)
    beyond = partial(lifted, MANY, gap, (0, WIDE), True, hub=WIDE, rivals=tuple(range(WIDE)))
    yield (
        f"reverse gate {WIDE}, x {alpha}, V={MANY}",
        [partial(with_tail, inside, WIDE + 2, 1, 10**60), beyond],
        (gap, WIDE, alpha),
    )


LARGE |= {
    "drafter.margin.gate": partial(_large_gate, False),
    "drafter.margin.gate.multiplicative": partial(_large_gate, True),
    "reverse.margin.gate.last": _large_gate_last,
    "reverse.margin.gate.multiplicative.last": _large_factor_gate,
}
NEW = (
    "reverse.margin.gate.last",
    "reverse.margin.gate.multiplicative.last",
    "drafter.margin.multiplicative",
    "drafter.margin.top.q1-q2",
    "drafter.margin.top.q1-q(m+1)",
    "drafter.margin.gate",
    "drafter.margin.gate.multiplicative",
)
CASES |= {
    "drafter.margin.multiplicative": _multiplicative,
    "drafter.margin.top.q1-q2": partial(_top, False),
    "drafter.margin.top.q1-q(m+1)": partial(_top, True),
    "drafter.margin.gate": _gate,
    "drafter.margin.gate.multiplicative": partial(_gate, factor=True),
    "reverse.margin.gate.last": _gate_last,
    "reverse.margin.gate.multiplicative.last": _factor_gate_last,
}
_FOUR = geometric_value(sympy, [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], range(4))
_HARMONIC = geometric_value(sympy, [R(6, 14), R(3, 14), R(3, 14), R(2, 14)], range(4))
EXTREMAL |= {
    "drafter.margin.multiplicative": [
        ((R(3, 5), R(1, 2)), sympy.log(R(5, 3)))
    ],  # 3 (1/10)^(2/3) (4/5)^(1/3)
    "drafter.margin.top.q1-q2": [((R(1, 5), 3), _FOUR)],
    "drafter.margin.top.q1-q(m+1)": [((R(4, 14), 3), _HARMONIC)],
    "reverse.margin.gate.last": [
        ((R(3, 10), 2, R(3, 5)), geometric_value(sympy, [R(16, 30), R(7, 30), R(7, 30)], (0, 2))),
        ((R(4, 5), 2, R(1, 5)), geometric_value(sympy, [R(4, 5), R(1, 5)], range(2))),
    ],
    "reverse.margin.gate.multiplicative.last": [
        (
            (R(1, 5), 3, R(1, 100)),
            geometric_value(sympy, [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], (0, 3)),
        ),
        ((R(9, 10), 3, R(1, 2)), geometric_value(sympy, [R(9, 10), R(1, 10)], range(2))),
        ((R(4, 5), 2, R(1, 4)), geometric_value(sympy, [R(4, 5), R(1, 5)], range(2))),
    ],
    "drafter.margin.gate": [
        ((R(1, 5), 3, R(9, 10)), _FOUR),
        ((R(1, 2), 3, R(0)), bernoulli_divergence(sympy, R(1, 2), R(1, 4))),
    ],
    "drafter.margin.gate.multiplicative": [
        (
            (R(3, 5), 3, R(1, 2)),
            geometric_value(sympy, [R(7, 10), R(1, 10), R(1, 10), R(1, 10)], range(4)),
        ),
        ((R(3, 5), 8, R(1, 2)), sympy.log(R(5, 3))),
    ],
}
register(NEW)

G, T, M, K = sympy.symbols("g t m k", positive=True)
X, Z = sympy.symbols("x z", nonnegative=True)


def _tree_grows(formula: Formula, effort: Effort) -> Evidence:
    slope = M * G / ((1 + M * G) * (1 - G))
    grows = Slope(
        "grows with g: m g/((1+mg)(1-g))", formula(sympy, G, M), G, (), {M: 1 / Z}, rest=slope
    )
    return enclose_statements([grows], "0 <= g < 1, every real m >= 1: exactly = at least")


def _pair_grows(formula: Formula, effort: Effort) -> Evidence:
    grows = Slope("grows with g: g/(1-g^2)", formula(sympy, G), G, (), {}, rest=G / (1 - G**2))
    return enclose_statements([grows], "0 <= g < 1: exactly = at least")


@check("drafter.margin.additive", method="enclosure")
def enclose_additive(formula: Formula, effort: Effort) -> Evidence:
    """The branch for g, t < 1; elsewhere it is infinite."""
    value = branches(formula, (G, T), [(R(2, 5), R(1, 5))])[0].expression
    slope = ((1 + T) / (1 - G) - (1 - T) / (1 + G)) / 2
    grows = Slope("grows with g: (g + t)/(1-g^2)", value, G, (), {}, rest=slope)
    return enclose_statements([grows], "0 <= g < 1, 0 <= t < 1: exactly = at least")


@check("drafter.margin.multiplicative", method="enclosure")
def enclose_multiplicative(formula: Formula, effort: Effort) -> Evidence:
    """With two tokens the radius -log((1+1/alpha)(alpha (1-g)/2)^s ((1+g)/2)^(1-s)), s =
    1/(1+alpha), has the slope s/(1-g) - (1-s)/(1+g), which is >= 0 as s >= 1/2; on the chord it
    grows with g by its form."""
    share = (1 + X) / 2  # s from 1/2 to 1
    two = -(share * sympy.log((1 - G) / 2) + (1 - share) * sympy.log((1 + G) / 2))
    slope = share / (1 - G) - (1 - share) / (1 + G)
    grows = Slope("two tokens: grows with g", two, G, (), {}, rest=slope)
    point = {G: R(3, 5)}
    printed = formula(sympy, R(3, 5), R(1, 2))
    stated = two.subs({X: R(1, 3), **point}) - sympy.log(3) - R(2, 3) * sympy.log(R(1, 2))
    if abs(sympy.N(printed - stated, 40)) > 1e-30:
        miss = f"{sympy.N(printed - stated, 3)}"
        return Evidence("enclosure", Verdict.REFUTED, None, miss, "g = 3/5, alpha = 1/2", 1)
    return enclose_statements([grows], "0 <= g < 1, 0 < alpha <= 1: exactly = at least")


for _claim in ("reverse.margin.tree.p1-p2", "drafter.margin.top.q1-q2"):
    check(_claim, method="enclosure")(_tree_grows)
for _claim in ("drafter.margin.strict", "reverse.margin.single"):
    check(_claim, method="enclosure")(_pair_grows)


@proved("drafter.margin.chord", CHORD)
def prove_chord(formula: Formula, effort: Effort) -> Identities:
    """Golden: with alpha = 1/2 the chord ends at exp(l/2) = (1 + sqrt 5)/2."""
    golden = (1 + sympy.sqrt(5)) / 2
    level = 2 * sympy.log(golden)
    yield "use 1", sympy.exp(level / 2), 2 - 1 / golden**2
    yield "its slope", sympy.exp(-formula(sympy, R(1, 2), level)), 1 - (1 - 1 / golden**2) / 2


@tallied("drafter.margin.chord", method="search", relation="<=", more=20, told="random drafts")
def search_chord(formula: Formula, effort: Effort) -> Cases:
    """No draft's own radius lies below it at any allowed level; the chord's value is reached at
    the largest."""
    rng = random.Random(effort.seed)
    for alpha in (
        MP.mpf(1) / 50,
        MP.mpf(3) / 10,
        MP.mpf(1) / 2,
        MP.mpf(9) / 10,
        1 - MP.mpf(2) ** -40,
    ):
        ratio = best_ratio(MP, alpha)
        largest = -MP.log(alpha * ratio) / (1 + alpha)
        use = chord_use(MP, largest, alpha)
        yield f"use at alpha={alpha}", use, MP.mpf(1), MP.mpf(1)
        yield f"and no less, alpha={alpha}", MP.mpf(1), use, use
        for _ in range(8):
            shape = ratio if rng.random() < 0.3 else MP.mpf(rng.random())
            mass = MP.mpf(rng.random())
            top, second = mass / (1 + shape), mass * shape / (1 + shape)
            level = largest * rng.choice([1, rng.random(), 1 - MP.mpf(10) ** -9])
            exact = multiplicative_radius(MP, top, second, alpha)
            label = f"alpha={alpha}, q=({top}, {second}), level {level}"
            yield label, formula(MP, top - second, level), exact, exact
