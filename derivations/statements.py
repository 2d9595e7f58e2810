"""What ``python -m proofs_check --html`` typesets of a claim: a relation written here, the claim's
own ``statement``, or its formula on symbols.

Example: claim "caps.log2" is shown as C <= log 2, from the table below; claim "margin.strict" as
inf C = phi(g)."""

from __future__ import annotations

import inspect
import re
from typing import Any

import sympy
from sympy import Eq, Function, Ge, Le, Min, Piecewise, Symbol, exp, log, symbols

from derivations.language.claim import Claim
from derivations.margins.tree_margins import tree_margin_last

__all__ = ["statement_of"]

g, d, t, m, s, alpha, delta, epsilon, tau, a, b, w, c, x = symbols(
    "g d t m s alpha delta epsilon tau a b w c x", positive=True
)
p, q, i, j = (sympy.IndexedBase(name) for name in "pqij")
phi, C, T2, H = Function("phi"), Symbol("C"), Function("T_2"), Symbol("H")
_CORNER = (1 - alpha) / (1 + alpha)
_TOP = (2 + (m - 1) * g) / (m + 1)
_INNER = (2 + 2 * g - t) / 3
_LOW = (1 + g + t) / 3
_GATE = (2 + (m - 1) * (2 * d - t)) / (m + 1)
_INDEX = Symbol("i")
_RANK, _J = Symbol("m", integer=True, positive=True), Symbol("j")


def _perspective(mass: Any, gap: Any) -> Any:
    return mass * phi(gap / mass)


_POOLED = Function("sum_S")(Symbol("p") * log(Symbol("p") / c))  # over the tokens of S


