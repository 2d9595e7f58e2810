"""log1p and expm1 for Triton in float64, from log and exp alone (Kahan's forms), so that the
interpreter and the GPU run the same text. Each is within 4 ulp where log and exp are within 1."""

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """log(1 + x): the rounding of 1 + x cancels in x / ((1 + x) - 1)."""
    raised = 1.0 + x
    scaled = tl.log(raised) * (x / tl.where(raised == 1.0, 1.0, raised - 1.0))
    return tl.where(raised == 1.0, x, scaled)


@triton.jit
def expm1(x):
    """exp(x) - 1: the rounding of exp(x) cancels in x / log(exp(x))."""
    grown = tl.exp(x)
    near = (grown > 0.5) & (grown < 2.0) & (grown != 1.0)
    logarithm = tl.log(tl.where(near, grown, 2.0))
    scaled = (grown - 1.0) * (x / logarithm)
    return tl.where(grown == 1.0, x, tl.where(near, scaled, grown - 1.0))
