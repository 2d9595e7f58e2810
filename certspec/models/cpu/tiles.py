"""Register tiles of the CPU engine, written in LLVM's vector types: a few rows times one or two
blocks of 16 columns, with weights streamed as bfloat16 pairs, float32, or quantised and unpacked
between two multiply-adds.

Every output element is one chain of fused multiply-adds over the inner dimension, in order,
whatever the tile's shape. So a row's result does not depend on how many rows stand beside it: the
arithmetic is batch-invariant, and a block of speculative positions gives bit for bit the logits of
one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from certspec.kernels.compiled import compiled
from certspec.models.cpu.formats import F16, F32, FORMATS, NUM_KINDS, WIDE

__all__ = [
    "ADD",
    "BLOCK",
    "ON",
    "SET",
    "fma",
    "from_bits",
    "tile",
    "tile_table",
    "to_bits",
    "widen",
]

_intrinsic: Any = (
    intrinsic  # numba calls the functions below with its own arguments, unknown to type checkers
)

BLOCK = 16  # columns of one packed block
# What becomes of the sums: they are stored; added to what is stored; or begun from what is stored.
# (numpy's integers, since numba would compile its callers anew for each literal.)
SET, ADD, ON = np.int64(0), np.int64(1), np.int64(2)
_HALF = BLOCK // 2
# Numbers of a vector, which is a row of a block or half of one: one AVX-512 or AVX register. LLVM
# splits or joins them for other machines.
_LANES = BLOCK if WIDE else _HALF
_UNROLL = 4
_LINE = 64  # bytes of a cache line
_F32 = ir.FloatType()
_VEC = ir.VectorType(_F32, _LANES)
_INT_VEC = ir.VectorType(ir.IntType(32), _LANES)
_I64, _I8 = ir.IntType(64), ir.IntType(8)
_BYTE_VEC = ir.VectorType(_I8, _LANES)


_TILE = ir.FunctionType(
    ir.VoidType(), [*[ir.PointerType(kind) for kind in (_F32, _I8, _F32)], *[_I64] * 6]
)
_MOST_ROWS = 8


@_intrinsic
def tile(typingctx, blocks, rows, ending, x, weights, y):
    """y[rows, 16 * blocks] = x[rows, depth] @ weights for as many ``rows`` as ``_tile_rows`` lists,
    with ``Rows`` and ``Blocks`` of rows.py; ``ending``: SET, ADD or ON.

    Weights ``ahead`` elements further are asked for meanwhile: they lie in a cache so slow that a
    few rows would wait for it (hardware prefetches along one page only). What is asked for in vain,
    even past the end, costs nothing else."""
    signature = types.void(types.int64, types.int64, types.int64, x, weights, y)

    def codegen(context, builder, sig, args):
        blocks, rows, ending, *tuples = args
        numbers = [cgutils.unpack_tuple(builder, value) for value in tuples]

        def begin(kind, array, at):
            return builder.gep(context.make_array(kind)(context, builder, array).data, [at])

        (x_all, x_at, x_step), (w_all, w_at, w_step, _, depth, ahead, kind, tiles) = numbers[:2]
        y_all, y_at, y_step = numbers[2]
        x_kind, w_kind, y_kind = (each.types[0] for each in sig.args[3:])
        size = _I64(w_kind.dtype.bitwidth // 8)
        weights = builder.bitcast(begin(w_kind, w_all, w_at), ir.PointerType(_I8))
        place = builder.add(builder.mul(blocks, _I64(_MOST_ROWS + 1)), rows)
        place = builder.add(builder.mul(place, _I64(NUM_KINDS)), kind)
        address = builder.load(begin(sig.args[4].types[-1], tiles, place))
        starts = begin(x_kind, x_all, x_at), weights, begin(y_kind, y_all, y_at)
        steps = builder.mul(w_step, size), depth, builder.mul(ahead, size), y_step
        function = builder.inttoptr(address, ir.PointerType(_TILE))
        builder.call(function, [*starts, ending, x_step, *steps])
        return context.get_dummy_value()

    return signature, codegen


def _tile_rows(kind: int, blocks: int) -> Iterable[int]:
    """Rows for which there are tiles, as rows.py deals them out. Sums of 6 rows of a block fill 12
    of 16 registers; two blocks of quantised weights have the other half of 32 filled."""
    if kind not in FORMATS:
        return range(1, 7 if blocks == 1 or WIDE else 3)
    if WIDE:
        return (1, 2, 4) if blocks == 1 else (1, 2, 3, 4, 5, _MOST_ROWS)
    return range(1, 6 if blocks == 1 else 3)


@_intrinsic(prefer_literal=True)
def _write_tiles(typingctx, table, quantised):
    """Write the tiles of plain or of quantised weights, and their addresses to ``table``."""
    kinds = [kind for kind in range(NUM_KINDS) if (kind in FORMATS) == quantised.literal_value]

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        for kind in kinds:
            for blocks in (1, 2):
                for rows in _tile_rows(kind, blocks):
                    function = _tile_function(builder.module, rows, blocks, kind)
                    place = (blocks * (_MOST_ROWS + 1) + rows) * NUM_KINDS + kind
                    address = builder.ptrtoint(function, _I64)
                    builder.store(address, builder.gep(data, [_I64(place)]))
        return context.get_dummy_value()

    return types.void(table, quantised), codegen


@compiled
def _write_plain(table):
    _write_tiles(table, False)


@compiled
def _write_quantised(table):
    _write_tiles(table, True)


@cache
def tile_table(quantised: bool) -> np.ndarray[Any, Any]:
    """Where the tiles' code stands, for ``Blocks.tiles``; of quantised weights too if asked.

    Called by address, tiles are compiled once. A function that they were part of would be compiled
    with them again in each of its callers, which took half a gigabyte of the compiler's memory."""
    table = np.zeros(3 * (_MOST_ROWS + 1) * NUM_KINDS, np.int64)
    _write_plain(table)
    if quantised:
        _write_quantised(table)
    return table


