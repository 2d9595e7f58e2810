"""Divergences: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.divergence_kernels (renyi.single)
claims:      renyi.single, renyi.tree
domain:      renyi_certificate: spread = |S| M - P_S > -1, of the sign of order - 1; order > 0, not 1
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 54ce4f7d1cd05577947647004f7e4814f21deddbde468d38816c3867b68bc753
body:        sha256 c3b958d5e90be164e9648df249fa30e52b684380953a2f31af83d31b34ba85a0
"""
# --- body ---
import torch


# claims: renyi.single, renyi.tree
def renyi_certificate(spread, order):
    """a/(a-1) log(1 + spread), the least D_a at which a pool is levelled [nats]."""
    return order*torch.log1p(spread)/(order - 1.0)
