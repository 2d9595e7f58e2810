"""Robust: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.robust_kernels (robust.threshold), derivations.kernels.robust_kernels (robust.divergence)
claims:      robust.divergence, robust.threshold
domain:      box_threshold: radius >= 0; growth = exp(2 radius); weights exp(z - max z)
domain:      box_mass: radius >= 0; growth = exp(2 radius); weights exp(z - max z)
domain:      box_divergence: radius >= 0; growth = exp(2 radius); weights exp(z - max z)
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 361b757e598a494052086d0a968fef12edc42be72e083287e17d712d7f94b7ae
body:        sha256 6ee16ecd5f950a5e62a05973dc22369b292ec83428c5af74fcfe528f0d5fdbde
"""
# --- body ---
import torch


# claims: robust.threshold
def box_threshold(cap, scale, offset, entropy_scale, normaliser, entropy_ceiling, growth, error):
    """A weight from which on a token reaches the rule's threshold on every server, raised by what rounding may do."""
    wanted = entropy_scale*torch.exp(entropy_ceiling)
    from_cap = torch.where(normaliser < cap*normaliser, cap*normaliser, normaliser/(1.0 + 1.0/cap/growth - 1.0/growth))
    from_entropy = torch.where(normaliser < wanted, wanted, normaliser/(1.0 + normaliser/growth/wanted - 1.0/growth))
    from_top = torch.where(offset > 1.0, normaliser*offset, torch.where(offset > 0.0, error*growth*(scale + normaliser*offset) + growth*(scale + normaliser*offset)/(1.0 + growth*offset - offset), offset*(normaliser - 1.0) + (offset + scale)*torch.where(offset + scale >= 0.0, growth, 1.0) + error*(growth + normaliser)*(scale - offset)))
    return torch.minimum(from_cap*(1.0 + error), torch.minimum(from_entropy*(1.0 + error), from_top))


# claims: robust.divergence
def box_mass(up_probs, up_products, probs, products, tilt, radius):
    """sum p exp(x) (1 + tilt - log(p/q) - x) with x = radius on the tokens summed in up_probs and up_products = sum p log(p/q), x = -radius on the others."""
    return (up_probs*(1.0 + tilt - radius) - up_products)*torch.exp(radius) + (up_products + (probs - up_probs)*(1.0 + radius + tilt) - products)*torch.exp(-radius)


# claims: robust.divergence
def box_divergence(tilt, mass):
    """A bound of KL(p'||q) on every server: tilt - log(mass), for any tilt at which mass is the least box_mass and positive [nats]."""
    return tilt - torch.log(mass)