def _tile_function(module: ir.Module, rows: int, blocks: int, kind: int) -> ir.Function:
    function = ir.Function(module, _TILE, f"certspec_tile_{rows}x{blocks}_{kind}")
    function.linkage = "internal"
    for argument in function.args[:3]:
        argument.add_attribute("noalias")
    writer = _QuantisedTileWriter if kind in FORMATS else _TileWriter
    writer(function, rows, blocks, kind).write()
    return function


class _TileWriter:
    """Writes the body of one tile function: two loops over the inner dimension (unrolled, then the
    rest)."""

    def __init__(self, function: ir.Function, rows: int, blocks: int, kind: int) -> None:
        self.function, self.rows, self.blocks, self.kind = function, rows, blocks, kind
        self.x, self.w, self.y, self.ending, self.x_step, self.w_step, self.depth, self.ahead = (
            function.args[:8]
        )
        self.y_step = function.args[8]
        self.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        if kind not in FORMATS:  # numbers or words, and steps in these
            word = _F32 if kind == F32 else ir.IntType(32)
            self.w = builder.bitcast(self.w, ir.PointerType(word))
            self.w_step, self.ahead = (
                builder.ashr(step, _I64(2)) for step in (self.w_step, self.ahead)
            )
        name = f"llvm.fma.v{_LANES}f32"
        kind = ir.FunctionType(_VEC, [_VEC] * 3)
        self.fma = cgutils.get_or_insert_function(function.module, kind, name)

    def write(self) -> None:
        builder = self.builder
        zero = _floats(0.0)
        goes_on = builder.icmp_signed("==", self.ending, _I64(int(ON)))
        adds = builder.icmp_signed("==", self.ending, _I64(int(ADD)))
        width = self.blocks * BLOCK
        outputs = [
            self._output(row, column)
            for row in range(self.rows)
            for column in range(0, width, _LANES)
        ]
        sums = [builder.select(goes_on, builder.load(output, align=4), zero) for output in outputs]
        sums = self._products(sums)
        for output, value in zip(outputs, sums, strict=True):
            total = builder.fadd(builder.load(output, align=4), value)
            builder.store(builder.select(adds, total, value), output, align=4)
        builder.ret_void()

    def _products(self, sums: list[ir.Value]) -> list[ir.Value]:
        whole = self.builder.and_(self.depth, _I64(-_UNROLL))

        def rows(at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            self._prefetch(at, _UNROLL)
            for step in range(_UNROLL):
                place = self.builder.add(at, _I64(step))
                sums = self._multiply_add(place, self._columns(place), sums)
            return sums

        sums = self._loop(_I64(0), whole, _UNROLL, sums, rows)
        return self._loop(
            whole,
            self.depth,
            1,
            sums,
            lambda at, sums: self._multiply_add(at, self._columns(at), sums),
        )

    def _output(self, row: int, column: int) -> ir.Value:
        offset = self.builder.add(self.builder.mul(self.y_step, _I64(row)), _I64(column))
        return self.builder.bitcast(self.builder.gep(self.y, [offset]), ir.PointerType(_VEC))

    def _loop(
        self,
        start: ir.Value,
        stop: ir.Value,
        stride: int,
        sums: list[ir.Value],
        write_body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """for (at = start; at < stop; at += stride) sums = body(at, sums)"""
        builder, before = self.builder, self.builder.block
        body = self.function.append_basic_block(f"body{stride}")
        after = self.function.append_basic_block(f"after{stride}")
        builder.cbranch(builder.icmp_signed("<", start, stop), body, after)
        builder.position_at_end(body)
        at = builder.phi(_I64)
        phis = [builder.phi(_VEC) for _ in sums]
        new = write_body(at, list(phis))
        end = builder.block  # the body may have loops of its own
        following = builder.add(at, _I64(stride))
        builder.cbranch(builder.icmp_signed("<", following, stop), body, after)
        at.add_incoming(start, before)
        at.add_incoming(following, end)
        for phi, old, value in zip(phis, sums, new, strict=True):
            phi.add_incoming(old, before)
            phi.add_incoming(value, end)
        builder.position_at_end(after)
        results = []
        for old, value in zip(sums, new, strict=True):
            phi = builder.phi(_VEC)
            phi.add_incoming(old, before)
            phi.add_incoming(value, end)
            results.append(phi)
        return results

    def _prefetch(self, at: ir.Value, count: int) -> None:
        """Ask for what stands ``ahead`` elements beyond ``count`` rows of weights from row ``at``
        on, line by line."""
        builder, width = self.builder, self._row_width()
        for block in range(self.blocks):
            start = builder.add(builder.mul(self.w_step, _I64(block)), builder.mul(at, _I64(width)))
            for line in range(0, count * width, _LINE // 4):
                self._prefetch_line(builder.add(start, _I64(line)))

    def _prefetch_line(self, offset: ir.Value) -> None:
        """Ask for the line ``ahead`` of this offset into the weights."""
        builder, bytes_of, flag = self.builder, ir.PointerType(_I8), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [bytes_of, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(self.function.module, kind, "llvm.prefetch.p0i8")
        place = builder.bitcast(builder.gep(self.w, [builder.add(offset, self.ahead)]), bytes_of)
        builder.call(prefetch, [place, flag(0), flag(3), flag(1)])

    def _row_width(self) -> int:
        """Array elements, of 4 bytes, that hold a row of a block."""
        return BLOCK if self.kind == F32 else _HALF

    def _multiply_add(
        self, at: ir.Value, columns: list[ir.Value], sums: list[ir.Value]
    ) -> list[ir.Value]:
        """The sums with x[rows, at] * columns added."""
        builder, new = self.builder, []
        for row in range(self.rows):
            offset = builder.add(builder.mul(self.x_step, _I64(row)), at)
            scalar = builder.load(builder.gep(self.x, [offset]))
            lane = builder.insert_element(
                ir.Constant(_VEC, ir.Undefined), scalar, ir.IntType(32)(0)
            )
            spread = builder.shuffle_vector(lane, ir.Constant(_VEC, ir.Undefined), _ints(0))
            for index, column in enumerate(columns):
                total = sums[row * len(columns) + index]
                new.append(builder.call(self.fma, [spread, column, total]))
        return new

    def _columns(self, at: ir.Value) -> list[ir.Value]:
        """Row ``at`` of every block, in vectors."""
        return [part for block in range(self.blocks) for part in self._weights(block, at)]

    def _weights(self, block: int, at: ir.Value) -> list[ir.Value]:
        builder, width = self.builder, self._row_width()
        offset = builder.add(builder.mul(self.w_step, _I64(block)), builder.mul(at, _I64(width)))
        pointer = builder.gep(self.w, [offset])
        if self.kind == F32:
            parts = [builder.gep(pointer, [_I64(part)]) for part in range(0, BLOCK, _LANES)]
            kind = ir.PointerType(_VEC)
            return [builder.load(builder.bitcast(part, kind), align=4) for part in parts]
        # A word holds column j in its low half and column j + 8 in its high half: one load gives 16
        # weights.
        if WIDE:
            return [self._widen_at_once(pointer)]
        words = builder.load(builder.bitcast(pointer, ir.PointerType(_INT_VEC)), align=4)
        if self.kind == F16:
            return [_widen_half(builder, part) for part in (words, builder.lshr(words, _ints(16)))]
        low = builder.shl(words, _ints(16))
        high = builder.and_(words, _ints(0xFFFF0000))
        return [builder.bitcast(low, _VEC), builder.bitcast(high, _VEC)]

    def _widen_at_once(self, pointer: ir.Value) -> ir.Value:
        """The float32 of the 16 halves of 8 words."""
        builder, kind = self.builder, ir.VectorType(ir.IntType(16), BLOCK)
        halves = builder.load(builder.bitcast(pointer, ir.PointerType(kind)), align=4)
        columns = [*range(0, BLOCK, 2), *range(1, BLOCK, 2)]
        # beside each a zero, which is the first of the second vector
        pairs = [(column, BLOCK) if self.kind == F16 else (BLOCK, column) for column in columns]
        chosen = [index for pair in pairs for index in pair]
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * BLOCK), chosen)
        zeros = ir.Constant(kind, [0] * BLOCK)
        words = builder.bitcast(builder.shuffle_vector(halves, zeros, order), _INT_VEC)
        return _widen_half(builder, words) if self.kind == F16 else builder.bitcast(words, _VEC)


def _ints(value: int) -> ir.Constant:
    return ir.Constant(_INT_VEC, [value] * _LANES)


def _floats(value: float) -> ir.Constant:
    return ir.Constant(_VEC, [float(value)] * _LANES)


def _widen_half(builder: ir.IRBuilder, words: ir.Value) -> ir.Value:
    """The float32 equal to the finite float16 in the low half of each word: its exponent counts
    from 15 where that of float32 counts from 127, so a factor of 2^112 is wanted."""
    magnitude = builder.shl(builder.and_(words, _ints(0x7FFF)), _ints(13))
    value = builder.fmul(builder.bitcast(magnitude, _VEC), _floats(2.0**112))
    sign = builder.shl(builder.and_(words, _ints(0x8000)), _ints(16))
    return builder.bitcast(builder.or_(builder.bitcast(value, _INT_VEC), sign), _VEC)


class _QuantisedTileWriter(_TileWriter):
    """Writes a tile over blocks as formats.py has them: a loop over sections, in it one over
    groups, in it one over rows. Arrays are of bytes."""

    def _products(self, sums: list[ir.Value]) -> list[ir.Value]:
        self.format = FORMATS[self.kind]
        num_sections = self.builder.sdiv(self.depth, _I64(self.format.rows))
        return self._loop(_I64(0), num_sections, 1, sums, self._section)

    def _section(self, section: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        builder, packed = self.builder, self.format
        begins = [
            builder.add(
                builder.mul(self.w_step, _I64(block)),
                builder.mul(section, _I64(packed.section_bytes)),
            )
            for block in range(self.blocks)
        ]
        for begin in begins:
            for line in range(0, packed.header_bytes, _LINE):
                self._prefetch_line(builder.add(begin, _I64(line)))
        lanes = [self._floats(begin, 0) for begin in begins]
        minima = [self._floats(begin, _LINE) for begin in begins] if packed.minimum else []
        first_row = builder.mul(section, _I64(packed.rows))

        def group(number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            scales, biases = lanes, minima
            if packed.scales:
                at = builder.mul(number, _I64(BLOCK * (1 + packed.minimum)))
                places = [
                    builder.add(builder.add(begin, _I64(_LINE * (1 + packed.minimum))), at)
                    for begin in begins
                ]
                scales = self._scaled(lanes, places, 0)
                biases = self._scaled(minima, places, BLOCK) if packed.minimum else []
            if packed.offset:
                offset = _floats(-packed.offset)
                biases = [[builder.fmul(part, offset) for part in scale] for scale in scales]
            scaled = [self._by_power(scale) for scale in scales]
            begin_row = builder.mul(number, _I64(packed.group))

            def rows(row: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                starts = [
                    builder.add(
                        builder.add(begin, _I64(packed.header_bytes)),
                        builder.mul(builder.add(begin_row, row), _I64(packed.row_bytes)),
                    )
                    for begin in begins
                ]
                for start in starts:
                    for line in range(0, packed.unit_rows * packed.row_bytes, _LINE):
                        self._prefetch_line(builder.add(start, _I64(line)))
                at = builder.add(builder.add(first_row, begin_row), row)
                units = [self._stored(start) for start in starts]
                for step in range(packed.unit_rows):
                    columns = []
                    for block, unit in enumerate(units):
                        for part, (stored, power) in enumerate(unit[step]()):
                            scale = scaled[block][power][part]
                            columns.append(
                                builder.call(self.fma, [scale, stored, biases[block][part]])
                                if biases
                                else builder.fmul(scale, stored)
                            )
                    sums = self._multiply_add(builder.add(at, _I64(step)), columns, sums)
                return sums

            return self._loop(_I64(0), _I64(packed.group), packed.unit_rows, sums, rows)

        return self._loop(_I64(0), _I64(packed.rows // packed.group), 1, sums, group)

    def _load(self, place: ir.Value, kind: ir.Type) -> ir.Value:
        """What stands at so many bytes."""
        pointer = self.builder.bitcast(self.builder.gep(self.w, [place]), ir.PointerType(kind))
        return self.builder.load(pointer, align=1)

    def _floats(self, begin: ir.Value, offset: int) -> list[ir.Value]:
        """16 float32 numbers at a byte offset, in vectors."""
        parts = range(0, BLOCK, _LANES)
        return [
            self._load(self.builder.add(begin, _I64(offset + 4 * part)), _VEC) for part in parts
        ]

    def _scaled(
        self, lanes: list[list[ir.Value]], places: list[ir.Value], offset: int
    ) -> list[list[ir.Value]]:
        """Each block's lanes times its 16 bytes at ``places`` + ``offset``."""
        return [
            [
                self.builder.fmul(lane, factor)
                for lane, factor in zip(block, self._bytes(place, offset), strict=True)
            ]
            for block, place in zip(lanes, places, strict=True)
        ]

    def _by_power(self, scale: list[ir.Value]) -> dict[int, list[ir.Value]]:
        """``scale`` over two to each power that a stored weight may come with."""
        builder, powers = self.builder, range(0, self.format.unshifted, self.format.bits)
        return {
            power: [builder.fmul(part, _floats(2.0**-power)) for part in scale] for power in powers
        }

    def _bytes(self, place: ir.Value, offset: int) -> list[ir.Value]:
        """16 signed bytes as floats, in vectors."""
        builder, found = self.builder, []
        for part in range(0, BLOCK, _LANES):
            stored = self._load(builder.add(place, _I64(offset + part)), _BYTE_VEC)
            found.append(builder.sitofp(builder.sext(stored, _INT_VEC), _VEC))
        return found

    def _stored(self, place: ir.Value) -> list[Callable[[], list[tuple[ir.Value, int]]]]:
        """For each row of a unit of a block what writes its 16 stored weights as floats, in
        vectors, each times two to a power, and that power."""
        builder, packed = self.builder, self.format
        steps = range(0, packed.unit_rows * packed.row_bytes, packed.row_bytes)
        if packed.bits == 8:
            return [partial(self._bytes_row, place, step) for step in steps]
        if not packed.by_words:
            return [partial(self._nibbles_row, builder.add(place, _I64(step))) for step in steps]
        words = [
            self._load(builder.add(place, _I64(_LINE * number)), _INT_VEC)
            for number in range(packed.unit_words)
        ]
        rows: list[Callable[[], list[tuple[ir.Value, int]]]] = [
            partial(self._field, word, packed.bits * field)
            for word in words
            for field in range(32 // packed.bits)
        ]
        rows.append(partial(self._shared_field, words))
        return rows[: packed.unit_rows]

    def _bytes_row(self, place: ir.Value, step: int) -> list[tuple[ir.Value, int]]:
        return [(part, 0) for part in self._bytes(place, step)]

    def _nibbles_row(self, place: ir.Value) -> list[tuple[ir.Value, int]]:
        builder = self.builder
        pairs = builder.zext(self._load(place, _BYTE_VEC), _INT_VEC)
        halves = builder.and_(pairs, _ints(15)), builder.lshr(pairs, _ints(4))
        return [(builder.sitofp(half, _VEC), 0) for half in halves]

    def _field(self, word: ir.Value, begin: int) -> list[tuple[ir.Value, int]]:
        """Fields in the lower half of a word are masked and not shifted: an operation less."""
        builder, packed = self.builder, self.format
        power = begin % packed.unshifted
        if begin != power:
            word = builder.lshr(word, _ints(begin - power))
        mask = _ints((2**packed.bits - 1) << power)
        return [(builder.sitofp(builder.and_(word, mask), _VEC), power)]

    def _shared_field(self, words: list[ir.Value]) -> list[tuple[ir.Value, int]]:
        """The field of six bits that three words hold in their highest bits."""
        builder = self.builder
        stored = builder.lshr(words[0], _ints(30))
        for number, word in enumerate(words[1:], 1):
            bits = builder.lshr(word, _ints(30 - 2 * number))
            stored = builder.or_(stored, builder.and_(bits, _ints(3 << 2 * number)))
        return [(builder.sitofp(stored, _VEC), 0)]


@_intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, float32, rounded once: the same bits in a vector loop and in its scalar rest."""
    signature = types.float32(types.float32, types.float32, types.float32)

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(_F32, [_F32] * 3)
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32"), args
        )

    return signature, codegen


@_intrinsic
def from_bits(typingctx, bits):
    """The float32 whose bit pattern is the given int32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@_intrinsic
def to_bits(typingctx, value):
    """The bit pattern of a float32, as int32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@_intrinsic
def widen(typingctx, value):
    """A float32 as it is, or the float32 equal to a bfloat16 number given as uint16."""

    def codegen(context, builder, sig, args):
        if sig.args[0] == types.float32:
            return args[0]
        return builder.bitcast(
            builder.shl(builder.zext(args[0], ir.IntType(32)), ir.IntType(32)(16)), _F32
        )

    return types.float32(value), codegen
