"""Whole rounds of a batch in one compiled call on one thread: draft, verify, accept by the target's
argmax, roll back, and note what the records need.

It is the twin of ``plain_rounds`` in decoding, for rules that accept the target's argmax and
nothing else; test_compiled_rounds.py holds it to that. Threads that decode groups of a batch so
need the interpreter between prompts only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from certspec.kernels.compiled import compiled, inner
from certspec.kernels.threads import load_shared
from certspec.models.cpu.forward import forward_pass
from certspec.models.cpu.growth import (
    LOGITS_ROW,
    PARENT,
    RANK,
    STAGED_INDEX,
    TOKEN_ID,
    grow_levels,
    largest,
)
from certspec.models.cpu.model import move_slots, stage_nodes

__all__ = [
    "FACT_COLUMNS",
    "GOES_ON",
    "NOTE_COLUMNS",
    "NUM_CHILDREN",
    "PROMPT",
    "REASON",
    "ROUND",
    "RULE",
    "STOPPED",
    "BatchTexts",
    "Limits",
    "Records",
    "RoundsDone",
    "run_rounds",
]

Array = np.ndarray[Any, Any]

# columns of BatchTexts.states
_INDEX, _EMITTED, ROUND, _MOST, REASON = range(5)
# why a row ended: it goes on; at an end-of-sequence token; at its number of tokens
GOES_ON, STOPPED, _LIMITED = range(3)
# columns of Records.facts, those of the records' facts
(
    PROMPT,
    _POSITION,
    _ROUND,
    _KIND,
    _DEPTH,
    NUM_CHILDREN,
    RULE,
    _TOKEN,
    _VERDICT,
    FACT_COLUMNS,  # how many these are
) = range(10)
_ACCEPTED, _CORRECTED, _BONUS, _PLAIN = range(4)  # kinds, as in records.KINDS
# columns of Records.notes, and how many these are
_NOTED_ACCEPTED, _NOTED_DEPTH, _NOTED_NODES, NOTE_COLUMNS = range(4)

_NONE_STAGED = np.int64(0)  # numpy's: for a literal numba would compile ``stage_nodes`` anew


class BatchTexts(NamedTuple):
    """Of each batch row: ``texts[row, :ends[row]]``, of which the target has not run the last
    token, the draft the last one or more; ``states`` (batch, 5) int64: prompt, tokens emitted,
    rounds, most tokens, why it ended; ``eos`` (batch, most) int64, filled up with -1."""

    texts: Array
    ends: Array
    states: Array
    eos: Array


class Records(NamedTuple):
    """Room for what the records need. ``facts``: (tokens, 9) int64 of each emitted token, with the
    widest node of its block for RULE. ``notes``: of each row's round the drafts accepted, depth and
    nodes. Logits rows: both models' where something was drafted, the target's where nothing was."""

    facts: Array
    notes: Array
    target_rows: Array
    draft_rows: Array
    free_rows: Array


class Limits(NamedTuple):
    """``depth``: of a block. ``level_nodes``: nodes a row that a level of it runs at most.
    ``rounds``: of one call."""

    depth: int
    level_nodes: int
    rounds: int


class RoundsDone(NamedTuple):
    """How many rounds and draft passes there were, and rows of each part of ``Records``: ``pairs``
    of target_rows and draft_rows, ``free`` of free_rows."""

    rounds: int
    draft_passes: int
    facts: int
    notes: int
    pairs: int
    free: int


class _AcceptedPath(NamedTuple):
    """Tokens that the target chose on its way down a block, the node that each follows (-1: the
    root) and how many children that has."""

    tokens: Array
    nodes: Array
    widths: Array


@compiled
def run_rounds(target, draft, growth, drafts, batch, target_logits, limits, called, records):
    """Rounds of all batch rows until one of them ends, something has no room for another one,
    ``limits.rounds`` are done, or ``called``, (1,) int64, is not 0 after a round of several rows;
    returns the fields of ``RoundsDone``.

    ``target``, ``draft``: ``CpuModel``, nothing staged. ``growth``, ``drafts``: as for
    ``grow_levels``. ``target_logits``: (batch * (room + 1), columns). Filled in, besides what goes
    on (texts, ends, states, committed lengths): ``records``."""
    texts, ends, states = batch.texts, batch.ends, batch.states
    num_rows, room = len(ends), drafts.blocks.shape[2]
    path = _AcceptedPath(
        np.empty(room + 2, np.int64), np.empty(room + 2, np.int64), np.empty(room + 2, np.int64)
    )
    slots = np.empty(room + texts.shape[1], np.int64)
    left, pending = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    done, passes, num_facts, num_notes, num_pairs, num_free, ended = 0, 0, 0, 0, 0, 0, False
    while done < limits.rounds and not ended:
        if done and num_rows > 1 and load_shared(called, 0):
            break
        for row in range(num_rows):
            left[row] = min(limits.depth, states[row, _MOST] - states[row, _EMITTED] - 1)
            pending[row] = ends[row] - draft.staged.lengths[row] if left[row] > 0 else 0
        if (
            num_facts + num_rows * (limits.depth + 1) > len(records.facts)
            or num_notes + num_rows > len(records.notes)
            or num_pairs + num_rows * limits.depth > len(records.target_rows)
            or num_free + num_rows > len(records.free_rows)
            or not _has_room(target, 1 + room)
            or not _has_room(draft, pending.max() + (limits.depth - 1) * limits.level_nodes)
        ):
            break
        done += 1
        drafts.counts[:] = 0
        drafting = left.nonzero()[0]
        if len(drafting):
            nodes, longest = _pending_nodes(draft, batch, pending), pending.max()
            _, drafted, _ = grow_levels(
                draft, longest, nodes, drafting, pending, left, growth, drafts
            )
            passes += drafted
        nodes = _block_nodes(target, batch, drafts)
        target.counters[:] = 0
        forward_pass(target, nodes, np.arange(len(nodes)), target_logits.reshape(-1))
        first, root = (
            0,
            0,
        )  # where the row's logits begin: the target's, and the draft's at the root
        for row in range(num_rows):
            count, block = drafts.counts[row], drafts.blocks[:, row]
            accepted = _accept(block, count, target_logits, first, target.sizes.num_tokens, path)
            position = states[row, _EMITTED]
            kept, states[row, REASON] = _cut(
                path.tokens, accepted + 1, states[row, _MOST] - position, batch.eos[row]
            )
            depth, widest = _shape(block, count)
            for step in range(kept):
                node, width = path.nodes[step], path.widths[step]
                target_row = target_logits[first + 1 + node]
                if width:
                    kind, verdict = (_ACCEPTED, 1) if step < accepted else (_CORRECTED, 0)
                    draft_row = drafts.logits[root if node < 0 else block[LOGITS_ROW, node]]
                    _copy(target_row, records.target_rows[num_pairs])
                    _copy(draft_row, records.draft_rows[num_pairs])
                    num_pairs += 1
                else:
                    kind, verdict = _BONUS if count else _PLAIN, -1
                    _copy(target_row, records.free_rows[num_free])
                    num_free += 1
                fact = records.facts[num_facts]
                fact[PROMPT], fact[_ROUND] = states[row, _INDEX], states[row, ROUND]
                fact[_POSITION], fact[_DEPTH] = position + step, step
                fact[_KIND], fact[_VERDICT] = kind, verdict
                fact[NUM_CHILDREN], fact[RULE], fact[_TOKEN] = width, widest, path.tokens[step]
                num_facts += 1
                texts[row, ends[row] + step] = path.tokens[step]
            note = records.notes[num_notes]
            note[_NOTED_ACCEPTED], note[_NOTED_DEPTH], note[_NOTED_NODES] = accepted, depth, count
            num_notes += 1
            # the target keeps its pending token and the path
            slots[0] = 0
            for step in range(accepted):
                slots[step + 1] = path.nodes[step + 1] + 1
            _commit(target, row, slots, accepted + 1)
            # the draft keeps its pending tokens and what of the path it has run itself
            run = 0
            for step in range(pending[row]):
                slots[step] = step
            while run < accepted and pending[row] and block[STAGED_INDEX, path.nodes[run + 1]] >= 0:
                slots[pending[row] + run] = block[STAGED_INDEX, path.nodes[run + 1]]
                run += 1
            _commit(draft, row, slots, pending[row] + run)
            ends[row] += kept
            states[row, _EMITTED] += kept
            states[row, ROUND] += 1
            ended = ended or states[row, REASON] != GOES_ON
            first += count + 1
            root += left[row] > 0
    # numba makes a named tuple for Python by calling Python, which hears Ctrl-C there and crashes
    return done, passes, num_facts, num_notes, num_pairs, num_free


@inner
def _copy(source, target):
    """The beginning of ``source`` that has room in ``target``. (numba's own assignment of arrays
    takes three seconds to compile, for the sake of its error messages.)"""
    for i in range(len(target)):
        target[i] = source[i]


@njit(error_model="numpy", nogil=True)
def _has_room(model, num_nodes):
    """Whether every row's cache, and the tables of parents, have room for so many staged nodes."""
    staged = model.staged
    return (
        staged.lengths.max() + num_nodes <= model.sizes.slots
        and num_nodes <= staged.parents.shape[1]
    )


