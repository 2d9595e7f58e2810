"""Checks of the tools behind the margin-only bounds: exact algebra, enclosures over the whole
domain, and laws drawn at random."""

from __future__ import annotations

import random
from fractions import Fraction as F
from typing import Any

import mpmath
import sympy
from sympy import log

from derivations.formulas.strict import phi
from derivations.language.claim import Formula, vanishes
from derivations.lemmas.lemmas import PAIR, PHI, TRANSPORT
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed, derivative, values
from proofs_check.methods.numbers import MP, divergence, to_mp
from proofs_check.methods.slopes import Identity, Slope, enclose_statements
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.methods.targets import generate_targets, large_target
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

X, A, B = sympy.symbols("x a b", positive=True)


@check("lemma.phi", method="steps")
def prove_phi(formula: Formula, effort: Effort) -> Evidence:
    below, above = formula(sympy, X)
    return prove_identities(
        PHI, [("below", below, X**2 / 2), ("above", above, X**2 * log(2))], random_rationals([X])
    )


@check("lemma.phi", method="enclosure")
def enclose_phi(formula: Formula, effort: Effort) -> Evidence:
    """Near 0 by the derivative of the order of the zero there, near 1 by a slope against y log y,
    between directly."""

    def under(n: Any, x: Any) -> Any:
        return phi(n, x) - formula(n, x)[0]

    def over(n: Any, x: Any) -> Any:
        return formula(n, x)[1] - phi(n, x)

    def over_from_one(
        n: Any, y: Any
    ) -> Any:  # above(1-y) - phi(1-y) + y log(y)/2, without the singular term
        return formula(n, 1 - y)[1] - (2 - y) * n.log(2 - y) / 2

    difference = phi(sympy, X) - formula(sympy, X)[0]
    flat = all(vanishes(sympy.diff(difference, X, k).subs(X, 0)) for k in range(4))
    flat = (
        flat
        and vanishes(formula(sympy, X)[1].subs(X, 0))
        and vanishes((formula(sympy, X)[1]).subs(X, 1) - log(2))
    )
    near = F(1, 20)
    evidence = all_enclosed(
        [
            ("phi'' >= 0", derivative(phi, order=2), [(0, 1)]),
            ("phi'''' - below'''' >= 0 near 0", derivative(under, order=4), [(0, F(1, 4))]),
            ("phi - below >= 0", values(under), [(F(1, 4), 1)]),
            ("above'' - phi'' >= 0 near 0", derivative(over, order=2), [(0, F(1, 4))]),
            ("above - phi >= 0", values(over), [(F(1, 4), 1 - near)]),
            (
                "slope near 1 beats y log(y)/2",
                lambda n, y: derivative(over_from_one)(n, y) - n.log(n.number(near)) / 2,
                [(0, near)],
            ),
        ]
    )
    if evidence.verdict is Verdict.VERIFIED and not flat:
        return Evidence(
            "enclosure", Verdict.UNDECIDED, None, "?", "the bounds do not touch phi at 0 and 1", 0
        )
    return evidence


@tallied("lemma.phi", method="search", relation="<=", more=20, told="399 points, down to 1e-10")
def sample_phi(formula: Formula, effort: Effort) -> Cases:
    for k in range(1, 200):
        for x in (MP.mpf(k) / 200, MP.mpf(10) ** (-MP.mpf(k) / 20)):
            below, above = formula(MP, x)
            yield f"below, x={mpmath.nstr(x, 8)}", below, phi(MP, x), phi(MP, x)
            yield f"above, x={mpmath.nstr(x, 8)}", phi(MP, x), above, above


@check("lemma.pair", method="steps")
def prove_pair(formula: Formula, effort: Effort) -> Evidence:
    identities = [
        ("d/da", sympy.diff(formula(sympy, A, B), A), log(2 * A / (A + B))),
        ("d/db", sympy.diff(formula(sympy, A, B), B), log(2 * B / (A + B))),
    ]
    return prove_identities(PAIR, identities, random_rationals([A, B], descending=True))


