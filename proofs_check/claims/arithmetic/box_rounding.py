"""Checks of the room for roundings in a box's printed formulas: counted on the texts, and pushed to
the wrong side at points."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import mpmath
import sympy

from derivations.arithmetic.box_rounding import BOX_ROUNDING
from derivations.kernels.constants import CONSTANTS
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed
from proofs_check.methods.numbers import MP, interval_digits, to_mp
from proofs_check.methods.printed import all_printed
from proofs_check.methods.roundings import Counting, of_counts, pushed
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

UNIT = F(1, 2**53)
BESIDE = 3  # a sum with the likeliest token's share, and the certain part's difference, of box_mass
_FAR = F(2**40)
_RANGES = {
    "cap": (F(1, 2**40), F(2)),
    "scale": (F(0), F(1)),
    "entropy_scale": (F(0), F(2)),
    "normaliser": (F(1), _FAR),
    "entropy_ceiling": (F(-100), F(100)),
    "growth": (F(1), F(2**20)),
    "error": (F(0), F(1, 64)),
    "tilt": (F(-100), F(100)),
    "mass": (F(1, 2**40), _FAR),
    "radius": (F(0), F(10)),
    "up_probs": (F(0), F(1)),
    "probs": (F(0), F(1)),
    "up_products": (-_FAR, _FAR),
    "products": (-_FAR, _FAR),
}


def _count(name: str, offset: tuple[F, F] = (F(0), F(0)), **options: Any) -> float:
    text, counting = all_printed()[f"robust_torch.{name}"], Counting(**options)
    ranges = _RANGES | {"offset": offset}
    letters = [counting.letter(letter, *ranges[letter]) for letter in text.arguments]
    return counting.worst(text, letters, {})


@check("kernel.box", method="steps")
def prove_room(formula: Formula, effort: Effort) -> Evidence:
    """What the code adds is the constant of this claim."""
    error = sympy.Symbol("e", positive=True)
    added = next(item.value for item in CONSTANTS if item.name == "ROBUST_ROUNDINGS")
    stated = [("the room", formula(sympy, error), error + sympy.Rational(added, 2**53))]
    return prove_identities(BOX_ROUNDING, stated, [{error: sympy.Rational(1, 99)}])


@check("kernel.box", method="enclosure")
def count_box(formula: Formula, effort: Effort) -> Evidence:
    """The texts' own counts: of box_threshold for 0 < offset, where two differences cancel at most
    by 2; for offset <= 0, of the text with sums for differences; and of the other two likewise."""
    counts = {
        "box_threshold": _count("box_threshold", (UNIT, F(2)), ratios=(2.0, 1.0)),
        "box_threshold, offset <= 0": _count("box_threshold", (F(-1), F(0)), majorant=True),
        "box_mass": 3 * _count("box_mass", majorant=True) + BESIDE,
        "box_divergence": _count("box_divergence", majorant=True),
    }

    def spare(n: Any, error: Any) -> Any:  # linear in the error: its ends decide
        most = n.number(F(max(counts.values())) * UNIT)
        return ((1 + formula(n, error)) * (1 - most) - (1 + error)) * 2**53

    told = ", ".join(f"{name} {count:.0f} u" for name, count in counts.items())
    with interval_digits(40):
        return of_counts(all_enclosed([(told, spare, [(end, end)]) for end in (0, F(1, 64))]))


_E = F(1, 2**40)
# cap, scale, offset, entropy_scale, entropy_ceiling, growth: where each part is the least
_PARTS: tuple[tuple[str, tuple[F, ...]], ...] = (
    ("cap", (F(3, 10), _FAR, F(0), _FAR, F(0), F(11, 10))),
    ("entropy", (_FAR, _FAR, F(0), F(3, 10), F(-1, 3), F(11, 10))),
    ("0 < offset", (_FAR, F(1, 3), F(1, 5), _FAR, F(0), F(11, 10))),
    ("offset < 0", (_FAR, F(1), F(-3, 10), _FAR, F(0), F(11, 10))),
    ("scale + offset < 0", (_FAR, F(1, 10), F(-1, 5), _FAR, F(0), F(11, 10))),
)


@tallied(
    "kernel.box",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(2) ** -60,
    told="every operation pushed downwards",
)
def push_downwards(formula: Formula, effort: Effort) -> Cases:
    """box_threshold, raised, against itself at either end of the normaliser's error; box_divergence
    and what the code adds to it, against itself."""
    text = all_printed()["robust_torch.box_threshold"]
    total = F(5, 2)
    for name, (*rule, ceiling, growth) in _PARTS:
        for error in (F(0), _E):
            room = F(formula(MP, error))
            moved, _ = pushed(MP, text, (*rule, total, ceiling, growth, room), up=False)
            for end in {total * (1 + error), total * (1 - error)}:
                _, exact = pushed(MP, text, (*rule, end, ceiling, growth, F(0)))
                yield f"{name}, e={float(error):.3g}", (moved - exact) / abs(exact), 0, 0
    text = all_printed()["robust_torch.box_divergence"]
    for tilt, mass in ((F(1, 3), F(1, 5)), (F(-2), F(3))):
        moved, exact = pushed(MP, text, (tilt, mass), up=False)
        room = to_mp(F(formula(MP, F(0)))) * (abs(to_mp(tilt)) + abs(mpmath.log(to_mp(mass))))
        yield f"box_divergence at {tilt}, {mass}", moved + room, exact, exact
