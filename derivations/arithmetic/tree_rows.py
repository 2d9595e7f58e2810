"""What is taken off the certificates of a row's trees for their roundings, and why that is enough.

Example: at (.9, .05, .05) and width 2 the pool has the level 1/3 and the value .704; 2^-43 of .704
and of the mass 1 are taken off, 2e-13 nats."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import log

from derivations.arithmetic.margin_rounding import excess_phi, lowered, lowered_margin
from derivations.kernels.evaluation import MARGIN_SLACK
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["TREE_ROWS", "lowered_row"]

X, K, C = sympy.symbols("x k c", positive=True)
D = sympy.Symbol("d", nonnegative=True)


def lowered_row(numbers: Any, computed: Any, mass: Any) -> Any:
    """The computed value less 2^-43 of it and of the pool's mass."""
    return _lowered_row(computed, mass, int(1 / MARGIN_SLACK))


def _lowered_row(computed: Any, mass: Any, parts: int) -> Any:
    return lowered(computed, parts) - mass / parts


TREE_ROWS = Derivation(
    "Roundings of a row's trees",
    (
        Step(
            "Summed is c sum phi(p/c - 1) over a pool of n tokens, c = fl(mass/n): of a token "
            "c phi(p/c - 1) = p log(p/c) - p + c,",
            C * excess_phi(X / C - 1),
            X * log(X / C) - X + C,
        ),
        Step(
            "so at c = (1+d) times the mean the sum is larger by n mean (d - log(1+d)), which is "
            "of second order: its slope is d/(1+d), and mass (n u)^2 is less than u mass.",
            sympy.diff(D - log(1 + D), D),
            D / (1 + D),
        ),
        Step(
            "Any pool of token 1 and tokens below the level has a valid sum (claim tree.dual). One "
            "that joins at (1+d) c by a rounding adds at most c phi(d) to it, again of second "
            "order: phi's slope is log(1+d).",
            sympy.diff(excess_phi(D), D),
            log(1 + D),
        ),
        Step(
            "r = p/c and r - 1 are rounded: the excess is off by (r + |r-1|) u, phi by |log r| "
            "times that; below r = 1/16 by h (1 + log(1/h)), h = 1.1 u (claim kernel.margins).",
            how="definition",
        ),
        Step(
            "The sum of c + p over the pool is twice its mass: c n = mass.",
            (C * K + C * K) - 2 * C * K,
            0,
        ),
    ),
)
declare(
    Claim(
        id="kernel.tree_rows",
        sentence="A row's tree certificate as float64 sums it, less 2^-43 of it and of the pool's "
        "mass, is not above the exact one.",
        domain="pools of at most 2^20 tokens of any probabilities",
        theory="F (margins)",
        relation="<=",
        formula=lowered_row,
        derivation=TREE_ROWS,
        mutants=(
            Mutant("nothing taken off", lambda n, computed, mass: computed),
            Mutant("of the value only", lambda n, computed, mass: lowered_margin(n, computed)),
            Mutant(
                "added",
                lambda n, computed, mass: _lowered_row(computed, mass, -int(1 / MARGIN_SLACK)),
            ),
        ),
        min_methods=3,
    )
)