@check("lemma.pair", method="enclosure")
def enclose_pair(formula: Formula, effort: Effort) -> Evidence:
    """T(r) = T2(1, r) is convex on [0, 1], T(1) = T'(1) = 0: so T' <= 0, and d/da T2 = T - r T'
    falls to 0 at r = 1. At a fixed gap s phi(d/s) is phi's perspective: it falls in s because phi
    is convex with phi(0) = 0."""
    flat = formula(sympy, sympy.S.One, B)
    touches = vanishes(flat.subs(B, 1)) and vanishes(sympy.diff(flat, B).subs(B, 1))

    def of_ratio(n: Any, r: Any) -> Any:
        return formula(n, 1 + r * 0, r)

    def of_gap(n: Any, x: Any) -> Any:
        return formula(n, (1 + x) / 2, (1 - x) / 2)

    evidence = all_enclosed(
        [
            ("T2(1, r) is convex in r", derivative(of_ratio, order=2), [(0, 1)]),
            ("T2((1+x)/2, (1-x)/2) is convex in x", derivative(of_gap, order=2), [(0, 1)]),
        ],
        detail="T(1) = T'(1) = 0 by SymPy",
    )
    if evidence.verdict is Verdict.VERIFIED and not touches:
        return Evidence(
            "enclosure", Verdict.UNDECIDED, None, "?", "T2(1, r) has no double zero at r = 1", 0
        )
    return evidence


@tallied("lemma.pair", method="search", relation="<=", more=20, told="random pairs")
def sample_pair(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    for _ in range(100):
        larger, smaller = sorted((MP.mpf(rng.random()), MP.mpf(rng.random())), reverse=True)
        step = MP.mpf(rng.random())
        here = formula(MP, larger, smaller)
        point = f"a={mpmath.nstr(larger, 6)}, b={mpmath.nstr(smaller, 6)}"
        for label, low, high in (
            ("in a", here, formula(MP, larger + step, smaller)),
            ("in b", here, formula(MP, larger, smaller * step)),
            ("at a fixed gap", formula(MP, larger + step, smaller + step), here),
            ("scale", 2 * here, formula(MP, 2 * larger, 2 * smaller)),
        ):
            yield f"{label}, {point}", low, high, high


@check("lemma.transport", method="steps")
def prove_transport(formula: Formula, effort: Effort) -> Evidence:
    probs = sympy.symbols("p1:5", positive=True)
    drafts = sympy.symbols("q1:5", positive=True)
    own, other = formula(sympy, probs, drafts, 2)
    identities = [
        ("target differences kept", own[0] - own[1], probs[0] - probs[1]),
        ("draft differences kept", other[0] - other[1], drafts[0] - drafts[1]),
        ("mass kept", sum(own), sum(probs)),
    ]
    return prove_identities(TRANSPORT, identities, random_rationals([*probs, *drafts]))


@check("lemma.transport", method="enclosure")
def enclose_merge(formula: Formula, effort: Effort) -> Evidence:
    """Two tokens merge (kept = 1): KL does not increase. By homogeneity u + v = x + y = 1 suffices,
    and there the loss is KL(x || u) on two tokens: convex in u with a double zero at u = x, for all
    x and u in (0, 1)."""
    x, u = sympy.symbols("x u", positive=True)
    own, other = formula(sympy, [x, 1 - x], [u, 1 - u], 1)
    merged = own[0] * log(own[0] / other[0])
    loss = x * (log(x) - log(u)) + (1 - x) * (log(1 - x) - log(1 - u)) - merged
    curvature = x / u**2 + (1 - x) / (1 - u) ** 2
    convex = Slope(
        "the merge's loss is convex in u", sympy.diff(loss, u), u, (), {}, rest=curvature
    )
    statements: list[Identity | Slope] = [
        Identity("its slope is 0 at u = x", sympy.diff(loss, u).subs(u, x), 0),
        Identity("its value is 0 at u = x", loss.subs(u, x), 0),
        convex,
    ]
    return enclose_statements(statements, "x and u from 0 to 1")


@tallied("lemma.transport", method="search", relation="<=", more=20, told="random drafts")
def sample_transport(formula: Formula, effort: Effort) -> Cases:
    rng = random.Random(effort.seed)
    targets = generate_targets(effort.seed, effort.per_family, min_vocab=3)
    for target in [*targets, large_target()]:
        own = [to_mp(prob) for prob in target.target_probs]
        weights = [MP.mpf(rng.random()) for _ in own]
        other = [weight / mpmath.fsum(weights) for weight in weights]
        for kept in range(1, len(own)) if target in targets else (1, len(own) // 2, len(own) - 1):
            moved, moved_draft = formula(MP, own, other, kept)
            before, after = divergence(own, other), divergence(moved, moved_draft)
            yield f"{target}, |I|={kept}", after, before, before
            for a, b in ((moved, own), (moved_draft, other)):
                shift = max(abs((a[0] - a[i]) - (b[0] - b[i])) for i in range(kept))
                yield f"differences at {target}, |I|={kept}", shift, MP.mpf(0), MP.mpf(0)
