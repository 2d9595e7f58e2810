"""Who may import whom, read from the source text, and that a trespass would be noticed."""

import subprocess
import sys

import pytest

from tests import rooms
from tests.rooms import MAY_IMPORT, MAY_USE, MOST_FLOORS, PACKAGES, ROOT, Source

SOURCES = rooms.sources()
MODULES = {source.name for source in SOURCES}
# Heavy packages that importing certspec must not load, nor reading a run and reporting it torch.
HEAVY = {"numba", "torch", "triton", "transformers", "matplotlib", "pyarrow", "sympy", "mpmath"}


def trespasses(module: str, text: str) -> list[str]:
    return rooms.trespasses(Source(module, text), MODULES)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_the_table_allows(room):
    found = {
        source.name: rooms.trespasses(source, MODULES) for source in SOURCES if source.room == room
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_module_lies_in_a_room_of_the_table_and_every_room_holds_one():
    assert {source.room for source in SOURCES} == set(MAY_IMPORT)


def test_the_table_itself_runs_downhill():
    """A room names only rooms above it in the list, so what the table allows holds no circle."""
    order = list(MAY_IMPORT)
    for room, below in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(room) for other in below), room
    assert set(MAY_USE) <= set(order)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rooms_of_a_package_stand_on_ten_floors_or_fewer(package):
    levels = rooms.floors(rooms.arrows(SOURCES), rooms.rooms_of(package))
    assert 1 < len(levels) <= MOST_FLOORS


@pytest.mark.parametrize(
    ("module", "text", "trespass"),
    [
        ("certspec.errors", "from certspec.rules import Rule", "certspec.rules"),
        (
            "certspec.runs.table",
            "def f():\n    from certspec.decoding import loop",
            "certspec.decoding",
        ),
        ("certspec.models.cuda.runner", "import certspec.decoding.loop as l", "certspec.decoding"),
        (
            "certspec.scoring.run",
            "from certspec.decoding.verify import accepts",
            "certspec.decoding",
        ),
        ("certspec.scoring.run", "import certspec as cs", "certspec"),
        ("certspec.scoring.run", "from certspec import __version__", "certspec"),
        ("certspec.decoding.loop", "from ..studies.bench import decode", "certspec.studies"),
        ("certspec.logs.reading", "_LAZY = {'x': 'certspec.scoring.run'}", "certspec.scoring"),
        ("certspec.reports.plots", "if TYPE_CHECKING:\n    import certspec.cli", "certspec.cli"),
        (
            "certspec.certificates.pools",
            "from derivations.language.claim import C",
            "derivations.language",
        ),
        ("certspec.kernels.reference", "from proofs_check import outcome", "proofs_check.outcome"),
        ("certspec.attic.old", "from certspec.errors import InvalidArgument", "certspec.errors"),
        ("derivations.margins.margins", "import certspec.rules as r", "certspec.rules"),
        (
            "derivations.formulas.pools",
            "from derivations.kernels import emit",
            "derivations.kernels",
        ),
        (
            "proofs_check.methods.cases",
            "from certspec.kernels import reference",
            "certspec.kernels",
        ),
        ("certspec.kernels.reference", "def f():\n    import sympy", "sympy"),
        ("certspec.certificates.pools", "from mpmath import mp", "mpmath"),
        ("certspec.decoding.loop", "import triton.language as tl", "triton"),
        (
            "certspec.runs.table",
            "try:\n    import transformers\nexcept ImportError: ...",
            "transformers",
        ),
        ("certspec.rules", "import numpy as np", "numpy"),
        ("certspec.reports.figures", "import torch", "torch"),
        ("derivations.margins.margins", "from mpmath import mp", "mpmath"),
        ("derivations.kernels.emit", "import numba", "numba"),
        ("proofs_check.claims.strict", "if True:\n    import torch.nn", "torch"),
        ("proofs_check.methods.numbers", "from triton import language", "triton"),
    ],
)
def test_a_planted_trespass_is_noticed(module, text, trespass):
    assert [wrong.split(" -> ")[1] for wrong in trespasses(module, text)] == [trespass]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("certspec.decoding.loop", "import numpy\nfrom certspec.rules import Rule"),
        ("certspec.models.cuda.runner", "from certspec.models import staging\nimport triton"),
        (
            "certspec.models.cuda.runner",
            "from .. import staging\nfrom ...kernels.torch import rows",
        ),
        ("certspec.cli.score", "import certspec\nfrom certspec.scoring.run import score"),
        ("certspec.__main__", "from certspec.cli import main"),
        ("certspec.kernels.loading", "name = 'certspec'  # of the installed package"),
        ("proofs_check.hunts.rows", "import torch\nfrom certspec.kernels.numba import rows"),
        ("proofs_check.claims.strict", "from derivations.language.claim import Claim"),
    ],
)
def test_neighbours_pass(module, text):
    assert trespasses(module, text) == []


def test_a_circle_has_no_floors():
    arrows = {("hall", "attic"), ("attic", "stairs"), ("stairs", "hall"), ("hall", "cellar")}
    with pytest.raises(ValueError, match=r"\['attic', 'hall', 'stairs'\]"):
        rooms.floors(arrows, ["cellar", "hall", "attic", "stairs"])
    assert rooms.floors(arrows - {("stairs", "hall")}, ["cellar", "hall", "stairs", "attic"]) == [
        ["cellar", "stairs"],
        ["attic"],
        ["hall"],
    ]


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("certspec", HEAVY),
        ("certspec.cli", HEAVY),
        (
            "certspec.runs.table, certspec.reports.run_report, certspec.reports.advising.advice",
            {"torch"},
        ),
    ],
)
def test_importing_loads_nothing_heavy(modules, heavy):
    code = f"import sys, {modules}; print([m for m in {sorted(heavy)!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"
