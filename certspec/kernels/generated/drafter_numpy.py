"""Drafter: scalar kernels for numpy. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.drafter_kernels (eval.surplus), derivations.drafter_kernels (bound.radius), derivations.drafter_kernels (projection.lift), derivations.drafter_kernels (drafter.strict), derivations.drafter_kernels (drafter.additive), derivations.drafter_kernels (drafter.multiplicative), derivations.drafter_kernels (drafter.absolute)
claims:      bound.radius, drafter.absolute, drafter.additive, drafter.multiplicative, drafter.strict, drafter.top, drafter.tree, eval.surplus, projection.lift, projection.sink, reverse.single, reverse.tree
domain:      surplus: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      radius_lower: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      pool_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      strict_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      additive_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      multiplicative_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      absolute_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
printer:     NumpyPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 edb6853cc4f9ee0aba484b14c81ae13a0e91bb845a897e406ab6eb7c0aa29583
body:        sha256 69ab2eedaff569c47591701ee67b5299cd13025e380daff06b7c9e59c19a7a87
"""
# --- body ---
import numpy as np


# claims: eval.surplus
def surplus(deviation):
    """exp(d) - 1 - d >= 0, to a few units in the last place also near d = 0."""
    return np.where(np.abs(deviation) <= 0.125, 0.5*deviation*deviation*(1.0 + (1.0 / 3.0)*deviation*(1.0 + 0.25*deviation*(1.0 + (1.0 / 5.0)*deviation*(1.0 + (1.0 / 6.0)*deviation*(1.0 + (1.0 / 7.0)*deviation*(1.0 + 0.125*deviation*(1.0 + (1.0 / 9.0)*deviation*(1.0 + (1.0 / 10.0)*deviation*(1.0 + (1.0 / 11.0)*deviation))))))))), np.expm1(deviation) - deviation)


# claims: bound.radius
def radius_lower(radius, error):
    """A bound below the exact radius, from one whose log-probabilities are off by at most error [nats]."""
    return np.maximum(0.9999999999990905*radius - error, 0.0)


# claims: projection.lift, projection.sink, eval.surplus, drafter.tree, drafter.top, reverse.single, reverse.tree
def pool_radius(surplus_sum, level, rest, size):
    """-log(1 - sum_S q + |S| g) from the sum of surplus(log(q/g)) over the pool S [nats]."""
    lost = level*surplus_sum
    return np.where(lost <= 0.5, -np.log1p(-lost), -np.log(rest + level*size))


# claims: drafter.strict, eval.surplus
def strict_radius(top, second, rest):
    """-log(1 - (sqrt q1 - sqrt q2)^2); +inf at q2 = 0 [nats]."""
    root = (top - second)/(np.sqrt(second) + np.sqrt(top))
    lost = root*root
    return np.where(second <= 0.0, np.inf, np.where(lost <= 0.5, -np.log1p(-lost), -np.log(rest + 2.0*np.sqrt(second)*np.sqrt(top))))


# claims: drafter.additive, eval.surplus
def additive_radius(top, second, rest, slack):
    """Additive slack t < 1, as the sum of p (d + exp(-d) - 1) over y, j and the rest [nats]."""
    scaled = np.sqrt(rest*rest*slack*slack + 4.0*second*top*(1.0 + slack)*(1.0 - slack)) + rest*slack
    tilt = np.log(scaled) - np.log(second*(2.0 - 2.0*slack))
    change = second*np.expm1(tilt) + top*np.expm1(-tilt)
    log_total = np.where(change >= -0.5, np.log1p(change), np.log(rest + second*np.exp(tilt) + top*np.exp(-tilt)))
    return np.where(second <= 0.0, np.inf, rest*np.exp(-log_total)*surplus(log_total) + second*np.exp(tilt - log_total)*surplus(log_total - tilt) + top*np.exp(-log_total - tilt)*surplus(log_total + tilt))


# claims: drafter.multiplicative, eval.surplus
def multiplicative_radius(top, second, rest, alpha):
    """Factor alpha: the weighted geometric mean's form, its loss as a sum of surpluses [nats]."""
    tilt = (np.log(top) - np.log(alpha*second))/(1.0 + alpha)
    mean = top*np.exp(-tilt)
    lost = mean*(surplus(-alpha*tilt)/alpha + surplus(tilt))
    return np.where(second <= 0.0, np.inf, np.where(lost <= 0.5, -np.log1p(-lost), -np.log(rest + mean*(1.0 + 1.0/alpha))))


# claims: drafter.absolute, eval.surplus
def absolute_radius(top, rest, tau):
    """d_bin(tau || q_y) for q_y > tau, else 0 [nats]."""
    return np.where(tau >= top, 0.0, np.where(tau <= 0.0, -np.log(rest), tau*surplus(np.log(top) - np.log(tau)) + (1.0 - tau)*surplus(np.log(rest) - np.log(1.0 - tau))))
