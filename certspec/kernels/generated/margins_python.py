"""Margins: scalar kernels for python. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.margin_kernels (eval.excess), derivations.kernels.margin_kernels (margin.strict), derivations.kernels.margin_kernels (margin.additive.at-least), derivations.kernels.margin_kernels (margin.additive.exact), derivations.kernels.margin_kernels (margin.multiplicative), derivations.kernels.margin_kernels (margin.top), derivations.kernels.margin_kernels (margin.gate.last.exact), derivations.kernels.margin_kernels (margin.gate.last.at-least), derivations.kernels.margin_kernels (margin.gate.multiplicative.last), derivations.kernels.margin_kernels (margin.tree.p1-p2), derivations.kernels.margin_kernels (margin.tree.p1-p(m+1)), derivations.kernels.margin_kernels (margin.entropy.simple), derivations.kernels.margin_kernels (margin.absolute)
claims:      eval.excess, eval.pool, margin.absolute, margin.additive.at-least, margin.additive.exact, margin.entropy.simple, margin.gate.last.at-least, margin.gate.last.exact, margin.gate.multiplicative.last, margin.multiplicative, margin.strict, margin.top, margin.tree.p1-p(m+1), margin.tree.p1-p2
domain:      excess_cost: 0 <= gap <= 1 and the rule's own range
domain:      strict_margin: 0 <= gap <= 1 and the rule's own range
domain:      additive_margin_at_least: 0 <= gap <= 1 and the rule's own range
domain:      additive_margin_exactly: 0 <= gap <= 1 and the rule's own range
domain:      multiplicative_margin: 0 <= gap <= 1 and the rule's own range
domain:      top_margin: 0 <= gap <= 1 and the rule's own range
domain:      gate_last_margin_exactly: 0 <= gap <= 1 and the rule's own range
domain:      gate_last_margin_at_least: 0 <= gap <= 1 and the rule's own range
domain:      gate_last_multiplicative: 0 <= gap <= 1 and the rule's own range
domain:      tree_margin_top_two: 0 <= gap <= 1 and the rule's own range
domain:      tree_margin_last: 0 <= gap <= 1 and the rule's own range
domain:      entropy_margin: 0 <= gap <= 1 and the rule's own range
domain:      absolute_margin: 0 <= gap <= 1 and the rule's own range
printer:     PythonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 473a7fe62b9e56182c69fdb2a45f52bcec56a57be0d956e9ef3f73f5f4e0a03b
body:        sha256 a3c2b27211b115bb45b7b1be92faba02f254bde23e5faec6ac2e54a37fbd8bff
"""
# --- body ---
import math


# claims: eval.excess, eval.pool
def excess_cost(excess):
    """phi(u) = (1+u) log(1+u) - u, to a few units in the last place also near u = 0."""
    ratio = excess/(2.0 + excess)
    square = ratio*ratio
    return (1.0 if excess <= -1.0 else (excess*excess + (1.0 + excess)*(2.0*ratio*square*((1.0 / 3.0) + square*((1.0 / 5.0) + square*((1.0 / 7.0) + square*((1.0 / 9.0) + square*((1.0 / 11.0) + square*((1.0 / 13.0) + square*((1.0 / 15.0) + square*((1.0 / 17.0) + (1.0 / 19.0)*square)))))))) - excess*ratio) if abs(excess) <= (1.0 / 5.0) else (1.0 + excess)*math.log1p(excess) - excess))


# claims: margin.strict, eval.pool
def strict_margin(gap):
    """phi(g): strict, p1 - p2 = g or >= g [nats]."""
    return 0.5*excess_cost(gap) + 0.5*excess_cost(-gap)


# claims: margin.additive.at-least, eval.pool
def additive_margin_at_least(gap, slack):
    """Additive t, p1 - p2 >= g [nats]."""
    return (math.inf if slack >= 1.0 else 0.5*excess_cost(-max(gap, slack)) + 0.5*excess_cost(max(gap, slack)))


# claims: margin.additive.exact, eval.pool
def additive_margin_exactly(gap, slack):
    """Additive t, p1 - p2 = g [nats]."""
    return (0.5*excess_cost(gap) + 0.5*excess_cost(-gap) if gap > slack else (math.inf if gap <= 2.0*slack - 1.0 else ((excess_cost(slack/((2.0 / 3.0) + (2.0 / 3.0)*gap - (1.0 / 3.0)*slack)) + excess_cost(-slack/((2.0 / 3.0) + (2.0 / 3.0)*gap - (1.0 / 3.0)*slack)))*((1.0 / 3.0) + (1.0 / 3.0)*gap - (1.0 / 6.0)*slack) if slack <= 2.0*gap else (1.0 / 3.0)*excess_cost(gap + slack) + (1.0 / 3.0)*excess_cost(gap - 2.0*slack) + (1.0 / 3.0)*excess_cost(slack - 2.0*gap))))


# claims: margin.multiplicative, eval.pool
def multiplicative_margin(gap, alpha):
    """Multiplicative alpha, p1 - p2 = g or >= g [nats]."""
    return (0.5*excess_cost(gap) + 0.5*excess_cost(-gap) if gap >= (1.0 - alpha)/(1.0 + alpha) else gap*(1.0 + alpha)*(0.5*excess_cost((1.0 - alpha)/(1.0 + alpha)) + 0.5*excess_cost(-(1.0 - alpha)/(1.0 + alpha)))/(1.0 - alpha))


