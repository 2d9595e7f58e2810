"""Checks of the entropy rule's bounds: the floor of log b + H, cells of p_1, and exact certificates
at many targets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction as F
from typing import Any

import mpmath
import sympy
from mpmath import libmp
from sympy import log

from derivations.formulas.single_token import single_certificate
from derivations.formulas.strict import phi
from derivations.language.claim import Formula
from derivations.margins.entropy_margins import (
    ENTROPY_FLOOR,
    ENTROPY_LINE,
    entropy_floor,
    most_allowed,
)
from proofs_check.methods.cases import Cases, Tally, solve, tallied
from proofs_check.methods.numbers import MP, interval_digits, intervals, to_mp, working_digits
from proofs_check.methods.problems import Problem
from proofs_check.methods.slopes import Region, Slope, enclose_regions
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

R = sympy.Rational
SETTINGS = (("0.09", "0.3"), ("0.3", "0.9"), ("1", "0.8"), ("0.5", "1"))
# (tokens of a - g, margin, a): the certificate is T2(a, b), b what is left of the mass
ATTAINED = (
    (1, F(1, 10), F(21, 50)),
    (2, F(3, 10), F(13, 25)),
    (3, F(1, 5), F(19, 50)),
    (63, F(1, 2), F(5077, 10000)),
)
COUNTEREXAMPLE = (F(415, 1000), F(315, 1000), F(270, 1000))


A, B, G = sympy.symbols("a b g", positive=True)
X, Y, Z = sympy.symbols("x y z", nonnegative=True)
FLOOR = log(B) - B * log(B) - A * log(A) - (1 - A - B) * log(A - G)


def _floor_slopes() -> list[Slope]:
    """Up in b, up in g, down in a."""
    inside = {B: X * Y * Z, G: X * (1 - Y), A: X}  # a - g = x y, b its share z
    mass = {B: Z * (1 - X), G: X * (1 - Y), A: X}
    return [
        Slope(
            "the floor grows with b: log((a-g)/b) + 1/b - 1",
            FLOOR,
            B,
            ((1, (A - G) / B),),
            inside,
            rest=1 / B - 1,
        ),
        Slope("grows with g: (1-a-b)/(a-g)", FLOOR, G, (), mass, rest=(1 - A - B) / (A - G)),
        Slope(
            "falls with a: log(a/(a-g)) + 1 + (1-a-b)/(a-g)",
            FLOOR,
            A,
            ((1, A / (A - G)),),
            inside,
            sign=-1,
            rest=1 + (1 - A - B) / (A - G),
        ),
    ]


@proved("entropy.floor", ENTROPY_FLOOR)
def prove_floor(formula: Formula, effort: Effort) -> Identities:
    """Equality at targets (a, a-g, ..., a-g, b): log b + H(p) itself."""
    for probs in (
        [R(4, 10), R(2, 10), R(2, 10), R(2, 10)],
        [R(5, 10), R(2, 10), R(2, 10), R(1, 10)],
        [R(3, 4), R(1, 4)],
    ):
        exact = log(probs[-1]) - sum(p * log(p) for p in probs)
        value = formula(sympy, probs[0], probs[-1], probs[0] - probs[1])
        yield f"equality at {probs}", value, exact


@check("entropy.floor", method="enclosure")
def enclose_floor(formula: Formula, effort: Effort) -> Evidence:
    """Its signs of change over the whole domain: up in b, up in g, down in a."""
    regions = [Region("everywhere", (R(1, 2), R(1, 10), R(1, 5)), FLOOR)]
    told = "0 < b <= a - g, a <= 1 (in g: a + b <= 1); that it is a floor: by the derivation"
    return enclose_regions(formula, (A, B, G), regions, _floor_slopes(), told)


@tallied(
    "entropy.floor", method="search", relation="<=", more=20, told="every token of many targets"
)
def sample_floor(formula: Formula, effort: Effort) -> Cases:
    for target in generate_targets(effort.seed, 3 * effort.per_family, min_vocab=3):
        probs = [to_mp(prob) for prob in target.target_probs if prob > 0]
        entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs)
        if len(probs) < 2:
            continue
        for j in range(1, len(probs)):
            value = formula(MP, probs[0], probs[j], probs[0] - probs[1])
            exact = mpmath.log(probs[j]) + entropy
            yield f"{target}, j={j + 1}", MP.mpf(value), exact, exact


@proved("margin.entropy.line", ENTROPY_LINE)
def prove_line(formula: Formula, effort: Effort) -> Identities:
    """Two tokens with all the mass: phi(3/5)."""
    yield "two tokens", formula(sympy, R(3, 5), 1, R(4, 5), R(4, 5)), phi(sympy, R(3, 5))


@check("margin.entropy.line", method="enclosure")
def enclose_line(formula: Formula, effort: Effort) -> Evidence:
    """Every a of a cell and every allowed b: T2 rises in a and falls in b, and what is allowed, in
    g, at a and at the cell's own ends, by the signs of the floor."""
    most, low, high = sympy.symbols("most low high", positive=True)
    cost = A * log(2 * A / (A + B)) + B * log(2 * B / (A + B))
    ends = {"high - g": high - G, "1 - low": 1 - low, "most": most}
    points = {  # g, high, low, most
        "high - g": [(R(2, 5), R(1, 2), R(2, 5), R(1))],
        "1 - low": [(R(1, 10), R(9, 10), R(4, 5), R(1)), (R(1, 10), R(9, 10), R(4, 5), R(3, 10))],
        "most": [(R(1, 10), R(1, 2), R(2, 5), R(1, 20))],
    }
    regions = [
        Region(name, point, cost.subs({A: low, B: ends[name]}, simultaneous=True))
        for name in ends
        for point in points[name]
    ]
    pair = {A: X, B: X * Z}
    statements = [
        Slope("T2 rises in a: log(2a/(a+b))", cost, A, ((1, 2 * A / (A + B)),), pair),
        Slope("and falls in b: log((a+b)/(2b))", cost, B, ((1, (A + B) / (2 * B)),), pair, -1),
        *_floor_slopes(),
    ]
    told = "every a in [low, high], b <= B <= low, g and setting"
    return enclose_regions(formula, (G, most, low, high), regions, statements, told)


