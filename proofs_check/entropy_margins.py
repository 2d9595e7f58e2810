"""Checks of the entropy rule's bounds: the floor of log b + H, the minimum over one variable by branch and bound over
the whole feasible set, and exact certificates at many targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from typing import Any

import mpmath
import sympy
from sympy import log

from derivations.claim import Formula
from derivations.entropy_margins import ENTROPY_FLOOR, ENTROPY_LINE
from derivations.single_token import single_certificate
from derivations.strict import pair_cost
from proofs_check.algebra import prove_identities
from proofs_check.cases import Tally, solve
from proofs_check.enclosure import enclose_sign
from proofs_check.numbers import MP, to_mp, working_digits
from proofs_check.outcome import Evidence, Verdict
from proofs_check.problems import Problem
from proofs_check.registry import Effort, check
from proofs_check.slopes import Region, Slope, enclose_regions
from proofs_check.targets import generate_targets

R = sympy.Rational
SETTINGS = (("0.09", "0.3"), ("0.3", "0.9"), ("1", "0.8"), ("0.5", "1"))
# (epsilon, delta, margin): where the branch and bound looks
CORNERS = ((F(1), F(4, 5), F(1, 10)), (F(9, 100), F(3, 10), F(3, 10)))
COUNTEREXAMPLE = (F(415, 1000), F(315, 1000), F(270, 1000))


@check("entropy.floor", method="algebra")
def prove_floor(formula: Formula, effort: Effort) -> Evidence:
    """Equality at targets (a, a-g, ..., a-g, b): log b + H(p) itself."""
    identities = []
    for probs in (
        [R(4, 10), R(2, 10), R(2, 10), R(2, 10)],
        [R(5, 10), R(2, 10), R(2, 10), R(1, 10)],
        [R(3, 4), R(1, 4)],
    ):
        exact = log(probs[-1]) - sum(p * log(p) for p in probs)
        value = formula(sympy, probs[0], probs[-1], probs[0] - probs[1])
        identities.append((f"equality at {probs}", value, exact))
    return prove_identities(ENTROPY_FLOOR, identities, [{}])


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
        Slope("grows with b: log((a-g)/b) + 1/b - 1", value, own, ((1, (top - gap) / own),), inside, rest=1 / own - 1),
        Slope("grows with g: (1-a-b)/(a-g)", value, gap, (), mass, rest=(1 - top - own) / (top - gap)),
        Slope("falls with a: log(a/(a-g)) + 1 + (1-a-b)/(a-g)", value, top, ((1, top / (top - gap)),), mass, sign=-1,
              rest=1 + (1 - top - own) / (top - gap)),
    ]  # fmt: skip
    told = "0 < b <= a - g, a + b <= 1; the floor itself by the derivation: x log((a-g)/x) >= 0 for each x <= a - g"
    return enclose_regions(formula, (top, own, gap), regions, statements, told)


@check("entropy.floor", method="search")
def sample_floor(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally.at_digits("search", effort.digits, "<=")
    with working_digits(effort.digits + 20):
        for target in generate_targets(effort.seed, 3 * effort.per_family, min_vocab=3):
            probs = [to_mp(prob) for prob in target.target_probs if prob > 0]
            entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs)
            if len(probs) < 2:
                continue
            for j in range(1, len(probs)):
                value = formula(MP, probs[0], probs[j], probs[0] - probs[1])
                exact = mpmath.log(probs[j]) + entropy
                tally.add(f"{target}, j={j + 1}", MP.mpf(value), exact, exact)
    return tally.evidence("every token of many targets")


@check("margin.entropy.line", method="algebra")
def prove_line(formula: Formula, effort: Effort) -> Evidence:
    """The derivation; that L is phi in the two-token regime, and at most phi everywhere, is left to the search."""
    return prove_identities(ENTROPY_LINE, [])


@check("margin.entropy.line", method="enclosure")
def bound_line(formula: Formula, effort: Effort) -> Evidence:
    """Branch and bound: no feasible (a, b) has T2(a, b) below L(g) - 1e-3, and one has it below L(g) + 1e-3."""
    boxes = 0
    for epsilon, delta, gap in CORNERS:
        value = float(formula(MP, MP.mpf(gap.numerator) / gap.denominator, to_mp(epsilon), to_mp(delta)))
        goal = F(value).limit_denominator(10**12) - F(1, 10**3)
        found = enclose_sign(
            lambda n, a, b, goal=goal: _least_pair(n, a, b) - n.number(goal),
            [(gap, 1), (0, min(epsilon, F(1, 2)))],
            inside=_feasible(gap, epsilon, delta),
        )
        boxes += found.cases
        label = f"eps={epsilon}, delta={delta}, g={gap}: L = {value:.9f}"
        if found.verdict is not Verdict.VERIFIED:
            where = f"{label}, (a, b) = {found.worst_point}"
            return Evidence("enclosure", found.verdict, None, found.worst_residual, where, boxes)
    detail = f"global minimum over all (a, b), within 1e-3, at {len(CORNERS)} settings; monotony: claim entropy.floor"
    return Evidence("enclosure", Verdict.VERIFIED, None, "0", "", boxes, detail=detail)


def _least_pair(n: Any, a: Any, b: Any) -> Any:
    """T2 at the box's corner (least a, largest b), its least value there by lemma.pair; 0 where the box meets a < b."""
    low, high = (a.lower(), b.upper()) if hasattr(a, "lower") else (n.number(a.a), n.number(b.b))
    if not n.nonnegative(low - high):
        return n.number(0)
    total = low + high
    return n.xlogx(low) + n.xlogx(high) - total * n.log(total / 2)


