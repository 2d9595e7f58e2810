"""A run made from stored logits: the same parts in the same folder as one that ran the models,
resumable and shared over ranks in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certspec.certificates.certify import certify
from certspec.certificates.mistakes import notes_on
from certspec.errors import InvalidArgument, InvalidLogits
from certspec.kernels.row_scores import InvalidRow
from certspec.models.devices import chosen_device
from certspec.models.stored_logits import StoredLogits, require_same_rows
from certspec.rules import Rule, as_index
from certspec.runs.folder import RunFolder, RunOutcome
from certspec.runs.schema import certificate_columns, leading_probs, step_schema, step_table
from certspec.runs.shards import Shard
from certspec.scoring.greedy import CHUNK_BYTES
from certspec.scoring.provenance import (
    certspec_version,
    kernel_hashes,
    kernels_sha256,
    session_facts,
)

__all__ = ["ROWS_A_PART", "score_stored"]

ROWS_A_PART = 2048


@dataclass(frozen=True)
class _Block:
    """Rows ``start`` to ``stop`` of sequence ``sequence``: what becomes one part."""

    number: int
    sequence: int
    start: int
    stop: int


def score_stored(
    target: StoredLogits,
    draft: StoredLogits | None,
    folder: RunFolder,
    rules: Sequence[Rule],
    *,
    num_tokens: int | None = None,
    device: str | None = None,
    reach: bool = False,
    shard: Shard | None = None,
    on_start: Callable[[int], None] | None = None,
    on_advance: Callable[[int], None] | None = None,
) -> RunOutcome:
    """Certify every row of ``target`` (and of ``draft``, the same sequences) into ``folder``.

    ``num_tokens``: only the first so many columns are real ids. ``device``: where rows are
    certified (None: the CPU). ``reach``: also up to which error of the target's logits each step
    stays certified. Memory holds one part's results and 32 MB of logits, however many
    there are. Raises InvalidArgument where the two don't fit each other, InvalidLogits naming file
    and row, RunMismatch where the folder holds another run."""
    shard = shard or Shard()
    place = chosen_device(device or "cpu")
    if draft is not None:
        require_same_rows(target, draft)
    _require_columns(target, draft, num_tokens)
    labels = [rule.label for rule in rules]
    settings: dict[str, Any] = {
        "certspec": certspec_version(),
        "stored_logits": {
            "target": target.facts(),
            "draft": None if draft is None else draft.facts(),
        },
        "num_tokens": num_tokens,
        "device": place.type,
        "kernels_sha256": kernels_sha256(),
        "rules": labels,
        **({"reach": True} if reach else {}),
    }
    schema = step_schema(labels)
    num_parts = 0
    notes = {"kernels": kernel_hashes(), "notes": _notes((target, draft), num_tokens)}
    with folder.working(shard, settings, session_facts(place), **notes) as finish:
        if on_start is not None:
            on_start(target.num_rows)
        for block in _blocks(target):
            num_parts = block.number + 1
            if shard.owns(block.number) and not folder.part_path(block.number).exists():
                columns = _score(target, draft, block, rules, num_tokens, place, reach)
                folder.write_part(block.number, step_table(columns, schema))
            if on_advance is not None:
                on_advance(block.stop - block.start)
        return finish(num_parts)


def _require_columns(
    target: StoredLogits, draft: StoredLogits | None, num_tokens: int | None
) -> None:
    """The columns fit each other and ``num_tokens``, before any row is read."""
    widths = [side.arrays[0].num_columns for side in (target, draft) if side is not None]
    if draft is not None and num_tokens is None and widths[0] != widths[1]:
        raise InvalidLogits(
            f"{draft.path}: expected {widths[0]} columns like the target's, got {widths[1]}; pass "
            "num_tokens=N (--num-tokens N) where only the first N columns are real ids"
        )
    if num_tokens is not None and not 1 <= as_index(num_tokens, otherwise=0) <= min(widths):
        raise InvalidArgument(
            f"num_tokens: expected an integer from 1 to {min(widths)}, the columns there are, got "
            f"{num_tokens!r}"
        )


def _notes(sides: Sequence[StoredLogits | None], num_tokens: int | None) -> list[str]:
    """What is almost surely a mistake in the first rows of each side."""
    firsts = [side.arrays[0] for side in sides if side is not None]
    return [
        note
        for array in firsts
        for note in notes_on(
            array.path.name,
            array.read(0, min(array.num_rows, max(1, CHUNK_BYTES // array.row_bytes)))[
                :, :num_tokens
            ],
        )
    ]


def _blocks(target: StoredLogits) -> Iterator[_Block]:
    number = 0
    for sequence, array in enumerate(target.arrays):
        for start in range(0, array.num_rows, ROWS_A_PART):
            yield _Block(number, sequence, start, min(start + ROWS_A_PART, array.num_rows))
            number += 1


def _score(
    target: StoredLogits,
    draft: StoredLogits | None,
    block: _Block,
    rules: Sequence[Rule],
    num_tokens: int | None,
    device: Any,
    reach: bool,
) -> dict[str, Any]:
    arrays = [side.arrays[block.sequence] for side in (target, draft) if side is not None]
    rows_at_once = max(1, CHUNK_BYTES // sum(array.row_bytes for array in arrays))
    chunks = []
    for start in range(block.start, block.stop, rows_at_once):
        stop = min(start + rows_at_once, block.stop)
        logits = [_on(array.read(start, stop), device) for array in arrays]
        try:
            found = certify(
                logits[0],
                logits[1] if draft is not None else None,
                list(rules),
                align=num_tokens,
                logit_error=0.0 if reach else None,
            )
        except InvalidRow as error:
            names = " and ".join(array.path.name for array in arrays)
            told = error.in_block_from(start)
            raise InvalidLogits(f"{names}: sequence {block.sequence}: {told}") from error
        probs = None if draft is None else leading_probs(logits[1][:, :num_tokens])
        chunks.append(certificate_columns(found) | {"draft_top_probs": probs})
    columns: dict[str, Any] = {
        name: None if values is None else np.concatenate([chunk[name] for chunk in chunks])
        for name, values in chunks[0].items()
    }
    num_rows = block.stop - block.start
    return columns | {
        "prompt": np.full(num_rows, block.sequence, dtype=np.int32),
        "position": np.arange(block.start, block.stop, dtype=np.int32),
        "prompt_tokens": np.zeros(num_rows, dtype=np.int32),
        "end": None,
    }


def _on(rows: Any, device: Any) -> Any:
    if device.type == "cpu":
        return rows
    import torch

    return (torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows).to(device)
