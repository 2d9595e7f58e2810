"""What the certificates of a box of logits hand to their printed formulas beside the error of a
normaliser: room for what the formulas themselves round.

Example: the weight that a token needs for p >= .3 on every server is a quotient whose roundings
come to 12 u, u = 2^-53; with the normaliser's error e it is raised by e + 64 u."""

from __future__ import annotations

from typing import Any

import sympy

from derivations.kernels.evaluation import BOX_ROUNDINGS
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["BOX_ROUNDING", "box_room"]

S, W, V, D, A = sympy.symbols("S w o D a", positive=True)
E, R, X, Y = sympy.symbols("e r x y", nonnegative=True)


def box_room(numbers: Any, error: Any) -> Any:
    """The normaliser's relative error and 64 u."""
    return _with_room(error, BOX_ROUNDINGS)


def _with_room(error: Any, roundings: int) -> Any:
    return (error * 2**53 + roundings) / 2**53


BOX_ROUNDING = Derivation(
    "Roundings of a box's printed formulas",
    (
        Step(
            "Operations are within a relative u, exp and log within 8 u. The normaliser S is "
            "within a relative e; the box is widened, and the entropy's ceiling raised, for what "
            "radius, growth and ceiling were rounded.",
            how="definition",
        ),
        Step(
            "Cap and entropy ask for S/(x + y S), x, y >= 0: at S (1 + e) at most 1 + e times as "
            "much.",
            (1 + E) * S / (A + Y * S) - S * (1 + E) / (A + Y * S * (1 + E)),
            0,
            "nonnegative",
        ),
        Step(
            "The denominator 1 + m - n, n = 1/growth = 1 - y and m = n + r, cancels at most by 2: "
            "2 (1 + m - n) - (1 + m)",
            2 * (1 + R) - (1 + (1 - Y) + R),
            R + Y,
        ),
        Step("and (1 + m - n) - n are not negative.", (1 + R) - (1 - Y), R + Y),
        Step(
            "From the top, 0 < o <= 1: g (scale + o S)/(1 - o + o g), g = 1 + r, moves by at most "
            "e g (scale + o S), and is at most that factor of it:",
            E * (1 + R) * (W + V * S) - (1 + R) * V * S * E / (1 + V * R),
            0,
            "nonnegative",
        ),
        Step(
            "o <= 0: what is rounded is a multiple of |o| (S - 1) + (|o| + scale) g, S = 1 + x, "
            "g = 1 + r, and what S is off by of |o| S: both at most (g + S)(|o| + scale).",
            (2 + X + R) * (V + W) - (V * X + (V + W) * (1 + R)),
            0,
            "nonnegative",
        ),
        Step(
            "box_mass: a = 1 + |tilt| + radius bounds a token's factor, D the sum of p "
            "|log(p/q)|. With x + y = 1 the masses of both sides, the text with sums for "
            "differences is at most exp(radius) (a + 3 D):",
            (at.x * A + D) + (D + at.y * A + D) - ((at.x + at.y) * A + 3 * D),
            0,
        ),
        Step(
            "so three times its roundings are less than 64 u of exp(radius) (a + D), and so are "
            "those of tilt - log(mass) of |tilt| + |log(mass)|.",
            how="definition",
        ),
    ),
)

declare(
    Claim(
        id="kernel.box",
        sentence="64 u beside the normaliser's error pay for what box_threshold, box_mass and "
        "box_divergence round.",
        domain="growth >= 1, cap > 0, scale >= 0, any offset; errors up to 1/64; box_mass in units "
        "of exp(radius) (1 + |tilt| + radius + sum p |log(p/q)|), box_divergence of |tilt| + "
        "|log(mass)|",
        theory="F, E1",
        relation=">=",
        formula=box_room,
        derivation=BOX_ROUNDING,
        mutants=(
            Mutant("no room", lambda n, error: error),
            Mutant("8 u", lambda n, error: _with_room(error, 8)),
        ),
        min_methods=3,
    )
)
