"""The divergence of lumped lists that nothing has rounded."""

from typing import Any

import numpy as np

from certspec.certificates.lumped_masses import lumped_kl_lower, lumped_kl_upper


def lumped_kl_bounds(
    target_probs: Any, draft_probs: Any, target_tail: Any, draft_tail: Any
) -> tuple[Any, Any]:
    """The library's least and greatest divergence where no logprob is off; ``target_probs``,
    ``draft_probs``: (rows, k), tails (rows,)."""
    with np.errstate(divide="ignore"):
        ratios = np.log(target_probs) - np.log(draft_probs)
    ratios = np.where(target_probs > 0.0, ratios, 0.0)
    tails = (target_tail, target_tail), (draft_tail, draft_tail)
    given = target_probs, ratios, np.zeros(len(ratios)), *tails
    return lumped_kl_lower(*given), lumped_kl_upper(*given)
