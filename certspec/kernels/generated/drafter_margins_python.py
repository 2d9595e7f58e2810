"""Drafter_margins: scalar kernels for python. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.margin_kernels (eval.excess), derivations.kernels.drafter_kernels (eval.surplus), derivations.kernels.drafter_margin_kernels (drafter.margin.additive), derivations.kernels.drafter_margin_kernels (drafter.margin.tree), derivations.kernels.drafter_margin_kernels (drafter.margin.chord), derivations.kernels.drafter_margin_kernels (drafter.margin.multiplicative)
claims:      drafter.margin.additive, drafter.margin.chord, drafter.margin.multiplicative, drafter.margin.tree, eval.excess, eval.pool, eval.surplus
domain:      excess_cost: 0 <= gap <= 1 and the rule's own range
domain:      surplus: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      additive_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      tree_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      chord_use: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      chord_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      pair_tilt: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      pair_radius_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
printer:     PythonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 b15dfea68db5b25e3b73b13ceb95a118282c8b63fdb46fa04186477317fa7479
body:        sha256 5dcb10ae950b28618c2a48d7decd532880b78ac0febd2144e86be024336222fc
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
def tree_radius_margin(gap, width, rest):
    """Greedy tree of width m, q_m - q_{m+1} = g or >= g, rest = 1 - mg: -[m log(1+g) + log(1-mg)]/(m+1) [nats]."""
    return (math.inf if rest <= 0.0 else (rest*excess_cost(gap*width/rest) + width*(1.0 + gap)*excess_cost(-gap/(1.0 + gap)))/(1.0 + width))


# claims: drafter.margin.chord
def chord_use(level, alpha):
    """Factor alpha < 1: at most 1 for a level that chord_radius_margin may have."""
    chord = -math.expm1(-level)
    return (-math.log1p(-chord*chord)/level/(1.0 - alpha) if chord*chord <= 0.5 else alpha*level/math.log1p(chord))


# claims: drafter.margin.chord
def chord_radius_margin(gap, level):
    """Factor alpha, q1 - q2 = g or >= g, and a level that it allows [nats]."""
    chord = -math.expm1(-level)
    kept = 1.0 - gap
    return (-math.log1p(-chord*gap) if chord*gap <= 0.5 else -math.log(kept + gap*math.exp(-level)))


# claims: drafter.margin.multiplicative
def pair_tilt(gap, alpha):
    """l = log(q1/(alpha q2))/(1 + alpha) of the draft ((1+g)/2, (1-g)/2)."""
    return (math.log1p(gap) - math.log(alpha) - math.log1p(-gap))/(1.0 + alpha)


# claims: drafter.margin.multiplicative, eval.surplus
def pair_radius_margin(gap, tilt, alpha):
    """Factor alpha, the draft ((1+g)/2, (1-g)/2) and its pair_tilt [nats]."""
    top = 0.5 + 0.5*gap
    return (-math.log1p(-top*(surplus(-alpha*tilt)/alpha + surplus(tilt))*math.exp(-tilt)) if tilt <= 2.0 else -math.log(top*math.exp(-tilt) + (0.5 - 0.5*gap)*math.exp(alpha*tilt)))
