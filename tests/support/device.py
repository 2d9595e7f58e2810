"""Where Triton's tests run: on a GPU where there is one, else in its interpreter, which must be
chosen before Triton is first imported."""

from __future__ import annotations

import os
from typing import Any

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
        _stay_interpreting()


def _stay_interpreting() -> None:
    """The interpreter puts its own functions into Triton's language before each launch and takes
    them out after it, a fifth of the time of small kernels; here they stay."""
    from triton import language
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    if patch is None or hasattr(patch, "kept"):
        return
    kept: dict[Any, Any] = {}

    def patch_once(function: Any) -> Any:
        seen = list(function.__globals__.values())
        key = tuple(any(v is each for v in seen) for each in (language, language.core))
        if key not in kept:
            kept[key] = patch(function)
        return _Kept

    patch_once.kept = kept  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_once


class _Kept:
    """What would undo it."""

    @staticmethod
    def restore() -> None: ...
