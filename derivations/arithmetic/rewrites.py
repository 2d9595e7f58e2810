"""Claims on the evaluation forms that the kernels use: each equals its textbook formula, and
cancels nothing. The forms are the KernelSpecs of ``derivations.kernels.evaluation``; what is under
test is the expression that is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import sympy
from sympy import exp, log
from sympy.codegen.cfunctions import expm1, log1p

from derivations.kernels.evaluation import BREGMAN_TERM, ENTROPY, PAIR_COST, POOL_TERM
from derivations.kernels.margin_kernels import SERIES_TERMS, excess_series
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Formula, Mutant, Step, declare
from derivations.language.kernel_spec import KernelSpec, in_elementary_functions

__all__ = [
    "BREGMAN",
    "ENTROPY_SUM",
    "EXCESS",
    "POOL_IN_EXCESS",
    "STRICT_FORM",
    "as_formula",
    "mutate",
    "symbol",
]

U, D = sympy.symbols("u d", real=True)
W1, W2, W3, MASS, GAP = sympy.symbols("w_1 w_2 w_3 s delta", positive=True)


def symbol(name: str) -> sympy.Symbol:
    """A kernel's argument, as it stands in the kernel's expression."""
    return sympy.Symbol(name, real=True)


def as_formula(
    spec: KernelSpec, change: Callable[[sympy.Expr], sympy.Expr] | None = None
) -> Formula:
    """The kernel's expression as ``formula(numbers, *arguments)``; ``change`` makes a mutant of it.

    In SymPy the regular branch of a Piecewise is taken and log1p, expm1 are spelt out; in other
    arithmetics the expression is evaluated as the kernel does, in the same order of operations as
    far as SymPy keeps it."""
    expression = spec.expression if change is None else change(spec.expression)
    symbols = [symbol(name) for name in spec.arguments]
    compiled: dict[Any, Callable[..., Any]] = {}
    texts: dict[bool, FunctionType] = {}  # as Python, by whether the regular branch alone is taken

    def formula(numbers: Any, *arguments: Any) -> Any:
        if numbers is sympy:
            return in_elementary_functions(expression).subs(
                dict(zip(symbols, arguments, strict=True)), simultaneous=True
            )
        if numbers not in compiled:
            compiled[numbers] = compile_for(numbers)
        return compiled[numbers](*arguments)

    own = inspect.Parameter.POSITIONAL_ONLY  # so that whoever reads a domain reads names
    formula.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, own) for name in ("numbers", *spec.arguments)]
    )

    def compile_for(numbers: Any) -> Callable[..., Any]:
        # intervals can't decide the conditions of a Piecewise: the regular branch
        regular = hasattr(numbers, "sign_of")
        names = {name: getattr(numbers, name) for name in ("log", "exp", "sqrt", "log1p", "expm1")}
        names |= {
            "Min": min,
            "Max": max,
            "Abs": abs,
            "number": getattr(numbers, "number", lambda value: value),
        }
        if regular not in texts:
            chosen = expression
            if regular:
                chosen = expression.replace(sympy.Piecewise, lambda *branches: branches[-1][0])
            texts[regular] = sympy.lambdify(symbols, chosen, modules=[names])
        text = texts[regular]  # one text serves every arithmetic: only the names differ
        return FunctionType(text.__code__, text.__globals__ | names)

    return formula


def mutate(old: Any, new: Any) -> Callable[[sympy.Expr], sympy.Expr]:
    """A change that replaces a subexpression; ValueError where it does not occur, so that no mutant
    is idle."""

    def change(expression: sympy.Expr) -> sympy.Expr:
        changed = (
            expression.replace(old, new)
            if callable(old) or isinstance(old, type)
            else expression.subs(old, new)
        )
        if changed == expression:
            raise ValueError(f"mutant: {old} does not occur in {expression}")
        return changed

    return change


def _phi(excess: Any) -> Any:
    return (1 + excess) * log(1 + excess) - excess


_MEAN = (W1 + W2 + W3) / 3

POOL_IN_EXCESS = Derivation(
    "A pool's value in excesses over its mean",
    (
        Step(
            "With u = w/c - 1: c ((1+u) log(1+u) - u) = w log(w/c) - w + c.",
            MASS * _phi(W1 / MASS - 1),
            W1 * log(W1 / MASS) - W1 + MASS,
        ),
        Step(
            "Over a pool of mean c the terms -w + c sum to zero, for n members of sum y:",
            -at.y + at.n * (at.y / at.n),
            0,
        ),
        Step("phi(u) = (1+u) log(1+u) - u vanishes at 0,", _phi(sympy.S.Zero), 0),
        Step("and so does its derivative log(1+u);", sympy.diff(_phi(U), U), log(1 + U)),
        Step(
            "its second derivative 1/(1+u) is positive on (-1, inf): every term is >= 0.",
            sympy.diff(_phi(U), U, 2),
            1 / (1 + U),
        ),
        Step(
            "So the sum has no cancellation near a tie, where sum w log w - s log(s/n) loses "
            "every digit. log1p keeps the relative accuracy of log(1+u) for small u.",
            how="remark",
        ),
    ),
)
STRICT_FORM = Derivation(
    "The pair cost as s phi(d/s)",
    (
        Step(
            "With p1 = s(1+x)/2 and p2 = s(1-x)/2: p1 log(2 p1/s) + p2 log(2 p2/s) = s/2 ((1+x) "
            "log(1+x) + (1-x) log(1-x)).",
            MASS * (1 + U) / 2 * log(1 + U) + MASS * (1 - U) / 2 * log(1 - U),
            MASS * ((1 + U) * log(1 + U) + (1 - U) * log(1 - U)) / 2,
        ),
        Step("p1 - p2 = s x.", MASS * (1 + U) / 2 - MASS * (1 - U) / 2, MASS * U),
        Step(
            "The derivative in x is s artanh(x) >= 0 and the value at x = 0 is 0.",
            sympy.diff(MASS * ((1 + U) * log(1 + U) + (1 - U) * log(1 - U)) / 2, U),
            MASS * (log(1 + U) - log(1 - U)) / 2,
        ),
    ),
)
BREGMAN = Derivation(
    "KL as a sum of nonnegative terms",
    (
        Step("With d = log(p/q), p exp(-d) = q.", W1 * exp(-log(W1 / W2)), W2),
        Step(
            "So p (d + exp(-d) - 1) = p log(p/q) - p + q.",
            W1 * (log(W1 / W2) + W2 / W1 - 1),
            W1 * log(W1 / W2) - W1 + W2,
        ),
        Step(
            "The terms -p + q sum to zero over the vocabulary, because both distributions sum to "
            "1; one token against the rest:",
            (-at.x + at.y) + (-(1 - at.x) + (1 - at.y)),
            0,
        ),
        Step(
            "d + exp(-d) - 1 vanishes at 0 with its derivative 1 - exp(-d);",
            sympy.diff(D + exp(-D) - 1, D),
            1 - exp(-D),
        ),
        Step(
            "its second derivative exp(-d) is positive: every term is >= 0.",
            sympy.diff(D + exp(-D) - 1, D, 2),
            exp(-D),
        ),
    ),
)
ENTROPY_SUM = Derivation(
    "Entropy from gaps to the maximum",
    (
        Step(
            "p = exp(-g)/S, so -log p = g + log S;",
            -sympy.expand_log(log(exp(-GAP) / MASS), force=True),
            GAP + log(MASS),
        ),
        Step(
            "averaging over p gives H = E_p[g] + log S, one token (gap f) against the rest (mean "
            "gap h):",
            at.x * (at.f + at.l) + (1 - at.x) * (at.h + at.l),
            (at.x * at.f + (1 - at.x) * at.h) + at.l,
        ),
        Step(
            "two terms that are >= 0: gaps are, and S = 1 + t holds exp(0) of the largest.",
            at.log(1 + at.t),
            0,
            "nonnegative",
        ),
    ),
)

_R = U / (2 + U)


def excess_by_series(numbers: Any, excess: Any) -> Any:
    """The branch of the kernel excess_cost near 0."""
    ratio = excess / (2 + excess)
    return excess_series(excess, ratio, ratio * ratio)


def _series_of_artanh_halved(numbers: Any, excess: Any) -> Any:
    ratio = excess / (2 + excess)
    return excess_series(excess, ratio, ratio * ratio / 2)


EXCESS = Derivation(
    "Phi near zero by the series of artanh",
    (
        Step(
            "log(1+u) = 2 artanh(r), r = u/(2+u): the derivatives in u agree, and both vanish at "
            "0.",
            sympy.diff(log(1 + _R) - log(1 - _R), U),
            1 / (1 + U),
        ),
        Step("2 r - u = -r u, so log(1+u) - u = 2 (artanh(r) - r) - r u.", 2 * _R - U, -_R * U),
        Step(
            "Hence phi(u) = (1+u) log(1+u) - u = (1+u)(2 (artanh(r) - r) - r u) + u^2: no two "
            "terms nearly cancel.",
            (1 + U) * (D - U) + U**2,
            (1 + U) * D - U,
        ),
        Step(
            "artanh(r) - r = r^3/3 + r^5/5 + ... is cut after r^19/19. A term left out has a "
            "factor 1/(21 + t), t even, at most 1/21,",
            sympy.Rational(1, 21) - 1 / (21 + at.t),
            0,
            "nonnegative",
        ),
        Step(
            "and a geometric series S = 1 + r^2 S is 1/(1 - r^2): what is left out is at most 2 "
            "(1+u) |r|^21/(21 (1 - r^2)).",
            1 + at.r**2 / (1 - at.r**2),
            1 / (1 - at.r**2),
        ),
        Step(
            "phi(u) >= u^2/(2 (1+u/3)): both vanish twice at 0, and the second derivatives differ "
            "by",
            at.diff((1 + at.x) * at.log(1 + at.x) - at.x - at.x**2 / (2 * (1 + at.x / 3)), at.x, 2),
            at.x**2 * (9 + at.x) / ((1 + at.x) * (3 + at.x) ** 3),
        ),
        Step(
            "which is not negative for u = y - 1 > -1.",
            (at.y - 1) ** 2 * (8 + at.y) / (at.y * (2 + at.y) ** 3),
            0,
            "nonnegative",
        ),
        Step(
            "With u = 2r/(1 - r) the ratio of the two is (3 - r) |r|^19/(63 (1 - r)), shown for r "
            "> 0; for r < 0 only |r|^19 = (-r)^19 differs,",
            2
            * (1 + 2 * at.x / (1 - at.x))
            * at.x**21
            / (21 * (1 - at.x**2))
            / ((2 * at.x / (1 - at.x)) ** 2 / (2 * (1 + 2 * at.x / (1 - at.x) / 3))),
            (3 - at.x) * at.x**19 / (63 * (1 - at.x)),
        ),
        Step(
            "where (3 - r)/(1 - r) <= 13/4 for r <= 1/9, that is 1 - r = 8/9 + t:",
            sympy.Rational(13, 4)
            - (2 + sympy.Rational(8, 9) + at.t) / (sympy.Rational(8, 9) + at.t),
            0,
            "nonnegative",
        ),
        Step(
            "so that with |r| <= 1/9 the part left out is below 2^-56 of phi(u).",
            sympy.Rational(1, 2**56) - sympy.Rational(13, 4 * 63 * 9**19),
            0,
            "nonnegative",
        ),
    ),
)
declare(
    Claim(
        id="eval.excess",
        sentence="A pool's phi(u) = (1+u) log1p(u) - u is (1+u)(2 (artanh r - r) - r u) + u^2, r = "
        f"u/(2+u); {SERIES_TERMS} terms of the series of artanh r - r give it within 2^-54, "
        "relatively.",
        domain="-1/5 <= u <= 1/5",
        theory="A1 (evaluation)",
        relation="=",
        formula=excess_by_series,
        derivation=EXCESS,
        mutants=(Mutant("r^2 halved in the series", _series_of_artanh_halved),),
    )
)
declare(
    Claim(
        id="eval.pool",
        sentence="sum w log(w/c) = sum c phi(w/c - 1) over a pool of mean c, with phi(u) = (1+u) "
        "log1p(u) - u >= 0.",
        domain="weights >= 0, mean c > 0",
        theory="A1 (evaluation)",
        relation="=",
        formula=as_formula(POOL_TERM),
        derivation=POOL_IN_EXCESS,
        mutants=(
            Mutant(
                "log1p(u) without its factor 1+u",
                as_formula(POOL_TERM, mutate(log1p, lambda u: log1p(u) / (1 + u))),
            ),
            Mutant(
                "log1p read as log",
                as_formula(POOL_TERM, mutate(log1p, lambda u: log(1 + 2 * u) / 2)),
            ),
        ),
    )
)
declare(
    Claim(
        id="eval.strict",
        sentence="p1 log(2 p1/s) + p2 log(2 p2/s) = s ((1+x) log1p(x) + (1-x) log1p(-x))/2, s = "
        "p1+p2, x = (p1-p2)/s.",
        domain="p1 >= p2 > 0",
        theory="A1 (strict, evaluation)",
        relation="=",
        formula=as_formula(PAIR_COST),
        derivation=STRICT_FORM,
        mutants=(Mutant("the half is lost", as_formula(PAIR_COST, lambda form: 2 * form)),),
    )
)
declare(
    Claim(
        id="eval.bregman",
        sentence="KL(target || draft) = sum p (d + expm1(-d)) with d = log(p/q), and every term "
        "is >= 0.",
        domain="p > 0, q > 0, both sum to 1 over the vocabulary (tokens with p = 0 contribute q)",
        theory="F (Bregman form)",
        relation="=",
        formula=as_formula(BREGMAN_TERM),
        derivation=BREGMAN,
        mutants=(
            Mutant(
                "expm1(d) for expm1(-d)",
                as_formula(BREGMAN_TERM, mutate(expm1, lambda x: -expm1(-x))),
            ),
        ),
    )
)
declare(
    Claim(
        id="eval.entropy",
        sentence="H(p) = log S + E_p[max z - z] for p = softmax(z), S = sum exp(z - max z); both "
        "terms are >= 0.",
        domain="finite logits (masked tokens contribute nothing)",
        theory="F (entropy)",
        relation="=",
        formula=as_formula(ENTROPY),
        derivation=ENTROPY_SUM,
        mutants=(
            Mutant(
                "the mean gap subtracted",
                as_formula(ENTROPY, lambda form: form - 2 * sympy.Symbol("mean_gap", real=True)),
            ),
        ),
    )
)
