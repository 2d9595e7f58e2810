"""Safety factors of the kernels that are written by hand, each with its reason, printed into
``certspec/kernels/generated/constants.py``.

A bound in such a kernel reads ``ERROR_PRODUCTS * error + FILTER_ROUNDINGS * sizes``: what the two
factors pay for stands here, once. An example: three relative errors of .1 % each move a product by
1.001^3 - 1 = .3003 %, which is more than their sum, and less than 1.01 times their sum.

``claims`` names the claims that justify the value. Where it is empty, the value is a definition or
an assumption about a machine, or is far above what it pays for but proved by nobody; the sentence
says which of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import sympy
from sympy import Rational

from derivations.kernels.evaluation import BOX_ROUNDINGS, FUNCTION_ERROR, MARGIN_SLACK, UNIT
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["CONSTANTS", "PRODUCTS", "ROUNDINGS", "Constant", "products_bound", "roundings_bound"]


class Constant(NamedTuple):
    """A named number: ``value`` becomes the nearest Python float, or stays an int."""

    name: str
    value: Any
    sentence: str
    claims: tuple[str, ...] = ()

    @property
    def literal(self) -> str:
        """The number as Python reads it back, bit for bit."""
        return repr(self.value if isinstance(self.value, int) else float(self.value))


def products_bound(numbers: Any, room: Any, total: Any) -> Any:
    """k (x_1 + ... + x_n), which bounds what factors 1 + x_i do to a product."""
    return room * total


def roundings_bound(numbers: Any, count: Any) -> Any:
    """(n + 1) u, u = 2^-53: the relative error of n roundings in a row."""
    return (count + 1) / 2**53


PRODUCTS = Derivation(
    "Relative errors of a product's factors",
    (
        Step(
            "1 + x <= exp(x): the slope of exp(x) - 1 - x is exp(x) - 1, of the sign of x.",
            sympy.diff(at.exp(at.f) - 1 - at.f, at.f),
            at.exp(at.f) - 1,
        ),
        Step(
            "So factors 1 + x and 1 + y make at most exp(x + y), and more of them likewise.",
            at.exp(at.x) * at.exp(at.y),
            at.exp(at.x + at.y),
        ),
        Step("k s - (exp(s) - 1) is 0 at s = 0,", (at.k * at.z - (at.exp(at.z) - 1)).subs(at.z, 0)),
        Step(
            "with the slope k - exp(s), not negative up to s = log k.",
            sympy.diff(at.k * at.z - (at.exp(at.z) - 1), at.z),
            at.k - at.exp(at.z),
        ),
        Step(
            "And 1 - 1/k <= log k, as both are 0 at k = 1 and the slope of log k is 1/k >= 1/k^2:",
            sympy.diff(at.log(1 + at.z) - (1 - 1 / (1 + at.z)), at.z),
            at.z / (1 + at.z) ** 2,
        ),
    ),
)
ROUNDINGS = Derivation(
    "Roundings in a row",
    (
        Step(
            "(1 + u)^n <= exp(n u): the logarithm is n log(1 + u), and u - log(1 + u) rises.",
            sympy.diff(at.u - at.log(1 + at.u), at.u),
            at.u / (1 + at.u),
        ),
        Step(
            "exp(s) - 1 <= s + s^2 for 0 <= s <= 1/2: value and slope agree at 0, and the "
            "curvatures differ by 2 - exp(s), not negative there (enclosed).",
            sympy.diff(at.z + at.z**2 - at.exp(at.z) + 1, at.z, 2),
            2 - at.exp(at.z),
        ),
        Step(
            "s = n u: s^2 = (n^2 u) u, at most u while n^2 u <= 1.",
            (at.n * at.u) ** 2,
            (at.n**2 * at.u) * at.u,
        ),
    ),
)
declare(
    Claim(
        id="kernel.products",
        sentence="Factors 1 + x_i, x_i >= 0, move a product by at most k (x_1 + ... + x_n), "
        "k = 1.001, 1.01 or 1.02.",
        domain="x_1 + ... + x_n <= 1 - 1/k",
        theory="F (products of errors)",
        relation=">=",
        formula=products_bound,
        derivation=PRODUCTS,
        mutants=(
            Mutant("the sum alone", lambda n, room, total: total),
            Mutant("half of the room", lambda n, room, total: (room + 1) * total / 2),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="kernel.roundings",
        sentence="n roundings in a row move a number by at most a relative (n + 1) u, u = 2^-53.",
        domain="0 <= n <= 2^26",
        theory="F (roundings in a row)",
        relation=">=",
        formula=roundings_bound,
        derivation=ROUNDINGS,
        mutants=(
            Mutant("one unit fewer than roundings", lambda n, count: (count - 1) / 2**53),
            Mutant("half a unit each", lambda n, count: (count + 1) / 2**54),
        ),
        min_methods=3,
    )
)

UNIT32 = Rational(1, 2**24)
_TEN = Fraction(10)


def _ten(power: int, times: int = 1) -> Fraction:
    return times * _TEN**power


_PRODUCTS, _ROUNDINGS = ("kernel.products",), ("kernel.roundings",)
_MODEL = (
    Constant("UNIT", UNIT, "u, the unit roundoff of float64: a definition."),
    Constant("UNIT32", UNIT32, "The unit roundoff of float32: a definition."),
    Constant(
        "FUNCTION_ERROR",
        FUNCTION_ERROR,
        "exp, log, log1p and expm1 are within 4 ulp: proved of our own exp, assumed of libraries.",
        ("kernel.exp",),
    ),
    Constant(
        "ERROR_PRODUCTS",
        Fraction(101, 100),
        "Pays for products of relative errors that sum to less than .0099.",
        (*_PRODUCTS, "kernel.segments"),
    ),
    Constant(
        "FILTER_PRODUCTS",
        Fraction(102, 100),
        "The same in the float32 filters, for errors up to 2^-10 a weight.",
        (*_PRODUCTS, "kernel.filter"),
    ),
    Constant(
        "MEASURED_PRODUCTS",
        Fraction(1001, 1000),
        "Raises means and shares that carry the very errors which they help to bound.",
        _PRODUCTS,
    ),
)
_RANGES = (
    Constant(
        "REACH_TARGET",
        745.0,
        "nats; the largest gap of a target's token that errors are counted for: exp(-745) is the "
        "last float64 number above 0.",
        ("bound.weight", "bound.log_ratio"),
    ),
    Constant(
        "REACH_DRAFT",
        1490.0,
        "nats; the same for a draft's token whose log-ratio is at most 745.",
        ("bound.log_ratio",),
    ),
    Constant(
        "REACH_POOL",
        32.0,
        "nats; a weight farther down times its relative error vanishes beside u.",
        ("bound.certificate_lower",),
    ),
    Constant(
        "REACH_STREAMED",
        600.0,
        "nats; a streamed sum stops at a gap of 700, of which its reference may take 64.",
        ("kernel.exp",),
    ),
    Constant(
        "LOWEST_GAP",
        -700.0,
        "nats; exp of a lower gap counts as 0: the proved range of our exp ends here.",
        ("kernel.exp",),
    ),
    Constant(
        "FAR_REFERENCE",
        64.0,
        "nats; a row whose first logits lie farther below its maximum is summed again from it. A "
        "choice: every bound counts the distance itself.",
    ),
    Constant(
        "FAR_BELOW",
        -30.0,
        "Log-ratios below this take the form q - p + p d, as expm1(-d) may overflow there.",
        ("eval.bregman",),
    ),
    Constant(
        "LEAST_DIFFERENCE",
        _ten(-6),
        "nats; a KL below it is summed again in the Bregman form, which does not cancel.",
        ("eval.difference", "eval.bregman"),
    ),
    Constant(
        "NEGLIGIBLE",
        _ten(-290),
        "Weights below this may have underflowed, and nothing relative is claimed for them. No "
        "claim: 2^-1022/u is 2e-292.",
    ),
    Constant(
        "FARTHEST_SPAN",
        _ten(100),
        "nats; a draft's row that reaches farther has no finite upper bound of KL. No claim: a "
        "larger bound is a valid one.",
    ),
    Constant(
        "CANDIDATE_SLACK",
        _ten(-6),
        "Relative: tokens this far below a threshold are certainly rejected, as thresholds are "
        "known within far less.",
        ("bound.threshold",),
    ),
    Constant(
        "SMALLEST_PROB",
        Rational(1, 2**900),
        "A drafter's probabilities are raised to at least this, which can only lower the bound.",
        ("drafter.dual",),
    ),
    Constant(
        "FARTHEST_PRESENT",
        670.0,
        "nats; a token that is not masked counts as at most this far below the first: a radius is "
        "then less, never infinite.",
        ("drafter.dual", "projection.lift", "projection.sink"),
    ),
    Constant(
        "VANISHING_LOG_PROB",
        -620.0,
        "nats; smaller probabilities may underflow, and errors count them as of this size.",
        ("bound.radius.entropy",),
    ),
    Constant(
        "SMALLEST_ARGUMENT",
        _ten(-300),
        "Stands in for what is smaller under a logarithm or in a quotient: the result is "
        "multiplied by 0 or replaced, or it is an atom's size, and a larger one is valid.",
        ("drafter.entropy.atoms",),
    ),
)
_STREAMED = (
    Constant(
        "WIDENING",
        Fraction(131, 100),
        "A streamed weight is off by 8 u + 1.31 u |gap|: its gap's rounding, u |gap|, and log 2 "
        "rounded, .302 u |gap|.",
        ("kernel.streamed_exp",),
    ),
    Constant(
        "MOVED_GAP",
        8.0,
        "nats; one more exponential, of 8 u, in the place of as much mean gap.",
        ("kernel.exp", "bound.normaliser"),
    ),
    Constant(
        "TORCH_SUM_DEPTH",
        64,
        "Roundings a term of torch's sums besides one for each 128 columns. Assumed of torch.",
    ),
    Constant(
        "NUMPY_SUM_DEPTH",
        32,
        "Roundings a term of numpy's sums besides log2 of the columns: pairwise, over blocks of "
        "128 in 8 lanes. Assumed of numpy.",
        _ROUNDINGS,
    ),
)
_FILTER = (
    Constant(
        "EXP32_ERROR",
        Fraction(74, 10),
        "In units of 2^-24: polynomial and table instead of exp 5.17, operations 2.1, r rounded "
        ".09.",
        ("kernel.exp32",),
    ),
    Constant(
        "REDUCTION",
        Fraction(462, 10**4),
        "In units of 2^-24 a nat of |z|: log 2 rounded to float32.",
        ("kernel.exp32",),
    ),
    Constant(
        "ADDITIONS",
        Fraction(1701, 100),
        "Roundings of a term on its way through the filter's sums: a product with its addition, 15 "
        "of the vectors that follow, 1 of 8 lanes to 4; and fewer than 2^18 in float64, of 2^-29 "
        "each.",
        ("kernel.exp32",),
    ),
    Constant(
        "LARGEST_LOGIT",
        4096.0,
        "|z| of a row that the filter takes: the proved range of its exp.",
        ("kernel.exp32",),
    ),
    Constant(
        "WIDEST",
        _ten(-3),
        "nats; a row whose KL or normaliser a filter does not know this well is left to float64. A "
        "choice: the bound itself is what is compared.",
    ),
    Constant(
        "DRAFT_SHARE",
        Fraction(3, 4),
        "Of the draft's share: sum p|d| is at most sum p d and this.",
        ("kernel.filter_rest",),
    ),
    Constant(
        "FILTER_ROUNDINGS",
        256 * UNIT,
        "Relative, of the sizes that a filtered row's float64 numbers have: pays for 255 "
        "roundings. That there are fewer (a few logarithms and exponentials of 8 u, products, "
        "moves of the sums) is read from the code, not proved.",
        _ROUNDINGS,
    ),
    Constant(
        "TERM_ROUNDINGS",
        Fraction(3, 2),
        "In units of u a float64 addition: 1 of the sum, or 1.4 (1 + |E d|) of p|d|, which is at "
        "most KL + sqrt(2 KL).",
        ("kernel.filter_size",),
    ),
    Constant(
        "POOL_ROUNDINGS",
        64 * UNIT,
        "Relative, of a pool's value from above: (n + 14) u, as below it, for pools of up to 50 "
        "tokens. No claim speaks of the bound above; it decides whether a rejection is sure, "
        "never a certificate.",
        ("bound.certificate_lower",),
    ),
    Constant(
        "POOL_MASS_ROUNDINGS",
        (256 + 745) * UNIT,
        "The same, of the pool's mass: its weights' gaps, up to 745 u, and (2 n + 34) u for "
        "pools of up to 111 tokens.",
        ("bound.certificate_lower", "bound.weight"),
    ),
    Constant(
        "THRESHOLD_ROUNDINGS",
        64 * UNIT,
        "Relative: lowers a threshold by what its own evaluation rounds. Pays for 63 roundings; "
        "that there are fewer is read from the code.",
        (*_ROUNDINGS, "bound.threshold"),
    ),
)
_TRITON = (
    Constant(
        "EXP2_ERROR",
        Rational(1, 2**22),
        "ex2.approx.f32, relative: the PTX manual's word, taken. The worst of all float32 numbers "
        "in [-126, 0] on an H100 was 1.44e-7.",
    ),
    Constant(
        "CONSTANT_ERROR", Fraction(134, 10**10), "|fl32(log2 e)/log2 e - 1|.", ("kernel.segments",)
    ),
    Constant(
        "LOWEST_EXPONENT",
        127.0,
        "Below -127 a float32 2^x is flushed to zero: a property of the format.",
    ),
    Constant(
        "EXACT_EXPONENT_ERROR",
        4 * UNIT,
        "Per unit of |x| and of |M|, where a row is summed again in float64: log2 e, the product "
        "with it and the difference lose 3 u |x| + 2 u |M|.",
        ("kernel.segments",),
    ),
    Constant(
        "EXACT_EXP2_ERROR",
        4 * UNIT,
        "float64's exp2, relative: within 2 ulp, assumed of the library.",
    ),
    Constant(
        "EXACT_FARTHEST_ERROR",
        4096 * UNIT,
        "The error of the farthest float64 exponential that is not zero, x >= -1076.",
        ("kernel.segments",),
    ),
    Constant(
        "KEPT_ERROR",
        _ten(-15, 2),
        "Relative, 18 u: the float64 exponentials and sums of a row's kept tokens, as read from "
        "the code; what their logits' sizes add is in DIVERGENCE_ROUNDINGS and "
        "REFERENCE_ROUNDINGS.",
        _ROUNDINGS,
    ),
    Constant(
        "TAIL_SLACK",
        _ten(-12),
        "nats; keeps a mean that bounds an error from falling below 0 by its own rounding. No "
        "claim: it is multiplied by an error below 1e-3.",
    ),
    Constant(
        "DIVERGENCE_ROUNDINGS",
        64 * UNIT,
        "Relative, of the sizes of means, logarithms and references: pays for 63 roundings. "
        "That there are fewer is read from the code, not proved.",
        _ROUNDINGS,
    ),
    Constant(
        "REFERENCE_ROUNDINGS",
        8 * UNIT,
        "A nat of the largest logit: the normaliser is brought from the reference to it.",
        _ROUNDINGS,
    ),
    Constant(
        "REFERENCE_NATS",
        8.0,
        "Nats beside the largest logit, for the exponential and the products that bring it there.",
        _ROUNDINGS,
    ),
)
_REFERENCE = tuple(
    Constant(name, count * UNIT, f"The reference's own: {sentence}", claims)
    for name, count, sentence, claims in (
        ("NORMALISER_ROUNDINGS", 4, "a normaliser in a product or quotient.", ("bound.threshold",)),
        ("SCALE_ROUNDINGS", 2, "a scale and its sum with an offset.", ("bound.threshold",)),
        ("RATIO_ROUNDINGS", 3, "a nat of the reach of a log-ratio.", ("bound.log_ratio",)),
        ("SLOPE_ROUNDINGS", 28, "what the terms of KL add to eta.", ("bound.kl_upper",)),
        ("TERM_SUM_ROUNDINGS", 40, "a term of KL, its sum included.", ("bound.kl_upper",)),
        ("ROOT_ROUNDINGS", 16, "the formula of the bound itself.", ("bound.kl_upper",)),
    )
)
_COUNTS = tuple(
    Constant(name, count, f"The reference's own, in units of u: {sentence}", claims)
    for name, count, sentence, claims in (
        ("ENTROPY_COUNT", 12, "a term of E_p[max z - z].", ("bound.threshold",)),
        ("PROBABILITY_COUNT", 10, "a probability.", ("bound.threshold",)),
        ("MEAN_COUNT", 3, "a raised mean, besides one a token.", ("bound.certificate_lower",)),
        ("JOIN_COUNT", 4, "a token that joins a pool, besides one a token.", ("single.dual",)),
        ("VALUE_COUNT", 16, "a pool's value, besides one a token.", ("bound.certificate_lower",)),
        ("MASS_COUNT", 40, "a pool's mass, besides two a token.", ("bound.certificate_lower",)),
    )
)
_CERTIFICATES = (
    Constant(
        "WEIGHT_ERROR",
        _ten(-13, 2),
        "Relative, of a float64 weight down to 745 nats: 65/64 (745 + 8) u is 8.5e-14.",
        ("bound.weight",),
    ),
    Constant(
        "RIGOROUS_ERROR",
        _ten(-11),
        "What the float64 backends keep in entropies (nats) and probabilities (relative): seen in "
        "tests, proved by no claim.",
    ),
    Constant(
        "FLOOR_SLACK",
        _ten(-11),
        "nats, 90,000 u: above what a floor and log delta round, of logarithms up to 745.",
        ("kernel.entropy_floor",),
    ),
    Constant(
        "MARGIN_ROUNDING",
        _ten(-12),
        "Relative, 9,000 u: lowers what an entropy rule's margin is worth by more than the cost of "
        "its pairs rounds, 4,000 u.",
        ("kernel.entropy_cells", "kernel.margins"),
    ),
    Constant(
        "MARGIN_SLACK",
        MARGIN_SLACK,
        "Relative, 1,024 u: lowers what every margin is worth by more than its evaluation rounds, "
        "980 u at most (trees near margin 1; 400 u elsewhere).",
        ("kernel.margins", "kernel.tree_rows"),
    ),
    Constant(
        "CHORD_SLACK",
        64 * UNIT,
        "Relative: what the use of a level is lowered and raised by before it is compared with 1, "
        "and the tilt of a pair with it.",
        ("kernel.margins", "drafter.margin.chord"),
    ),
    Constant(
        "MARGIN_FLOOR",
        Rational(1, 2**1000),
        "nats; a margin's bound below it counts as 0, as numbers that underflow lose more than u.",
        ("kernel.margins",),
    ),
    Constant(
        "FLAG_RESOLUTION",
        Rational(1, 2**44),
        "Relative, 512 u, beside the error bounds themselves: a token nearer to its threshold is "
        "decided on exact numbers, not in float64. Certifies nothing, and no claim rests on it.",
    ),
    Constant(
        "FLAG_WINDOW",
        Rational(1, 2**30),
        "Relative, 2^23 u: a token farther from its threshold is decided by float64, the others "
        "one by one, exactly. No claim: softmax and entropy of float64 err by less than 2^17 u.",
    ),
    Constant(
        "ATOM_ROOM",
        Rational(1, 2**36),
        "nats; what rounding may take from the logarithm of an atom's size: u times 2^17, for "
        "logarithms below 2^10.",
        ("drafter.entropy.atoms",),
    ),
    Constant(
        "SHARE_ROUNDING",
        Rational(1, 2**47),
        "Relative, a nat: raises the largest share that the entropy part rejects by 64 u.",
        ("drafter.entropy.feasible",),
    ),
    Constant(
        "NEAR_ONE",
        1 - Rational(1, 2**40),
        "Shares above this are bounded by the divergence of one token against the rest.",
        ("drafter.entropy.dual",),
    ),
    Constant(
        "LUMPED_ERROR",
        Rational(1, 2**46),
        "nats: exp, sums and pools of a list in float64; nothing is claimed below this much "
        "slack. Pays for 127 roundings of numbers of size 1, as read from the code.",
        _ROUNDINGS,
    ),
    Constant(
        "MASS_SLACK",
        _ten(-12),
        "Relative: a list's probabilities may sum to this much above 1 before they are refused. A "
        "check of input: no claim.",
    ),
    Constant(
        "INPUT_SLACK",
        _ten(-6),
        "How far given probabilities may sum from 1, or a given tail lie below 0, before they are "
        "refused. A check of input: no claim.",
    ),
    Constant(
        "SERIES_REACH",
        _ten(-2),
        "Below this, four terms of the series stand for phi: they leave out x^8/45 of it.",
        ("eval.strict",),
    ),
    Constant(
        "ROBUST_WIDENING",
        Rational(1, 2**40),
        "nats; a box of logits is widened by it, which pays for what float64 rounded in weights "
        "down to 745 nats (8.5e-14 relative) and in the probabilities made of them.",
        ("bound.weight",),
    ),
    Constant(
        "ROBUST_ROUNDINGS",
        BOX_ROUNDINGS,
        "In units of u, besides one a token: what a box's printed formulas round, and the sums, "
        "products and logarithms of its value, these as read from the code.",
        ("kernel.box", "kernel.roundings"),
    ),
    Constant(
        "OTHER_ROUNDINGS",
        512,
        "In units of u: powers, roots and sums of at most 256 ranks of a pool in another "
        "divergence, and the logarithms around them, as read from the code.",
        ("kernel.roundings",),
    ),
    Constant(
        "SET_ERROR",
        Rational(1, 2**40),
        "Of the probability of a set of tokens, a choice: rows sum to 1 within half of it, the "
        "other half is far above what a sum of a million terms rounds.",
    ),
    Constant(
        "SAMPLING_ROUNDINGS",
        32,
        "In units of u: sums, products and logarithms of a line below a divergence, each at most "
        "4 ulp, as read from the code.",
        ("kernel.roundings",),
    ),
    *(
        Constant(f"LAST_PLACE_{kind}", Rational(1, 2**bits), "The spacing of that dtype at 1.")
        for kind, bits in (("FLOAT64", 52), ("FLOAT32", 23), ("FLOAT16", 10), ("BFLOAT16", 7))
    ),
)
CONSTANTS: tuple[Constant, ...] = (
    *_MODEL,
    *_RANGES,
    *_STREAMED,
    *_FILTER,
    *_TRITON,
    *_REFERENCE,
    *_COUNTS,
    *_CERTIFICATES,
)