# claims: margin.top, eval.pool
def top_margin(gap, width):
    """Top-m in p1 - p2 or in p1 - p_{m+1}, exactly or at least [nats]."""
    return 0.5*(2.0 + gap*(width - 1.0))*(excess_cost(gap*(1.0 + width)/(2.0 + gap*(width - 1.0))) + excess_cost(-gap*(1.0 + width)/(2.0 + gap*(width - 1.0))))/(1.0 + width)


# claims: margin.gate.last.exact, eval.pool
def gate_last_margin_exactly(gap, width, slack):
    """Top-m and additive t, p1 - p_{m+1} = d [nats]."""
    return (0.5*(2.0 + gap*(width - 1.0))*(excess_cost(gap*(1.0 + width)/(2.0 + gap*(width - 1.0))) + excess_cost(-gap*(1.0 + width)/(2.0 + gap*(width - 1.0))))/(1.0 + width) if gap <= slack else (0.5*(2.0 + (width - 1.0)*(2.0*gap - slack))*(excess_cost(slack*(1.0 + width)/(2.0 + (width - 1.0)*(2.0*gap - slack))) + excess_cost(-slack*(1.0 + width)/(2.0 + (width - 1.0)*(2.0*gap - slack))))/(1.0 + width) if gap <= 0.5 + 0.5*slack else 0.5*excess_cost(1.0 - 2.0*gap) + 0.5*excess_cost(2.0*gap - 1.0)))


# claims: margin.gate.last.at-least, eval.pool
def gate_last_margin_at_least(gap, width, slack):
    """Top-m and additive t, p1 - p_{m+1} >= d [nats]."""
    return (0.5*(2.0 + gap*(width - 1.0))*(excess_cost(gap*(1.0 + width)/(2.0 + gap*(width - 1.0))) + excess_cost(-gap*(1.0 + width)/(2.0 + gap*(width - 1.0))))/(1.0 + width) if slack >= 1.0 else (min(0.5*(2.0 + gap*(width - 1.0))*(excess_cost(gap*(1.0 + width)/(2.0 + gap*(width - 1.0))) + excess_cost(-gap*(1.0 + width)/(2.0 + gap*(width - 1.0))))/(1.0 + width), 0.5*excess_cost(slack) + 0.5*excess_cost(-slack)) if gap <= slack else (0.5*excess_cost(slack) + 0.5*excess_cost(-slack) if gap <= 0.5 + 0.5*slack else 0.5*excess_cost(1.0 - 2.0*gap) + 0.5*excess_cost(2.0*gap - 1.0))))


# claims: margin.gate.multiplicative.last, eval.pool
def gate_last_multiplicative(gap, alpha):
    """A token inside a multiplicative gate, p1 - p_{m+1} = d or >= d [nats]."""
    return (gap*(0.5 + 0.5*alpha)*(excess_cost((1.0 - alpha)/(1.0 + alpha)) + excess_cost((alpha - 1.0)/(1.0 + alpha))) if gap*(1.0 + alpha) <= 1.0 else 0.5*excess_cost(1.0 - 2.0*gap) + 0.5*excess_cost(2.0*gap - 1.0))


# claims: margin.tree.p1-p2, eval.pool
def tree_margin_top_two(gap, width):
    """Greedy tree of width m, p1 - p2 = g or >= g [nats]."""
    return (width*excess_cost(-gap) + excess_cost(gap*width))/(1.0 + width)


# claims: margin.tree.p1-p(m+1), eval.pool
def tree_margin_last(gap, width):
    """T_m(d) for d < 1: greedy tree of width m, p1 - p_{m+1} = d or >= d; log(m+1) at d = 1 [nats]."""
    root = math.sqrt(gap*gap*(width - 1.0)*(width - 1.0) + 4.0*(1.0 + gap)*(1.0 - gap))
    growth = (gap*(1.0 + width) + gap*gap*(1.0 + width)*(width - 3.0)/(2.0 + root))/(2.0 - 2.0*gap)
    return gap*math.log1p(growth) - math.log1p(growth*growth/(1.0 + growth)/(1.0 + width))


# claims: margin.entropy.simple, eval.pool
def entropy_margin(gap, epsilon, delta):
    """Entropy rule, delta <= 1, p1 - p2 = g or >= g: a bound, not always attained [nats]."""
    capped = min(1.0, gap + 2.0*epsilon)
    mass = (capped if delta >= 1.0 else min(capped, gap*(1.0 + delta)/(1.0 - delta)))
    return (0.0 if gap <= 0.0 else 0.5*mass*(excess_cost(gap/mass) + excess_cost(-gap/mass)))


# claims: margin.absolute, eval.pool
def absolute_margin(gap, tau):
    """Absolute threshold tau, p1 - p2 = g or >= g; 0 for g < tau, +inf at tau = 0 [nats]."""
    return (math.inf if tau <= 0.0 else (0.0 if gap < tau else 0.5*(excess_cost(gap/min(1.0, gap + 2.0*tau)) + excess_cost(-gap/min(1.0, gap + 2.0*tau)))*min(1.0, gap + 2.0*tau)))
