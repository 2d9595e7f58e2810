"""Two processes that need the same function at the same time compile it once."""

import os
import subprocess
import sys

import pytest

from tests.rooms import ROOT

SCRIPT = """
import sys
from numba import njit
from tests.support.one_compiler import compile_in_turn
compile_in_turn()

@njit(cache=True)
def folded(x):
    return 1 if x < 1 else x * folded(x - 1)  # compiles itself while it is compiled

sys.stdin.readline()
print(folded(3), sum(folded.stats.cache_misses.values()))
"""


def test_of_two_processes_one_compiles(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    both = [
        subprocess.Popen(
            [sys.executable, path],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=120)[0].strip() for process in both)
    assert said == ["6 0", "6 1"]
