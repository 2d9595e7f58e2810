"""Checks of the entropy rule's search: cut tangents below the dual bound on grids of convex cells,
power sums in exact rationals, and rounding at its worst at high precision."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction as F
from functools import partial

import mpmath
import sympy
from sympy import Rational

from derivations.arithmetic.drafter_entropy_bounds import ATOMS, SEARCHED, TANGENTS
from derivations.formulas.drafter_entropy import dual_value
from derivations.formulas.projections import bernoulli_divergence
from derivations.kernels.evaluation import SECOND_ORDER, UNIT
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, exact_cases, tallied
from proofs_check.methods.numbers import MP, working_digits
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

mpf = mpmath.mpf
U = mpf(2) ** -53
R = Rational


@check("drafter.entropy.tangents", method="steps")
def prove_tangents(formula: Formula, effort: Effort) -> Evidence:
    """(x - 1)^2 on [0, 3], of slopes -2 and 4, cut at 1 and at 2."""
    identities = [
        ("cut at 1", formula(sympy, R(1), R(-2), R(4), R(-4), R(3), R(1)), R(-4)),
        ("cut at 2", formula(sympy, R(1), R(-2), R(4), R(-4), R(3), R(2)), R(-3)),
        ("cut at 7/4", formula(sympy, R(1), R(-2), R(4), R(-4), R(3), R(7, 4)), R(-5, 2)),
    ]
    return prove_identities(TANGENTS, identities, [{}])


def _dual(
    draft: list[mpmath.mpf], kappa: mpmath.mpf, log_delta: mpmath.mpf, share: mpmath.mpf
) -> mpmath.mpf:
    return MP.mpf(dual_value(MP, draft, share, kappa, log_delta))


@check("drafter.entropy.tangents", method="search")
def search_tangents(formula: Formula, effort: Effort) -> Evidence:
    """Cells of random laws: slopes by differentiation at high precision, the function itself on a
    grid."""
    rng = random.Random(effort.seed)
    tally = Tally(
        "search", confirm=mpf(10) ** -(effort.digits // 2), refute=mpf(10) ** -12, relation="<="
    )
    with working_digits(effort.digits):
        while tally.cases < 20 * effort.per_family:
            draft = [mpf(rng.uniform(0.05, 1)) for _ in range(4)]
            draft = [prob / mpmath.fsum(draft) for prob in draft]
            kappa, log_delta = mpf(rng.uniform(0.05, 1)), mpmath.log(mpf(rng.uniform(0.05, 0.9)))
            low = 1 - kappa * mpf(rng.uniform(0.3, 0.99))
            width = (1 - low) * mpf(rng.uniform(0.05, 0.98))

            value = partial(_dual, draft, kappa, log_delta)
            rise, fall = mpmath.diff(value, low), -mpmath.diff(value, low + width)
            if rise > 0 or fall > 0:
                continue
            cut = width * mpf(rng.choice([0, rng.random(), 1]))
            least = min(value(low + width * k / 60) for k in range(61))
            bound = MP.mpf(formula(MP, value(low), rise, value(low + width), fall, width, cut))
            tally.add(
                f"kappa {mpmath.nstr(kappa, 4)} from {mpmath.nstr(low, 4)}", bound, least, least
            )
    return tally.evidence("grids of 61 points")


@check("drafter.entropy.atoms", method="steps")
def prove_atoms(formula: Formula, effort: Effort) -> Evidence:
    p, q, b = sympy.symbols("p q b", positive=True)
    identities = [
        ("alone", formula(sympy, [(q, [q])], b), q**b),
        ("two of one size", formula(sympy, [(q, [q, q])], b), 2 * q**b),
        ("two buckets", formula(sympy, [(q, [q]), (p, [p])], b), q**b + p**b),
    ]
    return prove_identities(ATOMS, identities, [{p: R(1, 3), q: R(1, 5), b: R(5, 2)}])


@check("drafter.entropy.atoms", method="exact-cases")
def count_atoms(formula: Formula, effort: Effort) -> Evidence:
    rng = random.Random(effort.seed)

    def cases() -> Iterator[tuple[str, tuple[list[tuple[F, list[F]]], int]]]:
        for number, power in itertools.product(range(20), (1, 2, 3, 7)):
            probs = [F(rng.randint(1, 10**4), 10**5) for _ in range(rng.randint(1, 9))]
            cut = rng.randint(1, len(probs))
            groups = [group for group in (probs[:cut], probs[cut:]) if group]
            buckets = [(max(group) * F(rng.randint(100, 130), 100), group) for group in groups]
            yield f"law {number}, power {power}", (buckets, power)

    def holds(case: tuple[list[tuple[F, list[F]]], int]) -> object:
        buckets, power = case
        direct = sum(q**power for _, members in buckets for q in members)
        return formula(F, buckets, power) >= direct

    return exact_cases(holds, cases())


@tallied("drafter.entropy.atoms", method="search", relation=">=", told="logarithms of the sums")
def search_atoms(formula: Formula, effort: Effort) -> Cases:
    """Powers that are no integers, in the logarithm: at powers of 50 the sums themselves are
    tiny."""
    rng = random.Random(effort.seed)
    for power in (mpf(1), mpf("1.01"), mpf("2.5"), mpf(50)):
        for number in range(10):
            probs = [mpf(rng.uniform(1e-6, 0.2)) for _ in range(8)]
            buckets = [
                (max(group) * mpf(rng.uniform(1, 1.3)), group) for group in (probs[:3], probs[3:])
            ]
            direct = mpmath.log(mpmath.fsum(q**power for q in probs))
            bound = mpmath.log(formula(MP, buckets, power))
            yield f"law {number}, power {mpmath.nstr(power, 4)}", bound, direct, direct


@check("bound.radius.entropy", method="steps")
def prove_searched(formula: Formula, effort: Effort) -> Evidence:
    expected = 1 - SECOND_ORDER * UNIT * (4000 + 4 * 4096 + 64 * 30)
    return prove_identities(
        SEARCHED, [("a radius", formula(sympy, R(1), R(30), R(4096)), expected)], [{}]
    )


@check("bound.radius.entropy", method="search")
def simulate_searched(formula: Formula, effort: Effort) -> Evidence:
    """Every loss at its worst, all upwards; and float64 itself on two tokens, whose radius is
    d_bin(eps || q_y)."""
    tally = Tally("search", confirm=mpf(0), refute=U / 100, relation="<=")
    with working_digits(effort.digits):
        for num_tokens, own, price, spread in itertools.product(
            (4, 4096, 262_144), (1, 12), (1, 700), (3, 620)
        ):
            exact, reach = mpf(1), mpf(own + price + spread)
            laws = -2 * mpmath.log(1 - 753 * U) - (num_tokens + 2) * mpmath.log(1 - U)
            sums = -(num_tokens + 230) * mpmath.log(1 - U) + (160 + 2 * spread) * U
            value = (16 + 13 * own + 7 * spread + 16 * price) * U
            slopes = (490 + 18 * price + 16 * own + 8 * spread) * U
            bound = MP.mpf(formula(MP, exact + laws + 2 * sums + value + slopes, reach, num_tokens))
            tally.add(f"n={num_tokens}, reach {mpmath.nstr(reach, 5)}", bound, exact, exact)
    with working_digits(effort.digits + 300):  # 1 - q_y down to e^-600
        for gap, epsilon in itertools.product(
            (2.0**-10, 1.0, 30.0, 300.0, 600.0), (2.0**-7, 0.25, 0.5)
        ):
            weights = [1.0, math.exp(-gap)]
            probs = [weight / sum(weights) for weight in weights]
            entropy = epsilon * math.log(epsilon) + (1 - epsilon) * math.log1p(-epsilon)
            least = entropy - epsilon * math.log(probs[0]) - (1 - epsilon) * math.log(probs[1])
            bound = mpf(formula(math, least, gap + 10.0, 2))
            exact = bernoulli_divergence(MP, mpf(epsilon), 1 / (1 + mpmath.exp(-mpf(gap))))
            tally.add(f"gap {gap}, eps {epsilon}", bound, exact, exact)
    return tally.evidence("operations at their worst; two tokens in float64")
