"""Divergence: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.BREGMAN_TERM, derivations.kernels.evaluation.FAR_TERM, derivations.kernels.evaluation.DIFFERENCE, derivations.kernels.evaluation.ENTROPY
claims:      eval.bregman, eval.difference, eval.entropy
domain:      bregman_term: target_prob > 0, log_ratio = log(target_prob / draft_prob) >= -30
domain:      far_term: log_ratio < -30, where expm1(-log_ratio) may overflow; target_prob may be 0
domain:      difference_form: cross_gap = E_p[(z - max z) - (y - max y)]; cancels where KL is small: only for KL >= 1e-6
domain:      entropy: log_normaliser = log S >= 0, mean_gap = E_p[max z - z] >= 0: nothing cancels
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 9000ff876e92134cd580ebca6626299244359474e6a565c0e1107fd615496e40
body:        sha256 381c44fe176b30ed4e1ee93a22a50b5b45ebcd124f483ef1856c42bdbb8b3d0a
"""
# --- body ---
import torch


# claims: eval.bregman
def bregman_term(target_prob, log_ratio):
    """A token's share of KL(target || draft) = sum p (d + expm1(-d)), never negative [nats]."""
    return target_prob*(log_ratio + torch.expm1(-log_ratio))


# claims: eval.bregman
def far_term(target_prob, draft_prob, log_ratio):
    """The same share where the draft's probability is far above the target's [nats]."""
    return draft_prob + log_ratio*target_prob - target_prob


# claims: eval.difference
def difference_form(cross_gap, log_normaliser, other_log_normaliser):
    """KL(target || draft) from sums that need no normalised probability [nats]."""
    return cross_gap + other_log_normaliser - log_normaliser


# claims: eval.entropy
def entropy(log_normaliser, mean_gap):
    """Entropy H = log S + E_p[max z - z] of a row [nats]."""
    return log_normaliser + mean_gap
