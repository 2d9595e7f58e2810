"""The float32 filter's loop over logits on the CPU, written as vector instructions: exponentials
and their sums, each group of GROUP columns in float32 and then added to float64. LLVM splits the
vectors to the machine's width; the order of every sum is the one written here.

    exp(z) = 2^(j/4) exp(r),  j = round(4 z / log 2),  r = z - j (log 2)/4,
    exp(r) = C (c_0 + r (c_1 + r (c_2 + r)))

A table of four has C 2^(i/4), i = j mod 4; as its numbers are free, so is C, and the polynomial's
first coefficient is 1, which saves an instruction. No logit is moved to a reference first: 2^(j/4 -
K) has an integer reference K, which costs no rounding. What is rounded, in u = 2^-24, is bounded by
claim kernel.exp32; ``filter_bounds`` has the constants. There are no fast-math flags.

A group is read twice, once for the target's weights, which are kept, and once for the draft, a
vector after the other: so the numbers that a loop needs at hand fit the 16 registers of a 256-bit
machine, and a processor that works ahead overlaps the vectors' latencies by itself. Loops that take
several vectors a turn, or are unrolled, undo that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from certspec.kernels.numba.vectors import ask_for, call_llvm

__all__ = [
    "COEFFICIENTS",
    "FILTER_SUMS",
    "GROUP",
    "LANES32",
    "LEAST_BITS",
    "LOG2",
    "PER_LOG2",
    "SCALES",
    "SHIFT32",
    "SHIFT32_BITS",
    "STEPS",
    "WIDE",
    "Reference",
    "filter_sums",
]
LANES32 = 8  # float32 numbers of a vector
WIDE = 4  # float64 numbers of an accumulator
GROUP = 128  # columns summed in float32
FILTER_SUMS = 4  # accumulators: w, w g, x, w d
STEPS = 4  # entries of the table: steps of an exponential to an octave
SHIFT32 = 1.5 * 2.0**23  # adding it rounds to an integer, held in the low bits
SHIFT32_BITS = 0x4B400000  # of SHIFT32; those of SHIFT32 + j are j more, |j| < 2^21
LEAST_BITS = SHIFT32_BITS - 123 * STEPS  # 2^-123 C, C > 2^-3, is a normal number
COEFFICIENTS = tuple(map(float.fromhex, ("0x1.801f54p+2", "0x1.801f6ap+2", "0x1.805d82p+1")))
SCALES = tuple(
    map(float.fromhex, ("0x1.553978p-3", "0x1.95c95ep-3", "0x1.e29076p-3", "0x1.1eef38p-2"))
)  # C 2^(i/4)
PER_LOG2, LOG2 = (
    float.fromhex("0x1.715476p+0"),
    float.fromhex("0x1.62e430p-1"),
)  # log2 e and log 2 in float32
_AHEAD = 512  # columns between what is summed and what is fetched
_LINE = 16  # float32 numbers of a cache line
_VECTORS = GROUP // LANES32
_OCTAVE_SHIFT = 23 - 2  # from k, above the two bits of a step's number, to the exponent
_TABLE = [
    int(np.float32(scale).view(np.int32))
    - (step << _OCTAVE_SHIFT)  # the step's number is shifted with k
    for step, scale in enumerate(SCALES)
]
_BYTES = 4 * LANES32  # of a vector
_FLOAT, _DOUBLE, _INT32, _INT64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS, _DOUBLES = (
    ir.VectorType(_FLOAT, LANES32),
    ir.VectorType(_INT32, LANES32),
    ir.VectorType(_DOUBLE, WIDE),
)
_PAIR = ir.VectorType(_FLOAT, 2)

# numba hands these functions the typing context itself, which its type hints leave to the caller
intrinsic: Any = extending.intrinsic


def _all_lanes(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES32)


def _all_numbers(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES32)


def _fma(builder: Any, factor: Any, other: Any, term: Any) -> Any:
    return call_llvm(builder, f"llvm.fma.v{LANES32}f32", _FLOATS, factor, other, term)


def _shuffle(builder: Any, one: Any, other: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(
        one, other, ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes))
    )


def _spread(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    return _shuffle(
        builder, builder.insert_element(undefined, scalar, _INT32(0)), undefined, [0] * LANES32
    )


def _halves(builder: Any, vector: Any) -> list[Any]:
    lanes, undefined = vector.type.count // 2, ir.Constant(vector.type, ir.Undefined)
    return [
        _shuffle(builder, vector, undefined, range(first, first + lanes)) for first in (0, lanes)
    ]


def _larger(builder: Any, one: Any, other: Any) -> Any:
    """The larger of two; ``other`` where ``one`` is a NaN."""
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _lesser(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_signed("<", one, other), one, other)


def _scales(builder: Any, bits: Any) -> Any:
    """C 2^(j/4 - K) where ``bits`` are those of SHIFT32 + j - STEPS K."""
    odd, upper = (
        builder.icmp_unsigned("!=", builder.and_(bits, _all_numbers(bit)), _all_numbers(0))
        for bit in (1, 2)
    )
    entries = [_all_numbers(entry) for entry in _TABLE]
    low, high = (builder.select(odd, entries[first + 1], entries[first]) for first in (0, 2))
    octaves = builder.shl(bits, _all_numbers(_OCTAVE_SHIFT))
    return builder.bitcast(builder.add(builder.select(upper, high, low), octaves), _FLOATS)


def _exponential(builder: Any, logits: Any, shift: Any) -> tuple[Any, Any]:
    """2^-K exp of a vector of logits, ``shift`` = SHIFT32 - STEPS K; and the bits of SHIFT32 + j -
    STEPS K."""
    shifted = _fma(builder, logits, _all_lanes(STEPS * PER_LOG2), shift)
    rest = _fma(builder, builder.fsub(shifted, shift), _all_lanes(-LOG2 / STEPS), logits)
    value = builder.fadd(rest, _all_lanes(COEFFICIENTS[2]))
    for coefficient in COEFFICIENTS[1::-1]:
        value = _fma(builder, value, rest, _all_lanes(coefficient))
    bits = builder.bitcast(shifted, _INTS)
    return builder.fmul(value, _scales(builder, bits)), bits  # a normal number


class _Source:
    """float32 logits from an element on."""

    def __init__(
        self, context: Any, builder: Any, array_type: Any, array: Any, offset: Any
    ) -> None:
        self.builder = builder
        self.start = builder.gep(
            context.make_array(array_type)(context, builder, array).data, [offset]
        )

    def load(self, index: Any) -> Any:
        place = self.builder.bitcast(self.builder.gep(self.start, [index]), _FLOATS.as_pointer())
        return self.builder.load(place, align=4)

    def fetch(self, index: Any) -> None:
        """Ask for the lines of the group at ``index``: memory then works while the sums do."""
        for line in range(0, GROUP, _LINE):
            ask_for(
                self.builder, self.builder.gep(self.start, [self.builder.add(index, _INT64(line))])
            )


def _over_group(
    builder: Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """A loop over the vectors of a group: ``body`` gets a vector's number and what the loop
    carries."""
    before = builder.block
    loop, after = (builder.function.append_basic_block(name) for name in ("vectors", "after"))
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_INT64)
    values = [builder.phi(value.type) for value in carried]
    following = [builder.add(number, _INT64(1)), *body(number, values)]
    for phi, first, later in zip([number, *values], [_INT64(0), *carried], following, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    branch = builder.cbranch(builder.icmp_signed("<", following[0], _INT64(_VECTORS)), loop, after)
    module = builder.module
    rolled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    label = module.add_metadata(
        [rolled, _INT32(len(module.metadata))]
    )  # a loop's label names itself, and one loop
    label.operands = (label, rolled)
    branch.set_metadata("llvm.loop", label)
    builder.position_at_end(after)
    return following[1:]


def _groups(
    builder: Any,
    sources: list[_Source],
    places: list[Any],
    rows: list[Any],
    groups: Sequence[Any],
    reference: Any,
) -> tuple[Any, Any]:
    """The loop over groups: the one that it stopped at, and the least bits of every lane.
    ``places``: accumulators; ``rows``: where the maxima of both models' first group stand."""
    first, num_groups = groups
    shifts = [_spread(builder, value) for value in (reference.shift, reference.other_shift)]
    centre = _spread(builder, reference.middle)
    distance = _spread(builder, reference.between)
    limits = ir.Constant(_PAIR, ir.Undefined)
    for side, value in enumerate((reference.middle, reference.other_middle)):
        limits = builder.insert_element(limits, value, _INT32(side))
    with builder.goto_entry_block():
        kept = builder.alloca(ir.ArrayType(_FLOATS, _VECTORS))
        totals = [builder.alloca(_DOUBLES) for _ in places]
        for place in (kept, *totals):
            place.align = 64
    for place, total in zip(places, totals, strict=True):
        builder.store(builder.load(place, align=8), total)
    before = builder.block
    begin, add, end = (
        builder.function.append_basic_block(name) for name in ("group", "add", "end")
    )
    most = _all_numbers(2**31 - 1)
    builder.cbranch(builder.icmp_signed("<", first, num_groups), begin, end)

    builder.position_at_end(begin)
    number, least = builder.phi(_INT64), builder.phi(_INTS)
    start = builder.mul(number, _INT64(GROUP))
    for source in sources:
        source.fetch(builder.add(start, _INT64(_AHEAD)))

    def read(source: _Source, vector: Any) -> Any:
        return source.load(builder.add(start, builder.mul(vector, _INT64(LANES32))))

    def place_of(vector: Any) -> Any:
        return builder.gep(kept, [_INT64(0), vector])

    def added(
        carried: list[Any], logit: Any, bits: Any, weight: Any, factor: Any, size: Any
    ) -> list[Any]:
        """The sums of weights and of factor * size, the largest logit and the least bits, with one
        vector more."""
        mass, products, highest, least = carried
        return [
            builder.fadd(mass, weight),
            _fma(builder, factor, size, products),
            _larger(builder, logit, highest),
            _lesser(builder, bits, least),
        ]

    def of_target(vector: Any, carried: list[Any]) -> list[Any]:
        logit = read(sources[0], vector)
        weight, bits = _exponential(builder, logit, shifts[0])
        builder.store(weight, place_of(vector), align=_BYTES)
        return added(carried, logit, bits, weight, weight, builder.fsub(logit, centre))

    def of_draft(vector: Any, carried: list[Any]) -> list[Any]:
        logit = read(sources[1], vector)
        weight, bits = _exponential(builder, logit, shifts[1])
        ratio = builder.fsub(builder.fsub(read(sources[0], vector), logit), distance)
        own = builder.load(place_of(vector), align=_BYTES)
        return added(carried, logit, bits, weight, own, ratio)

    zero, lowest = _all_lanes(0.0), _all_lanes(-math.inf)
    mass, gap_sum, highest, bits = _over_group(builder, [zero, zero, lowest, least], of_target)
    other_mass, cross, other_highest, bits = _over_group(
        builder, [zero, zero, lowest, bits], of_draft
    )
    quarters = [[2 * half + lane for lane in (0, 8, 1, 9, 4, 12, 5, 13)] for half in (0, 1)]
    both = _larger(
        builder, *(_shuffle(builder, highest, other_highest, lanes) for lanes in quarters)
    )
    while both.type.count > 2:
        both = _larger(builder, *_halves(builder, both))
    for side, row in enumerate(rows):
        builder.store(builder.extract_element(both, _INT32(side)), builder.gep(row, [number]))
    above = builder.bitcast(builder.fcmp_ordered(">", both, limits), ir.IntType(2))
    stopping = builder.block
    builder.cbranch(builder.icmp_unsigned("!=", above, ir.IntType(2)(0)), end, add)

    builder.position_at_end(add)
    for value, total in zip((mass, gap_sum, other_mass, cross), totals, strict=True):
        half = builder.fpext(builder.fadd(*_halves(builder, value)), _DOUBLES)
        builder.store(builder.fadd(builder.load(total), half), total)
    following = builder.add(number, _INT64(1))
    builder.cbranch(builder.icmp_signed("<", following, num_groups), begin, end)

    number.add_incoming(first, before)
    number.add_incoming(following, add)
    least.add_incoming(most, before)
    least.add_incoming(bits, add)
    builder.position_at_end(end)
    stopped, found = builder.phi(_INT64), builder.phi(_INTS)
    for block, where, what in (
        (before, first, most),
        (stopping, number, bits),
        (add, following, bits),
    ):
        stopped.add_incoming(where, block)
        found.add_incoming(what, block)
    for place, total in zip(places, totals, strict=True):
        builder.store(builder.load(total), place, align=8)
    return stopped, found


