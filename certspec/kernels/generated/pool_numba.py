"""Pool: scalar kernels for numba. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.POOL_TERM, derivations.kernels.evaluation.PAIR_COST
claims:      bound.certificate_lower, eval.pool, eval.strict, single.dual, single.pool, strict.closed, tree.pool
domain:      pool_term: weight >= 0, mean > 0; the terms -weight + mean cancel over a pool
domain:      pair_cost: higher >= lower >= 0
printer:     NumbaPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 74a32ffbf1daa67f89c2df21beed71de400a058d9890b655aa160203daca3b9d
body:        sha256 7d2dc16f30f755a7b9316f8281e87001bd6eb959488ef53f6bb0eeb0a0f110e5
"""
# --- body ---
import math

from numba.extending import register_jitable
from certspec.kernels.generated.bounds_numba import certificate_lower
from certspec.kernels.generated.bounds_numba import raised_mean


# claims: eval.pool, single.pool, tree.pool
@register_jitable(error_model="numpy")
def pool_term(weight, mean):
    """A token's share of a pool's value sum w log(w/c) = c sum phi(w/c - 1), phi(u) = (1+u) log1p(u) - u >= 0."""
    excess = weight/mean - 1.0
    return (mean if excess <= -1.0 else mean*((1.0 + excess)*math.log1p(excess) - excess))


# claims: eval.strict, strict.closed
@register_jitable(error_model="numpy")
def pair_cost(higher, lower):
    """The strict certificate s phi(d/s), s = p1 + p2, d = p1 - p2 [nats]."""
    mass = higher + lower
    excess = (higher - lower)/(higher + lower)
    return (0.0 if mass <= 0.0 else (mass*math.log(2.0) if excess >= 1.0 else 0.5*mass*((1.0 + excess)*math.log1p(excess) + (1.0 - excess)*math.log1p(-excess))))


# claims: single.pool, single.dual
@register_jitable(error_model="numpy")
def single_token_pool(weights, rejected):
    """(head, mass) of the pool {0..head-1} u {rejected}; weights[:rejected + 1] in descending order (theorem A1).

    A token joins while it is certainly above the mean with it: a pool that is too small is still valid (Lemma A2)."""
    mass = weights[rejected]
    head = 0
    while head < rejected:
        joined = mass + weights[head]
        if not weights[head] > raised_mean(joined, head + 2.0):
            break
        mass = joined
        head += 1
    return head, mass


# claims: tree.pool
@register_jitable(error_model="numpy")
def tree_pool(weights, width):
    """(tail, mass) of the pool {0} u {tail..width}; weights[:width + 1] sorted in descending order (theorem A3)."""
    mass = weights[0]
    tail = width + 1
    while tail > 1:
        joined = mass + weights[tail - 1]
        if not weights[tail - 1] < joined / (width + 3.0 - tail):
            break
        mass = joined
        tail -= 1
    return tail, mass


# claims: single.pool, tree.pool, eval.pool, bound.certificate_lower
@register_jitable(error_model="numpy")
def pool_certificate(weights, head, tail, last, mass, weight_error, normaliser, normaliser_error):
    """(certificate, a bound below it) of the pool {0..head-1} u {tail..last} with the given mass [nats]."""
    size = head + (last - tail) + 1.0
    mean = mass / size
    raised = raised_mean(mass, size)
    value = 0.0
    raised_value = 0.0
    for rank in range(last, tail - 1, -1):
        value += pool_term(weights[rank], mean)
        raised_value += pool_term(weights[rank], raised)
    for rank in range(head - 1, -1, -1):
        value += pool_term(weights[rank], mean)
        raised_value += pool_term(weights[rank], raised)
    lower = certificate_lower(raised_value, mass, size, weight_error, normaliser, normaliser_error)
    return value / normaliser, lower
