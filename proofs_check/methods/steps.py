"""The steps of a derivation, replayed by exact algebra, and the formula under test against what
they derive: general, but no route that is independent of the derivation. A difference that SymPy
can't reduce is evaluated at rational points, where a non-zero value refutes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import mpmath
import sympy

from derivations.language.claim import Derivation, Formula, get_claim, vanishes
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

__all__ = [
    "Identities",
    "identity",
    "prove_identities",
    "prove_known",
    "proved",
    "random_rationals",
]

Sample = dict[sympy.Symbol, sympy.Rational]
Identities = Iterator[tuple[str, Any, Any]]  # label, and two expressions that should be equal


def prove_identities(
    derivation: Derivation,
    identities: Iterable[tuple[str, Any, Any]],
    samples: Sequence[Sample] = (),
) -> Evidence:
    """All checked steps hold, and every (label, lhs, rhs) is an identity on the domain that the
    samples come from."""
    identities = list(identities)
    for (
        label,
        lhs,
        rhs,
    ) in identities:  # refute first: cheap, and a mutant need not wait for the derivation
        refuted = _differs_at(label, sympy.sympify(lhs) - sympy.sympify(rhs), samples)
        if refuted is not None:
            return refuted
    undecided = [step.text for step in derivation.failing_steps()]
    undecided += [
        label
        for label, lhs, rhs in identities
        if not vanishes(sympy.sympify(lhs) - sympy.sympify(rhs))
    ]
    steps = sum(step.symbolic for step in derivation.steps)
    checked = len(identities) + steps
    if undecided or not checked:
        return Evidence("steps", Verdict.UNDECIDED, None, "?", "; ".join(undecided), checked)
    return Evidence(
        "steps",
        Verdict.VERIFIED,
        None,
        "0 (exact)",
        "",
        checked,
        detail=_scope(derivation, steps, identities),
    )


def proved(
    claim: str, derivation: Derivation, samples: Sequence[Sample] = ({},)
) -> Callable[[Callable[[Formula, Effort], Identities]], Callable]:
    """Register a generator of identities as a claim's check by its steps. An example::

    @proved("bound.weight", WEIGHT)
    def prove_weight(formula, effort):
        yield "span 100", formula(sympy, R(100)), COVER * 108 * UNIT
    """

    def register(identities: Callable[[Formula, Effort], Identities]) -> Callable:
        @check(claim, method="steps")
        @wraps(identities)
        def prove(formula: Formula, effort: Effort) -> Evidence:
            return prove_identities(derivation, identities(formula, effort), samples)

        return prove

    return register


def _scope(derivation: Derivation, steps: int, identities: Sequence[tuple[str, Any, Any]]) -> str:
    """Which part of the evidence is general, and which compares instances."""
    free = sum(bool(sympy.sympify(lhs).free_symbols) for _, lhs, rhs in identities)
    cited = sum(step.how == "cited" for step in derivation.steps)
    words = sum(step.how == "prose" for step in derivation.steps)
    told = (
        f"{derivation.title}: {steps} symbolic steps, {cited} by other claims and {words} in "
        "words, general"
    )
    if free:
        told += f"; the formula equals what they derive, for {free} symbolic cases"
    if len(identities) > free:
        told += f"; compared exactly at {len(identities) - free} instances"
    return told


def _differs_at(label: str, difference: Any, samples: Sequence[Sample]) -> Evidence | None:
    for sample in samples:
        chosen = {
            symbol: value for symbol, value in sample.items() if symbol in difference.free_symbols
        }
        value = sympy.N(difference.subs(chosen), 40)
        if value.is_number and not value.is_finite:
            return Evidence("steps", Verdict.REFUTED, None, str(value), f"{label}: {chosen}", 1)
        if value.is_number and abs(value) > mpmath.mpf(10) ** -25:
            return Evidence(
                "steps", Verdict.REFUTED, None, f"{sympy.N(value, 3)}", f"{label}: {chosen}", 1
            )
    return None


def prove_known(
    known: Mapping[str, Sequence[tuple[tuple[Any, ...], Any]]],
    claim: str,
    formula: Formula,
    effort: Effort,
) -> Evidence:
    """The claim's steps, and its formula at arguments whose value is written out by hand."""
    identities = [
        identity(f"{claim} at {arguments}", formula(sympy, *arguments), value)
        for arguments, value in known[claim]
    ]
    return prove_identities(get_claim(claim).derivation, identities, [{}])


def identity(label: str, found: Any, value: Any) -> tuple[str, Any, Any]:
    """The two are equal, infinities among them."""
    if value == sympy.oo:
        return label, sympy.Integer(int(found == math.inf)), 1
    return label, found, value


def random_rationals(
    symbols: Sequence[sympy.Symbol],
    count: int = 4,
    *,
    seed: int = 7,
    descending: bool = False,
    total_below: int = 0,
) -> list[Sample]:
    """Points with coordinates in (0, 1); ``descending`` sorts them, ``total_below`` = 1 keeps their
    sum below 1."""
    rng = random.Random(seed)
    points = []
    for _ in range(count):
        drawn = [sympy.Rational(rng.randint(1, 999), 1000) for _ in symbols]
        if descending:
            drawn.sort(reverse=True)
        if total_below:
            scale = sum(drawn) + sympy.Rational(rng.randint(1, 500), 1000)
            drawn = [value * total_below / scale for value in drawn]
        points.append(dict(zip(symbols, drawn, strict=True)))
    return points
