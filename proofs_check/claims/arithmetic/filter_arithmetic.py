"""Checks of the float32 filter's bounds: its constants against the kernel's source, enclosures over
whole ranges, and the operations replayed with exact rationals and adversarial signs."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction as F
from typing import Any

import mpmath
import sympy

from derivations.arithmetic.filter_arithmetic import (
    EIGHTH_LOG2_32,
    EXP32_COEFFICIENTS,
    EXP32_SCALES,
    EXP32_STEPS,
    FILTER_STEPS,
    LEFT_OUT,
    SIZE_STEPS,
)
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed
from proofs_check.methods.numbers import MP, to_mp, working_digits
from proofs_check.methods.slopes import Identity, Slope, enclose_statements
from proofs_check.methods.steps import prove_identities
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

END = F(int(EIGHTH_LOG2_32.p), int(EIGHTH_LOG2_32.q))
UNIT32 = F(1, 2**24)
MOST = F(1, 2**10)  # of a weight's relative error
TERMS = 14
R = sympy.Rational


def _truth(condition: bool) -> sympy.Integer:
    return sympy.Integer(int(condition))


def _additions() -> F:
    """Roundings of a term on its way through the kernel's sums: a product with its addition, one
    for each of the other vectors of a group, one a fold of the lanes, and in float64, of 2^-29 u,
    one a group of the widest row and one for each of few lanes and moves."""
    from certspec.kernels.numba import filter_loop as vector_filter
    from certspec.kernels.numba import filter_sums as filter_bounds

    vectors = vector_filter.GROUP // vector_filter.LANES32
    folds = (vector_filter.LANES32 // vector_filter.WIDE).bit_length() - 1
    groups = filter_bounds.MOST_COLUMNS // vector_filter.GROUP
    return 1 + (vectors - 1) + folds + F(2 * groups, 2**29)


@check("kernel.exp32", method="steps")
def prove_exp32(formula: Formula, effort: Effort) -> Evidence:
    """The kernel's numbers are those of the claim; its bounds are as stated; at r = 0 the bound is
    the roundings of the polynomial's first coefficient and of the product, and how far polynomial
    and table are off."""
    from certspec.kernels.numba import filter_loop as vector_filter
    from certspec.kernels.numba import filter_sums as filter_bounds

    stored, log2 = F(vector_filter.LOG2), mpmath.mpf(0)
    with working_digits(40):
        log2 = mpmath.log(2)
        off = abs(to_mp(stored) / log2 - 1)  # r moves by j (log 2)/4 off = (z - r) off
        far = filter_bounds.LARGEST * abs(to_mp(F(vector_filter.PER_LOG2)) * log2 - 1)
        reach = (mpmath.mpf("0.125") + far / log2) * log2 + filter_bounds.LARGEST * off
        identities: list[tuple[str, Any, Any]] = [
            (
                "coefficients",
                _truth(tuple(map(F, vector_filter.COEFFICIENTS)) == EXP32_COEFFICIENTS),
                1,
            ),
            ("table", _truth(tuple(map(F, vector_filter.SCALES)) == EXP32_SCALES), 1),
            ("steps of an octave", len(EXP32_SCALES), vector_filter.STEPS),
            (
                "log 2 off by less than REDUCTION u",
                _truth(off * 2**24 < filter_bounds.REDUCTION),
                1,
            ),
            ("r within its range", _truth(reach < to_mp(END)), 1),
            (
                "the kernel's bound is at least the claim's 7.4",
                _truth(filter_bounds.EXP32_ERROR >= 7.4),
                1,
            ),
            ("its additions", _truth(F(filter_bounds.ADDITIONS) >= _additions()), 1),
        ]
    for sign in (-1, 1):
        found = sympy.nsimplify(formula(sympy, R(1, 8), sign))
        identities.append((f"bound at r = {sign}/8", found, _bound_at(R(sign, 8))))
    identities.append(
        ("bound at r = 0", sympy.nsimplify(formula(sympy, R(0))), 2 * (1 + R(1, 2**18)) + LEFT_OUT)
    )
    return prove_identities(EXP32_STEPS, identities, [{}])


def _bound_at(r: Any) -> Any:
    """A rounding u of every Horner value, carried down, over the last; the product's, and |r|."""
    first, second, third = (R(c.numerator, c.denominator) for c in EXP32_COEFFICIENTS)
    inner = third + r
    middle = second + r * inner
    outer = first + r * middle
    carried = (outer + abs(r) * middle + r * r * inner) / outer
    return (carried + 1 + abs(r)) * (1 + R(1, 2**18)) + LEFT_OUT


