"""Reverse_margins: scalar kernels for python. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.margin_kernels (eval.excess), derivations.kernels.reverse_margin_kernels (reverse.margin.single), derivations.kernels.reverse_margin_kernels (reverse.margin.additive), derivations.kernels.reverse_margin_kernels (reverse.margin.multiplicative), derivations.kernels.reverse_margin_kernels (reverse.margin.top), derivations.kernels.reverse_margin_kernels (reverse.margin.gate.multiplicative.last), derivations.kernels.reverse_margin_kernels (reverse.margin.tree.p1-p2), derivations.kernels.reverse_margin_kernels (reverse.margin.tree.p1-p(m+1))
claims:      eval.excess, eval.pool, reverse.margin.additive, reverse.margin.gate.multiplicative.last, reverse.margin.multiplicative, reverse.margin.single, reverse.margin.top, reverse.margin.tree.p1-p(m+1), reverse.margin.tree.p1-p2
domain:      excess_cost: 0 <= gap <= 1 and the rule's own range
domain:      pair_reverse_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      additive_reverse_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      multiplicative_reverse_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      top_reverse_margin: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      gate_last_multiplicative_reverse: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      tree_reverse_margin_top_two: 0 <= gap < 1 (+inf at 1) and the rule's own range
domain:      tree_reverse_margin_last: 0 <= gap < 1 (+inf at 1) and the rule's own range
printer:     PythonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 f3a80780ec62959b3035995de28ea305fc0315c19db5d0becd9f2c54907349ef
body:        sha256 6234fdad1f089c7fad22204b7839c207bcbd2bc41eaddd60ddb96294ffce5111
"""
# --- body ---
import math


# claims: eval.excess, eval.pool
def excess_cost(excess):
    """phi(u) = (1+u) log(1+u) - u, to a few units in the last place also near u = 0."""
    ratio = excess/(2.0 + excess)
    square = ratio*ratio
    return (1.0 if excess <= -1.0 else (excess*excess + (1.0 + excess)*(2.0*ratio*square*((1.0 / 3.0) + square*((1.0 / 5.0) + square*((1.0 / 7.0) + square*((1.0 / 9.0) + square*((1.0 / 11.0) + square*((1.0 / 13.0) + square*((1.0 / 15.0) + square*((1.0 / 17.0) + (1.0 / 19.0)*square)))))))) - excess*ratio) if abs(excess) <= (1.0 / 5.0) else (1.0 + excess)*math.log1p(excess) - excess))


# claims: reverse.margin.single
def pair_reverse_margin(gap):
    """-log(1-g^2)/2 [nats]."""
    return (math.inf if gap >= 1.0 else ((-0.5)*math.log1p(-gap*gap) if gap*gap <= 0.5 else (-0.5)*math.log((1.0 + gap)*(1.0 - gap))))


# claims: reverse.margin.additive
def additive_reverse_margin(gap, slack):
    """Additive t, p1 - p2 >= g [nats]."""
    return (math.inf if max(gap, slack) >= 1.0 else ((-0.5)*math.log1p(-max(gap, slack)*max(gap, slack)) if max(gap, slack)*max(gap, slack) <= 0.5 else (-0.5)*math.log((1.0 - max(gap, slack))*(1.0 + max(gap, slack)))))


# claims: reverse.margin.multiplicative
def multiplicative_reverse_margin(gap, alpha):
    """Multiplicative alpha, p1 - p2 = g or >= g [nats]."""
    near = math.sqrt(alpha)
    rest = 1.0 - gap
    share = gap*(1.0 - alpha)/((1.0 + near)*(1.0 + near))
    return ((math.inf if gap >= 1.0 else ((-0.5)*math.log1p(-gap*gap) if gap*gap <= 0.5 else (-0.5)*math.log((1.0 + gap)*(1.0 - gap)))) if rest <= alpha*(1.0 + gap) else (-math.log1p(-share) if share <= 0.5 else -math.log(rest + 2.0*gap*near/(1.0 + near))))


# claims: reverse.margin.top
def top_reverse_margin(gap, width):
    """Top-m in p1 - p2 or in p1 - p_{m+1}, exactly or at least [nats]."""
    high = (1.0 + gap*width)/(1.0 + width)
    low = (1.0 - gap)/(1.0 + width)
    share = gap/(math.sqrt(high) + math.sqrt(low))
    return (math.inf if gap >= 1.0 else (-math.log1p(-share*share) if share*share <= 0.5 else -math.log(2.0*math.sqrt(high*low) + low*(width - 1.0))))


# claims: reverse.margin.gate.multiplicative.last
def gate_last_multiplicative_reverse(gap, alpha):
    """A token inside a multiplicative gate, p1 - p_{m+1} = d or >= d [nats]."""
    near = math.sqrt(alpha)
    rest = 1.0 - gap
    share = (1.0 - alpha)/(1.0 + near)
    return ((math.inf if gap >= 1.0 else ((-0.5)*math.log1p(-(2.0*gap - 1.0)*(2.0*gap - 1.0)) if (2.0*gap - 1.0)*(2.0*gap - 1.0) <= 0.5 else (-0.5)*math.log(2.0*gap*(2.0 - 2.0*gap)))) if rest < alpha*gap else (-math.log1p(-gap*share*share) if gap*share*share <= 0.5 else -math.log(rest + gap*near*(2.0 - near))))


# claims: reverse.margin.tree.p1-p2
def tree_reverse_margin_top_two(gap, width):
    """Greedy tree of width m, p1 - p2 = g or >= g [nats]."""
    return (math.inf if gap >= 1.0 else ((1.0 + gap*width)*excess_cost(-gap*width/(1.0 + gap*width)) + width*(1.0 - gap)*excess_cost(gap/(1.0 - gap)))/(1.0 + width))


# claims: reverse.margin.tree.p1-p(m+1)
def tree_reverse_margin_last(gap, width):
    """Greedy tree of width m, p1 - p_{m+1} = d < 1 or >= d [nats]."""
    root = math.sqrt(1.0 + gap*gap*(1.0 + width)*(width - 1.0))
    lean = gap*(1.0 + width)/(1.0 + root)
    short = (2.0 - 2.0*gap)/(1.0 + root + gap*(width - 1.0))
    odds = lean*lean/short/(1.0 + lean)
    return math.log1p(2.0*odds/(1.0 + width)) - math.log1p(odds)/(1.0 + width)
