"""Checks of the arithmetic behind kernels that are written by hand: the constants in their sources,
the bounds over whole ranges by intervals, and the operations replayed with exact rationals and
rounding."""

from __future__ import annotations

import ast
import random
from fractions import Fraction as F
from pathlib import Path
from typing import Any

import mpmath
import numpy
import sympy

from certspec import kernels
from derivations.arithmetic.kernel_arithmetic import (
    EXP_STEPS,
    HALF_LOG2,
    SEGMENT_STEPS,
    TAYLOR_DEGREE,
)
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, tallied
from proofs_check.methods.jets import all_enclosed, derivative
from proofs_check.methods.numbers import MP, to_mp
from proofs_check.methods.steps import Identities, proved
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

_EXPONENTIALS = Path(kernels.__file__).parent / "numba" / "exponentials.py"
END = F(int(HALF_LOG2.p), int(HALF_LOG2.q))
R = sympy.Rational


def _polynomial() -> list[F]:
    """Coefficients c_2..c_13 of the kernel's source, highest first, as the exact quotients that it
    writes."""
    tree = ast.parse(_EXPONENTIALS.read_text(encoding="utf-8"))
    body = next(
        node for node in ast.walk(tree) if getattr(node, "name", "") == "_scale_and_remainder"
    )
    found = []
    for node in ast.walk(body):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "tail":
            text = ast.unparse(
                node.value.args[2] if isinstance(node.value, ast.Call) else node.value
            )
            top, _, bottom = text.partition("/")
            found.append(F(top.strip()) / F(bottom.strip() or "1"))
    return found


