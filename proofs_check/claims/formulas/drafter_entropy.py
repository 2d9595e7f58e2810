"""Checks of the entropy rule's drafter side: three-token drafts minimised by brute force over both
coordinates, laws of small entropy by Newton from every corner, and dual values against rejecting
targets."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import lru_cache

import mpmath
import sympy
from sympy import Rational, log, symbols

from derivations.formulas.drafter_entropy import (
    CURVATURE,
    DUAL,
    FEASIBLE,
    INNER,
    ONE_DIMENSION,
    SIMPLE,
)
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, exact_cases, tallied
from proofs_check.methods.conic import clarabel
from proofs_check.methods.numbers import MP, divergence, to_mp, working_digits
from proofs_check.methods.slopes import Slope, enclose_statements
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.methods.targets import MANY
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

mpf = mpmath.mpf
R = Rational
V, KAPPA = symbols("v kappa", positive=True)
# (draft, eps, delta): three tokens; the last two end at the largest feasible share
DRAFTS: list[tuple[tuple[F, F, F], F, F]] = [
    ((F(6, 10), F(3, 10), F(1, 10)), F(1), F(3, 10)),
    ((F(6, 10), F(3, 10), F(1, 10)), F(9, 100), F(3, 10)),
    ((F(5, 10), F(3, 10), F(2, 10)), F(1, 2), F(1, 2)),
    ((F(8, 10), F(15, 100), F(5, 100)), F(1), F(4, 5)),
    ((F(999, 1000), F(6, 10000), F(4, 10000)), F(1), F(3, 10)),
]


def _entropy(probs: list[mpmath.mpf]) -> mpmath.mpf:
    return -mpmath.fsum(p * mpmath.log(p) for p in probs if p > 0)


def _largest_root(
    function: Callable[[mpmath.mpf], mpmath.mpf], low: mpmath.mpf, high: mpmath.mpf
) -> mpmath.mpf:
    """function(low) <= 0 < function(high): a few bisections, then a bracketed secant method to full
    precision."""
    for _ in range(8):
        middle = (low + high) / 2
        if function(middle) <= 0:
            low = middle
        else:
            high = middle
    if function(low) == 0:
        return low
    return mpmath.findroot(
        function, (low, high), solver="anderson", tol=mpf(2) ** -(2 * mpmath.mp.prec), verify=False
    )


def _split_of_entropy(bound: mpmath.mpf) -> mpmath.mpf:
    """x >= 1/2 with h(x) = bound (in [0, log 2])."""
    return _largest_root(lambda x: bound - _entropy([x, 1 - x]), mpf(1) / 2, mpf(1))


def _at_share(draft: list[mpmath.mpf], share: mpmath.mpf, log_delta: mpmath.mpf) -> mpmath.mpf:
    """The least KL over targets (v, (1-v) x, (1-v)(1-x)) that reject, over its two boundary points
    and w itself."""
    left = (log_delta - mpmath.log(share) - _entropy([share, 1 - share])) / (1 - share)
    if left < 0:
        return mpmath.inf
    own = draft[1] / (draft[1] + draft[2])
    if _entropy([own, 1 - own]) <= left:
        splits = [own]
    else:
        split = _split_of_entropy(left)
        splits = [split, 1 - split]
    return min(divergence([share, (1 - share) * x, (1 - share) * (1 - x)], draft) for x in splits)


@lru_cache(maxsize=100)
def _brute_force(number: int, digits: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """(radius, share) of DRAFTS[number]: a grid over the share in 20 digits, golden section at the
    full precision."""
    probs, epsilon, delta = DRAFTS[number]
    with working_digits(digits + 15):
        draft, log_delta = [to_mp(p) for p in probs], mpmath.log(to_mp(delta))
        whole = _largest_root(
            lambda v: mpmath.log(v) + _entropy([v, 1 - v]) - log_delta, mpf("1e-9"), mpf(1)
        )
        ceiling = min(to_mp(epsilon), whole)
        grid = [ceiling * k / 80 for k in range(1, 81)]
        with working_digits(15):
            values = [_at_share(draft, v, log_delta) if v < ceiling else mpmath.inf for v in grid]
        best = min(range(len(grid)), key=lambda k: values[k])
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        share = _golden(lambda v: _at_share(draft, v, log_delta), low, high, digits)
        return min([(_at_share(draft, v, log_delta), v) for v in (share, ceiling)])


def _golden(
    function: Callable[[mpmath.mpf], mpmath.mpf], low: mpmath.mpf, high: mpmath.mpf, digits: int
) -> mpmath.mpf:
    """The minimum's place to about half of the digits: its value is then right to nearly all of
    them."""
    ratio = (mpmath.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > mpf(10) ** -(digits // 2 - 2):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return (low + high) / 2


def _power_of_entropy(others: list[mpmath.mpf], bound: mpmath.mpf) -> mpmath.mpf:
    """beta >= 1 at which w^beta/sum has the entropy ``bound``; 1 where w itself is below it."""

    def excess(beta: mpmath.mpf) -> mpmath.mpf:
        weights = [mpmath.exp(beta * (mpmath.log(w) - mpmath.log(others[0]))) for w in others]
        return bound - _entropy([w / mpmath.fsum(weights) for w in weights])

    return mpf(1) if excess(mpf(1)) >= 0 else _largest_root(excess, mpf(1), mpf(10) ** 4)


@check("drafter.entropy", method="steps")
def prove_one_dimension(formula: Formula, effort: Effort) -> Evidence:
    """At beta = 2 the target is (v, (1-v) w^2/sum): its KL written out, and the chain rule of the
    derivation."""
    draft, share = [R(1, 2), R(1, 3), R(1, 6)], R(1, 4)
    target = [share, R(3, 4) * R(4, 5), R(3, 4) * R(1, 5)]
    direct = sum(p * log(p / q) for p, q in zip(target, draft, strict=True))
    return prove_identities(
        ONE_DIMENSION, [("v = 1/4, beta = 2", formula(sympy, draft, share, 2), direct)], [{}]
    )


@check("drafter.entropy", method="optimiser")
def solve_entropy_radius(formula: Formula, effort: Effort) -> Evidence:
    """The radius by brute force over targets of three tokens, against the formula at its share."""
    tally = Tally("optimiser", confirm=mpf("1e-40"), refute=mpf("1e-30"))
    for number, (probs, epsilon, delta) in enumerate(DRAFTS):
        for digits in (effort.digits, effort.second_digits) if number == 2 else (effort.digits,):
            radius, share = _brute_force(number, digits)
            with working_digits(digits + 15):
                draft, log_delta = [to_mp(p) for p in probs], mpmath.log(to_mp(delta))
                others = [q / (1 - draft[0]) for q in draft[1:]]
                left = (log_delta - mpmath.log(share) - _entropy([share, 1 - share])) / (1 - share)
                if left < mpf(10) ** -(
                    digits // 2
                ):  # at the last feasible share: all other mass on one token
                    value = divergence([share, 1 - share, mpf(0)], draft)
                    value += 0 * formula(MP, draft, share, mpf(1))
                else:
                    value = formula(MP, draft, share, _power_of_entropy(others, left))
                tally.add(
                    f"{[float(p) for p in probs]}, eps={epsilon}, delta={delta}",
                    value,
                    radius,
                    radius,
                )
        if tally.refuted:
            break
    return tally.evidence(
        f"{effort.digits} digits, both coordinates searched; one again at {effort.second_digits}"
    )


@check("drafter.entropy.inner", method="steps")
def prove_escort(formula: Formula, effort: Effort) -> Evidence:
    base = [R(2, 3), R(1, 3)]
    direct = sum(s * log(s / w) for s, w in zip([R(4, 5), R(1, 5)], base, strict=True))
    return prove_identities(INNER, [("(2, 1)/3, beta = 2", formula(sympy, base, 2), direct)], [{}])


@check("drafter.entropy.inner", method="optimiser")
def solve_small_entropy(formula: Formula, effort: Effort) -> Evidence:
    """Two tokens: both laws of that entropy. Three: Newton on the stationarity system from near
    every corner."""
    tally = Tally.at_digits("optimiser", effort.digits)
    bases = [
        (F(2, 3), F(1, 3)),
        (F(9, 10), F(1, 10)),
        (F(1, 2), F(3, 10), F(2, 10)),
        (F(4, 10), F(35, 100), F(25, 100)),
    ]
    for base, beta in itertools.product(bases, (F(3, 2), F(4))):
        for digits in (effort.digits, effort.second_digits) if beta == 4 else (effort.digits,):
            with working_digits(digits + 20):
                probs = [to_mp(w) for w in base]
                weights = [mpmath.exp(to_mp(beta) * mpmath.log(w)) for w in probs]
                bound = _entropy([w / mpmath.fsum(weights) for w in weights])
                least = _least_of_entropy(probs, bound)
                label = f"{[float(w) for w in base]}, entropy {mpmath.nstr(bound, 6)}"
                tally.add(label, MP.mpf(formula(MP, probs, to_mp(beta))), least, least)
        if tally.refuted:
            break
    return tally.evidence(f"{effort.digits} digits, again at {effort.second_digits}")


def _least_of_entropy(base: list[mpmath.mpf], bound: mpmath.mpf) -> mpmath.mpf:
    if len(base) == 2:
        split = _split_of_entropy(bound)
        return min(divergence([x, 1 - x], base) for x in (split, 1 - split))
    found = []
    for corner, share in itertools.product(range(3), ("0.5", "0.7", "0.9")):
        start = [(1 - mpf(share)) / 2] * 3
        start[corner] = mpf(share)
        law = _stationary_law(base, bound, start)
        if law is not None:
            found.append(divergence(law, base))
    return min(found)


def _stationary_law(
    base: list[mpmath.mpf], bound: mpmath.mpf, start: list[mpmath.mpf]
) -> list[mpmath.mpf] | None:
    """A law of that entropy at which KL(s || w) is stationary, by Newton in log-probabilities; None
    without one."""

    def system(
        a: mpmath.mpf, b: mpmath.mpf, c: mpmath.mpf, level: mpmath.mpf, nu: mpmath.mpf
    ) -> list[mpmath.mpf]:
        law = [mpmath.exp(a), mpmath.exp(b), mpmath.exp(c)]
        pulls = [x - mpmath.log(w) + level - nu * x for x, w in zip((a, b, c), base, strict=True)]
        return [
            *pulls,
            mpmath.fsum(law) - 1,
            -mpmath.fsum(x * mpmath.exp(x) for x in (a, b, c)) - bound,
        ]

    guess = [mpmath.log(x) for x in start] + [mpf(0), mpf("0.5")]
    try:
        root = mpmath.findroot(system, guess, maxsteps=60)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None  # Newton left the domain from this start; the others remain
    return [mpmath.exp(root[i]) for i in range(3)]


def _rejecting_cases(effort: Effort) -> Iterator[tuple[list[F], list[F], F]]:
    rng = random.Random(effort.seed)
    for number in range(6 * (effort.per_family + 1)):
        count = rng.choice((2, 3, 5)) if number else MANY
        draft = [F(rng.randint(1, 1000)) for _ in range(count)]
        target = [F(rng.randint(1, 1000)) for _ in range(count)]
        kappa = (F(1), F(1, 2), F(1, 5))[number % 3]
        yield [x / sum(draft) for x in draft], [x / sum(target) for x in target], kappa


@check("drafter.entropy.dual", method="steps")
def prove_dual(formula: Formula, effort: Effort) -> Evidence:
    """Equality at the escort: kappa = 1/2, target (1/4, 3/5, 3/20), delta = exp(H) p_y."""
    draft, target = [R(1, 2), R(1, 3), R(1, 6)], [R(1, 4), R(3, 5), R(3, 20)]
    entropy = -sum(p * log(p) for p in target)
    direct = sum(p * log(p / q) for p, q in zip(target, draft, strict=True))
    found = formula(sympy, draft, R(1, 4), R(1, 2), entropy + log(R(1, 4)))
    # the price multiplies zero at that delta, so a second identity holds delta apart from it
    apart = formula(sympy, draft, R(1, 4), R(1, 2), R(0)) - formula(
        sympy, draft, R(1, 4), R(1, 2), R(1)
    )
    return prove_identities(
        DUAL, [("at the escort", found, direct), ("price of delta", apart, R(1, 2))], [{}]
    )


@tallied("drafter.entropy.dual", method="search", relation="<=", more=20, told="rejecting targets")
def search_dual(formula: Formula, effort: Effort) -> Cases:
    """Random targets, delta just large enough to reject them: the dual value never exceeds their
    KL."""
    for draft, target, kappa in _rejecting_cases(effort):
        base, moved = [to_mp(x) for x in draft], [to_mp(x) for x in target]
        log_delta = _entropy(moved) + mpmath.log(moved[0])
        exact = divergence(moved, base)
        bound = formula(MP, base, moved[0], to_mp(kappa), log_delta)
        yield f"{[float(x) for x in target]}, kappa={kappa}", MP.mpf(bound), exact, exact


@check("drafter.entropy.dual", method="conic")
def witness_dual(formula: Formula, effort: Effort) -> Evidence:
    """For a fixed multiplier the bound is itself a convex minimum over the other tokens: by the
    outside solver."""
    import cvxpy

    tally = Tally("conic", confirm=mpf("1e-6"), refute=mpf("1e-5"))
    for draft, target, kappa in itertools.islice(_rejecting_cases(effort), 6):
        share, weight = float(target[0]), float(kappa)
        others = cvxpy.Variable(len(draft) - 1, nonneg=True)
        logs = [float(mpmath.log(to_mp(q))) for q in draft]
        cost = -weight * cvxpy.sum(cvxpy.entr(others)) - cvxpy.sum(cvxpy.multiply(logs[1:], others))
        value = clarabel(cost, [cvxpy.sum(others) == 1 - share]) + (
            weight * share * mpmath.log(share)
            - share * logs[0]
            + (1 - weight) * (mpmath.log(share) - 1)
        )
        bound = formula(MP, [to_mp(q) for q in draft], mpf(share), mpf(weight), mpf(1))
        tally.add(f"{[float(x) for x in target]}, kappa={kappa}", MP.mpf(bound), value, value)
    return tally.evidence("cvxpy, Clarabel, multiplier fixed")


@check("drafter.entropy.cells", method="steps")
def prove_curvature(formula: Formula, effort: Effort) -> Evidence:
    dual = KAPPA * (V * log(V) + (1 - V) * log(1 - V)) + (1 - KAPPA) * log(V)
    pair = ("second derivative", formula(sympy, V, KAPPA), sympy.diff(dual, V, 2))
    return prove_identities(CURVATURE, [pair], random_rationals([V, KAPPA]))


@tallied(
    "drafter.entropy.cells",
    method="search",
    confirm=mpf("1e-16"),
    refute=mpf("1e-10"),
    more=10,
    told="second differences",
)
def search_curvature(formula: Formula, effort: Effort) -> Cases:
    """Second differences of the dual value at high precision."""
    for k, kappa in itertools.product(range(1, 20, 2), (F(1), F(1, 2), F(1, 5))):
        v, step, weight = mpf(k) / 20, mpf("1e-12"), to_mp(kappa)
        around = [
            -weight * _entropy([x, 1 - x]) + (1 - weight) * mpmath.log(x)
            for x in (v - step, v, v + step)
        ]
        value = (around[0] - 2 * around[1] + around[2]) / step**2
        yield (
            f"v={mpmath.nstr(v, 3)}, kappa={kappa}",
            MP.mpf(formula(MP, v, weight)),
            value,
            value,
        )


@check("drafter.entropy.feasible", method="enclosure")
def enclose_feasible(formula: Formula, effort: Effort) -> Evidence:
    """The second derivative is <= 0 for all v in (0, 1)."""
    bend = formula(sympy, V)
    return enclose_statements(
        [Slope("concave", bend * KAPPA, KAPPA, (), {}, sign=-1, rest=-bend)], "0 < v < 1"
    )


@check("drafter.entropy.feasible", method="steps")
def prove_feasible(formula: Formula, effort: Effort) -> Evidence:
    rejectable = log(V) - V * log(V) - (1 - V) * log(1 - V)
    pair = ("second derivative", formula(sympy, V), sympy.diff(rejectable, V, 2))
    return prove_identities(FEASIBLE, [pair], random_rationals([V]))


@tallied(
    "drafter.entropy.feasible",
    method="search",
    confirm=mpf("1e-18"),
    refute=mpf("1e-10"),
    more=10,
    told="second differences",
)
def search_feasible(formula: Formula, effort: Effort) -> Cases:
    """Second differences of log v + h(v) at 50 digits."""
    for k in range(1, 20):
        v, step = mpf(k) / 20, mpf("1e-12")
        around = [mpmath.log(x) + _entropy([x, 1 - x]) for x in (v - step, v, v + step)]
        value = (around[0] - 2 * around[1] + around[2]) / step**2
        yield f"v={mpmath.nstr(v, 3)}", MP.mpf(formula(MP, v)), value, value


@check("drafter.entropy.simple", method="steps")
def prove_simple(formula: Formula, effort: Effort) -> Evidence:
    """Where eps decides: the Bernoulli divergence itself."""
    direct = R(1, 10) * log(R(1, 10) / R(9, 10)) + R(9, 10) * log(R(9, 10) / R(1, 10))
    found = formula(sympy, [R(9, 10), R(1, 10)], R(1, 10), R(1))
    return prove_identities(SIMPLE, [("eps decides", found, direct)], [{}])


@check("drafter.entropy.simple", method="optimiser", twice=True)
def compare_simple(formula: Formula, effort: Effort) -> Evidence:
    """Never above the radius by brute force."""
    tally = Tally.at_digits("optimiser", effort.digits, "<=")
    for number, (probs, epsilon, delta) in enumerate(DRAFTS):
        radius, _ = _brute_force(number, effort.digits)
        with working_digits(effort.digits + 15):
            bound = MP.mpf(formula(MP, [to_mp(p) for p in probs], to_mp(epsilon), to_mp(delta)))
            tally.add(
                f"{[float(p) for p in probs]}, eps={epsilon}, delta={delta}", bound, radius, radius
            )
    return tally.evidence("brute force over targets")


# (q_y, delta); the others share the rest equally
TWO_MINIMA = ((F(999, 1000), F(3, 10)), (F(9999, 10000), F(3, 10)))


def _shares(top: mpmath.mpf, delta: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The share at which the entropy of (v, (1-v)/2, (1-v)/2) starts to bind, and the last feasible
    one."""
    log_delta, two = mpmath.log(delta), mpmath.log(2)
    start = _largest_root(
        lambda v: mpmath.log(v) + _entropy([v, 1 - v]) + (1 - v) * two - log_delta,
        mpf("1e-9"),
        mpf("0.2"),
    )
    return start, _largest_root(
        lambda v: mpmath.log(v) + _entropy([v, 1 - v]) - log_delta, mpf("1e-9"), mpf("0.5")
    )


