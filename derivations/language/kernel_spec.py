"""What a kernel is before it is printed: a scalar formula in the form in which it is to be
evaluated, and the claims it rests on.

Example: log(1 + x) is written ``log1p(x)``, and ``difference()`` shows by SymPy that both are the
same function. Each printer of ``derivations.kernels.printers`` turns the form into one language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import sympy
from sympy.codegen.cfunctions import expm1, log1p

__all__ = ["PRINTERS", "KernelSpec", "in_elementary_functions", "kernel_family"]

PRINTERS = ("numba", "torch", "triton")


@dataclass(frozen=True)
class KernelSpec:
    """A scalar kernel ``name(*arguments)``.

    ``form`` is the evaluation form; the names in ``lets`` (in order) are intermediate results that
    keep it from being rearranged. ``textbook`` is the same quantity as its definition writes it:
    ``difference()`` must vanish. ``domain`` says where the two agree and where the form may be
    evaluated."""

    name: str
    arguments: tuple[str, ...]
    form: sympy.Expr
    claims: tuple[str, ...]
    doc: str
    domain: str
    derivation: str
    lets: Mapping[str, sympy.Expr] = field(default_factory=dict)
    textbook: sympy.Expr | None = None
    printers: tuple[str, ...] = PRINTERS

    def __post_init__(self) -> None:
        known = {sympy.Symbol(name, real=True) for name in self.arguments}
        for name, value in [*self.lets.items(), ("result", self.form)]:
            unknown = value.free_symbols - known
            if unknown:
                raise ValueError(
                    f"kernel {self.name}: {name} uses {sorted(map(str, unknown))}, which is no "
                    "argument"
                )
            known.add(sympy.Symbol(name, real=True))
        if not self.claims:
            raise ValueError(f"kernel {self.name}: names no claim")

    @cached_property
    def expression(self) -> sympy.Expr:
        """The form in the arguments alone."""
        expression = self.form
        for name, value in reversed(list(self.lets.items())):
            expression = expression.subs(sympy.Symbol(name, real=True), value)
        return expression

    def difference(self) -> sympy.Expr:
        """Evaluation form minus textbook form, in elementary functions; 0 where the rewriting is
        right."""
        if self.textbook is None:
            return sympy.S.Zero
        difference = in_elementary_functions(self.expression) - in_elementary_functions(
            self.textbook
        )
        positive = {
            symbol: sympy.Symbol(symbol.name, positive=True) for symbol in difference.free_symbols
        }
        return sympy.simplify(
            sympy.expand(sympy.expand_log(sympy.factor(difference.subs(positive)), force=True))
        )


def in_elementary_functions(expression: sympy.Expr) -> sympy.Expr:
    """Undo the rewritings log1p(x) = log(1 + x) and expm1(x) = exp(x) - 1, and take the regular
    branch of a Piecewise (its last one)."""
    expression = expression.replace(sympy.Piecewise, lambda *branches: branches[-1][0])
    expression = expression.replace(log1p, lambda x: sympy.log(1 + x))
    return expression.replace(expm1, lambda x: sympy.exp(x) - 1)


def kernel_family(
    module: str, domain: str, printers: tuple[str, ...], shared_claims: tuple[str, ...] = ()
) -> Callable[..., KernelSpec]:
    """Makes the kernels that ``module`` derives for one domain: ``make(name, arguments, form,
    claims, doc, lets)``, arguments and claims as words; the first claim is the one whose derivation
    is told, ``shared_claims`` come last."""

    def make(
        name: str,
        arguments: str,
        form: sympy.Expr,
        claims: str,
        doc: str,
        lets: Mapping[str, sympy.Expr] | None = None,
    ) -> KernelSpec:
        words = claims.split()
        return KernelSpec(
            name=name,
            arguments=tuple(arguments.split()),
            form=form,
            claims=(*words, *shared_claims),
            derivation=f"{module} ({words[0]})",
            domain=domain,
            doc=doc,
            printers=printers,
            lets=lets or {},
        )

    return make