class Reference(NamedTuple):
    """What the sums of a row are relative to, in float32."""

    shift: Any  # SHIFT32 - STEPS K
    other_shift: Any
    middle: Any
    other_middle: Any
    between: Any


@intrinsic
def filter_sums(typingctx, sources, offsets, groups, reference, sums, maxima, first):
    """Adds up groups of GROUP columns of float32 logits z and y, two arrays from ``offsets`` on:
    those from number ``groups[0]`` on, up to ``groups[1]`` or the first that holds a z above
    ``middle`` or a y above ``other_middle``.

    With w = 2^-K exp(z), x = 2^-K' exp(y), g = z - middle and d = (z - y) - between adds w, w g, x
    and w d to the WIDE lanes of each of the FILTER_SUMS accumulators ``sums`` (float64); nothing of
    the group that it stops at. Writes the largest z and y of group i, where they are numbers, to
    ``maxima[:, first + i]``, (2, groups) float32. Returns the group that it stopped at, and the
    least SHIFT32_BITS + j - STEPS K or j' - STEPS K' of all that was read: below LEAST_BITS where a
    weight is not a normal number, or not a number; of other NaNs the sums tell."""

    def codegen(context, builder, signature, args):
        kinds, (arrays, starts, ends, scalars) = (
            signature.args,
            (cgutils.unpack_tuple(builder, each) for each in args[:4]),
        )
        logits = [
            _Source(context, builder, kinds[0][side], arrays[side], starts[side]) for side in (0, 1)
        ]
        data = builder.bitcast(
            context.make_array(kinds[4])(context, builder, args[4]).data, _DOUBLES.as_pointer()
        )
        totals = [builder.gep(data, [_INT64(number)]) for number in range(FILTER_SUMS)]
        array = context.make_array(kinds[5])(context, builder, args[5])
        columns = builder.extract_value(array.shape, 1)
        rows = [
            builder.gep(array.data, [place]) for place in (args[6], builder.add(columns, args[6]))
        ]
        stopped, found = _groups(builder, logits, totals, rows, ends, Reference(*scalars))
        while found.type.count > 1:
            found = _lesser(builder, *_halves(builder, found))
        lowest_bits = builder.sext(builder.extract_element(found, _INT32(0)), _INT64)
        return context.make_tuple(builder, signature.return_type, [stopped, lowest_bits])

    pair, scalars = types.UniTuple(types.int64, 2), types.NamedUniTuple(types.float32, 5, Reference)
    return pair(sources, pair, pair, scalars, sums, maxima, types.int64), codegen
