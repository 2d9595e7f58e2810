"""Threshold: scalar kernels for triton. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.evaluation.RELATIVE_THRESHOLD, derivations.evaluation.THRESHOLD_UPPER
claims:      bound.threshold, rule.threshold
domain:      relative_threshold: entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite parameters are neutral
domain:      threshold_upper: the errors are relative (normaliser) and absolute (entropy_gap), both below 1/64
printer:     TritonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 c57cdad1963bc677d30a6d5cd4730b50fbab0690708bd1669081f7b529d3d118
body:        sha256 8df6caae38fd05d9b36af3338d0db8cfd55658d4e3cadae6a96f93a382c573c9
"""
# --- body ---
import triton
import triton.language as tl

from certspec.kernels.triton_functions import expm1, log1p


# claims: rule.threshold
@triton.jit
def relative_threshold(cap, scale, offset, entropy_scale, normaliser, entropy_gap):
    """The rule's threshold in weights, tau S = min(cap S, scale + offset S, entropy_scale S exp(-H))."""
    return tl.minimum(tl.minimum(cap*normaliser, scale + normaliser*offset), entropy_scale*tl.exp(entropy_gap))


# claims: rule.threshold, bound.threshold
@triton.jit
def threshold_upper(cap, scale, offset, entropy_scale, normaliser, entropy_gap, normaliser_error, entropy_error):
    """An upper bound of the exact threshold in weights, for every rounding error of the quantities given."""
    return tl.minimum(tl.minimum(cap*normaliser*(1.0000000000000004 + 1.015625*normaliser_error), 1.0000000000000004*scale + normaliser*offset + normaliser*(6.661338147750939e-16 + 1.015625*normaliser_error)*tl.abs(offset)), entropy_scale*(1.0000000000000022 + 1.015625*entropy_error)*tl.exp(entropy_gap))