def _feasible(gap: F, epsilon: F, delta: F) -> Callable[..., Any]:
    def inside(n: Any, a: Any, b: Any) -> Any:
        """Negative where one condition certainly fails; nonnegative where all certainly hold."""
        left = [a - n.number(gap) - b, 1 - a - b]
        for condition in left:
            if n.sign_of(condition) == -1:
                return condition
        room = a - n.number(gap)
        if n.sign_of(b) == 1 and n.sign_of(room) == 1:
            rest = 1 - a - b
            left.append(n.log(n.number(delta)) - (n.log(b) - n.xlogx(b) - n.xlogx(a) - rest * n.log(room)))
        else:
            left.append(n.hull(F(-1), F(1)))
        for condition in left:
            if n.sign_of(condition) == -1:
                return condition
        return next((condition for condition in left if not n.nonnegative(condition)), left[0])

    return inside


@check("margin.entropy.line", method="search")
def search_line(formula: Formula, effort: Effort) -> Evidence:
    """Exact certificates at many targets never lie below L; L never exceeds phi and never falls."""
    tally = Tally("search", confirm=mpmath.mpf("1e-9"), refute=mpmath.mpf("1e-7"), relation="<=")
    for label, gap, epsilon, delta, exact in _certificates(effort):
        tally.add(label, MP.mpf(formula(MP, gap, epsilon, delta)), exact, exact)
        if tally.refuted:
            return tally.evidence("exact certificates at random targets")
    for epsilon, delta in SETTINGS:
        last = MP.mpf(0)
        for k in range(1, 20):
            gap = MP.mpf(k) / 20
            here = MP.mpf(formula(MP, gap, MP.mpf(epsilon), MP.mpf(delta)))
            tally.add(f"falls before g={mpmath.nstr(gap, 3)}, eps={epsilon}, delta={delta}", last, here, here)
            last = here
    regime = MP.mpf(formula(MP, MP.mpf("0.9"), MP.mpf("0.05"), MP.mpf(1)))
    two = pair_cost(MP, MP.mpf("0.95"), MP.mpf("0.05"))
    tally.add("two-token regime", regime, two, two)
    return tally.evidence("exact certificates at random targets; L along 4 settings")


def _certificates(effort: Effort) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """(label, margin, epsilon, delta, certificate) of targets that reject something, adversarial ones among them."""
    rng = random.Random(effort.seed)
    drawn = [(str(t), t.target_probs) for t in generate_targets(effort.seed, effort.per_family)]
    drawn.append(("theory's point", COUNTEREXAMPLE))
    for _ in range(30 * effort.per_family):  # (a, a-g, ..., a-g, b): the shape that attains the floor
        count, top, low = rng.randint(1, 5), rng.randint(20, 60), rng.randint(1, 15)
        weights = [top, *[rng.randint(low, top)] * count, low]
        drawn.append((f"chunks {sorted(weights, reverse=True)}",
                      tuple(F(w, sum(weights)) for w in sorted(weights, reverse=True))))  # fmt: skip
    for name, exact_probs in drawn:
        with working_digits(30):
            probs = [to_mp(prob) for prob in exact_probs]
            entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs if p > 0)
            for epsilon, delta in SETTINGS:
                tau = min(MP.mpf(epsilon), MP.mpf(delta) * mpmath.exp(-entropy))
                rejected = [i for i, prob in enumerate(probs) if prob <= tau]
                if rejected and probs[0] > probs[1]:
                    cost = single_certificate(MP, probs, rejected[0])
                    yield (
                        f"{name}, eps={epsilon}, delta={delta}",
                        probs[0] - probs[1],
                        MP.mpf(epsilon),
                        MP.mpf(delta),
                        cost,
                    )


@check("refuted.entropy.second-token", method="search")
def refute_second_token(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally("search", confirm=mpmath.mpf("1e-12"), refute=mpmath.mpf("1e-7"), relation="<=")
    for label, gap, epsilon, delta, exact in _certificates(effort):
        tally.add(label, MP.mpf(formula(MP, gap, epsilon, delta)), exact, exact)
    return tally.evidence("exact certificates")


@check("refuted.entropy.second-token", method="optimiser")
def refute_second_token_from_definition(formula: Formula, effort: Effort) -> Evidence:
    """The certificate of token 3 at (.415, .315, .27), solved from its definition; the rule rejects that token."""
    tally = Tally.at_digits("optimiser", effort.digits, "<=")
    problem = Problem("p=(.415, .315, .27), eps=1, delta=.8, g=.1", COUNTEREXAMPLE, 2, (0, 1), 1, ())
    bracket = solve(problem, effort.digits)
    with working_digits(effort.digits):
        probs = [to_mp(prob) for prob in COUNTEREXAMPLE]
        entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs)
        if not probs[2] < MP.mpf("0.8") * mpmath.exp(-entropy):
            return Evidence("optimiser", Verdict.UNDECIDED, None, "?", "token 3 is not rejected there")
        value = MP.mpf(formula(MP, MP.mpf("0.1"), MP.mpf(1), MP.mpf("0.8")))
        tally.add(problem.label, value, bracket.lower, bracket.upper)
    return tally.evidence(f"{effort.digits} digits")
