"""Statements that look right and are false, each with the point that refutes it and the formula
that holds instead. They are kept so that nobody proves them again by a wrong argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Rational, log

from derivations.formulas.single_token import pooled_value, single_certificate, single_pool
from derivations.formulas.strict import pair_cost, phi
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.margins.tree_margins import flat_top, tree_margin_last
from derivations.margins.upper_bounds import relaxed_upper

__all__ = ["level_set_certificate", "pool_of", "two_token_formula"]


def pool_of(numbers: Any, target_probs: Sequence[Any], competitor: int, size: int) -> Any:
    """V(k): the value of the pool of the competitor and the k likeliest other tokens."""
    others = sorted(
        (i for i in range(len(target_probs)) if i != competitor), key=lambda i: -target_probs[i]
    )
    return pooled_value(numbers, [target_probs[i] for i in [competitor, *others[:size]]])


def _pool_at_most(numbers: Any, target_probs: Sequence[Any], competitor: int, size: int) -> Any:
    """V(k) for k up to the true pool's size, which is safe."""
    return pool_of(
        numbers, target_probs, competitor, min(size, len(single_pool(target_probs, competitor)) - 1)
    )


def two_token_formula(numbers: Any, target_probs: Sequence[Any]) -> Any:
    """(p1 + p2)(log 2 - h(p1/(p1+p2))), taken for the strict rule whatever the ties."""
    return pair_cost(numbers, target_probs[0], target_probs[1])


def level_set_certificate(numbers: Any, target_probs: Sequence[Any]) -> Any:
    """The strict certificate where tokens that tie with the argmax are accepted: of the first token
    below p_1."""
    below = [i for i, prob in enumerate(target_probs) if prob < target_probs[0]]
    return single_certificate(numbers, target_probs, below[0])


def _last_token(numbers: Any, target_probs: Sequence[Any]) -> Any:
    return single_certificate(numbers, target_probs, len(target_probs) - 1)


def _top_margin_upper(numbers: Any, target_probs: Sequence[Any], competitor: int) -> Any:
    return (target_probs[0] - target_probs[1]) * numbers.log(target_probs[0] * 0 + 2)


_A, _B = sympy.symbols("a b", positive=True)

declare(
    Claim(
        id="refuted.pool.too-many",
        sentence="The value of a pool that is too large still lies below the certificate.",
        domain="false at p = (.5, .2, .2, .1), j = 4: pools of 2, 3, 4 tokens give .14555, "
        ".15868, .16569; true: .14555",
        theory="A2 (pooling too many)",
        relation="<=",
        formula=pool_of,
        derivation=Derivation(
            "Too many tokens break the dual's premise",
            (
                Step(
                    "c' = mean of {.5, .2, .2, .1} is .25,",
                    Rational(5 + 2 + 2 + 1, 40),
                    Rational(1, 4),
                ),
                Step(
                    "so w = .2 < c' = .25 violates w_i >= c',",
                    sympy.Rational(1, 4) - sympy.Rational(1, 5),
                    0,
                    "nonnegative",
                ),
                Step("the premise of lemma A2: the bound says nothing there.", how="remark"),
                Step(
                    "The true pool {1, 4} has c = .3 >= .2.", Rational(5 + 1, 20), Rational(3, 10)
                ),
            ),
        ),
        mutants=(Mutant("twice the pool's value", lambda n, p, j, k: 2 * pool_of(n, p, j, k)),),
        expected="refuted",
        corrected=_pool_at_most,
        min_methods=3,
    )
)
declare(
    Claim(
        id="refuted.strict.level-set",
        sentence="(p1+p2)(log 2 - h(p1/(p1+p2))) is the strict certificate also where ties with "
        "the argmax are accepted.",
        domain="false at p = (.4, .4, .2): the formula says 0, the certificate of the first token "
        "below p1 is .043692",
        theory="0 (level sets) and A1 (strict)",
        relation="=",
        formula=two_token_formula,
        derivation=Derivation(
            "An accepted tie moves the competitor",
            (
                Step("At p1 = p2 the pair cost is 0.", pair_cost(sympy, _A, _A), 0),
                Step(
                    "With token 2 accepted, j = 3: the pool {1, 2, 3} of (.4, .4, .2) has c = 1/3.",
                    2 * Rational(2, 5) * log(Rational(6, 5)) + Rational(1, 5) * log(Rational(3, 5)),
                    single_certificate(sympy, [Rational(2, 5), Rational(2, 5), Rational(1, 5)], 2),
                ),
            ),
        ),
        mutants=(Mutant("the last token as the competitor", _last_token),),
        expected="refuted",
        corrected=level_set_certificate,
        min_methods=3,
    )
)
declare(
    Claim(
        id="refuted.tree.flat-top",
        sentence="The extremal target of a tree at d = p1 - p_{m+1} is p_1 = ... = p_m, so that "
        "the infimum is s phi(d/s), s = (2 - (m-1) d)/(m+1).",
        domain="false at m = 4, d = .2 (.0792 against .0502) and m = 8, d = .05 (.00691 against "
        ".00562)",
        theory="B (tree, CORRECTION)",
        relation="=",
        formula=flat_top,
        derivation=Derivation(
            "The middle tokens can be lowered",
            (
                Step(
                    "s phi(d/s) and T_m(d) share the leading term (m+1) d^2/4 only: s phi(d/s) >= "
                    "d^2/(2s).",
                    sympy.limit(phi(sympy, _A) / _A**2, _A, 0),
                    Rational(1, 2),
                ),
                Step(
                    "T_m's target (x w, x, ..., x, x/w) has the least certificate at the same d;",
                    how="cited",
                    cites=("margin.tree.p1-p(m+1)",),
                    instances=(
                        Instance(
                            "margin.tree.p1-p(m+1)",
                            (Rational(3, 5), 1),
                            Rational(3, 5) * log(2) - log(Rational(5, 4)),
                        ),
                    ),
                ),
                Step("it is smaller.", how="remark"),
            ),
        ),
        mutants=(
            Mutant("the leading term (m+1) d^2/4", lambda n, gap, width: (width + 1) * gap**2 / 4),
        ),
        expected="refuted",
        corrected=tree_margin_last,
    )
)
declare(
    Claim(
        id="refuted.upper.vanishing",
        sentence="Top-m certificates are at most (p1 - p2) log 2, like the strict one.",
        domain="false at p = (1/2, 1/2, 0), m = 2: p1 - p2 = 0 and the certificate is log(3/2)",
        theory="B (upper bounds, relaxed rules)",
        relation=">=",
        formula=_top_margin_upper,
        derivation=Derivation(
            "A tie at the top",
            (Step("Three tokens pool to 1/3.", (2 * Rational(1, 2) + 0) / 3, Rational(1, 3)),),
        ),
        mutants=(Mutant("log 2 doubled", lambda n, p, j: 2 * _top_margin_upper(n, p, j)),),
        expected="refuted",
        corrected=lambda numbers, target_probs, competitor: relaxed_upper(numbers, target_probs[0]),
        min_methods=3,
    )
)
