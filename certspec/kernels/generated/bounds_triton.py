"""Bounds: scalar kernels for triton. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.evaluation.NORMALISER_ERROR, derivations.kernels.evaluation.WEIGHT_ERROR, derivations.kernels.evaluation.ENTROPY_GAP_ERROR, derivations.kernels.evaluation.SMOOTHED_ENTROPY_ERROR, derivations.kernels.evaluation.LOG_RATIO_ERROR, derivations.kernels.evaluation.TERM_ERROR, derivations.kernels.evaluation.DIFFERENCE_ERROR, derivations.kernels.evaluation.KL_UPPER, derivations.kernels.evaluation.RAISED_MEAN, derivations.kernels.evaluation.CERTIFICATE_LOWER
claims:      bound.certificate_lower, bound.kl_upper, bound.log_ratio, bound.normaliser, bound.threshold, bound.weight, eval.difference
domain:      relative_normaliser_error: sum_error bounds the relative error of a sum of nonnegative terms in the kernel's own order
domain:      relative_weight_error: 0 <= span = max z - z <= 745
domain:      entropy_gap_error: span is the largest gap max z - z of a token whose weight does not vanish
domain:      smoothed_entropy_error: smoothing in (0, 1]; entropy_gap = log S + sum p log(p + smoothing)
domain:      log_ratio_bound: reach bounds |log p| + |log q| over tokens with p >= e^-745 and log(p/q) <= 745
domain:      relative_term_error: weight_error = relative_weight_error(span) of target and draft
domain:      difference_error: beside it |K - KL| <= a KL + a sqrt(2 KL) remains, a the relative error: E_p|d| <= KL + sqrt(2 KL)
domain:      kl_upper: kl >= 0 (may be +inf); 0 <= relative_error < 1
domain:      raised_mean: mass the float64 sum of size weights; size < 2^40
domain:      certificate_lower: raised_sum the sum of pool_term(w, raised_mean) over the pool; weight_error that of the lowest gap, or of 32 nats where it is further (beyond it w times its error vanishes beside the unit roundoff)
printer:     TritonPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 d9632930aaa479e2700dd4949512f7155d5fd622155f1ae22a880c845a8f4eb9
body:        sha256 78e5c591ffd24758be71de1d2bdc1ddd85d3e9333ea85e0a46923756508dd490
"""
# --- body ---
import triton
import triton.language as tl

from certspec.kernels.triton.functions import expm1, log1p


# claims: bound.kl_upper, bound.normaliser
@triton.jit
def relative_normaliser_error(mean_gap, sum_error):
    """Relative error of the computed S: E_p of the weights' relative errors (gap u + 8 u), and the summation."""
    return 9.020562075079397e-16 + 1.015625*sum_error + 1.1275702593849246e-16*mean_gap


# claims: bound.certificate_lower, bound.weight
@triton.jit
def relative_weight_error(span):
    """Relative error of a weight exp(z - max z): the rounding of the gap, and exp."""
    return 9.020562075079397e-16 + 1.1275702593849246e-16*span


# claims: bound.threshold
@triton.jit
def entropy_gap_error(mean_gap, span, sum_error, normaliser_error):
    """Absolute error of the computed E_p[max z - z] [nats]."""
    return 1.015625*mean_gap*(1.3322676295501878e-15 + normaliser_error + sum_error + 1.1102230246251565e-16*span)


# claims: bound.threshold
@triton.jit
def smoothed_entropy_error(entropy_gap, log_normaliser, span, sum_error, normaliser_error):
    """Absolute error of log S - H for an entropy whose logarithm is smoothed [nats]."""
    return (4.0625 + 2.03125*log_normaliser + 1.015625*tl.abs(entropy_gap))*(2.6645352591003757e-15 + sum_error + 2.0*normaliser_error + 1.1102230246251565e-16*span)


# claims: bound.kl_upper, bound.log_ratio
@triton.jit
def log_ratio_bound(log_normaliser, normaliser_error, other_log_normaliser, other_error, reach):
    """Absolute error of every computed log(p/q) that enters to first order [nats]."""
    return 1.015625*normaliser_error + 1.015625*other_error + 9.020562075079397e-16*log_normaliser + 9.020562075079397e-16*other_log_normaliser + 3.382710778154774e-16*reach


# claims: bound.kl_upper
@triton.jit
def relative_term_error(weight_error, normaliser_error, other_weight_error, other_error, sum_error):
    """Relative error of the sum of the terms of KL, that of the log-ratios left out."""
    return 3.608224830031759e-15 + 1.015625*sum_error + 1.015625*tl.maximum(normaliser_error + weight_error, other_error + other_weight_error)


# claims: bound.kl_upper, eval.difference
@triton.jit
def difference_error(log_ratio_error, relative_error, log_normaliser, other_log_normaliser):
    """The part of the difference form's error that does not vanish with KL [nats]."""
    return 1.015625*log_ratio_error + 1.015625*relative_error*(log_normaliser + other_log_normaliser)


# claims: bound.kl_upper
@triton.jit
def kl_upper(kl, relative_error, log_ratio_error):
    """The largest K with K <= kl + a K + b sqrt(2 K) + eta^2: an upper bound of the exact KL [nats]."""
    slope = 3.1086244689504383e-15 + log_ratio_error
    keep = 1.0 - relative_error
    root = 0.5*(tl.sqrt(2.0*slope*slope + 4.0*keep*(3.2033329522929615e-145 + kl + log_ratio_error*log_ratio_error)) + slope*1.4142135623730951)/keep
    return 1.0000000000000018*root*root


# claims: bound.certificate_lower
@triton.jit
def raised_mean(mass, size):
    """A number that is certainly not below the exact mean of the pooled weights."""
    return mass*(1.0000000000000007 + 1.1102230246251565e-16*size)/size


# claims: bound.certificate_lower
@triton.jit
def certificate_lower(raised_sum, mass, size, weight_error, normaliser, normaliser_error):
    """A bound below the exact certificate, by weak duality at the float64 weights (Lemma A2) [nats]."""
    return tl.maximum((0.9999999999999996 - 1.015625*normaliser_error)*(raised_sum*(0.9999999999999982 - weight_error - 1.1102230246251565e-16*size) - mass*(4.440892098500626e-15 + weight_error + 2.220446049250313e-16*size))/normaliser, 0.0)
