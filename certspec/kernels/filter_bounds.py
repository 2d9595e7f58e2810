"""Error constants of the CPU's float32 filter, as plain Python floats, in u = 2^-24 where nothing else is said. Knows
the operations of ``vector_filter`` and nothing about rules.

A weight w = 2^-K exp(z), with its way through the sums, is off by a relative t at the most:

    t = 1.01 (EXP32_ERROR + ADDITIONS + REDUCTION |z|) u                         claims kernel.exp32 and kernel.segments

in |z| because log 2 rounded to float32 is off by REDUCTION/log2(e) u. With g = z - m rounded once, d = (z - y) - s
twice, and the sums over a row (hats: as computed) the rest follows term by term (claim kernel.filter):

    |KL^ - KL|              1.02 ((2 t + 2 u) E_p|d| + u |s| + t + t')
    |E_p[m - z]^ - E_p|     1.02 (2 t + u) E_p|m - z|
    |S^ / S - 1|            1.01 t
"""

from __future__ import annotations

__all__ = ["ADDITIONS", "EXP32_ERROR", "FARTHEST", "LARGEST", "MOST_COLUMNS", "REDUCTION", "UNIT32"]

UNIT32 = 2.0**-24
EXP32_ERROR = 3.8  # P instead of exp 1.9, Horner's scheme 1.51, r rounded .35
REDUCTION = 0.0462  # per nat of |z|
# products and additions in float32 that a term passes through (2 steps of a group, and 32 lanes folded to 8), and the
# float64 ones after them, fewer than 2^18 of 2^-29 u each
ADDITIONS = 4.01
LARGEST = 4096.0  # |z| of a row that the filter takes
FARTHEST = 85.0  # nats below the maximum; farther weights would not be normal float32 numbers
MOST_COLUMNS = 1 << 24