@check("margin.entropy.line", method="optimiser")
def attain_line(formula: Formula, effort: Effort) -> Evidence:
    """Sharp: targets (a, a-g, ..., a-g, b) with delta = exp(H) b. Token b is rejected there, and
    its certificate, solved from the definition, is the value of the cell that is a alone."""
    tally = Tally.at_digits("optimiser", effort.digits)
    for number, (count, gap, top) in enumerate(ATTAINED):
        for digits in (effort.digits, effort.second_digits) if number == 0 else (effort.digits,):
            own = 1 - top - count * (top - gap)
            target = (top, *[top - gap] * count, own)
            others = tuple(range(count + 1))
            bracket = solve(
                Problem(f"k={count}, g={gap}", target, count + 1, others, 1, ()), digits
            )
            with working_digits(digits + 20):
                margin, mass = to_mp(gap), to_mp(top)
                delta = mpmath.exp(entropy_floor(MP, mass, to_mp(own), margin))
                most = most_allowed(MP, mass, margin, MP.mpf(1), delta)
                tally.add(
                    f"{count} tokens of a - g, g={gap}, {digits} digits",
                    MP.mpf(formula(MP, margin, most, mass, mass)),
                    bracket.lower,
                    bracket.upper,
                )
            if tally.refuted:
                return tally.evidence("attained")
    return tally.evidence(
        f"{effort.digits} digits, attained by {len(ATTAINED)} targets; one again at "
        f"{effort.second_digits}"
    )


@check("margin.entropy.line", method="search")
def search_line(formula: Formula, effort: Effort) -> Evidence:
    """Exact certificates at many targets lie above the values of the cells, narrow and wide, that
    hold p_1."""
    rng = random.Random(effort.seed)
    tally = Tally("search", confirm=mpmath.mpf("1e-25"), refute=mpmath.mpf("1e-20"), relation="<=")
    for label, top, gap, epsilon, delta, exact in _certificates(effort):
        with working_digits(40):
            width = MP.mpf(rng.choice((0, 1e-3, 0.1)))
            low, high = top * (1 - width * rng.random()), min(top * (1 + width), MP.mpf(1))
            most = most_allowed(MP, high, gap, epsilon, delta)
            if min(most, high - gap, 1 - low) <= low:
                value = MP.mpf(formula(MP, gap, most, low, high))
                tally.add(f"{label}, p1 in [{low}, {high}]", value, exact, exact)
        if tally.refuted:
            break
    return tally.evidence("exact certificates at random targets, cells up to a fifth wide")


