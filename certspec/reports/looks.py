"""How a rule's line looks: the same in every picture and on both sides of a page. The family sets
the colour and the marker, the parameter sets the shade and the dashes: ``tree:2`` is dark blue and
solid, ``tree:4`` lighter and dashed, whatever other rules a run has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["LOOK", "looks_of", "pyplot_for_files"]

LOOK: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}

# Okabe and Ito's palette, told apart by colour-blind readers; markers are different too.
_FAMILIES = {
    "strict": ("#000000", "o"),
    "additive": ("#E69F00", "s"),
    "multiplicative": ("#56B4E9", "^"),
    "top": ("#009E73", "D"),
    "entropy": ("#D55E00", "v"),
    "tree": ("#0072B2", "<"),
    "gated": ("#CC79A7", "X"),
    "absolute": ("#7F7F7F", "*"),
}
_OTHER = ("#8C6D1F", "h")
_SHADES: tuple[tuple[float, Any], ...] = (  # share of white, dashes
    (0.0, "-"),
    (0.2, "--"),
    (0.35, "-."),
    (0.48, ":"),
    (0.55, (0, (6, 2, 1, 2, 1, 2))),
    (0.6, (0, (3, 4))),
)


def looks_of(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """By rule label, what matplotlib's ``plot`` takes. Only where two rules of a family are so near
    that they would look alike does the one with the larger parameter take the next shade."""
    looks: dict[str, dict[str, Any]] = {}
    taken: dict[str, set[int]] = {}
    for label in sorted(set(labels), key=lambda label: (_size(label), label)):
        family = label.partition(":")[0]
        shades = taken.setdefault(family, set())
        free = [_shade(label) + step for step in range(len(_SHADES))]
        place = next((s for s in free if s % len(_SHADES) not in shades), free[0]) % len(_SHADES)
        shades.add(place)
        colour, marker = _FAMILIES.get(family, _OTHER)
        white, dashes = _SHADES[place]
        looks[label] = {
            "color": _mixed_with_white(colour, white),
            "ls": dashes,
            "marker": marker,
            "ms": 4.5,
            "lw": 1.5,
        }
    return looks


def pyplot_for_files() -> Any:
    """matplotlib's pyplot, which here draws into files alone: ``MPLBACKEND``, which names a window
    system and is an error at import where there is none of that name, isn't asked."""
    asked = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if asked is not None:
            os.environ["MPLBACKEND"] = asked
    matplotlib.use("Agg", force=True)
    from matplotlib import pyplot

    return pyplot


def _size(label: str) -> float:
    """The first number of a label; 0 where there is none."""
    found = re.search(r"\d+(\.\d+)?(e-?\d+)?", label.partition(":")[2])
    return float(found[0]) if found else 0.0


def _shade(label: str) -> int:
    """Sixths of a probability; doublings of a count from 2 on."""
    size = _size(label)
    return int(size).bit_length() - 2 if size >= 2.0 else int(6.0 * min(size, 0.99))


def _mixed_with_white(colour: str, share: float) -> str:
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)
