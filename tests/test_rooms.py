"""Who may import whom, read from the source text: derivations, certspec and proofs_check are three
floors."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "derivations": {
        "certspec",
        "proofs_check",
        "mpmath",
        "flint",
        "numba",
        "torch",
        "triton",
        "transformers",
    },
    "certspec": {"derivations", "proofs_check", "sympy", "mpmath", "flint"},
    "proofs_check": {"numba", "torch", "triton", "transformers"},
}
# Heavy packages that importing certspec must not load.
LAZY_ONLY = {"numba", "torch", "triton", "transformers", "matplotlib", "pyarrow"}


def imported_packages(source: str) -> set[str]:
    """Top-level packages that a module imports anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def trespasses(floor: str, source: str) -> set[str]:
    return imported_packages(source) & FORBIDDEN[floor]


@pytest.mark.parametrize("floor", FORBIDDEN)
def test_no_module_imports_what_its_floor_forbids(floor):
    found = {
        str(path.relative_to(ROOT)): sorted(trespasses(floor, path.read_text("utf-8")))
        for path in sorted((ROOT / floor).rglob("*.py"))
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("floor", "source"),
    [
        ("certspec", "def f():\n    import sympy"),
        ("certspec", "from derivations.language.claim import Claim"),
        ("derivations", "import certspec.rules as r"),
        ("derivations", "from mpmath import mp"),
        ("proofs_check", "if True:\n    import torch.nn"),
    ],
)
def test_the_boundary_test_notices_a_trespass(floor, source):
    assert trespasses(floor, source)


def test_the_boundary_test_lets_neighbours_pass():
    assert (
        trespasses(
            "proofs_check",
            "from derivations.language.claim import Claim\nfrom proofs_check import outcome",
        )
        == set()
    )
    assert trespasses("certspec", "import numpy\nfrom certspec.rules import Rule") == set()


def test_importing_certspec_loads_nothing_heavy():
    import subprocess
    import sys

    heavy = sorted(LAZY_ONLY | {"sympy", "mpmath"})
    code = f"import sys, certspec; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"
