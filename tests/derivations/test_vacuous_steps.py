"""No step states that something equals itself: both sides are read as they are written, before any
simplification."""

import ast
from pathlib import Path

import pytest

import derivations
from derivations.language.claim import distinct_steps
from derivations.language.written import merged, sides_of

SOURCES = sorted(Path(derivations.__path__[0]).rglob("*.py"))
COMMUTING = ("Min", "Max")
NUMBERS = {"Zero": "0", "One": "1"}


def terms(node):
    """The terms of nested sums, each with its sign, as they are written."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        sign = 1 if isinstance(node.op, ast.Add) else -1
        return terms(node.left) + [(text, sign * own) for text, own in terms(node.right)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [(text, -own) for text, own in terms(node.operand)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        written, sign = factors(node)
        return [(f"product{sorted(written)}", sign)]
    return [(as_written(node), 1)]


def factors(node):
    """The factors of nested products, each with its power, and the sign of all."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        (left, sign), (right, other) = factors(node.left), factors(node.right)
        power = 1 if isinstance(node.op, ast.Mult) else -1
        return left + [(text, power * own) for text, own in right], sign * other
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        written, sign = factors(node.operand)
        return written, -sign
    return [(as_written(node), 1)], 1


def as_written(node):
    """A text that is the same for expressions that differ in order, brackets and the spelling of
    numbers alone."""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)) and not isinstance(
        getattr(node, "op", None), ast.Pow
    ):
        return f"sum{sorted(terms(node))}"
    if isinstance(node, ast.Attribute) and node.attr in NUMBERS:
        return NUMBERS[node.attr]
    if called(node) in COMMUTING:
        return f"{called(node)}({', '.join(sorted(set(extremum_parts(node, called(node)))))})"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return f"{node.func.id}({', '.join(as_written(argument) for argument in node.args)})"
    return spelt(node)


def called(node):
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def extremum_parts(node, name):
    if called(node) != name:
        return [as_written(node)]
    return [part for inner in node.args for part in extremum_parts(inner, name)]


def spelt(node):
    inner = [
        as_written(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
    ]
    own = (
        node.attr
        if isinstance(node, ast.Attribute)
        else type(node).__name__
        if inner
        else ast.unparse(node)
    )
    return f"{own}<{', '.join(inner)}>"


def cancels(node):
    """x - x or x / x, written so."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.Sub, ast.Div))
        and as_written(node.left) == as_written(node.right)
    )


def same_sides(lhs, rhs):
    """Equal as they are written, or made so by a term that is taken off itself."""
    return as_written(lhs) == as_written(rhs) or any(
        cancels(node) for side in (lhs, rhs) for node in ast.walk(side)
    )


def steps_of(source):
    """(line, beginning of the sentence, left side, right side) of every step that states an
    equation or a sign."""
    for node in ast.walk(ast.parse(source)):
        if called(node) == "Step" and len(node.args) > 1:
            rhs = node.args[2] if len(node.args) > 2 else ast.Constant(0)
            yield node.lineno, ast.unparse(node.args[0])[:90], node.args[1], rhs


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_step_has_the_same_on_both_sides(path):
    stated = [
        (line, text) for line, text, lhs, rhs in steps_of(path.read_text()) if same_sides(lhs, rhs)
    ]
    assert stated == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_step_states_the_sign_of_a_letter(path):
    zero, letters = as_written(ast.Constant(0)), (ast.Name, ast.Attribute, ast.Constant)
    found = [
        (line, text)
        for line, text, lhs, rhs in steps_of(path.read_text())
        if isinstance(lhs, letters) and as_written(rhs) == zero
    ]
    assert found == []


def test_no_step_is_shown_with_the_same_on_both_sides():
    steps = [step for kind in distinct_steps().values() for _, step in kind if step.symbolic]
    alike = [step.text for step in steps if merged(step) and len(set(sides_of(step))) == 1]
    assert len(steps) > 400 and alike == []


@pytest.mark.parametrize(
    ("sides", "vacuous"),
    [
        ("Rational(1, 2), Rational(1, 2)", True),
        ("a * (b + c) / d, (c + b) / d * a", True),
        ("Min(Min(f, h), l), Min(f, Min(h, l))", True),
        ("g - g, 0", True),
        ("1 - p / p", True),
        ("-(k * x) * log(x), -k * x * log(x)", True),
        ("(a + b)**2, a**2 + 2 * a * b + b**2", False),
        ("diff(x**2, x), 2 * x", False),
        ("n * (y / n), y", False),
        ("x - y, y - x", False),
    ],
)
def test_the_reader_tells_a_statement_from_a_repetition(sides, vacuous):
    ((_, _, lhs, rhs),) = steps_of(f"Step('so', {sides})")
    assert same_sides(lhs, rhs) == vacuous
