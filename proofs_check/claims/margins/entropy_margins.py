"""Checks of the entropy rule's bounds: the floor of log b + H, the minimum over one variable by
branch and bound over the whole feasible set, and exact certificates at many targets."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction as F
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from mpmath import libmp
from sympy import log

from derivations.formulas.single_token import single_certificate
from derivations.formulas.strict import pair_cost
from derivations.language.claim import Formula
from derivations.margins.entropy_margins import ENTROPY_FLOOR, ENTROPY_LINE, entropy_floor
from proofs_check.claims.margins.entropy_line import Line, LineBracket, Undecided, bracket_line
from proofs_check.methods.cases import Cases, Tally, solve, tallied
from proofs_check.methods.numbers import MP, interval_digits, intervals, to_mp, working_digits
from proofs_check.methods.problems import Problem
from proofs_check.methods.slopes import Region, Slope, enclose_regions
from proofs_check.methods.steps import Identities, prove_identities, proved
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

R = sympy.Rational
SETTINGS = (("0.09", "0.3"), ("0.3", "0.9"), ("1", "0.8"), ("0.5", "1"))
# (epsilon, delta, margin) with different things deciding at the minimum
LINES = (
    (F(1), F(4, 5), F(1, 10)),
    (F(9, 100), F(3, 10), F(3, 10)),
    (F(1, 2), F(1), F(1, 5)),
    (F(1), F(3, 10), F(3, 5)),
)
ATTAINED = ((1, F(1, 10)), (2, F(3, 10)), (3, F(1, 5)))  # (tokens of a - g, margin)
COUNTEREXAMPLE = (F(415, 1000), F(315, 1000), F(270, 1000))


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
    top, own, gap = sympy.symbols("a b g", positive=True)
    x, y, z = sympy.symbols("x y z", nonnegative=True)
    value = log(own) - own * log(own) - top * log(top) - (1 - top - own) * log(top - gap)
    regions = [Region("everywhere", (R(1, 2), R(1, 10), R(1, 5)), value)]
    inside = {own: x * y * z, gap: x * (1 - y), top: x}  # a - g = x y, b its share z
    mass = {own: z * (1 - x), gap: x * (1 - y), top: x}
    statements = [
        Slope(
            "grows with b: log((a-g)/b) + 1/b - 1",
            value,
            own,
            ((1, (top - gap) / own),),
            inside,
            rest=1 / own - 1,
        ),
        Slope(
            "grows with g: (1-a-b)/(a-g)", value, gap, (), mass, rest=(1 - top - own) / (top - gap)
        ),
        Slope(
            "falls with a: log(a/(a-g)) + 1 + (1-a-b)/(a-g)",
            value,
            top,
            ((1, top / (top - gap)),),
            inside,
            sign=-1,
            rest=1 + (1 - top - own) / (top - gap),
        ),
    ]
    told = "0 < b <= a - g, a <= 1 (in g: a + b <= 1); that it is a floor: by the derivation"
    return enclose_regions(formula, (top, own, gap), regions, statements, told)


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


@check("margin.entropy.line", method="steps")
def prove_line(formula: Formula, effort: Effort) -> Evidence:
    """The derivation; that L is phi in the two-token regime, and at most phi everywhere, is left to
    the search."""
    return prove_identities(ENTROPY_LINE, [])


@check("margin.entropy.line", method="enclosure")
def bound_line(formula: Formula, effort: Effort) -> Evidence:
    """L(g) bracketed by intervals over all a in (g, 1], to 80 digits; the formula at 50 and at 80
    lies inside.

    At settings, not over ranges of them: the formula is a search, a grid and golden sections, that
    no interval runs through. L is monotone in g, eps and delta (entropy.floor), so a range is
    bracketed by its corners, but as widely as L varies over it: no digit is tested."""
    boxes, worst = 0, mpmath.mpf(0)
    kinds: list[str] = []
    for epsilon, delta, gap in LINES:
        label = f"eps={epsilon}, delta={delta}, g={gap}"
        try:
            found = _bracket(gap, epsilon, delta, effort.second_digits)
        except Undecided as error:
            return Evidence("enclosure", Verdict.UNDECIDED, None, "?", f"{label}: {error}", boxes)
        boxes, kinds = boxes + found.boxes, [*kinds, f"{label}: {found.kind}"]
        for digits in (effort.digits, effort.second_digits):
            with working_digits(digits + 20):
                value = MP.mpf(formula(MP, *(to_mp(x) for x in (gap, epsilon, delta))))
            with working_digits(2 * effort.second_digits):
                miss = max(found.lower - value, value - found.upper, mpmath.mpf(0))
                worst = max(worst, miss)
                if miss > mpmath.mpf(10) ** -digits:
                    low = mpmath.nstr(found.lower, 12)
                    told = f"{label}: {mpmath.nstr(value, 12)} outside [{low}, ...]"
                    return Evidence(
                        "enclosure", Verdict.REFUTED, None, mpmath.nstr(miss, 3), told, boxes
                    )
    detail = (
        f"L(g) itself, to {effort.digits} and {effort.second_digits} digits, at {len(LINES)} "
        f"settings; what meets at the minimum: {'; '.join(kinds)}. For every setting: signs by "
        "claim entropy.floor, T2 by lemma.pair"
    )
    return Evidence(
        "enclosure", Verdict.VERIFIED, None, mpmath.nstr(worst, 3), "", boxes, detail=detail
    )


@lru_cache(maxsize=32)
def _bracket(gap: F, epsilon: F, delta: F, digits: int) -> LineBracket:
    return bracket_line(gap, epsilon, delta, digits)


@check("margin.entropy.line", method="optimiser")
def attain_line(formula: Formula, effort: Effort) -> Evidence:
    """Sharp: targets (a, a-g, ..., a-g, b) with delta = exp(H) b, where T2 along the floor is
    stationary. Token b is rejected there, and its certificate, solved from the definition, is
    L(g)."""
    tally = Tally.at_digits("optimiser", effort.digits)
    for number, (count, gap) in enumerate(ATTAINED):
        for digits in (effort.digits, effort.second_digits) if number == 0 else (effort.digits,):
            top = _stationary_top(count, gap, digits + 20)
            own = 1 - top - count * (top - gap)
            target = (top, *[top - gap] * count, own)
            others = tuple(range(count + 1))
            bracket = solve(
                Problem(f"k={count}, g={gap}", target, count + 1, others, 1, ()), digits
            )
            with working_digits(digits + 20):
                delta = mpmath.exp(entropy_floor(MP, to_mp(top), to_mp(own), to_mp(gap)))
                tally.add(
                    f"{count} tokens of a - g, g={gap}, {digits} digits",
                    MP.mpf(formula(MP, to_mp(gap), MP.mpf(1), delta)),
                    bracket.lower,
                    bracket.upper,
                )
            if tally.refuted:
                return tally.evidence("attained")
    return tally.evidence(
        f"{effort.digits} digits, attained by {len(ATTAINED)} targets; one again at "
        f"{effort.second_digits}"
    )


def _stationary_top(count: int, gap: F, digits: int) -> F:
    """The a, a rational to so many digits, at which T2's slope along the floor's root vanishes at
    that target."""
    line = Line(gap, F(1), F(1))
    with working_digits(digits):
        g = to_mp(gap)

        def slope(a: mpmath.mpf) -> mpmath.mpf:
            return line.derivatives(MP, a, 1 - a - count * (a - g))[0]

        low, high = (
            g + (1 - g) / (count + 2) + mpmath.mpf("1e-6"),
            (1 + count * g) / (count + 1) - mpmath.mpf("1e-6"),
        )
        found = mpmath.findroot(
            slope, (low, high), solver="anderson", tol=mpmath.mpf(10) ** (-2 * digits), verify=False
        )
        return F(int(found * 10 ** (digits - 2)), 10 ** (digits - 2))


@check("margin.entropy.line", method="search")
def search_line(formula: Formula, effort: Effort) -> Evidence:
    """Exact certificates at many targets never lie below L; L never exceeds phi and never falls."""
    tally = Tally("search", confirm=mpmath.mpf("1e-9"), refute=mpmath.mpf("1e-7"), relation="<=")
    for label, gap, epsilon, delta, exact in _certificates(effort):
        tally.add(label, MP.mpf(formula(math, *map(float, (gap, epsilon, delta)))), exact, exact)
        if tally.refuted:
            return tally.evidence("exact certificates at random targets")
    for epsilon, delta in SETTINGS:
        last = MP.mpf(0)
        for k in range(1, 20):
            gap = k / 20
            here = MP.mpf(formula(math, gap, float(epsilon), float(delta)))
            tally.add(f"falls before g={gap:.3g}, eps={epsilon}, delta={delta}", last, here, here)
            last = here
    regime = MP.mpf(formula(math, 0.9, 0.05, 1.0))
    two = pair_cost(MP, MP.mpf("0.95"), MP.mpf("0.05"))
    tally.add("two-token regime", regime, two, two)
    return tally.evidence("exact certificates at random targets; L along 4 settings")


def _certificates(effort: Effort) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """(label, margin, epsilon, delta, certificate) of targets that reject something, adversarial
    ones among them."""
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
                        probs[0] - probs[1],
                        MP.mpf(epsilon),
                        MP.mpf(delta),
                        single_certificate(MP, probs, rejected[0]),
                    )


@check("refuted.entropy.second-token", method="search")
def refute_second_token(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally("search", confirm=mpmath.mpf("1e-12"), refute=mpmath.mpf("1e-7"), relation="<=")
    for label, gap, epsilon, delta, exact in _certificates(effort):
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
