"""The evaluation form of the certificates in Renyi's divergences; the theorem:
``derivations.formulas.renyi``."""

from __future__ import annotations

import sympy
from sympy import log
from sympy.codegen.cfunctions import log1p

from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["TOPICS"]

spread, kept, order = sympy.symbols("spread kept order", real=True)

_spec = kernel_family(
    "derivations.kernels.divergence_kernels",
    "spread = |S| M - P_S > -1, of the sign of order - 1, kept = 1 + spread; order > 0, not 1",
    ("torch",),
)
TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "divergences": (
        _spec(
            "renyi_certificate",
            "spread order",
            order * log1p(spread) / (order - 1),
            "renyi.single renyi.tree",
            "a/(a-1) log(1 + spread), the least D_a at which a pool is levelled [nats].",
        ),
        _spec(
            "renyi_certificate_far",
            "kept order",
            order * log(kept) / (order - 1),
            "renyi.single renyi.tree",
            "The same where 1 + spread would cancel: kept = 1 - P_S + |S| M, summed by itself.",
        ),
    )
}
