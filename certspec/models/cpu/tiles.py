"""Register tiles of the CPU engine, written in LLVM's vector types: a few rows times one or two
blocks of 16 columns, with weights streamed as bfloat16 pairs or float32.

Every output element is one chain of fused multiply-adds over the inner dimension, in order,
whatever the tile's shape. So a row's result does not depend on how many rows stand beside it: the
arithmetic is batch-invariant, and a block of speculative positions gives bit for bit the logits of
one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["ADD", "BLOCK", "ON", "SET", "fma", "from_bits", "tile", "to_bits", "widen"]

_intrinsic: Any = (
    intrinsic  # numba calls the functions below with its own arguments, unknown to type checkers
)

BLOCK = 16  # columns of one packed block
# What becomes of the sums: they are stored; added to what is stored; or begun from what is stored.
# (numpy's integers, since numba would compile its callers anew for each literal.)
SET, ADD, ON = np.int64(0), np.int64(1), np.int64(2)
_HALF = 8  # one AVX register of float32; LLVM splits or joins the vectors for other machines
_UNROLL = 4
_LINE = 64  # bytes of a cache line
_F32 = ir.FloatType()
_VEC = ir.VectorType(_F32, _HALF)
_INT_VEC = ir.VectorType(ir.IntType(32), _HALF)
_I64 = ir.IntType(64)


@_intrinsic(prefer_literal=True)
def tile(typingctx, rows, blocks, ending, x, weights, y):
    """y[rows, 16 * blocks] = x[rows, depth] @ weights for literal ``rows`` and ``blocks``, with
    ``Rows`` and ``Blocks`` of rows.py; ``ending``: SET, ADD or ON.

    Weights ``ahead`` elements further are asked for meanwhile: they lie in a cache so slow that a
    few rows would wait for it (hardware prefetches along one page only). What is asked for in vain,
    even past the end, costs nothing else."""
    num_rows, num_blocks = rows.literal_value, blocks.literal_value
    packed = weights.types[0].dtype == types.uint32
    signature = types.void(rows, blocks, types.int64, x, weights, y)

    def codegen(context, builder, sig, args):
        ending, tuples = args[2], args[3:]
        starts, numbers = [], []
        for kind, value in zip(sig.args[3:], tuples, strict=True):
            array, at, *rest = cgutils.unpack_tuple(builder, value)
            data = context.make_array(kind.types[0])(context, builder, array).data
            starts.append(builder.gep(data, [at]))
            numbers.append(rest)
        (x_step,), (w_step, _, depth, ahead), (y_step,) = numbers
        function = _tile_function(builder.module, num_rows, num_blocks, packed)
        builder.call(function, [*starts, ending, x_step, w_step, depth, ahead, y_step])
        return context.get_dummy_value()

    return signature, codegen


def _tile_function(module: ir.Module, rows: int, blocks: int, packed: bool) -> ir.Function:
    name = f"certspec_tile_{rows}x{blocks}_{'bf16' if packed else 'f32'}"
    if name in module.globals:
        return module.globals[name]
    weight = ir.IntType(32) if packed else _F32
    pointers = [ir.PointerType(_F32), ir.PointerType(weight), ir.PointerType(_F32)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*pointers, *[_I64] * 6]), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    x, w, y = function.args[:3]
    for argument in (x, w, y):
        argument.add_attribute("noalias")
    _TileWriter(function, rows, blocks, packed).write()
    return function


class _TileWriter:
    """Writes the body of one tile function: two loops over the inner dimension (unrolled, then the
    rest)."""

    def __init__(self, function: ir.Function, rows: int, blocks: int, packed: bool) -> None:
        self.function, self.rows, self.blocks, self.packed = function, rows, blocks, packed
        self.x, self.w, self.y, self.ending, self.x_step, self.w_step, self.depth, self.ahead = (
            function.args[:8]
        )
        self.y_step = function.args[8]
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        name = f"llvm.fma.v{_HALF}f32"
        kind = ir.FunctionType(_VEC, [_VEC] * 3)
        self.fma = cgutils.get_or_insert_function(function.module, kind, name)

    def write(self) -> None:
        builder = self.builder
        zero = ir.Constant(_VEC, [0.0] * _HALF)
        goes_on = builder.icmp_signed("==", self.ending, _I64(int(ON)))
        adds = builder.icmp_signed("==", self.ending, _I64(int(ADD)))
        outputs = [self._output(index) for index in range(self.rows * self.blocks * 2)]
        sums = [builder.select(goes_on, builder.load(output, align=4), zero) for output in outputs]
        whole = builder.and_(self.depth, _I64(-_UNROLL))
        sums = self._loop(_I64(0), whole, _UNROLL, sums)
        sums = self._loop(whole, self.depth, 1, sums)
        for output, value in zip(outputs, sums, strict=True):
            total = builder.fadd(builder.load(output, align=4), value)
            builder.store(builder.select(adds, total, value), output, align=4)
        builder.ret_void()

    def _output(self, index: int) -> ir.Value:
        row, half = divmod(index, self.blocks * 2)
        offset = self.builder.add(self.builder.mul(self.y_step, _I64(row)), _I64(half * _HALF))
        return self.builder.bitcast(self.builder.gep(self.y, [offset]), ir.PointerType(_VEC))

    def _loop(
        self, start: ir.Value, stop: ir.Value, stride: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        builder, before = self.builder, self.builder.block
        body = self.function.append_basic_block(f"body{stride}")
        after = self.function.append_basic_block(f"after{stride}")
        builder.cbranch(builder.icmp_signed("<", start, stop), body, after)
        builder.position_at_end(body)
        at = builder.phi(_I64)
        phis = [builder.phi(_VEC) for _ in sums]
        new = list(phis)
        if stride > 1:
            self._prefetch(at, stride)
        for step in range(stride):
            new = self._step(builder.add(at, _I64(step)), new)
        following = builder.add(at, _I64(stride))
        builder.cbranch(builder.icmp_signed("<", following, stop), body, after)
        at.add_incoming(start, before)
        at.add_incoming(following, body)
        for phi, old, value in zip(phis, sums, new, strict=True):
            phi.add_incoming(old, before)
            phi.add_incoming(value, body)
        builder.position_at_end(after)
        results = []
        for old, value in zip(sums, new, strict=True):
            phi = builder.phi(_VEC)
            phi.add_incoming(old, before)
            phi.add_incoming(value, body)
            results.append(phi)
        return results

    def _prefetch(self, at: ir.Value, count: int) -> None:
        """Ask for what stands ``ahead`` elements beyond ``count`` rows of weights from row ``at``
        on, line by line."""
        builder = self.builder
        bytes_of, flag = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [bytes_of, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(self.function.module, kind, "llvm.prefetch.p0i8")
        width = _HALF if self.packed else BLOCK  # of 4 bytes
        for block in range(self.blocks):
            start = builder.add(builder.mul(self.w_step, _I64(block)), builder.mul(at, _I64(width)))
            for line in range(0, count * width, _LINE // 4):
                place = builder.gep(
                    self.w, [builder.add(builder.add(start, self.ahead), _I64(line))]
                )
                builder.call(
                    prefetch, [builder.bitcast(place, bytes_of), flag(0), flag(3), flag(1)]
                )

    def _step(self, at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        builder = self.builder
        columns = [half for block in range(self.blocks) for half in self._weights(block, at)]
        new = []
        for row in range(self.rows):
            offset = builder.add(builder.mul(self.x_step, _I64(row)), at)
            scalar = builder.load(builder.gep(self.x, [offset]))
            lane = builder.insert_element(
                ir.Constant(_VEC, ir.Undefined), scalar, ir.IntType(32)(0)
            )
            zeros = ir.Constant(_INT_VEC, [0] * _HALF)
            spread = builder.shuffle_vector(lane, ir.Constant(_VEC, ir.Undefined), zeros)
            for half, column in enumerate(columns):
                new.append(
                    builder.call(self.fma, [spread, column, sums[row * len(columns) + half]])
                )
        return new

    def _weights(self, block: int, at: ir.Value) -> tuple[ir.Value, ir.Value]:
        builder = self.builder
        width = _HALF if self.packed else BLOCK
        offset = builder.add(builder.mul(self.w_step, _I64(block)), builder.mul(at, _I64(width)))
        pointer = builder.gep(self.w, [offset])
        if not self.packed:
            low = builder.bitcast(pointer, ir.PointerType(_VEC))
            high = builder.bitcast(builder.gep(pointer, [_I64(_HALF)]), ir.PointerType(_VEC))
            return builder.load(low, align=4), builder.load(high, align=4)
        # A word holds column j in its low half and column j + 8 in its high half: one load gives 16
        # weights.
        words = builder.load(builder.bitcast(pointer, ir.PointerType(_INT_VEC)), align=4)
        low = builder.shl(words, ir.Constant(_INT_VEC, [16] * _HALF))
        high = builder.and_(words, ir.Constant(_INT_VEC, [0xFFFF0000] * _HALF))
        return builder.bitcast(low, _VEC), builder.bitcast(high, _VEC)


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
