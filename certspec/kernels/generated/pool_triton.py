"""Pool: scalar kernels for triton. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.POOL_TERM, derivations.kernels.evaluation.PAIR_COST
claims:      eval.pool, eval.strict, single.pool, strict.closed, tree.pool
domain:      pool_term: weight >= 0, mean > 0; the terms -weight + mean cancel over a pool
domain:      pair_cost: higher >= lower >= 0
printer:     TritonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 74a32ffbf1daa67f89c2df21beed71de400a058d9890b655aa160203daca3b9d
body:        sha256 dc243878595504667c614f89d6c6903da925861992b605329964af3b29ac34bc
"""
# --- body ---
import triton
import triton.language as tl

from certspec.kernels.triton.functions import expm1, log1p


# claims: eval.pool, single.pool, tree.pool
@triton.jit
def pool_term(weight, mean):
    """A token's share of a pool's value sum w log(w/c) = c sum phi(w/c - 1), phi(u) = (1+u) log1p(u) - u >= 0."""
    excess = weight/mean - 1.0
    return tl.where(excess <= -1.0, mean, mean*((1.0 + excess)*log1p(excess) - excess))


# claims: eval.strict, strict.closed
@triton.jit
def pair_cost(higher, lower):
    """The strict certificate s phi(d/s), s = p1 + p2, d = p1 - p2 [nats]."""
    mass = higher + lower
    excess = (higher - lower)/(higher + lower)
    return tl.where(mass <= 0.0, 0.0, tl.where(excess >= 1.0, mass*0.6931471805599453, 0.5*mass*((1.0 + excess)*log1p(excess) + (1.0 - excess)*log1p(-excess))))
