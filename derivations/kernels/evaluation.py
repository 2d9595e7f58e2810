"""The evaluation forms of the certificates: the formulas of the theory as they are to be computed
in float64, one KernelSpec each. Cancellation is removed here, by rewriting; the theorems themselves
live in the topic modules.

Rows are worked in weights ``w_i = exp(z_i - max z)``: ``w_1 = 1`` exactly and ``p_i = w_i / S``
with S their sum."""

from __future__ import annotations

import sympy
from sympy import Max, Min, Piecewise, Rational, exp, log, sqrt
from sympy.codegen.cfunctions import expm1, log1p

from derivations.language.kernel_spec import PRINTERS, KernelSpec

__all__ = ["BOX_ROUNDINGS", "MARGIN_SLACK", "TOPICS", "UNIT"]

UNIT = Rational(1, 2**53)  # unit roundoff of float64
FUNCTION_ERROR = (
    8 * UNIT
)  # exp, log, log1p and expm1 are taken to be within 4 units in the last place
SECOND_ORDER = 1 + Rational(1, 64)  # covers every product of two error terms
MARGIN_SLACK = Rational(1, 2**43)  # of every margin's bound: claim kernel.margins
BOX_ROUNDINGS = 64  # u, of a box's formulas: claim kernel.box
TINY = Rational(1, 2**480)  # covers weights that underflow: V * e^-690 * 1e100 is far below it


def symbols(names: str) -> tuple[sympy.Symbol, ...]:
    return sympy.symbols(names, real=True, seq=True)


# --- divergence and entropy
target_prob, draft_prob, log_ratio = symbols("target_prob draft_prob log_ratio")
log_normaliser, mean_gap, other_log_normaliser, cross_gap = symbols(
    "log_normaliser mean_gap other_log_normaliser cross_gap"
)

BREGMAN_TERM = KernelSpec(
    name="bregman_term",
    arguments=("target_prob", "log_ratio"),
    form=target_prob * (log_ratio + expm1(-log_ratio)),
    textbook=target_prob * log_ratio + target_prob * exp(-log_ratio) - target_prob,
    claims=("eval.bregman",),
    derivation="derivations.kernels.evaluation.BREGMAN_TERM",
    domain="target_prob > 0, log_ratio = log(target_prob / draft_prob) >= -30",
    doc="A token's share of KL(target || draft) = sum p (d + expm1(-d)), never negative [nats].",
)
FAR_TERM = KernelSpec(
    name="far_term",
    arguments=("target_prob", "draft_prob", "log_ratio"),
    form=(draft_prob - target_prob) + target_prob * log_ratio,
    textbook=target_prob * log_ratio + draft_prob - target_prob,
    claims=("eval.bregman",),
    derivation="derivations.kernels.evaluation.FAR_TERM",
    domain="log_ratio < -30, where expm1(-log_ratio) may overflow; target_prob may be 0",
    doc="The same share where the draft's probability is far above the target's [nats].",
)
DIFFERENCE = KernelSpec(
    name="difference_form",
    arguments=("cross_gap", "log_normaliser", "other_log_normaliser"),
    form=cross_gap - (log_normaliser - other_log_normaliser),
    claims=("eval.difference",),
    derivation="derivations.kernels.evaluation.DIFFERENCE",
    domain="cross_gap = E_p[(z - max z) - (y - max y)]; cancels where KL is small: only for KL >= "
    "1e-6",
    doc="KL(target || draft) from sums that need no normalised probability [nats].",
)
ENTROPY = KernelSpec(
    name="entropy",
    arguments=("log_normaliser", "mean_gap"),
    form=log_normaliser + mean_gap,
    claims=("eval.entropy",),
    derivation="derivations.kernels.evaluation.ENTROPY",
    domain="log_normaliser = log S >= 0, mean_gap = E_p[max z - z] >= 0: nothing cancels",
    doc="Entropy H = log S + E_p[max z - z] of a row [nats].",
)

