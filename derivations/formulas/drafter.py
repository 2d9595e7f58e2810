"""Drafter-side certificates: the least KL(target || draft) of any target whose rule rejects the
draft's token, from the draft alone. We call it the radius: every target that is nearer accepts.

Example: a draft of (.6, .3, .1) under the strict rule has the radius -log(1 - (sqrt .6 - sqrt
.3)^2) = .0528 nats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy import exp, log, sqrt

from derivations.formulas.projections import (
    LIFT,
    SINK,
    bernoulli_divergence,
    lift_value,
    sink_value,
)
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Formula, Instance, Mutant, Step, declare
from derivations.language.instances import MERGED, UNORDERED, WEIGHED

__all__ = [
    "ABSOLUTE",
    "ADDITIVE",
    "COMPETITOR",
    "MULTIPLICATIVE",
    "STRICT",
    "absolute_radius",
    "additive_radius",
    "additive_radius_of",
    "edge_radius",
    "gate_factor_radius",
    "gate_radius",
    "multiplicative_radius",
    "strict_radius",
    "top_radius",
    "tree_radius",
]


def strict_radius(numbers: Any, top: Any, second: Any) -> Any:
    """-log(1 - (sqrt q1 - sqrt q2)^2); +inf at q2 = 0."""
    return (
        math.inf
        if second == 0
        else -numbers.log(1 - (numbers.sqrt(top) - numbers.sqrt(second)) ** 2)
    )


def tree_radius(numbers: Any, draft_probs: Sequence[Any], width: int) -> Any:
    """A greedy tree of width m misses the target's argmax: token m+1 is lifted over tokens 1..m."""
    if len(draft_probs) <= width:
        return math.inf
    return lift_value(numbers, draft_probs, width, range(width))


def top_radius(numbers: Any, draft_probs: Sequence[Any], width: int) -> Any:
    """Top-m rejects token 1: it sinks under tokens 2..m+1."""
    if len(draft_probs) <= width:
        return math.inf
    return sink_value(numbers, draft_probs, 0, range(1, width + 1))


def additive_radius(numbers: Any, top: Any, other: Any, slack: Any) -> Any:
    """t log u - log(q_y/u + q_j u + r0), u the positive root of q_j (1-t) u^2 - t r0 u - q_y (1+t)
    = 0."""
    if other == 0 or slack >= 1:
        return math.inf
    rest = 1 - top - other
    tilt = (slack * rest + numbers.sqrt(slack**2 * rest**2 + 4 * other * top * (1 - slack**2))) / (
        2 * other * (1 - slack)
    )
    return slack * numbers.log(tilt) - numbers.log(top / tilt + other * tilt + rest)


def additive_radius_of(
    numbers: Any, draft_probs: Sequence[Any], slack: Any, candidates: Sequence[int]
) -> Any:
    """The additive radius over several possible competitors: that of the most probable one."""
    return additive_radius(numbers, draft_probs[0], max(draft_probs[j] for j in candidates), slack)


def multiplicative_radius(numbers: Any, top: Any, second: Any, alpha: Any) -> Any:
    """-log(1 - q_y - q_j + (1 + 1/alpha) (alpha q_j)^(1/(1+alpha)) q_y^(alpha/(1+alpha)))."""
    if second == 0:
        return math.inf
    mean = numbers.exp((numbers.log(alpha * second) + alpha * numbers.log(top)) / (1 + alpha))
    return -numbers.log(1 - top - second + (1 + 1 / alpha) * mean)


def _gate_with(pair_radius: Formula, choose: Callable[[Any, Any], Any] = min) -> Formula:
    """Top-m together with a rule of two tokens: rejection is a union, so the smaller radius
    (mutants choose otherwise). The formula's last two parameters are m and the other rule's own."""

    def radius(numbers: Any, draft_probs: Sequence[Any], width: int, parameter: Any) -> Any:
        pair = pair_radius(numbers, draft_probs[0], draft_probs[1], parameter)
        return choose(top_radius(numbers, draft_probs, width), pair)

    return radius


gate_radius = _gate_with(additive_radius)
gate_factor_radius = _gate_with(multiplicative_radius)


def absolute_radius(numbers: Any, top: Any, tau: Any) -> Any:
    """d_bin(tau || q_y) for q_y > tau, else 0."""
    return bernoulli_divergence(numbers, tau, top) if top > tau else top * 0