def _excess(n: Any, r: Any, scale: F) -> Any:
    """scale P(r) - exp(r) but for the terms of exp beyond r^13, which are below 2^-80 of it."""
    total = r * 0
    for power in range(TERMS - 1, -1, -1):
        own = [*EXP32_COEFFICIENTS, F(1)][power] if power <= len(EXP32_COEFFICIENTS) else F(0)
        total = total * r + (n.number(scale * own) - n.number(F(1, math.factorial(power))))
    return total


@check("kernel.exp32", method="enclosure")
def enclose_exp32(formula: Formula, effort: Effort) -> Evidence:
    """The bound stays below 7.4 u for r of either sign; polynomial times table is within LEFT_OUT u
    of exp, relative, on the whole range and at every step, and no bound is below that and two
    roundings."""
    most = F(int(LEFT_OUT.p), int(LEFT_OUT.q))

    def spare(
        step: int, sign: int
    ) -> Any:  # with 2^-60 for the terms beyond r^13 and the rational power
        scale = EXP32_SCALES[step] / _power(step)
        return lambda n, r: (
            n.number(most * UNIT32) * n.exp(r) - sign * _excess(n, r, scale) - n.number(F(1, 2**60))
        )

    return all_enclosed(
        [
            *(
                (
                    f"7.4 - bound, r of sign {sign}",
                    lambda n, size, s=sign: n.number(F(74, 10)) - formula(n, size, s),
                    [(0, END)],
                )
                for sign in (-1, 1)
            ),
            (
                "bound - 1.8 - off",
                lambda n, size: formula(n, size) - n.number(F(18, 10) + most),
                [(0, END)],
            ),
            *(
                (
                    f"step {step}, {'above' if sign < 0 else 'below'}",
                    spare(step, sign),
                    [(-END, END)],
                )
                for step in range(len(EXP32_SCALES))
                for sign in (1, -1)
            ),
        ]
    )


def _power(step: int) -> F:
    """2^(step/4) within 2^-70: its fourth power is squared twice."""
    return F(math.isqrt(math.isqrt((2**step) << 320)), 2**80)


def _rounded(value: F) -> F:
    """The nearest float32, ties to even (normal numbers)."""
    if value == 0:
        return value
    quantum = F(2) ** (math.floor(math.log2(abs(value))) - 23)
    return round(value / quantum) * quantum


