"""Positions gathered into the arrays that ``certspec.certificates.lumped`` judges, a bounded number
at a time, with the draft's tokens matched to the target's columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from certspec.certificates.lumped import OUTSIDE, UNKNOWN, DraftLists, TargetLists
from certspec.errors import InvalidArgument
from certspec.logs.position import LoggedPosition

__all__ = ["Pairs", "draft_lists", "gather", "target_lists"]

_MAX_ROWS = 4096
_MAX_CELLS = 2**20

Pairs = list[tuple[LoggedPosition, LoggedPosition | None]]


def gather(pairs: Iterable[tuple[LoggedPosition, LoggedPosition | None]]) -> Iterator[Pairs]:
    """Batches of at most 4,096 positions, fewer where lists are long."""
    batch: Pairs = []
    width = 1
    for pair in pairs:
        width = max(width, len(pair[0].logprobs))
        batch.append(pair)
        if len(batch) >= _MAX_ROWS or len(batch) * width >= _MAX_CELLS:
            yield batch
            batch, width = [], 1
    if batch:
        yield batch


def target_lists(batch: Pairs, num_tokens: int | None = None) -> TargetLists:
    """The batch's target lists; ``num_tokens`` where the caller knows the vocabulary, else what the
    log says. Raises InvalidArgument naming the line that a stated size contradicts."""
    if num_tokens is not None:
        for target, _ in batch:
            _require_size(target, num_tokens)
    widths = {len(target.logprobs) for target, _ in batch}
    if len(widths) == 1:
        logprobs = np.array([target.logprobs for target, _ in batch])
    else:
        logprobs = np.full((len(batch), max(widths)), -np.inf)
        for row, (target, _) in enumerate(batch):
            logprobs[row, : len(target.logprobs)] = target.logprobs
    sizes = {target.num_tokens for target, _ in batch}
    known = num_tokens if num_tokens is not None else sizes.pop() if len(sizes) == 1 else None
    num_ranked = np.array([target.num_ranked for target, _ in batch])
    error = np.array([target.error for target, _ in batch])
    has_order = np.array([target.has_order for target, _ in batch])
    return TargetLists(logprobs, num_ranked, error, known, has_order)


def _require_size(target: LoggedPosition, stated: int) -> None:
    """A size that is too small would narrow the entropy's interval by tokens that are there."""
    if target.num_tokens not in (None, stated):
        raise InvalidArgument(
            f"num_tokens: expected {target.num_tokens}, the logits' columns, got {stated}"
        )
    ids = [key for key in target.keys if isinstance(key, int)]
    least = max(len(target.keys), max(ids, default=0) + 1)
    if least > stated:
        raise InvalidArgument(
            f"num_tokens: expected at least {least}, as many as line {target.line} of the target's "
            f"log lists or as its ids need, got {stated}"
        )


def _is_by_text(position: LoggedPosition) -> bool:
    """Whether a token of the list is known by its text: by bytes too where they are the text's own,
    as vLLM and SGLang write them, which say no more than it."""
    return any(
        isinstance(key, str)
        or (isinstance(key, bytes) and text is not None and key == text.encode("utf-8", "replace"))
        for key, text in zip(position.keys, position.texts, strict=True)
    )


def _num_known_ranks(draft: LoggedPosition, wanted: int) -> int:
    """How many of the first ``wanted`` ranks have a known token: the last of a list may change
    places with a token that isn't listed and as likely."""
    ranks = draft.num_ranked
    if wanted < ranks and draft.logprobs[wanted - 1] > draft.logprobs[ranks - 1]:
        return wanted
    if draft.num_tokens == ranks:
        return min(wanted, ranks)
    least = draft.logprobs[ranks - 1]
    outside = 1.0 - sum(map(math.exp, draft.logprobs[:ranks])) * math.exp(-draft.error)
    if math.exp(least - draft.error) > outside:
        return min(wanted, ranks)
    return min(wanted, draft.logprobs.index(least))


def _is_tied(draft: LoggedPosition, rank: int) -> bool:
    """Whether the token of a rank may change places with its neighbour: they are equally likely,
    and nothing says which comes first."""
    near = draft.logprobs[max(0, rank - 1) : rank + 2]
    return near.count(draft.logprobs[rank]) > 1 and not draft.has_order


def draft_lists(
    batch: Pairs, num_columns: int, num_best: int, *, text_keys_are_tokens: bool = False
) -> DraftLists:
    """The draft's logprobs for the target's columns, and where its ``num_best`` best tokens stand
    among them.

    Rows whose tokens are known by text alone are marked so, unless ``text_keys_are_tokens``: the
    caller knows that no two tokens of this vocabulary have the same text."""
    rows = len(batch)
    logprobs = np.full((rows, num_columns), np.nan)
    best = np.full((rows, num_best), UNKNOWN, dtype=np.int64)
    outside, error, present = np.zeros(rows), np.zeros(rows), np.zeros(rows, dtype=bool)
    by_text = np.zeros(rows, dtype=bool)
    for row, (target, draft) in enumerate(batch):
        if draft is None:
            continue
        present[row], error[row] = True, draft.error
        by_text[row] = not text_keys_are_tokens and any(map(_is_by_text, (target, draft)))
        known = {
            key: value
            for key, value in zip(draft.keys, draft.logprobs, strict=True)
            if key is not None
        }
        column_of = {}
        for column, key in enumerate(target.keys):
            if key is not None and key in known:
                logprobs[row, column] = known[key]
                column_of[key] = column
        outside[row] = sum(
            np.exp(value)
            for key, value in zip(draft.keys, draft.logprobs, strict=True)
            if key not in column_of
        )
        # a token of the target without a key may be any of the draft's
        unmatched = UNKNOWN if None in target.keys else OUTSIDE
        for rank, key in enumerate(draft.keys[: _num_known_ranks(draft, num_best)]):
            if key is not None and key not in target.ambiguous and not _is_tied(draft, rank):
                best[row, rank] = column_of.get(key, unmatched)
    return DraftLists(logprobs, best, np.minimum(outside, 1.0), error, present, by_text)
