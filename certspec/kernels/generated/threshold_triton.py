"""Threshold: scalar kernels for triton. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.RELATIVE_THRESHOLD, derivations.kernels.evaluation.THRESHOLD_UPPER
claims:      bound.threshold, rule.threshold
domain:      relative_threshold: entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite parameters are neutral
domain:      threshold_upper: errors relative (normaliser) and absolute (entropy_gap), below 1/64; an offset <= 0 never exceeds scale
printer:     TritonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 841febea90f2734252fb618d3d4f76de3a6283671a2e06463366ac77fd9c7a43
body:        sha256 cafc59f5a8214b93576ffd1518ae5a894a1c908b8d87aa704d83b882812ea85a
"""
# --- body ---
import triton
import triton.language as tl

from certspec.kernels.triton.functions import expm1, log1p


# claims: rule.threshold
@triton.jit
def relative_threshold(cap, scale, offset, entropy_scale, normaliser, entropy_gap):
    """The rule's threshold in weights, tau S = min(cap S, scale + offset S, entropy_scale S exp(-H))."""
    return tl.minimum(tl.minimum(cap*normaliser, scale + normaliser*offset), entropy_scale*tl.exp(entropy_gap))


# claims: rule.threshold, bound.threshold
@triton.jit
def threshold_upper(cap, scale, offset, entropy_scale, normaliser, entropy_gap, normaliser_error, entropy_error):
    """An upper bound of the exact threshold in weights, for every rounding error of the quantities given."""
    from_top = 1.0000000000000004*scale + normaliser*offset + normaliser*(6.661338147750939e-16 + 1.015625*normaliser_error)*tl.abs(offset)
    return tl.minimum(tl.minimum(tl.where(offset <= 0.0, tl.minimum(from_top, scale), from_top), cap*normaliser*(1.0000000000000004 + 1.015625*normaliser_error)), entropy_scale*(1.0000000000000022 + 1.015625*entropy_error)*tl.exp(entropy_gap))
