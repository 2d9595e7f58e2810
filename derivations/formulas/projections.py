"""The nearest distribution to a given one, in KL(moved || base), at which tokens change their
order: pools at a geometric mean. Both the drafter-side certificates and the reverse direction are
made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import exp, log

from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import LARGER_SHARE, WEIGHED

__all__ = [
    "LIFT",
    "SINK",
    "bernoulli_divergence",
    "geometric_value",
    "lift_pool",
    "lift_value",
    "sink_pool",
    "sink_value",
]


def lift_pool(base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> list[int]:
    """The hub and every rival above the level g = geometric mean of the pool, largest first."""
    pool, product = [hub], base_probs[hub]
    for i in sorted(rivals, key=lambda i: -base_probs[i]):
        if not base_probs[i] ** len(pool) > product:
            break
        pool.append(i)
        product = product * base_probs[i]
    return pool


def sink_pool(base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> list[int]:
    """The hub and every rival below the level g = geometric mean of the pool, smallest first."""
    pool, product = [hub], base_probs[hub]
    for i in sorted(rivals, key=lambda i: base_probs[i]):
        if not base_probs[i] ** len(pool) < product:
            break
        pool.append(i)
        product = product * base_probs[i]
    return pool


def geometric_value(numbers: Any, base_probs: Sequence[Any], pool: Sequence[int]) -> Any:
    """-log(1 - sum_S q + |S| g), g the geometric mean over the pool S (nats)."""
    pooled = [base_probs[i] for i in pool]
    total = sum(pooled[1:], pooled[0])
    if any(prob == 0 for prob in pooled):
        return math.inf if total == 1 else -numbers.log(1 - total)
    logs = [numbers.log(prob) for prob in pooled]
    return -numbers.log(1 - total + len(pool) * numbers.exp(sum(logs[1:], logs[0]) / len(pool)))


def lift_value(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    """min KL(moved || base) with moved[hub] >= moved[i] for every rival; +inf where base[hub] =
    0."""
    if base_probs[hub] == 0:
        return math.inf
    return geometric_value(numbers, base_probs, lift_pool(base_probs, hub, rivals))


def sink_value(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    """min KL(moved || base) with moved[i] >= moved[hub] for every rival (closed: a rival of 0 may
    tie at 0)."""
    return geometric_value(numbers, base_probs, sink_pool(base_probs, hub, rivals))


def bernoulli_divergence(numbers: Any, share: Any, base_share: Any) -> Any:
    """d_bin(a || b) = a log(a/b) + (1-a) log((1-a)/(1-b)), with 0 log 0 = 0; b in (0, 1)."""
    value = share * 0
    if share > 0:
        value = value + share * numbers.log(share / base_share)
    if share < 1:
        value = value + (1 - share) * numbers.log((1 - share) / (1 - base_share))
    return value


def _average_level(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    pool = lift_pool(base_probs, hub, rivals)
    pooled = [base_probs[i] for i in pool]
    level = sum(pooled[1:], pooled[0]) / len(pool)
    return sum(level * numbers.log(level / prob) for prob in pooled)


def _one_too_many(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    pool = lift_pool(base_probs, hub, rivals)
    left = [i for i in sorted(rivals, key=lambda i: -base_probs[i]) if i not in pool]
    return geometric_value(numbers, base_probs, [*pool, *left[:1]])


def _two_only(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    return geometric_value(numbers, base_probs, lift_pool(base_probs, hub, rivals)[:2])


def _pool_all(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    return geometric_value(numbers, base_probs, [hub, *rivals])


def _size_lost(numbers: Any, base_probs: Sequence[Any], hub: int, rivals: Sequence[int]) -> Any:
    pool = sink_pool(base_probs, hub, rivals)
    value = numbers.exp(-geometric_value(numbers, base_probs, pool))
    total = sum(base_probs[i] for i in pool)
    return -numbers.log(1 - total + (value - 1 + total) / len(pool)) if len(pool) > 1 else value * 0


X, Q, MU, LAM = sympy.symbols("x q mu lambda", positive=True)
Q1, Q2, QJ, Z = sympy.symbols("q_1 q_2 q_j Z", positive=True)
RISE = sympy.Symbol("t", nonnegative=True)
_LEVEL = (Q1 * Q2 * QJ) ** sympy.Rational(1, 3)

_TILTING = (
    Step(
        "Fix the hub and its rivals. Minimise sum x_i log(x_i/q_i) over the simplex under x_hub - "
        "x_i >= 0 (or <= 0). Tokens with q_i = 0 keep x_i = 0.",
        how="definition",
    ),
    Step(
        "Linear constraints: a point that satisfies the KKT conditions is a minimum.",
        how="cited",
        cites=("lemma.kkt",),
        instances=(WEIGHED,),
    ),
    Step(
        "Stationarity of x log(x/q) + mu x - lambda x in x: log(x/q) + 1 + mu - lambda = 0,",
        sympy.diff(X * log(X / Q) + MU * X - LAM * X, X),
        log(X / Q) + 1 + MU - LAM,
    ),
    Step(
        "so x = q exp(lambda)/Z: the base, tilted.",
        (log(X / Q) - LAM + log(Z)).subs(X, Q * exp(LAM) / Z),
    ),
)
_VALUE = (
    Step(
        "All bounds are 0, so the value is sum x (lambda - log Z) = -log Z; Z = 1 - sum_S q + |S| "
        "g, because tokens outside S keep their q and each of S has tilted weight g. For |S| = 2: "
        "(1 - a - b) + a e^{-l} + b e^{l} at e^l = sqrt(a/b):",
        (1 - Q1 - QJ + Q1 / sympy.sqrt(Q1 / QJ) + QJ * sympy.sqrt(Q1 / QJ)),
        1 - Q1 - QJ + 2 * sympy.sqrt(Q1 * QJ),
    ),
    Step(
        "For two tokens Z = 1 - (sqrt a - sqrt b)^2.",
        1 - (sympy.sqrt(Q1) - sympy.sqrt(QJ)) ** 2,
        1 - Q1 - QJ + 2 * sympy.sqrt(Q1 * QJ),
    ),
)
LIFT = Derivation(
    "Lifting one token: rivals above a geometric mean come down to it",
    (
        *_TILTING,
        Step(
            "A pooled rival has lambda_i = log(q_i/g) and tilted weight q_i exp(-lambda_i) = g.",
            Q * exp(-log(Q / X)),
            X,
        ),
        Step("Its sign: q_i = g (1 + t), t >= 0.", log(1 + RISE), 0, "nonnegative"),
        Step(
            "The hub has weight q_j exp(sum lambda_i) = g: |S| log g = sum_S log q. With k rivals "
            "whose logarithms sum to l, and f = log q_j, log g = (f + l)/(k + 1):",
            at.f + (at.l - at.k * (at.f + at.l) / (at.k + 1)),
            (at.f + at.l) / (at.k + 1),
        ),
        Step(
            "Rivals with q_i <= g take lambda_i = 0 and satisfy x_i = q_i/Z <= g/Z = x_hub; g = "
            "q_i + t.",
            (at.q + at.t) / at.x - at.q / at.x,
            0,
            "nonnegative",
        ),
        Step(
            "Adding rivals from the largest down while they exceed the running geometric mean, "
            "that is the running average of logarithms, finds S.",
            how="cited",
            cites=("lemma.level",),
            instances=(Instance("lemma.level", (at.l, [at.l + at.x]), at.l + at.x / 2),),
        ),
        *_VALUE,
    ),
)
SINK = Derivation(
    "Sinking one token: rivals below a geometric mean come up to it",
    (
        *_TILTING,
        Step(
            "A pooled rival has lambda_i = log(g/q_i) and tilted weight g.", Q * exp(log(X / Q)), X
        ),
        Step("Its sign: g = q_i (1 + t), t >= 0.", log(1 + RISE), 0, "nonnegative"),
        Step(
            "The hub has weight q_1 exp(-sum lambda_i) = g, the same geometric mean. With k "
            "rivals whose logarithms sum to l, and f = log q_1, log g = (f + l)/(k + 1):",
            at.f - (at.k * (at.f + at.l) / (at.k + 1) - at.l),
            (at.f + at.l) / (at.k + 1),
        ),
        Step(
            "Rivals with q_i = g + t >= g keep q_i/Z >= x_hub = g/Z.",
            (at.p + at.t) / at.x - at.p / at.x,
            0,
            "nonnegative",
        ),
        Step(
            "Adding rivals from the smallest up while they lie below the running geometric mean, "
            "that is the running average of logarithms, finds S.",
            how="cited",
            cites=("lemma.level",),
            instances=(Instance("lemma.level", (-at.l, [-at.l + at.x]), -(at.l - at.x / 2)),),
        ),
        *_VALUE,
        Step("A rival with q_i = 0 may tie only at 0: x_hub = 0.", how="definition"),
        Step(
            "The others keep their proportions.",
            how="cited",
            cites=("drafter.absolute",),
            instances=(LARGER_SHARE,),
        ),
        Step(
            "The value is that of a binary law (0, 1) against (q_hub, 1 - q_hub), w = q_hub: "
            "-log(1 - q_hub).",
            1 * at.log(1 / (1 - at.w)),
            -at.log(1 - at.w),
        ),
    ),
)

declare(
    Claim(
        id="projection.lift",
        sentence="The least KL(x || q) at which x_j >= x_i for every i of B is -log(1 - sum_S q + "
        "|S| g), where S holds j and the tokens of B above g, and g is the geometric mean of q "
        "over S.",
        domain="any q with q_j > 0, any set B of rivals",
        theory="C, D (fixed competitor)",
        relation="=",
        formula=lift_value,
        derivation=LIFT,
        mutants=(
            Mutant("average for geometric mean", _average_level),
            Mutant("one rival too many in the pool", _one_too_many),
            Mutant("two tokens only", _two_only),
        ),
    )
)
declare(
    Claim(
        id="projection.sink",
        sentence="The least KL(x || q) at which x_i >= x_1 for every i of B is -log(1 - sum_S q + "
        "|S| g), where S holds token 1 and the tokens of B below g, and g is the geometric mean "
        "of q over S.",
        domain="any q, any set B of rivals",
        theory="C, D (fixed competitors)",
        relation="=",
        formula=sink_value,
        derivation=SINK,
        mutants=(Mutant("every rival pooled", _pool_all), Mutant("g for |S| g", _size_lost)),
    )
)
