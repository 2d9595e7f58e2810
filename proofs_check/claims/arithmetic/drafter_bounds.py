"""Checks of the bounds below radii: multipliers of every rule, near the best ones and far from
them, against radii solved from their definition; rounding at its worst at high precision; and
float64 itself on drafts that nearly tie."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction as F
from typing import Any

import mpmath
import sympy
from sympy import Rational, log

from derivations.arithmetic.drafter_bounds import DUAL_RADIUS, RADIUS
from derivations.formulas import drafter
from derivations.kernels.evaluation import SECOND_ORDER, UNIT
from derivations.language.claim import Formula
from proofs_check.methods.cases import Tally
from proofs_check.methods.conic import check_by_solvers
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.projection import Projection, Row, project, reaches
from proofs_check.methods.projection_cases import BaseCase, base_draws, nearest, nearest_by_cone
from proofs_check.methods.steps import prove_identities
from proofs_check.methods.targets import large_target
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

mpf = mpmath.mpf
U = mpf(2) ** -53
R = Rational
SLACK, ALPHA, TAU = F(5, 16), F(1, 2), F(3, 16)  # the same in float64
WIDTH = 2
Regions = list[Projection]


def _regions(probs: tuple[F, ...]) -> dict[str, Regions]:
    """Rule -> the polyhedra whose union rejects token 1 (tree: misses the maximum), every
    competitor's own."""
    competitors = range(1, len(probs))
    below: Row = (((0, F(-1)),), -TAU)
    regions = {
        "strict": [Projection(probs, (reaches(j, 0),)) for j in competitors],
        "additive": [Projection(probs, (reaches(j, 0, SLACK),)) for j in competitors],
        "multiplicative": [Projection(probs, (reaches(j, 0, 0, ALPHA),)) for j in competitors],
        "absolute": [Projection(probs, (below,))],
    }
    if len(probs) > 2:
        regions["tree"] = [
            Projection(probs, tuple(reaches(j, i) for i in range(WIDTH)))
            for j in competitors
            if j >= WIDTH
        ]
        pairs = itertools.combinations(competitors, WIDTH)
        regions["top"] = [Projection(probs, tuple(reaches(i, 0) for i in pair)) for pair in pairs]
    return regions


def _multipliers(rule: str, probs: list[float]) -> list[float]:
    """About the best multiplier of each row; any numbers >= 0 would do."""
    own, second, rest = probs[0], probs[1], sum(probs[2:])
    if rule == "strict":
        return [max(0.0, math.log(own) - math.log(second)) / 2]
    if rule == "multiplicative":
        return [(math.log(own) - math.log(second * float(ALPHA))) / (1 + float(ALPHA))]
    if rule == "additive":
        t = float(SLACK)
        root = t * rest + math.sqrt(t * t * rest * rest + 4 * own * second * (1 - t * t))
        return [max(0.0, math.log(root) - math.log(2 * (1 - t) * second))]
    if rule == "absolute":
        tau = float(TAU)
        return [
            max(0.0, math.log(own) - math.log(second + rest) - math.log(tau) + math.log(1 - tau))
        ]
    logs = [math.log(prob) for prob in probs]
    hub, pool, sign = (logs[2], logs[:2], 1) if rule == "tree" else (logs[0], logs[1:3], -1)
    level, size = hub, 1
    for value in sorted(pool, reverse=rule == "top")[::-1] if rule == "tree" else sorted(pool):
        if sign * (value - level) > 0:
            level, size = (level * size + value) / (size + 1), size + 1
    return [max(0.0, sign * (value - level)) for value in pool]


def _exponents(rule: str, size: int, multipliers: list[Any], number: Any) -> tuple[list[Any], Any]:
    """f by token and the gain, of the rows of the likeliest competitors; ``number``: F or float."""
    f, first, gain = [number(0)] * size, multipliers[0], number(0)
    if rule == "tree":
        f[0], f[1], f[2] = -first, -multipliers[1], first + multipliers[1]
    elif rule == "top":
        f[0], f[1], f[2] = -(first + multipliers[1]), first, multipliers[1]
    else:
        f[0] = -first
        if rule == "absolute":
            gain = -number(TAU) * first
        else:
            f[1] = number(ALPHA) * first if rule == "multiplicative" else first
            gain = number(SLACK) * first if rule == "additive" else gain
    return f, gain


