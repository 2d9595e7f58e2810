"""Families of target distributions in exact rational arithmetic, sorted from the largest
probability down."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["FAMILIES", "MANY", "WIDE", "Target", "flat_target", "generate_targets", "large_target"]

# How far every sample of a statement on any number of tokens, or any width, has to go.
MANY, WIDE = 64, 16


@dataclass(frozen=True)
class Target:
    """A named distribution: ``target_probs`` are Fractions that sum to 1, largest first."""

    family: str
    target_probs: tuple[Fraction, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{float(prob):.6g}" for prob in self.target_probs)
        return f"{self.family} ({shown})"


def _normalise(weights: list[Fraction]) -> tuple[Fraction, ...]:
    total = sum(weights)
    return tuple(sorted((weight / total for weight in weights), reverse=True))


def _weights(rng: random.Random, count: int, concentration: float) -> list[Fraction]:
    drawn = [
        Fraction(rng.gammavariate(concentration, 1.0)).limit_denominator(10**9)
        for _ in range(count)
    ]
    return [weight if weight > 0 else Fraction(1, 10**9) for weight in drawn]


def _dirichlet(rng: random.Random) -> tuple[Fraction, ...]:
    return _normalise(_weights(rng, rng.randint(4, 8), 1.0))


def _peaked(rng: random.Random) -> tuple[Fraction, ...]:
    return _normalise(_weights(rng, rng.randint(4, 8), 0.25))


def _saturated(rng: random.Random) -> tuple[Fraction, ...]:
    """A first token of more than .96, as confident models have it."""
    scale = Fraction(1, 10 ** rng.randint(2, 7))
    return _normalise([Fraction(3), *(weight * scale for weight in _weights(rng, 3, 1.0))])


def _near_tie(rng: random.Random) -> tuple[Fraction, ...]:
    first, *rest = _weights(rng, 5, 1.0)
    return _normalise([first + 1, first + 1 - Fraction(1, 10 ** rng.randint(6, 15)), *rest])


def _tied(rng: random.Random) -> tuple[Fraction, ...]:
    first, second, *rest = _weights(rng, 4, 1.0)
    return _normalise([first, first, second, second, *rest])


def _one_hot(rng: random.Random) -> tuple[Fraction, ...]:
    return (Fraction(1), *[Fraction(0)] * rng.randint(1, 5))


def _uniform(rng: random.Random) -> tuple[Fraction, ...]:
    return _normalise([Fraction(1)] * rng.randint(3, 7))


def _zipf(rng: random.Random) -> tuple[Fraction, ...]:
    power = rng.choice([1, 2, 3])
    return _normalise([Fraction(1, rank**power) for rank in range(1, rng.randint(8, 12))])


def _sparse(rng: random.Random) -> tuple[Fraction, ...]:
    return _normalise([*_weights(rng, 3, 1.0), *[Fraction(0)] * rng.randint(1, 3)])


def _two_tokens(rng: random.Random) -> tuple[Fraction, ...]:
    return _normalise(_weights(rng, 2, 1.0))


def _three_tokens(rng: random.Random) -> tuple[Fraction, ...]:
    return _normalise(_weights(rng, 3, 1.0))


FAMILIES: dict[str, Callable[[random.Random], tuple[Fraction, ...]]] = {
    "dirichlet": _dirichlet,
    "peaked": _peaked,
    "saturated": _saturated,
    "near-tie": _near_tie,
    "tied": _tied,
    "one-hot": _one_hot,
    "uniform": _uniform,
    "zipf": _zipf,
    "sparse": _sparse,
    "two tokens": _two_tokens,
    "three tokens": _three_tokens,
}


def large_target(count: int = MANY, values: int = 0) -> Target:
    """One target of many tokens; ``values``: with so many different probabilities."""
    rng = random.Random(f"large/{count}")
    drawn = [Fraction(rng.randint(1, 100) ** 2) for _ in range(values or count)]
    return Target("large", _normalise([drawn[k % len(drawn)] for k in range(count)]))


def flat_target(count: int = MANY) -> Target:
    """One target of many tokens, most of them nearly as probable as the first: these all pool."""
    rng = random.Random(f"flat/{count}")
    alike = [Fraction(rng.randint(1000, 1010)) for _ in range(2 * count // 3)]
    rest = [Fraction(rng.randint(9, 90)) for _ in range(count - len(alike))]
    return Target("flat", _normalise([*alike, *rest]))


def generate_targets(
    seed: int, per_family: int, *, min_vocab: int = 2, max_vocab: int = 12
) -> list[Target]:
    """``per_family`` targets of each family, the same for the same seed; sizes outside the limits
    are left out."""
    found = []
    for family, draw in FAMILIES.items():
        rng = random.Random(f"{seed}/{family}")
        found += [Target(family, draw(rng)) for _ in range(per_family)]
    distinct = dict.fromkeys(found)  # the small families repeat themselves
    return [target for target in distinct if min_vocab <= len(target.target_probs) <= max_vocab]
