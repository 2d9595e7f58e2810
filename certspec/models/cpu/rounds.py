"""Whole rounds of a batch in one compiled call on one thread: draft, verify, accept by the target's
argmax, commit, and note what the records need. This module knows the CPU engine's passes and
caches, and arrays; no requests or rules.

It does what ``loop.decode_batch`` does in Python for rules that accept the target's argmax and
nothing else. Threads that decode groups of a batch so need the interpreter between prompts only."""

from __future__ import annotations

import numpy as np
from numba import njit

from certspec.kernels.compiled import compiled
from certspec.kernels.threads import load_shared
from certspec.models.cpu.forward import forward_pass
from certspec.models.cpu.growth import grow_levels, largest
from certspec.models.cpu.runner import move_slots
from certspec.models.staging import stage_rows

__all__ = ["GOES_ON", "NUM_CHILDREN", "REASON", "ROUND", "RULE", "STOPPED", "run_rounds"]

_TOKEN, _PARENT, _RANK, _STAGED, _LOGITS = range(5)  # of a block, as grow_levels fills it
_PROMPT, _EMITTED, ROUND, _MOST, REASON = range(5)  # of a batch row: its state
GOES_ON, STOPPED, _LIMITED = range(
    3
)  # why a row ended: at an end-of-sequence token, at its number of tokens
_KIND, NUM_CHILDREN, RULE = 3, 5, 6  # of an emitted token, among the columns of the writer's facts
_ACCEPTED, _CORRECTED, _BONUS, _PLAIN = range(4)  # kinds, as in records.KINDS


@njit(error_model="numpy", nogil=True)
def _verify(model, staging, texts, ends, blocks, counts, logits):
    """One target pass over each row's last token and its block; row r's logits begin at the sum of
    the counts + 1 of the rows before it."""
    (
        sizes,
        eps,
        weights,
        norms,
        embedding,
        rope,
        keys,
        values,
        embedded,
        qkv,
        attended,
        gated,
        control,
        _,
    ) = model
    lengths, parents, depths, straight, cache_rows = staging
    batch, longest = len(ends), counts.max() + 1
    tokens, hung = np.zeros((batch, longest), np.int64), np.full((batch, longest), -1)
    for row in range(batch):
        tokens[row, 0] = texts[row, ends[row] - 1]
        for node in range(counts[row]):
            tokens[row, node + 1], hung[row, node + 1] = (
                blocks[_TOKEN, row, node],
                blocks[_PARENT, row, node] + 1,
            )
    rows = np.empty((counts.sum() + batch, 6), np.int64)
    stage_rows(tokens, hung, counts + 1, lengths, 0, parents, depths, straight, rows)
    rows[:, 1] = cache_rows[rows[:, 5]]
    control[:] = 0
    forward_pass(
        sizes,
        eps,
        weights,
        norms,
        embedding,
        rope,
        keys,
        values,
        rows,
        lengths,
        parents,
        np.arange(len(rows)),
        embedded,
        qkv,
        attended,
        gated,
        control,
        logits.reshape(-1),
    )


@njit(error_model="numpy", nogil=True)
def _walk(block, count, logits, first, num_tokens, ids, tokens, nodes, widths):
    """Go down the block by the target's argmaxes, its row of logits after node i being ``first + 1
    + i``: the tokens of the walk, the nodes they follow and how many children those have; returns
    (tokens, nodes accepted)."""
    node, length = -1, 0
    while True:
        largest(logits[first + 1 + node, :num_tokens], 1, ids)
        child, width = -1, 0
        for other in range(node + 1, count):
            if block[_PARENT, other] == node:
                width += 1
                if block[_TOKEN, other] == ids[0]:
                    child = other
        tokens[length], nodes[length], widths[length] = ids[0], node, width
        length += 1
        if child < 0:
            return length, length - 1
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
def _commit(model, staging, row, path, count):
    """Keep the ``count`` staged nodes ``path`` of a row."""
    lengths = staging[0]
    if count and path[count - 1] != count - 1:
        sizes = model[0]
        shape = (sizes[0], sizes[8], sizes[3], sizes[4], sizes[7])
        move_slots(model[6], model[7], shape, staging[4][row], lengths[row], path[:count])
    lengths[row] += count


@njit(error_model="numpy", nogil=True)
def _draft(
    model, staging, texts, ends, limits, pending, deepest, numbers, tables, logits, blocks, counts
):
    """``grow_levels`` below the tokens that the draft has not run; returns its passes."""
    lengths, parents, depths, straight, cache_rows = staging
    drafting = limits.nonzero()[0]
    counts[:] = 0
    if not len(drafting):
        return 0
    longest = pending.max()
    tokens = np.zeros((len(ends), longest), np.int64)
    for row in drafting:
        tokens[row, : pending[row]] = texts[row, lengths[row] : ends[row]]
    rows = np.empty((pending.sum(), 6), np.int64)
    stage_rows(
        tokens, np.zeros((1, 0), np.int64), pending, lengths, 0, parents, depths, straight, rows
    )
    rows[:, 1] = cache_rows[rows[:, 5]]
    _, passes, _ = grow_levels(
        model,
        staging,
        longest,
        rows,
        drafting,
        pending,
        limits,
        numbers,
        tables,
        logits,
        blocks,
        counts,
    )
    return passes


@njit(error_model="numpy", nogil=True)
def _has_room(staging, sizes, pending, nodes):
    """Whether every row's cache, and the tables of parents, have room for ``nodes`` more than the
    pending tokens."""
    lengths, parents = staging[0], staging[1]
    return lengths.max() + pending + nodes <= sizes[7] and pending + nodes <= parents.shape[1]