def _dual_cases(effort: Effort) -> Iterator[BaseCase]:
    rng = random.Random(effort.seed)
    for label, probs in base_draws(effort, max_vocab=5):
        for rule, regions in _regions(probs).items():
            best = _multipliers(rule, [float(prob) for prob in probs])
            for scale in (F(1), F(rng.randint(1, 30), 10)):
                f, gain = _exponents(rule, len(probs), [F(value) * scale for value in best], F)
                yield (
                    f"{label}, {rule}, {scale} of the best multipliers",
                    regions,
                    (probs, tuple(f), gain),
                )


def _large_dual() -> Iterator[BaseCase]:
    probs, rule = large_target().target_probs, "tree"
    best = _multipliers(rule, [float(prob) for prob in probs])
    f, gain = _exponents(rule, len(probs), [F(value) for value in best], F)
    yield f"large, {rule}", _regions(probs)[rule], (probs, tuple(f), gain)


@check("drafter.dual", method="steps")
def prove_dual(formula: Formula, effort: Effort) -> Evidence:
    """At the strict rule's own multiplier it is the strict radius; one multiplier with a gain,
    written out."""
    pair = [R(16, 30), R(9, 30), R(5, 30)]
    half = log(R(16, 9)) / 2
    equal = formula(sympy, pair, [-half, half, 0], 0)
    strict = -log(1 - (sympy.sqrt(pair[0]) - sympy.sqrt(pair[1])) ** 2)
    known = R(1, 10) * log(2) - log(R(8, 30) + R(18, 30) + R(5, 30))
    found = formula(sympy, pair, [-log(2), log(2), 0], R(1, 10) * log(2))
    return prove_identities(
        DUAL_RADIUS, [("strict", equal, strict), ("multiplier log 2", found, known)], [{}]
    )


check_by_solvers(
    "drafter.dual",
    _dual_cases,
    optimiser=nearest,
    conic=nearest_by_cone,
    large=_large_dual,
    relation="<=",
)


@check("bound.radius", method="steps")
def prove_radius(formula: Formula, effort: Effort) -> Evidence:
    found = formula(sympy, R(1, 10), R(1, 2), 3, 5, 1000)
    radius = R(1, 10) + log(2)
    expected = sympy.Max(0, radius - SECOND_ORDER * UNIT * (1600 + 2000 + 27 + 12 * log(2)))
    return prove_identities(RADIUS, [("a radius", found, expected)], [{}])


@check("bound.radius", method="search")
def simulate_radius(formula: Formula, effort: Effort) -> Evidence:
    """Every operation at its worst: kept too small, the gain and the differences too large; never
    above the dual."""
    rng = random.Random(effort.seed)
    tally = Tally("search", confirm=mpf(0), refute=U / 100, relation="<=")
    with working_digits(effort.digits):
        for num_tokens, size, reach in itertools.product(
            (4, 4096, 262_144), (1, 8, 1000), (0, 3, 600)
        ):
            for _ in range(4):
                first, rest = mpf(rng.uniform(0.01, 1)), mpf(rng.uniform(1e-3, 1))
                gain = mpf(rng.uniform(0, 1)) * reach
                exact = gain - mpmath.log(first * mpmath.exp(-mpf(reach)) + rest)
                lost = (1 + U) ** -(2 * num_tokens + 3) * (1 - 753 * U) ** 2 * (1 - 8 * U)
                kept = (
                    first * mpmath.exp(-reach * (1 + size * U)) * lost
                    + rest * mpmath.exp(-reach * size * U) * lost
                )
                own = mpmath.log(kept)
                bound = MP.mpf(formula(MP, gain, kept, mpf(reach), size, num_tokens))
                raised = (
                    8 * U * abs(own) + U * gain + 2 * U * (gain + abs(own))
                )  # log, gain, two differences
                value = max(mpf(0), bound + raised) if bound > 0 else bound
                tally.add(
                    f"n={num_tokens}, k={size}, reach {reach}", value, max(exact, 0), max(exact, 0)
                )
    for label, logits in _far_apart(effort):
        probs = _law(logits, 700)
        with working_digits(700):
            for rule in _regions(probs):
                exact = _closed(rule, [to_mp(prob) for prob in probs])
                tally.add(f"{label}, {rule}", mpf(_in_float64(formula, rule, logits)), exact, exact)
    return tally.evidence("operations at their worst; float64 where weights vanish")


