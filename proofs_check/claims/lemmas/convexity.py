"""Checks of the convexity lemmas: exact algebra, enclosures where a fixed number of variables says
all, and random laws of many sizes with random constraints."""

from __future__ import annotations

import random
from typing import Any

import mpmath
import sympy
from sympy import log

from derivations.formulas.single_token import single_certificate
from derivations.language.claim import Formula
from derivations.lemmas.convexity import KKT, MERGING, MIXTURE, TANGENT, VARIATIONAL
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.numbers import MP, divergence
from proofs_check.methods.slopes import Identity, Slope, enclose_statements
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

X, W, Y, V, X0, W0, SHARE = sympy.symbols("x w y v x_0 w_0 k", positive=True)
F1, F2 = sympy.symbols("f_1 f_2", real=True)


@check("lemma.tangent", method="steps")
def prove_tangent(formula: Formula, effort: Effort) -> Evidence:
    return prove_identities(
        TANGENT,
        [("tangent", formula(sympy, X, W, X0, W0), X * (log(X0) - log(W0) + 1) - W * X0 / W0)],
        random_rationals([X, W, X0, W0]),
    )


@check("lemma.tangent", method="enclosure")
def enclose_tangent(formula: Formula, effort: Effort) -> Evidence:
    """By homogeneity x = x_0 = 1: the excess is convex in w with a double zero where w = w_0. Boxes
    say 0 < w, w_0 <= 1; a common factor of w and w_0 changes nothing, which SymPy confirms."""
    excess = -log(W) - formula(sympy, 1, W, 1, W0)
    scaled = excess.subs({W: W * X, W0: W0 * X}, simultaneous=True)
    statements: list[Identity | Slope] = [
        Identity("the excess vanishes at w = w_0", excess.subs(W, W0), 0),
        Identity("so does its slope", sympy.diff(excess, W).subs(W, W0), 0),
        Identity("scaling w and w_0 changes nothing", scaled, excess),
        Slope("it is convex in w", sympy.diff(excess, W), W, (), {}, rest=W**-2),
    ]
    return enclose_statements(statements, "w and w_0 of any ratio")


