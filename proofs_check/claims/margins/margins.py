"""Checks of the margin-only bounds for single-token rules: exact algebra at the extremal target,
and the infimum over all targets solved from its definition, by mpmath and by an outside conic
solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction as F
from functools import partial
from typing import Any

import mpmath
import sympy

from derivations.formulas.single_token import single_certificate
from derivations.language.claim import Derivation, Formula, get_claim
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.conic import check_by_solvers, least_by_cone
from proofs_check.methods.margin_programmes import Case, Margin, least, margin_programme, with_tail
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.steps import prove_identities
from proofs_check.methods.targets import MANY, WIDE, generate_targets
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

__all__ = ["BOTH", "HIGH", "LOW", "SLACKS", "CasesOf", "Extremal", "Large", "register"]

GAPS = (F(1, 20), F(3, 10), F(7, 10))
SLACKS = (F(1, 5), F(1, 2))
LOW, HIGH = F(1, 100), F(99, 100)
BOTH: tuple[Margin, ...] = ("exactly", "at least")


def _strict(effort: Effort) -> Iterator[Case]:
    for margin in BOTH:
        for gap in GAPS:
            for vocab in (2, 4) if margin == "exactly" else (3,):
                make = partial(margin_programme, vocab, 1, gap, margin=margin)
                yield f"strict, {margin} {gap}, V={vocab}", [make], (gap,)


def _additive(margin: Margin, effort: Effort) -> Iterator[Case]:
    for slack in SLACKS:
        for gap in (slack / 4, slack * 3 / 4, slack + F(1, 5)):
            second = [1] if margin == "at least" or gap >= slack else []
            makes = [
                partial(margin_programme, 3, j, gap, margin=margin, slack=slack)
                for j in (*second, 2)
            ]
            yield f"additive {slack}, {margin} {gap}", makes, (gap, slack)


def _multiplicative(effort: Effort) -> Iterator[Case]:
    for alpha in (F(1, 10), F(1, 2)):
        for gap in (F(1, 10), F(9, 20), F(9, 10)):
            for margin in BOTH if gap == F(1, 10) else ("exactly",):
                make = partial(margin_programme, competitor=1, gap=gap, factor=alpha, margin=margin)
                yield (
                    f"multiplicative {alpha}, {margin} {gap}, tail of 10^6",
                    [partial(with_tail, make, 3, 1, 10**6)],
                    (gap, alpha),
                )


def _absolute(effort: Effort) -> Iterator[Case]:
    yield "absolute 0: nothing is rejected", [], (F(3, 10), F(0))
    for tau in (F(1, 10), F(3, 10)):
        for gap in (F(3, 10), F(3, 5)):
            for margin in BOTH:
                make = partial(margin_programme, competitor=1, gap=gap, ceiling=tau, margin=margin)
                yield (
                    f"absolute {tau}, {margin} {gap}, tail of 10^6",
                    [partial(with_tail, make, 3, 1, 10**6)],
                    (gap, tau),
                )


def _top(effort: Effort) -> Iterator[Case]:
    for m in (2, 4):
        for last in (1, m):
            for margin in BOTH if m == 2 else ("exactly",):
                for gap in (F(1, 10), F(3, 5)):
                    make = partial(margin_programme, m + 1, m, gap, last=last, margin=margin)
                    yield f"top {m}, p1 - p{last + 1} {margin} {gap}", [make], (gap, m)


CASES: dict[str, Callable[[Effort], Iterator[Case]]] = {
    "margin.strict": _strict,
    "margin.additive.at-least": partial(_additive, "at least"),
    "margin.additive.exact": partial(_additive, "exactly"),
    "margin.multiplicative": _multiplicative,
    "margin.top": _top,
    "margin.absolute": _absolute,
}

# Extremal targets in rationals: (arguments, target, 0-based competitor) at which the bound is the
# certificate itself.
R = sympy.Rational
EXTREMAL: dict[str, list[tuple[tuple[Any, ...], list[Any], int]]] = {
    "margin.strict": [((R(1, 3),), [R(2, 3), R(1, 3)], 1), ((R(1, 2),), [R(3, 4), R(1, 4)], 1)],
    "margin.additive.at-least": [
        ((R(1, 10), R(1, 2)), [R(3, 4), R(1, 4)], 1),
        ((R(2, 3), R(1, 2)), [R(5, 6), R(1, 6)], 1),
    ],
    "margin.additive.exact": [
        ((R(2, 5), R(1, 2)), [R(19, 30), R(7, 30), R(4, 30)], 2),
        ((R(1, 10), R(1, 2)), [R(16, 30), R(13, 30), R(1, 30)], 2),
        ((R(1, 5), R(1, 5)), [R(7, 15), R(4, 15), R(4, 15)], 2),
        ((R(1, 5), R(59, 100)), [R(179, 300), R(119, 300), R(2, 300)], 2),
    ],
    "margin.multiplicative": [
        ((R(9, 10), R(1, 2)), [R(19, 20), R(1, 20)], 1),
        ((R(1, 4), R(1, 2)), [R(1, 2), R(1, 4), R(1, 8), R(1, 8)], 1),
    ],
    "margin.absolute": [
        ((R(1, 5), R(1, 10)), [R(3, 10), R(1, 10), *[R(1, 10)] * 6], 1),
        ((R(1, 10), R(1, 5)), [R(3, 20), *[R(1, 20)] * 17], 0),
    ],
    "margin.top": [((R(1, 5), 3), [R(8, 20), R(4, 20), R(4, 20), R(4, 20)], 3)],
}


def _large_strict() -> Iterator[Case]:
    make = partial(margin_programme, MANY, 1, GAPS[1])
    yield f"strict, {GAPS[1]}, V={MANY}", [make], (GAPS[1],)


def _large_additive(margin: Margin) -> Iterator[Case]:
    slack, gap = F(1, 5), F(2, 5)
    makes = [
        partial(margin_programme, MANY, j, gap, margin=margin, slack=slack)
        for j in (1, 2, MANY // 2, MANY - 1)
    ]
    yield f"additive {slack}, {margin} {gap}, V={MANY}", makes, (gap, slack)


def _large_top() -> Iterator[Case]:
    for last in (1, WIDE):
        make = partial(margin_programme, MANY, WIDE, F(3, 5), last=last)
        yield f"top {WIDE}, p1 - p{last + 1}, V={MANY}", [make], (F(3, 5), WIDE)


CasesOf = Callable[[Effort], Iterator[Case]]
Large = dict[str, Callable[[], Iterator[Case]]]


def _strict_ends() -> Iterator[Case]:
    for gap in (LOW, HIGH):
        yield f"strict, {gap}", [partial(margin_programme, 3, 1, gap)], (gap,)


def _additive_ends(margin: Margin) -> Iterator[Case]:
    for gap, slack in ((LOW / 3, LOW), (LOW, LOW / 2), (F(9, 10), F(93, 100)), (HIGH, F(1, 50))):
        places = (2,) if margin == "exactly" and gap < slack else (1, 2)
        makes = [partial(margin_programme, 3, j, gap, margin=margin, slack=slack) for j in places]
        yield f"additive {slack}, {margin} {gap}", makes, (gap, slack)


def _tailed_ends(name: str, at: tuple[tuple[F, F], ...]) -> Iterator[Case]:
    for gap, own in at:
        given: dict[str, Any] = {name: own}
        make = partial(margin_programme, competitor=1, gap=gap, **given)
        yield f"{name} {own}, {gap}", [partial(with_tail, make, 3, 1, 10**6)], (gap, own)


def _top_ends() -> Iterator[Case]:
    for m, last, gap in ((3, 3, LOW), (3, 1, HIGH)):
        make = partial(margin_programme, m + 1, m, gap, last=last)
        yield f"top {m}, p1 - p{last + 1} {gap}", [make], (gap, m)


ENDS: Large = {
    "margin.strict": _strict_ends,
    "margin.additive.at-least": partial(_additive_ends, "at least"),
    "margin.additive.exact": partial(_additive_ends, "exactly"),
    "margin.multiplicative": partial(
        _tailed_ends, "factor", ((LOW, LOW), (LOW, F(19, 20)), (HIGH, F(19, 20)), (HIGH, LOW))
    ),
    "margin.top": _top_ends,
    "margin.absolute": partial(
        _tailed_ends, "ceiling", ((LOW, LOW / 2), (HIGH, F(3, 5)), (F(1, 2), F(1, 2)))
    ),
}


def _none() -> Iterator[Case]:
    """Of a rule whose programmes have a tail that stands for a million tokens."""
    yield from ()


LARGE: Large = {
    "margin.strict": _large_strict,
    "margin.additive.at-least": partial(_large_additive, "at least"),
    "margin.additive.exact": partial(_large_additive, "exactly"),
    "margin.multiplicative": _none,
    "margin.top": _large_top,
    "margin.absolute": _none,
}
Extremal = dict[str, list[tuple[tuple[Any, ...], list[Any], int]]]


def register(cases: dict[str, CasesOf], extremal: Extremal, large: Large, ends: Large) -> None:
    """Three routes for each claim: the steps and extremal targets, the programmes by mpmath, which
    takes those at the ends of the domain, and by the cone solver, which takes the large ones."""
    for claim, of_claim in cases.items():
        check(claim, method="steps")(partial(_prove_at_extremal, claim, extremal[claim]))
        check_by_solvers(
            claim,
            of_claim,
            optimiser=least,
            conic=least_by_cone,
            large=large[claim],
            ends=ends[claim],
        )


def _prove_at_extremal(
    claim: str, targets: list[Any], formula: Formula, effort: Effort
) -> Evidence:
    derivation: Derivation = get_claim(claim).derivation
    identities = [
        (f"{claim} at {target}", formula(sympy, *arguments), single_certificate(sympy, target, j))
        for arguments, target, j in targets
    ]
    return prove_identities(derivation, identities, [{}])


register(CASES, EXTREMAL, LARGE, ENDS)


@check("margin.entropy.simple", method="steps")
def prove_entropy_margin(formula: Formula, effort: Effort) -> Evidence:
    """The derivation, and the two-token regime: there the bound is the certificate itself."""
    identities = [
        (
            "(.95, .05), eps=.05",
            formula(sympy, R(9, 10), R(1, 20), R(1)),
            single_certificate(sympy, [R(19, 20), R(1, 20)], 1),
        )
    ]
    return prove_identities(get_claim("margin.entropy.simple").derivation, identities, [{}])


@tallied(
    "margin.entropy.simple",
    method="search",
    relation="<=",
    more=20,
    told="exact certificates at random targets",
)
def search_entropy_margin(formula: Formula, effort: Effort) -> Cases:
    """The exact certificate of the entropy rule at many targets never lies below the bound at their
    margin."""
    for target in generate_targets(effort.seed, 10 * effort.per_family):
        probs = [to_mp(prob) for prob in target.target_probs]
        entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs if p > 0)
        for epsilon, delta in (("0.09", "0.3"), ("0.3", "0.9"), ("1", "0.8"), ("0.5", "1")):
            tau = min(MP.mpf(epsilon), MP.mpf(delta) * mpmath.exp(-entropy))
            rejected = [i for i, prob in enumerate(probs) if prob <= tau]
            if not rejected:
                continue
            exact = single_certificate(MP, probs, rejected[0])
            bound = formula(MP, probs[0] - probs[1], MP.mpf(epsilon), MP.mpf(delta))
            yield f"{target}, eps={epsilon}, delta={delta}", MP.mpf(bound), exact, exact
