"""Runs the GPU engine's cases: on a GPU where there is one, otherwise in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[4]


@pytest.mark.triton
@pytest.mark.parametrize("name", ["cuda_cases.py", "round_cases.py", "tree_cases.py"])
def test_the_gpu_engine_agrees_with_transformers_and_its_rounds_with_the_loop(name: str) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    cases = Path(__file__).with_name(name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
