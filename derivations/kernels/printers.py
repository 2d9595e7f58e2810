"""Printers from SymPy expressions to source text: Python for numba and for plain use, torch, and
Triton. They print what they are given and rearrange nothing; an expression they do not know is an
error, never a guess."""

from __future__ import annotations

import sympy
from sympy import Rational
from sympy.codegen.cfunctions import expm1, log1p
from sympy.printing.precedence import PRECEDENCE, precedence
from sympy.printing.printer import Printer

__all__ = [
    "NumbaPrinter",
    "NumpyPrinter",
    "PythonPrinter",
    "SourcePrinter",
    "TorchPrinter",
    "TritonPrinter",
    "printer_for",
]


class SourcePrinter(Printer):
    """What the printers share: float64 literals, products and quotients, and names of functions
    from a table."""

    printmethod = "_source"
    name = ""
    preamble = ""  # imports of the generated file
    decorator = ""
    infinity = ""  # how a printer writes it
    choice = ""  # of {value} and {otherwise} by {condition}
    functions: dict[str, str] = {}  # noqa: RUF012  (each printer has its own table, none changes it)
    flags = "no fast math, float64"

    def emptyPrinter(self, expr: object) -> str:
        raise NotImplementedError(f"{self.name} printer: no rule for {type(expr).__name__} {expr}")

    def _print_Function(self, expr: sympy.Function) -> str:
        return self._call(type(expr).__name__, *expr.args)

    _print_exp = _print_log = _print_Abs = _print_Function

    def _call(self, function: str, *args: sympy.Expr) -> str:
        if function not in self.functions:
            raise NotImplementedError(f"{self.name} printer: no {function}")
        return f"{self.functions[function]}({', '.join(self._print(arg) for arg in args)})"

    def _print_Float(self, expr: sympy.Float) -> str:
        return repr(float(expr))

    def _print_Integer(self, expr: sympy.Integer) -> str:
        return f"{int(expr)}.0"

    def _print_Rational(self, expr: Rational) -> str:
        value = float(expr)
        return repr(value) if Rational(value) == expr else f"({int(expr.p)}.0 / {int(expr.q)}.0)"

    _print_Half = _print_Rational

    def _print_Infinity(self, expr: sympy.Expr) -> str:
        return self.infinity

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return expr.name

    def _print_Pow(self, expr: sympy.Pow) -> str:
        base, exponent = expr.base, expr.exp
        if exponent == Rational(1, 2):
            return self._call("sqrt", base)
        if exponent.is_negative:
            return f"1.0/{self.parenthesize(base**-exponent, PRECEDENCE['Pow'])}"
        if exponent.is_Integer and 2 <= exponent <= 4:
            return "*".join([self.parenthesize(base, PRECEDENCE["Mul"])] * int(exponent))
        raise NotImplementedError(f"{self.name} printer: power {exponent}")

    def _print_Mul(self, expr: sympy.Mul) -> str:
        above, below = [], []
        for factor in expr.args:
            if isinstance(factor, sympy.Pow) and factor.exp.is_negative:
                below.append(factor.base**-factor.exp)
            else:
                above.append(factor)
        sign = ""
        if above and above[0] == -1 and len(above) > 1:
            sign, above = "-", above[1:]
        parts = [self.parenthesize(factor, PRECEDENCE["Mul"]) for factor in above] or ["1.0"]
        text = sign + "*".join(parts)
        for factor in below:
            text += f"/{self.parenthesize(factor, PRECEDENCE['Pow'])}"
        return text

    def _print_Add(self, expr: sympy.Add) -> str:
        text = ""
        for position, term in enumerate(
            sorted(expr.args, key=lambda term: term.could_extract_minus_sign())
        ):
            negative = term.could_extract_minus_sign()
            body = self.parenthesize(-term if negative else term, PRECEDENCE["Add"])
            if position == 0:
                text = f"-{body}" if negative else body
            else:
                text += f" {'-' if negative else '+'} {body}"
        return text

    def _print_Relational(self, expr: sympy.core.relational.Relational) -> str:
        return f"{self._print(expr.lhs)} {expr.rel_op} {self._print(expr.rhs)}"

    def _print_Min(self, expr: sympy.Min) -> str:
        return self._extremum("Min", expr)

    def _print_Max(self, expr: sympy.Max) -> str:
        return self._extremum("Max", expr)

    def _extremum(self, function: str, expr: sympy.Expr) -> str:
        *rest, last = sorted(expr.args, key=str)
        text = self._print(last)
        while rest:
            text = f"{self.functions[function]}({self._print(rest.pop())}, {text})"
        return text

    def _print_Piecewise(self, expr: sympy.Piecewise) -> str:
        *branches, (otherwise, condition) = expr.args
        if condition != sympy.true:
            raise NotImplementedError(
                f"{self.name} printer: a Piecewise without a last branch that always holds"
            )
        text = self._print(otherwise)
        for value, condition in reversed(branches):
            text = self.choice.format(
                condition=self._print(condition), value=self._print(value), otherwise=text
            )
        return text

    def parenthesize(self, expr: sympy.Expr, level: int) -> str:
        """Text of ``expr`` in parentheses where it binds less tightly than ``level``."""
        text = self._print(expr)
        if expr.is_Rational or expr.is_Float:
            binds = PRECEDENCE["Atom"] if expr >= 0 else PRECEDENCE["Add"]
        elif isinstance(expr, sympy.Pow) and expr.exp != Rational(1, 2):
            binds = PRECEDENCE["Mul"]  # powers are printed as products and quotients
        elif isinstance(expr, (sympy.Pow, sympy.Min, sympy.Max, sympy.Piecewise)):
            binds = PRECEDENCE["Atom"]  # a call
        else:
            binds = precedence(expr)
        return text if binds >= level else f"({text})"


