"""A draft tree grown on the GPU, as Triton kernels: the candidates of the nodes just run, which
nodes the draft runs next, and which are verified. CHAINED: see triton_linear.py, and for the
numbering of candidates and slots GrowthLayout. The twin of ``draft_blocks`` and ``ScoredGrower``
in decoding; test_tree_rounds.py holds it to them.

``scores``: (rows, candidates) float64, products along the path, -1 where there is no candidate: of
the draft's probabilities, best first (KIND -1), or of the shares that a policy's ``numbers`` give,
see candidate_shares. ``run``: (rows, slots) int64, the candidate that each slot holds (-1: none).
``counts``: (levels, 2) int64, whose first column says how many nodes the draft runs at a level;
where it is 0, the level's passes end at once. Ties go to the lower number.

Example, best first: the last token's best two candidates have draft probabilities .6 and .3, and
those of the first one .5 and .4. Scores are .6, .3, .6 * .5 = .3, .6 * .4 = .24; with three nodes
to verify, candidates 0, 1 and 2 are kept (1 before 2, being the lower number of equal scores)."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.kernels.loading import load_kernels
from certspec.models.cuda.triton_columns import (
    ANCESTORS,
    BAR,
    DEPTHS,
    END,
    KEEP_SCORE,
    LENGTH,
    NO_NODE,
    NODE_COLUMNS,
    PARENTS,
    POSITION,
    ROW_COLUMNS,
    RUN_SCORE,
    TOKEN,
    TREE_PARTS,
)
from certspec.models.cuda.triton_linear import begin
from certspec.models.cuda.triton_rounds import NOWHERE, take_ranked
from certspec.models.growth import BUDGET

__all__ = ["candidate_shares", "candidates_kernel", "gather_kernel", "grow_kernel", "select_kernel"]


_kernels = load_kernels("drafter", "triton")

_surplus, _strict_radius, _pool_radius = (
    _kernels.surplus,
    _kernels.strict_radius,
    _kernels.pool_radius,
)

_BUDGET = tl.constexpr(BUDGET)  # this kind and those after it read certificates


@triton.jit
def _at(values, place):
    """The value at one place of a block."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == place, values, 0.0), 0)


@triton.jit
def _radius(prob, logs, tail, width, RANKS: tl.constexpr):
    """The drafter-side certificate [nats] of Tree(width) (1: strict) from the RANKS largest
    probabilities ``prob`` (sorted), their logarithms, and what they leave of 1. Claims:
    drafter.strict, drafter.tree."""
    c = tl.arange(0, prob.shape[0])
    inside = c < RANKS
    if width == 1:
        rest = tail + tl.sum(tl.where(inside & (c >= 2), prob, 0.0), 0)
        return _strict_radius(_at(prob, 0), _at(prob, 1), rest)
    # the token after the ``width`` best rises to all of them that join its pool (projection.lift)
    known = tl.where(c <= width, logs, 0.0)
    own = _at(known, width)
    before = tl.cumsum(known, 0) - known
    joins = (c < width) & (known > (before + own) / (c + 1).to(tl.float64))
    pooled = joins | (c == width)
    size = tl.sum(tl.where(pooled, 1.0, 0.0).to(tl.float64), 0)
    level = tl.sum(tl.where(pooled, known, 0.0), 0) / size
    surplus = tl.sum(tl.where(pooled, _surplus(known - level), 0.0), 0)
    rest = tail + tl.sum(tl.where(inside & (pooled == 0), prob, 0.0), 0)
    radius = _pool_radius(surplus, tl.exp(level), rest, size)
    return tl.where(_at(prob, width) > 0.0, radius, float("inf"))


@triton.jit
def _read(table, longest, certificate, BLOCK: tl.constexpr):
    """A monotone map at a certificate, linear between knots (``MonotoneMap.at``). ``table``:
    ``longest`` knots, filled up with infinity, then their values, filled up with the last."""
    k = tl.arange(0, BLOCK)
    knots = tl.load(table + k, mask=k < longest, other=float("inf"))
    above = tl.sum(((knots <= certificate) & (k < longest)).to(tl.int32), 0)
    below = tl.maximum(above - 1, 0)
    x1, y1 = tl.load(table + below), tl.load(table + longest + below)
    between = (above > 0) & (above < longest)
    x2 = tl.load(table + above, mask=between, other=float("inf"))
    y2 = tl.load(table + longest + above, mask=between, other=0.0)
    between = between & (x2 < float("inf"))
    slope = tl.where(between, (y2 - y1) / tl.where(between, x2 - x1, 1.0), 0.0)
    return y1 + tl.where(between, certificate - x1, 0.0) * slope


