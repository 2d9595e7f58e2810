"""Checks of the running average and of the swap: exact rationals against the definition, and signs
for all values."""

from __future__ import annotations

import random
from fractions import Fraction

import mpmath
import sympy
from sympy import log

from derivations.formulas.levels import EXCHANGE, LEVEL
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.numbers import MP
from proofs_check.methods.slopes import Identity, Slope, enclose_statements
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

PA, PB, QA, QB = sympy.symbols("p_a p_b q_a q_b", positive=True)


@check("lemma.level", method="steps")
def prove_level(formula: Formula, effort: Effort) -> Evidence:
    own = [sympy.Rational(k, 20) for k in (9, 5, 3, 2, 1)]
    cases = [
        ("two join", formula(sympy, own[4], own[:4]), sympy.Rational(5, 20)),
        ("none", formula(sympy, own[0], own[1:]), own[0]),
    ]
    return prove_identities(LEVEL, cases, [{}])


@check("lemma.level", method="exact-cases")
def search_level(formula: Formula, effort: Effort) -> Evidence:
    """The level is compared with every subset's average: exactly one value is the average of what
    lies above it."""
    rng = random.Random(effort.seed)
    for number in range(200):
        anchor, *others = (Fraction(rng.randint(0, 30)) for _ in range(rng.randint(2, 9)))
        levels = set()
        for size in range(len(others) + 1):
            level = sum(sorted(others, reverse=True)[:size], anchor) / (size + 1)
            above = [x for x in others if x > level]
            if sum(above, anchor) / (len(above) + 1) == level:
                levels.add(level)
        found = formula(sympy, anchor, others)
        if levels != {found}:
            point = f"anchor {anchor}, others {', '.join(map(str, others))}"
            return Evidence(
                "exact-cases",
                Verdict.REFUTED,
                None,
                f"{found} against {sorted(levels)}",
                point,
                number + 1,
            )
    return Evidence(
        "exact-cases",
        Verdict.VERIFIED,
        None,
        "0 (exact)",
        "",
        200,
        detail="random lists, ties included",
    )


@tallied("lemma.level", method="search", more=20, told="random lists up to 200 numbers")
def balance_level(formula: Formula, effort: Effort) -> Cases:
    """At the level, c - a - sum (x - c)_+ vanishes."""
    rng = random.Random(effort.seed)
    for size in (1, 2, 5, 30, 200):
        for _ in range(10):
            anchor, others = (
                MP.mpf(rng.random()),
                [MP.mpf(rng.random()) ** 3 for _ in range(size)],
            )
            level = formula(MP, anchor, others)
            raised = mpmath.fsum(x - level for x in others if x > level)
            yield f"{size} numbers", level - raised, anchor, anchor


@check("lemma.exchange", method="steps")
def prove_exchange(formula: Formula, effort: Effort) -> Evidence:
    return prove_identities(
        EXCHANGE,
        [("loss", formula(sympy, PA, PB, QA, QB), PA * log(QB / QA) - PB * log(QB / QA))],
        random_rationals([PA, PB, QA, QB]),
    )


@check("lemma.exchange", method="enclosure")
def enclose_exchange(formula: Formula, effort: Effort) -> Evidence:
    """By homogeneity p_a = 1, p_b = x <= 1: nothing at q_b = q_a, and more as q_b grows."""
    loss = formula(sympy, 1, PB, QA, QB)
    statements: list[Identity | Slope] = [
        Identity("nothing is lost at q_a = q_b", loss.subs(QB, QA), 0),
        Identity("nothing is lost at p_a = p_b", loss.subs(PB, 1), 0),
        Slope("the loss grows with q_b", loss, QB, (), {}, rest=(1 - PB) / QB),
    ]
    return enclose_statements(statements, "p_b/p_a and q_b from 0 to 1, any q_a")


@tallied("lemma.exchange", method="search", more=20, told="random quadruples")
def sample_exchange(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for _ in range(100):
        pa, pb, qa, qb = (MP.mpf(rng.random()) + MP.mpf("1e-3") for _ in range(4))
        before = pa * mpmath.log(pa / qa) + pb * mpmath.log(pb / qb)
        after = pa * mpmath.log(pa / qb) + pb * mpmath.log(pb / qa)
        yield (
            f"p_a={mpmath.nstr(pa, 5)}",
            formula(MP, pa, pb, qa, qb),
            before - after,
            before - after,
        )
