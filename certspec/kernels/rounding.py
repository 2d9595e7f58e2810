"""Numbers of float64 and float32 that the error bounds of all backends are made of."""

from __future__ import annotations

from certspec.kernels.loading import load_kernels

_constants = load_kernels("constants")

UNIT = _constants.UNIT  # float64: the relative error of one rounding
UNIT32 = _constants.UNIT32  # float32
# nats below the largest logit: exp(-745.1) is the least number above 0, so a weight farther down is
# 0 and its error does not grow with the gap
FARTHEST_WEIGHT = _constants.REACH_TARGET
FARTHEST_RATIO = _constants.REACH_DRAFT  # the largest gap that enters the error of a log-ratio
FARTHEST_POOLED = (
    _constants.REACH_POOL
)  # farther down, a weight times its relative error is below one rounding
NEGLIGIBLE = (
    _constants.NEGLIGIBLE
)  # weights below it may have underflowed; nothing relative is claimed for them
FAR_BELOW = _constants.FAR_BELOW  # log-ratios d below it take the form q - p + p d of a term of KL
