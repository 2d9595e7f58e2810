"""Divergence: scalar kernels for numba. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.evaluation.BREGMAN_TERM, derivations.evaluation.FAR_TERM, derivations.evaluation.ENTROPY
claims:      eval.bregman, eval.entropy
domain:      bregman_term: target_prob > 0, log_ratio = log(target_prob / draft_prob) >= -30
domain:      far_term: log_ratio < -30, where expm1(-log_ratio) may overflow; target_prob may be 0
domain:      entropy: log_normaliser = log S >= 0, mean_gap = E_p[max z - z] >= 0: nothing cancels
printer:     NumbaPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 ee40d7fa150c7d76b7e3ac02365ace9ca1d1ce7fc73261d64d7a0a799450b867
body:        sha256 5a6f810fe17bfe2c9b9295d57b5be40cb45010bdb7b43cd530dcf398414fd19d
"""
# --- body ---
import math

from numba.extending import register_jitable


# claims: eval.bregman
@register_jitable(error_model="numpy")
def bregman_term(target_prob, log_ratio):
    """A token's share of KL(target || draft) = sum p (d + expm1(-d)), never negative [nats]."""
    return target_prob*(log_ratio + math.expm1(-log_ratio))


# claims: eval.bregman
@register_jitable(error_model="numpy")
def far_term(target_prob, draft_prob, log_ratio):
    """The same share where the draft's probability is far above the target's [nats]."""
    return draft_prob + log_ratio*target_prob - target_prob


# claims: eval.entropy
@register_jitable(error_model="numpy")
def entropy(log_normaliser, mean_gap):
    """Entropy H = log S + E_p[max z - z] of a row [nats]."""
    return log_normaliser + mean_gap
