"""All layers of a pass over one node in one Triton kernel, for drafts: it stays on the card from
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
before it waits, and memory streams on meanwhile. Words wait behind weights, so the best moment to
ask for weights is when words have come and are about to be computed with.

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
    POSITION,
    SLOT,
    SPAN_CACHE_ROW,
    TOKEN,
)

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
def ask(place, mask):
    return tl.load(place, mask=mask, other=0, volatile=True)


@triton.jit
def hear(place, tag, mask):
    """The values that bear the tag, once all do; 0 where ``mask`` is false."""
    words = ask(place, mask)
    while tl.max(missing(words, tag, mask)) != 0:
        words = ask(place, mask)
    return number(words)


@triton.jit
def hear_two(place, other, tag, mask):
    """The same of two tensors of one shape."""
    words, rest = ask(place, mask), ask(other, mask)
    while tl.max(missing(words, tag, mask) | missing(rest, tag, mask)) != 0:
        words, rest = ask(place, mask), ask(other, mask)
    return number(words), number(rest)


@triton.jit
def ask_halves(place, at, HALF: tl.constexpr, mask):
    return ask(place + at, mask), ask(place + HALF + at, mask)


@triton.jit
def hear_halves(place, query_at, key_at, value_at, HALF: tl.constexpr, tag, queries_real, own_real):
    """Both halves of queries, of a key and of a value, where these are real. All are asked for
    together: a question takes as long as several."""
    low, high = ask_halves(place, query_at, HALF, queries_real)
    key_low, key_high = ask_halves(place, key_at, HALF, own_real)
    value_low, value_high = ask_halves(place, value_at, HALF, own_real)
    while (
        tl.max(
            missing(low, tag, queries_real)
            | missing(high, tag, queries_real)
            | missing(key_low, tag, own_real)
            | missing(key_high, tag, own_real)
            | missing(value_low, tag, own_real)
            | missing(value_high, tag, own_real)
        )
        != 0
    ):
        low, high = ask_halves(place, query_at, HALF, queries_real)
        key_low, key_high = ask_halves(place, key_at, HALF, own_real)
        value_low, value_high = ask_halves(place, value_at, HALF, own_real)
    return (
        number(low),
        number(high),
        number(key_low),
        number(key_high),
        number(value_low),
        number(value_high),
    )


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
def add_product(
    x, held, weight, first, end, before, after, tag, DEPTH: tl.constexpr, EACH: tl.constexpr
):
    """after[first:end] = before[first:end] + x . those columns, the first of which are ``held``;
    both of words, of which ``before``'s are the program's own: it need not wait for them."""
    HELD: tl.constexpr = held.shape[1]
    WIDE: tl.constexpr = held.shape[0] * held.shape[2]
    for at in range(0, EACH, HELD):
        n = first + at + tl.arange(0, HELD)
        own = tl.load(before + n, mask=n < end, other=0, volatile=True)
        tell(after + n, number(own) + products(held, x), tag, n < end)
        if at + HELD < EACH:
            held = load_columns(weight, first + at + HELD, end, DEPTH, HELD, WIDE)


@triton.jit
def scale_of(x, eps, DEPTH: tl.constexpr):
    """1 / the root of the mean square."""
    return 1.0 / tl.sqrt(tl.sum(x * x) / DEPTH + eps)


@triton.jit
def turned(first, second, gains, other_gains, cosines, sines, eps, HEAD_DIM: tl.constexpr):
    """Both halves of some heads' queries or keys, (heads, HEAD_DIM / 2) each, normed where there is
    a gain, and rotated."""
    if gains is not None:
        square = tl.sum(first * first + second * second, 1) / HEAD_DIM
        scale = 1.0 / tl.sqrt(square + eps)[:, None]
        first = first * scale * gains
        second = second * scale * other_gains
    return first * cosines - second * sines, second * cosines + first * sines


@triton.jit
def join(top, weight, total, other_top, other_weight, other_total):
    """Two parts of a softmax sum as one, by the greater of their tops; of two without one, the
    first."""
    new_top = tl.maximum(top, other_top)
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
    share, other_share = tl.exp(top - safe), tl.exp(other_top - safe)
    return (
        new_top,
        weight * share + other_weight * other_share,
        total * share + other_total * other_share,
    )


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
def load_piece(keys, values, base, first, old, HEAD_DIM: tl.constexpr, SLOTS: tl.constexpr):
    """Both halves of SLOTS keys, and their values."""
    HALF: tl.constexpr = HEAD_DIM // 2
    return (
        load_slots(keys, base, first, old, HEAD_DIM, 0, HALF, SLOTS),
        load_slots(keys, base, first, old, HEAD_DIM, HALF, HALF, SLOTS),
        load_slots(values, base, first, old, HEAD_DIM, 0, HEAD_DIM, SLOTS),
    )


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
    shares,
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
    SLOTS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """normed = the last norm of one node of one sequence, whose key and value go to the cache.

    ``nodes``: (1, NODE_COLUMNS), ``masks``: (1,), ``spans``: (1, SPAN_COLUMNS), see layouts.py.
    Weights: (layers, columns, depth), norms and bias (layers, width), float32, None where there
    are none. ``keys``, ``values``: (layers, KV_HEADS, slots, HEAD_DIM), in the pages of ``table``,
    (cache rows, longest), see cache.py. ``stream``, ``middle`` (the stream within a layer),
    ``projected``, ``attended``, ``gated``: int64 words; ``sums``, ``shares``: of attention in at
    most PARTS pieces, mean values and the logarithm of their weights. ``passed``: (2,) int32,
    passes so far and programs that have ended this one. ``count``: see triton_linear.py.

    Grid (PROGRAMS,), all of which must be on the card at once. ..._EACH: columns of a product that
    a program computes, ..._HELD: how many of them it holds at a time, WIDE_...: powers of two,
    PAIRS: room for the query heads of a key head."""
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
    old = tl.load(spans + LIVE) - 1  # slots that were filled by passes before
    # a key head's attention comes in pieces of slots, and one of the node's own key and value
    own_part = tl.minimum(tl.maximum(tl.cdiv(old, SLOTS), 1), PARTS - 1).to(tl.int32)
    num_items = KV_HEADS * (own_part + 1)
    STEP: tl.constexpr = (PARTS - 1) * SLOTS
    pair = tl.arange(0, PAIRS)
    real = pair < GROUP
    mask = tl.load(masks)
    position, fresh_slot = tl.load(nodes + POSITION), tl.load(nodes + SLOT)
    h = tl.arange(0, HALF)[None, :] + 0 * pair[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :] + 0 * pair[:, None]
    p = tl.arange(0, PARTS)
    i = tl.arange(0, HEAD_DIM)
    node_cosines = tl.load(cosines + position * HALF + h)
    node_sines = tl.load(sines + position * HALF + h)
    fresh_home = tl.load(pages + fresh_slot // PAGE) * PAGE + fresh_slot % PAGE
    first_shift = page_shift(pages, program // KV_HEADS * SLOTS, old, PAGE)

    qkv_first, qkv_end = program * QKV_EACH, tl.minimum((program + 1) * QKV_EACH, QKV)
    mlp_first, mlp_end = program * MLP_EACH, tl.minimum((program + 1) * MLP_EACH, MLP)
    own_first, own_end = program * HIDDEN_EACH, tl.minimum((program + 1) * HIDDEN_EACH, HIDDEN)
    held = load_columns(qkv, qkv_first, qkv_end, HIDDEN, QKV_HELD, WIDE_HIDDEN)

    own = own_first + tl.arange(0, WIDE_OWN)
    token = tl.load(nodes + TOKEN)
    embedded = tl.load(embedding + token * HIDDEN + own, mask=own < own_end, other=0.0)
    tell(stream + own, embedded, tag, own < own_end)

    for layer in range(LAYERS):
        out_at = out + layer * HIDDEN * QUERY
        gate_at = gate_up + layer * 2 * MLP * HIDDEN
        up_at = gate_at + MLP * HIDDEN
        down_at = down + layer * HIDDEN * MLP
        item = program
        kv_head, part = item % KV_HEADS, item // KV_HEADS
        base = (layer * KV_HEADS + kv_head).to(tl.int64) * slots
        slot, last = part * SLOTS, tl.where(part < own_part, old, 0)
        place = base + first_shift
        key_low, key_high, value = load_piece(keys, values, place, slot, last, HEAD_DIM, SLOTS)
        shift = page_shift(pages, slot + STEP, last, PAGE)  # of the slots after those

        # of a program that takes part below this reads nothing; without it the code is 4 % slower
        early = tl.where(qkv_first < QKV, 0, own_end)
        held_out = load_columns(out_at, own_first, early, QUERY, OUT_HELD, WIDE_QUERY)
        if qkv_first < QKV:  # programs without columns could come too late to hear
            gain = load_row(input_norms + layer * HIDDEN, HIDDEN, WIDE_HIDDEN)
            weight_at = qkv + layer * QKV * HIDDEN
            x = hear_row(stream, tag, HIDDEN, WIDE_HIDDEN)
            held_out = load_columns(out_at, own_first, own_end, QUERY, OUT_HELD, WIDE_QUERY)
            size = scale_of(x, eps, HIDDEN)
            x = x * gain
            for at in range(0, QKV_EACH, QKV_HELD):
                n = qkv_first + at + tl.arange(0, QKV_HELD)
                tell(projected + n, products(held, x) * size, tag + 1, n < qkv_end)
                following = qkv_first + at + QKV_HELD
                if at + QKV_HELD < QKV_EACH:
                    held = load_columns(
                        weight_at, following, qkv_end, HIDDEN, QKV_HELD, WIDE_HIDDEN
                    )

        bias = None if qkv_bias is None else qkv_bias + layer * QKV
        gains_at = layer * HEAD_DIM + h
        gains, other_gains, key_gains, other_key_gains = None, None, None, None
        if query_norms is not None:
            gains = tl.load(query_norms + gains_at)
            other_gains = tl.load(query_norms + HALF + gains_at)
            key_gains = tl.load(key_norms + gains_at)
            other_key_gains = tl.load(key_norms + HALF + gains_at)
        while item < num_items:
            queries_real = real[:, None] & (h < HALF)
            own_real = h < tl.where(part == own_part, HALF, 0)
            query_at = (kv_head * GROUP + tl.where(real, pair, 0))[:, None] * HEAD_DIM + h
            key_at = (QUERY + kv_head * HEAD_DIM).to(tl.int32) + h
            value_at = key_at + KV_HEADS * HEAD_DIM
            low, high, fresh_low, fresh_high, new_low, new_high = hear_halves(
                projected, query_at, key_at, value_at, HALF, tag + 1, queries_real, own_real
            )
            if qkv_bias is not None:
                low += tl.load(bias + query_at)
                high += tl.load(bias + HALF + query_at)
            low, high = turned(
                low, high, gains, other_gains, node_cosines, node_sines, eps, HEAD_DIM
            )
            query_low, query_high = low.to(keys.dtype.element_ty), high.to(keys.dtype.element_ty)
            piece = (kv_head * GROUP + pair) * PARTS + part
            if part == own_part:  # the node's own key and value, which also go to the cache
                if qkv_bias is not None:
                    fresh_low += tl.load(bias + key_at)
                    fresh_high += tl.load(bias + HALF + key_at)
                    new_low += tl.load(bias + value_at)
                    new_high += tl.load(bias + HALF + value_at)
                fresh_low, fresh_high = turned(
                    fresh_low,
                    fresh_high,
                    key_gains,
                    other_key_gains,
                    node_cosines,
                    node_sines,
                    eps,
                    HEAD_DIM,
                )
                own_low = fresh_low.to(keys.dtype.element_ty)
                own_high = fresh_high.to(keys.dtype.element_ty)
                value_low = new_low.to(values.dtype.element_ty)
                value_high = new_high.to(values.dtype.element_ty)
                scores = query_low.to(tl.float32) * own_low.to(tl.float32)
                scores += query_high.to(tl.float32) * own_high.to(tl.float32)
                tell(shares + piece, tl.sum(scores, 1) * scale, tag + 1, real)
                sums_at = sums + piece[:, None] * HEAD_DIM + h
                tell(sums_at, value_low, tag + 1, real[:, None])
                tell(sums_at + HALF, value_high, tag + 1, real[:, None])
                home = (base + fresh_home) * HEAD_DIM + h
                once = (pair == 0)[:, None]
                tl.store(keys + home, own_low, mask=once)
                tl.store(keys + home + HALF, own_high, mask=once)
                tl.store(values + home, value_low, mask=once)
                tl.store(values + home + HALF, value_high, mask=once)
            else:
                top = tl.full((PAIRS,), float("-inf"), tl.float32)
                weight = tl.zeros((PAIRS,), tl.float32)
                total = tl.zeros((PAIRS, HEAD_DIM), tl.float32)
                while slot < old:
                    s = slot + tl.arange(0, SLOTS)
                    scores = tl.dot(query_low, tl.trans(key_low), input_precision="ieee")
                    scores = tl.dot(query_high, tl.trans(key_high), scores, input_precision="ieee")
                    bit = tl.minimum(tl.maximum(s - committed, 0), 63).to(tl.int64)
                    seen = ((s < committed) | (((mask >> bit) & 1) != 0)) & (s < old)
                    scores = tl.where(seen[None, :], scores * scale, float("-inf"))
                    new_top = tl.maximum(top, tl.max(scores, 1))
                    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                    shrink = tl.exp(top - safe)
                    probs = tl.exp(scores - safe[:, None])
                    weight = weight * shrink + tl.sum(probs, 1)
                    total = total * shrink[:, None]
                    total = tl.dot(probs.to(value.dtype), value, total, input_precision="ieee")
                    top = new_top
                    slot += STEP
                    if slot < old:
                        place = base + shift
                        key_low, key_high, value = load_piece(
                            keys, values, place, slot, old, HEAD_DIM, SLOTS
                        )
                        shift = page_shift(pages, slot + STEP, old, PAGE)
                # of a piece that sees nothing, no value and the logarithm of 0
                tell(shares + piece, top + tl.log(weight), tag + 1, real)
                total = total / tl.where(weight > 0.0, weight, 1.0)[:, None]
                tell(sums + piece[:, None] * HEAD_DIM + d, total, tag + 1, real[:, None])
            item += PROGRAMS
            if item < num_items:  # where there are fewer programs than pieces
                kv_head, part = item % KV_HEADS, item // KV_HEADS
                base = (layer * KV_HEADS + kv_head).to(tl.int64) * slots
                slot, last = part * SLOTS, tl.where(part < own_part, old, 0)
                place = base + page_shift(pages, slot, last, PAGE)
                key_low, key_high, value = load_piece(
                    keys, values, place, slot, last, HEAD_DIM, SLOTS
                )
                shift = page_shift(pages, slot + STEP, last, PAGE)
        # a program that made none of the pieces joins a query's, where there is one
        for head in range((program + PROGRAMS - num_items % PROGRAMS) % PROGRAMS, HEADS, PROGRAMS):
            live = (p <= own_part)[:, None] & (i < HEAD_DIM)[None, :]
            piece = (head * PARTS + p)[:, None] + 0 * i[None, :]
            parts_of, shares_of = hear_two(
                sums + piece * HEAD_DIM + i[None, :], shares + piece, tag + 1, live
            )
            top = tl.where(live, shares_of, float("-inf"))
            _, weight, total = tl.reduce((top, tl.where(live, 1.0, 0.0), parts_of), 0, join)
            tell(attended + head * HEAD_DIM + i, total / weight, tag + 1, i < HEAD_DIM)

        gate = load_columns(gate_at, mlp_first, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
        up = load_columns(up_at, mlp_first, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
        if OWN_PROGRAMS > QKV_PROGRAMS:  # else hear_row has seen what its other threads wrote
            tl.debug_barrier()
        if own_first < HIDDEN:
            x = hear_row(attended, tag + 1, QUERY, WIDE_QUERY)
            add_product(
                x, held_out, out_at, own_first, own_end, stream, middle, tag + 1, QUERY, HIDDEN_EACH
            )

        if mlp_first < MLP:
            gain = load_row(mlp_norms + layer * HIDDEN, HIDDEN, WIDE_HIDDEN)
            x = hear_row(middle, tag + 1, HIDDEN, WIDE_HIDDEN)
            size = scale_of(x, eps, HIDDEN)
            x = x * gain
            for at in range(0, MLP_EACH, MLP_HELD):
                n = mlp_first + at + tl.arange(0, MLP_HELD)
                following = mlp_first + at + MLP_HELD  # loaded while these are multiplied
                next_gate = load_columns(gate_at, following, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
                next_up = load_columns(up_at, following, mlp_end, HIDDEN, MLP_HELD, WIDE_HIDDEN)
                gated_sums = products(gate, x) * size
                made = gated_sums / (1.0 + tl.exp(-gated_sums)) * (products(up, x) * size)
                tell(gated + n, made, tag + 1, n < mlp_end)
                gate, up = next_gate, next_up

        held_down = load_columns(down_at, own_first, own_end, MLP, DOWN_HELD, WIDE_MLP)
        if OWN_PROGRAMS > MLP_PROGRAMS:  # as above
            tl.debug_barrier()
        weight_at = qkv + (layer + 1) * QKV * HIDDEN
        next_end = tl.where(layer + 1 < LAYERS, qkv_end, 0)
        early = tl.where(own_first < HIDDEN, 0, next_end)  # as above
        held = load_columns(weight_at, qkv_first, early, HIDDEN, QKV_HELD, WIDE_HIDDEN)
        if own_first < HIDDEN:
            x = hear_row(gated, tag + 1, MLP, WIDE_MLP)
            held = load_columns(weight_at, qkv_first, next_end, HIDDEN, QKV_HELD, WIDE_HIDDEN)
            add_product(
                x, held_down, down_at, own_first, own_end, middle, stream, tag + 1, MLP, HIDDEN_EACH
            )
        tag += 1

    if program == 0:
        x = hear_row(stream, tag, HIDDEN, WIDE_HIDDEN)
        gain = load_row(final_norm, HIDDEN, WIDE_HIDDEN)
        PIECE: tl.constexpr = 256 if WIDE_HIDDEN > 256 else WIDE_HIDDEN
        k = tl.arange(0, WIDE_HIDDEN // PIECE)[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
        normed_row = (x * gain * scale_of(x, eps, HIDDEN)).to(normed.dtype.element_ty)
        tl.store(normed + k, normed_row, mask=k < HIDDEN)
    # the last to leave counts the pass: the next one's tags are others
    tl.debug_barrier()
    if tl.atomic_add(passed + 1, 1, sem="acq_rel") == PROGRAMS - 1:
        tl.store(passed + 1, 0)
        tl.store(passed, passes + 1)
