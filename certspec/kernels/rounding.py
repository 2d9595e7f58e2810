"""Numbers of float64 and float32 that the error bounds of all backends are made of."""

from __future__ import annotations

UNIT = 2.0**-53  # float64: the relative error of one rounding
UNIT32 = 2.0**-24  # float32
# nats below the largest logit: exp(-745.1) is the least number above 0, so a weight farther down is
# 0 and its error does not grow with the gap
FARTHEST_WEIGHT = 745.0
FARTHEST_RATIO = 2 * FARTHEST_WEIGHT  # the largest gap that enters the error of a log-ratio
FARTHEST_POOLED = 32.0  # farther down, a weight times its relative error is below one rounding
NEGLIGIBLE = 1e-290  # weights below it may have underflowed; nothing relative is claimed for them
FAR_BELOW = -30.0  # log-ratios d below it take the form q - p + p d of a term of KL
