"""Generated functions that are loops, run as they are written but with every number exact, and
compared case by case with what their claims say.

Example: ``single_token_pool`` on the weights 1, 1/2, 1/4 and rejected rank 2 returns (1, 5/4): the
level with the first is 5/8, and 1/2 is not above it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

from derivations.language.claim import Formula
from proofs_check.methods.numbers import MP, working_digits
from proofs_check.methods.printed import Printed, all_printed, printed_as
from proofs_check.outcome import Evidence, Verdict

__all__ = ["Looped", "Run"]

Run = Callable[..., Any]
Cases = Callable[[Callable[..., Run]], Iterator[tuple[str, Any, Any]]]


@dataclass(frozen=True)
class Looped:
    """A loop beside its reference. ``cases(load)`` yields (label, what the text gives, what is
    true); ``load(**called)`` is the text as a function, the functions that it calls replaced by
    those given, or read from the same file."""

    function: str
    cases: Cases
    domain: str

    @property
    def files(self) -> list[Printed]:
        return printed_as(self.function)

    def look(self, text: Printed, formula: Formula) -> Evidence:
        count = 0
        with working_digits(50):
            for label, found, true in self.cases(lambda **called: _compiled(text, called)):
                count += 1
                if not _agree(found, true):
                    return Evidence(
                        "printed", Verdict.REFUTED, None, f"{found} for {true}", label, count
                    )
        if not count:
            return Evidence("printed", Verdict.UNDECIDED, None, "?", "no case", 0)
        detail = f"run in exact numbers, {count} cases, {self.domain}"
        return Evidence("printed", Verdict.VERIFIED, cases=count, detail=detail)


def _agree(found: Any, true: Any) -> bool:
    if isinstance(true, tuple):
        return len(found) == len(true) and all(map(_agree, found, true))
    if isinstance(true, (int, Fraction)):
        return bool(found == true)
    return bool(abs(found - true) <= MP.mpf(10) ** -40 * (1 + abs(true)))


def _compiled(text: Printed, called: dict[str, Run]) -> Run:
    """The function, its floats as fractions; called scalars in mpmath, as their own text says."""
    names: dict[str, Any] = {"Fraction": Fraction}
    for key, scalar in all_printed().items():
        if key.endswith(f"_{text.file.rpartition('_')[2]}.{scalar.name}") and scalar.scalar:
            names[scalar.name] = lambda *given, own=scalar: own.formula(MP, *map(_exactly, given))
    exact = _Exact().visit(ast.parse(ast.unparse(text.node)).body[0])
    exact.decorator_list = []
    module = ast.fix_missing_locations(ast.Module([exact], []))
    exec(compile(module, str(text), "exec"), names | called, names)
    function: Run = names[text.name]
    function.__globals__.update(names | called)
    return function


def _exactly(value: Any) -> Any:
    return mpmath.mpf(value.numerator) / value.denominator if hasattr(value, "numerator") else value


class _Exact(ast.NodeTransformer):
    """Floats as integers and fractions."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, float):
            return node
        exact = Fraction(node.value)
        if exact.denominator == 1:
            return ast.Constant(exact.numerator)
        parts: list[ast.expr] = [ast.Constant(exact.numerator), ast.Constant(exact.denominator)]
        return ast.Call(ast.Name("Fraction", ast.Load()), parts, [])
