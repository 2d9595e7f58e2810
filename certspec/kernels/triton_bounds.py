"""Error constants of the Triton segment sums, as plain Python floats. The float32 part of a row is bounded term by term
(theory F, carried to float32); this module knows nothing about Triton.

For an element of a streamed segment, with c = fl32(log2 e), M an integer and x = z log2 e - M the exact exponent:

    computed exponent   |x^ - x| <= u |x^| + kappa (|x| + |M|)         one fused rounding, and c's own error kappa
    computed term       e^ = 2^x (1 + eps),  |eps| <= EXP2 + ln2 |x^ - x| (1 + tiny)
    sums of terms of one sign (all five are), and a change of reference by a power of two: relative (number) u

The few largest elements of a row are worked again in float64 and carry no such error, so every bound is a multiple of
the mass of the others (the tail).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "CONSTANT_ERROR", "EXACT_EXP2_ERROR", "EXACT_EXPONENT_ERROR", "EXACT_FARTHEST_ERROR", "EXP2_ERROR", "LOW_AT_ONCE",
    "SegmentErrors", "segment_errors",
]  # fmt: skip

UNIT32 = 2.0**-24
EXP2_ERROR = 2.0**-22  # ex2.approx.f32, PTX ISA; 1.44e-7 was the worst of all float32 in [-126, 0] on an H100
CONSTANT_ERROR = 1.34e-8  # |fl32(log2 e) / log2 e - 1|
LOWEST_EXPONENT = 127.0  # below, 2**x is flushed to zero
# Where a row is summed again in float64, u = 2^-53: c and the product with it, then the difference, so that
# |x^ - x| <= 3 u |x| + 2 u |M|; exp2 within 2 ulp; and the least x whose exponential is no zero is above -1,076.
EXACT_EXPONENT_ERROR = 4.0 * 2.0**-53  # per unit of |x|, and per unit of |M|
EXACT_EXP2_ERROR = 4.0 * 2.0**-53
EXACT_FARTHEST_ERROR = 4096.0 * 2.0**-53
LOW_AT_ONCE = 8  # elements of a listed segment that rank_row adds in float32


@dataclass(frozen=True)
class SegmentErrors:
    """Per unit of tail mass: ``term`` an exponential together with its summation, ``addition`` summation alone,
    ``exponent`` per unit of |x|, ``reference`` per unit of |M| (both log2), ``mean_exponent`` bounds E|x| of a segment,
    ``farthest`` the error of the farthest exponential that is not zero, but for the reference's part."""

    term: float
    addition: float
    exponent: float
    reference: float
    mean_exponent: float
    farthest: float


def segment_errors(vector: int, near: int, tiles: int, added: int = 1) -> SegmentErrors:
    """Constants for segments of ``tiles`` runs, each of ``near`` threads' ``vector`` columns, of which ``added``
    segments are added in float32."""
    # A term meets tiles - 1 sums over tiles, vector - 1 over a thread's columns, near - 1 over threads, in any order of
    # each; a product, its own or the one of its change of reference, and that change's sum; added - 1 sums of
    # segments. The low elements of listed segments meet a product and LOW_AT_ONCE - 1 sums.
    additions = max(tiles + vector + near + added - 2, LOW_AT_ONCE)
    addition = 1.01 * additions * UNIT32
    exponent = 1.01 * (UNIT32 + CONSTANT_ERROR)
    # E_q[-x] = H_2(q) - log2(sum 2^x) <= log2 n + 1, since the largest exponent is above -1
    mean_exponent = math.log2(vector * near * tiles) + 1.0
    farthest = EXP2_ERROR + math.log(2) * exponent * LOWEST_EXPONENT
    return SegmentErrors(EXP2_ERROR + addition, addition, exponent, 1.01 * CONSTANT_ERROR, mean_exponent, farthest)
