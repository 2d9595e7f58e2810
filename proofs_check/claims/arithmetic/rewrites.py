"""Checks of the evaluation forms: SymPy on the printed expressions, intervals for the signs of
their terms, and a search against the definition at high precision."""

from __future__ import annotations

from typing import Any

import mpmath
import sympy
from sympy import exp, log, symbols

from derivations.arithmetic.rewrites import (
    BREGMAN,
    ENTROPY_SUM,
    EXCESS,
    POOL_IN_EXCESS,
    STRICT_FORM,
)
from derivations.kernels.margin_kernels import SERIES_TERMS
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, tallied
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.steps import Identities, prove_identities, proved, random_rationals
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

W = symbols("w_1:4", positive=True)
P, Q = symbols("p q", positive=True)


@proved("eval.pool", POOL_IN_EXCESS, random_rationals(W))
def prove_pool_form(formula: Formula, effort: Effort) -> Identities:
    for size in (2, 3):
        pool = W[:size]
        mean = sum(pool) / size
        direct = sum(w * log(w / mean) for w in pool)
        yield f"pool of {size}", sum(formula(sympy, w, mean) for w in pool), direct


@tallied("eval.pool", method="search", more=20, told="sum over the pool, both ways")
def search_pool_form(formula: Formula, effort: Effort) -> Cases:
    for target in generate_targets(effort.seed, effort.per_family):
        pool = [to_mp(prob) for prob in target.target_probs]
        mean = mpmath.fsum(pool) / len(pool)
        direct = mpmath.fsum(w * mpmath.log(w / mean) for w in pool if w > 0)
        yield str(target), mpmath.fsum(formula(MP, w, mean) for w in pool), direct, direct


@check("eval.excess", method="steps")
def prove_excess_series(formula: Formula, effort: Effort) -> Evidence:
    """The Horner form is the partial sum of artanh r - r, an identity of rational functions."""
    u = symbols("u", positive=True)
    r = u / (2 + u)
    partial = sum(r ** (2 * k + 1) / (2 * k + 1) for k in range(1, SERIES_TERMS + 1))
    expected = (1 + u) * (2 * partial - r * u) + u**2
    return prove_identities(
        EXCESS, [("partial sum", formula(sympy, u), expected)], random_rationals([u])
    )


@check("eval.excess", method="search")
def search_excess_series(formula: Formula, effort: Effort) -> Evidence:
    """Relative distance from phi(u) over a grid of u in [-1/5, 1/5], down to 1e-20."""
    tally = Tally("search", confirm=mpmath.mpf(2) ** -54, refute=mpmath.mpf(2) ** -50)
    with working_digits(80):
        sizes = [mpmath.mpf(k) / 200 for k in range(1, 41)] + [
            mpmath.mpf(10) ** -k for k in range(3, 21)
        ]
        for size in sizes:
            for u in (size, -size):
                exact = (1 + u) * mpmath.log1p(u) - u
                tally.add(f"u={mpmath.nstr(u, 6)}", formula(MP, u) / exact, MP.mpf(1), MP.mpf(1))
    return tally.evidence("relative")


@check("eval.strict", method="steps")
def prove_strict_form(formula: Formula, effort: Effort) -> Evidence:
    direct = W[0] * log(2 * W[0] / (W[0] + W[1])) + W[1] * log(2 * W[1] / (W[0] + W[1]))
    samples = random_rationals(W[:2], descending=True)
    return prove_identities(STRICT_FORM, [("pair", formula(sympy, W[0], W[1]), direct)], samples)


@tallied(
    "eval.strict",
    method="search",
    more=20,
    told="pair, both ways; ties and a vanishing runner-up included",
)
def search_strict_form(formula: Formula, effort: Effort) -> Cases:
    for target in generate_targets(effort.seed, effort.per_family):
        top, other = (to_mp(prob) for prob in target.target_probs[:2])
        total = top + other
        direct = mpmath.fsum(x * mpmath.log(2 * x / total) for x in (top, other) if x > 0)
        yield str(target), MP.mpf(formula(MP, top, other)), direct, direct


@check("eval.bregman", method="steps")
def prove_bregman(formula: Formula, effort: Effort) -> Evidence:
    term = formula(sympy, P, log(P) - log(Q))
    return prove_identities(
        BREGMAN, [("one token", term, P * log(P / Q) - P + Q)], random_rationals([P, Q])
    )


@tallied("eval.bregman", method="search", more=20, told="KL, both ways")
def search_bregman(formula: Formula, effort: Effort) -> Cases:
    targets = [
        t for t in generate_targets(effort.seed, effort.per_family) if min(t.target_probs) > 0
    ]
    for target in targets:
        for other in targets:
            if other == target or len(other.target_probs) != len(target.target_probs):
                continue
            own = [to_mp(prob) for prob in target.target_probs]
            draft = [to_mp(prob) for prob in reversed(other.target_probs)]
            ratios = [mpmath.log(p / q) for p, q in zip(own, draft, strict=True)]
            direct = mpmath.fsum(p * d for p, d in zip(own, ratios, strict=True))
            value = mpmath.fsum(formula(MP, p, d) for p, d in zip(own, ratios, strict=True))
            yield f"{target} against {other}", value, direct, direct


@check("eval.entropy", method="steps")
def prove_entropy_form(formula: Formula, effort: Effort) -> Evidence:
    gaps = [sympy.S.Zero, *symbols("g_2 g_3", positive=True)]
    total = sum(exp(-gap) for gap in gaps)
    mean_gap = sum(exp(-gap) / total * gap for gap in gaps)
    direct = -sum(exp(-gap) / total * (-gap - log(total)) for gap in gaps)
    samples: list[Any] = random_rationals(gaps[1:])
    return prove_identities(
        ENTROPY_SUM, [("three tokens", formula(sympy, log(total), mean_gap), direct)], samples
    )


@tallied("eval.entropy", method="search", more=20, told="entropy, both ways")
def search_entropy_form(formula: Formula, effort: Effort) -> Cases:
    for target in generate_targets(effort.seed, effort.per_family):
        probs = [to_mp(prob) for prob in target.target_probs if prob > 0]
        gaps = [mpmath.log(probs[0] / prob) for prob in probs]
        normaliser = mpmath.fsum(mpmath.exp(-gap) for gap in gaps)
        mean_gap = mpmath.fsum(p * gap for p, gap in zip(probs, gaps, strict=True))
        direct = -mpmath.fsum(p * mpmath.log(p) for p in probs)
        yield str(target), formula(MP, mpmath.log(normaliser), mean_gap), direct, direct
