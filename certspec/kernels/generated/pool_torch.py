"""Pool: scalar kernels for torch. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.POOL_TERM, derivations.kernels.evaluation.PAIR_COST
claims:      eval.pool, eval.strict, single.pool, strict.closed, tree.pool
domain:      pool_term: weight >= 0, mean > 0; the terms -weight + mean cancel over a pool
domain:      pair_cost: higher >= lower >= 0
printer:     TorchPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 74a32ffbf1daa67f89c2df21beed71de400a058d9890b655aa160203daca3b9d
body:        sha256 af0ac2f80d0ee2479bdf8b988ad8c8d2886db9f58f81d2244a4ab80d3ff29615
"""
# --- body ---
import torch


# claims: eval.pool, single.pool, tree.pool
def pool_term(weight, mean):
    """A token's share of a pool's value sum w log(w/c) = c sum phi(w/c - 1), phi(u) = (1+u) log1p(u) - u >= 0."""
    excess = weight/mean - 1.0
    return torch.where(excess <= -1.0, mean, mean*((1.0 + excess)*torch.log1p(excess) - excess))


# claims: eval.strict, strict.closed
def pair_cost(higher, lower):
    """The strict certificate s phi(d/s), s = p1 + p2, d = p1 - p2 [nats]."""
    mass = higher + lower
    excess = (higher - lower)/(higher + lower)
    return torch.where(mass <= 0.0, 0.0, torch.where(excess >= 1.0, mass*0.6931471805599453, 0.5*mass*((1.0 + excess)*torch.log1p(excess) + (1.0 - excess)*torch.log1p(-excess))))