_STRICT_PAIR = p[1] * log(2 * p[1] / (p[1] + p[2])) + p[2] * log(2 * p[2] / (p[1] + p[2]))
_ADDITIVE = Piecewise(
    (phi(g), g > t),
    (sympy.oo, t >= (1 + g) / 2),
    (_perspective(_INNER, t), (g >= t / 2) & (g <= t)),
    (
        log(3) + _LOW * log(_LOW) + (_LOW - g) * log(_LOW - g) + (_LOW - t) * log(_LOW - t),
        g < t / 2,
    ),
)
_TOP_D = _perspective(_TOP.subs(g, d), d)
STATEMENTS: dict[str, Any] = {
    "strict.closed": Eq(C, _STRICT_PAIR),
    "lemma.phi": (Le(x**2 / 2, phi(x)), Le(phi(x), x**2 * log(2))),
    "lemma.pair": Eq(T2(a, b), a * log(2 * a / (a + b)) + b * log(2 * b / (a + b))),
    "caps.log2": Le(C, log(2)),
    "caps.single": Le(C, log(1 + d) - p[_J] * log(p[1] / p[_J])),
    "caps.tree": Le(
        C,
        Min(
            log(1 + sympy.Sum(p[1] - p[_INDEX], (_INDEX, 2, _RANK + 1))),
            (p[1] - p[_RANK + 1]) * log(_RANK + 1),
        ),
    ),
    "caps.tree.one-hot": Le(C, p[1] * log(_RANK + 1)),
    "margin.strict": Eq(Function("inf")(C), phi(g), evaluate=False),
    "margin.additive.at-least": Eq(Function("inf")(C), phi(sympy.Max(g, t))),
    "margin.additive.exact": Eq(Function("inf")(C), _ADDITIVE, evaluate=False),
    "margin.multiplicative": Eq(
        Function("inf")(C),
        Piecewise((phi(g), g >= _CORNER), (g * phi(_CORNER) / _CORNER, g < _CORNER)),
        evaluate=False,
    ),
    "margin.absolute": Eq(
        Function("inf")(C),
        Piecewise((0, g < tau), (_perspective(Min(1, g + 2 * tau), g), True)),
        evaluate=False,
    ),
    "margin.top": Eq(Function("inf")(C), _perspective(_TOP, g), evaluate=False),
    "margin.gate.at-least": Eq(
        Function("inf")(C), Min(_perspective(_TOP, g), phi(sympy.Max(g, t))), evaluate=False
    ),
    "margin.gate.exact": Eq(Function("inf")(C), Min(_perspective(_TOP, g), Function("A_t")(g))),
    "margin.gate.last.exact": Eq(
        Function("inf")(C),
        Piecewise(
            (_TOP_D, d <= t), (_perspective(_GATE, t), 2 * d <= 1 + t), (phi(2 * d - 1), True)
        ),
        evaluate=False,
    ),
    "margin.gate.last.at-least": Eq(
        Function("inf")(C),
        Piecewise((Min(_TOP_D, phi(t)), d <= t), (phi(t), 2 * d <= 1 + t), (phi(2 * d - 1), True)),
        evaluate=False,
    ),
    "margin.gate.multiplicative.last": Eq(
        Function("inf")(C),
        Min(
            _TOP_D,
            Piecewise((d * T2(1, alpha), d * (1 + alpha) <= 1), (phi(2 * d - 1), True)),
            evaluate=False,
        ),
        evaluate=False,
    ),
    "margin.tree.p1-p(m+1)": Eq(Function("T_m")(d), tree_margin_last(sympy, d, m), evaluate=False),
    "margin.entropy.simple": Ge(
        C, _perspective(Min(1, g + 2 * epsilon, g * (1 + delta) / (1 - delta)), g)
    ),
    "entropy.floor": Le(log(b) - b * log(b) - a * log(a) - (1 - a - b) * log(a - g), log(b) + H),
    "upper.relaxed": Le(C, log(1 + p[1])),
    "upper.strict": (Le(phi(g), C), Le(C, _perspective(g + 2 * (1 - g) / Symbol("V"), g))),
    "upper.single": Le(C, Function("U")(d)),
    "rule.threshold": Eq(
        tau,
        Min(
            Symbol("cap"),
            Symbol("scale") * p[1] + Symbol("offset"),
            Symbol("entropy_scale") * exp(-H),
            evaluate=False,
        ),
    ),
    "single.pool": Eq(C, _POOLED, evaluate=False),
    "tree.pool": Eq(C, _POOLED, evaluate=False),
    "bound.kl_upper": None,
    "bound.threshold": None,
    "bound.certificate_lower": None,
}
# What a formula gives, by the first part of the claim's id: certificate, radius, reverse one.
_VALUES = {"drafter": Symbol("r"), "reverse": Symbol("D")}
_NAMES = {
    "slack": t,
    "top_m": m,
    "width": m,
    "alpha": alpha,
    "epsilon": epsilon,
    "delta": delta,
    "tau": tau,
}


def statement_of(claim: Claim) -> tuple[Any, ...]:
    """SymPy relations that say the claim; empty where only the sentence does."""
    if claim.id in STATEMENTS:
        found = STATEMENTS[claim.id]
        return found if isinstance(found, tuple) else () if found is None else (found,)
    if claim.statement is not None:
        return (claim.statement,)
    try:
        names = list(inspect.signature(claim.formula).parameters)[1:]
        letters = _NAMES | {"gap": d if re.search(r"\bd = ", claim.sentence) else g}
        if not names or not set(names) <= set(letters):
            return ()
        value = claim.formula(sympy, *(letters[name] for name in names))
    except (
        TypeError,
        ValueError,
        AttributeError,
    ):  # a formula that branches on its arguments has no one line
        return ()
    relation = {"=": Eq, "<=": Ge, ">=": Le}.get(claim.relation)
    bounded = _VALUES.get(claim.id.partition(".")[0], C)
    if relation is Eq and "margin." in claim.id:
        bounded = Function("inf")(bounded)
    return (
        (relation(bounded, value, evaluate=False),)
        if relation is not None and isinstance(value, sympy.Expr)
        else ()
    )
