"""Threshold: scalar kernels for numba. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.evaluation.RELATIVE_THRESHOLD, derivations.evaluation.THRESHOLD_UPPER
claims:      bound.threshold, rule.threshold
domain:      relative_threshold: entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite parameters are neutral
domain:      threshold_upper: the errors are relative (normaliser) and absolute (entropy_gap), both below 1/64
printer:     NumbaPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 c57cdad1963bc677d30a6d5cd4730b50fbab0690708bd1669081f7b529d3d118
body:        sha256 c34978a662c810a07856d217bd6710458afcec3ba2bea486423eb8e72d02e8ef
"""
# --- body ---
import math

from numba.extending import register_jitable


# claims: rule.threshold
@register_jitable(error_model="numpy")
def relative_threshold(cap, scale, offset, entropy_scale, normaliser, entropy_gap):
    """The rule's threshold in weights, tau S = min(cap S, scale + offset S, entropy_scale S exp(-H))."""
    return min(min(cap*normaliser, scale + normaliser*offset), entropy_scale*math.exp(entropy_gap))


# claims: rule.threshold, bound.threshold
@register_jitable(error_model="numpy")
def threshold_upper(cap, scale, offset, entropy_scale, normaliser, entropy_gap, normaliser_error, entropy_error):
    """An upper bound of the exact threshold in weights, for every rounding error of the quantities given."""
    return min(min(cap*normaliser*(1.0000000000000004 + 1.015625*normaliser_error), 1.0000000000000004*scale + normaliser*offset + normaliser*(6.661338147750939e-16 + 1.015625*normaliser_error)*abs(offset)), entropy_scale*(1.0000000000000022 + 1.015625*entropy_error)*math.exp(entropy_gap))
