"""The two loops that read every logit on the CPU, written as vector instructions: maxima of blocks,
and sums of exponentials. LLVM splits the vectors to the machine's width; the order of every sum is
the one written here, whatever the machine.

    exp(g) = 2^k P(r),  k = round(g / log 2),  r = g - k log 2,
    P(r) = 1 + r + r^2 (c_0 + c_1 r + ... + c_8 r^8)

A weight is within 8 u + WIDENING |g| u of the exact one, u = 2^-53 (claim kernel.streamed_exp): the
error model of theory F with gaps longer by WIDENING. No operation may be dropped or
reassociated: there are no fast-math flags."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from certspec.kernels.loading import load_kernels

__all__ = [
    "AT_ONCE",
    "BLOCK",
    "CHUNK",
    "COEFFICIENTS",
    "FLOOR",
    "LANES",
    "SCANNED",
    "WIDENING",
    "ask_for",
    "block_maxima",
    "call_llvm",
    "fetch",
    "keep_larger",
    "lowest_bit",
    "num_bits",
    "pair_sums",
    "reaching",
    "row_sums",
]

_constants = load_kernels("constants")


LANES = 16  # float64 numbers of a vector

BLOCK = 64  # columns that share a maximum

CHUNK = 512  # columns that are summed before their sums join the others

FLOOR = _constants.LOWEST_GAP  # exp of a gap that is not above counts as 0: e^-700 < 1e-304

WIDENING = _constants.WIDENING

COEFFICIENTS = tuple(
    map(
        float.fromhex,
        (
            "0x1.ffffffffffed2p-2",
            "0x1.55555555507c6p-3",
            "0x1.55555555890c1p-5",
            "0x1.11111125b3cfbp-7",
            "0x1.6c16c0c831014p-10",
            "0x1.a0198d58a3d7ap-13",
            "0x1.a01b7c5112899p-16",
            "0x1.72e91aa60d140p-19",
            "0x1.2707a3eef6c29p-22",
        ),
    )
)
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, held in the low bits

_DOUBLE, _INT32, _INT64 = ir.DoubleType(), ir.IntType(32), ir.IntType(64)

_DOUBLES, _INTS = ir.VectorType(_DOUBLE, LANES), ir.VectorType(_INT64, LANES)

# numba hands these functions the typing context itself, which its type hints leave to the caller
intrinsic: Any = extending.intrinsic


def _all_lanes(value: float) -> ir.Constant:
    return ir.Constant(_DOUBLES, [value] * LANES)


def _spread(builder: Any, scalar: Any) -> Any:
    first = builder.insert_element(ir.Constant(_DOUBLES, ir.Undefined), scalar, _INT32(0))
    return builder.shuffle_vector(
        first,
        ir.Constant(_DOUBLES, ir.Undefined),
        ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES),
    )


def call_llvm(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A call of one of LLVM's intrinsic functions."""
    kind = ir.FunctionType(result, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def ask_for(builder: Any, place: Any) -> None:
    """Ask memory for the cache line of ``place``, to be read."""
    address = builder.bitcast(place, ir.IntType(8).as_pointer())
    call_llvm(
        builder, "llvm.prefetch.p0i8", ir.VoidType(), address, _INT32(0), _INT32(3), _INT32(1)
    )


def _fma(builder: Any, factor: Any, other: Any, term: Any) -> Any:
    return call_llvm(builder, f"llvm.fma.v{LANES}f64", _DOUBLES, factor, other, term)


def _exponentials(builder: Any, gaps: Sequence[Any]) -> list[Any]:
    """exp of vectors of gaps in [FLOOR, 700], step by step side by side, so that their latencies
    overlap."""

    def step(function: Any, *columns: Sequence[Any]) -> list[Any]:
        return [function(*entries) for entries in zip(*columns, strict=True)]

    def fma(factor: Any, other: Any, term: Any) -> Any:
        return _fma(builder, factor, other, term)

    shifted = step(lambda gap: fma(gap, _all_lanes(1.0 / math.log(2.0)), _all_lanes(_SHIFT)), gaps)
    multiples = step(lambda value: builder.fsub(value, _all_lanes(_SHIFT)), shifted)
    rests = step(lambda k, gap: fma(k, _all_lanes(-math.log(2.0)), gap), multiples, gaps)
    squares = step(lambda rest: builder.fmul(rest, rest), rests)
    even, odd = ([_all_lanes(COEFFICIENTS[last])] * len(gaps) for last in (8, 7))
    for power in (
        6,
        5,
        4,
        3,
        2,
        1,
        0,
    ):  # c_0 + c_2 r^2 + ... and c_1 + c_3 r^2 + ..., two chains of half the length
        chain = step(
            lambda value, square, c=COEFFICIENTS[power]: fma(value, square, _all_lanes(c)),
            even if power % 2 == 0 else odd,
            squares,
        )
        even, odd = (chain, odd) if power % 2 == 0 else (even, chain)
    values = step(fma, odd, rests, even)
    values = step(fma, values, squares, rests)
    values = step(lambda value: builder.fadd(value, _all_lanes(1.0)), values)

    def scale(
        value: Any, bits: Any
    ) -> Any:  # adds k to the exponent: exact, the result is a normal number
        exponent = builder.shl(builder.bitcast(bits, _INTS), ir.Constant(_INTS, [52] * LANES))
        return builder.bitcast(builder.add(exponent, builder.bitcast(value, _INTS)), _DOUBLES)

    return step(scale, values, shifted)


class _Source:
    """Vectors of gaps from an array of float32 or float64 logits, from an element on."""

    def __init__(
        self, context: Any, builder: Any, array_type: Any, array: Any, offset: Any
    ) -> None:
        self.builder, self.element = builder, context.get_data_type(array_type.dtype)
        data = context.make_array(array_type)(context, builder, array).data
        self.start = builder.gep(data, [offset])

    def load(self, index: Any, lanes: int = LANES) -> Any:
        vector = ir.VectorType(self.element, lanes)
        place = self.builder.bitcast(self.builder.gep(self.start, [index]), vector.as_pointer())
        return self.builder.load(place, align=4)

    def gaps(self, index: Any, reference: Any, clamped: Any) -> Any:
        builder = self.builder
        values = self.load(index)
        values = values if values.type == _DOUBLES else builder.fpext(values, _DOUBLES)
        gaps = builder.fsub(values, reference)
        if not clamped:
            return gaps
        return builder.select(
            builder.fcmp_ordered("<", gaps, _all_lanes(FLOOR)), _all_lanes(FLOOR), gaps
        )


def _emit_sums(
    context: Any, builder: Any, sources: Any, count: Any, references: Any, sums: Any, clamped: bool
) -> None:
    """Adds ``count`` columns' sums to the vectors of ``sums``: w, w g, and for a pair x, w (g -
    h)."""
    zero, wide = _INT64(0), [_spread(builder, reference) for reference in references]
    places = [cgutils.alloca_once(builder, _DOUBLES) for _ in range(2 * len(sources))]
    for place in places:
        builder.store(_all_lanes(0.0), place)
    with cgutils.for_range_slice(builder, zero, count, _INT64(LANES)) as (index, _):
        gaps = [
            source.gaps(index, reference, clamped)
            for source, reference in zip(sources, wide, strict=True)
        ]
        weights = _exponentials(builder, gaps)
        if clamped:
            reached = [builder.fcmp_ordered(">", gap, _all_lanes(FLOOR)) for gap in gaps]
            weights = [
                builder.select(*chosen, _all_lanes(0.0))
                for chosen in zip(reached, weights, strict=True)
            ]
        builder.store(builder.fadd(builder.load(places[0]), weights[0]), places[0])
        builder.store(_fma(builder, weights[0], gaps[0], builder.load(places[1])), places[1])
        if len(sources) > 1:
            builder.store(builder.fadd(builder.load(places[2]), weights[1]), places[2])
            ratio = builder.fsub(gaps[0], gaps[1])
            builder.store(_fma(builder, weights[0], ratio, builder.load(places[3])), places[3])
    vectors = builder.bitcast(sums, _DOUBLES.as_pointer())
    for number, place in enumerate(places):
        there = builder.gep(vectors, [_INT64(number)])
        total = builder.fadd(builder.load(there, align=8), builder.load(place))
        builder.store(total, there, align=8)


def _sums(
    context: Any, builder: Any, sources: Any, count: Any, references: Any, clamp: Any, sums: Any
) -> None:
    with builder.if_else(clamp) as (then, otherwise):
        with then:
            _emit_sums(context, builder, sources, count, references, sums, True)
        with otherwise:
            _emit_sums(context, builder, sources, count, references, sums, False)


@intrinsic
def pair_sums(
    typingctx, target, draft, offset, other_offset, count, reference, other_reference, clamp, sums
):
    """Over ``count`` columns, a multiple of LANES, with g = z - reference and h = y -
    other_reference at least FLOOR (``clamp``: made so): adds exp(g), exp(g) g, exp(h) and exp(g) (g
    - h) to the four vectors of ``sums``."""

    def codegen(context, builder, signature, args):
        kinds = signature.args
        sources = [_Source(context, builder, kinds[i], args[i], args[i + 2]) for i in (0, 1)]
        data = context.make_array(kinds[8])(context, builder, args[8]).data
        _sums(context, builder, sources, args[4], args[5:7], args[7], data)
        return context.get_dummy_value()

    numbers = (types.int64, types.int64, types.int64, types.float64, types.float64, types.boolean)
    return types.void(target, draft, *numbers, sums), codegen


@intrinsic
def row_sums(typingctx, target, offset, count, reference, clamp, sums):
    """The same for one model alone: exp(g) and exp(g) g."""

    def codegen(context, builder, signature, args):
        kinds = signature.args
        source = _Source(context, builder, kinds[0], args[0], args[1])
        data = context.make_array(kinds[5])(context, builder, args[5]).data
        _sums(context, builder, [source], args[2], args[3:4], args[4], data)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, types.float64, types.boolean, sums), codegen


