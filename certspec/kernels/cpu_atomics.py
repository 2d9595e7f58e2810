"""Atomic counters for numba code that several threads run at once. This module knows nothing about models.

numba's cache does not watch this file: after an edit here, touch kernels/cpu_threads.py, engine/cpu_forward.py,
decoding/growth_kernels.py and decoding/round_kernels.py so that their caches are rebuilt.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["fetch_add", "load_shared", "yield_core"]

_intrinsic: Any = intrinsic  # numba calls the functions below with its own arguments, unknown to type checkers


@_intrinsic
def fetch_add(typingctx, array, index, amount):
    """Atomically add ``amount`` to ``array[index]`` (int64) and return what it held before."""
    signature = types.int64(array, types.int64, types.int64)

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), args[2], "seq_cst")

    return signature, codegen


@_intrinsic
def load_shared(typingctx, array, index):
    """Read ``array[index]`` (int64) so that what its writer wrote before is seen too."""

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "seq_cst", 8)

    return types.int64(array, types.int64), codegen


@_intrinsic
def yield_core(typingctx):
    """Let another thread run on this core (POSIX sched_yield)."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        function = cgutils.get_or_insert_function(builder.module, kind, "sched_yield")
        return builder.call(function, [])

    return types.int32(), codegen
