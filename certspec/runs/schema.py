"""The schema of scored steps, and the way from certificates to Arrow tables that follow it.

Schema version 2, one row a step (a position of a greedy run of the target), sorted by (prompt,
position) in a part. The int32, float64 and text columns:

- ``prompt``: place of the prompt in its file, from 0
- ``position``: step, from 0: the token after ``prompt_tokens + position`` tokens
- ``prompt_tokens``: tokens of the prompt
- ``target_token``: the target's argmax (ties: lowest id), which is also the token emitted
- ``draft_token``: the draft's argmax after the same tokens
- ``draft_token_prob``: target probability of ``draft_token``
- ``entropy``: of the target, nats
- ``prob_margin``: the target's p1 - p2
- ``kl``, ``kl_upper``: KL of the draft from the target and a sound upper bound of it, nats; may be
  +inf
- ``end``: on a prompt's last row "eos", "steps" or "context"; null elsewhere

and lists, with one entry a rule:

- ``certificate``: float64, nats; +inf where the rule rejects nothing
- ``certificate_lower``: float64, a sound lower bound of ``certificate``
- ``accepted``: bool, the rule accepts the draft's proposal at this step
- ``certified``: bool, ``kl_upper < certificate_lower``
- ``reach``: float64, nats: up to which error of the target's logits the step stays certified, -inf
  where it is not certified; null unless asked for (``certspec score --reach``), and not there in
  runs older than the column

or with the first tokens of a model:

- ``target_top_ids``: int32, the target's most probable tokens, by (-probability, id)
- ``target_top_probs``: float64, their probabilities
- ``draft_top_ids``: int32, the draft's most probable tokens, by (-probability, id)
- ``draft_top_probs``: float64, the draft's two largest probabilities, from its first token on

In a run made from stored logits ``prompt`` is the sequence's number, ``prompt_tokens`` 0 and
``end`` null. Columns about the draft are null in a run of the target alone. The schema's metadata
holds ``certspec_schema`` (the version), ``rules`` (their labels, in the order of the lists) and
``skipped`` (prompts left out, with reasons)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = [
    "COLUMNS",
    "PROMPT_PART",
    "SCHEMA_VERSION",
    "certificate_columns",
    "leading_probs",
    "opened",
    "step_schema",
    "step_table",
]

SCHEMA_VERSION = 2
PROMPT_PART = (
    2**30
)  # an imported run numbers prompts' own positions from here on, and answers below

_PER_RULE = ("certificate", "certificate_lower", "accepted", "certified", "reach")
_OF_DRAFT = (
    "draft_token",
    "draft_token_prob",
    "kl",
    "kl_upper",
    "accepted",
    "certified",
    "reach",
    "draft_top_ids",
    "draft_top_probs",
)

COLUMNS: dict[str, pa.DataType] = {
    "prompt": pa.int32(),
    "position": pa.int32(),
    "prompt_tokens": pa.int32(),
    "target_token": pa.int32(),
    "draft_token": pa.int32(),
    "draft_token_prob": pa.float64(),
    "entropy": pa.float64(),
    "prob_margin": pa.float64(),
    "kl": pa.float64(),
    "kl_upper": pa.float64(),
    "certificate": pa.list_(pa.float64()),
    "certificate_lower": pa.list_(pa.float64()),
    "accepted": pa.list_(pa.bool_()),
    "certified": pa.list_(pa.bool_()),
    "reach": pa.list_(pa.float64()),
    "target_top_ids": pa.list_(pa.int32()),
    "target_top_probs": pa.list_(pa.float64()),
    "draft_top_ids": pa.list_(pa.int32()),
    "draft_top_probs": pa.list_(pa.float64()),
    "end": pa.string(),
}


def step_schema(rule_labels: Sequence[str], skipped: Sequence[Mapping[str, Any]] = ()) -> pa.Schema:
    """The schema of a part file, with the run's rules and the part's skips in its metadata."""
    metadata = {
        "certspec_schema": str(SCHEMA_VERSION),
        "rules": json.dumps(list(rule_labels)),
        "skipped": json.dumps(list(skipped)),
    }
    fields = [
        pa.field(name, kind, nullable=name == "end" or name in _OF_DRAFT)
        for name, kind in COLUMNS.items()
    ]
    return pa.schema(fields, metadata=metadata)


def opened(part: Path) -> pa.NativeFile:
    """A part for pyarrow to read. Its own paths are texts, and a path may hold any bytes."""
    return pa.OSFile(os.fsencode(part))


def certificate_columns(certificates: Any) -> dict[str, np.ndarray | None]:
    """Columns of one ``Certificates`` value as numpy arrays: (rows,), or (rows, entries) for list
    columns."""
    columns: dict[str, np.ndarray | None] = {}
    for name in COLUMNS:
        if name in ("prompt", "position", "prompt_tokens", "draft_top_probs", "end"):
            continue
        values = _as_numpy(getattr(certificates, name))
        columns[name] = values.T if values is not None and name in _PER_RULE else values
    return columns


def leading_probs(logits: Any) -> np.ndarray:
    """The two largest probabilities of each row, (rows, 2) float64 (one where the vocabulary has
    one token)."""
    import torch

    rows = torch.as_tensor(logits)
    top = rows.topk(min(2, rows.shape[-1]), dim=-1).values.double()
    # a float32 sum of exponentials is near enough: these probabilities decide how far to draft and
    # certify nothing
    return np.asarray(
        (top - rows.float().logsumexp(dim=-1, keepdim=True).double()).exp().clamp(max=1.0).cpu()
    )


def step_table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """An Arrow table of ``schema`` from numpy columns; None stands for a column of nulls."""
    num_rows = len(columns["prompt"])
    arrays = []
    for field in schema:
        values = columns[field.name]
        if values is None:
            arrays.append(pa.nulls(num_rows, field.type))
        elif pa.types.is_list(field.type):
            arrays.append(_list_array(values, field.type))
        else:
            arrays.append(pa.array(values, type=field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _list_array(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    num_rows, width = values.shape
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(
        offsets, pa.array(np.ascontiguousarray(values).ravel(), type=kind.value_type)
    )


def _as_numpy(values: Any) -> np.ndarray | None:
    if values is None:
        return None
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
