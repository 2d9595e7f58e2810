"""Divergence: scalar kernels for numba. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.BREGMAN_TERM, derivations.kernels.evaluation.FAR_TERM, derivations.kernels.evaluation.DIFFERENCE, derivations.kernels.evaluation.ENTROPY
claims:      eval.bregman, eval.difference, eval.entropy
domain:      bregman_term: target_prob > 0, log_ratio = log(target_prob / draft_prob) >= -30
domain:      far_term: log_ratio < -30, where expm1(-log_ratio) may overflow; target_prob may be 0
domain:      difference_form: cross_gap = E_p[(z - max z) - (y - max y)]; cancels where KL is small: only for KL >= 1e-6
domain:      entropy: log_normaliser = log S >= 0, mean_gap = E_p[max z - z] >= 0: nothing cancels
printer:     NumbaPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 9000ff876e92134cd580ebca6626299244359474e6a565c0e1107fd615496e40
body:        sha256 1649458ffd23d321054244f79e66e604db37f57d65982a00f0a1b5cf8aead509
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


# claims: eval.difference
@register_jitable(error_model="numpy")
def difference_form(cross_gap, log_normaliser, other_log_normaliser):
    """KL(target || draft) from sums that need no normalised probability [nats]."""
    return cross_gap + other_log_normaliser - log_normaliser


# claims: eval.entropy
@register_jitable(error_model="numpy")
def entropy(log_normaliser, mean_gap):
    """Entropy H = log S + E_p[max z - z] of a row [nats]."""
    return log_normaliser + mean_gap
