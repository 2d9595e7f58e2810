"""``certify(..., lumped=True)``: arrays of top-k logprobs made into target and draft lists. This module checks them;
the judging is ``certspec.certificates.lumped``'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.lumped import (
    UNKNOWN,
    DraftLists,
    LumpedCertificates,
    TargetLists,
    lumped_certificates,
)
from certspec.errors import InvalidLogits
from certspec.rules import Rule

__all__ = ["certify_lists"]

Floats = NDArray[np.float64]
_UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def certify_lists(
    target_logprobs: Floats, draft_logprobs: Floats | None, kinds: tuple[str, str], rules: Sequence[Rule]
) -> LumpedCertificates:
    """The lists of one batch, (rows, k) float64 nats each, under the rules; ``kinds`` are the dtypes they came in.

    Every value may be off by one unit in the last place of its dtype. Raises InvalidLogits naming the row.
    """
    target_error = _checked("target_logits", target_logprobs, kinds[0])
    order = np.argsort(-target_logprobs, axis=1, kind="stable")
    ranked = np.take_along_axis(target_logprobs, order, axis=1)
    target = TargetLists(ranked, np.isfinite(ranked).sum(axis=1), target_error)
    if draft_logprobs is None:
        return lumped_certificates(target, rules)
    if draft_logprobs.shape != target_logprobs.shape:
        raise InvalidLogits(
            f"draft_logits: expected shape {target_logprobs.shape} like target_logits (lumped=True reads the draft's "
            f"logprobs of the target's listed tokens, column by column), got {draft_logprobs.shape}"
        )
    draft_error = _checked("draft_logits", draft_logprobs, kinds[1])
    rows = len(ranked)
    depth = max([1, *(rule.tree_width for rule in rules if rule.tree_width)])
    draft = DraftLists(
        logprobs=np.take_along_axis(draft_logprobs, order, axis=1),
        best_columns=np.full((rows, depth), UNKNOWN, dtype=np.int64),
        outside_mass=np.zeros(rows),
        error=draft_error,
        present=np.ones(rows, dtype=bool),
    )
    return lumped_certificates(target, rules, draft)


def _checked(name: str, logprobs: Floats, kind: str) -> Floats:
    """How far a row's logprobs may be from the real ones, (rows,) nats; raises where a row is no part of a law."""
    finite = np.isfinite(logprobs)
    largest = np.abs(np.where(finite, logprobs, 0.0)).max(axis=1)
    error = np.asarray(_UNITS[kind] * (1.0 + largest))
    _refuse(name, np.isnan(logprobs).any(axis=1), "no NaN (a listed token has a logprob; -inf pads)", logprobs)
    above = (logprobs > error[:, None]).any(axis=1)
    _refuse(name, above, "logprobs of at most 0 (lumped=True reads log-probabilities, not logits)", logprobs)
    if name == "target_logits":
        _refuse(name, ~finite.any(axis=1), "at least one listed token", logprobs)
    mass = np.exp(np.minimum(logprobs, 0.0)).sum(axis=1)
    over = mass > np.exp(2.0 * error) * (1.0 + 1e-12)
    _refuse(name, over, "probabilities that sum to at most 1", logprobs, mass)
    return error


def _refuse(name: str, wrong: Any, expected: str, logprobs: Floats, mass: Floats | None = None) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        got = f"{logprobs[row]}" if mass is None else f"a sum of {mass[row]:.9g}"
        raise InvalidLogits(f"{name}: expected {expected}, got {got} in row {row}")
