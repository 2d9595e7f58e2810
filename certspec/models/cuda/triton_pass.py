"""All layers of a pass over a few nodes in one Triton kernel, for drafts: it stays on the card from
the embedding to the last norm.

A draft's pass is short. Of 28 layers in nine launches each, what a launch costs is most of it. Here
a program for each multiprocessor goes through all layers. Each of a layer's five steps reads what
all programs of the step before have written:

    queries, keys, values  <- norm of the stream
    attention              <- queries, keys, values, the cache
    stream                 += output product of what was attended
    gated                  <- norm of the stream
    stream                 += product back from the MLP

Nobody waits for everybody. A number that others wait for is written together with a tag, which says
of which pass and layer it is, as one word of 64 bits; a reader reads until all its words bear the
tag that it expects. That is one way to memory and back, where a barrier is three.

Example: 0x0000_002a_3f80_0000 is 1.0 (the lower half, a float32), of the step tagged 42.

Words are used again in the next layer. A program can only get there when all have read what it then
writes over: each step needs words of all programs that take part in the step before, and a program
reads its own step's words before it writes any.

A reader's threads ask for one word each and agree by a maximum. A tensor with fewer words than
threads would lie in several of them, of which the maximum looks at one only: another could go on
with what it had read too early. So no tensor of words that are waited for is smaller than that.

Weights depend on nothing. So a program loads its part of the next step's weights into registers
before it waits, and memory streams on meanwhile.

Every program has the same columns of a product in every pass and adds them in the same order, and
pieces of attention are joined in their order: two runs are identical. Sums are float32 and what
stands between two steps is too, where the kernels of layers.py round activations to the model's
type: the logits of both differ by rounding."""

from __future__ import annotations

import triton
import triton.language as tl

from certspec.models.cuda.triton_columns import (
    COMMITTED,
    LIVE,
    NODE_COLUMNS,
    POSITION,
    SLOT,
    SPAN_CACHE_ROW,
    TOKEN,
)
from certspec.models.cuda.triton_linear import fetch_ahead

__all__ = ["pass_kernel"]