@intrinsic
def block_maxima(typingctx, logits, offset, num_blocks, maxima, first):
    """Writes the maxima of ``num_blocks`` >= 1 blocks of BLOCK logits from ``offset`` on to
    ``maxima[first:]`` (float64); returns the least of these logits, a NaN where one of them is."""

    def codegen(context, builder, signature, args):
        source = _Source(context, builder, signature.args[0], args[0], args[1])
        lanes = 64 // (4 if source.element == ir.FloatType() else 8) // 2  # of 256 bits
        vector, mask = ir.VectorType(source.element, lanes), ir.VectorType(ir.IntType(1), lanes)
        out = builder.gep(
            context.make_array(signature.args[3])(context, builder, args[3]).data, [args[4]]
        )
        least, odd = cgutils.alloca_once(builder, vector), cgutils.alloca_once(builder, mask)
        builder.store(ir.Constant(vector, [math.inf] * lanes), least)
        builder.store(ir.Constant(mask, [0] * lanes), odd)

        def choose(relation: str, one: Any, other: Any) -> Any:
            return builder.select(builder.fcmp_ordered(relation, one, other), one, other)

        def fold(relation: str, value: Any) -> Any:
            width = lanes
            while width > 1:
                width //= 2
                lanes_moved = [(lane + width) % lanes for lane in range(lanes)]
                pattern = ir.Constant(ir.VectorType(_INT32, lanes), lanes_moved)
                moved = builder.shuffle_vector(value, ir.Constant(vector, ir.Undefined), pattern)
                value = choose(relation, moved, value)
            result = builder.extract_element(value, _INT32(0))
            return result if result.type == _DOUBLE else builder.fpext(result, _DOUBLE)

        with cgutils.for_range(builder, args[2]) as loop:
            start = builder.mul(loop.index, _INT64(BLOCK))
            pieces = [
                source.load(builder.add(start, _INT64(step)), lanes)
                for step in range(0, BLOCK, lanes)
            ]
            highest, lowest, unordered = pieces[0], builder.load(least), builder.load(odd)
            for one, other in zip(pieces[::2], pieces[1::2], strict=True):
                unordered = builder.or_(unordered, builder.fcmp_unordered("uno", one, other))
                for piece in (one, other):
                    highest, lowest = choose(">", piece, highest), choose("<", piece, lowest)
            builder.store(lowest, least)
            builder.store(unordered, odd)
            builder.store(fold(">", highest), builder.gep(out, [loop.index]))
        any_odd = builder.icmp_unsigned(
            "!=", builder.bitcast(builder.load(odd), ir.IntType(lanes)), ir.IntType(lanes)(0)
        )
        return builder.select(any_odd, _DOUBLE(math.nan), fold("<", builder.load(least)))

    return types.float64(logits, types.int64, types.int64, maxima, types.int64), codegen