@njit(error_model="numpy", nogil=True)
def _pending_nodes(model, batch, pending):
    """Each row's last ``pending[row]`` tokens, which the draft has not run, as staged nodes."""
    num_rows = len(pending)
    tokens = np.zeros((num_rows, pending.max()), np.int64)
    for row in range(num_rows):
        if pending[row]:
            _copy(batch.texts[row, model.staged.lengths[row] :], tokens[row, : pending[row]])
    return stage_nodes(model.staged, tokens, np.zeros((1, 0), np.int64), pending, _NONE_STAGED)


@njit(error_model="numpy", nogil=True)
def _block_nodes(model, batch, drafts):
    """Each row's last token and its block, as staged nodes of the target; the row's logits will
    begin at the sum of the counts + 1 of the rows before it."""
    blocks, counts, num_rows = drafts.blocks, drafts.counts, len(batch.ends)
    longest = counts.max() + 1
    tokens, hung = np.zeros((num_rows, longest), np.int64), np.full((num_rows, longest), -1)
    for row in range(num_rows):
        tokens[row, 0] = batch.texts[row, batch.ends[row] - 1]
        for node in range(counts[row]):
            tokens[row, node + 1] = blocks[TOKEN_ID, row, node]
            hung[row, node + 1] = blocks[PARENT, row, node] + 1
    return stage_nodes(model.staged, tokens, hung, counts + 1, _NONE_STAGED)


