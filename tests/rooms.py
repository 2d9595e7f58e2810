"""The rooms of the house, read from the source text: which may import which, drawn by floor.

``python -m tests.rooms`` prints the floors and arrows; ``test_rooms.py`` asserts what it finds. A room is a folder (or
one of the small files at the top of ``certspec``). Rooms that a room may import are listed once, in ``MAY_IMPORT``; a
room may always import itself and the rooms below those that it names are not implied: an arrow is allowed or it is not.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Each room, the lowest first, with the rooms it may import.
_BASE = {"errors", "rules"}
_KERNELS = {
    *_BASE,
    "kernels",
    "kernels.generated",
    "kernels.numba",
    "kernels.torch",
    "kernels.triton",
}
_MODELS = {"models", "models.cpu", "models.cuda"}
_MADE = {*_KERNELS, "certificates", "runs"}
MAY_IMPORT: dict[str, set[str]] = {"errors": set(), "rules": {"errors"}}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the three packages, by dotted name."""
    for top in ("derivations", "certspec", "proofs_check"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def room_of(module: str, names: set[str]) -> str:
    parts = module.split(".")
    is_package = any(n.startswith(module + ".") for n in names)
    if not is_package:
        parts = parts[:-1] if len(parts) > 2 else parts
    return ".".join(parts)


def imports(module: str, source: str, names: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for a in node.names:
                full = f"{node.module}.{a.name}"
                found.add(full if full in names else node.module)
    return {f for f in found if f in names}


if __name__ == "__main__":
    mods = dict(modules())
    names = set(mods)
    arrows = defaultdict(set)
    for m, p in mods.items():
        a = room_of(m, names)
        for t in imports(m, p.read_text("utf-8"), names):
            b = room_of(t, names)
            if a != b:
                arrows[a, b].add((m, t))
    rooms = {room_of(m, names) for m in mods}
    # strongly connected components by repeated removal
    below = {r: {b for (a, b) in arrows if a == r} for r in rooms}
    floor = {}
    left = set(rooms)
    n = 0
    while left:
        n += 1
        level = {r for r in left if not (below[r] & left - {r})}
        if not level:
            print("CIRCLE among", sorted(left))
            for (a, b), w in sorted(arrows.items()):
                if a in left and b in left:
                    print("  ", a, "->", b, len(w), sorted(w)[:2])
            break
        for r in level:
            floor[r] = n
        print(n, sorted(level))
        left -= level
