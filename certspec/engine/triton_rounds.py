"""What happens between the passes of a round on the GPU, as Triton kernels: inputs from the rows' lengths, argmaxes,
the accepted part of a chain. This module knows nothing about models; CHAINED: see triton_linear.py."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["begin_kernel", "choose_kernel", "replay_kernel", "settle_kernel", "tops_kernel"]

_NOWHERE = tl.constexpr(2147483647)


@triton.jit
def begin_kernel(base, slope, row_of, from_tail, lengths, tail, inputs, count, BLOCK: tl.constexpr):
    """inputs[i] = base[i] + slope[i] * lengths[row_of[i]], or tail[from_tail[i]] where that is no -1."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    row = tl.load(row_of + i, mask=inside, other=0)
    value = tl.load(base + i, mask=inside) + tl.load(slope + i, mask=inside) * tl.load(lengths + row, mask=inside)
    source = tl.load(from_tail + i, mask=inside, other=-1)
    value = tl.where(source >= 0, tl.load(tail + source, mask=inside & (source >= 0), other=0), value)
    tl.store(inputs + i, value, mask=inside)


@triton.jit
def tops_kernel(logits, step, columns, tops, ids, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """The largest of BLOCK logits of a row, and its lowest id. Grid (rows, parts); ``tops``, ``ids``: (rows, parts)."""
    row, part = tl.program_id(0), tl.program_id(1)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    i = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row.to(tl.int64) * step + i, mask=i < columns, other=float("-inf"))
    top = tl.max(value, 0)
    at = row * tl.num_programs(1) + part
    tl.store(tops + at, top)
    tl.store(ids + at, tl.min(tl.where((value == top) & (i < columns), i, _NOWHERE), 0))


@triton.jit
def _best(tops, ids, rows, real, parts, columns, BLOCK_P: tl.constexpr):
    """Lowest id of the largest logit of each row. A row of NaN has no maximum: any id will do, as it is refused."""
    p = tl.arange(0, BLOCK_P)
    at = rows[:, None] * parts + p[None, :]
    inside = real[:, None] & (p[None, :] < parts)
    value = tl.load(tops + at, mask=inside, other=float("-inf"))
    index = tl.load(ids + at, mask=inside, other=_NOWHERE)
    top = tl.max(value, 1)
    best = tl.min(tl.where(value == top[:, None], index, _NOWHERE), 1)
    return tl.minimum(best, columns - 1).to(tl.int64)


@triton.jit
def choose_kernel(
    tops, ids, parts, columns, to_draft, to_target, target_step, to_chain, chain_step,
    BLOCK_P: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The argmax of a row: the token of the draft's next node, of the target's node, and of the chain. Grid (rows,)."""
    row = tl.program_id(0)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    rows = row + tl.arange(0, 1)
    token = tl.sum(_best(tops, ids, rows, rows >= 0, parts, columns, BLOCK_P), 0)
    tl.store(to_draft + row * 4, token)
    tl.store(to_target + row * target_step, token)
    tl.store(to_chain + row * chain_step, token)


@triton.jit
def replay_kernel(logits, columns, chain, pattern, pattern_length, rounds, length, HIGH: tl.constexpr):
    """Edit one target logit a node, so that the first pattern[rounds[row]] drafted tokens are accepted, no more."""
    row = tl.program_id(0)
    accepted = tl.load(pattern + tl.load(rounds + row) % pattern_length)
    for node in range(length):
        if node <= accepted:
            token = tl.load(chain + row * length + node)
            value = tl.where(node < accepted, HIGH, -HIGH)
            tl.store(logits + (row * (length + 1) + node).to(tl.int64) * columns + token, value)


@triton.jit
def settle_kernel(
    tops, ids, parts, columns, chain, allowed, active, tail, lengths, rounds, report, length,
    STRICT: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """How much of a row's chain is accepted, what is emitted, and the row's new tail and length. Grid (rows,).

    ``chain``: (rows, length) drafted tokens; node j of ``length + 1`` target rows is what follows j of them.
    ``allowed``: (rows, length + 1) uint8 verdicts of the rule, unless STRICT (then: the target's argmax). ``report``:
    (rows, length + 2): number accepted, then the tokens, of which the first accepted + 1 are emitted. A row that is not
    ``active`` reports and stays as it is.
    """
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    drafted = j < length
    nodes = row * (length + 1) + j
    best = _best(tops, ids, nodes, j <= length, parts, columns, BLOCK_P)
    token = tl.load(chain + row * length + j, mask=drafted, other=-1)
    good = token == best
    if not STRICT:
        good = tl.load(allowed + nodes, mask=drafted, other=0) != 0
    good = good & drafted
    accepted = tl.min(tl.where(good, BLOCK_J, tl.minimum(j, length)), 0)
    token = tl.where(j < accepted, token, best)
    tl.store(report + row * (length + 2), accepted.to(tl.int64))
    tl.store(report + row * (length + 2) + 1 + j, token, mask=j <= length)
    if tl.load(active + row) != 0:
        last = tl.sum(tl.where(j == accepted, token, 0), 0)
        before = tl.sum(tl.where(j == accepted - 1, token, 0), 0)
        before = tl.where(accepted == 0, tl.load(tail + row * 2 + 1), before)
        tl.store(tail + row * 2, before)
        tl.store(tail + row * 2 + 1, last)
        tl.store(lengths + row, tl.load(lengths + row) + accepted + 1)
        tl.store(rounds + row, tl.load(rounds + row) + 1)
