"""How quantised weights lie in a packed block of 16 columns, each column being one output.

A block is a run of sections. A section holds a scale d (and one of minima) for each column as
float32, then for each of its groups a scale (and a minimum) for each column as a byte, then the
stored weights row by row. A weight is a * q + b with q as it is stored, a = d * scale, and b the
product of both minima, or -offset * a. Both products are exact in float32, since scales of
files are float16 and bytes of six bits, so one fused operation gives the value that the file's
format defines, rounded once as there.

Example, Q4_K: a section is 256 rows, or 2,432 bytes: 64 of scales, 64 of minima, 16 scales and 16
minima for each of 8 groups, and 256 rows. By words: a word of 32 bits holds 8 rows of a column, the
first in its lowest bits, and 16 of them stand side by side. Else a row is 8 bytes, and byte j holds
column j in its low half and column j + 8 in its high half. Of six bits a word holds five rows, and
three words hold a sixteenth in their highest bits, two each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.core.registry import cpu_target

__all__ = ["BF16", "F16", "F32", "FORMATS", "FORMAT_TABLE", "KINDS", "NUM_KINDS", "WIDE", "Format"]

# Kinds of blocks: plain numbers first. BF16 and F16 hold two columns a word as packing.py has them.
BF16, F16, F32 = range(3)


def _has_wide_vectors() -> bool:
    """Whether numba compiles for vectors of 512 bits."""
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return "+avx512f" in features.split(",")


WIDE = _has_wide_vectors()


class Format(NamedTuple):
    """``bits`` of a stored weight: 4 or 6 (unsigned) or 8 (signed). ``by_words``: whether words
    hold rows of a column. ``rows`` of a section; ``group``: rows of a group. ``scales``: whether
    groups have scales. ``minimum``: whether there are minima."""

    bits: int
    by_words: bool
    rows: int
    group: int
    scales: bool
    minimum: bool
    offset: int

    @property
    def unit_words(self) -> int:
        """Words of a column that are unpacked together, if there are words."""
        return 3 if self.bits == 6 else 1

    @property
    def unit_rows(self) -> int:
        """Rows that are unpacked together."""
        return 32 * self.unit_words // self.bits if self.by_words else 4

    @property
    def unshifted(self) -> int:
        """Bits of a word whose fields are unpacked where they stand: its lower half."""
        return (32 // self.bits + 1) // 2 * self.bits if self.by_words else self.bits

    @property
    def row_bytes(self) -> int:
        """On the average."""
        return 2 * self.bits

    @property
    def header_bytes(self) -> int:
        lanes = 1 + self.minimum
        return 64 * lanes + (16 * lanes * (self.rows // self.group) if self.scales else 0)

    @property
    def section_bytes(self) -> int:
        return self.header_bytes + self.rows * self.row_bytes


# Vectors of 512 bits take words as they are. Others get by with fewer registers if bytes are
# widened, and there unpacking six bits would cost more than their memory does.
_SIX = 6 if WIDE else 8
# by kind, which begins behind the plain ones
FORMATS = {
    3: Format(4, WIDE, 32, 32, scales=False, minimum=False, offset=8),  # Q4_0
    4: Format(_SIX, WIDE, 32, 32, scales=False, minimum=False, offset=16 * WIDE),  # Q5_0
    5: Format(8, False, 32, 32, scales=False, minimum=False, offset=0),  # Q8_0
    6: Format(4, WIDE, 256, 32, scales=True, minimum=True, offset=0),  # Q4_K
    7: Format(_SIX, WIDE, 256, 32, scales=True, minimum=True, offset=0),  # Q5_K
    8: Format(_SIX, WIDE, 256, 16, scales=True, minimum=False, offset=32 * WIDE),  # Q6_K
}
# kind of block by the type of a GGUF file's tensor
KINDS = {
    "F32": F32,
    "F16": F16,
    "BF16": BF16,
    "Q4_0": 3,
    "Q5_0": 4,
    "Q8_0": 5,
    "Q4_K": 6,
    "Q5_K": 7,
    "Q6_K": 8,
}
NUM_KINDS = 3 + len(FORMATS)
# the same for compiled code: a row a kind, columns as in ``Format``
FORMAT_TABLE = np.array([[0] * 7] * 3 + [list(map(int, each)) for each in FORMATS.values()])
