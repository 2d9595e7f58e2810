"""Threshold: scalar kernels for numba. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.RELATIVE_THRESHOLD, derivations.kernels.evaluation.THRESHOLD_UPPER
claims:      bound.threshold, rule.threshold
domain:      relative_threshold: entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite parameters are neutral
domain:      threshold_upper: errors relative (normaliser) and absolute (entropy_gap), below 1/64; an offset <= 0 never exceeds scale
printer:     NumbaPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 841febea90f2734252fb618d3d4f76de3a6283671a2e06463366ac77fd9c7a43
body:        sha256 2522ac46ee7bbc5e7f9a392a3f25779a3f9342c59c57097f6dcc0a69a55e2516
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
    from_top = 1.0000000000000004*scale + normaliser*offset + normaliser*(6.661338147750939e-16 + 1.015625*normaliser_error)*abs(offset)
    return min(min((min(from_top, scale) if offset <= 0.0 else from_top), cap*normaliser*(1.0000000000000004 + 1.015625*normaliser_error)), entropy_scale*(1.0000000000000022 + 1.015625*entropy_error)*math.exp(entropy_gap))