def edge_radius(numbers: Any, rule: str, draft_probs: Sequence[Any], parameter: Any) -> Any:
    """The radius at the edges of the simplex: ties, zeros, a vocabulary that is too small."""
    second = draft_probs[1] if len(draft_probs) > 1 else draft_probs[0] * 0
    radii = {
        "strict": lambda: strict_radius(numbers, draft_probs[0], second),
        "additive": lambda: additive_radius(numbers, draft_probs[0], second, parameter),
        "multiplicative": lambda: multiplicative_radius(numbers, draft_probs[0], second, parameter),
        "top": lambda: top_radius(numbers, draft_probs, parameter),
        "tree": lambda: tree_radius(numbers, draft_probs, parameter),
    }
    return radii[rule]()


def _arithmetic_pair(numbers: Any, top: Any, second: Any) -> Any:
    return math.inf if second == 0 else -numbers.log(1 - (top - second) ** 2 / (top + second) / 2)


def _one_narrower(radius: Any) -> Any:
    def wrong(numbers: Any, draft_probs: Sequence[Any], width: int) -> Any:
        return (
            radius(numbers, draft_probs, max(width - 1, 1))
            if len(draft_probs) > width
            else math.inf
        )

    return wrong


def _top_for_tree(numbers: Any, draft_probs: Sequence[Any], width: int) -> Any:
    return top_radius(numbers, draft_probs, width)


def _tree_for_top(numbers: Any, draft_probs: Sequence[Any], width: int) -> Any:
    return tree_radius(numbers, draft_probs, width)


def _rest_left_out(numbers: Any, top: Any, other: Any, slack: Any) -> Any:
    if other == 0 or slack >= 1:
        return math.inf
    tilt = numbers.sqrt(top * (1 + slack) / (other * (1 - slack)))
    return slack * numbers.log(tilt) - numbers.log(top / tilt + other * tilt)


def _plain_geometric(numbers: Any, top: Any, second: Any, alpha: Any) -> Any:
    return math.inf if second == 0 else strict_radius(numbers, top, alpha * second)


def _least_probable(
    numbers: Any, draft_probs: Sequence[Any], slack: Any, candidates: Sequence[int]
) -> Any:
    return additive_radius(numbers, draft_probs[0], min(draft_probs[j] for j in candidates), slack)


def _open_top(numbers: Any, rule: str, draft_probs: Sequence[Any], parameter: Any) -> Any:
    return math.inf if rule == "top" else edge_radius(numbers, rule, draft_probs, parameter)


QY, QJ, R0, T, U, AL, LA, TAU = sympy.symbols("q_y q_j r_0 t u alpha lambda tau", positive=True)
QA, QB, PA, PB = sympy.symbols("q_a q_b p_a p_b", positive=True)
GROWTH = sympy.Symbol("r", nonnegative=True)

