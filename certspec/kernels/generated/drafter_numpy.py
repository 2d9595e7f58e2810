"""Drafter: scalar kernels for numpy. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.drafter_kernels (eval.surplus), derivations.kernels.drafter_kernels (bound.radius), derivations.kernels.drafter_kernels (bound.radius.entropy), derivations.kernels.drafter_kernels (drafter.dual), derivations.kernels.drafter_kernels (drafter.additive), derivations.kernels.drafter_kernels (drafter.multiplicative), derivations.kernels.drafter_kernels (drafter.absolute), derivations.kernels.drafter_kernels (projection.lift), derivations.kernels.drafter_kernels (drafter.strict)
claims:      bound.radius, bound.radius.entropy, drafter.absolute, drafter.additive, drafter.dual, drafter.multiplicative, drafter.strict, drafter.top, drafter.tree, eval.surplus, projection.lift, projection.sink, reverse.single, reverse.tree
domain:      surplus: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      radius_lower: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      searched_radius_lower: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      tilted_mass: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      additive_tilt: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      multiplicative_tilt: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      absolute_tilt: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      pool_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      strict_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      additive_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      multiplicative_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
domain:      absolute_radius: probabilities in [0, 1]; rest = 1 - (the probabilities given), summed by itself
printer:     NumpyPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 f17b4e73675ac3e94e5dfc27156e84d9813f383df6e71b19c4a6803efd7fc6d7
body:        sha256 27319cdf8b13c0ca9b2c4ac259cbb366080ae0c13b4bf212f030a07364c9b9f1
"""
# --- body ---
import numpy as np


# claims: eval.surplus
def surplus(deviation):
    """exp(d) - 1 - d >= 0, to a few units in the last place also near d = 0."""
    return np.where(np.abs(deviation) <= 0.125, 0.5*deviation*deviation*(1.0 + (1.0 / 3.0)*deviation*(1.0 + 0.25*deviation*(1.0 + (1.0 / 5.0)*deviation*(1.0 + (1.0 / 6.0)*deviation*(1.0 + (1.0 / 7.0)*deviation*(1.0 + 0.125*deviation*(1.0 + (1.0 / 9.0)*deviation*(1.0 + (1.0 / 10.0)*deviation*(1.0 + (1.0 / 11.0)*deviation))))))))), np.expm1(deviation) - deviation)


# claims: bound.radius
def radius_lower(gain, kept, reach, size, num_tokens):
    """A bound below the exact radius, gain - log(kept) less all rounding; reach bounds the sum of size multipliers [nats]."""
    radius = gain - np.log(kept)
    error = 1.8041124150158794e-13 + 2.255140518769849e-16*num_tokens + 1.3530843112619095e-15*np.abs(np.log(kept)) + 1.1275702593849246e-16*reach*(4.0 + size)
    return np.maximum(radius - error, 0.0)


# claims: bound.radius.entropy
def searched_radius_lower(radius, reach, num_tokens):
    """The same for the entropy rule's search; reach bounds the sizes of the logarithms that enter [nats]."""
    error = 4.5102810375396984e-13 + 7.216449660063518e-15*reach + 4.510281037539698e-16*num_tokens
    return np.maximum(radius - error, 0.0)


# claims: drafter.dual, bound.radius
def tilted_mass(top, second, rest, fall, rise):
    """E_q exp f for a multiplier that lets y fall and j rise: a sum of positive terms."""
    return rest + second*np.exp(rise) + top*np.exp(-fall)


# claims: drafter.additive, drafter.dual
def additive_tilt(top, second, rest, slack):
    """The multiplier log u of the additive rule, as near as float64 has it."""
    scaled = np.sqrt(rest*rest*slack*slack + 4.0*second*top*(1.0 + slack)*(1.0 - slack)) + rest*slack
    return np.maximum(0.0, np.minimum(640.0, np.log(scaled) - np.log(second*(2.0 - 2.0*slack))))


# claims: drafter.multiplicative, drafter.dual
def multiplicative_tilt(top, second, alpha):
    """The multiplier of the multiplicative rule."""
    return np.maximum(0.0, np.minimum((np.log(top) - np.log(alpha*second))/(1.0 + alpha), 640.0))


# claims: drafter.absolute, drafter.dual
def absolute_tilt(top, rest, tau):
    """The multiplier of an absolute threshold."""
    return np.maximum(0.0, np.minimum(np.log(top) + np.log(1.0 - tau) - np.log(rest) - np.log(tau), 640.0))


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