@tallied(
    "kernel.exp32",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -6,
    told="exact rationals, rounded after every operation",
)
def replay_exp32(formula: Formula, effort: Effort) -> Cases:
    """The kernel's operations in exact rationals, each rounded to float32 as the machine does:
    never off by more."""
    from certspec.kernels.numba import filter_loop as vector_filter
    from certspec.kernels.numba import filter_sums as filter_bounds

    rng = random.Random(effort.seed)
    per_log2, log2 = F(vector_filter.PER_LOG2), F(vector_filter.LOG2)
    points = [rng.uniform(-80, 60) for _ in range(200)] + [rng.uniform(-1, 1) for _ in range(100)]
    points += [(j + 0.5) * math.log(2) / 4 for j in range(-240, 160, 3)] + [
        rng.uniform(-4096, 4096) for _ in range(50)
    ]
    for point in points:
        z = _rounded(F(point))
        j = round(vector_filter.STEPS * z * per_log2)
        r = _rounded(z - j * log2 / vector_filter.STEPS)
        value = _rounded(r + EXP32_COEFFICIENTS[2])
        for coefficient in EXP32_COEFFICIENTS[1::-1]:
            value = _rounded(value * r + coefficient)
        value = _rounded(value * EXP32_SCALES[j % vector_filter.STEPS])
        exact = mpmath.exp(to_mp(z) - (j // vector_filter.STEPS) * mpmath.log(2))
        off = abs(to_mp(value) / exact - 1) * 2**24
        bound = formula(MP, abs(to_mp(r)), 1 if r > 0 else -1) + filter_bounds.REDUCTION * abs(
            to_mp(z)
        )
        yield f"z={float(z)!r}", bound, off, off


@check("kernel.filter", method="steps")
def prove_filter(formula: Formula, effort: Effort) -> Evidence:
    """The formula is the sum of its terms; with all in float32, 1.02 ((2 t + 2 u) E + u |s| + t +
    t')."""
    t, other, share, second, rest, mean, offset = sympy.symbols("t o P Q R E s", positive=True)
    unit = R(1, 2**24)
    expected = (
        t * share * (1 + mean) + (t + 2 * unit) * rest + unit * offset * share + other * second
    )
    whole = (2 * t + 2 * unit) * mean + unit * offset + t + other
    samples = [
        {
            t: R(1, 3000),
            other: R(1, 5000),
            share: R(1, 7),
            second: R(1, 9),
            rest: R(1, 5),
            mean: R(2, 3),
            offset: R(7, 2),
        }
    ]
    identities = [
        (
            "terms",
            formula(sympy, t, other, share, second, rest, mean, offset),
            R(102, 100) * expected,
        ),
        (
            "all in float32",
            formula(sympy, t, other, R(1), R(1), mean, mean, offset),
            R(102, 100) * whole,
        ),
    ]
    return prove_identities(FILTER_STEPS, identities, samples)


@check("kernel.filter", method="enclosure")
def enclose_filter(formula: Formula, effort: Effort) -> Evidence:
    """Each of the coefficients is at least the exact one, times 1 - t, for every t, t' up to
    2^-10."""
    unit = UNIT32

    def of_rest(n: Any, t: Any) -> Any:
        ours = formula(n, t, t * 0, t * 0, t * 0, n.number(1), t * 0, t * 0)
        return ours * (1 - t) - t - 2 * (1 + t) * n.number(unit * (1 + unit))

    def of_mean(n: Any, t: Any) -> Any:  # over t: the formula is linear in t at R = s = 0
        one = n.number(1)
        return (
            formula(n, one, t * 0, one, t * 0, t * 0, one, t * 0)
            - formula(n, one, t * 0, one, t * 0, t * 0, t * 0, t * 0)
        ) * (1 - t) - 1

    def of_offset(n: Any, t: Any) -> Any:  # at t = 0: no term has both
        ours = formula(n, t * 0, t * 0, n.number(1), t * 0, t * 0, t * 0, n.number(1))
        return ours * n.number(2**24) * (1 - t) - (1 + t) * n.number(1 + unit)

    def of_own(n: Any, t: Any) -> Any:  # t/(1 - t), over t
        return formula(n, n.number(1), t * 0, n.number(1), t * 0, t * 0, t * 0, t * 0) * (1 - t) - 1

    def of_other(n: Any, t: Any) -> Any:
        return formula(n, t * 0, n.number(1), t * 0, n.number(1), t * 0, t * 0, t * 0) * (1 - t) - 1

    names = (
        ("R", of_rest),
        ("|E_p d|", of_mean),
        ("|s|", of_offset),
        ("t", of_own),
        ("t'", of_other),
    )
    return all_enclosed(
        [(f"coefficient of {name}", function, [(0, MOST)]) for name, function in names]
    )


@tallied(
    "kernel.filter",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -20,
    told="three tokens, all signs of all errors",
)
def simulate_filter(formula: Formula, effort: Effort) -> Cases:
    """Sums of three tokens, all or two of them in float32, with all signs of all errors at their
    limits, against KL from its definition."""
    rng = random.Random(effort.seed)
    unit = mpmath.mpf(2) ** -24
    for case in range(16):
        inside = [1, 1, case % 3 > 0]  # whether a token is summed in float32
        target = [mpmath.mpf(rng.uniform(-6, 2)) for _ in range(3)]
        draft = [z + mpmath.mpf(rng.uniform(-2, 2)) * mpmath.mpf(10) ** -(case % 4) for z in target]
        between = mpmath.mpf(rng.uniform(-9, 9)) if case % 2 else mpmath.mpf(0)
        error, other = mpmath.mpf(10) ** -(4 + case % 3), mpmath.mpf(10) ** -(4 + case % 2)
        weights, others = [mpmath.exp(z) for z in target], [mpmath.exp(y) for y in draft]
        total, other_total = mpmath.fsum(weights), mpmath.fsum(others)
        ratios = [z - y - between for z, y in zip(target, draft, strict=True)]
        mean = mpmath.fsum(w * d for w, d in zip(weights, ratios, strict=True)) / total
        exact = mean + between - mpmath.log(total) + mpmath.log(other_total)
        share = mpmath.fsum(w for w, there in zip(weights, inside, strict=True) if there) / total
        other_share = (
            mpmath.fsum(x for x, there in zip(others, inside, strict=True) if there) / other_total
        )
        parts = zip(weights, ratios, inside, strict=True)
        rest = mpmath.fsum(w * abs(d) for w, d, there in parts if there) / total
        worst = mpmath.mpf(0)
        for signs in itertools.product((-1, 1), repeat=8):
            first, second, third = signs[:3], signs[3:6], signs[6:]
            crossed = mpmath.fsum(
                w
                * (1 + a * there * error)
                * (((d + between) * (1 + b * there * unit) - between) * (1 + b * there * unit))
                for w, a, b, d, there in zip(weights, first, second, ratios, inside, strict=True)
            )
            mass = total * (1 + third[0] * error * share)
            other_mass = other_total * (1 + third[1] * other * other_share)
            computed = crossed / mass + between - mpmath.log(mass) + mpmath.log(other_mass)
            worst = max(worst, abs(computed - exact))
        bound = formula(MP, error, other, share, other_share, rest, abs(mean), abs(between))
        yield f"case {case}", bound, worst, worst


def _pairs(rng: random.Random) -> list[tuple[list[Any], list[Any]]]:
    """Distributions of 2 to 5 tokens, from equal to far apart, and two at a ratio of e."""
    found = []
    for case in range(120):
        target = [mpmath.mpf(rng.uniform(0.05, 1)) for _ in range(2 + case % 4)]
        draft = [
            w * mpmath.exp(mpmath.mpf(rng.uniform(-3, 3)) * mpmath.mpf(10) ** -(case % 5))
            for w in target
        ]
        found.append(
            ([w / mpmath.fsum(target) for w in target], [w / mpmath.fsum(draft) for w in draft])
        )
    for power in range(1, 6):
        step = mpmath.mpf(10) ** -power
        found.append(
            ([mpmath.mpf(1) / 2] * 2, [mpmath.mpf(1) / 2 - step / 3, mpmath.mpf(1) / 2 + step / 3])
        )
        found.append(([step, 1 - step], [step * mpmath.e, 1 - step * mpmath.e]))
    return found


@check("kernel.filter_size", method="steps")
def prove_size(formula: Formula, effort: Effort) -> Evidence:
    """The formula is KL + sqrt(2 KL)."""
    kl = sympy.symbols("K", positive=True)
    return prove_identities(
        SIZE_STEPS, [("the bound", formula(sympy, kl), kl + sympy.sqrt(2 * kl))], [{kl: R(1, 7)}]
    )


@check("kernel.filter_size", method="enclosure")
def enclose_size(formula: Formula, effort: Effort) -> Evidence:
    """E_p|L| = KL + 2 l, l = sum p log(q/p) over q > p. Merging the tokens with q > p into one, of
    shares x and y, and the others into another, only raises l (Jensen) and lowers KL (log-sum): two
    tokens are the worst, and of these every pair x <= y is enclosed."""
    x, y, z, w, apart, size = sympy.symbols("x y z w d s", positive=True)
    above = {y: x + z * (1 - x)}
    loss = x * sympy.log(y / x)
    kl = (1 - x) * sympy.log((1 - x) / (1 - y)) - loss
    statements: list[Identity | Slope] = [
        Identity("l is 0 at y = x", loss.subs(y, x), 0),
        Slope("l <= y - x: the rest grows with y", y - x - loss, y, (), above, rest=(y - x) / y),
        Identity("KL is 0 at y = x", kl.subs(y, x), 0),
        *(
            Slope(
                f"KL >= 2 (y - x)^2: the rest grows with y {side} 1/2",
                kl - 2 * (y - x) ** 2,
                y,
                (),
                chart,
                rest=(y - x) * (1 - 2 * y) ** 2 / (y * (1 - y)),
            )
            for side, chart in (
                ("up to", {x: w / 2, y: w / 2 + z * (1 - w) / 2}),
                ("beyond", {x: w * (1 + z) / 2, y: (1 + z) / 2}),
            )
        ),
        Slope(
            "bound - KL grows with KL = s^2/2", _beyond(formula, size**2 / 2), size, (), {}, rest=1
        ),
        Identity("it is 2 d at KL = 2 d^2", _beyond(formula, 2 * apart**2), 2 * apart),
    ]
    return enclose_statements(statements, "all 0 < x <= y < 1, hence all distributions")


def _beyond(formula: Formula, kl: Any) -> Any:
    return formula(sympy, kl) - kl


@tallied(
    "kernel.filter_size",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -20,
    told="distributions of 2 to 5 tokens",
)
def search_size(formula: Formula, effort: Effort) -> Cases:
    """Against the mean from its definition."""
    for number, (target, draft) in enumerate(_pairs(random.Random(effort.seed))):
        logs = [mpmath.log(p / q) for p, q in zip(target, draft, strict=True)]
        kl, size = (
            mpmath.fsum(p * f(x) for p, x in zip(target, logs, strict=True)) for f in (_same, abs)
        )
        yield f"pair {number}", formula(MP, kl), size, size


@check("kernel.filter_rest", method="steps")
def prove_rest(formula: Formula, effort: Effort) -> Evidence:
    """The formula is the signed sum and 3/4 of the draft's share."""
    signed, other = sympy.symbols("x q", positive=True)
    identities = [("the bound", formula(sympy, signed, other), signed + R(3, 4) * other)]
    return prove_identities(SIZE_STEPS, identities, [{signed: R(1, 7), other: R(1, 3)}])


@check("kernel.filter_rest", method="enclosure")
def enclose_rest(formula: Formula, effort: Effort) -> Evidence:
    """Token by token, p = t q: the bound is linear in q. Where t >= 1, L is its own size."""

    def spare(n: Any, t: Any) -> Any:
        return formula(n, n.xlogx(t), 1 + t * 0) + n.xlogx(t)

    detail = "every p <= q; beyond, L >= 0 is its own size"
    return all_enclosed([("bound - |p L|, over q", spare, [(F(0), F(1))])], detail=detail)


@tallied(
    "kernel.filter_rest",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -20,
    told="distributions of 2 to 5 tokens",
)
def search_rest(formula: Formula, effort: Effort) -> Cases:
    """Against the sums from their definition, over all but the first and over the first token
    alone."""
    for number, (target, draft) in enumerate(_pairs(random.Random(effort.seed))):
        for part in (slice(1, None), slice(0, 1)):
            pairs = list(zip(target[part], draft[part], strict=True))
            signed, size = (
                mpmath.fsum(p * f(mpmath.log(p / q)) for p, q in pairs) for f in (_same, abs)
            )
            yield (
                f"pair {number}",
                formula(MP, signed, mpmath.fsum(q for _, q in pairs)),
                size,
                size,
            )


def _same(value: Any) -> Any:
    return value