_REGION = (
    Step(
        "Rejection of y is a union over competitors j, and the least value over a union is the "
        "least of the values;",
        how="cited",
        cites=("lemma.infima",),
        read=UNORDERED,
    ),
    Step(
        "on each half-space the nearest target is the draft, tilted along the half-space's "
        "normal: the tilted law satisfies the KKT conditions.",
        how="cited",
        cites=("lemma.kkt",),
        instances=(WEIGHED,),
    ),
)
COMPETITOR = Derivation(
    "Exchange: the likeliest competitor is the nearest, and need not be the maximum",
    (
        Step(
            "Let q_a >= q_b and let p be a target rejected because of b: p_b >= p_y + t.",
            how="definition",
        ),
        Step(
            "If p_b <= p_a, p is rejected because of a as well: with p_b = p_y + t + r and p_a = "
            "p_b + z, p_a - p_y - t is",
            (at.y + at.t + at.r + at.z) - at.y - at.t,
            0,
            "nonnegative",
        ),
        Step(
            "Otherwise swap p_a and p_b. KL(p || q) changes by -(p_b - p_a)(log q_a - log q_b) <= "
            "0.",
            (PB * log(PB / QA) + PA * log(PA / QB)) - (PA * log(PA / QA) + PB * log(PB / QB)),
            -(PB - PA) * (log(QA) - log(QB)),
        ),
        Step(
            "So j = 2.",
            how="cited",
            cites=("lemma.exchange",),
            instances=(
                Instance("lemma.exchange", (PB, PA, QB, QA), (PB - PA) * (log(QA) - log(QB))),
            ),
        ),
        Step(
            "Asking in addition that j attain the target's maximum changes nothing: if p_j = p_y "
            "+ t + r and the maximum is p_j + z, the maximum lies t above y too. The union over j "
            "is the same set.",
            (at.y + at.t + at.r + at.z) - (at.y + at.t),
            0,
            "nonnegative",
        ),
    ),
)
STRICT = Derivation(
    "Two tokens meet at their geometric mean", (*_REGION, *COMPETITOR.steps, *LIFT.steps[-2:])
)
ADDITIVE = Derivation(
    "A tilt that opens a gap",
    (
        *_REGION,
        *COMPETITOR.steps[:3],
        Step(
            "Tilted weights q_j u, q_y/u, r0; the gap p_j - p_y = t reads q_j u - q_y/u = t (q_j "
            "u + q_y/u + r0), that is q_j (1-t) u^2 - t r0 u - q_y (1+t) = 0.",
            (QJ * U - QY / U - T * (QJ * U + QY / U + R0)) * U,
            QJ * (1 - T) * U**2 - T * R0 * U - QY * (1 + T),
        ),
        Step(
            "Its positive root:",
            sympy.expand(
                (QJ * (1 - T) * U**2 - T * R0 * U - QY * (1 + T)).subs(
                    U, (T * R0 + sqrt(T**2 * R0**2 + 4 * QJ * QY * (1 - T**2))) / (2 * QJ * (1 - T))
                )
                * QJ
                * (1 - T)
            ),
            0,
        ),
        Step(
            "The multiplier log u is >= 0: u^2 >= q_y (1+t)/(q_j (1-t)) >= 1 because q_y >= q_j. "
            "With q_y = q_j + r the last quotient's excess over 1 is",
            ((QJ + GROWTH) * (1 + T) - QJ * (1 - T)) / QJ,
            0,
            "nonnegative",
        ),
        Step(
            "The value: p_y = q_y/(u Z), p_j = q_j u/Z and p_i = q_i/Z give KL = (p_j - p_y) log "
            "u - log Z, "
            "with p_j - p_y = t: t log u - log(q_y/u + q_j u + r0); here n = Z, x = p_y, y = p_j.",
            at.x * at.log(1 / (at.u * at.n))
            + at.y * at.log(at.u / at.n)
            + (1 - at.x - at.y) * at.log(1 / at.n),
            (at.y - at.x) * at.log(at.u) - at.log(at.n),
        ),
        Step(
            "At t = 0 it is the strict radius: u = sqrt(q_y/q_j).",
            QY / sqrt(QY / QJ) + QJ * sqrt(QY / QJ),
            2 * sqrt(QY * QJ),
        ),
    ),
)
_MEAN = (AL * QJ) ** (1 / (1 + AL)) * QY ** (AL / (1 + AL))
MULTIPLICATIVE = Derivation(
    "A tilt with unequal weights",
    (
        *_REGION,
        *COMPETITOR.steps[:3],
        Step(
            "The half-space is alpha p_j - p_y >= 0: tilted weights q_j e^(alpha l), q_y e^(-l); "
            "alpha q_j e^(alpha l) = q_y e^(-l) at l = log(q_y/(alpha q_j))/(1 + alpha).",
            log(AL * QJ) + AL * log(QY / (AL * QJ)) / (1 + AL),
            log(QY) - log(QY / (AL * QJ)) / (1 + AL),
        ),
        Step(
            "l >= 0 because q_y >= q_j >= alpha q_j. The common value q_y e^(-l) is the weighted "
            "geometric mean:",
            log(QY) - log(QY / (AL * QJ)) / (1 + AL),
            log(_MEAN),
        ),
        Step(
            "Z = 1 - q_y - q_j + (1 + 1/alpha) times it: the common value is s = q_y e^(-l) = "
            "alpha q_j e^(alpha l), so token y weighs s and token j s/alpha.",
            (1 - at.x - at.y) + at.s + at.s / at.a,
            1 - at.x - at.y + (1 + 1 / at.a) * at.s,
        ),
        Step("At alpha = 1 it is the strict radius.", (2 * _MEAN).subs(AL, 1), 2 * sqrt(QJ * QY)),
    ),
)
ABSOLUTE = Derivation(
    "One token loses mass to all others",
    (
        Step("Rejection is p_y <= tau.", how="definition"),
        Step(
            "Grouping the other tokens does not increase KL.",
            how="cited",
            cites=("lemma.merge",),
            instances=(MERGED,),
        ),
        Step(
            "The others may keep their proportions, p_i = q_i (1-v)/(1-w), v = p_y, w = q_y; they "
            "add up to (1-v) log((1-v)/(1-w)), so KL is d_bin(p_y || q_y),",
            (1 - at.w) * ((1 - at.v) / (1 - at.w)) * at.log((1 - at.v) / (1 - at.w)),
            (1 - at.v) * at.log((1 - at.v) / (1 - at.w)),
        ),
        Step(
            "whose derivative in p_y is log(p_y (1-q_y)/(q_y (1-p_y))),",
            sympy.diff(TAU * (log(TAU) - log(QY)) + (1 - TAU) * (log(1 - TAU) - log(1 - QY)), TAU),
            log(TAU) - log(QY) - log(1 - TAU) + log(1 - QY),
        ),
        Step(
            "negative below q_y, since q_y (1-v)/(v (1-q_y)) exceeds 1 there : the least value is "
            "at p_y = tau; the excess is",
            at.w * (1 - at.v) / (at.v * (1 - at.w)) - 1,
            (at.w - at.v) / (at.v * (1 - at.w)),
        ),
    ),
)
GATE = Derivation(
    "A gate rejects the union",
    (
        Step(
            "min over a union is the smaller of the two minima.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        *ADDITIVE.steps[4:6],
        *SINK.steps[4:6],
    ),
)
GATE_FACTOR = Derivation(
    "A gate with a factor rejects the union",
    (GATE.steps[0], *MULTIPLICATIVE.steps[-4:-1], *SINK.steps[4:6]),
)
EDGES = Derivation(
    "Ties, zeros and small vocabularies",
    (
        Step(
            "q_1 = q_2 (top-m: q_1 = ... = q_{m+1}): the draft itself is rejected (closed ties), "
            "radius 0.",
            (sqrt(QY) - sqrt(QJ)).subs(QJ, QY),
            0,
        ),
        Step(
            "q_i = 0 < p_i costs without bound: the inverse of p log(p/q) vanishes as q does.",
            sympy.limit(1 / (at.x * at.log(at.x / at.w)), at.w, 0),
            0,
        ),
        Step(
            "q_2 = 0: by that, only y has mass, p_y = 1 and p_j = 0, and every single-token rule "
            "asks less of y: 1 - t of additive slack t (0: strict),",
            1 - (1 - at.t),
            0,
            "nonnegative",
        ),
        Step(
            "and alpha p_1 = 1/(1+t) <= 1 of a factor alpha = 1/(1+t): no target rejects, +inf.",
            1 - 1 / (1 + at.t),
            0,
            "nonnegative",
        ),
        Step(
            "A tree with q_{m+1} = 0 has p_{m+1} = 0, by the same; were that the maximum, p_i = "
            "p_{m+1} - d_i with "
            "d_i >= 0 would be <= 0, and so would any sum of them: not 1, so +inf.",
            0,
            (at.x - at.d + at.x - at.e).subs(at.x, 0),
            "nonnegative",
        ),
        Step("Top-m with q_{m+1} = 0: p_y = 0 ties with p_{m+1} = 0.", how="definition"),
        Step(
            "Closed ties reject it at the cost of taking all mass from y, -log(1 - q_y).",
            how="cited",
            cites=("drafter.absolute",),
            instances=(Instance("drafter.absolute", (at.w, 0), -at.log(1 - at.w)),),
        ),
        Step(
            "The open rule never rejects it: +inf. The certificate takes the smaller, which is "
            "safe.",
            how="remark",
        ),
        Step(
            "The limit of the pool's value as one pooled probability vanishes:",
            sympy.limit(exp(log(U) / 3), U, 0),
            0,
        ),
        Step("A vocabulary of at most m tokens leaves no competitor: +inf.", how="definition"),
    ),
)

_Q = sympy.IndexedBase("q")
_TWO = "draft sorted, q_1 >= q_2 > 0"
for _claim in (
    Claim(
        id="drafter.strict",
        sentence="Strict: every target that rejects the draft's token has KL(target || draft) >= "
        "-log(1 - (sqrt q1 - sqrt q2)^2), attained.",
        domain=_TWO,
        theory="C (strict)",
        relation="=",
        formula=strict_radius,
        derivation=STRICT,
        mutants=(Mutant("average for geometric mean", _arithmetic_pair),),
        statement=sympy.Eq(
            sympy.Symbol("r"), -log(1 - (sqrt(_Q[1]) - sqrt(_Q[2])) ** 2), evaluate=False
        ),
    ),
    Claim(
        id="drafter.tree",
        sentence="Tree of width m: the radius is that of lifting token m+1 over tokens 1..m; +inf "
        "where the vocabulary has at most m tokens.",
        domain="draft sorted, any m >= 1",
        theory="C (tree)",
        relation="=",
        formula=tree_radius,
        derivation=LIFT,
        mutants=(
            Mutant("one token fewer in the tree", _one_narrower(tree_radius)),
            Mutant("the top-m radius", _top_for_tree),
        ),
    ),
    Claim(
        id="drafter.top",
        sentence="Top-m: the radius is that of sinking token 1 under tokens 2..m+1.",
        domain="draft sorted, any m >= 1",
        theory="C (top-m)",
        relation="=",
        formula=top_radius,
        derivation=SINK,
        mutants=(
            Mutant("one token fewer", _one_narrower(top_radius)),
            Mutant("the tree's radius", _tree_for_top),
        ),
    ),
    Claim(
        id="drafter.additive",
        sentence="Additive slack t: r = t log u - log(q_y/u + q_j u + r0), j = 2, u the positive "
        "root of q_j (1-t) u^2 - t r0 u - q_y (1+t) = 0.",
        domain=_TWO + ", 0 <= t < 1",
        theory="C (additive)",
        relation="=",
        formula=additive_radius,
        derivation=ADDITIVE,
        mutants=(Mutant("the other tokens' mass left out", _rest_left_out),),
    ),
    Claim(
        id="drafter.multiplicative",
        sentence="Factor alpha: r = -log(1 - q_y - q_j + (1 + 1/alpha) (alpha q_j)^(1/(1+alpha)) "
        "q_y^(alpha/(1+alpha))), j = 2.",
        domain=_TWO + ", 0 < alpha <= 1",
        theory="C (multiplicative)",
        relation="=",
        formula=multiplicative_radius,
        derivation=MULTIPLICATIVE,
        mutants=(Mutant("equal weights for the two tokens", _plain_geometric),),
    ),
    Claim(
        id="drafter.gate",
        sentence="Gate: the radius is the smaller of the top-m and the additive radius.",
        domain="draft sorted, q_2 > 0, m >= 2, 0 <= t < 1",
        theory="C (gate)",
        relation="=",
        formula=gate_radius,
        derivation=GATE,
        mutants=(
            Mutant("the larger of the two", _gate_with(additive_radius, max)),
            Mutant("the top-m radius alone", lambda n, probs, m, t: top_radius(n, probs, m)),
        ),
    ),
    Claim(
        id="drafter.gate.multiplicative",
        sentence="Gate of rank m with factor alpha: the radius is the smaller of the top-m and "
        "the multiplicative radius.",
        domain="draft sorted, q_2 > 0, m >= 2, 0 < alpha <= 1",
        theory="C (gate, multiplicative)",
        relation="=",
        formula=gate_factor_radius,
        derivation=GATE_FACTOR,
        mutants=(
            Mutant("the larger of the two", _gate_with(multiplicative_radius, max)),
            Mutant(
                "the multiplicative radius alone",
                lambda n, q, m, a: multiplicative_radius(n, q[0], q[1], a),
            ),
        ),
    ),
    Claim(
        id="drafter.absolute",
        sentence="Absolute threshold tau: the radius is d_bin(tau || q_y) for q_y > tau, and 0 "
        "otherwise.",
        domain="0 < tau < 1, any draft of at least 2 tokens",
        theory="C (entropy, simple), absolute rule",
        relation="=",
        formula=absolute_radius,
        derivation=ABSOLUTE,
        mutants=(
            Mutant("arguments exchanged", lambda n, top, tau: bernoulli_divergence(n, top, tau)),
        ),
    ),
    Claim(
        id="drafter.competitor",
        sentence="Of all possible competitors the draft's likeliest is the nearest.",
        domain="draft sorted, any set of competitors, 0 <= t < 1",
        theory="C (best competitor)",
        relation="=",
        formula=additive_radius_of,
        derivation=COMPETITOR,
        mutants=(Mutant("the least probable competitor", _least_probable),),
    ),
    Claim(
        id="drafter.maximum",
        sentence="The constraint that the competitor attain the target's maximum is immaterial: "
        "the radius with it is the radius without.",
        domain=_TWO + ", 0 <= t < 1",
        theory="C (max constraint)",
        relation="=",
        formula=additive_radius_of,
        derivation=COMPETITOR,
        mutants=(Mutant("the least probable competitor", _least_probable),),
    ),
    Claim(
        id="drafter.edges",
        sentence="At the edges: 0 for q_1 = q_2 (strict) and q_1 = q_{m+1} (top-m); +inf for q_2 = "
        "0 (strict, additive, multiplicative), for q_{m+1} = 0 (tree) and for at most m tokens; "
        "-log(1 - q_y) for q_{m+1} = 0 (top-m, closed ties).",
        domain="the faces of the simplex",
        theory="C (edges)",
        relation="=",
        formula=edge_radius,
        derivation=EDGES,
        mutants=(Mutant("open ties for top-m", _open_top),),
    ),
):
    declare(_claim)
