"""Checks of the bounds that survive rounding: errors are simulated at high precision, adversarial
signs included, and the bounds compared with exact values."""

from __future__ import annotations

import random
from fractions import Fraction

import mpmath
import sympy
from sympy import sqrt, symbols

from derivations.arithmetic.float_bounds import CERTIFICATE_BELOW, KL_ABOVE
from derivations.kernels.evaluation import SECOND_ORDER, TINY, UNIT
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, solve, tallied
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.problems import single_problems, tree_problems
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

MEASURED, RELATIVE, ETA = symbols("K a eta", positive=True)
RAISED, MASS, SIZE, RHO, TOTAL, TOTAL_ERROR = symbols("V m n rho S e", positive=True)
UNIT_MP = mpmath.mpf(2) ** -53


@check("bound.kl_upper", method="steps")
def prove_kl_upper(formula: Formula, effort: Effort) -> Evidence:
    slope = ETA + 28 * UNIT
    root = (
        slope * sqrt(2) + sqrt(2 * slope**2 + 4 * (1 - RELATIVE) * (MEASURED + ETA**2 + TINY))
    ) / (2 * (1 - RELATIVE))
    expected = root**2 * (1 + 16 * UNIT)
    found = formula(sympy, MEASURED, RELATIVE, ETA)
    return prove_identities(
        KL_ABOVE,
        [("the square of the root", found, expected)],
        random_rationals([MEASURED, RELATIVE, ETA]),
    )


@tallied(
    "bound.kl_upper",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -30,
    told="simulated errors",
)
def simulate_kl_errors(formula: Formula, effort: Effort) -> Cases:
    """Bregman sums whose log-ratios and probabilities carry errors of the size stated, all signs:
    KL stays below."""
    rng = random.Random(effort.seed)
    targets = [
        t for t in generate_targets(effort.seed, effort.per_family + 2) if min(t.target_probs) > 0
    ]
    for target in targets:
        own = [to_mp(prob) for prob in target.target_probs]
        for closeness in ("20", "1", "1e-3", "1e-8"):
            noise = [mpmath.mpf(rng.uniform(-1, 1)) * mpmath.mpf(closeness) for _ in own]
            draft = [p * mpmath.exp(x) for p, x in zip(own, noise, strict=True)]
            draft = [q / mpmath.fsum(draft) for q in draft]
            ratios = [mpmath.log(p / q) for p, q in zip(own, draft, strict=True)]
            exact = mpmath.fsum(p * d for p, d in zip(own, ratios, strict=True))
            for eta in ("0.05", "1e-6", "1e-13"):
                relative = mpmath.mpf(eta) / 2
                for signs in ("against", "random"):
                    measured = _measured(rng, own, ratios, mpmath.mpf(eta), relative, signs)
                    # products of the two errors are second order: eta (1 + rho) covers them
                    bound = formula(MP, measured, relative, mpmath.mpf(eta) * (1 + relative))
                    yield f"{target}, {closeness}, eta={eta}, {signs}", bound, exact, exact
            # the worst measured value that the error model allows
            for eta, relative in (
                (mpmath.mpf("0.01"), mpmath.mpf("0.1")),
                (mpmath.mpf("0.01"), mpmath.mpf("0.6")),
                (mpmath.mpf("1e-9"), mpmath.mpf("1e-9")),
            ):
                worst = (
                    exact * (1 - relative) - (eta + 28 * UNIT_MP) * mpmath.sqrt(2 * exact) - eta**2
                )
                if worst >= 0:
                    bound = formula(MP, worst, relative, eta)
                    yield (
                        f"{target}, {closeness}, worst case, eta={mpmath.nstr(eta, 2)}",
                        bound,
                        exact,
                        exact,
                    )


