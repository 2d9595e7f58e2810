"""Certificates from truncated lists: what the k most probable tokens of a target, and optionally a
draft's logprobs for them, allow one to certify.

A log often holds the 20 best tokens of each position only. All others are one lump of known mass;
the divergence of the two lumped lists, K_O, is at most the true one, and each rule has a threshold
that K_O has to stay below (theory E)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.lumped_masses import (
    CASES,
    OUTSIDE,
    UNKNOWN,
    Case,
    DraftLists,
    Rows,
    TargetLists,
    pool_value,
)
from certspec.certificates.lumped_rules import judge_single, judge_tree
from certspec.certificates.written import written_log_errors
from certspec.errors import InvalidArgument, InvalidLogits
from certspec.kernels.loading import load_kernels
from certspec.presets import as_rules
from certspec.rules import Rule

__all__ = [
    "CASES",
    "OUTSIDE",
    "UNKNOWN",
    "Case",
    "DraftLists",
    "LumpedCertificates",
    "TargetLists",
    "certify_lists",
    "lumped_certificates",
]

_constants = load_kernels("constants")
_DEEPEST = -1000.0  # nats


Floats = NDArray[np.float64]

Bools = NDArray[np.bool_]


@dataclass(frozen=True, repr=False)
class LumpedCertificates:
    """Per row and per rule: what holds, how it is known. Arrays over rows are (rows,), over rules
    (rules, rows).

    ``certificate_lower`` <= the full C_p, always; ``certificate`` is C_p's value where it is known,
    else NaN. ``threshold``: what ``kl_lumped_upper`` (rules, rows) was compared with; both NaN
    without a draft. ``accepted``: 1, 0, or -1 where the log can't tell. ``certified`` implies
    ``accepted == 1``. The case arrays hold ``Case.code``."""

    rules: tuple[Rule, ...]
    kl_lumped: Floats
    kl_lumped_upper: Floats
    entropy_lower: Floats
    entropy_upper: Floats
    tail_prob: Floats
    tail_threshold: Floats
    certificate: Floats
    certificate_lower: Floats
    threshold: Floats
    accepted: NDArray[np.int8]
    certified: Bools
    certificate_case: NDArray[np.int8]
    decision_case: NDArray[np.int8]

    def case(self, rule: int, row: int) -> tuple[Case, Case]:
        """The sentences for one rule and row: how the certificate is known, and how the decision
        was made."""
        return CASES[self.certificate_case[rule, row]], CASES[self.decision_case[rule, row]]

    def __repr__(self) -> str:
        lines = [f"LumpedCertificates: {len(self.tail_prob)} rows x {len(self.rules)} rules"]
        has_draft = not np.isnan(self.kl_lumped).all()
        for rule, accepted, certified in zip(
            self.rules, self.accepted, self.certified, strict=True
        ):
            counts = f" accepted {int((accepted == 1).sum())}, certified {int(certified.sum())}"
            lines.append(f"  {rule.label:<24}{counts if has_draft else ''}")
        return "\n".join(lines)


def lumped_certificates(
    target: TargetLists, rules: str | Rule | Sequence[str | Rule], draft: DraftLists | None = None
) -> LumpedCertificates:
    """Certificates (nats) of every row under every rule, from lists alone (theory E).

    A rule that rejects a draft has K_O >= threshold for the draft's true distribution; so K_O below
    it certifies. A row that a rule can't be judged on has Case.TOO_SHORT, a NaN certificate and the
    lower bound 0.

    Args:
        target: the target's lists.
        rules: one rule or several, each itself or its text.
        draft: the draft's log-probabilities of the same tokens; None: the target's part alone.

    Raises InvalidArgument where the two don't fit together.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> best = np.log([[0.7, 0.2]])  # .1 is left for all other tokens
        >>> lists = cs.TargetLists(best, np.array([2]), np.zeros(1))
        >>> found = cs.lumped_certificates(lists, "strict")
        >>> found.certificate.round(4)
        array([[0.1471]])
        >>> found.case(0, 0)[0].value
        'the first rejected token is in the list: the certificate is known'
    """
    chosen = as_rules(rules)
    if not isinstance(target, TargetLists):
        raise InvalidArgument(f"lumped_certificates: expected TargetLists, got {target!r}")
    if draft is not None and not isinstance(draft, DraftLists):
        raise InvalidArgument(f"lumped_certificates: expected DraftLists, got {draft!r}")
    if draft is not None and draft.logprobs.shape != target.logprobs.shape:
        raise InvalidArgument(
            f"lumped_certificates: expected draft logprobs of shape {target.logprobs.shape} like "
            f"the target's, got {draft.logprobs.shape}"
        )
    rows = Rows(target, draft)
    parts = [
        judge_tree(rows, rule) if rule.tree_width else judge_single(rows, rule) for rule in chosen
    ]
    entropy = rows.entropy(0.0)

    def stack(name: str, kind: type) -> NDArray:
        columns = [getattr(part, name) for part in parts]
        return (
            np.stack(columns).astype(kind) if columns else np.zeros((0, rows.num_rows), dtype=kind)
        )

    return LumpedCertificates(
        rules=chosen,
        kl_lumped=rows.kl,
        kl_lumped_upper=stack("kl_upper", np.float64),
        entropy_lower=entropy[0],
        entropy_upper=entropy[1],
        tail_prob=rows.tail,
        tail_threshold=pool_value(rows.probs * np.exp(-rows.error)[:, None], rows.tail_box[1]),
        certificate=stack("certificate", np.float64),
        certificate_lower=stack("certificate_lower", np.float64),
        threshold=stack("threshold", np.float64),
        accepted=stack("accepted", np.int8),
        certified=stack("certified", np.bool_),
        certificate_case=stack("certificate_case", np.int8),
        decision_case=stack("decision_case", np.int8),
    )


_UNITS = {
    kind: getattr(_constants, f"LAST_PLACE_{kind.upper()}")
    for kind in ("float64", "float32", "float16", "bfloat16")
}


def certify_lists(
    target_logprobs: Floats,
    draft_logprobs: Floats | None,
    kinds: tuple[str, str],
    rules: Sequence[Rule],
) -> LumpedCertificates:
    """The lists of one batch, (rows, k) float64 nats each, under the rules; ``kinds`` are the
    dtypes they came in.

    Every value may be off by one unit in the last place of its dtype, and by what
    ``written_log_errors`` says; below -1,000, where sentinels are, a token counts as not listed.
    Raises InvalidLogits naming the row."""
    target_logprobs = _without_sentinels(target_logprobs)
    target_error = _checked("target_logits", target_logprobs, kinds[0])
    order = np.argsort(-target_logprobs, axis=1, kind="stable")
    ranked = np.take_along_axis(target_logprobs, order, axis=1)
    num_listed = np.isfinite(ranked).sum(axis=1)
    target = TargetLists(ranked, num_listed, target_error, has_order=False)  # columns are no ids
    if draft_logprobs is None:
        return lumped_certificates(target, rules)
    if draft_logprobs.shape != target_logprobs.shape:
        raise InvalidLogits(
            f"draft_logits: expected shape {target_logprobs.shape} like target_logits "
            "(lumped=True reads the draft's "
            f"logprobs of the target's listed tokens, column by column), got {draft_logprobs.shape}"
        )
    draft_logprobs = _without_sentinels(draft_logprobs)
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


def _without_sentinels(logprobs: Floats) -> Floats:
    """The deepest values as -inf: their mass is none in float64, and their last place would be the
    error of the whole row."""
    return np.where(logprobs < _DEEPEST, -np.inf, logprobs)


def _checked(name: str, logprobs: Floats, kind: str) -> Floats:
    """How far a row's logprobs may be from the real ones, (rows,) nats; raises where a row is no
    part of a law."""
    finite = np.isfinite(logprobs)
    deepest = np.where(finite, np.abs(logprobs), 0.0).max(axis=1)
    error = np.maximum(_UNITS[kind] * (1.0 + deepest), written_log_errors(logprobs, kind))
    _refuse(
        name,
        np.isnan(logprobs).any(axis=1),
        "no NaN (a listed token has a logprob; -inf pads)",
        logprobs,
    )
    above = (logprobs > error[:, None]).any(axis=1)
    _refuse(
        name,
        above,
        "logprobs of at most 0 (lumped=True reads log-probabilities, not logits)",
        logprobs,
    )
    if name == "target_logits":
        _refuse(name, ~finite.any(axis=1), "at least one listed token", logprobs)
    mass = np.exp(np.minimum(logprobs, 0.0)).sum(axis=1)
    over = mass > np.exp(2.0 * error) * (1.0 + _constants.MASS_SLACK)
    _refuse(name, over, "probabilities that sum to at most 1", logprobs, mass)
    return error


def _refuse(
    name: str, wrong: Any, expected: str, logprobs: Floats, mass: Floats | None = None
) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        got = f"{logprobs[row]}" if mass is None else f"a sum of {mass[row]:.9g}"
        raise InvalidLogits(f"{name}: expected {expected}, got {got} in row {row}")
