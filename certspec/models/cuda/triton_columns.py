"""Names for positions in the arrays that the host and the Triton kernels share. A kernel may read a
global only where it is a constexpr, so the enumerations of the host are repeated here as such.

Example: ``nodes`` is (nodes, 4) int64, so the slot of node ``i`` is at ``nodes + i * NODE_COLUMNS +
SLOT``."""

from __future__ import annotations

import triton.language as tl

from certspec.kernels import rule_table
from certspec.models import growth
from certspec.models.cuda import layouts
from certspec.models.cuda.layouts import NodeColumn, RowColumn, SpanColumn, TreePart

NODE_COLUMNS, SPAN_COLUMNS = tl.constexpr(len(NodeColumn)), tl.constexpr(len(SpanColumn))
TOKEN, CACHE_ROW, SLOT, POSITION = (tl.constexpr(int(column)) for column in NodeColumn)
SPAN_CACHE_ROW, COMMITTED, LIVE = (tl.constexpr(int(column)) for column in SpanColumn)
BEFORE, LAST, LENGTH, END, ROUNDS, ACTIVE = (tl.constexpr(int(column)) for column in RowColumn)
ROW_COLUMNS = tl.constexpr(len(RowColumn))
PARENTS, DEPTHS, ANCESTORS = (tl.constexpr(int(part)) for part in TreePart)
TREE_PARTS = tl.constexpr(len(TreePart))
NO_NODE = tl.constexpr(layouts.NO_NODE)

# of the numbers of a policy, see certspec.models.growth
BAR, RUN_SCORE, KEEP_SCORE = (
    tl.constexpr(place) for place in (growth.BAR, growth.RUN_SCORE, growth.KEEP_SCORE)
)

# of a rule's row, see certspec.kernels.rule_table
TOP_M, SCALE, OFFSET, CAP, ENTROPY_SCALE, STRICTLY_ABOVE = (
    tl.constexpr(getattr(rule_table, name))
    for name in ("TOP_M", "SCALE", "OFFSET", "CAP", "ENTROPY_SCALE", "STRICTLY_ABOVE")
)

# of a row's statistics, see certspec.kernels.triton.rows.FastScores
ENTROPY, TOP_PROBS = tl.constexpr(2), tl.constexpr(5)
NORMALISER_ERROR, ENTROPY_ERROR, NUM_ERRORS = (tl.constexpr(place) for place in range(3))

# bits of nodes that allow_kernel writes for each row
LET_THROUGH, BEST, DOUBTFUL, NUM_WORDS = (tl.constexpr(place) for place in range(4))

# of an accepted path: the slot after the last token, how many nodes, which
FIRST_SLOT, NUM_ACCEPTED, PATH = (tl.constexpr(place) for place in range(3))
