"""What happens between the passes of a round on the GPU, as Triton kernels: inputs from the rows'
lengths, the draft's best candidates, the accepted path through a tree, and its move to the front of
the cache. CHAINED: see triton_linear.py. The twin of ``walk_block`` in decoding;
test_tree_rounds.py holds it to that.

A tree's nodes are numbered from 0; its target rows are one more, row 0 being the last token and row
i + 1 node i. Sets of nodes are bits of an int64. Example: of the tree a, b after the last token and
c after a (nodes 0, 1, 2), the target lets a and c through: bits 0b101. The ancestors of c, itself
included, are 0b101 too, all let through, so c is on the accepted path; b is not."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.models.cuda.triton_columns import (
    ACTIVE,
    ANCESTORS,
    BEFORE,
    BEST,
    CAP,
    DEPTHS,
    DOUBTFUL,
    ENTROPY,
    ENTROPY_ERROR,
    ENTROPY_SCALE,
    FIRST_SLOT,
    LAST,
    LENGTH,
    LET_THROUGH,
    NO_NODE,
    NODE_COLUMNS,
    NORMALISER_ERROR,
    NUM_ACCEPTED,
    NUM_ERRORS,
    NUM_WORDS,
    OFFSET,
    PARENTS,
    PATH,
    ROUNDS,
    ROW_COLUMNS,
    SCALE,
    SPAN_CACHE_ROW,
    SPAN_COLUMNS,
    STRICTLY_ABOVE,
    TOKEN,
    TOP_M,
    TOP_PROBS,
)
from certspec.models.cuda.triton_linear import begin

__all__ = [
    "NOWHERE",
    "allow_kernel",
    "begin_kernel",
    "choose_kernel",
    "compact_kernel",
    "settle_kernel",
    "take_ranked",
    "tops_kernel",
]
NOWHERE = tl.constexpr(2147483647)  # above all ids
_ROUNDING = tl.constexpr(1e-12)  # relative; far above that of a few float64 operations


@triton.jit
def begin_kernel(base, slope, row_of, token_of, state, inputs, count, BLOCK: tl.constexpr):
    """inputs[i] = base[i] + slope[i] * the length of row row_of[i], or that row's token_of[i] where
    it is no -1; ``state``: (rows, ROW_COLUMNS)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    own = state + tl.load(row_of + i, mask=inside, other=0) * ROW_COLUMNS
    value = tl.load(base + i, mask=inside) + tl.load(slope + i, mask=inside) * tl.load(
        own + LENGTH, mask=inside
    )
    token = tl.load(token_of + i, mask=inside, other=-1)
    value = tl.where(token >= 0, tl.load(own + token, mask=inside & (token >= 0), other=0), value)
    tl.store(inputs + i, value, mask=inside)