@tallied(
    "lemma.tangent", method="search", relation="<=", more=20, told="random pairs over six decades"
)
def sample_tangent(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for _ in range(200):
        x, w, x0, w0 = (MP.mpf(10) ** (-6 * MP.mpf(rng.random())) for _ in range(4))
        truth = x * mpmath.log(x / w)
        yield (
            f"x={mpmath.nstr(x, 6)}, w={mpmath.nstr(w, 6)}",
            formula(MP, x, w, x0, w0),
            truth,
            truth,
        )


@check("lemma.kkt", method="steps")
def prove_kkt(formula: Formula, effort: Effort) -> Evidence:
    multipliers, slacks = (
        sympy.symbols("l1:4", nonnegative=True),
        sympy.symbols("g1:4", nonnegative=True),
    )
    stated = sum(a * b for a, b in zip(multipliers, slacks, strict=True))
    samples = random_rationals([*multipliers, *slacks])
    return prove_identities(
        KKT, [("three constraints", formula(sympy, multipliers, slacks), stated)], samples
    )


@tallied(
    "lemma.kkt", method="search", relation="<=", more=20, told="random constraints and multipliers"
)
def sample_kkt(formula: Formula, effort: Effort) -> Cases:
    """A law y*, constraints through it and multipliers are drawn; p is built so that y* is the KKT
    point. Near it the gap is met to first order, which refutes any larger one."""
    rng = random.Random(effort.seed)
    for size in (2, 3, 5, 9, 40):
        for _ in range(6):
            best, rows, multipliers, target = _kkt_problem(rng, size)
            other = _law(rng, size)
            for step in (MP.mpf(1), MP.mpf("1e-4")):
                draft = [q + step * (o - q) for q, o in zip(best, other, strict=True)]
                # orient each constraint so that this draft is feasible: a.y <= a.y*
                slacks = [_dot(row, best) - _dot(row, draft) for row in rows]
                signs = [1 if slack >= 0 else -1 for slack in slacks]
                own = _with_signs(best, rows, multipliers, signs, target)
                if min(own) <= 0:
                    continue
                truth = divergence(own, draft) - divergence(own, best)
                value = formula(
                    MP, multipliers, [s * g for s, g in zip(signs, slacks, strict=True)]
                )
                yield f"{size} tokens, step {mpmath.nstr(step, 3)}", value, truth, truth


def _kkt_problem(
    rng: random.Random, size: int
) -> tuple[list[Any], list[list[Any]], list[Any], Any]:
    best = _law(rng, size)
    rows = [[MP.mpf(rng.randint(-1, 1)) for _ in range(size)] for _ in range(3)]
    return best, rows, [MP.mpf(rng.random()) / 8 for _ in rows], MP.mpf(1)


def _with_signs(
    best: list[Any], rows: list[list[Any]], multipliers: list[Any], signs: list[int], total: Any
) -> list[Any]:
    """p with p_i/y*_i = mu + sum_k lambda_k a_ki, mu such that p sums to ``total``."""
    pull = [
        sum(s * lam * row[i] for s, lam, row in zip(signs, multipliers, rows, strict=True))
        for i in range(len(best))
    ]
    level = total - _dot(pull, best)
    return [q * (level + own) for q, own in zip(best, pull, strict=True)]


@check("lemma.variational", method="steps")
def prove_variational(formula: Formula, effort: Effort) -> Evidence:
    found = formula(sympy, [X, 1 - X], [W, 1 - W], [F1, F2])
    stated = X * F1 + (1 - X) * F2 - log(W * sympy.exp(F1) + (1 - W) * sympy.exp(F2))
    samples = [point for point in random_rationals([X, W, F1, F2]) if point[X] < 1 and point[W] < 1]
    return prove_identities(VARIATIONAL, [("two tokens", found, stated)], samples)


@tallied(
    "lemma.variational", method="search", relation="<=", more=20, told="random laws and scores"
)
def sample_variational(formula: Formula, effort: Effort) -> Cases:
    """Random scores stay below KL; f = log(p/q) meets it."""
    rng = random.Random(effort.seed)
    for size in (2, 3, 7, 64):
        for _ in range(10):
            own, other = _law(rng, size), _law(rng, size)
            truth = divergence(own, other)
            scores = [MP.mpf(rng.uniform(-9, 9)) for _ in own]
            yield f"{size} tokens", formula(MP, own, other, scores), truth, truth
            exact = [mpmath.log(p / q) for p, q in zip(own, other, strict=True)]
            yield f"{size} tokens, f = log(p/q)", formula(MP, own, other, exact), truth, truth
            yield (
                f"{size} tokens, attained",
                truth,
                formula(MP, own, other, exact),
                formula(MP, own, other, exact),
            )


@check("lemma.merge", method="steps")
def prove_merge(formula: Formula, effort: Effort) -> Evidence:
    stated = (X + Y) * (log(X + Y) - log(W + V))
    return prove_identities(
        MERGING, [("merged", formula(sympy, X, W, Y, V), stated)], random_rationals([X, W, Y, V])
    )


@check("lemma.merge", method="enclosure")
def enclose_merge_of_two(formula: Formula, effort: Effort) -> Evidence:
    """By homogeneity x + y = w + v = 1, where the loss is convex in w with a double zero at w =
    x."""
    loss = (
        X * (log(X) - log(W))
        + (1 - X) * (log(1 - X) - log(1 - W))
        - formula(sympy, X, W, 1 - X, 1 - W)
    )
    scaled = formula(sympy, X * X0, W * W0, (1 - X) * X0, (1 - W) * W0)
    statements: list[Identity | Slope] = [
        Identity("the loss vanishes at w = x", loss.subs(W, X), 0),
        Identity("so does its slope", sympy.diff(loss, W).subs(W, X), 0),
        Identity(
            "the merged term's scaling",
            scaled,
            X0 * log(X0 / W0) + X0 * formula(sympy, X, W, 1 - X, 1 - W),
        ),
        Slope(
            "the loss is convex in w",
            sympy.diff(loss, W),
            W,
            (),
            {},
            rest=X / W**2 + (1 - X) / (1 - W) ** 2,
        ),
    ]
    return enclose_statements(statements, "x and w from 0 to 1")


@tallied(
    "lemma.merge",
    method="search",
    relation="<=",
    more=20,
    told="random quadruples over six decades",
)
def sample_merge(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for _ in range(200):
        x, w, y, v = (MP.mpf(10) ** (-6 * MP.mpf(rng.random())) for _ in range(4))
        truth = x * mpmath.log(x / w) + y * mpmath.log(y / v)
        yield (
            f"x={mpmath.nstr(x, 6)}, y={mpmath.nstr(y, 6)}",
            formula(MP, x, w, y, v),
            truth,
            truth,
        )


@check("lemma.mixture", method="steps")
def prove_mixture(formula: Formula, effort: Effort) -> Evidence:
    chord = formula(sympy, X, Y, SHARE)
    return prove_identities(
        MIXTURE, [("chord", chord, X + SHARE * (Y - X))], random_rationals([X, Y, SHARE])
    )


@tallied(
    "lemma.mixture",
    method="search",
    relation=">=",
    more=20,
    told="random pairs of targets, one competitor",
)
def sample_mixture(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for size in (2, 3, 5, 20):
        for _ in range(20):
            low, high, share = _law(rng, size), _law(rng, size), MP.mpf(rng.random())
            both = [(1 - share) * a + share * b for a, b in zip(low, high, strict=True)]
            ends = (single_certificate(MP, low, size - 1), single_certificate(MP, high, size - 1))
            truth = single_certificate(MP, both, size - 1)
            yield (
                f"{size} tokens, share {mpmath.nstr(share, 4)}",
                formula(MP, *ends, share),
                truth,
                truth,
            )


def _law(rng: random.Random, size: int) -> list[Any]:
    weights = [MP.mpf(rng.random()) + MP.mpf("0.01") for _ in range(size)]
    return [weight / mpmath.fsum(weights) for weight in weights]


def _dot(row: list[Any], law: list[Any]) -> Any:
    return mpmath.fsum(a * q for a, q in zip(row, law, strict=True))