def _certificates(effort: Effort) -> Iterator[tuple[str, Any, Any, Any, Any, Any]]:
    """(label, p_1, margin, epsilon, delta, certificate) of targets that reject something,
    adversarial ones among them."""
    rng = random.Random(effort.seed)
    drawn = [(str(t), t.target_probs) for t in generate_targets(effort.seed, effort.per_family)]
    drawn.append(("theory's point", COUNTEREXAMPLE))
    for _ in range(
        30 * effort.per_family
    ):  # (a, a-g, ..., a-g, b): the shape that attains the floor
        count, top, low = rng.randint(1, 5), rng.randint(20, 60), rng.randint(1, 15)
        weights = [top, *[rng.randint(low, top)] * count, low]
        drawn.append(
            (
                f"chunks {sorted(weights, reverse=True)}",
                tuple(F(w, sum(weights)) for w in sorted(weights, reverse=True)),
            )
        )
    for name, exact_probs in drawn:
        with working_digits(30):
            probs = [to_mp(prob) for prob in exact_probs]
            entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs if p > 0)
            for epsilon, delta in SETTINGS:
                tau = min(MP.mpf(epsilon), MP.mpf(delta) * mpmath.exp(-entropy))
                rejected = [i for i, prob in enumerate(probs) if prob <= tau]
                if rejected and probs[0] > probs[1]:
                    yield (
                        f"{name}, eps={epsilon}, delta={delta}",
                        probs[0],
                        probs[0] - probs[1],
                        MP.mpf(epsilon),
                        MP.mpf(delta),
                        single_certificate(MP, probs, rejected[0]),
                    )


@check("refuted.entropy.second-token", method="search")
def refute_second_token(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally("search", confirm=mpmath.mpf("1e-12"), refute=mpmath.mpf("1e-7"), relation="<=")
    for label, _, gap, epsilon, delta, exact in _certificates(effort):
        tally.add(label, MP.mpf(formula(MP, gap, epsilon, delta)), exact, exact)
    return tally.evidence("exact certificates")


@check("refuted.entropy.second-token", method="optimiser")
def refute_second_token_from_definition(formula: Formula, effort: Effort) -> Evidence:
    """The certificate of token 3 at (.415, .315, .27), solved from its definition; the rule rejects
    that token."""
    tally = Tally.at_digits("optimiser", effort.digits, "<=")
    problem = Problem(
        "p=(.415, .315, .27), eps=1, delta=.8, g=.1", COUNTEREXAMPLE, 2, (0, 1), 1, ()
    )
    bracket = solve(problem, effort.digits)
    with working_digits(effort.digits):
        probs = [to_mp(prob) for prob in COUNTEREXAMPLE]
        entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs)
        if not probs[2] < MP.mpf("0.8") * mpmath.exp(-entropy):
            return Evidence(
                "optimiser", Verdict.UNDECIDED, None, "?", "token 3 is not rejected there"
            )
        value = MP.mpf(formula(MP, MP.mpf("0.1"), MP.mpf(1), MP.mpf("0.8")))
        tally.add(problem.label, value, bracket.lower, bracket.upper)
    return tally.evidence(f"{effort.digits} digits")


@check("refuted.entropy.second-token", method="enclosure")
def enclose_second_token(formula: Formula, effort: Effort) -> Evidence:
    """The same point in intervals: token 3 is rejected there, at a cost that lies below the claimed
    value or not."""
    first, _, third = COUNTEREXAMPLE
    numbers = intervals()
    with working_digits(effort.digits), interval_digits(effort.digits):
        value = MP.mpf(formula(MP, MP.mpf("0.1"), MP.mpf(1), MP.mpf("0.8")))
        entropy = -sum(
            (numbers.xlogx(numbers.number(prob)) for prob in COUNTEREXAMPLE), numbers.number(0)
        )
        rejection = (
            numbers.log(numbers.number(F(4, 5))) - entropy - numbers.log(numbers.number(third))
        )
        if numbers.sign_of(rejection) != 1:
            return Evidence(
                "enclosure", Verdict.UNDECIDED, None, "?", "token 3 is not rejected there"
            )
        level = (first + third) / 2  # above p_2, so that the pool is {1, 3}
        cost = sum(
            (
                numbers.number(prob) * numbers.log(numbers.number(prob / level))
                for prob in (first, third)
            ),
            numbers.number(0),
        )
        excess = numbers.sign_of(cost - numbers.number(F(*libmp.to_rational(value._mpf_))))
    verdict = {1: Verdict.VERIFIED, -1: Verdict.REFUTED}.get(excess or 0, Verdict.UNDECIDED)
    point = "p=(.415, .315, .27), eps=1, delta=.8, g=.1"
    told = (
        f"{numbers.backend}: rejection and cost of token 3 enclosed; the claimed value to "
        f"{effort.digits} digits"
    )
    return Evidence(
        "enclosure", verdict, None, f"claimed {mpmath.nstr(value, 5)}", point, 1, detail=told
    )
