"""Certificates from truncated lists: what the k most probable tokens of a target, and optionally a draft's logprobs for
them, allow one to certify. This module knows rules and arrays; it knows nothing about log formats or files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certspec.certificates.lumped_masses import Rows
from certspec.certificates.lumped_rules import judge_single, judge_tree
from certspec.lumped_lists import CASES, OUTSIDE, UNKNOWN, Case, DraftLists, TargetLists
from certspec.lumped_pools import pool_value
from certspec.rules import Rule

__all__ = [
    "CASES", "OUTSIDE", "UNKNOWN", "Case", "DraftLists", "LumpedCertificates", "TargetLists", "lumped_certificates",
]  # fmt: skip

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class LumpedCertificates:
    """Per row and per rule: what holds, how it is known. Arrays over rows are (rows,), over rules (rules, rows).

    ``certificate_lower`` <= the full C_p, always; ``certificate`` is C_p's value where it is known, else NaN.
    ``threshold``: what ``kl_lumped_upper`` (rules, rows) was compared with; both NaN without a draft. ``accepted``: 1,
    0, or -1 where the log can't tell. ``certified`` implies ``accepted == 1``. The case arrays hold ``Case.code``.
    """

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
        """The sentences for one rule and row: how the certificate is known, and how the decision was made."""
        return CASES[self.certificate_case[rule, row]], CASES[self.decision_case[rule, row]]


def lumped_certificates(
    target: TargetLists, rules: Rule | Sequence[Rule], draft: DraftLists | None = None
) -> LumpedCertificates:
    """Certificates (nats) of every row under every rule, from lists alone (theory E).

    A rule that rejects a draft has K_O >= threshold for the draft's true distribution; so K_O below it certifies. A
    row that a rule can't be judged on has Case.TOO_SHORT, a NaN certificate and the lower bound 0.
    """
    chosen = (rules,) if isinstance(rules, Rule) else tuple(rules)
    rows = Rows(target, draft)
    parts = [judge_tree(rows, rule) if rule.tree_width else judge_single(rows, rule) for rule in chosen]
    entropy = rows.entropy(0.0)

    def stack(name: str, kind: type) -> NDArray:
        columns = [getattr(part, name) for part in parts]
        return np.stack(columns).astype(kind) if columns else np.zeros((0, rows.num_rows), dtype=kind)

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
