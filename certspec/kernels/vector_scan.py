"""Which of many numbers reach a bound, as vector instructions: a mask of SCANNED at a time. Exact, like the scalar
comparison. This module knows nothing about rows, models or rules."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

from certspec.kernels.vector_stream import call_llvm

__all__ = ["SCANNED", "lowest_bit", "num_bits", "reaching"]

SCANNED = 64  # numbers of a mask
_LANES = 8
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
intrinsic: Any = extending.intrinsic  # numba hands these functions the typing context, which its hints leave to callers


@intrinsic
def reaching(typingctx, array, index, bound):
    """A mask (int64) of which of the SCANNED elements from ``index`` on, counted through all dimensions of a contiguous
    float array, are at least ``bound``, a number of the array's type: bit i for element index + i. No NaN is."""

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(signature.args[0].dtype)
        vector, size = ir.VectorType(kind, _LANES), signature.args[0].dtype.bitwidth // 8
        start = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        least = context.cast(builder, args[2], types.float64, signature.args[0].dtype)
        undefined = ir.Constant(vector, ir.Undefined)
        least = builder.insert_element(undefined, least, _INT32(0))
        least = builder.shuffle_vector(least, undefined, ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES))
        mask = _INT64(0)
        for first in range(0, SCANNED, _LANES):
            place = builder.bitcast(builder.gep(start, [_INT64(first)]), vector.as_pointer())
            found = builder.fcmp_ordered(">=", builder.load(place, align=size), least)
            bits = builder.zext(builder.bitcast(found, ir.IntType(_LANES)), _INT64)
            mask = builder.or_(mask, builder.shl(bits, _INT64(first)))
        return mask

    return types.int64(array, types.int64, types.float64), codegen


@intrinsic
def lowest_bit(typingctx, mask):
    """The number of the lowest bit that is set in ``mask`` (int64, not 0)."""

    def codegen(context, builder, signature, args):
        return call_llvm(builder, "llvm.cttz.i64", _INT64, args[0], ir.IntType(1)(1))

    return types.int64(types.int64), codegen


@intrinsic
def num_bits(typingctx, mask):
    """How many bits are set in ``mask`` (int64)."""

    def codegen(context, builder, signature, args):
        return call_llvm(builder, "llvm.ctpop.i64", _INT64, args[0])

    return types.int64(types.int64), codegen
