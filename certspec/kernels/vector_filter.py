"""The float32 filter's loop over logits on the CPU, written as vector instructions: exponentials and their sums, each
group of GROUP columns in float32 and then added to float64. LLVM splits the vectors to the machine's width; the order
of every sum is the one written here. This module knows nothing about rows, models or rules.

    exp(z) = 2^k P(r),  k = round(z / log 2),  r = z - k log 2,  P(r) = 1 + r + r^2 (c_0 + c_1 r + c_2 r^2 + c_3 r^3)

No logit is moved to a reference first: 2^(k - K) has an integer reference K, which costs no rounding. What is rounded,
in u = 2^-24, is bounded by claim kernel.exp32; ``filter_bounds`` has the constants. There are no fast-math flags.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

__all__ = ["COEFFICIENTS", "FILTER_SUMS", "GROUP", "LANES32", "SHIFT32", "WIDE", "filter_sums"]

LANES32 = 32  # float32 numbers of a vector: as many chains of dependent steps side by side as latencies ask for
WIDE = 8  # float64 numbers of an accumulator
GROUP = 64  # columns summed in float32
FILTER_SUMS = 5  # accumulators: w, w g, x, w d, w |d|
SHIFT32 = 1.5 * 2.0**23  # adding it rounds to an integer, held in the low bits
COEFFICIENTS = tuple(map(float.fromhex, ("0x1.fffdf8p-2", "0x1.5557b4p-3", "0x1.572c62p-5", "0x1.10617ap-7")))
PER_LOG2, LOG2 = float.fromhex("0x1.715476p+0"), float.fromhex("0x1.62e430p-1")  # log2 e and log 2 in float32
_AHEAD = 512  # columns between what is summed and what is fetched
_LINE = 16  # float32 numbers of a cache line
_FLOAT, _DOUBLE, _INT32, _INT64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS, _DOUBLES = (ir.VectorType(kind, size) for kind, size in
                            ((_FLOAT, LANES32), (_INT32, LANES32), (_DOUBLE, WIDE)))  # fmt: skip

# numba hands these functions the typing context itself, which its type hints leave to the caller
intrinsic: Any = extending.intrinsic


def _all_lanes(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES32)


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [each.type for each in arguments]), name)
    return builder.call(function, arguments)


def _fma(builder: Any, factor: Any, other: Any, term: Any) -> Any:
    return _call(builder, f"llvm.fma.v{LANES32}f32", _FLOATS, factor, other, term)


def _spread(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(undefined, scalar, _INT32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT32, LANES32), [0] * LANES32))


def _halves(builder: Any, vector: Any) -> list[Any]:
    lanes = vector.type.count // 2
    patterns = (ir.Constant(ir.VectorType(_INT32, lanes), list(range(first, first + lanes))) for first in (0, lanes))
    return [builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), pattern) for pattern in patterns]


def _summed(builder: Any, vector: Any) -> Any:
    """The lanes added by halves until WIDE of them are left, as float64."""
    while vector.type.count > WIDE:
        vector = builder.fadd(*_halves(builder, vector))
    return builder.fpext(vector, _DOUBLES)


def _exponentials(builder: Any, logits: list[Any], shifts: list[Any]) -> list[Any]:
    """2^-K exp of vectors of logits, ``shifts`` = SHIFT32 - K, side by side, so that their latencies overlap."""
    shifted = [_fma(builder, z, _all_lanes(PER_LOG2), shift) for z, shift in zip(logits, shifts, strict=True)]
    multiples = [builder.fsub(value, shift) for value, shift in zip(shifted, shifts, strict=True)]
    rests = [_fma(builder, k, _all_lanes(-LOG2), z) for k, z in zip(multiples, logits, strict=True)]
    values = [_all_lanes(COEFFICIENTS[-1])] * len(logits)
    for coefficient in (*COEFFICIENTS[-2::-1], 1.0, 1.0):
        values = [_fma(builder, value, r, _all_lanes(coefficient)) for value, r in zip(values, rests, strict=True)]

    def scale(value: Any, bits: Any) -> Any:  # adds k - K to the exponent: exact, the result is a normal number
        exponent = builder.shl(builder.bitcast(bits, _INTS), ir.Constant(_INTS, [23] * LANES32))
        return builder.bitcast(builder.add(exponent, builder.bitcast(value, _INTS)), _FLOATS)

    return [scale(value, bits) for value, bits in zip(values, shifted, strict=True)]


class _Source:
    """float32 logits from an element on."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> None:
        self.builder = builder
        self.start = builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])

    def load(self, index: Any) -> Any:
        place = self.builder.bitcast(self.builder.gep(self.start, [index]), _FLOATS.as_pointer())
        return self.builder.load(place, align=4)

    def fetch(self, index: Any) -> None:
        """Ask for the lines of the group at ``index``: memory then works while the sums do."""
        for line in range(0, GROUP, _LINE):
            place = self.builder.gep(self.start, [self.builder.add(index, _INT64(line))])
            address = self.builder.bitcast(place, ir.IntType(8).as_pointer())
            _call(self.builder, "llvm.prefetch.p0i8", ir.VoidType(), address, _INT32(0), _INT32(3), _INT32(1))


