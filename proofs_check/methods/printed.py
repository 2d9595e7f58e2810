"""The generated files as text: each function parsed from the file that runs, and evaluated in any
arithmetic. The objects of ``derivations`` that printed it are never looked at.

Example: ``all_printed()["margins_python.strict_margin"].formula(sympy, g)`` is what the line
``return 0.5*excess_cost(gap) + 0.5*excess_cost(-gap)`` says of a symbol g, its floats taken
exactly."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import sympy

from derivations.kernels.emit import GENERATED

__all__ = ["GENERATED", "Printed", "all_printed", "parse", "printed_as"]

_CLAIMS = re.compile(r"^# claims: (.*)\n(?:@.*\n)*def (\w+)", re.MULTILINE)
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


_ROUNDED = {Fraction(math.log(2)): ("log", 2), Fraction(math.sqrt(2)): ("sqrt", 2)}


class Unreadable(ValueError):
    """A generated function says something that is no scalar formula."""


@dataclass(frozen=True)
class Printed:
    """One function of a generated file: its arguments, its assignments, what it returns."""

    file: str
    name: str
    node: ast.FunctionDef
    claims: tuple[str, ...]
    beside: Mapping[str, Printed]  # the functions of the same file, which it may call

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(argument.arg for argument in self.node.args.args)

    @cached_property
    def scalar(self) -> bool:
        """A formula: assignments and one return, no loop."""
        return (
            isinstance(self.node.body[-1], ast.Return)
            and all(isinstance(line, (ast.Assign, ast.Expr, ast.Return)) for line in self.node.body)
            and not any(isinstance(part, ast.Tuple) for part in ast.walk(self.node))
        )

    def formula(self, numbers: Any, *arguments: Any) -> Any:
        """The function's value in the arithmetic ``numbers``: floats exactly as they are written,
        the branches of a choice by comparison."""
        return self.evaluated(numbers, arguments, {}, set())

    @cached_property
    def choices(self) -> list[ast.expr]:
        """The conditions of its choices."""
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        return [node.test for node in ast.walk(self.node) if isinstance(node, ast.IfExp)] + [
            node.args[0] for node in calls if _name(node) == "where"
        ]

    def evaluated(
        self,
        numbers: Any,
        arguments: tuple[Any, ...],
        known: Mapping[str, Callable[..., Any]],
        taken: set[tuple[int, bool]],
    ) -> Any:
        """The same with some called functions replaced, ``known[name](numbers, *arguments)``; notes
        in ``taken`` which way each choice went."""
        if len(arguments) != len(self.arguments):
            raise TypeError(
                f"{self.file}: {self.name} takes {', '.join(self.arguments)}, got {len(arguments)}"
            )
        names = dict(zip(self.arguments, arguments, strict=True))
        reader = _Reader(numbers, names, self, known, taken)
        for line in self.node.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                reader.later[line.targets[0].id] = line.value
            elif isinstance(line, ast.Return) and line.value is not None:
                return reader.value(line.value)
            elif not isinstance(line, ast.Expr):
                raise Unreadable(f"{self.file}: {self.name}: {ast.unparse(line)}")
        raise Unreadable(f"{self.file}: {self.name} returns nothing")

    def __str__(self) -> str:
        return f"{self.file}.{self.name}"


class _Reader:
    """Expressions of the printed languages, over one arithmetic."""

    def __init__(
        self,
        numbers: Any,
        names: dict[str, Any],
        home: Printed,
        known: Mapping[str, Callable[..., Any]],
        taken: set[tuple[int, bool]],
    ) -> None:
        self.numbers, self.names, self.home = numbers, names, home
        self.known, self.taken = known, taken
        # assignments are read where they are used: a quotient by 0 that no branch uses is harmless
        self.later: dict[str, ast.expr] = {}

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=float() | int() as number):
                return self.literal(Fraction(number))
            case ast.Name(id=name):
                if name in self.later:
                    self.names[name] = self.value(self.later.pop(name))
                return self.names[name]
            case ast.Attribute(attr="inf"):
                return sympy.oo if self.numbers is sympy else math.inf
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.BinOp(left=left, op=operation, right=right):
                return _ARITHMETIC[type(operation)](self.value(left), self.value(right))
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return self.value(body if self.holds(test) else otherwise)
            case ast.Call():
                return self.call(node)
        raise Unreadable(f"{self.home}: {ast.unparse(node)}")

    def literal(self, exact: Fraction) -> Any:
        if exact in _ROUNDED:  # a printer that wants tensors writes log(2) as the nearest float
            function, argument = _ROUNDED[exact]
            return self.elementary(function, self.literal(Fraction(argument)))
        if self.numbers is sympy:
            return sympy.Rational(exact.numerator, exact.denominator)
        lift = getattr(self.numbers, "number", None) or getattr(self.numbers, "mpf", None)
        if lift is None:
            return exact
        return (
            lift(exact)
            if hasattr(self.numbers, "number")
            else lift(exact.numerator) / (exact.denominator)
        )

    def holds(self, node: ast.expr) -> bool:
        if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
            raise Unreadable(f"{self.home}: {ast.unparse(node)}")
        answer = bool(
            _ORDER[type(node.ops[0])](self.value(node.left), self.value(node.comparators[0]))
        )
        self.taken.add((id(node), answer))
        return answer

    def call(self, node: ast.Call) -> Any:
        function = _name(node)
        if function == "float":
            return sympy.oo if self.numbers is sympy else math.inf
        if function == "where":
            return self.value(node.args[1] if self.holds(node.args[0]) else node.args[2])
        given = [self.value(argument) for argument in node.args]
        if function == "clamp":
            (bound,) = node.keywords
            given.append(self.value(bound.value))
            function = {"max": "min", "min": "max"}[str(bound.arg)]
        if function in ("min", "minimum", "max", "maximum"):
            return self.extremum(function[:3], *given)
        if function == "abs":
            return self.extremum("max", given[0], -given[0])
        if function in self.known:
            return self.known[function](self.numbers, *given)
        if function in self.home.beside:
            beside = self.home.beside[function]
            return beside.evaluated(self.numbers, tuple(given), self.known, self.taken)
        if function in ("log", "exp", "sqrt", "log1p", "expm1"):
            return self.elementary(function, given[0])
        raise Unreadable(f"{self.home}: {ast.unparse(node)}")

    def extremum(self, which: str, first: Any, second: Any) -> Any:
        if self.numbers is sympy:
            return (sympy.Min if which == "min" else sympy.Max)(first, second)
        return (
            (first if first <= second else second)
            if which == "min"
            else (first if first >= second else second)
        )

    def elementary(self, function: str, value: Any) -> Any:
        if hasattr(self.numbers, function) and self.numbers is not sympy:
            return getattr(self.numbers, function)(value)
        if function == "log1p":
            return self.numbers.log(1 + value)
        if function == "expm1":
            return self.numbers.exp(value) - 1
        return getattr(self.numbers, function)(value)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def parse(file: str, text: str) -> dict[str, Printed]:
    """The functions of a generated file's text, by name."""
    claims = {name: tuple(stated.split(", ")) for stated, name in _CLAIMS.findall(text)}
    found: dict[str, Printed] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = Printed(file, node.name, node, claims.get(node.name, ()), found)
    return found


@lru_cache(maxsize=1)
def all_printed() -> dict[str, Printed]:
    """Every function of every generated file, as ``file.function``."""
    return {
        f"{path.stem}.{name}": function
        for path in sorted(GENERATED.glob("*_*.py"))
        if not path.stem.startswith("__")
        for name, function in parse(path.stem, path.read_text("utf-8")).items()
    }


def printed_as(function: str) -> list[Printed]:
    """``topic.name`` in every file that has it, numba's, torch's and Triton's; LookupError where
    none has."""
    topic, _, name = function.rpartition(".")
    found = [
        text
        for text in all_printed().values()
        if text.name == name and text.file.rpartition("_")[0] == topic
    ]
    if not found:
        raise LookupError(f"no generated file has {function}")
    return found
