"""``certify_hidden``: certificates from the last hidden states and the heads of both models, a
chunk of rows at a time, so that the logits of a long sequence never exist at once.

A sequence of 8,192 positions over 151,936 tokens would take 10 GB of float32 logits for the two
models; in chunks of 256 MB each ``certify`` sees 220 rows at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from certspec.certificates.certify import Certificates, certify
from certspec.certificates.mistakes import Mistake, join_mistakes, mistakes_in
from certspec.certificates.pools import Array, is_tensor, readable
from certspec.errors import InvalidArgument
from certspec.kernels.row_scores import InvalidRow, join_scores
from certspec.rules import Rule, as_index

__all__ = ["certify_hidden"]


def certify_hidden(
    target_hidden: Array,
    target_head: Array,
    draft_hidden: Array | None = None,
    draft_head: Array | None = None,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    chunk_bytes: int = 256 << 20,
    backend: str | None = None,
    align: int | None = None,
) -> Certificates[Array]:
    """``certify(target_hidden @ target_head.T, draft_hidden @ draft_head.T, rules)`` without
    holding those logits.

    Args:
        target_hidden: (rows, width) last hidden states, numpy arrays or torch tensors of one
            device. Logits have their dtype and are what that library's matrix product of a chunk of
            rows gives (a product of more rows at once may differ in its last bits).
        target_head: (vocab, width), the weight of the output layer.
        draft_hidden: the draft's, with a width of its own; None: the target's certificates alone.
        draft_head: the draft's.
        rules: as in ``certify``.
        chunk_bytes: the logits of both models that exist at any time take no more, and are the only
            array of more than (rows, K) or (vocab, width) numbers, but for the work space of the
            backend "torch": float64 copies of 2^24 logits.
        backend: as in ``certify``.
        align: as in ``certify``.

    Raises InvalidArgument where shapes, dtypes or ``chunk_bytes`` (less than one row) don't fit,
    InvalidLogits where a row defines no distribution.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> hidden = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
        >>> head = np.random.default_rng(1).normal(size=(100, 8)).astype(np.float32)
        >>> cs.certify_hidden(hidden, head, hidden, head, "strict")
        Certificates: 4 rows x 1 rules, mean KL 0 nats
          strict                   accepted 4, certified 4
    """
    sides: list[tuple[str, Any, Any]] = [("target", target_hidden, target_head)]
    if (draft_hidden is None) != (draft_head is None):
        missing = "draft_head" if draft_head is None else "draft_hidden"
        raise InvalidArgument(
            f"{missing}: expected an array beside the draft's other one, got None"
        )
    if draft_hidden is not None:
        sides.append(("draft", draft_hidden, draft_head))
    for name, hidden, head in sides:
        _check(name, hidden, head, target_hidden)
    row_bytes = sum(head.shape[0] * hidden.itemsize for _, hidden, head in sides)
    if as_index(chunk_bytes, otherwise=0) < row_bytes:
        raise InvalidArgument(
            f"chunk_bytes: expected an integer of at least {row_bytes}, the logits of one row, got "
            f"{chunk_bytes!r}"
        )
    num_rows, step = target_hidden.shape[0], chunk_bytes // row_bytes
    buffers = [
        _buffer(hidden, min(step, max(num_rows, 1)), head.shape[0]) for _, hidden, head in sides
    ]
    parts = []
    mistakes: list[list[Mistake]] = [[] for _ in sides]
    for start in range(0, max(num_rows, 1), step):
        logits = [
            _product(hidden[start : start + step], head, buffer)
            for (_, hidden, head), buffer in zip(sides, buffers, strict=True)
        ]
        try:
            parts.append(
                certify(
                    logits[0],
                    logits[1] if len(logits) > 1 else None,
                    rules,
                    backend=backend,
                    align=align,
                )
            )
        except InvalidRow as error:
            raise error.in_block_from(start) from error
        if parts[-1].notes:
            for told, rows in zip(mistakes, logits, strict=True):
                told += mistakes_in(rows[:, :align], start)
    on_torch = is_tensor(target_hidden)
    joined = join_scores(parts, sys.modules["torch"].cat if on_torch else np.concatenate)
    notes = (
        mistake.note(f"{name}_logits")
        for (name, _, _), told in zip(sides, mistakes, strict=True)
        for mistake in join_mistakes(told)
    )
    return replace(joined, notes=tuple(notes))


def _check(name: str, hidden: Any, head: Any, first: Any) -> None:
    for label, array in ((f"{name}_hidden", hidden), (f"{name}_head", head)):
        readable(label, array)
        if isinstance(array, np.ndarray) != isinstance(first, np.ndarray):
            raise InvalidArgument(
                f"{label}: expected the kind of array that target_hidden is, got {type(array)}"
            )
        if array.ndim != 2:
            raise InvalidArgument(f"{label}: expected 2 dimensions, got shape {tuple(array.shape)}")
    if hidden.shape[1] == 0 or head.shape[0] == 0:
        raise InvalidArgument(
            f"{name}_hidden, {name}_head: expected (rows, width) and (vocab, width) of at least 1, "
            f"got {tuple(hidden.shape)} and {tuple(head.shape)}"
        )
    if hidden.shape[1] != head.shape[1]:
        raise InvalidArgument(
            f"{name}_head: expected (vocab, {hidden.shape[1]}) for {name}_hidden of that width, "
            f"got {tuple(head.shape)}"
        )
    if hidden.dtype != head.dtype:
        raise InvalidArgument(
            f"{name}_head: expected {hidden.dtype} like {name}_hidden, got {head.dtype}"
        )
    if hidden.shape[0] != first.shape[0]:
        raise InvalidArgument(
            f"{name}_hidden: expected {first.shape[0]} rows like target_hidden, got "
            f"{hidden.shape[0]}"
        )


def _buffer(hidden: Any, rows: int, vocab: int) -> Any:
    return (
        np.empty((rows, vocab), hidden.dtype)
        if isinstance(hidden, np.ndarray)
        else hidden.new_empty((rows, vocab))
    )


def _product(hidden: Any, head: Any, buffer: Any) -> Any:
    out = buffer[: hidden.shape[0]]
    if isinstance(hidden, np.ndarray):
        return np.matmul(hidden, head.T, out=out)
    return sys.modules["torch"].mm(hidden.detach(), head.detach().T, out=out.detach())
