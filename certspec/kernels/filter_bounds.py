"""Error constants of the CPU's float32 filter, as plain Python floats, in u = 2^-24 where nothing else is said. Knows
the operations of ``vector_filter`` and nothing about rules.

A weight w = 2^-K exp(z), with its way through the sums, is off by a relative t at the most:

    t = 1.01 (EXP32_ERROR + ADDITIONS + REDUCTION |z|) u                         claims kernel.exp32 and kernel.segments

in |z| because log 2 rounded to float32 is off by REDUCTION/log2(e) u. With g = z - m rounded once, d = (z - y) - s
twice, and the sums over a row (hats: as computed) the rest follows term by term (claim kernel.filter):

    |KL^ - KL|              1.02 (t P (1 + |E_p d|) + (t + 2 u) R + u |s| P + t' Q)
    |E_p[m - z]^ - E_p|     1.02 (t P E_p|m - z| + (t + u) G)
    |S^ / S - 1|            1.02 t P

where P and Q are the probabilities, of target and draft, of the columns summed in float32 (the others are in float64),
R and G the sums of p|d| and p|m - z| over those. With all columns in float32 P = Q = 1 and R = E_p|d|, which claim
kernel.filter_size bounds; of a part of them R is bounded by claim kernel.filter_rest.
"""

from __future__ import annotations

__all__ = ["ADDITIONS", "EXP32_ERROR", "LARGEST", "MOST_COLUMNS", "REDUCTION", "UNIT32", "WIDEST"]

UNIT32 = 2.0**-24
EXP32_ERROR = 7.4  # polynomial and table instead of exp 5.17, operations 2.1, r rounded .09
REDUCTION = 0.0462  # per nat of |z|
# products and additions in float32 that a term passes through (a product with its addition, 15 of the vectors that
# follow, 1 of 8 lanes to 4), and the float64 ones after them, fewer than 2^18 of 2^-29 u each
ADDITIONS = 17.01
LARGEST = 4096.0  # |z| of a row that the filter takes
WIDEST = 1e-3  # nats; rows whose KL the filter does not know this well are not for it
MOST_COLUMNS = 1 << 24
