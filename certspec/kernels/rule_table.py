"""Rules as rows of a float64 parameter table, which is all that a kernel ever sees of a rule.

rule_table((Additive(0.3), Tree(4))).parameters
# [[0, 0, 1, -0.3, inf, inf, 0, 0],      additive: scale 1, offset -0.3, no cap, no entropy
#  [4, 0, 0,  inf, inf, inf, 0, 0]]      tree: its width alone
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from certspec.rules import Rule, require_rule

__all__ = ["COLUMNS", "MIN_TOP", "RuleTable", "rule_table"]

# One float64 column each. A single-token rule has tree_width 0; a tree uses tree_width alone.
COLUMNS = (
    "tree_width",
    "top_m",
    "scale",
    "offset",
    "cap",
    "entropy_scale",
    "strictly_above",
    "smoothing_index",
)
TREE_WIDTH, TOP_M, SCALE, OFFSET, CAP, ENTROPY_SCALE, STRICTLY_ABOVE, SMOOTHING_INDEX = range(
    len(COLUMNS)
)
MIN_TOP = 10
FARTHEST_OFFSET = 1e300  # in place of an offset of inf, so that no bound of it becomes inf - inf


@dataclass(frozen=True)
class RuleTable:
    """``parameters``: (rules, 8) float64, columns as in COLUMNS; ``smoothings``: (n,) float64, the
    distinct positive constants inside the logarithm of an entropy (``smoothing_index`` counts from
    1, 0 is the exact entropy); ``num_top``: ranks that the rank gates and trees need, at least
    10."""

    rules: tuple[Rule, ...]
    parameters: np.ndarray
    smoothings: np.ndarray
    num_top: int


@lru_cache(maxsize=256)
def rule_table(rules: tuple[Rule, ...]) -> RuleTable:
    """The parameter table of ``rules``; cached, since decoding asks for the same rules at every
    step.

    Raises InvalidArgument where an entry is not a rule.
    """
    smoothings: list[float] = []
    rows = []
    for rule in map(require_rule, rules):
        threshold = rule.threshold
        if threshold is None:
            rows.append((rule.tree_width, 0, 0.0, math.inf, math.inf, math.inf, False, 0))
            continue
        threshold = threshold.simplest
        if threshold.smoothing > 0 and threshold.smoothing not in smoothings:
            smoothings.append(threshold.smoothing)
        index = 1 + smoothings.index(threshold.smoothing) if threshold.smoothing > 0 else 0
        offset = min(max(threshold.offset, -FARTHEST_OFFSET), FARTHEST_OFFSET)
        rows.append(
            (
                0,
                threshold.top_m,
                threshold.scale,
                offset,
                threshold.cap,
                threshold.entropy_scale,
                threshold.strictly_above,
                index,
            )
        )
    parameters = np.array(rows, dtype=np.float64).reshape(len(rules), len(COLUMNS))
    num_top = max(MIN_TOP, 1 + int(parameters[:, [TREE_WIDTH, TOP_M]].max(initial=0)))
    parameters.setflags(write=False)
    return RuleTable(rules, parameters, np.array(smoothings, dtype=np.float64), num_top)
