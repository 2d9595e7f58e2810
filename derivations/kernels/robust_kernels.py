"""The evaluation forms of the certificates that hold on every server near enough: what a token
needs to be accepted there for certain, and the largest divergence there. The theorems:
``derivations.formulas.robust``."""

from __future__ import annotations

import sympy
from sympy import Integer, Min, Piecewise, exp, log

from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["TOPICS"]

cap, scale, offset, entropy_scale = sympy.symbols("cap scale offset entropy_scale", real=True)
normaliser, entropy_ceiling, growth, error = sympy.symbols(
    "normaliser entropy_ceiling growth error", real=True
)
tilt, radius, mass, probs, products = sympy.symbols("tilt radius mass probs products", real=True)
up_probs, up_products = sympy.symbols("up_probs up_products", real=True)
from_cap, from_top, from_entropy, wanted = sympy.symbols(
    "from_cap from_top from_entropy wanted", real=True
)

_spec = kernel_family(
    "derivations.kernels.robust_kernels",
    "radius >= 0; growth = exp(2 radius); weights exp(z - max z)",
    ("torch",),
)


def _needed(share: sympy.Expr) -> sympy.Expr:
    """The weight at which a token has probability share / S on every server."""
    return Piecewise(
        (share, share > normaliser),
        (normaliser / ((1 - 1 / growth) + normaliser / (share * growth)), True),
    )


TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "robust": (
        _spec(
            "box_threshold",
            "cap scale offset entropy_scale normaliser entropy_ceiling growth error",
            Min(from_cap * (1 + error), from_top, from_entropy * (1 + error)),
            "robust.threshold",
            "A weight from which on a token reaches the rule's threshold on every server, raised "
            "by what rounding may do.",
            {
                "wanted": entropy_scale * exp(entropy_ceiling),
                "from_cap": _needed(cap * normaliser),
                "from_entropy": _needed(wanted),
                "from_top": Piecewise(
                    (offset * normaliser, offset > 1),
                    (
                        growth * (scale + offset * normaliser) / (1 - offset + offset * growth)
                        + error * growth * (scale + offset * normaliser),
                        offset > 0,
                    ),
                    (
                        (scale + offset)
                        * Piecewise((growth, scale + offset >= 0), (Integer(1), True))
                        + offset * (normaliser - 1)
                        + error * (scale - offset) * (growth + normaliser),
                        True,
                    ),
                ),
            },
        ),
        _spec(
            "box_mass",
            "up_probs up_products probs products tilt radius",
            exp(radius) * ((1 + tilt - radius) * up_probs - up_products)
            + exp(-radius) * ((1 + tilt + radius) * (probs - up_probs) - (products - up_products)),
            "robust.divergence",
            "sum p exp(x) (1 + tilt - log(p/q) - x) with x = radius on the tokens summed in "
            "up_probs and up_products = sum p log(p/q), x = -radius on the others.",
        ),
        _spec(
            "box_divergence",
            "tilt mass",
            tilt - log(mass),
            "robust.divergence",
            "A bound of KL(p'||q) on every server: tilt - log(mass), for any tilt at which mass is "
            "the least box_mass and positive [nats].",
        ),
    )
}
