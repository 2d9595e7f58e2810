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
        _count_by_item()
        _stay_interpreting()
        _remember_types()


def _count_by_item() -> None:
    """A loop's bound is an array of one number, of which Triton 3.6 asks int(); numpy 2.4 has that
    for arrays without a dimension only."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if patch.__name__ == "patch_and_count":
        return

    def patch_and_count(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patch_and_count


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


def _remember_types() -> None:
    """The interpreter describes each shape and type anew for each number that it computes, a
    quarter of the time of small kernels; here it remembers what it said of a shape."""
    import numpy as np
    from triton.language import core
    from triton.runtime import interpreter

    if hasattr(interpreter, "_describe_type"):
        return
    describe = interpreter._describe_type = interpreter._get_np_dtype
    make_block, make_tensor = core.block_type.__init__, core.tensor.__init__
    described: dict[str, Any] = {}
    blocks: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    tensors: dict[int, tuple[Any, Any, Any]] = {}  # by the identity of a shape, which is kept

    def describe_once(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, core.block_type) else kind
        if isinstance(scalar, core.pointer_type):
            return np.dtype(np.uint64)
        if scalar.name not in described:
            described[scalar.name] = describe(scalar)
        return described[scalar.name]

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple([getattr(extent, "value", extent) for extent in shape])
        if key not in blocks:
            make_block(self, element_ty, shape)
            blocks[key] = self.shape, self.numel, str(self.shape)
        self.element_ty = element_ty
        self.shape, self.numel, text = blocks[key]
        self.name = f"<{text}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        extents = type.shape if type.is_block() else None
        if id(extents) not in tensors:
            make_tensor(self, handle, type)
            tensors[id(extents)] = extents, self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        _, self.numel, self.shape = tensors[id(extents)]

    interpreter._get_np_dtype = describe_once
    core.block_type.__init__, core.tensor.__init__ = block, tensor
