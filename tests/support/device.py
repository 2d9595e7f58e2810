"""Where Triton's tests run: on a GPU where there is one, else in its interpreter, which must be
chosen before Triton is first imported."""

from __future__ import annotations

import os

import torch

__all__ = ["DEVICE", "ON_GPU", "interpret_without_gpu", "start_triton"]

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def interpret_without_gpu() -> None:
    """For this process and those that it starts."""
    if ON_GPU:
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"


def start_triton() -> None:
    """What a test that runs Triton needs: the package, and quick reductions in the interpreter."""
    import pytest

    pytest.importorskip("triton")
    if not ON_GPU:
        from proofs_check.hunts.interpreter_reductions import reduce_by_halves

        reduce_by_halves()
