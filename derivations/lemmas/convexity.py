"""Convexity of KL, once for all derivations: the tangent inequality, sufficiency of the KKT
conditions, the variational bound, merging of tokens, and mixtures. They hold for any number of
tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import diff, exp, log

from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare

__all__ = [
    "KKT",
    "MERGING",
    "MIXTURE",
    "TANGENT",
    "VARIATIONAL",
    "kkt_gap",
    "merged",
    "tangent",
    "variational",
]

X, W, X0, W0, R = sympy.symbols("x w x_0 w_0 r", positive=True)
Q, Q0, Y, V, SHARE = sympy.symbols("q q_0 y v k", positive=True)
F, MU, A, B = sympy.symbols("f mu a b", real=True)
SLACK, LAMBDA, MORE, T = sympy.symbols("g lambda r_0 t", nonnegative=True)


def tangent(numbers: Any, own: Any, other: Any, own_at: Any, other_at: Any) -> Any:
    """The tangent plane of x log(x/w) at (x_0, w_0), a lower bound on it: x (log(x_0/w_0) + 1) - w
    x_0/w_0."""
    return own * (numbers.log(own_at / other_at) + 1) - other * own_at / other_at


def _tangent_without_rise(numbers: Any, own: Any, other: Any, own_at: Any, other_at: Any) -> Any:
    return own * (numbers.log(own_at / other_at) + 1) - other * other_at / own_at


def kkt_gap(numbers: Any, multipliers: Sequence[Any], slacks: Sequence[Any]) -> Any:
    """sum lambda_k (b_k - a_k.y): by how much a feasible y lies above the KKT point, at least."""
    return sum((own * slack for own, slack in zip(multipliers, slacks, strict=True)), slacks[0] * 0)


def _double_gap(numbers: Any, multipliers: Sequence[Any], slacks: Sequence[Any]) -> Any:
    return kkt_gap(numbers, multipliers, slacks) * 2


def variational(
    numbers: Any, target_probs: Sequence[Any], draft_probs: Sequence[Any], scores: Sequence[Any]
) -> Any:
    """E_p f - log E_q exp f (nats), a lower bound on KL(p || q) for every f."""
    return sum(p * f for p, f in zip(target_probs, scores, strict=True)) - numbers.log(
        sum(q * numbers.exp(f) for q, f in zip(draft_probs, scores, strict=True))
    )


def _without_logarithm(numbers: Any, target_probs: Any, draft_probs: Any, scores: Any) -> Any:
    mean = sum(p * f for p, f in zip(target_probs, scores, strict=True))
    return mean - sum(q * f for q, f in zip(draft_probs, scores, strict=True))


def merged(numbers: Any, own: Any, other: Any, second: Any, second_other: Any) -> Any:
    """(x+y) log((x+y)/(w+v)): what two tokens x, y against w, v contribute to KL once they are
    one."""
    return (own + second) * numbers.log((own + second) / (other + second_other))


def _averaged(numbers: Any, own: Any, other: Any, second: Any, second_other: Any) -> Any:
    return (own + second) * numbers.log(own / other / 2 + second / second_other / 2)


def mixed(numbers: Any, low: Any, high: Any, share: Any) -> Any:
    """The chord between two certificates, above the certificate of the mixture of their targets."""
    return (1 - share) * low + share * high


def _smaller_end(numbers: Any, low: Any, high: Any, share: Any) -> Any:
    return low * share + (1 - share) * high


_COST = X * log(X / W)
_EXCESS = R - 1 - log(R)
TANGENT = Derivation(
    "KL is jointly convex: it lies above its tangents",
    (
        Step("r - 1 - log r has second derivative 1/r^2 > 0:", diff(_EXCESS, R, 2), R**-2),
        Step("its slope is 0 at r = 1,", diff(_EXCESS, R).subs(R, 1), 0),
        Step("its value is 0 there: log r <= r - 1 for all r > 0.", _EXCESS.subs(R, 1), 0),
        Step("The second derivative is positive.", R**-2, 0, "nonnegative"),
        Step(
            "-p log q has second derivative p/q^2 >= 0: KL is convex in the draft alone,",
            diff(-X * log(W), W, 2),
            X / W**2,
        ),
        Step(
            "x log(x/w) has second derivative 1/x in x: convex in the target alone;",
            diff(_COST, X, 2),
            1 / X,
        ),
        Step(
            "and both together: the Hessian's determinant is 0 and its diagonal positive.",
            diff(_COST, X, 2) * diff(_COST, W, 2) - diff(_COST, X, W) ** 2,
            0,
        ),
        Step(
            "The excess over the tangent at (x_0, w_0) is x (r - 1 - log r) with r = w x_0/(x "
            "w_0), hence >= 0.",
            _COST - tangent(sympy, X, W, X0, W0),
            X * (W * X0 / (X * W0) - 1 - log(W * X0 / (X * W0))),
        ),
        Step(
            "The tangent touches: at (x_0, w_0) it is x_0 log(x_0/w_0).",
            tangent(sympy, X0, W0, X0, W0),
            X0 * log(X0 / W0),
        ),
        Step(
            "Its slopes are those of x log(x/w) there: in x,",
            diff(_COST, X).subs({X: X0, W: W0}),
            diff(tangent(sympy, X, W, X0, W0), X),
        ),
        Step(
            "and in w.", diff(_COST, W).subs({X: X0, W: W0}), diff(tangent(sympy, X, W, X0, W0), W)
        ),
    ),
)
KKT = Derivation(
    "The KKT conditions suffice, for any number of tokens and linear constraints",
    (
        Step(
            "f is a sum of p log(p/q) (over drafts), x log(x/w) (over targets) or both; y* "
            "satisfies a_k.y <= b_k, keeps the sum, and has multipliers lambda_k >= 0 with "
            "lambda_k (a_k.y* - b_k) = 0 and grad f(y*) = mu 1 - sum_k lambda_k a_k.",
            how="definition",
        ),
        Step(
            "A token of target probability 0 costs x log(x/w) = 0, the limit as x falls to 0,",
            sympy.limit(X * log(X / W), X, 0),
            0,
        ),
        Step(
            "with slope -x/w = 0 in the draft: it lies on its tangent, and only q >= 0 holds it.",
            diff(_COST, W).subs(X, 0),
            0,
        ),
        Step(
            "f(y) - f(y*) >= grad f(y*).(y - y*), token by token.",
            how="cited",
            cites=("lemma.tangent",),
            instances=(
                Instance("lemma.tangent", (X, Q, X, Q0), X * log(X / Q0) - X / Q0 * (Q - Q0)),
            ),
        ),
        Step(
            "One coordinate of the right side, with one constraint a and the gradient put in:",
            (MU - LAMBDA * A) * (Q - Q0),
            MU * Q - MU * Q0 + LAMBDA * (A * Q0 - A * Q),
        ),
        Step(
            "a constraint more adds lambda (a y* - a y), and so on by induction in their number:",
            (F - LAMBDA * A) * (Q - Q0) - F * (Q - Q0),
            LAMBDA * (A * Q0 - A * Q),
        ),
        Step(
            "a coordinate more adds its own: by induction in the number of tokens the sum is mu "
            "(sum y - sum y*) + "
            "sum_k lambda_k (a_k.y* - a_k.y), for partial sums a, b of a_k.y* and a_k.y:",
            LAMBDA * (A - B) + LAMBDA * (V * Q0 - V * Q),
            LAMBDA * ((A + V * Q0) - (B + V * Q)),
        ),
        Step("the sum is kept: mu (1 - 1) = 0;", MU * ((Q + (1 - Q)) - (Q0 + (1 - Q0))), 0),
        Step(
            "slackness: lambda a.y* = lambda b, so each term is lambda (b - a.y), with a.y = b - "
            "g and g >= 0:",
            LAMBDA * (B - (B - SLACK)),
            LAMBDA * SLACK,
        ),
        Step(
            "a product of two numbers >= 0. So f(y) >= f(y*): y* is a minimum.",
            LAMBDA * SLACK,
            0,
            "nonnegative",
        ),
        Step(
            "No interior point is needed: that the conditions are necessary is used nowhere, "
            "since y* is written down.",
            how="remark",
        ),
    ),
)
_SCORED = Q * exp(F)
VARIATIONAL = Derivation(
    "Donsker and Varadhan's bound",
    (
        Step(
            "Take the tangent of x log(x/w) at the tilted law x_0/w_0 = exp(f)/Z, Z = E_q exp f: "
            "it is p (f - log Z + 1) - q exp(f)/Z.",
            tangent(sympy, X, Q, Q * exp(F) / R, Q),
            X * (F - log(R) + 1) - _SCORED / R,
        ),
        Step(
            "KL >= the sum of tangents.",
            how="cited",
            cites=("lemma.tangent",),
            instances=(
                Instance(
                    "lemma.tangent",
                    (X, Q, Q * exp(F) / R, Q),
                    X * (F - log(R) + 1) - Q * exp(F) / R,
                ),
            ),
        ),
        Step(
            "Over all tokens sum q exp(f)/Z = 1 cancels sum p = 1, one token x, f against the "
            "rest (1-x, a):",
            X * (F - log(R) + 1) + Y * (A - log(R) + 1) - (_SCORED + V * exp(A)) / R,
            (X * F + Y * A) - (X + Y) * log(R) + (X + Y) - (_SCORED + V * exp(A)) / R,
        ),
        Step("leaving E_p f - log Z.", (F - log(R) + 1 - X / R).subs(X, R), F - log(R)),
    ),
)
MERGING = Derivation(
    "Merging two tokens does not increase KL (log-sum inequality)",
    (
        Step(
            "Take both tangents at the merged ratio x_0/w_0 = (x+y)/(w+v): their sum is the "
            "merged term.",
            tangent(sympy, X, W, X + Y, W + V) + tangent(sympy, Y, V, X + Y, W + V),
            merged(sympy, X, W, Y, V),
        ),
        Step(
            "Each token's term lies above its tangent.",
            how="cited",
            cites=("lemma.tangent",),
            instances=(
                Instance(
                    "lemma.tangent",
                    (X, W, X + Y, W + V),
                    X * (log((X + Y) / (W + V)) + 1) - W * (X + Y) / (W + V),
                ),
            ),
        ),
        Step(
            "Terms are homogeneous, so merging (1-k)(x, w) with k (y, v) is joint convexity: the "
            "chord is",
            (1 - SHARE) * X * log((1 - SHARE) * X / ((1 - SHARE) * W))
            + SHARE * Y * log(SHARE * Y / (SHARE * V)),
            (1 - SHARE) * X * log(X / W) + SHARE * Y * log(Y / V),
        ),
        Step(
            "Equality where both tokens have one ratio: y = r x, v = r w.",
            X * log(X / W) + R * X * log(R * X / (R * W)),
            merged(sympy, X, W, R * X, R * W),
        ),
    ),
)
MIXTURE = Derivation(
    "The certificate of fixed competitors is convex in the target",
    (
        Step(
            "Let q, q' be the best drafts for p, p' and mix both pairs with share k. Constraints "
            "q_j - q_i >= 0 survive: with slacks g, r_0 and k = t/(1+t) the mixture's slack is",
            (SLACK + T * MORE) / (1 + T),
            0,
            "nonnegative",
        ),
        Step(
            "It is the slack of the mixed drafts.",
            ((X + SLACK) + T * (Y + MORE) - (X + T * Y)) / (1 + T),
            (SLACK + T * MORE) / (1 + T),
        ),
        Step(
            "KL at the mixture is at most the chord.",
            how="cited",
            cites=("lemma.merge",),
            instances=(
                Instance(
                    "lemma.merge",
                    ((1 - SHARE) * X, (1 - SHARE) * W, SHARE * Y, SHARE * V),
                    ((1 - SHARE) * X + SHARE * Y)
                    * log(((1 - SHARE) * X + SHARE * Y) / ((1 - SHARE) * W + SHARE * V)),
                ),
            ),
        ),
        Step(
            "The certificate is the least KL, hence at most that: with chord B, KL = B - g, C = "
            "KL - r_0, the chord less C is",
            B - (B - SLACK - MORE),
            SLACK + MORE,
        ),
        Step("not negative.", SLACK + MORE, 0, "nonnegative"),
    ),
)

declare(
    Claim(
        id="lemma.tangent",
        sentence="x log(x/w) >= x (log(x_0/w_0) + 1) - w x_0/w_0: KL lies above its tangents, in "
        "the draft, in the target and in both.",
        domain="x, w, x_0, w_0 > 0",
        theory="A (tools, tangents)",
        relation="<=",
        formula=tangent,
        derivation=TANGENT,
        mutants=(Mutant("the ratio upside down", _tangent_without_rise),),
        min_methods=3,
    )
)
declare(
    Claim(
        id="lemma.kkt",
        sentence="A point that satisfies the KKT conditions of least KL under linear constraints "
        "is a minimum: any feasible point costs at least the sum of multipliers times slacks more.",
        domain="any number of tokens and of linear constraints",
        theory="A (tools, KKT)",
        relation="<=",
        formula=kkt_gap,
        derivation=KKT,
        mutants=(Mutant("twice the gap", _double_gap),),
    )
)
declare(
    Claim(
        id="lemma.variational",
        sentence="KL(p || q) >= E_p f - log E_q exp f for every f.",
        domain="any two laws on one vocabulary, any real f",
        theory="A (tools, variational bound)",
        relation="<=",
        formula=variational,
        derivation=VARIATIONAL,
        mutants=(Mutant("E_q f for log E_q exp f", _without_logarithm),),
    )
)
declare(
    Claim(
        id="lemma.merge",
        sentence="Merging tokens does not increase KL (log-sum inequality), so KL is jointly "
        "convex.",
        domain="x, y, w, v > 0; any number of tokens, merged two at a time",
        theory="A (tools, log-sum)",
        relation="<=",
        formula=merged,
        derivation=MERGING,
        mutants=(Mutant("the ratios averaged without weights", _averaged),),
        min_methods=3,
    )
)
declare(
    Claim(
        id="lemma.mixture",
        sentence="The certificate of fixed competitors is convex in the target.",
        domain="any two targets on one vocabulary, any share in [0, 1]",
        theory="A (tools, mixtures)",
        relation=">=",
        formula=mixed,
        derivation=MIXTURE,
        mutants=(Mutant("the shares exchanged", _smaller_end),),
    )
)
