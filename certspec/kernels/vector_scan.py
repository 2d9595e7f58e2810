"""Which of many numbers reach a bound, and the larger ones of two arrays, as vector instructions. Exact, like scalar
comparisons. This module knows nothing about rows, models or rules."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

from certspec.kernels.numba.vectors import call_llvm

__all__ = ["AT_ONCE", "SCANNED", "keep_larger", "lowest_bit", "num_bits", "reaching"]

SCANNED = 64  # numbers of a mask
AT_ONCE = 8  # numbers of a vector
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
intrinsic: Any = extending.intrinsic  # numba hands these functions the typing context, which its hints leave to callers


@intrinsic
def reaching(typingctx, array, index, bound):
    """A mask (int64) of which of the SCANNED elements from ``index`` on, counted through all dimensions of a contiguous
    float array, are at least ``bound``, a number of the array's type: bit i for element index + i. No NaN is."""

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(signature.args[0].dtype)
        vector, size = ir.VectorType(kind, AT_ONCE), signature.args[0].dtype.bitwidth // 8
        start = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        least = context.cast(builder, args[2], types.float64, signature.args[0].dtype)
        undefined = ir.Constant(vector, ir.Undefined)
        least = builder.insert_element(undefined, least, _INT32(0))
        least = builder.shuffle_vector(least, undefined, ir.Constant(ir.VectorType(_INT32, AT_ONCE), [0] * AT_ONCE))
        mask = _INT64(0)
        for first in range(0, SCANNED, AT_ONCE):
            place = builder.bitcast(builder.gep(start, [_INT64(first)]), vector.as_pointer())
            found = builder.fcmp_ordered(">=", builder.load(place, align=size), least)
            bits = builder.zext(builder.bitcast(found, ir.IntType(AT_ONCE)), _INT64)
            mask = builder.or_(mask, builder.shl(bits, _INT64(first)))
        return mask

    return types.int64(array, types.int64, types.float64), codegen


@intrinsic
def keep_larger(typingctx, array, index, largest, place):
    """Makes each of the AT_ONCE elements of ``largest`` from ``place`` on the larger one of itself and of its
    counterpart in ``array`` from ``index`` on, both contiguous and of one float type. A NaN is never the larger one."""

    def codegen(context, builder, signature, args):
        kinds = (signature.args[0], signature.args[2])
        vector = ir.VectorType(context.get_value_type(kinds[0].dtype), AT_ONCE)
        places = [
            builder.bitcast(builder.gep(context.make_array(kind)(context, builder, values).data, [first]),
                            vector.as_pointer())
            for kind, values, first in zip(kinds, args[::2], args[1::2], strict=True)
        ]  # fmt: skip
        size = kinds[0].dtype.bitwidth // 8
        given, kept = (builder.load(each, align=size) for each in places)
        builder.store(builder.select(builder.fcmp_ordered(">", given, kept), given, kept), places[1], align=size)
        return context.get_dummy_value()

    return types.void(array, types.int64, largest, types.int64), codegen


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
