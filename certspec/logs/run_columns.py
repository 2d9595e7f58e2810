"""Judged batches as rows of a run folder. Beyond the columns of ``certspec.runs.schema`` an
imported run has, one value a row,

- ``source_line``: line of the target's log on which the position's document begins (or its row)
- ``chosen_token``: the token that the log goes on with, as text (or bytes); null if unnamed
- ``target_text``, ``draft_text``: the most probable token of the target and of the draft
- ``entropy_upper``: greatest entropy that the list allows, nats, may be +inf; ``entropy`` is the
  least
- ``tail_prob``: probability outside the target's list
- ``tail_threshold``: C_T, nats: what the lumped KL must stay below if the draft's token may be
  unlisted

and, as lists with one entry a rule,

- ``threshold``: what the lumped KL was compared with; NaN without a draft
- ``accepted_known``: whether the log tells if the draft's token is accepted
- ``certificate_known``: false where ``certificate`` is a lower bound only
- ``certificate_case``, ``decision_case``: how the certificate is known and how the draft was
  judged, as sentences

Token ids are -1 where a log has none. ``kl`` is the least lumped divergence that the logged values
allow, at most KL(target || draft);
``kl_upper`` bounds the lumped one. Prompt positions have 2^30 added to ``prompt``, so that prompt
and answer of one document stay apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from certspec.certificates.lumped import CASES, LumpedCertificates, TargetLists
from certspec.logs.batches import Pairs
from certspec.logs.normalise import CUT_REASONS, is_text
from certspec.logs.position import Key, LoggedPosition
from certspec.runs.schema import PROMPT_PART, step_schema

__all__ = ["import_schema", "import_table"]

_TOP = 10
_CASE_TEXTS = np.array([case.value for case in CASES])
_ENDS = {"stop": "eos", "eos": "eos", **dict.fromkeys(CUT_REASONS, "steps")}
_EXTRA = {
    "source_line": pa.int64(),
    "chosen_token": pa.string(),
    "target_text": pa.string(),
    "draft_text": pa.string(),
    "entropy_upper": pa.float64(),
    "tail_prob": pa.float64(),
    "tail_threshold": pa.float64(),
    "threshold": pa.list_(pa.float64()),
    "accepted_known": pa.list_(pa.bool_()),
    "certificate_known": pa.list_(pa.bool_()),
    "certificate_case": pa.list_(pa.dictionary(pa.int8(), pa.string())),
    "decision_case": pa.list_(pa.dictionary(pa.int8(), pa.string())),
}


def import_schema(rule_labels: list[str]) -> pa.Schema:
    """The schema of an imported run's parts."""
    schema = step_schema(rule_labels)
    for name, kind in _EXTRA.items():
        schema = schema.append(pa.field(name, kind))
    return schema


