"""What the entropy rule's search over p_1 takes off for the roundings of its cells, and why that is
enough.

Example: float64 evaluates the cost of the pair (.50505, .49495) by two terms of .0102 and -.0100
whose sum is .0001; if each is off by 10 u, u = 2^-53, each its own way, the cost is 2,000 u too
large, of the 9,007 u that are taken off."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Rational, log

from derivations.formulas.strict import phi
from derivations.kernels.evaluation import UNIT
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["CELL_COST", "CELL_FLOOR", "certain_excess", "lowered_cost"]

X, H = sympy.symbols("x h", positive=True)


def lowered_cost(numbers: Any, computed: Any, parts: int = 10**12) -> Any:
    """The computed cost less 1e-12 of it."""
    return computed * (parts - 1) / parts


def certain_excess(numbers: Any, floor: Any, reach: Any, slack: int = 1) -> Any:
    """floor - log delta, both as computed, less 1e-11."""
    return floor - reach - slack * (floor * 0 + 1) / 10**11


CELL_COST = Derivation(
    "Roundings of a pair's cost, counted in u",
    (
        Step(
            "Sums, products and quotients are within a relative u, log1p within 8 u; T2(a, b) = s "
            "phi(x), s = a + b, x = (a - b)/s: a sum, a difference and a quotient of floats, so "
            "that x is within 3 u.",
            how="definition",
        ),
        Step(
            "Below x = .01 the text has four terms of phi's series, all positive:",
            sympy.series(phi(sympy, X), X, 0, 10).removeO(),
            X**2 / 2 + X**4 / 12 + X**6 / 30 + X**8 / 56,
        ),
        Step(
            "the rest of it, x^(2k)/(2k (2k-1)), is positive too, as 2 phi(x) has the second "
            "derivative 2/(1-x^2) = 2 (1 + x^2 + ...): what is left out lowers the cost.",
            sympy.diff(2 * phi(sympy, X), X, 2),
            2 / (1 - X**2),
        ),
        Step(
            "Beyond, (1+x) log(1+x) and (1-x) log(1-x) nearly cancel: errors of each, over "
            "2 phi(x) >= x^2.",
            sympy.diff(phi(sympy, X) - X**2 / 2, X, 2),
            X**2 / (1 - X**2),
        ),
        Step(
            "Near x = 1 the slope of (1-x) log(1-x) is infinite; over a step h it integrates to at "
            "most h (1 + log(1/h)), from x = 1 on, where the text has 0:",
            sympy.diff(H * (1 - log(H)), H),
            -log(H),
        ),
        Step("1 - 1e-12 is rounded once, and the product with it.", how="definition"),
    ),
)
CELL_FLOOR = Derivation(
    "Roundings of a floor, counted in u",
    (
        Step(
            "log b - b log b - a log a - (1-a-b) log r, r >= a - g for the largest a of a cell, is "
            "computed as (1-b) log b - a log a - (1-a-b) log r. a and b are floats, r the float "
            "above the computed a - g.",
            log(at.b) - at.b * log(at.b) - at.a * log(at.a) - (1 - at.a - at.b) * log(at.r),
            (1 - at.b) * log(at.b) - at.a * log(at.a) - (1 - at.a - at.b) * log(at.r),
        ),
        Step(
            "Counts are of the sum of the terms' sizes, |log b| <= 706, |log r| <= 65: b >= "
            "1e-306, and a - g, a difference of floats of at least 2^-40, is 2^-93 or more. "
            "-a log a is at most 1/e < 1:",
            sympy.diff(-X * log(X), X),
            -log(X) - 1,
        ),
        Step(
            "log delta, of a delta of at least 2^-1074, is within 8 u of 745, and its sum with "
            "1e-11 is rounded once.",
            745 - 1074 * log(2),
            0,
            "nonnegative",
        ),
        Step("1e-11 is 90,071 u.", Rational(1, 10**11) - 90071 * UNIT, 0, "nonnegative"),
    ),
)

declare(
    Claim(
        id="kernel.entropy_cells",
        sentence="The cost of a pair as the entropy rule's cells compute it, less 1e-12 of it, is "
        "not above the exact one.",
        domain="floats 0 <= b <= a, 0 < a; costs of at least 2^-1000",
        theory="F (margins)",
        relation="<=",
        formula=lowered_cost,
        derivation=CELL_COST,
        mutants=(
            Mutant("a fifth of it", lambda n, computed: lowered_cost(n, computed, 5 * 10**12)),
            Mutant("nothing taken off", lambda n, computed: computed),
            Mutant("added", lambda n, computed: lowered_cost(n, computed, -(10**12))),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="kernel.entropy_floor",
        sentence="A floor that float64 finds above log delta + 1e-11 is above log delta.",
        domain="1e-306 <= b <= 1, 2^-40 <= a <= 1, r >= 2^-93, delta >= 2^-1074",
        theory="F (margins)",
        relation="<=",
        formula=certain_excess,
        derivation=CELL_FLOOR,
        mutants=(
            Mutant("no slack", lambda n, floor, reach: certain_excess(n, floor, reach, 0)),
            Mutant("added", lambda n, floor, reach: certain_excess(n, floor, reach, -1)),
            Mutant(
                "a tenth of it", lambda n, floor, reach: floor - reach - (floor * 0 + 1) / 10**12
            ),
        ),
        min_methods=3,
    )
)