class PythonPrinter(SourcePrinter):
    """Plain Python on ``math``: for scalars outside the kernels."""

    name = "python"
    preamble = "import math"
    infinity = "math.inf"
    choice = "({value} if {condition} else {otherwise})"
    functions = {  # noqa: RUF012
        "exp": "math.exp",
        "log": "math.log",
        "log1p": "math.log1p",
        "expm1": "math.expm1",
        "sqrt": "math.sqrt",
        "Abs": "abs",
        "Min": "min",
        "Max": "max",
        "cosh": "math.cosh",
        "floor": "math.floor",
        "excess_cost": "excess_cost",
        "surplus": "surplus",
    }


class NumbaPrinter(PythonPrinter):
    """The same text, callable from compiled numba code; a quotient by zero is an IEEE infinity
    there."""

    name = "numba"
    preamble = "import math\n\nfrom numba.extending import register_jitable"
    decorator = '@register_jitable(error_model="numpy")'


class TensorPrinter(SourcePrinter):
    """Functions that want tensors: what has no argument of the kernel in it is printed as a
    number, log(2) as 0.6931471805599453."""

    def _print_Function(self, expr: sympy.Function) -> str:
        return super()._print_Function(expr) if expr.free_symbols else repr(float(expr))

    _print_exp = _print_log = _print_Abs = _print_Function

    def _print_Pow(self, expr: sympy.Pow) -> str:
        return super()._print_Pow(expr) if expr.free_symbols else repr(float(expr))


class TorchPrinter(TensorPrinter):
    """torch float64 tensors, elementwise."""

    name = "torch"
    preamble = "import torch"
    infinity = "torch.inf"
    choice = "torch.where({condition}, {value}, {otherwise})"
    functions = {  # noqa: RUF012
        "exp": "torch.exp",
        "log": "torch.log",
        "log1p": "torch.log1p",
        "expm1": "torch.expm1",
        "sqrt": "torch.sqrt",
        "Abs": "torch.abs",
        "Min": "torch.minimum",
        "Max": "torch.maximum",
        "cosh": "torch.cosh",
        "floor": "torch.floor",
        "surplus": "surplus",
    }

    def _extremum(self, function: str, expr: sympy.Expr) -> str:
        numbers = [arg for arg in expr.args if arg.is_number]
        if len(numbers) == 1 and len(expr.args) == 2:
            (other,) = (arg for arg in expr.args if not arg.is_number)
            keyword = "max" if function == "Min" else "min"
            return f"torch.clamp({self._print(other)}, {keyword}={self._print(numbers[0])})"
        return super()._extremum(function, expr)


class NumpyPrinter(SourcePrinter):
    """numpy float64 arrays, elementwise; every branch is evaluated, so callers silence what they
    discard."""

    name = "numpy"
    preamble = "import numpy as np"
    infinity = "np.inf"
    choice = "np.where({condition}, {value}, {otherwise})"
    functions = {  # noqa: RUF012
        "exp": "np.exp",
        "log": "np.log",
        "log1p": "np.log1p",
        "expm1": "np.expm1",
        "sqrt": "np.sqrt",
        "Abs": "np.abs",
        "Min": "np.minimum",
        "Max": "np.maximum",
        "surplus": "surplus",
    }


class TritonPrinter(TensorPrinter):
    """Triton scalars or blocks in float64."""

    name = "triton"
    preamble = (
        "import triton\nimport triton.language as tl\n\n"
        "from certspec.kernels.triton.functions import expm1, log1p"
    )
    decorator = "@triton.jit"
    infinity = 'float("inf")'
    choice = "tl.where({condition}, {value}, {otherwise})"
    functions = {  # noqa: RUF012
        "exp": "tl.exp",
        "log": "tl.log",
        "log1p": "log1p",
        "expm1": "expm1",
        "sqrt": "tl.sqrt",
        "Abs": "tl.abs",
        "Min": "tl.minimum",
        "Max": "tl.maximum",
        "surplus": "surplus",
    }


def printer_for(name: str) -> SourcePrinter:
    """The printer of that name; KeyError for an unknown one."""
    return {
        p.name: p for p in (PythonPrinter, NumpyPrinter, NumbaPrinter, TorchPrinter, TritonPrinter)
    }[name]()


# The functions above that are rewritings: what each stands for (checked in tests and by the claims
# that use them).
REWRITES = {log1p: lambda x: sympy.log(1 + x), expm1: lambda x: sympy.exp(x) - 1}