@check("refuted.drafter.unimodal", method="exact-cases")
def refute_by_a_target(formula: Formula, effort: Effort) -> Evidence:
    """A rational target that the rule rejects by definition lies nearer than the claimed radius."""

    def holds(case: tuple[F, F]) -> object:
        with working_digits(effort.digits):
            top, delta = to_mp(case[0]), to_mp(case[1])
            claimed = formula(MP, top, *_shares(top, delta))
            share = (
                mpmath.floor(_shares(top, delta)[1] * 10**5) / 10**5
            )  # just below the last feasible share
            target = [share, 1 - share, mpf(0)]
            rejected = _entropy(target) + mpmath.log(share) <= mpmath.log(delta)
            nearer = divergence(target, [top, (1 - top) / 2, (1 - top) / 2])
            if rejected and nearer < claimed - mpf("1e-6"):
                found = f"a rejected target at {mpmath.nstr(nearer, 6)}"
                return f"claimed {mpmath.nstr(claimed, 6)}, {found}"
        return True

    return exact_cases(
        holds, ((f"q_y={top}, delta={delta}", (top, delta)) for top, delta in TWO_MINIMA)
    )


@tallied(
    "refuted.drafter.unimodal",
    method="optimiser",
    confirm=mpf("1e-20"),
    refute=mpf("1e-8"),
    told="both coordinates searched",
)
def refute_by_search(formula: Formula, effort: Effort) -> Cases:
    for top, delta in TWO_MINIMA:
        own, log_delta = to_mp(top), mpmath.log(to_mp(delta))
        draft = [own, (1 - own) / 2, (1 - own) / 2]
        start, end = _shares(own, to_mp(delta))
        value = MP.mpf(formula(MP, own, start, end))
        shares = [start + (end - start) * k / 40 for k in range(40)]
        least = min(
            [_at_share(draft, v, log_delta) for v in shares]
            + [divergence([end, 1 - end, mpf(0)], draft)]
        )
        yield f"q_y={top}, delta={delta}", value, least, least