def _measured(
    rng: random.Random,
    own: list[mpmath.mpf],
    ratios: list[mpmath.mpf],
    eta: mpmath.mpf,
    relative: mpmath.mpf,
    signs: str,
) -> mpmath.mpf:
    total = mpmath.mpf(0)
    for prob, ratio in zip(own, ratios, strict=True):
        # d + exp(-d) - 1 grows with |d|: pulling d towards 0 makes the sum smallest
        shift = (
            -mpmath.sign(ratio) * min(eta, abs(ratio))
            if signs == "against"
            else eta * rng.uniform(-1, 1)
        )
        scale = 1 - relative if signs == "against" else 1 + relative * rng.uniform(-1, 1)
        total += prob * scale * (ratio + shift + mpmath.expm1(-(ratio + shift)))
    return total


@check("bound.certificate_lower", method="steps")
def prove_certificate_lower(formula: Formula, effort: Effort) -> Evidence:
    inner = RAISED * (1 - RHO - (SIZE + 16) * UNIT) - MASS * ((2 * SIZE + 40) * UNIT + RHO)
    expected = sympy.Max(0, inner / TOTAL * (1 - SECOND_ORDER * TOTAL_ERROR - 4 * UNIT))
    found = formula(sympy, RAISED, MASS, SIZE, RHO, TOTAL, TOTAL_ERROR)
    values = {RAISED: 1, MASS: sympy.Rational(1, 2), SIZE: 3, RHO: sympy.Rational(1, 100), TOTAL: 2}
    positive = [
        (
            "below the dual value",
            (found - expected).subs({**values, TOTAL_ERROR: sympy.Rational(1, 90)}),
            0,
        )
    ]
    return prove_identities(CERTIFICATE_BELOW, positive, [{}])


@check("bound.certificate_lower", method="optimiser", twice=True)
def simulate_weight_errors(formula: Formula, effort: Effort) -> Evidence:
    """Weights with relative errors up to 1e-3, pools chosen from the wrong weights: never above the
    exact minimum."""
    rng = random.Random(effort.seed)
    tally = Tally("optimiser", confirm=mpmath.mpf(0), refute=mpmath.mpf(10) ** -30, relation="<=")
    trees = [p for p in tree_problems(effort) if p.spokes == tuple(range(1, len(p.spokes) + 1))]
    for problem in [*single_problems(effort), *trees]:
        bracket = solve(problem, effort.digits)
        with working_digits(effort.digits + 30):
            for error, pattern in (
                (Fraction(1, 1000), "high"),
                (Fraction(1, 1000), "random"),
                (Fraction(1, 10**8), "high"),
            ):
                top = problem.target_probs[0]
                weights = [
                    to_mp(p / top * (1 + error * _sign(rng, pattern))) for p in problem.target_probs
                ]
                arguments = _pool_arguments(weights, problem.hub, problem.spokes, problem.sign)
                bound = formula(
                    MP, *arguments, to_mp(error) * (1 + 2 * to_mp(error)), to_mp(1 / top), MP.mpf(0)
                )
                tally.add(
                    f"{problem.label}, weights off by {error} ({pattern})",
                    bound,
                    bracket.lower,
                    bracket.upper,
                )
    return tally.evidence(f"{effort.digits} digits, perturbed weights")


def _sign(rng: random.Random, pattern: str) -> Fraction:
    return Fraction(1) if pattern == "high" else Fraction(rng.randint(-1000, 1000), 1000)


def _pool_arguments(
    weights: list[mpmath.mpf], hub: int, spokes: tuple[int, ...], sign: int
) -> tuple[mpmath.mpf, mpmath.mpf, int]:
    """(raised sum, mass, size) of the pool that the perturbed weights suggest, as the kernels form
    them."""
    pool, mass = [weights[hub]], weights[hub]
    for weight in sorted((weights[i] for i in spokes), key=lambda w: -sign * w):
        if not sign * (weight * len(pool) - mass) > 0:
            break
        pool.append(weight)
        mass += weight
    raised = mass / len(pool) * (1 + (len(pool) + 6) * UNIT_MP)
    excesses = [weight / raised - 1 for weight in pool]
    value = raised * mpmath.fsum(1 if x == -1 else (1 + x) * mpmath.log1p(x) - x for x in excesses)
    return value, mass, len(pool)