@triton.jit
def tell(place, value, tag, mask):
    """Write float32 values with the tag."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.store(place, bits | (tag.to(tl.int64) << 32), mask=mask)


@triton.jit
def number(words):
    """What a word holds beside its tag."""
    return words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def missing(words, tag, mask):
    return (mask & ((words >> 32).to(tl.int32) != tag)).to(tl.int32)


@triton.jit
def hear(place, tag, mask):
    """The values that bear the tag, once all do; 0 where ``mask`` is false."""
    words = tl.load(place, mask=mask, other=0, volatile=True)
    while tl.max(missing(words, tag, mask)) != 0:
        words = tl.load(place, mask=mask, other=0, volatile=True)
    return number(words)


@triton.jit
def hear_two(place, other_place, tag, mask):
    """Two such tensors of one shape, asked for together: a question takes as long as several."""
    words = tl.load(place, mask=mask, other=0, volatile=True)
    others = tl.load(other_place, mask=mask, other=0, volatile=True)
    while tl.max(missing(words, tag, mask) | missing(others, tag, mask)) != 0:
        words = tl.load(place, mask=mask, other=0, volatile=True)
        others = tl.load(other_place, mask=mask, other=0, volatile=True)
    return number(words), number(others)


@triton.jit
def load_columns(
    weight, first, end, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):
    """Columns ``first`` to ``end`` of a product, at most COLUMNS: (WIDE / 256, COLUMNS, 256).

    Loaded as a matrix whose rows are dealt out to warps in turn. So a warp holds whole columns, and
    need not ask others for their sums."""
    PIECE: tl.constexpr = 256 if WIDE > 256 else WIDE
    PIECES: tl.constexpr = WIDE // PIECE
    row = tl.arange(0, PIECES * COLUMNS)
    n = first + row % COLUMNS
    k = (row // COLUMNS * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
    inside = (n < end)[:, None]
    if DEPTH != WIDE:
        inside = inside & (k < DEPTH)
    at = weight + n.to(tl.int64)[:, None] * DEPTH + k
    found = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
    return tl.reshape(found, (PIECES, COLUMNS, PIECE))


@triton.jit
def fetch_rest(
    weight,
    first,
    end,
    DEPTH: tl.constexpr,
    EACH: tl.constexpr,
    HELD: tl.constexpr,
    WIDE: tl.constexpr,
    ON_GPU: tl.constexpr,
):
    """Bring the columns that a program computes after its first HELD ones into the L2 cache."""
    if ON_GPU and EACH > HELD:
        for at in tl.static_range(HELD, EACH, HELD):
            n = first + at + tl.arange(0, HELD)
            rows = tl.where(n < end, n.to(tl.int64) * DEPTH, -1)
            fetch_ahead(weight, rows, 0, DEPTH, WIDE)


@triton.jit
def load_row(x, DEPTH: tl.constexpr, WIDE: tl.constexpr):
    """A vector of activations or gains, float32, laid out as ``load_columns`` does."""
    PIECE: tl.constexpr = 256 if WIDE > 256 else WIDE
    k = tl.arange(0, WIDE // PIECE)[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    return tl.load(x + k, mask=k < DEPTH, other=0.0).to(tl.float32)


@triton.jit
def hear_row(x, tag, DEPTH: tl.constexpr, WIDE: tl.constexpr):
    """``load_row`` of words with a tag."""
    PIECE: tl.constexpr = 256 if WIDE > 256 else WIDE
    k = tl.arange(0, WIDE // PIECE)[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    return hear(x + k, tag, k < DEPTH)


@triton.jit
def products(columns, x):
    """(COLUMNS,) float32 sums of ``load_columns`` times ``load_row``."""
    return tl.sum(tl.sum(columns.to(tl.float32) * x[:, None, :], 0), 1)


@triton.jit
def scale_of(x, eps, DEPTH: tl.constexpr):
    """1 / the root of the mean square."""
    return 1.0 / tl.sqrt(tl.sum(x * x) / DEPTH + eps)


@triton.jit
def normed_halves(first, second, bias, gain, at, wanted, eps, HEAD_DIM: tl.constexpr):
    """Both halves of some heads' queries or keys, (heads, HEAD_DIM / 2) each, with the bias that
    begins ``at`` each head's place, normed where there is a gain."""
    HALF: tl.constexpr = HEAD_DIM // 2
    i = tl.arange(0, HALF)[None, :]
    if bias is not None:
        first += tl.load(bias + at[:, None] + i, mask=wanted[:, None], other=0.0)
        second += tl.load(bias + at[:, None] + HALF + i, mask=wanted[:, None], other=0.0)
    if gain is not None:
        square = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / HEAD_DIM
        scale = 1.0 / tl.sqrt(square + eps)[:, None]
        first = first * scale * tl.load(gain + i)
        second = second * scale * tl.load(gain + HALF + i)
    return first, second


@triton.jit
def page_shift(pages, slot, old, PAGE: tl.constexpr):
    """How far slots of a row lie from their numbers in the cache, those of ``slot``'s page; 0 from
    ``old`` on, where no page need be."""
    number = slot // PAGE
    return (tl.load(pages + number, mask=slot < old, other=0) - number) * PAGE


