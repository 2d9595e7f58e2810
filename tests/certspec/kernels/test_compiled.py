"""Machine code on disk: rebuilt where a source of it changed, done without where it can't be
written."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import certspec
from certspec.kernels.compiled import sources_of

PACKAGE = Path(certspec.__file__).parent
INNER = "from numba import njit\n\n@njit\ndef inner(x):\n    return x + STEP\n\nSTEP = 1\n"
OUTER = """
from certspec.kernels.compiled import compiled
from certspec.kernels.planted_inner import inner

@compiled
def outer(x):
    return inner(x)
"""
CALL = """
from certspec.kernels.planted import outer
print(outer(1), sum(outer.stats.cache_hits.values()))
"""
COMPILING = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if "\n@compiled\n" in path.read_text("utf-8")
)


@pytest.fixture
def copy(tmp_path):
    """A package certspec that holds ``compiled`` and a kernel in two files."""
    kernels = tmp_path / "certspec" / "kernels"
    kernels.mkdir(parents=True)
    for folder in (kernels.parent, kernels):
        (folder / "__init__.py").write_text("")
    (kernels / "compiled.py").write_bytes((PACKAGE / "kernels" / "compiled.py").read_bytes())
    (kernels / "planted_inner.py").write_text(INNER)
    (kernels / "planted.py").write_text(OUTER)
    (kernels / "unrelated.py").write_text("STEP = 5\n")
    return kernels


def run_outer(copy, **variables):
    """What outer(1) gives in a new process, and how often its machine code came from the disk."""
    settings = os.environ | {"NUMBA_CACHE_DIR": str(copy.parent.parent / "cache")} | variables
    done = subprocess.run(
        [sys.executable, "-B", "-c", CALL],
        cwd=copy.parent.parent,
        env=settings | {"PYTHONPATH": str(copy.parent.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, done.stdout.split()))


def test_where_no_cache_can_be_written_kernels_are_compiled_each_time(copy):
    (copy / "__pycache__").write_text("a file where a folder would have to be")
    nowhere = str(copy / "__pycache__" / "home")
    closed = {"NUMBA_CACHE_DIR": nowhere, "XDG_CACHE_HOME": nowhere, "HOME": nowhere}
    assert run_outer(copy, **closed) == (2, 0)
    assert run_outer(copy, **closed) == (2, 0)


def test_a_cache_that_goes_away_after_it_was_found_costs_only_a_compilation(copy):
    (copy / "planted.py").write_text(
        f"{OUTER}\nimport pathlib, shutil\nfolder = pathlib.Path(outer._cache.cache_path)\n"
        "shutil.rmtree(folder)\nfolder.write_text('')\n"
    )
    assert run_outer(copy) == (2, 0)


DAMAGED = """
import importlib
from pathlib import Path
from certspec.kernels import planted, planted_inner

def again():
    importlib.reload(planted_inner)
    importlib.reload(planted)
    return planted.outer(1), sum(planted.outer.stats.cache_hits.values())

def flipped(content):
    return content[:-200] + bytes([content[-200] ^ 1]) + content[-199:]

print(again(), again())
Path(planted.__file__).with_name("unrelated.py").write_text("STEP = 6")
print(again(), again())
for kind, damage in (
    ("nbi", lambda _: b""), ("nbi", lambda old: old[:-9]), ("nbi", lambda _: b"<html>"),
    ("nbc", lambda _: b""), ("nbc", lambda old: old[:-9]), ("nbc", flipped),
):
    [file] = Path("cache").rglob(f"*.{kind}")
    file.write_bytes(damage(file.read_bytes()))
    print(again(), again())
[code] = Path("cache").rglob("*.nbc")
former, source = code.read_bytes(), Path(planted_inner.__file__)
source.write_text(source.read_text().replace("STEP = 1", "STEP = 22"))
print(again(), again())
code.write_bytes(former)  # as if the disk had been full for the new one
print(again(), again())
"""


def test_an_edit_or_a_damaged_file_of_the_cache_costs_one_compilation_and_no_other_edit_does(copy):
    done = subprocess.run(
        [sys.executable, "-B", "-c", DAMAGED],
        cwd=copy.parent.parent,
        env=os.environ | {"NUMBA_CACHE_DIR": "cache", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    begun, other_edit, *damaged, edited, former = done.stdout.splitlines()
    assert [begun, other_edit] == ["(2, 0) (2, 1)", "(2, 1) (2, 1)"]
    assert damaged == ["(2, 0) (2, 1)"] * 6
    assert [edited, former] == ["(23, 0) (23, 1)"] * 2


@pytest.mark.parametrize("module", COMPILING)
def test_a_key_covers_every_import_at_the_top_of_a_source(module):
    found = set(sources_of(module))
    for source in found:
        for node in ast.parse(source.read_text("utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", ())]
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("certspec"):
                names = [f"{node.module}.{name}" for name in names] + [node.module or ""]
            for name in names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                path = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
                assert not (name.startswith("certspec") and path.exists()) or path in found


def test_a_key_covers_the_generated_kernels_of_a_module_that_loads_some():
    names = {path.name for path in sources_of("certspec.kernels.numba.rows")}
    generated = {path.name for path in (PACKAGE / "kernels" / "generated").glob("*_numba.py")}
    assert generated and {"constants.py", *generated} <= names
    assert "loading.py" not in {path.name for path in sources_of("certspec.models.cpu.forward")}
