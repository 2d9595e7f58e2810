"""The loop of ``vector_filter`` over groups of logits as x86-64 instructions (AVX2 and FMA): the
same operations in the same order, so the same numbers bit for bit. LLVM, from the portable form,
keeps some of what a loop needs on the stack and copies what a fused operation overwrites: 23 to 30
instructions a vector, where 18 do. This module knows nothing about rows, models or rules.

A vector is worked on in two steps: the reduction of its arguments, and the polynomial with the
sums. The next vector's first step stands before a vector's second one, so that the processor, which
looks only so far ahead, finds work that does not wait. The order within a step makes no difference
(120 random ones: 11.2 to 11.4 cycles for 8 pairs of logits)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import binding, ir

__all__ = ["SLOTS", "Slot", "has_instructions", "run_groups"]

VECTOR = 32  # bytes
LINE = 64
SLOTS = 36  # vectors of the work space


class Slot:
    """Vectors of the work space: where the loop finds its numbers. KEPT and TOTALS are the first of
    several."""

    KEPT, TOTALS = 0, 16
    HIGHEST, MASS, GAPS, LEAST = range(20, 24)
    PER_LOG2, LOG2, SHIFT, OTHER_SHIFT, CENTRE, DISTANCE = range(24, 30)
    COEFFICIENTS, TABLE, LOWEST, LIMITS = 30, 33, 34, 35


_TARGET, _DRAFT, _LEFT, _MAXIMA, _OTHER_MAXIMA, _SPACE = (
    "%rsi",
    "%rdx",
    "%r8",
    "%r9",
    "%r10",
    "%rcx",
)
# registers of sums and ends, of numbers in use all the time, and of work in progress: two vectors'
# arguments
_SUM, _PRODUCTS, _HIGHEST, _LEAST = (f"%ymm{number}" for number in range(4))
_PER_LOG2, _LOG2, _SHIFT, _CENTRE, _TABLE, _COEFFICIENT = (
    f"%ymm{number}" for number in range(4, 10)
)
_BEGUN = (("%ymm10", "%ymm11"), ("%ymm12", "%ymm13"))
_VALUE, _SCALE = "%ymm14", "%ymm15"


def _in_space(slot: int) -> str:
    return f"{VECTOR * slot}({_SPACE})"


def _begin(logits: str, begun: tuple[str, str]) -> Iterator[str]:
    """To ``begun``: the bits of SHIFT32 + j - STEPS K, and r. A NaN is not taken for the
    largest."""
    shifted, rest = begun
    yield f"vmovups {logits}, {shifted}"
    yield f"vmaxps {_HIGHEST}, {shifted}, {_HIGHEST}"
    yield f"vfmadd213ps {_SHIFT}, {_PER_LOG2}, {shifted}"
    yield f"vsubps {_SHIFT}, {shifted}, {rest}"
    yield f"vpminsd {shifted}, {_LEAST}, {_LEAST}"
    yield f"vfmadd213ps {logits}, {_LOG2}, {rest}"


def _exponential(begun: tuple[str, str], octave_shift: int) -> Iterator[str]:
    """To _VALUE, from what ``_begin`` left; the register of r is free then."""
    shifted, rest = begun
    yield f"vaddps {_in_space(Slot.COEFFICIENTS + 2)}, {rest}, {_VALUE}"
    yield f"vpslld $${octave_shift}, {shifted}, {_SCALE}"
    yield f"vfmadd213ps {_COEFFICIENT}, {rest}, {_VALUE}"
    yield f"vpermilps {shifted}, {_TABLE}, {shifted}"
    yield f"vpaddd {shifted}, {_SCALE}, {_SCALE}"
    yield f"vfmadd213ps {_in_space(Slot.COEFFICIENTS)}, {rest}, {_VALUE}"
    yield f"vmulps {_SCALE}, {_VALUE}, {_VALUE}"
    yield f"vaddps {_VALUE}, {_SUM}, {_SUM}"


def _add_target(vector: int, begun: tuple[str, str]) -> Iterator[str]:
    """Keeps the weights; sums them times z - middle, as what is to be taken off times middle -
    z."""
    yield f"vmovaps {_VALUE}, {_in_space(Slot.KEPT + vector)}"
    yield f"vsubps {VECTOR * vector}({_TARGET}), {_CENTRE}, {begun[1]}"
    yield f"vfnmadd231ps {_VALUE}, {begun[1]}, {_PRODUCTS}"


def _add_draft(vector: int, begun: tuple[str, str]) -> Iterator[str]:
    """Sums the kept weights times (z - y) - between."""
    yield f"vmovups {VECTOR * vector}({_TARGET}), {begun[1]}"
    yield f"vsubps {VECTOR * vector}({_DRAFT}), {begun[1]}, {begun[1]}"
    yield f"vsubps {_CENTRE}, {begun[1]}, {begun[1]}"
    yield f"vfmadd231ps {_in_space(Slot.KEPT + vector)}, {begun[1]}, {_PRODUCTS}"


def _over_group(
    logits: str,
    shift: int,
    centre: int,
    num_vectors: int,
    octave_shift: int,
    add: Callable[[int, tuple[str, str]], Iterator[str]],
) -> Iterator[str]:
    """A group of one model, from sums of zero on."""
    for register in (_SUM, _PRODUCTS):
        yield f"vxorps {register}, {register}, {register}"
    for slot, register in ((Slot.LOWEST, _HIGHEST), (centre, _CENTRE), (shift, _SHIFT)):
        yield f"vmovaps {_in_space(slot)}, {register}"
    yield from _begin(f"({logits})", _BEGUN[0])
    for vector in range(num_vectors):
        if vector + 1 < num_vectors:
            yield from _begin(f"{VECTOR * (vector + 1)}({logits})", _BEGUN[(vector + 1) % 2])
        yield from _exponential(_BEGUN[vector % 2], octave_shift)
        yield from add(vector, _BEGUN[vector % 2])


def _add_total(number: int, total: str) -> Iterator[str]:
    """Adds the lanes of a sum, folded once, to an accumulator of float64."""
    half, space = total.replace("ymm", "xmm"), _in_space(Slot.TOTALS + number)
    yield f"vextractf128 $$1, {total}, %xmm10"
    yield f"vaddps %xmm10, {half}, %xmm10"
    yield "vcvtps2pd %xmm10, %ymm10"
    yield f"vaddpd {space}, %ymm10, %ymm10"
    yield f"vmovapd %ymm10, {space}"


def _groups(num_vectors: int, octave_shift: int, ahead: int) -> Iterator[str]:
    """The loop over groups: ends after the last one or at one with a logit above its limit."""
    kept = (
        (Slot.LEAST, _LEAST),
        (Slot.PER_LOG2, _PER_LOG2),
        (Slot.LOG2, _LOG2),
        (Slot.TABLE, _TABLE),
        (Slot.COEFFICIENTS + 1, _COEFFICIENT),
    )
    for slot, register in kept:
        yield f"vmovaps {_in_space(slot)}, {register}"
    yield ".p2align 6"
    yield "1:"
    for side in (_TARGET, _DRAFT):
        for byte in range(0, VECTOR * num_vectors, LINE):
            yield f"prefetcht0 {ahead + byte}({side})"
    yield from _over_group(_TARGET, Slot.SHIFT, Slot.CENTRE, num_vectors, octave_shift, _add_target)
    for slot, register in ((Slot.HIGHEST, _HIGHEST), (Slot.MASS, _SUM), (Slot.GAPS, _PRODUCTS)):
        yield f"vmovaps {register}, {_in_space(slot)}"
    yield from _over_group(
        _DRAFT, Slot.OTHER_SHIFT, Slot.DISTANCE, num_vectors, octave_shift, _add_draft
    )
    yield f"vmovaps {_in_space(Slot.HIGHEST)}, %ymm10"  # the largest z and y, side by side
    yield f"vunpcklps {_HIGHEST}, %ymm10, %ymm11"
    yield f"vunpckhps {_HIGHEST}, %ymm10, %ymm10"
    yield "vmaxps %ymm10, %ymm11, %ymm10"
    yield "vextractf128 $$1, %ymm10, %xmm11"
    yield "vmaxps %xmm11, %xmm10, %xmm10"
    yield "vmovhlps %xmm10, %xmm10, %xmm11"
    yield "vmaxps %xmm11, %xmm10, %xmm10"
    yield f"vmovss %xmm10, ({_MAXIMA})"
    yield f"vextractps $$1, %xmm10, ({_OTHER_MAXIMA})"
    yield f"vmovaps {_in_space(Slot.LIMITS)}, %xmm11"
    yield "vcmpltps %xmm10, %xmm11, %xmm10"
    yield "vmovmskps %xmm10, %eax"
    yield "testl $$3, %eax"
    yield "jne 2f"
    for number, slot in ((0, Slot.MASS), (1, Slot.GAPS)):
        yield f"vmovaps {_in_space(slot)}, %ymm11"
        yield from _add_total(number, "%ymm11")
    for number, register in ((2, _SUM), (3, _PRODUCTS)):
        yield from _add_total(number, register)
    for pointer in (_TARGET, _DRAFT):
        yield f"addq $${VECTOR * num_vectors}, {pointer}"
    for pointer in (_MAXIMA, _OTHER_MAXIMA):
        yield f"addq $$4, {pointer}"
    yield f"decq {_LEFT}"
    yield "jne 1b"
    yield "2:"
    yield f"vmovaps {_LEAST}, {_in_space(Slot.LEAST)}"
    yield "vzeroupper"


def has_instructions(context: Any) -> bool:
    """Whether the processor that is compiled for has them."""
    triple, _, features = context.codegen().magic_tuple()
    return triple.startswith("x86_64") and {"+avx2", "+fma"} <= set(features.split(","))


def run_groups(
    builder: Any,
    target: Any,
    draft: Any,
    space: Any,
    groups: Any,
    maxima: Any,
    other_maxima: Any,
    num_vectors: int,
    octave_shift: int,
    ahead: int,
) -> Any:
    """Runs the loop over ``groups`` > 0 groups of ``num_vectors`` vectors: i8 pointers to the
    logits, to the work space of SLOTS vectors and to both models' maxima. Returns how many groups
    are left, from the one it stopped at."""
    binding.initialize_native_asmparser()
    byte_pointer, count = ir.IntType(8).as_pointer(), ir.IntType(64)
    given: Sequence[Any] = (target, draft, groups, maxima, other_maxima, space)
    registers = [_named(name) for name in (_TARGET, _DRAFT, _LEFT, _MAXIMA, _OTHER_MAXIMA)]
    clobbered = [
        *(f"%ymm{number}" for number in range(16)),
        "%rax",
        "memory",
        "dirflag",
        "fpsr",
        "flags",
    ]
    constraint = ",".join(
        [
            *(f"={name}" for name in registers),
            *map(str, range(len(registers))),
            _named(_SPACE),
            *(f"~{_named(name)}" for name in clobbered),
        ]
    )
    results = ir.LiteralStructType([byte_pointer, byte_pointer, count, byte_pointer, byte_pointer])
    kind = ir.FunctionType(results, [*results.elements, byte_pointer])
    text = "\n".join(_groups(num_vectors, octave_shift, ahead))
    left = builder.asm(kind, text, constraint, given, side_effect=True)
    return builder.extract_value(left, 2)


def _named(register: str) -> str:
    """A register as a constraint names it."""
    return f"{{{register.strip('%')}}}"