def import_table(
    batch: Pairs, lists: TargetLists, judged: LumpedCertificates, schema: pa.Schema
) -> pa.Table:
    """One batch (``lists``: its target's) as a table of ``schema``; columns about the draft are
    null in a log of the target alone."""
    has_draft = batch[0][1] is not None
    columns = {**_shared(batch, lists, judged), **_of_rules(judged)}
    columns |= _of_draft(batch, judged) if has_draft else {}
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(len(batch), field.type))
        elif isinstance(values, pa.Array):
            arrays.append(values)
        elif pa.types.is_list(field.type):
            arrays.append(_lists(values, field.type))
        else:
            arrays.append(pa.array(values, type=field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _shared(batch: Pairs, lists: TargetLists, judged: LumpedCertificates) -> dict[str, Any]:
    targets = [target for target, _ in batch]
    probs = np.exp(lists.logprobs[:, :_TOP])
    ranked = np.arange(probs.shape[1]) < lists.num_ranked[:, None]
    return {
        "prompt": [
            target.sequence + (PROMPT_PART if target.part == "prompt" else 0) for target in targets
        ],
        "position": [target.position for target in targets],
        "prompt_tokens": np.zeros(len(batch), dtype=np.int32),
        "target_token": [_id(target.keys[0]) for target in targets],
        "entropy": np.maximum(judged.entropy_lower, 0.0),
        "prob_margin": _margins(probs, lists.num_ranked),
        "target_top_ids": _id_lists(targets),
        "target_top_probs": _uneven(pa.array(probs[ranked]), ranked.sum(axis=1)),
        "end": [
            None if target.finish is None else _ENDS.get(target.finish, _storable(target.finish))
            for target in targets
        ],
        "source_line": [target.line for target in targets],
        "chosen_token": [
            _text(target.chosen_key, target.texts, target.chosen) for target in targets
        ],
        "target_text": [_text(target.keys[0], target.texts, 0) for target in targets],
        "entropy_upper": judged.entropy_upper,
        "tail_prob": judged.tail_prob,
        "tail_threshold": judged.tail_threshold,
    }


def _of_rules(judged: LumpedCertificates) -> dict[str, Any]:
    unknown = np.isnan(judged.certificate)
    return {
        "certificate": np.where(unknown, judged.certificate_lower, judged.certificate).T,
        "certificate_lower": judged.certificate_lower.T,
        "certificate_known": ~unknown.T,
        "certificate_case": judged.certificate_case.T,
    }


def _of_draft(batch: Pairs, judged: LumpedCertificates) -> dict[str, Any]:
    drafts = [draft for _, draft in batch if draft is not None]
    num_rules = len(judged.rules)
    return {
        "draft_token": [_id(draft.keys[0]) for draft in drafts],
        "draft_text": [_text(draft.keys[0], draft.texts, 0) for draft in drafts],
        "draft_token_prob": [
            _prob_of(target, draft.keys[0]) for target, draft in batch if draft is not None
        ],
        "draft_top_ids": _id_lists(drafts),
        "draft_top_probs": pa.array(
            [np.exp(draft.logprobs[: min(2, draft.num_ranked)]) for draft in drafts],
            pa.list_(pa.float64()),
        ),
        "kl": judged.kl_lumped,
        "kl_upper": judged.kl_lumped_upper.min(axis=0) if num_rules else judged.kl_lumped,
        "accepted": (judged.accepted == 1).T,
        "accepted_known": (judged.accepted != -1).T,
        "certified": judged.certified.T,
        "threshold": judged.threshold.T,
        "decision_case": judged.decision_case.T,
    }


def _lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    num_rows, width = values.shape
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * width)
    flat = np.ascontiguousarray(values).ravel()
    if pa.types.is_dictionary(kind.value_type):
        entries = pa.DictionaryArray.from_arrays(pa.array(flat, pa.int8()), pa.array(_CASE_TEXTS))
    else:
        entries = pa.array(flat, type=kind.value_type)
    return pa.ListArray.from_arrays(offsets, entries)


def _id_lists(positions: Sequence[LoggedPosition]) -> pa.Array:
    """The ids of each position's first ranks, -1 where a token has none."""
    lists = [position.keys[: min(_TOP, position.num_ranked)] for position in positions]
    flat = list(itertools.chain.from_iterable(lists))
    if set(map(type, flat)) != {int}:
        flat = [_id(key) for key in flat]
    return _uneven(pa.array(flat, pa.int32()), np.array([len(listed) for listed in lists]))


def _uneven(flat: pa.Array, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _id(key: Key) -> int:
    return key if isinstance(key, int) else -1


def _text(key: Key, texts: list[str | None], place: int) -> str | None:
    text = texts[place] if 0 <= place < len(texts) else None
    if text is None and isinstance(key, (str, bytes)):
        text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
    return text if text is None else _storable(text)


def _storable(text: str) -> str:
    """The text as Parquet can hold it: half of a surrogate pair is written out as ``\\ud83d``."""
    return text if is_text(text) else text.encode("utf-8", "backslashreplace").decode()


def _margins(probs: np.ndarray, num_ranked: np.ndarray) -> np.ndarray:
    """p1 - p2, or the least it can be where only one rank is known; (rows,)."""
    first = probs[:, 0]
    second = np.minimum(first, 1.0 - first)
    if probs.shape[1] > 1:
        second = np.where(num_ranked > 1, probs[:, 1], second)
    return first - second


def _prob_of(target: LoggedPosition, key: Key) -> float | None:
    return (
        float(np.exp(target.logprobs[target.keys.index(key)]))
        if key is not None and key in target.keys
        else None
    )