# --- pools
weight, mean, excess, mass, size = symbols("weight mean excess mass size")
higher, lower = symbols("higher lower")

POOL_TERM = KernelSpec(
    name="pool_term",
    arguments=("weight", "mean"),
    lets={"excess": weight / mean - 1},
    form=Piecewise((mean, excess <= -1), (mean * ((1 + excess) * log1p(excess) - excess), True)),
    textbook=weight * log(weight / mean) - weight + mean,
    claims=("eval.pool", "single.pool", "tree.pool"),
    derivation="derivations.kernels.evaluation.POOL_TERM",
    domain="weight >= 0, mean > 0; the terms -weight + mean cancel over a pool",
    printers=(*PRINTERS, "numpy"),
    doc="A token's share of a pool's value sum w log(w/c) = c sum phi(w/c - 1), phi(u) = (1+u) "
    "log1p(u) - u >= 0.",
)
PAIR_COST = KernelSpec(
    name="pair_cost",
    arguments=("higher", "lower"),
    lets={"mass": higher + lower, "excess": (higher - lower) / (higher + lower)},
    form=Piecewise(
        (0, mass <= 0),
        (mass * log(2), excess >= 1),
        (mass * ((1 + excess) * log1p(excess) + (1 - excess) * log1p(-excess)) / 2, True),
    ),
    textbook=higher * log(2 * higher / (higher + lower))
    + lower * log(2 * lower / (higher + lower)),
    claims=("eval.strict", "strict.closed"),
    derivation="derivations.kernels.evaluation.PAIR_COST",
    domain="higher >= lower >= 0",
    doc="The strict certificate s phi(d/s), s = p1 + p2, d = p1 - p2 [nats].",
)

# --- thresholds
cap, scale, offset, entropy_scale = symbols("cap scale offset entropy_scale")
normaliser, entropy_gap, normaliser_error, entropy_error, from_top = symbols(
    "normaliser entropy_gap normaliser_error entropy_error from_top"
)
_RULE = ("cap", "scale", "offset", "entropy_scale", "normaliser", "entropy_gap")

RELATIVE_THRESHOLD = KernelSpec(
    name="relative_threshold",
    arguments=_RULE,
    form=Min(
        Min(cap * normaliser, scale + offset * normaliser),
        entropy_scale * exp(entropy_gap),
        evaluate=False,
    ),
    claims=("rule.threshold",),
    derivation="derivations.kernels.evaluation.RELATIVE_THRESHOLD",
    domain="entropy_gap = log S - H (exactly -E_p[max z - z] for the exact entropy); infinite "
    "parameters are neutral",
    doc="The rule's threshold in weights, tau S = min(cap S, scale + offset S, entropy_scale S "
    "exp(-H)).",
)
THRESHOLD_UPPER = KernelSpec(
    name="threshold_upper",
    arguments=(*_RULE, "normaliser_error", "entropy_error"),
    lets={
        "from_top": (scale + offset * normaliser)
        + (
            sympy.Abs(offset) * normaliser * (SECOND_ORDER * normaliser_error + 6 * UNIT)
            + 4 * UNIT * scale
        )
    },
    form=Min(
        Min(
            cap * normaliser * (1 + SECOND_ORDER * normaliser_error + 4 * UNIT),
            Piecewise((Min(from_top, scale), offset <= 0), (from_top, True)),
            evaluate=False,
        ),
        entropy_scale * exp(entropy_gap) * (1 + SECOND_ORDER * entropy_error + 20 * UNIT),
        evaluate=False,
    ),
    claims=("rule.threshold", "bound.threshold"),
    derivation="derivations.kernels.evaluation.THRESHOLD_UPPER",
    domain="errors relative (normaliser) and absolute (entropy_gap), below 1/64; an offset <= 0 "
    "never exceeds scale",
    doc="An upper bound of the exact threshold in weights, for every rounding error of the "
    "quantities given.",
)

