"""The kernels of rounds compile for a GPU, also where there is none, see hopper.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def test_every_kernel_of_a_round_compiles_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("hopper.py"))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = {line.split()[0] for line in done.stdout.splitlines()} - {"replay_kernel"}
    sources = (ROOT / "certspec" / "models" / "cuda").glob("triton_*.py")
    wanted = {
        line.removeprefix("def ").split("(")[0]
        for source in sources
        for line in source.read_text().splitlines()
        if line.startswith("def ") and "_kernel(" in line
    }
    assert wanted == compiled and len(wanted) > 10