@triton.jit
def load_slots(
    cache,
    base,
    first,
    old,
    HEAD_DIM: tl.constexpr,
    FROM: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Entries FROM to FROM + WIDTH of SLOTS keys or values, those below ``old``: (SLOTS, WIDTH)."""
    s = first + tl.arange(0, SLOTS)
    d = FROM + tl.arange(0, WIDTH)
    at = cache + (base + s).to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
    return tl.load(at, mask=(s < old)[:, None], other=0.0)


@triton.jit
def pass_kernel(
    nodes,
    masks,
    spans,
    embedding,
    input_norms,
    qkv,
    qkv_bias,
    query_norms,
    key_norms,
    out,
    mlp_norms,
    gate_up,
    down,
    final_norm,
    cosines,
    sines,
    keys,
    values,
    table,
    stream,
    middle,
    projected,
    sums,
    tops,
    weights,
    attended,
    gated,
    normed,
    passed,
    count,
    slots,
    longest,
    eps,
    scale,
    LAYERS: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HIDDEN: tl.constexpr,
    MLP: tl.constexpr,
    QKV_EACH: tl.constexpr,
    MLP_EACH: tl.constexpr,
    HIDDEN_EACH: tl.constexpr,
    QKV_HELD: tl.constexpr,
    MLP_HELD: tl.constexpr,
    OUT_HELD: tl.constexpr,
    DOWN_HELD: tl.constexpr,
    WIDE_HIDDEN: tl.constexpr,
    WIDE_QUERY: tl.constexpr,
    WIDE_MLP: tl.constexpr,
    WIDE_OWN: tl.constexpr,
    PAIRS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    PARTS: tl.constexpr,
    COPIES: tl.constexpr,
    SLOTS: tl.constexpr,
    PAGE: tl.constexpr,
    ON_GPU: tl.constexpr,
):
    """normed[row] = the last norm of ``ROWS`` consecutive nodes of one sequence; their keys and
    values go to the cache.

    ``nodes``: (ROWS, NODE_COLUMNS), ``masks``: (ROWS,), ``spans``: (1, SPAN_COLUMNS), see
    layouts.py. Weights: (layers, columns, depth), norms and bias (layers, width), float32, None
    where there are none. ``keys``, ``values``: (layers, KV_HEADS, slots, HEAD_DIM), in the
    pages of ``table``, (cache rows, longest), see cache.py. ``stream``, ``middle`` (the stream
    within a layer), ``projected``, ``attended``, ``gated``: int64 words, a row a node; ``sums``,
    ``tops``, ``weights``: of attention in PARTS pieces. ``passed``: (2,) int32, passes so far and
    programs that have ended this one. ``count``: see triton_linear.py.

    Grid (PROGRAMS,), all of which must be on the card at once. ..._EACH: columns of a product that
    a program computes, ..._HELD: how many of them it holds at a time, WIDE_...: powers of two,
    PAIRS: room for the query heads of a key head, of all rows, COPIES: threads a part."""
    HALF: tl.constexpr = HEAD_DIM // 2
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    QUERY: tl.constexpr = HEADS * HEAD_DIM
    QKV_PROGRAMS: tl.constexpr = (QKV + QKV_EACH - 1) // QKV_EACH
    MLP_PROGRAMS: tl.constexpr = (MLP + MLP_EACH - 1) // MLP_EACH
    OWN_PROGRAMS: tl.constexpr = (HIDDEN + HIDDEN_EACH - 1) // HIDDEN_EACH

    if count is not None and tl.load(count, volatile=True) == 0:
        return
    program = tl.program_id(0)
    passes = tl.load(passed)
    tag = passes * (LAYERS + 1)
    pages = table + tl.load(spans + SPAN_CACHE_ROW) * longest
    committed = tl.load(spans + COMMITTED)
    old = tl.load(spans + LIVE) - ROWS  # slots that were filled by passes before
    live_parts = tl.minimum(tl.maximum(tl.cdiv(old, SLOTS), 1), PARTS).to(tl.int32)
    pair = tl.arange(0, PAIRS)
    pair_node = pair // GROUP
    real = pair < ROWS * GROUP
    pair_mask = tl.load(masks + pair_node, mask=real, other=0)
    pair_place = tl.load(nodes + pair_node * NODE_COLUMNS + POSITION, mask=real, other=0)
    fresh = tl.arange(0, 16)  # the nodes' own keys
    fresh_real = fresh < ROWS
    fresh_place = tl.load(nodes + fresh * NODE_COLUMNS + POSITION, mask=fresh_real, other=0)
    fresh_slot = tl.load(nodes + fresh * NODE_COLUMNS + SLOT, mask=fresh_real, other=0)
    h = tl.arange(0, HALF)[None, :]
    d = tl.arange(0, HEAD_DIM)[None, :]
    p = tl.arange(0, PARTS)
    copy = tl.arange(0, COPIES)[None, :]
    pair_cosines = tl.load(cosines + pair_place[:, None] * HALF + h)
    pair_sines = tl.load(sines + pair_place[:, None] * HALF + h)
    fresh_cosines = tl.load(cosines + fresh_place[:, None] * HALF + h)
    fresh_sines = tl.load(sines + fresh_place[:, None] * HALF + h)
    fresh_page = tl.load(pages + fresh_slot // PAGE, mask=fresh_real, other=0)
    fresh_home = fresh_page * PAGE + fresh_slot % PAGE
    first_shift = page_shift(pages, program // KV_HEADS * SLOTS, old, PAGE)

    qkv_first, qkv_end = program * QKV_EACH, tl.minimum((program + 1) * QKV_EACH, QKV)
    mlp_first, mlp_end = program * MLP_EACH, tl.minimum((program + 1) * MLP_EACH, MLP)
    own_first, own_end = program * HIDDEN_EACH, tl.minimum((program + 1) * HIDDEN_EACH, HIDDEN)
    # programs without columns take no part: they could come too late to hear
    qkv_rows = tl.where(qkv_first < QKV, ROWS, 0)
    mlp_rows = tl.where(mlp_first < MLP, ROWS, 0)
    own_rows = tl.where(own_first < HIDDEN, ROWS, 0)
    held = load_columns(qkv, qkv_first, qkv_end, HIDDEN, QKV_HELD, WIDE_HIDDEN)
    fetch_rest(qkv, qkv_first, qkv_end, HIDDEN, QKV_EACH, QKV_HELD, WIDE_HIDDEN, ON_GPU)

    own = own_first + tl.arange(0, WIDE_OWN)
    for row in range(ROWS):
        token = tl.load(nodes + row * NODE_COLUMNS + TOKEN)
        embedded = tl.load(embedding + token * HIDDEN + own, mask=own < own_end, other=0.0)
        tell(stream + row * HIDDEN + own, embedded, tag, own < own_end)

    for layer in range(LAYERS):
        item = program
        kv_head, part = item % KV_HEADS, item // KV_HEADS
        base = (layer * KV_HEADS + kv_head).to(tl.int64) * slots
        slot, last = part * SLOTS, tl.where(part < PARTS, old, 0)
        place = base + first_shift
        key_low = load_slots(keys, place, slot, last, HEAD_DIM, 0, HALF, SLOTS)
        key_high = load_slots(keys, place, slot, last, HEAD_DIM, HALF, HALF, SLOTS)
        value = load_slots(values, place, slot, last, HEAD_DIM, 0, HEAD_DIM, SLOTS)
        shift = page_shift(pages, slot + PARTS * SLOTS, last, PAGE)  # of the slots after those

        gain = load_row(input_norms + layer * HIDDEN, HIDDEN, WIDE_HIDDEN)
        weight_at = qkv + layer * QKV * HIDDEN
        for at in range(0, QKV_EACH, QKV_HELD):
            n = qkv_first + at + tl.arange(0, QKV_HELD)
            for row in range(qkv_rows):
                x = hear_row(stream + row * HIDDEN, tag, HIDDEN, WIDE_HIDDEN)
                found = products(held, x * gain) * scale_of(x, eps, HIDDEN)
                tell(projected + row * QKV + n, found, tag + 1, n < qkv_end)
            if at + QKV_HELD < QKV_EACH:
                following = qkv_first + at + QKV_HELD
                held = load_columns(weight_at, following, qkv_end, HIDDEN, QKV_HELD, WIDE_HIDDEN)

        weight_at = out + layer * HIDDEN * QUERY
        held_out = load_columns(weight_at, own_first, own_end, QUERY, OUT_HELD, WIDE_QUERY)
        fetch_rest(weight_at, own_first, own_end, QUERY, HIDDEN_EACH, OUT_HELD, WIDE_QUERY, ON_GPU)
        bias = None if qkv_bias is None else qkv_bias + layer * QKV
        query_gain = None if query_norms is None else query_norms + layer * HEAD_DIM
        key_gain = None if key_norms is None else key_norms + layer * HEAD_DIM
        while item < KV_HEADS * live_parts:
            pair_head = kv_head * GROUP + pair % GROUP
            query_at = projected + (pair_node * QKV + pair_head * HEAD_DIM)[:, None]
            key_first = (QUERY + kv_head * HEAD_DIM).to(tl.int32)
            key_at = projected + (fresh * QKV + key_first)[:, None]
            value_at = key_at + KV_HEADS * HEAD_DIM
            queries_real = real[:, None] & (h < HALF)
            own_keys = fresh < tl.where(part == 0, ROWS, 0)
            keys_real = own_keys[:, None] & (h < HALF)
            values_real = own_keys[:, None] & (d < HEAD_DIM)
            # all are asked for together: a question takes as long as several
            query_words = tl.load(query_at + h, mask=queries_real, other=0, volatile=True)
            query_rest = tl.load(query_at + HALF + h, mask=queries_real, other=0, volatile=True)
            key_words = tl.load(key_at + h, mask=keys_real, other=0, volatile=True)
            key_rest = tl.load(key_at + HALF + h, mask=keys_real, other=0, volatile=True)
            value_words = tl.load(value_at + d, mask=values_real, other=0, volatile=True)
            while (
                tl.max(
                    missing(query_words, tag + 1, queries_real)
                    | missing(query_rest, tag + 1, queries_real)
                )
                | tl.max(
                    missing(key_words, tag + 1, keys_real) | missing(key_rest, tag + 1, keys_real)
                )
                | tl.max(missing(value_words, tag + 1, values_real))
            ) != 0:
                query_words = tl.load(query_at + h, mask=queries_real, other=0, volatile=True)
                query_rest = tl.load(query_at + HALF + h, mask=queries_real, other=0, volatile=True)
                key_words = tl.load(key_at + h, mask=keys_real, other=0, volatile=True)
                key_rest = tl.load(key_at + HALF + h, mask=keys_real, other=0, volatile=True)
                value_words = tl.load(value_at + d, mask=values_real, other=0, volatile=True)
            first, second = normed_halves(
                number(query_words),
                number(query_rest),
                bias,
                query_gain,
                pair_head * HEAD_DIM,
                real,
                eps,
                HEAD_DIM,
            )
            query_low = (first * pair_cosines - second * pair_sines).to(keys.dtype.element_ty)
            query_high = (second * pair_cosines + first * pair_sines).to(keys.dtype.element_ty)
            top = tl.full((PAIRS,), float("-inf"), tl.float32)
            weight = tl.zeros((PAIRS,), tl.float32)
            total = tl.zeros((PAIRS, HEAD_DIM), tl.float32)
            if part == 0:  # with the nodes' own keys and values, which go to the cache too
                first, second = normed_halves(
                    number(key_words),
                    number(key_rest),
                    bias,
                    key_gain,
                    fresh * 0 + key_first,
                    fresh_real,
                    eps,
                    HEAD_DIM,
                )
                low = (first * fresh_cosines - second * fresh_sines).to(keys.dtype.element_ty)
                high = (second * fresh_cosines + first * fresh_sines).to(keys.dtype.element_ty)
                new = number(value_words)
                if qkv_bias is not None:
                    new += tl.load(bias + key_first + KV_HEADS * HEAD_DIM + d)
                new = new.to(values.dtype.element_ty)
                home = (base + fresh_home)[:, None] * HEAD_DIM
                tl.store(keys + home + h, low, mask=fresh_real[:, None])
                tl.store(keys + home + HALF + h, high, mask=fresh_real[:, None])
                tl.store(values + home + d, new, mask=fresh_real[:, None])
                scores = tl.dot(query_low, tl.trans(low), input_precision="ieee")
                scores = tl.dot(query_high, tl.trans(high), scores, input_precision="ieee") * scale
                bit = tl.minimum(tl.maximum(old + fresh - committed, 0), 63).to(tl.int64)
                seen = (old + fresh < committed)[None, :] | (
                    ((pair_mask[:, None] >> bit[None, :]) & 1) != 0
                )
                scores = tl.where(seen & fresh_real[None, :], scores, float("-inf"))
                top = tl.max(scores, 1)
                safe = tl.where(top == float("-inf"), 0.0, top)
                probs = tl.exp(scores - safe[:, None])
                weight = tl.sum(probs, 1)
                total = tl.dot(probs.to(new.dtype), new, input_precision="ieee")
            while slot < old:
                s = slot + tl.arange(0, SLOTS)
                scores = tl.dot(query_low, tl.trans(key_low), input_precision="ieee")
                scores = tl.dot(query_high, tl.trans(key_high), scores, input_precision="ieee")
                bit = tl.minimum(tl.maximum(s - committed, 0), 63).to(tl.int64)
                staged = ((pair_mask[:, None] >> bit[None, :]) & 1) != 0
                seen = (s < committed)[None, :] | staged
                scores = tl.where(seen & (s < old)[None, :], scores * scale, float("-inf"))
                new_top = tl.maximum(top, tl.max(scores, 1))
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                shrink = tl.exp(top - safe)
                probs = tl.exp(scores - safe[:, None])
                weight = weight * shrink + tl.sum(probs, 1)
                total = total * shrink[:, None]
                total = tl.dot(probs.to(value.dtype), value, total, input_precision="ieee")
                top = new_top
                slot += PARTS * SLOTS
                if slot < old:
                    place = base + shift
                    key_low = load_slots(keys, place, slot, old, HEAD_DIM, 0, HALF, SLOTS)
                    key_high = load_slots(keys, place, slot, old, HEAD_DIM, HALF, HALF, SLOTS)
                    value = load_slots(values, place, slot, old, HEAD_DIM, 0, HEAD_DIM, SLOTS)
                    shift = page_shift(pages, slot + PARTS * SLOTS, old, PAGE)
            piece = (pair_node * HEADS + pair_head) * PARTS + part
            tell(tops + piece, top, tag + 1, real)
            tell(weights + piece, weight, tag + 1, real)
            tell(sums + piece[:, None] * HEAD_DIM + d, total, tag + 1, real[:, None])
            item += PROGRAMS
            if item < KV_HEADS * live_parts:  # where there are fewer programs than pieces
                kv_head, part = item % KV_HEADS, item // KV_HEADS
                base = (layer * KV_HEADS + kv_head).to(tl.int64) * slots
                slot = part * SLOTS
                place = base + page_shift(pages, slot, old, PAGE)
                key_low = load_slots(keys, place, slot, old, HEAD_DIM, 0, HALF, SLOTS)
                key_high = load_slots(keys, place, slot, old, HEAD_DIM, HALF, HALF, SLOTS)
                value = load_slots(values, place, slot, old, HEAD_DIM, 0, HEAD_DIM, SLOTS)
                shift = page_shift(pages, slot + PARTS * SLOTS, old, PAGE)
        # the pieces of a query's attention are joined by one of the programs that made them
        for joining in range(program, KV_HEADS * live_parts, PROGRAMS):
            for index in range(joining // KV_HEADS, ROWS * GROUP, live_parts):
                head = joining % KV_HEADS * GROUP + index % GROUP
                start = (index // GROUP * HEADS + head) * PARTS
                used = p < live_parts
                pieces_real = used[:, None] & (d < HEAD_DIM)
                pieces_at = sums + (start + p)[:, None] * HEAD_DIM + d
                words = tl.load(pieces_at, mask=pieces_real, other=0, volatile=True)
                # a copy for each thread of what a piece has only one of; all are equal
                each = (start + p)[:, None] + 0 * copy
                top_of, weight_of = hear_two(
                    tops + each, weights + each, tag + 1, used[:, None] & (copy >= 0)
                )
                while tl.max(missing(words, tag + 1, pieces_real)) != 0:
                    words = tl.load(pieces_at, mask=pieces_real, other=0, volatile=True)
                top_of = tl.where(used, tl.max(top_of, 1), float("-inf"))
                share = tl.exp(top_of - tl.max(top_of, 0))
                whole = tl.sum(share * tl.max(weight_of, 1), 0)
                joined = tl.sum(number(words) * share[:, None], 0) / whole
                i = tl.arange(0, HEAD_DIM)
                home = attended + index // GROUP * QUERY + head * HEAD_DIM + i
                tell(home, joined, tag + 1, i < HEAD_DIM)

        gate_at = gate_up + layer * 2 * MLP * HIDDEN
        up_at = gate_at + MLP * HIDDEN
        gate = load_columns(gate_at, mlp_first, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
        fetch_rest(gate_at, mlp_first, mlp_end, HIDDEN, MLP_EACH, MLP_HELD, WIDE_HIDDEN, ON_GPU)
        if OWN_PROGRAMS > QKV_PROGRAMS:  # else hear_row has seen what its other threads wrote
            tl.debug_barrier()
        for at in range(0, HIDDEN_EACH, OUT_HELD):
            n = own_first + at + tl.arange(0, OUT_HELD)
            for row in range(own_rows):
                # its own words, which it need not wait for
                before = tl.load(
                    stream + row * HIDDEN + n, mask=n < own_end, other=0, volatile=True
                )
                x = hear_row(attended + row * QUERY, tag + 1, QUERY, WIDE_QUERY)
                found = products(held_out, x)
                tell(middle + row * HIDDEN + n, number(before) + found, tag + 1, n < own_end)
            if at + OUT_HELD < HIDDEN_EACH:
                following = own_first + at + OUT_HELD
                held_out = load_columns(weight_at, following, own_end, QUERY, OUT_HELD, WIDE_QUERY)

        up = load_columns(up_at, mlp_first, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
        fetch_rest(up_at, mlp_first, mlp_end, HIDDEN, MLP_EACH, MLP_HELD, WIDE_HIDDEN, ON_GPU)
        gain = load_row(mlp_norms + layer * HIDDEN, HIDDEN, WIDE_HIDDEN)
        for at in range(0, MLP_EACH, MLP_HELD):
            n = mlp_first + at + tl.arange(0, MLP_HELD)
            for row in range(mlp_rows):
                x = hear_row(middle + row * HIDDEN, tag + 1, HIDDEN, WIDE_HIDDEN)
                size = scale_of(x, eps, HIDDEN)
                x = x * gain
                gated_sums = products(gate, x) * size
                made = gated_sums / (1.0 + tl.exp(-gated_sums)) * (products(up, x) * size)
                tell(gated + row * MLP + n, made, tag + 1, n < mlp_end)
            if at + MLP_HELD < MLP_EACH:
                following = mlp_first + at + MLP_HELD
                gate = load_columns(gate_at, following, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
                up = load_columns(up_at, following, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)

        weight_at = down + layer * HIDDEN * MLP
        held_down = load_columns(weight_at, own_first, own_end, MLP, DOWN_HELD, WIDE_MLP)
        fetch_rest(weight_at, own_first, own_end, MLP, HIDDEN_EACH, DOWN_HELD, WIDE_MLP, ON_GPU)
        if OWN_PROGRAMS > MLP_PROGRAMS:  # as above
            tl.debug_barrier()
        for at in range(0, HIDDEN_EACH, DOWN_HELD):
            n = own_first + at + tl.arange(0, DOWN_HELD)
            for row in range(own_rows):
                # its own words, which it need not wait for
                before = tl.load(
                    middle + row * HIDDEN + n, mask=n < own_end, other=0, volatile=True
                )
                x = hear_row(gated + row * MLP, tag + 1, MLP, WIDE_MLP)
                found = products(held_down, x)
                tell(stream + row * HIDDEN + n, number(before) + found, tag + 1, n < own_end)
            if at + DOWN_HELD < HIDDEN_EACH:
                following = own_first + at + DOWN_HELD
                held_down = load_columns(weight_at, following, own_end, MLP, DOWN_HELD, WIDE_MLP)

        if layer + 1 < LAYERS:
            weight_at = qkv + (layer + 1) * QKV * HIDDEN
            held = load_columns(weight_at, qkv_first, qkv_end, HIDDEN, QKV_HELD, WIDE_HIDDEN)
            fetch_rest(
                weight_at, qkv_first, qkv_end, HIDDEN, QKV_EACH, QKV_HELD, WIDE_HIDDEN, ON_GPU
            )
        tag += 1

    for row in range(program, ROWS, PROGRAMS):
        x = hear_row(stream + row * HIDDEN, tag, HIDDEN, WIDE_HIDDEN)
        gain = load_row(final_norm, HIDDEN, WIDE_HIDDEN)
        PIECE: tl.constexpr = 256 if WIDE_HIDDEN > 256 else WIDE_HIDDEN
        k = tl.arange(0, WIDE_HIDDEN // PIECE)[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
        normed_row = (x * gain * scale_of(x, eps, HIDDEN)).to(normed.dtype.element_ty)
        tl.store(normed + row * HIDDEN + k, normed_row, mask=k < HIDDEN)
    # the last to leave counts the pass: the next one's tags are others
    tl.debug_barrier()
    if tl.atomic_add(passed + 1, 1, sem="acq_rel") == PROGRAMS - 1:
        tl.store(passed + 1, 0)
        tl.store(passed, passes + 1)
