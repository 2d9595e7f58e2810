"""The float32 filter's loop over logits on the CPU, written as vector instructions: exponentials and their sums, each
group of GROUP columns in float32 and then added to float64. LLVM splits the vectors to the machine's width; the order
of every sum is the one written here. This module knows nothing about rows, models or rules.

    exp(z) = 2^k (1 + v),  k = round(z / log 2),  r = z - k log 2,  v = r + r^2 ((c_0 + c_1 r) + r^2 (c_2 + c_3 r))

No logit is moved to a reference first: 2^(k - K) has an integer reference K, which costs no rounding. What is rounded,
in u = 2^-24, is bounded by claim kernel.exp32; ``filter_bounds`` has the constants. There are no fast-math flags.

A group is read twice, once for the target's weights, which are kept, and once for the draft: so the numbers that a loop
needs at hand fit the 16 registers of a 256-bit machine. Its loops must not be unrolled further, which undoes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import extending, types

from certspec.kernels.vector_stream import ask_for, call_llvm

__all__ = [
    "ABREAST", "COEFFICIENTS", "FILTER_SUMS", "GROUP", "LANES32", "LEAST_BITS", "LOG2", "PER_LOG2", "SHIFT32",
    "SHIFT32_BITS", "WIDE", "filter_sums",
]  # fmt: skip

LANES32 = 8  # float32 numbers of a vector
WIDE = 4  # float64 numbers of an accumulator
ABREAST = 4  # vectors that are worked on side by side, so that their latencies overlap
GROUP = 128  # columns summed in float32
FILTER_SUMS = 4  # accumulators: w, w g, x, w d
SHIFT32 = 1.5 * 2.0**23 + 127.0  # adding it rounds to an integer, held in the low bits with the exponents' bias
SHIFT32_BITS = 0x4B40007F  # of SHIFT32; those of SHIFT32 + j are j more, |j| < 2^21
LEAST_BITS = SHIFT32_BITS - 124  # 2^-124 (1 + v) is a normal number
COEFFICIENTS = tuple(map(float.fromhex, ("0x1.fffdf8p-2", "0x1.5557b4p-3", "0x1.572c62p-5", "0x1.10617ap-7")))
PER_LOG2, LOG2 = float.fromhex("0x1.715476p+0"), float.fromhex("0x1.62e430p-1")  # log2 e and log 2 in float32
_AHEAD = 512  # columns between what is summed and what is fetched
_LINE = 16  # float32 numbers of a cache line
_VECTORS = GROUP // LANES32
_BYTES = 4 * LANES32  # of a vector
_FLOAT, _DOUBLE, _INT32, _INT64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS, _DOUBLES = ir.VectorType(_FLOAT, LANES32), ir.VectorType(_INT32, LANES32), ir.VectorType(_DOUBLE, WIDE)
_PAIR = ir.VectorType(_FLOAT, 2)

# numba hands these functions the typing context itself, which its type hints leave to the caller
intrinsic: Any = extending.intrinsic


def _all_lanes(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES32)


def _fma(builder: Any, factor: Any, other: Any, term: Any) -> Any:
    return call_llvm(builder, f"llvm.fma.v{LANES32}f32", _FLOATS, factor, other, term)


def _shuffle(builder: Any, one: Any, other: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes)))


def _spread(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    return _shuffle(builder, builder.insert_element(undefined, scalar, _INT32(0)), undefined, [0] * LANES32)


def _halves(builder: Any, vector: Any) -> list[Any]:
    lanes, undefined = vector.type.count // 2, ir.Constant(vector.type, ir.Undefined)
    return [_shuffle(builder, vector, undefined, range(first, first + lanes)) for first in (0, lanes)]


def _larger(builder: Any, one: Any, other: Any) -> Any:
    """The larger of two; ``other`` where ``one`` is a NaN."""
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _lesser(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_signed("<", one, other), one, other)


def _exponentials(builder: Any, logits: list[Any], shift: Any) -> tuple[list[Any], list[Any]]:
    """2^-K exp of vectors of logits, ``shift`` = SHIFT32 - K, side by side; and the bits of SHIFT32 + k - K, the lowest
    of which are the exponent of the scale."""

    def fma(factors: Sequence[Any], others: Sequence[Any], terms: Sequence[Any]) -> list[Any]:
        return [_fma(builder, *each) for each in zip(factors, others, terms, strict=True)]

    count = len(logits)
    c = [[_all_lanes(coefficient)] * count for coefficient in COEFFICIENTS]
    shifted = fma(logits, [_all_lanes(PER_LOG2)] * count, [shift] * count)
    multiples = [builder.fsub(value, shift) for value in shifted]
    rests = fma(multiples, [_all_lanes(-LOG2)] * count, logits)
    squares = [builder.fmul(rest, rest) for rest in rests]
    low, high = fma(rests, c[1], c[0]), fma(rests, c[3], c[2])
    values = fma(fma(high, squares, low), squares, rests)
    bits = [builder.bitcast(value, _INTS) for value in shifted]
    scales = [builder.bitcast(builder.shl(bit, ir.Constant(_INTS, [23] * LANES32)), _FLOATS) for bit in bits]
    return fma(values, scales, scales), bits  # 2^(k - K) (1 + value), rounded once: a normal number


def _added(builder: Any, total: Any, vectors: list[Any]) -> Any:
    """total + ((v_0 + v_1) + (v_2 + v_3))."""
    while len(vectors) > 1:
        vectors = [builder.fadd(one, other) for one, other in zip(vectors[::2], vectors[1::2], strict=True)]
    return builder.fadd(total, vectors[0])


def _added_products(builder: Any, total: Any, factors: list[Any], others: list[Any]) -> Any:
    """total + ((f_0 o_0 + f_1 o_1) + (f_2 o_2 + f_3 o_3)), with fused operations in the inner sums."""
    firsts = [builder.fmul(*each) for each in zip(factors[::2], others[::2], strict=True)]
    pairs = zip(factors[1::2], others[1::2], firsts, strict=True)
    return _added(builder, total, [_fma(builder, *each) for each in pairs])


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
            ask_for(self.builder, self.builder.gep(self.start, [self.builder.add(index, _INT64(line))]))


def _over_group(builder: Any, carried: list[Any], body: Callable[[list[Any], list[Any]], list[Any]]) -> list[Any]:
    """A loop over the vectors of a group, ABREAST at a time: ``body`` gets their numbers and what the loop carries."""
    before = builder.block
    loop, after = (builder.function.append_basic_block(name) for name in ("vectors", "after"))
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_INT64)
    values = [builder.phi(value.type) for value in carried]
    numbers = [builder.add(number, _INT64(vector)) for vector in range(ABREAST)]
    following = [builder.add(number, _INT64(ABREAST)), *body(numbers, values)]
    for phi, first, later in zip([number, *values], [_INT64(0), *carried], following, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    branch = builder.cbranch(builder.icmp_signed("<", following[0], _INT64(_VECTORS)), loop, after)
    module = builder.module
    rolled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    label = module.add_metadata([rolled, _INT32(len(module.metadata))])  # a loop's label names itself, and one loop
    label.operands = (label, rolled)
    branch.set_metadata("llvm.loop", label)
    builder.position_at_end(after)
    return following[1:]


@intrinsic
def filter_sums(
    typingctx, target, draft, offset, other_offset, group, num_groups, shift, other_shift, middle, other_middle,
    between, sums, maxima, first,
):  # fmt: skip
    """Over the groups of GROUP columns of float32 logits z and y from number ``group`` on, up to ``num_groups`` or the
    first that holds a z above ``middle`` or a y above ``other_middle``: with w = 2^-K exp(z), x = 2^-K' exp(y),
    g = z - middle and d = (z - y) - between adds w, w g, x and w d to the WIDE lanes of each of the FILTER_SUMS
    accumulators ``sums`` (float64); nothing of the group that it stops at. ``shift`` = SHIFT32 - K, which is float32
    like the next four. Writes the largest z and y of group i, where they are numbers, to ``maxima[first + i]``, a row
    of 2 float32. Returns the group that it stopped at, and the least SHIFT32_BITS + k - K or k' - K' of all that was
    read: below LEAST_BITS where a weight is not a normal number, or not a number; of other NaNs the sums tell."""

    def codegen(context, builder, signature, args):
        kinds = signature.args
        sources = [_Source(context, builder, kinds[i], args[i], args[i + 2]) for i in (0, 1)]
        shifts = [_spread(builder, args[i]) for i in (6, 7)]
        centre, distance = (_spread(builder, args[i]) for i in (8, 10))
        limits = ir.Constant(_PAIR, ir.Undefined)
        for side in (0, 1):
            limits = builder.insert_element(limits, args[8 + side], _INT32(side))
        data = builder.bitcast(context.make_array(kinds[11])(context, builder, args[11]).data, _DOUBLES.as_pointer())
        places = [builder.gep(data, [_INT64(number)]) for number in range(FILTER_SUMS)]
        rows = context.make_array(kinds[12])(context, builder, args[12]).data
        rows = builder.gep(builder.bitcast(rows, _PAIR.as_pointer()), [args[13]])
        with builder.goto_entry_block():
            kept = builder.alloca(ir.ArrayType(_FLOATS, _VECTORS))
            totals = [builder.alloca(_DOUBLES) for _ in places]
            for place in (kept, *totals):
                place.align = 64
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(place, align=8), total)
        before = builder.block
        begin, add, end = (builder.function.append_basic_block(name) for name in ("group", "add", "end"))
        most = ir.Constant(_INTS, [2**31 - 1] * LANES32)
        builder.cbranch(builder.icmp_signed("<", args[4], args[5]), begin, end)

        builder.position_at_end(begin)
        number, least = builder.phi(_INT64), builder.phi(_INTS)
        start = builder.mul(number, _INT64(GROUP))
        for source in sources:
            source.fetch(builder.add(start, _INT64(_AHEAD)))

        def read(source: _Source, vectors: list[Any]) -> list[Any]:
            return [source.load(builder.add(start, builder.mul(vector, _INT64(LANES32)))) for vector in vectors]

        def place_of(vector: Any) -> Any:
            return builder.gep(kept, [_INT64(0), vector])

        def ends_of(values: list[Any], bits: list[Any], highest: Any, lowest: Any) -> tuple[Any, Any]:
            for value, bit in zip(values, bits, strict=True):
                highest, lowest = _larger(builder, value, highest), _lesser(builder, bit, lowest)
            return highest, lowest

        def of_target(vectors: list[Any], carried: list[Any]) -> list[Any]:
            logits = read(sources[0], vectors)
            weights, bits = _exponentials(builder, logits, shifts[0])
            for vector, weight in zip(vectors, weights, strict=True):
                builder.store(weight, place_of(vector), align=_BYTES)
            gaps = [builder.fsub(logit, centre) for logit in logits]
            return [
                _added(builder, carried[0], weights), _added_products(builder, carried[1], weights, gaps),
                *ends_of(logits, bits, *carried[2:]),
            ]  # fmt: skip

        def of_draft(vectors: list[Any], carried: list[Any]) -> list[Any]:
            logits = read(sources[1], vectors)
            weights, bits = _exponentials(builder, logits, shifts[1])
            pairs = zip(read(sources[0], vectors), logits, strict=True)
            ratios = [builder.fsub(builder.fsub(*each), distance) for each in pairs]
            own = [builder.load(place_of(vector), align=_BYTES) for vector in vectors]
            return [
                _added(builder, carried[0], weights), _added_products(builder, carried[1], own, ratios),
                *ends_of(logits, bits, *carried[2:]),
            ]  # fmt: skip

        zero, lowest = _all_lanes(0.0), _all_lanes(-math.inf)
        mass, gap_sum, highest, bits = _over_group(builder, [zero, zero, lowest, least], of_target)
        other_mass, cross, other_highest, bits = _over_group(builder, [zero, zero, lowest, bits], of_draft)
        quarters = [[2 * half + lane for lane in (0, 8, 1, 9, 4, 12, 5, 13)] for half in (0, 1)]
        both = _larger(builder, *(_shuffle(builder, highest, other_highest, lanes) for lanes in quarters))
        while both.type.count > 2:
            both = _larger(builder, *_halves(builder, both))
        builder.store(both, builder.gep(rows, [number]), align=4)
        above = builder.bitcast(builder.fcmp_ordered(">", both, limits), ir.IntType(2))
        stopping = builder.block
        builder.cbranch(builder.icmp_unsigned("!=", above, ir.IntType(2)(0)), end, add)

        builder.position_at_end(add)
        for value, total in zip((mass, gap_sum, other_mass, cross), totals, strict=True):
            half = builder.fpext(builder.fadd(*_halves(builder, value)), _DOUBLES)
            builder.store(builder.fadd(builder.load(total), half), total)
        following = builder.add(number, _INT64(1))
        builder.cbranch(builder.icmp_signed("<", following, args[5]), begin, end)

        number.add_incoming(args[4], before)
        number.add_incoming(following, add)
        least.add_incoming(most, before)
        least.add_incoming(bits, add)
        builder.position_at_end(end)
        stopped, found = builder.phi(_INT64), builder.phi(_INTS)
        for block, where, what in ((before, args[4], most), (stopping, number, bits), (add, following, bits)):
            stopped.add_incoming(where, block)
            found.add_incoming(what, block)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=8)
        while found.type.count > 1:
            found = _lesser(builder, *_halves(builder, found))
        lowest_bits = builder.sext(builder.extract_element(found, _INT32(0)), _INT64)
        return context.make_tuple(builder, signature.return_type, [stopped, lowest_bits])

    numbers = (types.int64,) * 4 + (types.float32,) * 5
    result = types.UniTuple(types.int64, 2)
    return result(target, draft, *numbers, sums, maxima, types.int64), codegen