def _choose(builder: Any, relation: str, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered(relation, one, other), one, other)


def _fold(builder: Any, relation: str, vector: Any) -> Any:
    """The largest or least lane, as float64."""
    while vector.type.count > 1:
        vector = _choose(builder, relation, *_halves(builder, vector))
    return builder.fpext(builder.extract_element(vector, _INT32(0)), _DOUBLE)


@intrinsic
def filter_sums(
    typingctx, target, draft, offset, other_offset, num_groups, shift, other_shift, middle, between, sums, maxima,
    other_maxima, first,
):  # fmt: skip
    """Over ``num_groups`` groups of GROUP columns of float32 logits z and y: with w = 2^-K exp(z), x = 2^-K' exp(y),
    g = z - middle and d = (z - y) - between adds w, w g, x, w d and w |d| to the WIDE lanes of each of the FILTER_SUMS
    accumulators ``sums`` (float64). ``shift`` = SHIFT32 - K, which is float32 like ``middle`` and ``between``. Writes
    the groups' largest logits to ``maxima[first:]`` and ``other_maxima[first:]`` (float64); returns the least logit of
    either side, and the largest of either; of NaNs only the sums tell."""

    def codegen(context, builder, signature, args):
        kinds = signature.args
        sources = [_Source(context, builder, kinds[i], args[i], args[i + 2]) for i in (0, 1)]
        shifts = [_spread(builder, args[5]), _spread(builder, args[6])]
        centre, distance = _spread(builder, args[7]), _spread(builder, args[8])
        data = builder.bitcast(context.make_array(kinds[9])(context, builder, args[9]).data, _DOUBLES.as_pointer())
        places = [builder.gep(data, [_INT64(number)]) for number in range(FILTER_SUMS)]
        totals = [cgutils.alloca_once(builder, _DOUBLES) for _ in places]
        outputs = [
            builder.gep(context.make_array(kinds[i])(context, builder, args[i]).data, [args[12]]) for i in (10, 11)
        ]
        least = [cgutils.alloca_once(builder, _FLOATS) for _ in sources]
        largest = [cgutils.alloca_once(builder, _FLOATS) for _ in sources]
        for places_of, value in ((least, math.inf), (largest, -math.inf)):
            for place in places_of:
                builder.store(_all_lanes(value), place)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(place, align=8), total)
        with cgutils.for_range(builder, args[4]) as loop:
            start = builder.mul(loop.index, _INT64(GROUP))
            for source in sources:
                source.fetch(builder.add(start, _INT64(_AHEAD)))
            group: list[Any] = []
            highest: list[Any] = []
            lowest = [builder.load(place) for place in least]
            for step in range(0, GROUP, LANES32):
                z, y = (source.load(builder.add(start, _INT64(step))) for source in sources)
                lowest = [_choose(builder, "<", *each) for each in zip((z, y), lowest, strict=True)]
                pairs = zip((z, y), highest or (z, y), strict=True)
                highest = [_choose(builder, ">", *each) for each in pairs]
                weight, other = _exponentials(builder, [z, y], shifts)
                gap = builder.fsub(z, centre)
                ratio = builder.fsub(builder.fsub(z, y), distance)
                size = _call(builder, f"llvm.fabs.v{LANES32}f32", _FLOATS, ratio)
                if not group:
                    group = [weight, builder.fmul(weight, gap), other, builder.fmul(weight, ratio),
                             builder.fmul(weight, size)]  # fmt: skip
                else:
                    group = [
                        builder.fadd(group[0], weight), _fma(builder, weight, gap, group[1]),
                        builder.fadd(group[2], other), _fma(builder, weight, ratio, group[3]),
                        _fma(builder, weight, size, group[4]),
                    ]  # fmt: skip
            for place, value in zip(least, lowest, strict=True):
                builder.store(value, place)
            for output, place, value in zip(outputs, largest, highest, strict=True):
                builder.store(_choose(builder, ">", value, builder.load(place)), place)
                builder.store(_fold(builder, ">", value), builder.gep(output, [loop.index]))
            for value, total in zip(group, totals, strict=True):
                builder.store(builder.fadd(builder.load(total), _summed(builder, value)), total)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=8)
        ends = [_fold(builder, "<", builder.load(place)) for place in least]
        ends += [_fold(builder, ">", builder.load(place)) for place in largest]
        return context.make_tuple(builder, signature.return_type, ends)

    numbers = (types.int64,) * 3 + (types.float32,) * 4
    result = types.UniTuple(types.float64, 4)
    return result(target, draft, *numbers, sums, maxima, other_maxima, types.int64), codegen
