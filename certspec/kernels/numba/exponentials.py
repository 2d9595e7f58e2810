"""exp and expm1 in float64 as straight-line arithmetic, which LLVM turns into vector instructions;
numba only. Both are within 4 ulp (the bound that the certificates' error model assumes) by the
argument in ``_scale_and_remainder``."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import register_jitable

__all__ = ["LOWEST", "exp_of_gap", "expm1_clamped"]

# numba hands these functions the typing context itself, which its type hints leave to the caller
intrinsic: Any = extending.intrinsic

LOWEST = -700.0  # exp of a lower gap counts as 0: e^-700 < 1e-304
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, held in the low bits
_PER_LOG2 = 1.0 / math.log(2.0)
_LOG2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 33 bits: a product with |k| < 2^11 is exact
_LOG2_LOW = float.fromhex("0x1.a39ef35793c76p-33")


@intrinsic
def _bits_of(typingctx, value):
    """The 64 bits of a float64 as an int64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _float_of(typingctx, bits):
    """The float64 that has these 64 bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def _fma(typingctx, factor, other, term):
    """factor * other + term rounded once: the machine's instruction where it has one, exact to the
    bit anywhere."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@register_jitable(error_model="numpy")
def _scale_and_remainder(x):
    """(2^k, expm1(r)) with x = k log 2 + r, |r| <= log(2)/2 + 2^-50, for -745 < x < 700.

    The Taylor polynomial of degree 13 leaves out less than |r|^14/14! (1 + |r|/14) < 2^-56 |r|;
    Horner's scheme ends in r + r^2 (...). All errors together stay within 4 ulp of exp(x) (claim
    kernel.exp)."""
    shifted = _fma(x, _PER_LOG2, _SHIFT)
    k = shifted - _SHIFT
    r = _fma(-k, _LOG2_LOW, x - k * _LOG2_HIGH)
    scale = _float_of((_bits_of(shifted) + 1023) << 52)
    tail = 1.0 / 6227020800.0
    tail = _fma(tail, r, 1.0 / 479001600.0)
    tail = _fma(tail, r, 1.0 / 39916800.0)
    tail = _fma(tail, r, 1.0 / 3628800.0)
    tail = _fma(tail, r, 1.0 / 362880.0)
    tail = _fma(tail, r, 1.0 / 40320.0)
    tail = _fma(tail, r, 1.0 / 5040.0)
    tail = _fma(tail, r, 1.0 / 720.0)
    tail = _fma(tail, r, 1.0 / 120.0)
    tail = _fma(tail, r, 1.0 / 24.0)
    tail = _fma(tail, r, 1.0 / 6.0)
    tail = _fma(tail, r, 0.5)
    return scale, _fma(r * r, tail, r)


@register_jitable(error_model="numpy")
def exp_of_gap(x):
    """exp(x) for x <= 0; exactly 1 at 0, exactly 0 below -700 (-inf included) and for a NaN."""
    scale, remainder = _scale_and_remainder(x)
    return _fma(scale, remainder, scale) if x >= LOWEST else 0.0


@register_jitable(error_model="numpy")
def expm1_clamped(x):
    """expm1(x) for x <= 690; -1 below -50. 2^k E + (2^k - 1): the subtraction is exact where k >=
    -52."""
    scale, remainder = _scale_and_remainder(x if x > -50.0 else -50.0)
    return _fma(scale, remainder, scale - 1.0)