def _constant(name: str) -> F:
    """A constant of the kernel's source that is written as float.fromhex."""
    for node in ast.parse(_EXPONENTIALS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return F(float.fromhex(node.value.args[0].value))  # type: ignore[attr-defined]
    raise LookupError(f"{_EXPONENTIALS}: expected a constant {name}, found none")


@proved("kernel.exp", EXP_STEPS)
def prove_exp(formula: Formula, effort: Effort) -> Identities:
    """The source has coefficients 1/n! and log 2 in two parts that leave 2^-86; at r = 0 the bound
    is 1 and 2^-20."""
    coefficients = _polynomial()
    yield "degree", len(coefficients), TAYLOR_DEGREE - 1
    for value, power in zip(coefficients, range(TAYLOR_DEGREE, 1, -1), strict=False):
        exact = R(value.numerator, value.denominator)
        yield f"coefficient of r^{power}", exact, 1 / sympy.factorial(power)
    high, low = _constant("_LOG2_HIGH"), _constant("_LOG2_LOW")
    left = abs(
        sympy.N(
            sympy.log(2) - R(high.numerator, high.denominator) - R(low.numerator, low.denominator),
            60,
        )
    )
    yield "log 2 in two parts, within 2^-86", sympy.Integer(1 if left < R(1, 2**86) else 0), 1
    at_zero = 1 + R(1, 2**20) * (1 + R(1, 2**40))
    yield "bound at r = 0", sympy.nsimplify(formula(sympy, R(0))), at_zero
    # one rounding of t and one of its coefficient in each step, carried down by powers of r
    size, last = R(1, 3), TAYLOR_DEGREE
    factorials = [sympy.factorial(n) for n in range(last + 2)]
    tails = {
        k: sum(size ** (j - k) / factorials[j] for j in range(k, last + 1))
        for k in range(2, last + 1)
    }
    lost = sum(
        size ** (k - 2) * (tails[k] + (1 / factorials[k] if k > 2 else 0))
        for k in range(2, last + 1)
    )
    counted = size**2 * (lost + 2 * tails[2]) + size
    counted += size ** (last + 1) / factorials[last + 1] * (1 + size / 14) * 2**53
    counted += (size + R(1, 2**20)) * (1 + 2 * size)
    at_third = counted / (1 - size) * (1 + R(1, 2**40)) + 1
    yield "bound at r = 1/3", sympy.nsimplify(formula(sympy, size)), at_third


@check("kernel.exp", method="enclosure")
def enclose_exp(formula: Formula, effort: Effort) -> Evidence:
    """The bound stays below 8 u = 4 ulp on the whole range of r; what is left out is below 2^-56
    |r|."""
    last = int(sympy.factorial(TAYLOR_DEGREE + 1))
    return all_enclosed(
        [
            ("8 u - bound", lambda n, size: 8 - formula(n, size), [(0, END)]),
            (
                "terms left out <= 2^-56 |r|",
                lambda n, size: (
                    n.number(F(1, 2**56)) - size**TAYLOR_DEGREE * (1 + size / 14) / last
                ),
                [(0, END)],
            ),
            (
                "exp(-r) - 1 + r, 0 at 0 with its slope, is convex",
                derivative(_above_tangent, order=2),
                [(0, END)],
            ),
        ]
    )


def _above_tangent(n: Any, size: Any) -> Any:
    return n.exp(-size) - 1 + size


@tallied(
    "kernel.exp",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -6,
    told="exact rationals, rounded after every operation",
)
def replay_exp(formula: Formula, effort: Effort) -> Cases:
    """The kernel's operations in exact rationals, each rounded to float64 as the machine does:
    never off by more."""
    rng = random.Random(effort.seed)
    coefficients = [F(float(c)) for c in _polynomial()]
    high, low = _constant("_LOG2_HIGH"), _constant("_LOG2_LOW")
    points = [-rng.uniform(0, 700) for _ in range(150)] + [-rng.uniform(0, 1) for _ in range(150)]
    points += [(k + 0.5) * float(mpmath.log(2)) for k in range(-40, 0)]
    for x in points:
        k = round(F(x) / (high + low))
        r = _rounded(F(_rounded(F(x) - k * high)) - k * low)
        tail = coefficients[0]
        for coefficient in coefficients[1:]:
            tail = F(_rounded(tail * F(r) + coefficient))
        remainder = F(_rounded(F(_rounded(F(r) * F(r))) * tail + F(r)))
        computed = to_mp(F(_rounded(1 + remainder)))
        off = abs(computed / mpmath.exp(mpmath.mpf(x) - k * mpmath.log(2)) - 1) * 2**53
        yield f"x={x!r}", MP.mpf(formula(MP, abs(mpmath.mpf(r)))), off, off


def _rounded(value: F) -> float:
    return value.numerator / value.denominator  # Python rounds a quotient of integers correctly


@proved("kernel.segments", SEGMENT_STEPS)
def prove_segments(formula: Formula, effort: Effort) -> Identities:
    """The library's constants: its additions' bound is this formula, and its log2 e is off by less
    than it says."""
    from certspec.kernels.triton.segments import (
        CONSTANT_ERROR,
        EXACT_EXP2_ERROR,
        EXACT_EXPONENT_ERROR,
        EXACT_FARTHEST_ERROR,
        LOW_AT_ONCE,
        segment_errors,
    )

    for vector, near, tiles, added in ((8, 4, 4, 4), (4, 4, 4, 2), (4, 8, 1, 8), (1, 1, 1, 1)):
        # Of e x, and of e: sums over tiles, columns and threads. Of e x a product before them, of e
        # one after them, with the shift of the reference; both then meet in a sum; sums of
        # segments.
        within = (tiles - 1) + (vector - 1) + (near - 1)
        additions = max(within + 2 + (added - 1), 1 + (LOW_AT_ONCE - 1))
        library = F(segment_errors(vector, near, tiles, added).addition).limit_denominator(10**40)
        close = abs(float(formula(sympy, sympy.Integer(additions))) / float(library) - 1) < 1e-14
        yield f"addition of {additions} terms", sympy.Integer(int(close)), 1
    constant = F(float(numpy.float32(numpy.log2(numpy.e))))
    off = abs(sympy.N(R(constant.numerator, constant.denominator) * sympy.log(2) - 1, 40))
    yield "the constant's error", sympy.Integer(1 if off < CONSTANT_ERROR else 0), 1
    # x = fl(fl(c z) - M) in float64, c = log2 e (1 + t), |t| <= u: |x^ - x| <= (2 u + u^2) |c z| (1
    # + u) + u |x|, and |log2 e z| <= |x| + |M|
    unit = R(1, 2**53)
    of_x = ((1 + unit) ** 2 - 1) * (1 + unit) + unit
    far = R(EXACT_EXP2_ERROR) + 1076 * R(EXACT_EXPONENT_ERROR) * R(7, 10)  # 7/10 > log 2
    constant = F(float(numpy.log2(numpy.e)))
    off = abs(sympy.N(R(constant.numerator, constant.denominator) * sympy.log(2) - 1, 40))
    for name, holds in (
        ("float64's log2 e", off < unit),
        ("float64's exponent", of_x <= R(EXACT_EXPONENT_ERROR)),
        ("float64's farthest", far <= R(EXACT_FARTHEST_ERROR)),
    ):
        yield name, sympy.Integer(int(bool(holds))), 1


@check("kernel.segments", method="enclosure")
def enclose_segments(formula: Formula, effort: Effort) -> Evidence:
    """1.01 n u >= (1+u)^n - 1 in s = n u up to 1/64: divided by s, as (1+u)^n <= exp(s) <= 1 + s +
    s^2/2 (1+s)."""
    most = F(1, 64)

    def spare(
        n: Any, s: Any
    ) -> Any:  # (bound - (s + s^2/2 (1+s)))/s, at n = s 2^24: the formula is linear in n
        return formula(n, n.number(2**24)) - 1 - s / 2 * (1 + s)

    return all_enclosed(
        [
            ("bound over s", spare, [(0, most)]),
            (
                "exp(s) <= 1 + s + s^2/2 (1+s): the third derivatives differ by",
                lambda n, s: 3 - n.exp(s),
                [(0, most)],
            ),
            (
                "2^t - 1 <= 1.01 log2 t for the exponents' errors, slopes",
                lambda n, t: n.number(F(101, 100)) - n.exp(t * n.log(n.number(2))),
                [(0, F(1, 128))],
            ),
        ]
    )


@tallied(
    "kernel.segments",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -12,
    told="float32, and all roundings one way",
)
def add_in_float32(formula: Formula, effort: Effort) -> Cases:
    """Sequential float32 sums of n equal or random terms, against the exact sum of the same
    terms."""
    rng = numpy.random.default_rng(effort.seed)
    for count in (2, 100, 5000):
        for name, terms in (("random", rng.random(count)), ("equal", numpy.full(count, 0.1))):
            values = terms.astype(numpy.float32)
            computed = float(numpy.add.accumulate(values, dtype=numpy.float32)[-1])
            off = abs(mpmath.mpf(computed) / mpmath.fsum(map(mpmath.mpf, values.tolist())) - 1)
            yield f"{count} {name} terms", MP.mpf(formula(MP, MP.mpf(count - 1))), off, off
    unit = mpmath.mpf(2) ** -24
    for count in (10**3, 10**5, 2**18):  # the worst that n roundings upwards can do
        worst = (1 + unit) ** count - 1
        yield f"{count} roundings upwards", MP.mpf(formula(MP, MP.mpf(count))), worst, worst
