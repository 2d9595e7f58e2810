"""How quantised weights lie in a packed block of 16 columns, each column being one output.

A block is a run of sections. A section holds a scale d (and one of minima) for each column as
float32, then for each of its groups a scale (and a minimum) for each column as a byte, then the
stored weights row by row. A weight is a * q + b with q as it is stored, a = d * scale, and b the
product of both minima, or -offset * a. Both products are exact in float32, since scales of
files are float16 and bytes of six bits, so one fused operation gives the value that the file's
format defines, rounded once as there.

Example, Q4_K: a section is 256 rows, or 2,432 bytes: 64 of scales, 64 of minima, 16 scales and 16
minima for each of 8 groups, and 256 rows of 8 bytes. Byte j of a row holds column j in its low half
and column j + 8 in its high half."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["BF16", "F16", "F32", "FORMATS", "FORMAT_TABLE", "KINDS", "NUM_KINDS", "Format"]

# Kinds of blocks: plain numbers first. BF16 and F16 hold two columns a word as packing.py has them.
BF16, F16, F32 = range(3)


class Format(NamedTuple):
    """``bits`` of a stored weight, 4 or 8 (signed); ``rows`` of a section; ``group``: rows of a
    group. ``scales``: whether groups have scales. ``minimum``: whether there are minima."""

    bits: int
    rows: int
    group: int
    scales: bool
    minimum: bool
    offset: int

    @property
    def row_bytes(self) -> int:
        return 2 * self.bits

    @property
    def header_bytes(self) -> int:
        lanes = 1 + self.minimum
        return 64 * lanes + (16 * lanes * (self.rows // self.group) if self.scales else 0)

    @property
    def section_bytes(self) -> int:
        return self.header_bytes + self.rows * self.row_bytes


# by kind, which begins behind the plain ones
FORMATS = {
    3: Format(4, 32, 32, scales=False, minimum=False, offset=8),  # Q4_0
    4: Format(8, 32, 32, scales=False, minimum=False, offset=0),  # Q5_0 less 16, and Q8_0
    5: Format(4, 256, 32, scales=True, minimum=True, offset=0),  # Q4_K
    6: Format(8, 256, 32, scales=True, minimum=True, offset=0),  # Q5_K
    7: Format(8, 256, 16, scales=True, minimum=False, offset=0),  # Q6_K less 32
}
# kind of block by the type of a GGUF file's tensor
KINDS = {
    "F32": F32,
    "F16": F16,
    "BF16": BF16,
    "Q4_0": 3,
    "Q5_0": 4,
    "Q8_0": 4,
    "Q4_K": 5,
    "Q5_K": 6,
    "Q6_K": 7,
}
NUM_KINDS = 3 + len(FORMATS)
# the same for compiled code: a row a kind, columns as in ``Format``
FORMAT_TABLE = np.array([[0] * 6] * 3 + [list(map(int, each)) for each in FORMATS.values()])
