"""Drafts the blocks of a whole batch in one compiled call: after each draft pass the candidates,
their certificates and what to run next, without a return to Python.

It is the twin of ``draft_blocks`` and ``ScoredGrower`` in decoding, to the rounding of a
probability (these steer the draft and certify nothing); test_compiled_drafting.py holds it to
them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from certspec.certificates.coverage import radii
from certspec.kernels.compiled import compiled
from certspec.models.cpu.forward import forward_pass
from certspec.models.cpu.model import stage_nodes
from certspec.models.cpu.rows import sum_exp
from certspec.models.growth import ALL, BUDGET, GrowthNumbers

__all__ = [
    "LOGITS_ROW",
    "PARENT",
    "RANK",
    "STAGED_INDEX",
    "TOKEN_ID",
    "Drafts",
    "Growth",
    "grow_levels",
    "growth_of",
    "largest",
]

_CHUNK = 64  # logits looked through at a time
TOKEN_ID, PARENT, RANK, STAGED_INDEX, LOGITS_ROW = range(5)  # parts of Drafts.blocks


class Growth(NamedTuple):
    """``GrowthNumbers`` for compiled code; ``tables``: of PROFILE, (2 * width, longest) knots over
    values in turn."""

    kind: int
    width: int
    bar: float
    run_score: float
    keep_score: float
    max_nodes: int
    tables: np.ndarray[Any, Any]


class Drafts(NamedTuple):
    """Room for what is drafted. ``logits``: (rows, columns) of the draft, the drafting rows' roots
    first. ``blocks``: (5, batch, room), of each row's ``counts[row]`` nodes the token, parent,
    rank, staged index (-1: the draft has not run it) and row of ``logits`` (that of a node which
    was not run means nothing)."""

    logits: np.ndarray[Any, Any]
    blocks: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]


def growth_of(numbers: GrowthNumbers) -> Growth:
    return Growth(
        numbers.kind,
        numbers.width,
        float(numbers.bar),
        float(numbers.run_score),
        float(numbers.keep_score),
        numbers.max_nodes,
        numbers.arrays[1],
    )


@njit(error_model="numpy", nogil=True)
def _highest_key(bits, start, stop):
    """The largest of ``bits[start:stop]`` in an order of integers that agrees with that of the
    floats they stand for; LLVM makes vectors of an integer maximum, with NaNs or without."""
    highest = np.int32(-(2**31))
    for i in range(start, stop):
        key = bits[i] ^ ((bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        highest = key if key > highest else highest
    return highest


@njit(error_model="numpy", nogil=True)
def largest(values, count, ids):
    """ids[:count] = places of the largest of ``values`` (n,) float32, contiguous, sorted by
    (-value, place)."""
    bits = values.view(np.int32)
    for start in range(0, len(values), _CHUNK):
        stop = min(start + _CHUNK, len(values))
        if start >= count:
            last = bits[ids[count - 1]]
            if _highest_key(bits, start, stop) <= last ^ (
                (last >> np.int32(31)) & np.int32(0x7FFFFFFF)
            ):
                continue
        for i in range(start, stop):
            filled = min(i, count)
            if filled == count and not values[i] > values[ids[count - 1]]:
                continue
            place = min(filled, count - 1)
            while place > 0 and values[i] > values[ids[place - 1]]:
                ids[place] = ids[place - 1]
                place -= 1
            ids[place] = i


@njit(error_model="numpy", nogil=True)
def _coverage(tables, index, certificate):
    """Map ``index`` of the profile at a certificate (``MonotoneMap.at``)."""
    knots, values = tables[2 * index], tables[2 * index + 1]
    above = np.searchsorted(knots, certificate, side="right")
    if above == 0 or above == len(knots) or knots[above] == np.inf:
        return values[max(above - 1, 0)]
    slope = (values[above] - values[above - 1]) / (knots[above] - knots[above - 1])
    return values[above - 1] + (certificate - knots[above - 1]) * slope


@njit(error_model="numpy", nogil=True)
def _score(values, growth, ids, top, shares):
    """The best tokens at a draft row, their scores given the node in ``shares``; returns how many
    of them there are."""
    kind, width, bar = growth.kind, growth.width, growth.bar
    shares[:width] = 0.5
    shares[0] = 1.0
    if kind == ALL:
        largest(values, width, ids)
        return width
    largest(values, width + 1, ids)
    total = np.float64(sum_exp(values, values[ids[0]]))
    for rank in range(width + 1):
        top[0, rank] = min(
            np.exp(np.float64(values[ids[rank]]) - np.float64(values[ids[0]])) / total, 1.0
        )
    certificates = radii(top, width)
    if kind == BUDGET:
        for rank in range(width):
            if certificates[rank, 0] > bar:
                return rank + 1
        shares[0] = 0.5
        return width
    before, least = 0.0, 1.0
    for rank in range(width):
        covered = max(before, _coverage(growth.tables, rank, certificates[rank, 0]))
        shares[rank] = min(covered - before, least)
        before, least = covered, shares[rank]
    return width


@njit(error_model="numpy", nogil=True)
def _keep(row, count, growth, blocks, scores):
    """Drop the nodes of a block that are not worth verifying and number the others anew; returns
    how many stay."""
    keep_score, max_nodes = growth.keep_score, growth.max_nodes
    renamed = np.full(count, -1)
    kept = 0
    for node in range(count):
        better = 0
        if count > max_nodes:
            for other in range(count):
                score = scores[row, other]
                better += score > scores[row, node] or (score == scores[row, node] and other < node)
        if scores[row, node] < keep_score or better >= max_nodes:
            continue
        renamed[node] = kept
        for part in range(blocks.shape[0]):
            blocks[part, row, kept] = blocks[part, row, node]
        parent = blocks[PARENT, row, node]
        blocks[PARENT, row, kept] = -1 if parent < 0 else renamed[parent]
        kept += 1
    return kept


@compiled
def grow_levels(model, num_staged, first, drafting, pending, limits, growth, drafts):
    """Draft below each batch row of ``drafting`` (ascending) at most ``limits[row]`` deep; returns
    (nodes staged, passes, rows of logits).

    ``model``: ``CpuModel`` of the draft, with room for what comes. ``first``: nodes of the pass
    over the pending tokens, of which batch row r has ``pending[r]``; without any,
    ``drafts.logits`` holds the drafting rows' logits already. What ``drafts`` holds is filled
    in."""
    blocks, counts, columns = drafts.blocks, drafts.counts, drafts.logits.shape[1]
    batch, room, num_tokens = blocks.shape[1], blocks.shape[2], model.sizes.num_tokens
    width, flat = growth.width, drafts.logits.reshape(-1)
    ids, top, shares = np.empty(width + 1, np.int64), np.empty((1, width + 1)), np.empty(width + 1)
    scores = np.empty((batch, room))
    asked = np.empty((2, len(drafts.logits)), np.int64)  # batch row and node of each row of logits
    passes, at, num_logits, level = 0, 0, len(drafting), 0
    nodes, wanted, ends = first, np.empty(len(drafting), np.int64), np.cumsum(pending)
    for index in range(len(drafting)):
        row = drafting[index]
        asked[0, index], asked[1, index], wanted[index] = row, -1, ends[row] - 1
    counts[:] = 0
    while True:
        if len(nodes):
            model.counters[:] = 0
            forward_pass(model, nodes, wanted, flat[at * columns :])
            passes += 1
        # the children of every node whose logits have just come
        level += 1
        fresh = counts.copy()
        for index in range(at, num_logits):
            row, node = asked[0, index], asked[1, index]
            values = flat[index * columns : index * columns + num_tokens]
            found = _score(values, growth, ids, top, shares)
            above = 1.0 if node < 0 else scores[row, node]
            for rank in range(found):
                child = counts[row]
                blocks[TOKEN_ID, row, child], blocks[PARENT, row, child] = ids[rank], node
                blocks[RANK, row, child], blocks[STAGED_INDEX, row, child] = rank, -1
                scores[row, child] = above * shares[rank]
                counts[row] = child + 1
        # those of them that are likely enough are run next
        at = num_logits
        next_counts = np.zeros(batch, np.int64)
        for row in drafting:
            if level < limits[row]:
                for node in range(fresh[row], counts[row]):
                    if scores[row, node] >= growth.run_score:
                        blocks[STAGED_INDEX, row, node] = num_staged + next_counts[row]
                        blocks[LOGITS_ROW, row, node] = num_logits
                        asked[0, num_logits], asked[1, num_logits] = row, node
                        next_counts[row] += 1
                        num_logits += 1
        if num_logits == at:
            break
        longest = next_counts.max()
        tokens, hung = np.zeros((batch, longest), np.int64), np.full((batch, longest), -1)
        for index in range(at, num_logits):
            row, node = asked[0, index], asked[1, index]
            parent = blocks[PARENT, row, node]
            column = blocks[STAGED_INDEX, row, node] - num_staged
            tokens[row, column] = blocks[TOKEN_ID, row, node]
            above_it = pending[row] - 1 if parent < 0 else blocks[STAGED_INDEX, row, parent]
            hung[row, column] = above_it
        nodes = stage_nodes(model.staged, tokens, hung, next_counts, num_staged)
        wanted = np.arange(len(nodes))
        num_staged += longest
    for row in drafting:
        counts[row] = _keep(row, counts[row], growth, blocks, scores)
    return num_staged, passes, num_logits
