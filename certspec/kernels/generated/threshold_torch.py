"""Threshold: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.evaluation.RELATIVE_THRESHOLD, derivations.evaluation.THRESHOLD_UPPER
claims:      bound.threshold, rule.threshold
domain:      relative_threshold: entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite parameters are neutral
domain:      threshold_upper: the errors are relative (normaliser) and absolute (entropy_gap), both below 1/64
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 c57cdad1963bc677d30a6d5cd4730b50fbab0690708bd1669081f7b529d3d118
body:        sha256 bd80becac65ba6e0ab84b31ea67a301b9ce68784078e6dfa64855244db9e6095
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
    return torch.minimum(torch.minimum(cap*normaliser*(1.0000000000000004 + 1.015625*normaliser_error), 1.0000000000000004*scale + normaliser*offset + normaliser*(6.661338147750939e-16 + 1.015625*normaliser_error)*torch.abs(offset)), entropy_scale*(1.0000000000000022 + 1.015625*entropy_error)*torch.exp(entropy_gap))