@triton.jit
def candidate_shares(
    prob,
    numbers,
    tables,
    longest,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Each candidate's score given the node, (block,) float64, -1 where there is none. ``prob``:
    (block,) float64, the draft's RANKS largest probabilities, sorted; ``numbers``, ``tables``:
    GrowthNumbers.arrays, float64."""
    c = tl.arange(0, prob.shape[0])
    share = tl.where(c == 0, 1.0, 0.5).to(tl.float64)
    if KIND >= _BUDGET:
        logs = tl.log(tl.where(prob > 0.0, prob, 1.0))
        inside = tl.where(c < RANKS, prob, 0.0)
        tail = tl.maximum(1.0 - tl.sum(inside, 0), 0.0)
        if KIND == _BUDGET:
            bar = tl.load(numbers + BAR)
            needed = tl.full((), WIDTH, tl.int32)
            covered = tl.full((), 0, tl.int32)
            for back in tl.static_range(WIDTH):
                enough = _radius(inside, logs, tail, WIDTH - back, RANKS) > bar
                needed = tl.where(enough, WIDTH - back, needed)
                covered = tl.where(enough, 1, covered)
            share = tl.where(c == 0, tl.where(covered > 0, 1.0, 0.5), 0.5).to(tl.float64)
            share = tl.where(c < needed, share, -1.0)
        else:
            before = tl.full((), 0.0, tl.float64)
            least = tl.full((), 1.0, tl.float64)
            for rank in tl.static_range(WIDTH):
                table = tables + 2 * rank * longest
                covered = tl.maximum(
                    before,
                    _read(table, longest, _radius(inside, logs, tail, rank + 1, RANKS), BLOCK_K),
                )
                least = tl.minimum(covered - before, least)
                before = covered
                share = tl.where(c == rank, least, share)
    return tl.where(c < WIDTH, share, -1.0)


@triton.jit
def candidates_kernel(
    tops,
    ids,
    sums,
    parts,
    columns,
    run,
    num_slots,
    first_slot,
    scores,
    tokens,
    num_candidates,
    per_row,
    counts,
    numbers,
    tables,
    longest,
    num_levels,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """The WIDTH best candidates of a node that was run, and their scores from the COUNT largest
    logits. ``tops``, ``ids``, ``sums``: of tops_kernel; ``first_slot``: of the level, negative for
    the last token, which begins a tree. Best-first probabilities are float32. Grid (batch *
    per_row,)."""
    row = tl.program_id(0)
    batch, j = row // per_row, row % per_row
    begin(None, CHAINED)
    p = tl.arange(0, BLOCK_P)
    free = p < parts * COUNT
    value = tl.load(tops + row * parts * COUNT + p, mask=free, other=float("-inf"))
    index = tl.load(ids + row * parts * COUNT + p, mask=free, other=NOWHERE)
    q = tl.arange(0, BLOCK_Q)
    part_top = tl.load(tops + (row * parts + q) * COUNT, mask=q < parts, other=float("-inf"))
    part_sum = tl.load(sums + row * parts + q, mask=q < parts, other=0.0)
    highest = tl.max(part_top, 0)
    total = tl.sum(tl.where(part_sum > 0.0, part_sum * tl.exp(part_top - highest), 0.0), 0)
    slot = tl.where(first_slot >= 0, first_slot + j, -1)
    held = tl.load(run + batch * num_slots + slot, mask=slot >= 0, other=-1)
    above = tl.load(scores + batch * num_candidates + held, mask=held >= 0, other=-1.0)
    above = tl.where(slot >= 0, above, 1.0)
    c = tl.arange(0, BLOCK_C)
    token, logit = take_ranked(value, index, free, columns, COUNT, BLOCK_C)
    if KIND < 0:
        prob = tl.exp(logit - highest) / total
        prob = tl.where(prob >= 0.0, prob, 0.0)  # of a row of NaN, which is refused
        share = tl.minimum(prob, 1.0).to(tl.float64)
    else:
        exact = tl.exp(logit.to(tl.float64) - highest.to(tl.float64)) / total.to(tl.float64)
        exact = tl.minimum(tl.where(exact >= 0.0, exact, 0.0), 1.0)
        share = candidate_shares(exact, numbers, tables, longest, KIND, WIDTH, COUNT, BLOCK_K)
    score = tl.where(above >= 0.0, tl.where(share >= 0.0, above * share, -1.0), -1.0)
    at = batch * num_candidates + (slot + 1) * WIDTH + c
    tl.store(scores + at, score, mask=c < WIDTH)
    tl.store(tokens + at, token, mask=c < WIDTH)
    if first_slot < 0 and row == 0:
        for level in range(1, num_levels):
            tl.store(counts + 2 * level, tl.full((), 0, tl.int64))


@triton.jit
def grow_kernel(
    scores,
    tokens,
    num_candidates,
    first,
    fresh,
    run,
    run_masks,
    num_slots,
    next_slot,
    nodes,
    masks,
    budget,
    beam,
    count,
    numbers,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_A: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Which of the candidates ``first``, ..., ``first + fresh - 1`` the draft runs next, in the
    order of their numbers: of the ``beam`` best those that fewer than ``budget`` candidates so far
    equal or exceed (KIND -1), or whose score reaches what ``numbers`` ask of a node that is run.

    Written: their slots from ``next_slot`` on, with the bits of the slots above each
    (``run_masks``), the inputs of the draft's next pass, and how many nodes of all rows that runs
    (``count``). Grid (batch,)."""
    batch = tl.program_id(0)
    begin(None, CHAINED)
    f = tl.arange(0, BLOCK_F)
    own = scores + batch * num_candidates
    score = tl.load(own + first + f, mask=f < fresh, other=-1.0)
    if KIND < 0:
        reached = tl.zeros((BLOCK_F,), tl.int32)
        for start in range(0, first + fresh, BLOCK_A):
            a = start + tl.arange(0, BLOCK_A)
            other = tl.load(own + a, mask=a < first + fresh, other=-1.0)
            reached += tl.sum((other[None, :] >= score[:, None]).to(tl.int32), 1)
        worth = (score > 0.0) & (reached < budget)
    else:
        worth = (score >= 0.0) & (score >= tl.load(numbers + RUN_SCORE))
    ahead = (score[None, :] > score[:, None]) | (
        (score[None, :] == score[:, None]) & (f[None, :] < f[:, None])
    )
    rank = tl.sum(ahead.to(tl.int32), 1)
    chosen = worth & (rank < beam)
    number = tl.sum(((f[None, :] < f[:, None]) & chosen[None, :]).to(tl.int32), 1)
    total = tl.sum(chosen.to(tl.int32), 0)
    tl.atomic_add(count, total.to(tl.int64))
    parent = (first + f) // WIDTH - 1  # its slot
    inherited = tl.load(
        run_masks + batch * num_slots + parent, mask=chosen & (parent >= 0), other=0
    )
    token = tl.load(tokens + batch * num_candidates + first + f, mask=chosen, other=0)
    slot = next_slot + number
    one = tl.full((BLOCK_F,), 1, tl.int64)
    mask = (one << slot) | inherited
    tl.store(run + batch * num_slots + slot, (first + f).to(tl.int64), mask=chosen)
    tl.store(run_masks + batch * num_slots + slot, mask, mask=chosen)
    inputs = nodes + batch * beam * NODE_COLUMNS + TOKEN
    tl.store(inputs + number * NODE_COLUMNS, token, mask=chosen)
    tl.store(masks + batch * beam + number, mask, mask=chosen)
    # slots that hold nothing: nobody sees what is run there
    empty = (f >= total) & (f < beam)
    tl.store(
        run + batch * num_slots + next_slot + f, tl.zeros((BLOCK_F,), tl.int64) - 1, mask=empty
    )
    tl.store(run_masks + batch * num_slots + next_slot + f, one << (next_slot + f), mask=empty)
    tl.store(inputs + f * NODE_COLUMNS, tl.zeros((BLOCK_F,), tl.int64), mask=empty)
    tl.store(masks + batch * beam + f, one << (next_slot + f), mask=empty)


@triton.jit
def select_kernel(
    scores,
    tokens,
    num_candidates,
    run,
    num_slots,
    state,
    depth,
    num_nodes,
    beam,
    index,
    drafted,
    tree,
    places,
    nodes,
    masks,
    numbers,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """The ``num_nodes`` best candidates, in the order of their numbers, as the tree that is
    verified; none deeper than leaves room for one more token before the sequence's end, see
    ``state`` (rows, ROW_COLUMNS), and none whose score is less than what ``numbers`` ask of a node
    that is verified (KIND -1: any). Grid (batch,).

    Written: ``index`` (rows, candidates): the node that a candidate became (-1: none); ``drafted``
    and ``tree`` as the kernels of triton_rounds.py read them, ``places`` (rows, nodes): each node's
    slot in the draft (-1: none); the target's inputs."""
    batch = tl.program_id(0)
    own = scores + batch * num_candidates
    length = tl.load(state + batch * ROW_COLUMNS + LENGTH)
    room = tl.minimum(tl.load(state + batch * ROW_COLUMNS + END) - length - 2, depth)
    c = tl.arange(0, BLOCK_C)
    level = tl.where(c < WIDTH, 1, 2 + (c - WIDTH) // (beam * WIDTH))
    score = tl.load(own + c, mask=(c < num_candidates) & (level <= room), other=-1.0)
    rank = tl.zeros((BLOCK_C,), tl.int32)
    for start in range(0, num_candidates, BLOCK_A):
        a = start + tl.arange(0, BLOCK_A)
        deep = tl.where(a < WIDTH, 1, 2 + (a - WIDTH) // (beam * WIDTH))
        other = tl.load(own + a, mask=(a < num_candidates) & (deep <= room), other=-1.0)
        ahead = (other[None, :] > score[:, None]) | (
            (other[None, :] == score[:, None]) & (a[None, :] < c[:, None])
        )
        rank += tl.sum(ahead.to(tl.int32), 1)
    kept = (score >= 0.0) & (rank < num_nodes)
    if KIND >= 0:
        kept = kept & (score >= tl.load(numbers + KEEP_SCORE))
    node = tl.cumsum(kept.to(tl.int32), 0) - 1
    total = tl.sum(kept.to(tl.int32), 0)
    tl.store(
        index + batch * num_candidates + c,
        tl.where(kept, node, -1).to(tl.int64),
        mask=c < num_candidates,
    )
    i = tl.arange(0, BLOCK_N)
    inside = i < num_nodes
    tl.store(places + batch * num_nodes + i, tl.zeros((BLOCK_N,), tl.int64) - 1, mask=inside)
    tl.debug_barrier()
    slot = c // WIDTH - 1
    above = tl.load(run + batch * num_slots + slot, mask=kept & (slot >= 0), other=-1)
    parent = tl.load(index + batch * num_candidates + above, mask=kept & (above >= 0), other=-1)
    token = tl.load(tokens + batch * num_candidates + c, mask=kept, other=0)
    home = tree + batch * TREE_PARTS * num_nodes
    parents, depths = home + num_nodes * PARENTS, home + num_nodes * DEPTHS
    tl.store(parents + node, parent, mask=kept)
    tl.store(depths + node, level.to(tl.int64), mask=kept)
    tl.store(drafted + batch * num_nodes + node, token, mask=kept)
    empty = inside & (i >= total)
    tl.store(parents + i, tl.full((BLOCK_N,), NO_NODE, tl.int64), mask=empty)
    tl.store(depths + i, tl.zeros((BLOCK_N,), tl.int64), mask=empty)
    tl.store(drafted + batch * num_nodes + i, tl.zeros((BLOCK_N,), tl.int64), mask=empty)
    s = tl.arange(0, BLOCK_S)
    held = tl.load(run + batch * num_slots + s, mask=s < num_slots, other=-1)
    became = tl.load(index + batch * num_candidates + held, mask=held >= 0, other=-1)
    tl.store(places + batch * num_nodes + became, s.to(tl.int64), mask=became >= 0)
    tl.debug_barrier()
    one = tl.full((BLOCK_N,), 1, tl.int64)
    bits = one << i
    step = tl.load(parents + i, mask=i < total, other=-1)
    for _ in range(depth):
        bits = bits | tl.where(step >= 0, one << tl.maximum(step, 0), 0)
        step = tl.load(parents + step, mask=step >= 0, other=-1)
    own_depth = tl.load(depths + i, mask=inside, other=0)
    tl.store(home + num_nodes * ANCESTORS + i, bits, mask=inside)
    at = batch * (num_nodes + 1) + 1 + i
    final = tl.load(drafted + batch * num_nodes + i, mask=inside, other=0)
    tl.store(nodes + at * NODE_COLUMNS + TOKEN, final, mask=inside)
    tl.store(nodes + at * NODE_COLUMNS + POSITION, length + own_depth, mask=inside)
    tl.store(masks + at, (bits << 1) | 1, mask=inside)


@triton.jit
def gather_kernel(
    staged,
    columns,
    run,
    num_slots,
    index,
    num_candidates,
    beam,
    batch,
    num_nodes,
    out,
    BLOCK: tl.constexpr,
):
    """Bring the draft's logits from the slots to the nodes that these became. ``staged``: (levels,
    batch, beam, columns); ``out``: (batch, num_nodes + 1, columns). Grid (batch * num_slots, column
    blocks)."""
    row, slot = tl.program_id(0) // num_slots, tl.program_id(0) % num_slots
    held = tl.load(run + row * num_slots + slot)
    if held >= 0:
        node = tl.load(index + row * num_candidates + held)
        if node >= 0:
            i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            source = ((slot // beam) * batch + row) * beam + slot % beam
            value = tl.load(staged + source.to(tl.int64) * columns + i, mask=i < columns, other=0.0)
            tl.store(
                out + (row * (num_nodes + 1) + node + 1) * columns + i, value, mask=i < columns
            )
