"""Margin-only bounds for greedy trees of width m, in p1 - p2 and in p1 - p_{m+1}."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import cosh, exp, log

from derivations.formulas.strict import xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.margins.margins import mass_and_gap

__all__ = [
    "TREE_LAST",
    "TREE_TOP_TWO",
    "extremal_target",
    "flat_top",
    "tree_margin_last",
    "tree_margin_top_two",
]

G, D, M, X = sympy.symbols("g d m x", positive=True)
L, W = sympy.symbols("l w", positive=True)


def tree_margin_top_two(numbers: Any, gap: Any, width: int) -> Any:
    """[(1+mg) log(1+mg) + m (1-g) log(1-g)]/(m+1), g = p1 - p2; attained by p = (1+mg, 1-g, ...,
    1-g)/(m+1)."""
    return (xlogx(numbers, 1 + width * gap) + width * xlogx(numbers, 1 - gap)) / (width + 1)


def extremal_target(numbers: Any, gap: Any, width: int) -> tuple[Any, Any, Any]:
    """(x w, x, x / w): the top, each of the m - 1 middle tokens, and token m+1 of the target that
    attains T_m(d)."""
    root = numbers.sqrt(gap**2 * (width - 1) ** 2 + 4 * (1 - gap**2))
    ratio = (gap * (width - 1) + root) / (2 * (1 - gap))
    middle = 1 / (width - 1 + ratio + 1 / ratio)
    return middle * ratio, middle, middle / ratio


def tree_margin_last(numbers: Any, gap: Any, width: int) -> Any:
    """T_m(d) = d log w - log((m-1+w+1/w)/(m+1)), d = p1 - p_{m+1}; log(m+1) at d = 1."""
    if gap == 1:
        return numbers.log(gap * 0 + width + 1)
    root = numbers.sqrt(gap**2 * (width - 1) ** 2 + 4 * (1 - gap**2))
    ratio = (gap * (width - 1) + root) / (2 * (1 - gap))
    return gap * numbers.log(ratio) - numbers.log((width - 1 + ratio + 1 / ratio) / (width + 1))


def flat_top(numbers: Any, gap: Any, width: int) -> Any:
    """s phi(d/s), s = (2 - (m-1) d)/(m+1): the certificate of p_1 = ... = p_m, p_{m+1} = p_1 - d;
    not extremal."""
    return mass_and_gap(numbers, (2 - (width - 1) * gap) / (width + 1), gap)


def _leading_term(numbers: Any, gap: Any, width: int) -> Any:
    return (width + 1) * gap**2 / 4


def _width_lost(numbers: Any, gap: Any, width: int) -> Any:
    return (xlogx(numbers, 1 + width * gap) + xlogx(numbers, 1 - gap)) / (width + 1)


_TILT = (1 + M * G) / (1 - G)
TREE_TOP_TWO = Derivation(
    "Cramer's transform of a coin that shows 1/(m+1)",
    (
        Step(
            "Rejection makes q_1 the smallest of m + 1 = n entries, so 1 = n q_1 + r and q_1 <= "
            "1/n: 1/n - q_1 is",
            (at.n * at.x + at.r) / at.n - at.x,
            0,
            "nonnegative",
        ),
        Step(
            "f = l at token 1: E_q exp f = 1 + q_1 (exp(l) - 1),",
            at.x * at.exp(at.l) + (1 - at.x),
            1 + at.x * (at.exp(at.l) - 1),
        ),
        Step(
            "so KL >= l p_1 - log(1 + q_1 (exp(l) - 1)),",
            how="cited",
            cites=("lemma.variational",),
            instances=(
                Instance(
                    "lemma.variational",
                    ([at.x, 1 - at.x], [at.q, 1 - at.q], [at.l, 0]),
                    at.l * at.x - at.log(1 + at.q * (at.exp(at.l) - 1)),
                ),
            ),
        ),
        Step(
            "and q_1 <= 1/(m+1) = q_1 + r, exp(l) = 1 + t, only raises the bracket: KL >= l p_1 - "
            "log(1 + (exp(l) - 1)/(m+1)).",
            (1 + (at.x + at.r) * at.t) - (1 + at.x * at.t),
            0,
            "nonnegative",
        ),
        Step(
            "The margin forces p_1 >= (1 + m g)/(m+1): p_1 + m (p_1 - g) >= 1.",
            (1 + M * G) / (M + 1) + M * ((1 + M * G) / (M + 1) - G),
            1,
        ),
        Step(
            "The supremum over l at that p_1 is stationary at exp(l) = (1 + m g)/(1 - g):",
            sympy.simplify(((1 + M * G) / (M + 1) - exp(L) / (M + exp(L))).subs(exp(L), _TILT)),
            0,
        ),
        Step("There (m + exp(l))/(m+1) = 1/(1-g),", (M + _TILT) / (M + 1), 1 / (1 - G)),
        Step(
            "and l p_1 + log(1-g) is [(1+mg) log(1+mg) + m (1-g) log(1-g)]/(m+1).",
            (1 + M * G) / (M + 1) * (log(1 + M * G) - log(1 - G)) + log(1 - G),
            tree_margin_top_two(sympy, G, M),
        ),
        Step(
            "p = (1+mg, 1-g, ..., 1-g)/(m+1) has that value as its certificate: everything pools "
            "to 1/(m+1).",
            (1 + M * G) / (M + 1) * log(1 + M * G) + M * (1 - G) / (M + 1) * log(1 - G),
            tree_margin_top_two(sympy, G, M),
        ),
        Step(
            "It increases in g: the derivative is m/(m+1) log((1+mg)/(1-g)).",
            sympy.diff(tree_margin_top_two(sympy, G, M), G),
            M / (M + 1) * (log(1 + M * G) - log(1 - G)),
        ),
    ),
)
_W = (D * (M - 1) + sympy.sqrt(D**2 * (M - 1) ** 2 + 4 * (1 - D**2))) / (2 * (1 - D))
_D_OF_W = (W - 1 / W) / (M - 1 + W + 1 / W)
TREE_LAST = Derivation(
    "The middle tokens sit at the geometric mean",
    (
        Step(
            "Take f = l at token 1 and -l at token m+1: E_q exp f = 1 + q_1 (exp(l) - 1) - "
            "q_{m+1} (1 - exp(-l)),",
            at.x * at.exp(at.l) + at.y * at.exp(-at.l) + (1 - at.x - at.y),
            1 + at.x * (at.exp(at.l) - 1) - at.y * (1 - at.exp(-at.l)),
        ),
        Step(
            "so KL >= l d minus its logarithm.",
            how="cited",
            cites=("lemma.variational",),
            instances=(
                Instance(
                    "lemma.variational",
                    (
                        [at.x + at.d, at.x, 1 - 2 * at.x - at.d],
                        [at.p, at.q, 1 - at.p - at.q],
                        [at.l, -at.l, 0],
                    ),
                    at.l * at.d
                    - at.log(1 + at.p * (at.exp(at.l) - 1) + at.q * (at.exp(-at.l) - 1)),
                ),
            ),
        ),
        Step(
            "q_1 <= q_{m+1}: the inner change is at most q_1 (exp(l) + exp(-l) - 2) = q_1 (2 cosh "
            "l - 2),",
            exp(L) + exp(-L) - 2,
            (2 * cosh(L) - 2).rewrite(exp),
        ),
        Step(
            "and q_1 <= 1/(m+1). So KL >= l d - log((m-1+2 cosh l)/(m+1)) for every l.",
            1 + (2 * cosh(L) - 2) / (M + 1),
            (M - 1 + 2 * cosh(L)) / (M + 1),
        ),
        Step(
            "Stationary in l, with w = exp(l): d (m-1+w+1/w) = w - 1/w, that is (1-d) w^2 - d "
            "(m-1) w - (1+d) = 0, which w(d) solves.",
            sympy.expand((1 - D) * _W**2 - D * (M - 1) * _W - (1 + D)),
            0,
        ),
        Step(
            "p = (x w, x, ..., x, x/w) with x = 1/(m-1+w+1/w) has p_1 - p_{m+1} = x (w - 1/w) = d "
            "at that w,",
            (W - 1 / W) / (M - 1 + W + 1 / W),
            (W**2 - 1) / (W**2 + (M - 1) * W + 1),
        ),
        Step(
            "and every token pools to c = 1/(m+1), since the middle tokens x lie below it: (m-1) "
            "+ w + 1/w >= m + 1. The value is log(m+1) - H(p).",
            (W + 1 / W - 2) * W,
            (W - 1) ** 2,
        ),
        Step(
            "A supremum of functions linear in d is convex; along w the slope is dT_m/dd = log w "
            ">= 0: T_m increases.",
            sympy.diff(_D_OF_W * log(W) - log((M - 1 + W + 1 / W) / (M + 1)), W),
            log(W) * sympy.diff(_D_OF_W, W),
        ),
    ),
)

declare(
    Claim(
        id="margin.tree.p1-p2",
        sentence="The least certificate of a tree of width m at margin g = p1 - p2, exactly or at "
        "least, is [(1+mg) log(1+mg) + m (1-g) log(1-g)]/(m+1).",
        domain="0 <= g <= 1, m >= 1, any vocabulary of more than m tokens",
        theory="B (tree, g)",
        relation="=",
        formula=tree_margin_top_two,
        derivation=TREE_TOP_TWO,
        mutants=(
            Mutant("the factor m lost", _width_lost),
            Mutant("the top-m-like configuration", flat_top),
        ),
    )
)
declare(
    Claim(
        id="margin.tree.p1-p(m+1)",
        sentence="The least certificate of a tree of width m at d = p1 - p_{m+1}, exactly or at "
        "least, is T_m(d) = "
        "d log w - log((m-1+w+1/w)/(m+1)), w = [d(m-1) + sqrt(d^2 (m-1)^2 + 4(1-d^2))]/(2(1-d)).",
        domain="0 <= d <= 1, m >= 1, any vocabulary of more than m tokens",
        theory="B (tree, g_m)",
        relation="=",
        formula=tree_margin_last,
        derivation=TREE_LAST,
        mutants=(
            Mutant("p1 - p2 for p1 - p_{m+1}", tree_margin_top_two),
            Mutant("p_1 = ... = p_m, p_{m+1} = p_1 - d", flat_top),
        ),
    )
)
declare(
    Claim(
        id="refuted.tree.folklore",
        sentence="(m+1) g^2/4 is a lower bound of the tree certificate at every margin g = p1 - "
        "p2.",
        domain="0 <= g <= 1, m >= 1 (false from m = 7: m = 8, g = .9 claims 1.8225 where 1.7124 "
        "suffices)",
        theory="B (tree, folklore)",
        relation="<=",
        formula=_leading_term,
        derivation=Derivation(
            "The leading term is no global bound",
            (
                Step(
                    "(m+1) g^2/4 at m = 8, g = 9/10 exceeds the least certificate there.",
                    9 * sympy.Rational(81, 100) / 4,
                    (
                        sympy.Rational(41, 5) * sympy.log(sympy.Rational(41, 5))
                        + sympy.Rational(4, 5) * sympy.log(sympy.Rational(1, 10))
                    )
                    / 9,
                    how="nonnegative",
                ),
                Step(
                    "The target (1+mg, 1-g, ..., 1-g)/(m+1) attains the true bound:",
                    how="cited",
                    cites=("margin.tree.p1-p2",),
                    instances=(
                        Instance(
                            "margin.tree.p1-p2",
                            (at.x, 8),
                            (
                                (1 + 8 * at.x) * at.log(1 + 8 * at.x)
                                + 8 * (1 - at.x) * at.log(1 - at.x)
                            )
                            / 9,
                        ),
                    ),
                ),
                Step("it is the smaller certificate, and the claim fails at it.", how="remark"),
            ),
        ),
        mutants=(
            Mutant("m g^2/4 + g^2/2", lambda numbers, gap, width: width * gap**2 / 4 + gap**2 / 2),
        ),
        expected="refuted",
        corrected=tree_margin_top_two,
    )
)
