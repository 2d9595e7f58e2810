"""Every symbolic step at random numbers: what SymPy simplifies, logarithms split by force among it,
holds without its simplification too."""

import random

import mpmath
import pytest
import sympy

from derivations.language import letters as at
from derivations.language.claim import Step, distinct_steps

CLOSE = mpmath.mpf("1e-25")
STEPS = [
    (claim, step)
    for kind in ("identity", "nonnegative")
    for claim, step in distinct_steps()[kind]
    if (sympy.sympify(step.lhs) - sympy.sympify(step.rhs)).free_symbols
]


def drawn(rng, letter):
    """A number of the letter's sign, below 1."""
    if letter.is_integer:
        return rng.randint(1, 9)
    size = mpmath.mpf(rng.randint(1, 999)) / 1000
    return size if letter.is_nonnegative or rng.random() < 0.5 else -size


def fails(step, rng, draws=3):
    """The numbers at which a step does not hold; None where it holds at all that are inside its
    domain, of which there has to be one."""
    difference = sympy.sympify(step.lhs) - sympy.sympify(step.rhs)
    letters = sorted(difference.free_symbols, key=str)
    value, seen = sympy.lambdify(letters, difference, modules="mpmath"), 0
    with mpmath.workdps(40):
        for _ in range(20 * draws):
            numbers = [drawn(rng, letter) for letter in letters]
            try:
                found = mpmath.mpmathify(value(*numbers))
            except (ZeroDivisionError, ValueError):
                continue
            if not mpmath.isfinite(found):
                continue
            if step.how == "identity" and abs(found) > CLOSE:
                return dict(zip(letters, numbers, strict=True))
            if step.how == "nonnegative" and isinstance(found, mpmath.mpc):
                continue  # a logarithm outside its domain
            if step.how == "nonnegative" and found < -CLOSE:
                return dict(zip(letters, numbers, strict=True))
            seen += 1
            if seen == draws:
                return None
    return "never inside its domain"


def test_every_symbolic_step_holds_in_numbers():
    rng = random.Random(20261130)
    failing = [(claim, step.text, where) for claim, step in STEPS if (where := fails(step, rng))]
    assert len(STEPS) > 400 and not failing, failing


@pytest.mark.parametrize(
    "step",
    [
        Step("log of a square of any sign", at.log(at.f**2), 2 * at.log(at.f)),
        Step("a sign that is another", at.x - at.y, 0, "nonnegative"),
    ],
    ids=lambda step: step.text,
)
def test_a_step_that_numbers_refute_is_seen(step):
    assert fails(step, random.Random(1))
