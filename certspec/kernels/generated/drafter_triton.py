"""Drafter: scalar kernels for triton. Generated; do not edit.

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
printer:     TritonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 f17b4e73675ac3e94e5dfc27156e84d9813f383df6e71b19c4a6803efd7fc6d7
body:        sha256 b8b5d82cdea6b0c3b5917adac4bc4868c90cdeb40e08940ee183561471b28969
"""
# --- body ---
import triton
import triton.language as tl

from certspec.kernels.triton.functions import expm1, log1p


# claims: eval.surplus
@triton.jit
def surplus(deviation):
    """exp(d) - 1 - d >= 0, to a few units in the last place also near d = 0."""
    return tl.where(tl.abs(deviation) <= 0.125, 0.5*deviation*deviation*(1.0 + (1.0 / 3.0)*deviation*(1.0 + 0.25*deviation*(1.0 + (1.0 / 5.0)*deviation*(1.0 + (1.0 / 6.0)*deviation*(1.0 + (1.0 / 7.0)*deviation*(1.0 + 0.125*deviation*(1.0 + (1.0 / 9.0)*deviation*(1.0 + (1.0 / 10.0)*deviation*(1.0 + (1.0 / 11.0)*deviation))))))))), expm1(deviation) - deviation)


# claims: bound.radius
@triton.jit
def radius_lower(gain, kept, reach, size, num_tokens):
    """A bound below the exact radius, gain - log(kept) less all rounding; reach bounds the sum of size multipliers [nats]."""
    radius = gain - tl.log(kept)
    error = 1.8041124150158794e-13 + 2.255140518769849e-16*num_tokens + 1.3530843112619095e-15*tl.abs(tl.log(kept)) + 1.1275702593849246e-16*reach*(4.0 + size)
    return tl.maximum(radius - error, 0.0)


# claims: bound.radius.entropy
@triton.jit
def searched_radius_lower(radius, reach, num_tokens):
    """The same for the entropy rule's search; reach bounds the sizes of the logarithms that enter [nats]."""
    error = 4.5102810375396984e-13 + 7.216449660063518e-15*reach + 4.510281037539698e-16*num_tokens
    return tl.maximum(radius - error, 0.0)


# claims: drafter.dual, bound.radius
@triton.jit
def tilted_mass(top, second, rest, fall, rise):
    """E_q exp f for a multiplier that lets y fall and j rise: a sum of positive terms."""
    return rest + second*tl.exp(rise) + top*tl.exp(-fall)


# claims: drafter.additive, drafter.dual
@triton.jit
def additive_tilt(top, second, rest, slack):
    """The multiplier log u of the additive rule, as near as float64 has it."""
    scaled = tl.sqrt(rest*rest*slack*slack + 4.0*second*top*(1.0 + slack)*(1.0 - slack)) + rest*slack
    return tl.maximum(0.0, tl.minimum(640.0, tl.log(scaled) - tl.log(second*(2.0 - 2.0*slack))))


# claims: drafter.multiplicative, drafter.dual
@triton.jit
def multiplicative_tilt(top, second, alpha):
    """The multiplier of the multiplicative rule."""
    return tl.maximum(0.0, tl.minimum((tl.log(top) - tl.log(alpha*second))/(1.0 + alpha), 640.0))


# claims: drafter.absolute, drafter.dual
@triton.jit
def absolute_tilt(top, rest, tau):
    """The multiplier of an absolute threshold."""
    return tl.maximum(0.0, tl.minimum(tl.log(top) + tl.log(1.0 - tau) - tl.log(rest) - tl.log(tau), 640.0))


# claims: projection.lift, projection.sink, eval.surplus, drafter.tree, drafter.top, reverse.single, reverse.tree
@triton.jit
def pool_radius(surplus_sum, level, rest, size):
    """-log(1 - sum_S q + |S| g) from the sum of surplus(log(q/g)) over the pool S [nats]."""
    lost = level*surplus_sum
    return tl.where(lost <= 0.5, -log1p(-lost), -tl.log(rest + level*size))


# claims: drafter.strict, eval.surplus
@triton.jit
def strict_radius(top, second, rest):
    """-log(1 - (sqrt q1 - sqrt q2)^2); +inf at q2 = 0 [nats]."""
    root = (top - second)/(tl.sqrt(second) + tl.sqrt(top))
    lost = root*root
    return tl.where(second <= 0.0, float("inf"), tl.where(lost <= 0.5, -log1p(-lost), -tl.log(rest + 2.0*tl.sqrt(second)*tl.sqrt(top))))


# claims: drafter.additive, eval.surplus
@triton.jit
def additive_radius(top, second, rest, slack):
    """Additive slack t < 1, as the sum of p (d + exp(-d) - 1) over y, j and the rest [nats]."""
    scaled = tl.sqrt(rest*rest*slack*slack + 4.0*second*top*(1.0 + slack)*(1.0 - slack)) + rest*slack
    tilt = tl.log(scaled) - tl.log(second*(2.0 - 2.0*slack))
    change = second*expm1(tilt) + top*expm1(-tilt)
    log_total = tl.where(change >= -0.5, log1p(change), tl.log(rest + second*tl.exp(tilt) + top*tl.exp(-tilt)))
    return tl.where(second <= 0.0, float("inf"), rest*tl.exp(-log_total)*surplus(log_total) + second*tl.exp(tilt - log_total)*surplus(log_total - tilt) + top*tl.exp(-log_total - tilt)*surplus(log_total + tilt))


# claims: drafter.multiplicative, eval.surplus
@triton.jit
def multiplicative_radius(top, second, rest, alpha):
    """Factor alpha: the weighted geometric mean's form, its loss as a sum of surpluses [nats]."""
    tilt = (tl.log(top) - tl.log(alpha*second))/(1.0 + alpha)
    mean = top*tl.exp(-tilt)
    lost = mean*(surplus(-alpha*tilt)/alpha + surplus(tilt))
    return tl.where(second <= 0.0, float("inf"), tl.where(lost <= 0.5, -log1p(-lost), -tl.log(rest + mean*(1.0 + 1.0/alpha))))


# claims: drafter.absolute, eval.surplus
@triton.jit
def absolute_radius(top, rest, tau):
    """d_bin(tau || q_y) for q_y > tau, else 0 [nats]."""
    return tl.where(tau >= top, 0.0, tl.where(tau <= 0.0, -tl.log(rest), tau*surplus(tl.log(top) - tl.log(tau)) + (1.0 - tau)*surplus(tl.log(rest) - tl.log(1.0 - tau))))
