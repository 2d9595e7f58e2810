"""The three tools behind the margin-only bounds: phi(x) = ((1+x) log(1+x) + (1-x) log(1-x))/2, the
monotony of the pair cost, and transport of all mass to a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import exp, log

from derivations.formulas.strict import pair_cost, phi
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare

__all__ = ["PAIR", "PHI", "TRANSPORT", "phi_bounds", "transported"]

X, A, B, R, T = sympy.symbols("x a b r t", positive=True)
U, V, Y = sympy.symbols("u v y", positive=True)
L = sympy.Symbol("l", real=True)


def phi_bounds(numbers: Any, gap: Any) -> tuple[Any, Any]:
    """x^2/2 and x^2 log 2, below and above phi(x)."""
    return gap * gap / 2, gap * gap * numbers.log(gap * 0 + 2)


def _steep_below(numbers: Any, gap: Any) -> tuple[Any, Any]:
    return gap * gap * 3 / 5, phi_bounds(numbers, gap)[1]


def _flat_above(numbers: Any, gap: Any) -> tuple[Any, Any]:
    return gap * gap / 2, gap * gap * numbers.log((gap * 0 + 9) / 5)


def transported(
    numbers: Any, target_probs: Sequence[Any], draft_probs: Sequence[Any], kept: int
) -> tuple[list[Any], list[Any]]:
    """Both laws after the mass beyond the first ``kept`` tokens is sent to the uniform law on those
    tokens."""

    def send(probs: Sequence[Any]) -> list[Any]:
        rest = sum(probs[kept:], probs[0] * 0)
        return [prob + rest / kept for prob in probs[:kept]]

    return send(target_probs), send(draft_probs)


def _renormalised(
    numbers: Any, target_probs: Sequence[Any], draft_probs: Sequence[Any], kept: int
) -> tuple[list[Any], list[Any]]:
    own, other = sum(target_probs[:kept]), sum(draft_probs[:kept])
    return [prob / own for prob in target_probs[:kept]], [
        prob / other for prob in draft_probs[:kept]
    ]


_PHI = phi(sympy, X)
_PAIR = pair_cost(sympy, A, B)
PHI = Derivation(
    "phi lies between two parabolas",
    (
        Step(
            "phi'(x) = artanh x, which vanishes at 0;",
            sympy.diff(_PHI, X),
            (log(1 + X) - log(1 - X)) / 2,
        ),
        Step(
            "phi''(x) = 1/(1 - x^2) > 0: phi is convex and increasing.",
            sympy.diff(_PHI, X, 2),
            1 / (1 - X**2),
        ),
        Step(
            "phi'' - 1 = x^2/(1 - x^2) >= 0: integrated twice, phi >= x^2/2.",
            1 / (1 - X**2) - 1,
            X**2 / (1 - X**2),
        ),
        Step(
            "phi/x^2 increases, because h = x phi' - 2 phi vanishes at 0 with h' = x phi'' - "
            "phi', and h'' = 2 x^2/(1 - x^2)^2 >= 0;",
            sympy.diff(X * sympy.diff(_PHI, X) - 2 * _PHI, X, 2),
            2 * X**2 / (1 - X**2) ** 2,
        ),
        Step("so phi/x^2 is at most its value at 1, log 2.", phi(sympy, sympy.S.One), log(2)),
    ),
)
PAIR = Derivation(
    "The pair cost grows with the larger and falls with the smaller probability",
    (
        Step(
            "T2 is homogeneous: T2(a, b) = a T2(1, r), r = b/a.",
            pair_cost(sympy, A, A * R),
            A * pair_cost(sympy, 1, R),
        ),
        Step(
            "d/da T2 = log(2a/(a+b)) >= 0 for a >= b,", sympy.diff(_PAIR, A), log(2 * A / (A + B))
        ),
        Step("since with a = b + t: 2a - (a+b) = t.", 2 * (B + T) - (2 * B + T), T),
        Step(
            "d/db T2 = log(2b/(a+b)) <= 0 for b <= a.", sympy.diff(_PAIR, B), log(2 * B / (A + B))
        ),
        Step(
            "At a fixed gap d = a - b, s phi(d/s) falls in s, as phi(x) - x phi'(x) = log(1 - "
            "x^2)/2 <= 0 at x = d/s.",
            phi(sympy, X) - X * sympy.diff(_PHI, X),
            (log(1 + X) + log(1 - X)) / 2,
        ),
    ),
)
_LOG_SUM = X * log(X / U) + Y * log(Y / V) - (X + Y) * log((X + Y) / (U + V))
TRANSPORT = Derivation(
    "A Markov kernel does not increase KL",
    (
        Step(
            "Send each tail token to i in I with probability 1/|I|. Token i's new mass is p_i + "
            "p_T/|I|: the difference of two kept tokens is unchanged.",
            (A + T / R) - (B + T / R),
            A - B,
        ),
        Step(
            "Before merging, split each tail token t into |I| copies of p_t/|I| against q_t/|I|: "
            "KL is unchanged, since |I| (p/|I|) log((p/|I|)/(q/|I|)) = p log(p/q).",
            R * (X / R) * log((X / R) / (U / R)),
            X * log(X / U),
        ),
        Step(
            "Then merge two tokens (x, y against u, v), again and again. With l = log(x (u+v)/(u "
            "(x+y))), the first token's loss is x l, and x exp(-l) = u (x+y)/(u+v).",
            X * log(X / U) - X * log((X + Y) / (U + V)),
            X * log(X * (U + V) / (U * (X + Y))),
        ),
        Step(
            "The merge's loss is a sum of x (l + exp(-l) - 1) over both tokens, because the added "
            "terms cancel:",
            U * (X + Y) / (U + V) - X + V * (X + Y) / (U + V) - Y,
            0,
        ),
        Step(
            "and l + exp(-l) - 1 >= 0: it vanishes at 0 with its derivative, and is convex.",
            sympy.diff(L + exp(-L) - 1, L, 2),
            exp(-L),
        ),
    ),
)

declare(
    Claim(
        id="lemma.phi",
        sentence="x^2/2 <= phi(x) <= x^2 log 2, and phi is increasing and convex.",
        domain="0 <= x <= 1",
        theory="0 (phi) and B (T2)",
        relation="<=",
        formula=phi_bounds,
        derivation=PHI,
        mutants=(Mutant("3 x^2/5 below", _steep_below), Mutant("x^2 log(9/5) above", _flat_above)),
        min_methods=3,
    )
)
declare(
    Claim(
        id="lemma.pair",
        sentence="T2(a, b) increases in a, decreases in b, is homogeneous, and decreases in b at "
        "a fixed gap a - b.",
        domain="0 <= b <= a",
        theory="B (T2)",
        relation="monotone",
        formula=pair_cost,
        derivation=PAIR,
        mutants=(
            Mutant(
                "the average's factor 2 is lost",
                lambda n, a, b: pair_cost(n, a, b) - (a + b) * n.log(a * 0 + 2),
            ),
            Mutant("squared gap", lambda n, a, b: (a - b) ** 2),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="lemma.transport",
        sentence="Sending all tokens outside a finite set I to the uniform law on I does not "
        "increase KL(p||q) and keeps p_a - p_b and q_a - q_b for a, b in I.",
        domain="any two laws on any vocabulary, I not empty",
        theory="B (T1)",
        relation="<=",
        formula=transported,
        derivation=TRANSPORT,
        mutants=(Mutant("the tail dropped and the rest renormalised", _renormalised),),
        min_methods=3,
    )
)