@njit(error_model="numpy", nogil=True)
def _accept(block, count, logits, first, num_tokens, path):
    """Go down the block by the target's argmaxes, its row of logits after node i being ``first + 1
    + i``; fills ``path`` and returns how many nodes are accepted, one less than tokens."""
    ids = np.empty(1, np.int64)
    node, length = -1, 0
    while True:
        largest(logits[first + 1 + node, :num_tokens], 1, ids)
        child, width = -1, 0
        for other in range(node + 1, count):
            if block[PARENT, other] == node:
                width += 1
                if block[TOKEN_ID, other] == ids[0]:
                    child = other
        path.tokens[length], path.nodes[length], path.widths[length] = ids[0], node, width
        if child < 0:
            return length
        length += 1
        node = child


@njit(error_model="numpy", nogil=True)
def _cut(tokens, count, room, eos):
    """``StoppingRules.cut``: how many tokens are emitted and why the row ends."""
    for index in range(min(count, room)):
        for other in eos:
            if tokens[index] == other:
                return index + 1, STOPPED
    return (room, _LIMITED) if count >= room else (count, GOES_ON)


@njit(error_model="numpy", nogil=True)
def _shape(block, count):
    """How deep a block is, and the most children of one node."""
    depths = np.empty(count, np.int64)
    deepest, widest = 0, 0
    for node in range(count):
        parent = block[PARENT, node]
        depths[node] = 1 if parent < 0 else depths[parent] + 1
        deepest, widest = max(deepest, depths[node]), max(widest, block[RANK, node] + 1)
    return deepest, widest


@njit(error_model="numpy", nogil=True)
def _commit(model, row, slots, count):
    """Keep the ``count`` staged nodes ``slots`` of a row and forget the others."""
    staged = model.staged
    length, kept = staged.lengths[row], slots[:count]
    if count and kept[count - 1] != count - 1:
        move_slots(model.keys, model.values, model.sizes, staged.cache_rows[row], length, kept)
    staged.lengths[row] = length + count
