"""The entropy rule's search from below, whatever was rounded: tangents that bound a cell wherever
they are cut, atoms (buckets of tokens) that bound power sums, and a count of all rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Rational, exp, log

from derivations.arithmetic.drafter_bounds import LOG_COVER, UNDERFLOW
from derivations.arithmetic.rewrites import as_formula, mutate
from derivations.kernels.drafter_kernels import SEARCHED_RADIUS_LOWER
from derivations.kernels.evaluation import SECOND_ORDER, UNIT
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import EXP_TANGENT

__all__ = ["ATOMS", "SEARCHED", "TANGENTS", "atoms_power_sum", "cut_tangents"]


def cut_tangents(
    numbers: Any, start: Any, rise: Any, end: Any, fall: Any, width: Any, cut: Any
) -> Any:
    """min(start + rise x, end + fall (width - x)) at any cut x: below a convex function on [0,
    width]."""
    return min(start + rise * cut, end + fall * (width - cut))


def atoms_power_sum(numbers: Any, buckets: Sequence[tuple[Any, Sequence[Any]]], power: Any) -> Any:
    """sum mass size^(b-1) over buckets (size, members): at least sum q^b."""
    terms = [sum(members[1:], members[0]) * size ** (power - 1) for size, members in buckets]
    return sum(terms[1:], terms[0])


def _first_tangent(
    numbers: Any, start: Any, rise: Any, end: Any, fall: Any, width: Any, cut: Any
) -> Any:
    return start + rise * cut


def _higher_tangent(
    numbers: Any, start: Any, rise: Any, end: Any, fall: Any, width: Any, cut: Any
) -> Any:
    return max(start + rise * cut, end + fall * (width - cut))


def _one_power_more(numbers: Any, buckets: Sequence[tuple[Any, Sequence[Any]]], power: Any) -> Any:
    return atoms_power_sum(numbers, buckets, power + 1)


TANGENTS = Derivation(
    "Two tangents, cut anywhere",
    (
        Step(
            "Beyond v = nu, L_nu is convex: L'' >= 0.",
            how="cited",
            cites=("drafter.entropy.cells",),
            instances=(
                Instance(
                    "drafter.entropy.cells",
                    (1 - at.k + at.t, at.k),
                    at.t / ((1 - at.k + at.t) ** 2 * (at.k - at.t)),
                ),
            ),
        ),
        Step(
            "By Taylor's theorem it exceeds a tangent by L''/2 times the squared distance, here "
            "z/2 (f - h)^2.",
            at.z / 2 * (at.f - at.h) ** 2,
            0,
            "nonnegative",
        ),
        Step(
            "Up to the cut x, at x - r, the first tangent of slope -t <= 0 is no less than at x:",
            (at.f - at.t * (at.x - at.r)) - (at.f - at.t * at.x),
            0,
            "nonnegative",
        ),
        Step(
            "beyond it, at x + r of the width w, so is the second, rising by -t for each step "
            "back from the end:",
            (at.f - at.t * (at.w - (at.x + at.r))) - (at.f - at.t * (at.w - at.x)),
            0,
            "nonnegative",
        ),
        Step(
            "Where the function does not fall at the start (slope t), or not rise to its end, "
            "that value is least:",
            (at.f + at.t * at.r) - at.f,
            0,
            "nonnegative",
        ),
        Step(
            "A slope is that of a true tangent to within an error e: over a width w the bound is "
            "off by at most e w.",
            (at.f - (at.t + at.e) * at.x) - (at.f - at.t * at.x) + at.e * (at.x + at.r),
            0,
            "nonnegative",
        ),
    ),
)
ATOMS = Derivation(
    "A bucket's size bounds the powers of its members",
    (
        Step(
            "For a size q (1 + t) >= q and b = 1 + s: s log size >= s log q,",
            at.s * at.log(at.q * (1 + at.t)) - at.s * at.log(at.q),
            0,
            "nonnegative",
        ),
        Step(
            "exp grows: exp z = 1 + r with r >= z.",
            how="cited",
            cites=("lemma.tangent",),
            instances=(EXP_TANGENT,),
        ),
        Step(
            "so q size^s, that is q exp(h) (1 + r) with h = s log q, is no less than q^b = q "
            "exp(h);",
            at.q * exp(at.h) * (1 + at.r) - at.q * exp(at.h),
            0,
            "nonnegative",
        ),
        Step(
            "the members of a bucket, p and q of one size s, add up to their mass times it.",
            at.p * exp(at.h) + at.q * exp(at.h),
            (at.p + at.q) * exp(at.h),
        ),
    ),
)
_A, _B, _P, _D = (sympy.Symbol(name, nonnegative=True) for name in ("A", "B", "P", "D"))
_REACH = _A + _B + _P + _D
_SUMS = at.n + 400 + 2 * _P
_VALUE = 12 + 9 * _B + 3 * _P + (10 * _A + 12 * _D) + 4 * (1 + _REACH)
_SLOPES = (
    (10 * _A + 280 + 2 + 8 * _B + 2 * _P)
    + 3 * (_A + 29 + _B + _P)
    + 4 * (_A + 29 + _B + _P)
    + (1 + _REACH)
)
_ALLOWANCE = 4000 + 4 * at.n + 64 * (_REACH + at.r)
SEARCHED = Derivation(
    "The rounding of the entropy rule's search",
    (
        Step(
            "A, B, P, D bound |log v|, |log q_y|, |log sum q^(1/kappa)| kappa and |log delta| "
            "(smoothing's gain s V with it); reach is their sum, and r more. nu and kappa = 1 - "
            "nu are multiples of 2^-40, so that both are exact; the last part of a cell ends "
            "where the cell does.",
            how="definition",
        ),
        Step(
            "At the exact q every cell's bound is one of L_nu, and L_nu one of the divergence.",
            how="cited",
            cites=("drafter.entropy.dual", "drafter.entropy.tangents", "drafter.entropy.cells"),
            instances=(
                Instance(
                    "drafter.entropy.dual",
                    ([at.q, at.p], at.v, at.k, at.l),
                    at.k * (at.v * log(at.v) + (1 - at.v) * log(1 - at.v))
                    - at.v * log(at.q)
                    - (1 - at.v) * log(at.p)
                    + (1 - at.k) * (log(at.v) - at.l),
                ),
            ),
        ),
        Step(
            "The sums are bounded by atoms.",
            how="cited",
            cites=("drafter.entropy.atoms",),
            instances=(
                Instance(
                    "drafter.entropy.atoms",
                    ([(at.s, [at.p, at.q])], at.b),
                    (at.p + at.q) * at.s ** (at.b - 1),
                ),
            ),
        ),
        *LOG_COVER,
        *UNDERFLOW,
        Step(
            "L_nu falls by v log x + (1-v) kappa log x^(1/kappa) = log x where every q_i is "
            "raised by a factor x.",
            at.v * log(at.q * at.x) + (1 - at.v) * at.k * log(at.p * at.x ** (1 / at.k)),
            at.v * log(at.q) + (1 - at.v) * at.k * log(at.p) + log(at.x),
        ),
        Step(
            "x covers weights and the normaliser: 2 (65/64) 753 u, n u for the sum and 11 u, as "
            "for the other rules.",
            how="cited",
            cites=("bound.weight", "bound.normaliser"),
            instances=(
                Instance("bound.weight", (745,), SECOND_ORDER * (745 + 8) * UNIT),
                Instance(
                    "bound.normaliser", (745, at.n * UNIT), SECOND_ORDER * (745 + 8 + at.n) * UNIT
                ),
            ),
        ),
        Step(
            "Logarithms of sizes are raised by 2^-36: more than 11 roundings at up to 745 nats, "
            "and 3 of the exponent's product at up to 900.",
            Rational(1, 2**36) - (11 * 745 + 3 * 900) * UNIT,
            0,
            "nonnegative",
        ),
        Step(
            "The largest share that the entropy part rejects: log v + h(v) has derivative 1/v + "
            "log((1-v)/v),",
            sympy.diff(log(at.v) - at.v * log(at.v) - (1 - at.v) * log(1 - at.v), at.v),
            1 / at.v + log(1 - at.v) - log(at.v),
        ),
        Step(
            "so that at v = 1/(2 + t) <= 1/2 a relative step in v moves it by v (1/v + log(1 + "
            "t)) >= 1 times as much: "
            "an error of 64 u (4 + |log delta|) in it is one of v, at most.",
            at.v * (1 / at.v + log(1 + at.t)) - 1,
            0,
            "nonnegative",
        ),
        Step(
            "At v = 1/2 it is 0, above log delta < 0: no larger share of that interval is "
            "rejected.",
            (log(at.v) - at.v * log(at.v) - (1 - at.v) * log(1 - at.v)).subs(at.v, Rational(1, 2)),
            0,
        ),
        Step(
            "In u: a power sum loses n + 400 + 2 P (masses, 226 atoms, exp, log, kappa and the "
            "shift), once in a value and once in a slope. A value: 12 for the entropy, 9 B, 3 P, "
            "10 A + 12 D for the price, 4 additions. A slope times the width (nu/v times the "
            "width is at most 1, |log(1-v)| <= 28): its terms, three additions, four products, "
            "one sum. With the laws' own share all is below the allowance:",
            SECOND_ORDER * _ALLOWANCE
            - SECOND_ORDER * (2 * SECOND_ORDER * 753 + at.n + 11 + 2 * _SUMS + _VALUE + _SLOPES)
            - (500 + 2 * (_REACH + at.r)),
            0,
            "nonnegative",
        ),
        Step(
            "500 + 2 r, r the whole reach, covers the last difference, 1 + r, and 16 roundings of "
            "the allowance, for n = 2^40 - x:",
            (500 + 2 * at.r)
            - (1 + at.r)
            - 16 * UNIT * SECOND_ORDER * (4000 + 4 * (2**40 - at.x) + 64 * at.r),
            0,
            "nonnegative",
        ),
    ),
)
for _claim in (
    Claim(
        id="drafter.entropy.tangents",
        sentence="On a cell where L_nu is convex, with slopes rise <= 0 at its start and -fall >= "
        "0 at its end, min(start + rise x, end + fall (width - x)) <= L_nu, for any x in the cell.",
        domain="nu <= low < high < 1, 0 <= x <= high - low",
        theory="C (entropy, search)",
        relation="<=",
        formula=cut_tangents,
        derivation=TANGENTS,
        mutants=(
            Mutant("the first tangent alone", _first_tangent),
            Mutant("the higher of the two", _higher_tangent),
        ),
    ),
    Claim(
        id="drafter.entropy.atoms",
        sentence="sum mass size^(b-1) >= sum q^b, where each bucket's size is at least that of "
        "its members.",
        domain="b >= 1, any probabilities",
        theory="C (entropy, search)",
        relation=">=",
        formula=atoms_power_sum,
        derivation=ATOMS,
        mutants=(Mutant("the power b for b - 1", _one_power_more),),
    ),
    Claim(
        id="bound.radius.entropy",
        sentence="Computed in float64, max(0, least bound - (1 + 1/64) u (4000 + 4 n + 64 reach)) "
        "is below the exact radius of the entropy rule.",
        domain="n < 2^20 tokens; reach >= |log v| + |log q_y| + |log max other q| + |log delta|; "
        "exp and log within 8 u",
        theory="F (drafter side)",
        relation="<=",
        formula=as_formula(SEARCHED_RADIUS_LOWER),
        derivation=SEARCHED,
        mutants=(
            Mutant(
                "the sums' share left out",
                as_formula(SEARCHED_RADIUS_LOWER, mutate(sympy.Symbol("num_tokens", real=True), 0)),
            ),
            Mutant(
                "the logarithms' share left out",
                as_formula(SEARCHED_RADIUS_LOWER, mutate(sympy.Symbol("reach", real=True), 0)),
            ),
        ),
    ),
):
    declare(_claim)
