"""Every single-token rule as one normal form, a rank gate and a threshold, and the bound that
covers its rounding.

Example: "accept every token with p >= p_1 - .1" is tau = p_1 - .1, in weights w = p S the number 1
- .1 S. The printed expression under test is
``derivations.kernels.evaluation.RELATIVE_THRESHOLD``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sympy
from sympy import Rational, exp, log

from derivations.arithmetic.rewrites import as_formula, mutate, symbol
from derivations.kernels.evaluation import RELATIVE_THRESHOLD, SECOND_ORDER, THRESHOLD_UPPER, UNIT
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import BEST_OF_TWO, UNORDERED

__all__ = ["NORMAL_FORMS", "THRESHOLD", "THRESHOLD_BOUND", "NormalForm"]

_INF = float("inf")


def _with_room(error: str, room: int, whole: int = 1) -> Callable[[sympy.Expr], sympy.Expr]:
    """Puts ``room`` u for the printed sum ``whole`` + (error) + (roundings), whatever number stands
    there."""
    raised = SECOND_ORDER * symbol(error)

    def printed(part: Any) -> bool:
        rest = part - raised if part.is_Add else symbol(error)
        return bool(rest.is_number) and rest >= whole and rest < whole + Rational(1, 2)

    return mutate(printed, lambda part: whole + raised + room * UNIT)


def _is_scale_raised(part: Any) -> bool:
    return bool(part.is_Mul) and part.free_symbols == {symbol("scale")}


class NormalForm(NamedTuple):
    """tau = min(cap, scale p1 + offset, entropy_scale exp(-H)); ranks beyond ``top_m`` (0 = no
    gate) are rejected."""

    top_m: int = 0
    scale: Any = 0
    offset: Any = _INF
    cap: Any = _INF
    entropy_scale: Any = _INF
    strictly_above: bool = False


# Rule name -> its parameters' normal form; the same table, in words, is ``certspec.rules``.
NORMAL_FORMS: dict[str, Any] = {
    "strict": lambda: NormalForm(top_m=1, offset=-_INF),
    "additive": lambda t: NormalForm(scale=1, offset=-t),
    "multiplicative": lambda alpha: NormalForm(scale=alpha, offset=0),
    "top": lambda m: NormalForm(top_m=m, offset=-_INF),
    "gated additive": lambda m, t: NormalForm(top_m=m, scale=1, offset=-t),
    "gated multiplicative": lambda m, alpha: NormalForm(top_m=m, scale=alpha, offset=0),
    "entropy": lambda epsilon, delta: NormalForm(
        cap=epsilon, entropy_scale=delta, strictly_above=True
    ),
    "absolute": lambda tau: NormalForm(cap=tau),
}

CAP, SCALE, TOTAL, ENTROPY, TOP = sympy.symbols("cap scale S H p_1", positive=True)
OFFSET = sympy.Symbol("offset", real=True)
ERROR, SLACK, SIZE, ENTROPY_SCALE = sympy.symbols("e r o E", nonnegative=True)
THRICE, FIVE_TIMES = Rational(301, 100) * UNIT, Rational(501, 100) * UNIT

THRESHOLD = Derivation(
    "A rule is a lower level set",
    (
        Step(
            "Work in weights w = p S, where the top weight is 1: p < tau exactly when w < tau S, "
            "as S > 0 and",
            at.f * at.s - at.p * at.s,
            at.s * (at.f - at.p),
        ),
        Step(
            "An additive or multiplicative threshold: S (scale p_1 + offset) = scale + offset S "
            "at p_1 = 1/S.",
            TOTAL * (SCALE / TOTAL + OFFSET),
            SCALE + OFFSET * TOTAL,
        ),
        Step(
            "An entropy threshold: S E exp(-H) = E exp(log S - H).",
            TOTAL * exp(-ENTROPY),
            exp(log(TOTAL) - ENTROPY),
        ),
        Step(
            "The minimum of the thresholds rejects less than each: it is not above any of them;",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
        Step(
            "and min(S a, S b) = S min(a, b) for S > 0, b = a + r.",
            at.Min(at.s * at.f, at.s * at.f + at.s * at.r),
            at.s * at.Min(at.f, at.f + at.r),
        ),
        Step(
            "Every rule's rejected set is then {rank > top_m} union {w < tau S}: both are lower "
            "level sets of the target.",
            how="definition",
        ),
        Step(
            "Its likeliest token is the best competitor.",
            how="cited",
            cites=("single.competitor",),
            instances=(BEST_OF_TWO,),
        ),
    ),
)
THRESHOLD_BOUND = Derivation(
    "A threshold that no rounding error can exceed",
    (
        Step(
            "The exact normaliser is S (1 + x) with |x| <= e. Cap: cap S (1 + 65/64 e + 4u), less "
            "what its own roundings take, one of 65/64 e and one each of a sum and two products, "
            "less cap S (1 + x), x = e - r:",
            CAP * TOTAL * (1 + SECOND_ORDER * ERROR * (1 - UNIT) + 4 * UNIT) * (1 - UNIT) ** 3
            - CAP * TOTAL * (1 + ERROR - SLACK),
            0,
            "nonnegative",
        ),
        Step(
            "Offset -o < 0: the exact value is scale - o S (1 + x), largest at x = -e. Roundings "
            "may take 3.01 u of scale and of o S, a product and two sums each ((1 + u)^3 - 1 is "
            "less), and 5.01 u of what is added, three products and two sums:",
            SCALE * (1 + 4 * UNIT) * (1 - THRICE)
            - SIZE * TOTAL * (1 + THRICE)
            + SIZE * TOTAL * (SECOND_ORDER * ERROR + 6 * UNIT) * (1 - FIVE_TIMES)
            - (SCALE - SIZE * TOTAL * (1 - ERROR)),
            0,
            "nonnegative",
        ),
        Step(
            "Entropy: exp(gap + y), |y| <= e <= 1/64, is at most exp(gap)(1 + 65/64 e), because "
            "exp(e) - 1 <= e/(1 - e/2) term by term and 1/(1 - e/2) <= 65/64; with e = 1/(64 + r):",
            Rational(65, 64) - 1 / (1 - 1 / (2 * (64 + SLACK))),
            0,
            "nonnegative",
        ),
    ),
)

declare(
    Claim(
        id="rule.threshold",
        sentence="Every single-token rule rejects exactly the ranks beyond top_m and the weights "
        "below tau S = min(cap S, scale + offset S, entropy_scale exp(log S - H)); the "
        "entropy rule also those at it.",
        domain="strict, additive, multiplicative, top-m, gates, entropy, absolute; any target; "
        "ties by rank",
        theory="0 and A1 (level sets)",
        relation="=",
        formula=as_formula(RELATIVE_THRESHOLD),
        derivation=THRESHOLD,
        mutants=(
            Mutant(
                "the offset not scaled by S",
                as_formula(
                    RELATIVE_THRESHOLD,
                    mutate(symbol("offset") * symbol("normaliser"), symbol("offset")),
                ),
            ),
            Mutant(
                "the maximum of the thresholds",
                as_formula(RELATIVE_THRESHOLD, mutate(sympy.Min, sympy.Max)),
            ),
        ),
    )
)
declare(
    Claim(
        id="bound.threshold",
        sentence="The raised threshold, as float64 evaluates it, is at least the exact one, for "
        "every error of normaliser and entropy within bounds.",
        domain="relative error of the normaliser and absolute error of log S - H at most 1/64",
        theory="F (enlarged rejected set)",
        relation=">=",
        formula=as_formula(THRESHOLD_UPPER),
        derivation=THRESHOLD_BOUND,
        mutants=(
            Mutant(
                "no slack for the normaliser",
                as_formula(THRESHOLD_UPPER, mutate(symbol("normaliser_error"), 0)),
            ),
            Mutant(
                "no slack for the entropy",
                as_formula(THRESHOLD_UPPER, mutate(symbol("entropy_error"), 0)),
            ),
            *(
                Mutant(f"2 u for the roundings of the {part}", as_formula(THRESHOLD_UPPER, change))
                for part, change in (
                    ("entropy's part", _with_room("entropy_error", 2)),
                    ("cap", _with_room("normaliser_error", 2)),
                    ("offset", _with_room("normaliser_error", 2, whole=0)),
                    ("scale", mutate(_is_scale_raised, lambda p: (1 + 2 * UNIT) * symbol("scale"))),
                )
            ),
        ),
    )
)
