"""How large a certificate can be at a given margin: the sharp upper bounds of strict, single-token
and tree rules, and the targets that attain them."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import log

from derivations.formulas.caps import CAP_TREE
from derivations.formulas.strict import phi, xlogx
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import PAIR_OF_ONE, PAIR_WEIGHTS
from derivations.margins.margins import PAIR_MONOTONE, mass_and_gap

__all__ = ["relaxed_upper", "single_upper", "single_vertex", "strict_upper", "tree_upper"]

G, D, S, V, N, X = sympy.symbols("g d s V N x", positive=True)


def strict_upper(numbers: Any, gap: Any, num_tokens: int) -> Any:
    """s phi(g/s), s = g + 2 (1-g)/V; attained by p = (1 + (V-1) g, 1-g, ..., 1-g)/V. Its limit in V
    is g log 2."""
    return mass_and_gap(numbers, gap + 2 * (1 - gap) / num_tokens, gap)


def single_upper(numbers: Any, gap: Any) -> Any:
    """U(d), N = floor(1/d), r = 1 - N d: N d log((N+1)/N) if r <= N d/(N+1), else log(N+2) + N d
    log d + r log r."""
    if gap == 0:
        return gap
    whole = _whole_part(numbers, 1 / gap)
    rest = 1 - whole * gap
    if rest * (whole + 1) <= whole * gap:
        return whole * gap * numbers.log((gap * 0 + whole + 1) / whole)
    return numbers.log(gap * 0 + whole + 2) + whole * xlogx(numbers, gap) + xlogx(numbers, rest)


def _whole_part(numbers: Any, ratio: Any) -> Any:
    """floor(1/d); an arithmetic of symbols knows its own."""
    return numbers.floor(ratio) if hasattr(numbers, "floor") else int(ratio)


def single_vertex(gap: Any) -> list[Any]:
    """The target that attains U(d): N tokens of d, one of 1 - N d, and a rejected token of 0."""
    whole = int(1 / gap)
    return [*[gap] * whole, 1 - whole * gap, gap * 0]


def tree_upper(numbers: Any, gap: Any, width: int) -> Any:
    """d log(m+1), d = p1 - p_{m+1}; approached by p = (d, tail spread thin)."""
    return gap * numbers.log(gap * 0 + width + 1)


def relaxed_upper(numbers: Any, top: Any) -> Any:
    """log(1 + p1): all that p1 - p2 leaves of an upper bound for top-m; attained by (1/2, 1/2, 0)
    at m = 2."""
    return numbers.log(1 + top)


def _one_pool(numbers: Any, gap: Any) -> Any:
    whole = _whole_part(numbers, 1 / gap)
    return whole * gap * numbers.log((gap * 0 + whole + 1) / whole)


_PAIR_MASS = G + 2 * (1 - G) / V
_TOP = (1 + D) / (N + 1)
_AT_LEAST_PHI = Step(
    "The pair of token 1 and the rejected one costs no more than the pool: s phi(d/s), s <= 1 the "
    "pair's mass and d its gap, which falls in s: at least phi(d).",
    how="cited",
    cites=("single.dual", "lemma.pair"),
    instances=(PAIR_WEIGHTS, PAIR_OF_ONE),
)
UPPER_STRICT = Derivation(
    "The rest of the mass is spread as thin as the ranking allows",
    (
        *PAIR_MONOTONE,
        Step(
            "C = s phi(g/s) falls in s, and s = g + 2 p_2 is least where p_2 is: all V - 1 tokens "
            "after the first are at most p_2, so p_2 >= (1-g)/V.",
            (1 - G) / V + G + (V - 1) * (1 - G) / V,
            1,
        ),
        Step("s = g + 2 (1-g)/V > g, so g/s stays below 1:", _PAIR_MASS - G, 2 * (1 - G) / V),
        Step(
            "As V grows, s phi(g/s) tends to g phi(1) = g log 2.",
            G * phi(sympy, sympy.S.One),
            G * log(2),
        ),
        _AT_LEAST_PHI,
    ),
)
UPPER_SINGLE = Derivation(
    "A convex function is largest at a vertex",
    (
        Step(
            "The region for a fixed j is an intersection of half-spaces: C_p is convex in p.",
            how="cited",
            cites=("lemma.mixture",),
            instances=(
                Instance("lemma.mixture", (at.f, at.h, at.k), (1 - at.k) * at.f + at.k * at.h),
            ),
        ),
        Step(
            "On a segment it is at most the larger end, of the two ends b + r and b:",
            at.over_vertices(),
            0,
            "nonnegative",
        ),
        Step("The polytope {p: p_1 - p_j = d, p_i <= p_1}.", how="definition"),
        Step(
            "Two other tokens x, y strictly between 0 and p_1 may trade mass e both ways, which "
            "keeps the "
            "sum: no vertex. So at a vertex all but one of the other tokens are 0 or p_1.",
            (at.x + at.a) + (at.y - at.a),
            at.x + at.y,
        ),
        Step(
            "Vertex with p_j > 0: n tokens at a, a - d at j, (n+1) a = 1 + d. Its value f_n(d) is "
            "convex in d: the second derivative of n a log a + b log b, a = (1+d)/(n+1), b = a - "
            "d, is",
            sympy.diff(N * _TOP * log(_TOP) + (_TOP - D) * log(_TOP - D), D, 2),
            N / ((N + 1) * (1 + D)) + N**2 / ((N + 1) * (1 - N * D)),
        ),
        Step(
            "with f_n(0) = 0 and, at d = 1/n, log((n+1)/n):",
            log(N + 1) + N * (1 / N) * log(1 / N),
            log(N + 1) - log(N),
        ),
        Step(
            "so f_n(d) <= n d log((n+1)/n), which grows with n <= N = floor(1/d): (x "
            "log(1+1/x))'' = -1/(x (1+x)^2),",
            sympy.diff(X * log(1 + 1 / X), X, 2),
            -1 / (X * (1 + X) ** 2),
        ),
        Step(
            "a concave function whose slope tends to 0:",
            sympy.limit(at.diff(at.x * at.log(1 + 1 / at.x), at.x), at.x, sympy.oo),
            0,
        ),
        Step("Vertex with p_j = 0: N tokens of d, one of r = 1 - N d.", how="definition"),
        Step(
            "If r is not pooled, the level is N d/(N+1), and the value N d log((N+1)/N);",
            N * D * log(D / (N * D / (N + 1))),
            N * D * log((N + 1) / N),
        ),
        Step(
            "otherwise all N + 2 tokens share c = 1/(N+2): log(N+2) + N d log d + r log r, n = N, "
            "s = r = 1 - N d;",
            at.n * at.x * at.log(at.x * (at.n + 2))
            + at.s * at.log(at.s * (at.n + 2))
            - (at.n * at.x + at.s) * at.log(at.n + 2),
            at.n * at.x * at.log(at.x) + at.s * at.log(at.s),
        ),
        Step(
            "either way the value is at least that of the smaller pool, hence at least every "
            "f_n(d).",
            how="cited",
            cites=("single.dual",),
            instances=(PAIR_WEIGHTS,),
        ),
        Step(
            "So U is the certificate of a target with the gap d, and at most log(1 + d).",
            how="cited",
            cites=("caps.single",),
            instances=(Instance("caps.single", ([at.y, 0], 1), log(1 + at.y)),),
        ),
        _AT_LEAST_PHI,
    ),
)
UPPER_TREE = Derivation(
    "A lone top over a thin tail",
    (
        *CAP_TREE.steps[-6:],
        Step(
            "Sharp: p = (d + e, e, ..., e), e -> 0, pools to c = (d + (m+1) e)/(m+1), and the "
            "value tends to d log(d/(d/(m+1))).",
            D * log(D / (D / (N + 1))),
            D * log(N + 1),
        ),
    ),
)
UPPER_RELAXED = Derivation(
    "A tie at the top says nothing about the rejected token",
    (
        Step(
            "C_p <= log(1 + d), d = p_1 - p_j <= p_1 (claim caps.single); with p_1 = d + x:",
            (D + X) - D,
            X,
        ),
        Step(
            "(1/2, 1/2, 0) with m = 2 has p1 - p2 = 0 and pools to 1/3: log(3/2).",
            2 * sympy.Rational(1, 2) * log(sympy.Rational(1, 2) / sympy.Rational(1, 3)),
            log(sympy.Rational(3, 2)),
        ),
    ),
)

declare(
    Claim(
        id="upper.strict",
        sentence="phi(g) <= C <= g log 2 for the strict rule at margin g = p1 - p2; for V tokens "
        "the greatest certificate is s phi(g/s), s = g + 2(1-g)/V.",
        domain="0 <= g <= 1, V >= 2",
        theory="B (upper bounds, strict)",
        relation=">=",
        formula=strict_upper,
        derivation=UPPER_STRICT,
        mutants=(
            Mutant(
                "one token more",
                lambda n, gap, count: mass_and_gap(n, gap + 2 * (1 - gap) / (count - 1), gap),
            ),
            Mutant("phi(g)", lambda n, gap, count: phi(n, gap)),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="upper.single",
        sentence="phi(d) <= C_p <= U(d) <= log(1+d) for every single-token rule, d = p1 - p_j; U "
        "is the supremum over all vocabularies.",
        domain="0 < d <= 1, j the competitor",
        theory="B (upper bounds, U(d))",
        relation=">=",
        formula=single_upper,
        derivation=UPPER_SINGLE,
        mutants=(
            Mutant("the remainder never pooled", _one_pool),
            Mutant("phi(d)", lambda n, gap: phi(n, gap)),
        ),
        min_methods=3,
    )
)
declare(
    Claim(
        id="upper.tree",
        sentence="The tree certificate is at most d log(m+1), d = p1 - p_{m+1}, and no smaller "
        "multiple of the margin will do.",
        domain="0 <= d <= 1, m >= 1, any vocabulary of more than m tokens",
        theory="B (upper bounds, tree)",
        relation=">=",
        formula=tree_upper,
        derivation=UPPER_TREE,
        mutants=(Mutant("d log m", lambda n, gap, width: gap * n.log(gap * 0 + width)),),
        min_methods=3,
    )
)
declare(
    Claim(
        id="upper.relaxed",
        sentence="Every finite single-token certificate is at most log(1 + p1), attained at p1 - "
        "p2 = 0.",
        domain="any target, any rejected token",
        theory="B (upper bounds, relaxed rules)",
        relation=">=",
        formula=relaxed_upper,
        derivation=UPPER_RELAXED,
        mutants=(Mutant("p1 log 2", lambda n, top: top * n.log(top * 0 + 2) * 9 / 10),),
        min_methods=3,
    )
)