# --- bounds
sum_error, span, other_error, reach = symbols("sum_error span other_error reach")
kl, slope, relative_error, log_ratio_error, keep = symbols(
    "kl slope relative_error log_ratio_error keep"
)
raised_sum, weight_error = symbols("raised_sum weight_error")

NORMALISER_ERROR = KernelSpec(
    name="relative_normaliser_error",
    arguments=("mean_gap", "sum_error"),
    form=SECOND_ORDER * (mean_gap * UNIT + FUNCTION_ERROR + sum_error),
    claims=("bound.kl_upper", "bound.normaliser"),
    derivation="derivations.kernels.evaluation.NORMALISER_ERROR",
    domain="sum_error bounds the relative error of a sum of nonnegative terms in the kernel's own "
    "order",
    doc="Relative error of the computed S: E_p of the weights' relative errors (gap u + 8 u), and "
    "the summation.",
)
WEIGHT_ERROR = KernelSpec(
    name="relative_weight_error",
    arguments=("span",),
    form=SECOND_ORDER * (span * UNIT + FUNCTION_ERROR),
    claims=("bound.certificate_lower", "bound.weight"),
    derivation="derivations.kernels.evaluation.WEIGHT_ERROR",
    domain="0 <= span = max z - z <= 745",
    doc="Relative error of a weight exp(z - max z): the rounding of the gap, and exp.",
)
ENTROPY_GAP_ERROR = KernelSpec(
    name="entropy_gap_error",
    arguments=("mean_gap", "span", "sum_error", "normaliser_error"),
    form=SECOND_ORDER * mean_gap * ((span + 12) * UNIT + sum_error + normaliser_error),
    claims=("bound.threshold",),
    derivation="derivations.kernels.evaluation.ENTROPY_GAP_ERROR",
    domain="span is the largest gap max z - z of a token whose weight does not vanish",
    doc="Absolute error of the computed E_p[max z - z] [nats].",
)
SMOOTHED_ENTROPY_ERROR = KernelSpec(
    name="smoothed_entropy_error",
    arguments=("entropy_gap", "log_normaliser", "span", "sum_error", "normaliser_error"),
    form=SECOND_ORDER
    * (sympy.Abs(entropy_gap) + 2 * log_normaliser + 4)
    * ((span + 24) * UNIT + sum_error + 2 * normaliser_error),
    claims=("bound.threshold",),
    derivation="derivations.kernels.evaluation.SMOOTHED_ENTROPY_ERROR",
    domain="smoothing in (0, 1]; entropy_gap = log S + sum p log(p + smoothing)",
    doc="Absolute error of log S - H for an entropy whose logarithm is smoothed [nats].",
)
LOG_RATIO_ERROR = KernelSpec(
    name="log_ratio_bound",
    arguments=(
        "log_normaliser",
        "normaliser_error",
        "other_log_normaliser",
        "other_error",
        "reach",
    ),
    form=SECOND_ORDER
    * (
        normaliser_error
        + other_error
        + FUNCTION_ERROR * (log_normaliser + other_log_normaliser)
        + 3 * UNIT * reach
    ),
    claims=("bound.kl_upper", "bound.log_ratio"),
    derivation="derivations.kernels.evaluation.LOG_RATIO_ERROR",
    domain="reach bounds |log p| + |log q| over tokens with p >= e^-745 and log(p/q) <= 745",
    doc="Absolute error of every computed log(p/q) that enters to first order [nats].",
)
TERM_ERROR = KernelSpec(
    name="relative_term_error",
    arguments=(
        "weight_error",
        "normaliser_error",
        "other_weight_error",
        "other_error",
        "sum_error",
    ),
    form=SECOND_ORDER
    * (
        Max(
            weight_error + normaliser_error,
            sympy.Symbol("other_weight_error", real=True) + other_error,
        )
        + (sum_error + 32 * UNIT)
    ),
    claims=("bound.kl_upper",),
    derivation="derivations.kernels.evaluation.TERM_ERROR",
    domain="weight_error = relative_weight_error(span) of target and draft",
    doc="Relative error of the sum of the terms of KL, that of the log-ratios left out.",
)
DIFFERENCE_ERROR = KernelSpec(
    name="difference_error",
    arguments=("log_ratio_error", "relative_error", "log_normaliser", "other_log_normaliser"),
    form=SECOND_ORDER
    * (log_ratio_error + relative_error * (log_normaliser + other_log_normaliser)),
    claims=("bound.kl_upper", "eval.difference"),
    derivation="derivations.kernels.evaluation.DIFFERENCE_ERROR",
    domain="beside it |K - KL| <= a KL + a sqrt(2 KL) remains, a the relative error: E_p|d| <= KL "
    "+ sqrt(2 KL)",
    doc="The part of the difference form's error that does not vanish with KL [nats].",
)
KL_UPPER = KernelSpec(
    name="kl_upper",
    arguments=("kl", "relative_error", "log_ratio_error"),
    lets={
        "slope": log_ratio_error + 28 * UNIT,
        "keep": 1 - relative_error,
        "root": (
            slope * sqrt(2, evaluate=False)
            + sqrt(2 * slope**2 + 4 * keep * (kl + (log_ratio_error * log_ratio_error + TINY)))
        )
        / (2 * keep),
    },
    form=sympy.Symbol("root", real=True) * sympy.Symbol("root", real=True) * (1 + 16 * UNIT),
    claims=("bound.kl_upper",),
    derivation="derivations.kernels.evaluation.KL_UPPER",
    domain="kl >= 0 (may be +inf); 0 <= relative_error < 1",
    doc="The largest K with K <= kl + a K + b sqrt(2 K) + eta^2: an upper bound of the exact KL "
    "[nats].",
)
RAISED_MEAN = KernelSpec(
    name="raised_mean",
    arguments=("mass", "size"),
    form=mass / size * (1 + 6 * UNIT + size * UNIT),
    claims=("bound.certificate_lower",),
    derivation="derivations.kernels.evaluation.RAISED_MEAN",
    domain="mass the float64 sum of size weights; size < 2^40",
    doc="A number that is certainly not below the exact mean of the pooled weights.",
)
CERTIFICATE_LOWER = KernelSpec(
    name="certificate_lower",
    arguments=("raised_sum", "mass", "size", "weight_error", "normaliser", "normaliser_error"),
    form=Max(
        0,
        (
            raised_sum * (1 - weight_error - (size + 16) * UNIT)
            - mass * ((2 * size + 40) * UNIT + weight_error)
        )
        / normaliser
        * (1 - SECOND_ORDER * normaliser_error - 4 * UNIT),
        evaluate=False,
    ),
    claims=("bound.certificate_lower",),
    derivation="derivations.kernels.evaluation.CERTIFICATE_LOWER",
    domain="raised_sum the sum of pool_term(w, raised_mean) over the pool; weight_error that of "
    "the lowest gap, or of 32 nats where it is further (beyond it w times its error vanishes "
    "beside the unit roundoff)",
    doc="A bound below the exact certificate, by weak duality at the float64 weights (Lemma A2) "
    "[nats].",
)

# One generated file a topic and printer.
TOPICS: dict[str, tuple[KernelSpec, ...]] = {
    "divergence": (BREGMAN_TERM, FAR_TERM, DIFFERENCE, ENTROPY),
    "pool": (POOL_TERM, PAIR_COST),
    "threshold": (RELATIVE_THRESHOLD, THRESHOLD_UPPER),
    "bounds": (
        NORMALISER_ERROR,
        WEIGHT_ERROR,
        ENTROPY_GAP_ERROR,
        SMOOTHED_ENTROPY_ERROR,
        LOG_RATIO_ERROR,
        TERM_ERROR,
        DIFFERENCE_ERROR,
        KL_UPPER,
        RAISED_MEAN,
        CERTIFICATE_LOWER,
    ),
}
