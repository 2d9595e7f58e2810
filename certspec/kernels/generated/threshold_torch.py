"""Threshold: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.RELATIVE_THRESHOLD, derivations.kernels.evaluation.THRESHOLD_UPPER
claims:      bound.threshold, rule.threshold
domain:      relative_threshold: entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite parameters are neutral
domain:      threshold_upper: errors relative (normaliser) and absolute (entropy_gap), below 1/64; an offset <= 0 never exceeds scale
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 841febea90f2734252fb618d3d4f76de3a6283671a2e06463366ac77fd9c7a43
body:        sha256 d30ce7caee24b9972f78c3bb95631704859922900ea1ad08ed6613dcb0bbcba7
"""
# --- body ---
import torch


# claims: rule.threshold
def relative_threshold(cap, scale, offset, entropy_scale, normaliser, entropy_gap):
    """The rule's threshold in weights, tau S = min(cap S, scale + offset S, entropy_scale S exp(-H))."""
    return torch.minimum(torch.minimum(cap*normaliser, scale + normaliser*offset), entropy_scale*torch.exp(entropy_gap))


# claims: rule.threshold, bound.threshold
def threshold_upper(cap, scale, offset, entropy_scale, normaliser, entropy_gap, normaliser_error, entropy_error):
    """An upper bound of the exact threshold in weights, for every rounding error of the quantities given."""
    from_top = 1.0000000000000004*scale + normaliser*offset + normaliser*(6.661338147750939e-16 + 1.015625*normaliser_error)*torch.abs(offset)
    return torch.minimum(torch.minimum(torch.where(offset <= 0.0, torch.minimum(from_top, scale), from_top), cap*normaliser*(1.0000000000000004 + 1.015625*normaliser_error)), entropy_scale*(1.0000000000000022 + 1.015625*entropy_error)*torch.exp(entropy_gap))
