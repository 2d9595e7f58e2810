"""The evaluation form of what a divergence says of sampled acceptance; the theorem:
``derivations.formulas.sampling``."""

from __future__ import annotations

import sympy
from sympy import exp, log
from sympy.codegen.cfunctions import expm1

from derivations.language.kernel_spec import KernelSpec, kernel_family

__all__ = ["TOPICS"]

kl, tilt, high, low = sympy.symbols("kl tilt high low", real=True)

_spec = kernel_family("derivations.kernels.sampling_kernels", "kl >= 0, tilt > 0", ("numpy",))
TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "sampling": (
        _spec(
            "acceptance_at",
            "kl tilt",
            (1 + log(high) - low - kl) / tilt,
            "sampling.dual",
            "A number below 1 - TV of every pair at KL, for any tilt; the best one is where log(v) "
            "- m (v - 1) is KL.",
            {"high": -tilt / expm1(-tilt), "low": high * exp(-tilt)},
        ),
    )
}