def _closed(rule: str, probs: list[mpmath.mpf]) -> mpmath.mpf:
    """The closed forms of the claims drafter.*."""
    values = {
        "strict": lambda: drafter.strict_radius(MP, probs[0], probs[1]),
        "additive": lambda: drafter.additive_radius(MP, probs[0], probs[1], to_mp(SLACK)),
        "multiplicative": lambda: drafter.multiplicative_radius(
            MP, probs[0], probs[1], to_mp(ALPHA)
        ),
        "absolute": lambda: drafter.absolute_radius(MP, probs[0], to_mp(TAU)),
        "tree": lambda: drafter.tree_radius(MP, probs, WIDTH),
        "top": lambda: drafter.top_radius(MP, probs, WIDTH),
    }
    return MP.mpf(values[rule]())


def _nearly_tied(effort: Effort) -> Iterator[tuple[str, list[float]]]:
    """Logits, largest first, that tie to the last bits of each format, and some that do not."""
    rng = random.Random(effort.seed)
    for exponent in (8, 17, 24, 52):
        gap = 2.0**-exponent
        yield f"gap 2^-{exponent}", [1.0, 1.0 - gap, 1.0 - 2 * gap, -rng.random()]
        yield f"gap 2^-{exponent} at 30", [30.0, 30.0 - 16 * gap, 30.0 - 32 * gap, 24.0]
    yield "tie", [0.25, 0.25, 0.25, -1.0]


def _far_apart(effort: Effort) -> Iterator[tuple[str, list[float]]]:
    """Gaps at which weights lose digits, and vanish."""
    rng = random.Random(effort.seed)
    for reach in (36.0, 350.0, 700.0, 709.5, 740.0, 743.3, 744.1, 760.0):
        yield f"far by {reach}", [0.0, -reach, -reach - 0.7, -reach - 1.3]
        yield f"far by {reach} but one", [0.0, -rng.random(), -reach, -reach - 0.3]


def _law(logits: list[float], digits: int) -> tuple[F, ...]:
    """softmax of the logits, so many digits of it, as rationals."""
    with working_digits(digits):
        weights = [mpmath.exp(mpf(z) - mpf(logits[0])) for z in logits]
        total = mpmath.fsum(weights)
        return tuple(_fraction(weight / total) for weight in weights)


def _fraction(value: mpmath.mpf) -> F:
    _, mantissa, exponent, _ = value._mpf_
    return F(int(mantissa)) * F(2) ** exponent


def _in_float64(formula: Formula, rule: str, logits: list[float]) -> float:
    """The whole computation in float64: weights, probabilities, multipliers, their sum, the
    bound."""
    weights = [math.exp(z - logits[0]) for z in logits]
    probs = [max(weight / sum(weights), 2.0**-900) for weight in weights]
    multipliers = [min(640.0, value) for value in _multipliers(rule, probs)]
    f, gain = _exponents(rule, len(probs), multipliers, float)
    kept = sum(prob * math.exp(exponent) for prob, exponent in zip(probs, f, strict=True))
    return float(formula(math, gain, kept, sum(multipliers), len(multipliers), len(probs)))


@check("bound.radius", method="optimiser")
def run_in_float64(formula: Formula, effort: Effort) -> Evidence:
    """float64, judged by radii solved from their definition at the law of the logits."""
    tally = Tally.at_digits("optimiser", effort.digits, "<=")
    for label, logits in _nearly_tied(effort):
        for rule, regions in _regions(_law(logits, 2 * effort.digits)).items():
            least = min(project(region, effort.digits).lower for region in regions)
            with working_digits(effort.digits):
                tally.add(f"{label}, {rule}", mpf(_in_float64(formula, rule, logits)), least, least)
        if tally.refuted:
            break
    return tally.evidence("float64 against the definition")