@compiled
def run_rounds(
    target,
    target_staging,
    draft,
    draft_staging,
    numbers,
    tables,
    deepest,
    level_nodes,
    most_rounds,
    called,
    texts,
    ends,
    states,
    eos,
    draft_logits,
    blocks,
    counts,
    target_logits,
    facts,
    notes,
    target_rows,
    draft_rows,
    free_rows,
):
    """Rounds of all batch rows until one of them ends, something has no room for another one,
    ``most_rounds`` are done, or ``called``, (1,) int64, is not 0 after a round of several rows;
    returns (rounds, draft passes, facts, notes, rows of pairs, rows of targets alone).

    ``target``, ``draft`` and their stagings: see ``CpuRunner.lend``. Nothing is staged, and of each
    row's text ``texts[row, :ends[row]]`` the target has not run the last token, the draft the last
    one or more. ``states``: (batch, 5) int64: prompt, tokens emitted, rounds, most tokens, why it
    ended. ``numbers`` to ``counts``: as for ``grow_levels``, of which a level runs ``level_nodes``
    nodes a row at most. ``target_logits``: (batch * (room + 1), columns).

    Filled in, besides what goes on (texts, ends, states, committed lengths): ``facts``, (tokens, 9)
    int64, the writer's of each emitted token, with the widest node of its block for RULE; ``notes``
    of each row's round: drafts accepted, depth, nodes; both models' logits rows where something was
    drafted, the target's where nothing was."""
    batch, room, num_tokens = len(ends), blocks.shape[2], target[13]
    draft_lengths = draft_staging[0]
    tokens, nodes, widths = (
        np.empty(room + 2, np.int64),
        np.empty(room + 2, np.int64),
        np.empty(room + 2, np.int64),
    )
    depths, path, ids = (
        np.empty(room + 1, np.int64),
        np.empty(room + texts.shape[1], np.int64),
        np.empty(1, np.int64),
    )
    limits, pending = np.empty(batch, np.int64), np.empty(batch, np.int64)
    done, passes, num_facts, num_notes, num_pairs, num_free, ended = 0, 0, 0, 0, 0, 0, False
    while done < most_rounds and not ended and not (done and batch > 1 and load_shared(called, 0)):
        for row in range(batch):
            limits[row] = min(deepest, states[row, _MOST] - states[row, _EMITTED] - 1)
            pending[row] = ends[row] - draft_lengths[row] if limits[row] > 0 else 0
        if (
            num_facts + batch * (deepest + 1) > len(facts)
            or num_notes + batch > len(notes)
            or num_pairs + batch * deepest > len(target_rows)
            or num_free + batch > len(free_rows)
            or not _has_room(target_staging, target[0], 1, room)
            or not _has_room(draft_staging, draft[0], pending.max(), (deepest - 1) * level_nodes)
        ):
            break
        done += 1
        passes += _draft(
            draft,
            draft_staging,
            texts,
            ends,
            limits,
            pending,
            deepest,
            numbers,
            tables,
            draft_logits,
            blocks,
            counts,
        )
        _verify(target, target_staging, texts, ends, blocks, counts, target_logits)
        first, root = 0, 0
        for row in range(batch):
            count = counts[row]
            block = blocks[:, row]
            length, accepted = _walk(
                block, count, target_logits, first, num_tokens, ids, tokens, nodes, widths
            )
            position = states[row, _EMITTED]
            kept, states[row, REASON] = _cut(
                tokens, length, states[row, _MOST] - position, eos[row]
            )
            widest, depth = 0, 0
            for node in range(count):
                parent = block[_PARENT, node]
                depths[node] = 1 if parent < 0 else depths[parent] + 1
                depth, widest = max(depth, depths[node]), max(widest, block[_RANK, node] + 1)
            for step in range(kept):
                node, width = nodes[step], widths[step]
                if width:
                    kind, verdict = (_ACCEPTED, 1) if step < accepted else (_CORRECTED, 0)
                    target_rows[num_pairs] = target_logits[first + 1 + node, : target_rows.shape[1]]
                    at = root if node < 0 else block[_LOGITS, node]
                    draft_rows[num_pairs] = draft_logits[at, : draft_rows.shape[1]]
                    num_pairs += 1
                else:
                    kind, verdict = _BONUS if count else _PLAIN, -1
                    free_rows[num_free] = target_logits[first + 1 + node, : free_rows.shape[1]]
                    num_free += 1
                fact = facts[num_facts]
                fact[0], fact[1], fact[2] = (
                    states[row, _PROMPT],
                    position + step,
                    states[row, ROUND],
                )
                fact[_KIND], fact[4], fact[NUM_CHILDREN], fact[RULE] = kind, step, width, widest
                fact[7], fact[8] = tokens[step], verdict
                num_facts += 1
                texts[row, ends[row] + step] = tokens[step]
            notes[num_notes, 0], notes[num_notes, 1], notes[num_notes, 2] = accepted, depth, count
            num_notes += 1
            # the target keeps its pending token and the path, the draft what of both it has run
            # itself
            path[0], run = 0, 0
            for step in range(accepted):
                path[step + 1] = nodes[step + 1] + 1
            _commit(target, target_staging, row, path, accepted + 1)
            for step in range(pending[row]):
                path[step] = step
            while run < accepted and pending[row] and block[_STAGED, nodes[run + 1]] >= 0:
                path[pending[row] + run] = block[_STAGED, nodes[run + 1]]
                run += 1
            _commit(draft, draft_staging, row, path, pending[row] + run)
            ends[row] += kept
            states[row, _EMITTED] += kept
            states[row, ROUND] += 1
            ended = ended or states[row, REASON] != GOES_ON
            first += count + 1
            root += limits[row] > 0
    return done, passes, num_facts, num_notes, num_pairs, num_free
