"""Pool: scalar kernels for numpy. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.POOL_TERM
claims:      eval.pool, single.pool, tree.pool
domain:      pool_term: weight >= 0, mean > 0; the terms -weight + mean cancel over a pool
printer:     NumpyPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 468c156576f62cce84866a84cd62fe17da381e2fe74e5ab70401681adce07b04
body:        sha256 3b44b85fcf6797292dff0c33a389c112d41825b88b558f06e425134fbdc9f38f
"""
# --- body ---
import numpy as np


# claims: eval.pool, single.pool, tree.pool
def pool_term(weight, mean):
    """A token's share of a pool's value sum w log(w/c) = c sum phi(w/c - 1), phi(u) = (1+u) log1p(u) - u >= 0."""
    excess = weight/mean - 1.0
    return np.where(excess <= -1.0, mean, mean*((1.0 + excess)*np.log1p(excess) - excess))
