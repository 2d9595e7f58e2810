"""Safety factors of certifying kernels stand in ``derivations.kernels.constants``: none is left as
a bare number in a kernel, and each names claims that exist or says that it has none."""

import ast
from pathlib import Path

import pytest

import certspec
from certspec.kernels.loading import load_kernels
from certspec.kernels.numba import exponentials
from derivations.kernels.constants import CONSTANTS
from derivations.language.claim import all_claims

FOLDERS = [Path(certspec.__file__).parent / name for name in ("kernels", "certificates")]
KERNELS = sorted(
    path for folder in FOLDERS for path in folder.rglob("*.py") if path.parent.name != "generated"
)
NAMED = {abs(float(item.value)) for item in CONSTANTS if not isinstance(item.value, int)}
ALLOWED = {0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0}
# Numbers that pay for no error, by file.
OTHERS = {
    "compiled.py": {0.05},  # seconds between two looks at a compilation
    "drafter_entropy.py": {0.02},  # the lowest multiplier of a grid
    "exponentials.py": {1.5, 700.0},  # adding 1.5 * 2^52 rounds to an integer; LOWEST_GAP
    "filter_loop.py": {1.5},  # the same in float32
    "margins.py": {1e-308},  # where a search begins
    # where searches begin, which cells they look at, and x^6/30 of a series
    "margin_bounds.py": {1e-306, 1e-308, 1e-9, 30.0},
    "mistakes.py": {0.01},  # how far a sum of rounded probabilities may be from 1
    "ranks.py": {1.4426950408889634},  # log2 e
    "segments.py": {1.44269502162933349609375, 127.0},  # log2 e in float32; its exponents
    # orders that are refused; how far exponents are moved, and below which weight nothing is said
    "divergences.py": {0.01, 0.05, 64.0, 600.0, 1e-100},
    # where searches begin and end, and how near to its end counts as there
    "sampling.py": {1e-6, 1e-18, 8.0, 700.0},
    "vectors.py": {1.5},
    "written.py": {2e-6},  # how exact a server's float32 log-softmax is taken to be
}


def bare_factors(source, others=()):
    """(line, text) of numbers that look like safety factors: tiny ones, those a little above one,
    those that a declared constant has, negative powers of two, and multiples of a unit roundoff."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and type(node.value) is float:
            size = abs(node.value)
            tiny_or_just_above_one = 0.0 < size < 0.1 or 1.0 < size < 2.0
            bare = (tiny_or_just_above_one or size in NAMED) and size not in {*ALLOWED, *others}
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            bare = isinstance(node.left, ast.Constant) and _is_negative_number(node.right)
        else:
            bare = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _of_unit(node)
        if bare:
            found.append((node.lineno, ast.unparse(node)))
    return found


def _is_negative_number(node):
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    )


def _of_unit(product):
    """A number above 2 in what a unit roundoff is multiplied with."""
    sides = (product.left, product.right)
    units = [side for side in sides if ast.unparse(side).split(".")[-1].strip("_")[:4] == "UNIT"]
    numbers = {
        node.value
        for side in sides
        if side not in units
        for node in _outside_brackets(side)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
    }
    return bool(units) and any(number > 2 and number != 128 for number in numbers)


def _outside_brackets(node):
    """A tree without its subscripts: ``at[5]`` is no number."""
    yield node
    if not isinstance(node, ast.Subscript):
        for child in ast.iter_child_nodes(node):
            yield from _outside_brackets(child)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_safety_factor_stands_bare_in_a_certifying_kernel(path):
    assert bare_factors(path.read_text("utf-8"), OTHERS.get(path.name, ())) == []


@pytest.mark.parametrize(
    "planted",
    (
        "error = 1.01 * other",
        "wide = 1.001 * share",
        "slack = size * (64 * UNIT)",
        "slack = (size + 12) * _UNIT",
        "slack = constants.UNIT * 40.0",
        "error = error + 2e-15",
        "unit = 2.0**-53",
        "reach = min(gap, 745.0)",
        "floor = -700.0",
    ),
)
def test_a_planted_safety_factor_is_found(planted):
    assert bare_factors(planted)


def test_what_is_no_safety_factor_is_left_alone():
    assert bare_factors("y = 2.0 * x + 0.5 - 1.0 / n + 2 * UNIT * size + ROOM * error") == []


def test_every_constant_is_printed_with_its_value_and_names_claims_that_exist():
    printed, claims = load_kernels("constants"), set(all_claims())
    for item in CONSTANTS:
        assert getattr(printed, item.name) == item.value or float(item.value) == getattr(
            printed, item.name
        )
        assert set(item.claims) <= claims, item.name
        assert item.sentence.endswith(".")


def test_exp_ends_where_the_constant_says():
    assert exponentials.LOWEST == load_kernels("constants").LOWEST_GAP


def test_a_constant_without_a_claim_says_what_it_is_instead():
    words = [
        "definition",
        "ssumed",
        "o claim",
        "choice",
        "no bound",
        "property",
        "taken",
        "spacing",
    ]
    silent = [
        item.name
        for item in CONSTANTS
        if not item.claims and not any(word in item.sentence for word in words)
    ]
    assert silent == []