@triton.jit
def tops_kernel(
    logits,
    step,
    columns,
    tops,
    ids,
    sums,
    COUNT: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """The COUNT largest of BLOCK logits of a row, ties by the lowest id, and (SUMS) the sum of
    exp(logit - largest), 0 where all are -inf. Grid (rows, parts); ``tops``, ``ids``: (rows, parts,
    COUNT), ``sums``: (rows, parts)."""
    row, part = tl.program_id(0), tl.program_id(1)
    begin(None, CHAINED)
    i = part * BLOCK + tl.arange(0, BLOCK)
    free = i < columns
    value = tl.load(logits + row.to(tl.int64) * step + i, mask=free, other=float("-inf"))
    at = (row * tl.num_programs(1) + part) * COUNT
    if SUMS:
        highest = tl.max(value, 0)
        weights = tl.exp(value - tl.where(highest == float("-inf"), 0.0, highest))
        tl.store(sums + row * tl.num_programs(1) + part, tl.sum(weights, 0))
    for rank in range(COUNT):
        top = tl.max(tl.where(free, value, float("-inf")), 0)
        best = tl.min(tl.where(free & (value == top), i, NOWHERE), 0)
        tl.store(tops + at + rank, top)
        tl.store(ids + at + rank, best)
        free = free & (i != best)


@triton.jit
def take_ranked(value, index, free, columns, COUNT: tl.constexpr, BLOCK_C: tl.constexpr):
    """The COUNT largest of the ``free`` values, as blocks of their ids and values, ties by the
    lowest id; ids of a row of NaN, which has no maximum and is refused, are any."""
    c = tl.arange(0, BLOCK_C)
    ids = tl.zeros((BLOCK_C,), tl.int64)
    values = tl.full((BLOCK_C,), float("-inf"), tl.float32)
    for rank in range(COUNT):
        top = tl.max(tl.where(free, value, float("-inf")), 0)
        best = tl.min(tl.where(free & (value == top), index, NOWHERE), 0)
        ids = tl.where(c == rank, tl.minimum(best, columns - 1).to(tl.int64), ids)
        values = tl.where(c == rank, top, values)
        free = free & (index != best)
    return ids, values


@triton.jit
def _best(tops, ids, rows, real, parts, columns, BLOCK_P: tl.constexpr):
    """Lowest id of the largest logit of each row; of a row of NaN any id, see take_ranked."""
    p = tl.arange(0, BLOCK_P)
    at = rows[:, None] * parts + p[None, :]
    inside = real[:, None] & (p[None, :] < parts)
    value = tl.load(tops + at, mask=inside, other=float("-inf"))
    index = tl.load(ids + at, mask=inside, other=NOWHERE)
    top = tl.max(value, 1)
    best = tl.min(tl.where(value == top[:, None], index, NOWHERE), 1)
    return tl.minimum(best, columns - 1).to(tl.int64)


@triton.jit
def choose_kernel(
    tops,
    ids,
    found,
    columns,
    choices,
    per_row,
    to_draft,
    draft_step,
    to_target,
    target_step,
    drafted,
    num_nodes,
    COUNT: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """The COUNT best candidates of a row, as tokens of the draft's next nodes, of the target's
    nodes and of the tree.

    ``tops``, ``ids``: (rows, ``found``). ``choices``: (per_row, COUNT, 2), see RoundLayout.choices;
    ``to_draft``: NODE_COLUMNS a node, ``to_target``: the same from the first node of the tree on.
    Grid (batch * per_row,)."""
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK_C)
    at = choices + (row % per_row * COUNT + c) * 2
    node = tl.load(at, mask=c < COUNT, other=-1)  # fixed, so it may be read before the wait
    following = tl.load(at + 1, mask=c < COUNT, other=-1)
    begin(None, CHAINED)
    p = tl.arange(0, BLOCK_P)
    free = p < found
    value = tl.load(tops + row * found + p, mask=free, other=float("-inf"))
    index = tl.load(ids + row * found + p, mask=free, other=NOWHERE)
    token, _ = take_ranked(value, index, free, columns, COUNT, BLOCK_C)
    batch = row // per_row
    after, verified = following * NODE_COLUMNS + TOKEN, node * NODE_COLUMNS + TOKEN
    tl.store(to_draft + batch * draft_step + after, token, mask=following >= 0)
    tl.store(to_target + batch * target_step + verified, token, mask=node >= 0)
    tl.store(drafted + batch * num_nodes + node, token, mask=node >= 0)


@triton.jit
def allow_kernel(
    logits,
    columns,
    drafted,
    tree,
    tree_step,
    num_nodes,
    allowed,
    ids,
    scalars,
    errors,
    parameters,
    words,
    gaps,
    WEIGHT_ERROR: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Which nodes a relaxed rule lets through where a node may have several candidates: of each
    node's children the one that the target likes best (ties: lowest id), where the kernel lets the
    draft's argmax through or the rule that one.

    ``allowed``, ``ids``, ``scalars``, ``errors``: of the scoring kernels, see FastScores;
    ``parameters``: the rule's row of the table. Written: ``words`` (rows, NUM_WORDS) int64, bits of
    nodes: let through, best of its siblings, too near the threshold for the statistics' errors
    (then what is said holds for nothing); ``gaps`` (rows, nodes) float64: the node's target logit
    less the largest. Grid (rows,)."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK_N)
    real = i < num_nodes
    parent = tl.load(tree + row * tree_step + num_nodes * PARENTS + i, mask=real, other=NO_NODE)
    real = parent > NO_NODE
    token = tl.load(drafted + row * num_nodes + i, mask=real, other=0)
    home = (row * (num_nodes + 1) + tl.maximum(parent, -1) + 1).to(tl.int64)
    value = tl.load(logits + home * columns + token, mask=real, other=0.0)
    top_id = tl.load(ids + home * TOP, mask=real, other=0)
    top = tl.load(
        logits + home * columns + tl.minimum(tl.maximum(top_id, 0), columns - 1),
        mask=real,
        other=0.0,
    )
    gap = value.to(tl.float64) - top.to(tl.float64)
    tl.store(gaps + row * num_nodes + i, gap, mask=real)
    siblings = (parent[:, None] == parent[None, :]) & real[:, None] & real[None, :]
    earlier = (token[None, :] < token[:, None]) | (
        (token[None, :] == token[:, None]) & (i[None, :] < i[:, None])
    )
    ahead = (value[None, :] > value[:, None]) | ((value[None, :] == value[:, None]) & earlier)
    best = real & (tl.sum((siblings & ahead).to(tl.int32), 1) == 0)
    several = tl.sum(siblings.to(tl.int32), 1) > 1

    top_m = tl.load(parameters + TOP_M) + tl.zeros((BLOCK_N,), tl.float64)
    scale, offset = tl.load(parameters + SCALE), tl.load(parameters + OFFSET)
    cap, entropy_scale = tl.load(parameters + CAP), tl.load(parameters + ENTROPY_SCALE)
    strictly = tl.load(parameters + STRICTLY_ABOVE) != 0.0
    own, error = scalars + home * (TOP_PROBS + TOP), errors + home * NUM_ERRORS
    entropy = tl.load(own + ENTROPY, mask=real, other=0.0)
    top_prob = tl.load(own + TOP_PROBS, mask=real, other=1.0)
    relative = tl.load(error + NORMALISER_ERROR, mask=real, other=0.0) + WEIGHT_ERROR + _ROUNDING
    entropy_error = tl.load(error + ENTROPY_ERROR, mask=real, other=0.0) + _ROUNDING
    within = top_m == 0.0
    for rank in range(TOP):
        found = tl.load(ids + home * TOP + rank, mask=real, other=-1)
        within = within | ((found == token) & (rank < top_m))
    prob = top_prob * tl.exp(gap)
    tau = tl.minimum(cap, tl.minimum(scale * top_prob + offset, entropy_scale * tl.exp(-entropy)))
    reach = tl.abs(scale) * top_prob * relative
    low = tl.minimum(
        cap,
        tl.minimum(
            scale * top_prob + offset - reach, entropy_scale * tl.exp(-entropy - entropy_error)
        ),
    )
    high = tl.minimum(
        cap,
        tl.minimum(
            scale * top_prob + offset + reach, entropy_scale * tl.exp(-entropy + entropy_error)
        ),
    )
    room = _ROUNDING * (
        tl.abs(tau) + tl.abs(scale * top_prob) + tl.where(tl.abs(offset) < 2.0, tl.abs(offset), 0.0)
    )
    clear = (prob * (1.0 - relative) > high + room) | (prob * (1.0 + relative) < low - room)
    passes = tl.where(strictly, prob > tau, prob >= tau)
    let = tl.load(allowed + home, mask=real, other=0) != 0
    good = best & (let | (several & within & passes))
    doubtful = best & (let == 0) & several & within & (clear == 0)
    bit, word = tl.full((BLOCK_N,), 1, tl.int64) << i, words + row * NUM_WORDS
    tl.store(word + LET_THROUGH, tl.sum(tl.where(good, bit, 0), 0))
    tl.store(word + BEST, tl.sum(tl.where(best, bit, 0), 0))
    tl.store(word + DOUBTFUL, tl.sum(tl.where(doubtful, bit, 0), 0))


@triton.jit
def settle_kernel(
    tops,
    ids,
    parts,
    columns,
    drafted,
    tree,
    tree_step,
    num_nodes,
    depth,
    allowed,
    words,
    state,
    report,
    moves,
    STRICT: tl.constexpr,
    SEVERAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Which path of a row's tree is accepted, what is emitted, and the row's new ``state``, (rows,
    ROW_COLUMNS). Grid (rows,).

    ``drafted``: (rows, nodes) tokens. ``tree``: parents, depths and ancestors, as many as nodes
    each. A node is let through where its token is the target's argmax (STRICT), or else as
    ``allowed`` says, (rows, nodes + 1) uint8 verdicts on each node's only child, or (SEVERAL) the
    row's ``words``, see allow_kernel. ``report``: (rows, 2 * depth + 2): number accepted, then the
    tokens, of which the first accepted + 1 are emitted, then the accepted nodes. ``moves``: (rows,
    depth + PATH): first slot after the last token, number and nodes of the path. A row that is not
    ``active`` reports and stays as it is."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK_N)
    real = i < num_nodes
    at = tree + row * tree_step + i
    parent = tl.load(at + num_nodes * PARENTS, mask=real, other=NO_NODE)
    real = parent > NO_NODE
    level = tl.load(at + num_nodes * DEPTHS, mask=real, other=0)
    above = tl.load(at + num_nodes * ANCESTORS, mask=real, other=0)
    token = tl.load(drafted + row * num_nodes + i, mask=real, other=-1)
    home = row * (num_nodes + 1) + tl.maximum(parent, -1) + 1
    one = tl.full((BLOCK_N,), 1, tl.int64)
    if STRICT:
        good = token == _best(tops, ids, home, real, parts, columns, BLOCK_P)
        bits = tl.sum(tl.where(good & real, one << i, 0), 0)
    elif SEVERAL:
        bits = tl.load(words + row * NUM_WORDS + LET_THROUGH)
    else:
        good = tl.load(allowed + home, mask=real, other=0) != 0
        bits = tl.sum(tl.where(good & real, one << i, 0), 0)
    on = real & ((above & ~bits) == 0)
    # of a row of NaN, which is refused, several children may be one token: the report keeps its
    # size
    accepted = tl.minimum(tl.sum(on.to(tl.int32), 0), depth)
    last = tl.max(tl.where(on, i, -1), 0)
    rows = row * (num_nodes + 1) + last + 1 + tl.arange(0, 1)
    final = tl.sum(_best(tops, ids, rows, rows >= 0, parts, columns, BLOCK_P), 0)
    out = report + row * (2 * depth + 2)
    tl.store(out, accepted.to(tl.int64))
    tl.store(out + level, token, mask=on & (level <= accepted))
    tl.store(out + 1 + accepted, final)
    tl.store(out + depth + 1 + level, i.to(tl.int64), mask=on & (level <= accepted))
    own = state + row * ROW_COLUMNS
    is_active = tl.load(own + ACTIVE) != 0
    length = tl.load(own + LENGTH)
    move = moves + row * (depth + PATH)
    tl.store(move + FIRST_SLOT, length + 1)
    tl.store(move + NUM_ACCEPTED, tl.where(is_active, accepted, 0).to(tl.int64))
    tl.store(move + PATH + level - 1, i.to(tl.int64), mask=on & (level <= accepted))
    if is_active:
        before = tl.sum(tl.where(i == last, token, 0), 0)
        before = tl.where(accepted == 0, tl.load(own + LAST), before)
        tl.store(own + BEFORE, before)
        tl.store(own + LAST, final)
        tl.store(own + LENGTH, length + accepted + 1)
        tl.store(own + ROUNDS, tl.load(own + ROUNDS) + 1)


@triton.jit
def compact_kernel(
    keys,
    values,
    moves,
    depth,
    places,
    places_step,
    spans,
    table,
    slots,
    longest,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Move the accepted path of a row to the slots that follow its last token. ``places``: by node,
    its slot from there (-1: not in this cache, which only the end of a path can be). ``keys``,
    ``values``: (layers, kv_heads, slots, HEAD_DIM), in the pages of ``table``. Grid (layers *
    kv_heads, batch).

    Example: the path is the nodes 0 and 2, which lie in slots 101 and 103 after the last token in
    slot 100: 103 is copied to 102."""
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    move = moves + batch * (depth + PATH)
    first, count = tl.load(move + FIRST_SLOT), tl.load(move + NUM_ACCEPTED)
    d = tl.arange(0, BLOCK_D)
    node = tl.load(move + PATH + d, mask=d < count, other=0)
    source = tl.load(places + batch * places_step + node, mask=d < count, other=-1)
    moved = (source >= 0) & (source != d)
    if tl.max(moved.to(tl.int32), 0) > 0:
        cache_row = tl.load(spans + batch * SPAN_COLUMNS + SPAN_CACHE_ROW)
        pages = table + cache_row * longest
        e = tl.arange(0, HEAD_DIM)
        source, aim = first + tl.maximum(source, 0), first + d
        from_page = tl.load(pages + source // PAGE, mask=moved, other=0)
        to_page = tl.load(pages + aim // PAGE, mask=moved, other=0)
        old = head * slots + from_page * PAGE + source % PAGE
        new = head * slots + to_page * PAGE + aim % PAGE
        old = old[:, None] * HEAD_DIM + e[None, :]
        new = new[:, None] * HEAD_DIM + e[None, :]
        key = tl.load(keys + old, mask=moved[:, None])
        value = tl.load(values + old, mask=moved[:, None])
        tl.debug_barrier()  # a slot may be read for one node and written for another
        tl.store(keys + new, key, mask=moved[:, None])
        tl.store(values + new, value, mask=moved[:, None])
