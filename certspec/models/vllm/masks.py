"""Masks (allowed or bad words, a minimum of tokens, a grammar), under which vLLM rejects a token
whatever its rule says: what is decided is "within the rule, and not masked"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from certspec.certificates.certify import certify
from certspec.rules import Absolute, Rule

__all__ = ["apply_masks"]

_NO_MASKED_TOKEN = Absolute(5e-324)  # rejects what has no probability, and nothing else


def apply_masks(
    columns: dict[str, np.ndarray | None], target_logits: torch.Tensor, rules: Sequence[Rule]
) -> dict[str, np.ndarray | None]:
    """``columns`` of certificates of ``target_logits`` (rows, vocab), -inf where masked, under
    single-token ``rules`` that reject masked tokens as well.

    A certificate is the least KL of a draft whose token is rejected, which is less the more
    probable a rejected token is. So masks change it only where the rule itself rejects nothing."""
    certificate, lower = np.array(columns["certificate"]), np.array(columns["certificate_lower"])
    accepted, kl_upper = np.array(columns["accepted"]), np.asarray(columns["kl_upper"])
    single = np.array([not rule.tree_width for rule in rules], dtype=bool)
    drafted = torch.as_tensor(columns["draft_token"], device=target_logits.device)
    own = target_logits.gather(1, drafted.long()[:, None])[:, 0]
    accepted[np.ix_(np.flatnonzero((own == -torch.inf).cpu().numpy()), single)] = False
    endless = (certificate == np.inf) & single
    rows = np.flatnonzero(endless.any(axis=1))
    at = torch.as_tensor(rows, device=target_logits.device)
    rows = rows[(target_logits[at] == -torch.inf).any(dim=1).cpu().numpy()]
    if len(rows):
        masked = target_logits[torch.as_tensor(rows, device=target_logits.device)]
        found = certify(masked.cpu(), None, _NO_MASKED_TOKEN)
        for table, values in ((certificate, found.certificate), (lower, found.certificate_lower)):
            table[rows] = np.where(endless[rows], values.numpy()[0][:, None], table[rows])
    changed = {"certificate": certificate, "certificate_lower": lower, "accepted": accepted}
    return columns | changed | {"certified": kl_upper[:, None] < lower}