@intrinsic
def fetch(typingctx, array, index):
    """Asks memory for the cache line of element ``index`` of a contiguous array, counted through
    all its dimensions."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        ask_for(builder, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


SCANNED = 64  # numbers of a mask

AT_ONCE = 8  # numbers of a vector


@intrinsic
def reaching(typingctx, array, index, bound):
    """A mask (int64) of which of the SCANNED elements from ``index`` on, counted through all
    dimensions of a contiguous float array, are at least ``bound``, a number of the array's type:
    bit i for element index + i. No NaN is."""

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(signature.args[0].dtype)
        vector, size = ir.VectorType(kind, AT_ONCE), signature.args[0].dtype.bitwidth // 8
        start = builder.gep(
            context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]]
        )
        least = context.cast(builder, args[2], types.float64, signature.args[0].dtype)
        undefined = ir.Constant(vector, ir.Undefined)
        least = builder.insert_element(undefined, least, _INT32(0))
        least = builder.shuffle_vector(
            least, undefined, ir.Constant(ir.VectorType(_INT32, AT_ONCE), [0] * AT_ONCE)
        )
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
    """Makes each of the AT_ONCE elements of ``largest`` from ``place`` on the larger one of itself
    and of its counterpart in ``array`` from ``index`` on, both contiguous and of one float type. A
    NaN is never the larger one."""

    def codegen(context, builder, signature, args):
        kinds = (signature.args[0], signature.args[2])
        vector = ir.VectorType(context.get_value_type(kinds[0].dtype), AT_ONCE)
        places = [
            builder.bitcast(
                builder.gep(context.make_array(kind)(context, builder, values).data, [first]),
                vector.as_pointer(),
            )
            for kind, values, first in zip(kinds, args[::2], args[1::2], strict=True)
        ]
        size = kinds[0].dtype.bitwidth // 8
        given, kept = (builder.load(each, align=size) for each in places)
        builder.store(
            builder.select(builder.fcmp_ordered(">", given, kept), given, kept),
            places[1],
            align=size,
        )
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
