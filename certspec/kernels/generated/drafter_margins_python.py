"""Drafter_margins: scalar kernels for python. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.margin_kernels (eval.excess), derivations.kernels.drafter_kernels (eval.surplus), derivations.kernels.drafter_margin_kernels (drafter.margin.additive), derivations.kernels.drafter_margin_kernels (drafter.margin.tree), derivations.kernels.drafter_margin_kernels (drafter.margin.multiplicative)
claims:      drafter.margin.additive, drafter.margin.multiplicative, drafter.margin.tree, eval.excess, eval.pool, eval.surplus
domain:      excess_cost: 0 <= gap <= 1 and the rule's own range
domain:      surplus: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      additive_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      tree_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      multiplicative_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
printer:     PythonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 dd1f006c203c462133e2e037cd9b7087447db9d2f2e0413230f5099daa12d0c6
body:        sha256 9a800dfbf4374202464d2df2bc483818361b464bd5a3b5668d88c7de7270eecd
"""
# --- body ---
import math


# claims: eval.excess, eval.pool
def excess_cost(excess):
    """phi(u) = (1+u) log(1+u) - u, to a few units in the last place also near u = 0."""
    ratio = excess/(2.0 + excess)
    square = ratio*ratio
    return (1.0 if excess <= -1.0 else (excess*excess + (1.0 + excess)*(2.0*ratio*square*((1.0 / 3.0) + square*((1.0 / 5.0) + square*((1.0 / 7.0) + square*((1.0 / 9.0) + square*((1.0 / 11.0) + square*((1.0 / 13.0) + square*((1.0 / 15.0) + square*((1.0 / 17.0) + (1.0 / 19.0)*square)))))))) - excess*ratio) if abs(excess) <= (1.0 / 5.0) else (1.0 + excess)*math.log1p(excess) - excess))


# claims: eval.surplus
def surplus(deviation):
    """exp(d) - 1 - d >= 0, to a few units in the last place also near d = 0."""
    return (0.5*deviation*deviation*(1.0 + (1.0 / 3.0)*deviation*(1.0 + 0.25*deviation*(1.0 + (1.0 / 5.0)*deviation*(1.0 + (1.0 / 6.0)*deviation*(1.0 + (1.0 / 7.0)*deviation*(1.0 + 0.125*deviation*(1.0 + (1.0 / 9.0)*deviation*(1.0 + (1.0 / 10.0)*deviation*(1.0 + (1.0 / 11.0)*deviation))))))))) if abs(deviation) <= 0.125 else math.expm1(deviation) - deviation)


# claims: drafter.margin.additive
def additive_radius_margin(gap, slack):
    """Additive t, q1 - q2 = g or >= g: d_bin((1+t)/2 || (1-g)/2) [nats]."""
    opened = gap + slack
    return (math.inf if max(gap, slack) >= 1.0 else (0.5 + 0.5*gap)*excess_cost(-opened/(1.0 + gap)) + (0.5 - 0.5*gap)*excess_cost(opened/(1.0 - gap)))


# claims: drafter.margin.tree
def tree_radius_margin(gap, width):
    """Greedy tree of width m, q_m - q_{m+1} = g or >= g: -[m log(1+g) + log(1-mg)]/(m+1) [nats]."""
    return (math.inf if gap*width >= 1.0 else ((1.0 - gap*width)*excess_cost(gap*width/(1.0 - gap*width)) + width*(1.0 + gap)*excess_cost(-gap/(1.0 + gap)))/(1.0 + width))


# claims: drafter.margin.multiplicative, eval.surplus
def multiplicative_radius_margin(top, tilt, alpha):
    """Factor alpha, a draft of q1 = top and of that multiplier [nats]."""
    fall = (math.exp(-tilt)*surplus(tilt) if tilt <= 8.0 else 1.0 - (1.0 + tilt)*math.exp(-tilt))
    return -math.log1p(-top*(fall + math.exp(-tilt)*surplus(-alpha*tilt)/alpha))
