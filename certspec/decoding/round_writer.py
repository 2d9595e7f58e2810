"""Record columns from rounds that were scored on the device. This module computes no certificate; it checks that
certificates and decisions agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.decoding.records import KINDS, StepList
from certspec.errors import CertspecError
from certspec.rules import Rule

if TYPE_CHECKING:
    from certspec.decoding.loop import DecodingPlan
    from certspec.engine.cuda_rounds import RoundScores

__all__ = ["RoundWriter"]

_WAITING_ROUNDS = 256
_NOTES = ("at", "prompt", "position", "round", "accepted", "kept")
_ACCEPTED, _CORRECTED, _BONUS = (KINDS.index(name) for name in ("accepted", "corrected", "bonus"))


class RoundWriter:
    """Collects rounds of chains and turns them into the columns of ``steps``, many at a time unless someone listens."""

    def __init__(self, steps: StepList, plan: DecodingPlan, rule: Rule) -> None:
        self.steps, self.length, self.on_step = steps, plan.policy.depth, plan.on_step
        self.num_flat_draft_rows = 0
        self._rule_code = steps.rule_code(rule.label)
        self._scores: list[dict[str, np.ndarray[Any, Any]]] = []
        self._notes: list[tuple[int, ...]] = []
        self._tokens: list[np.ndarray[Any, Any]] = []
        self._num_rows = 0
        self._noted: list[tuple[int, ...]] = []

    def note(self, row: int, prompt: int, position: int, number: int, accepted: int, kept: int) -> None:
        """A row of the round that is added next: where it stands, drafts accepted, tokens that are emitted."""
        self._noted.append((row, prompt, position, number, accepted, kept))

    def add(self, scores: RoundScores) -> None:
        """The scores of the rows just noted."""
        for row, *facts in self._noted:
            self._notes.append((self._num_rows + row * (self.length + 1), *facts))
            self._tokens.append(scores.tokens[row, : facts[-1]])
        self._noted = []
        self._scores.append(scores.scores)
        self._num_rows += len(scores.scores["path"])
        if self.on_step is not None or len(self._scores) >= _WAITING_ROUNDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._notes:
            return
        notes = {name: np.array(values) for name, values in zip(_NOTES, zip(*self._notes, strict=True), strict=True)}
        parts = {name: [scores[name] for scores in self._scores] for name in self._scores[0]}
        tokens = np.concatenate(self._tokens)
        self._scores, self._notes, self._tokens, self._num_rows = [], [], [], 0
        kept = notes["kept"]
        depth = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        at = np.repeat(notes["at"], kept) + depth
        accepted = np.repeat(notes["accepted"], kept)
        scalars = np.concatenate(parts["scalars"])[at]
        ids = np.concatenate(parts["ids"], axis=1)[:, at, 0]
        verdict = np.concatenate(parts["verdict"], axis=2)[:, :, at].astype(bool)
        certificate = np.concatenate(parts["certificate"], axis=2)[:, :, at]
        drafted, is_accepted = depth < self.length, depth < accepted
        self._check(notes, kept, depth, drafted, is_accepted, verdict[0, 0])

        def of_pairs(values: Any, otherwise: Any = np.nan) -> Any:
            return np.where(drafted, values, otherwise)

        top, same = scalars[:, 5], tokens == ids[0]
        columns = {
            **{name: np.repeat(notes[name], kept) for name in ("prompt", "round")},
            "position": np.repeat(notes["position"], kept) + depth, "depth": depth,
            "kind": np.where(is_accepted, _ACCEPTED, np.where(drafted, _CORRECTED, _BONUS)),
            "num_children": drafted.astype(np.int64), "rule": self._rule_code, "token": tokens,
            "draft_token": of_pairs(ids[1], -1), "target_token": np.where(drafted, ids[0], tokens),
            "accepted": of_pairs(is_accepted, -1), "certified": of_pairs(verdict[1, 0], False),
            "kl": of_pairs(scalars[:, 0]), "kl_upper": of_pairs(scalars[:, 1]),
            "certificate": of_pairs(certificate[0, 0]), "certificate_lower": of_pairs(certificate[1, 0]),
            "prob_margin": scalars[:, 3], "tree_margin": of_pairs(top - scalars[:, 6]), "top_prob": top,
            "draft_token_prob": of_pairs(scalars[:, 4]), "entropy": scalars[:, 2],
            "token_prob_ratio": np.where(drafted & ~same, scalars[:, 4] / top, 1.0),
        }  # fmt: skip
        extra = {
            "accepted": np.where(drafted, verdict[0, 1:], -1), "certified": verdict[1, 1:] & drafted,
            "certificate": np.where(drafted, certificate[0, 1:], np.nan),
            "certificate_lower": np.where(drafted, certificate[1, 1:], np.nan),
        }  # fmt: skip
        self.steps.append_columns(columns, extra)
        if self.on_step is not None:
            for record in self.steps.last(len(tokens)):
                self.on_step(record)

    def _check(self, notes: Any, kept: Any, depth: Any, drafted: Any, is_accepted: Any, verdict: Any) -> None:
        """The decision came from argmaxes on the device, the certificate from the scoring kernels."""
        differs = np.flatnonzero(drafted & (is_accepted != verdict))
        if len(differs):
            step = int(differs[0])
            prompt, position = np.repeat(notes["prompt"], kept)[step], np.repeat(notes["position"], kept)[step]
            raise CertspecError(
                f"prompt {prompt}, position {position + depth[step]}: the certificate and the decision disagree"
            )
