"""Divergences: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.divergence_kernels (renyi.single)
claims:      renyi.single, renyi.tree
domain:      renyi_certificate: spread = |S| M - P_S > -1, of the sign of order - 1, kept = 1 + spread; order > 0, not 1
domain:      renyi_certificate_far: spread = |S| M - P_S > -1, of the sign of order - 1, kept = 1 + spread; order > 0, not 1
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 ec374dfa21fd09ab61334c594f39b51edaf41b5dc3bb6b39098d0c198664bcf3
body:        sha256 ca8df4d41532fc1cc9da814ea5dac0948a6921e7cc9b2632743142bd9fc8718e
"""
# --- body ---
import torch


# claims: renyi.single, renyi.tree
def renyi_certificate(spread, order):
    """a/(a-1) log(1 + spread), the least D_a at which a pool is levelled [nats]."""
    return order*torch.log1p(spread)/(order - 1.0)


# claims: renyi.single, renyi.tree
def renyi_certificate_far(kept, order):
    """The same where 1 + spread would cancel: kept = 1 - P_S + |S| M, summed by itself."""
    return order*torch.log(kept)/(order - 1.0)
