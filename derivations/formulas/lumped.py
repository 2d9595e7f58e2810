"""Certificates from truncated lists: k listed tokens, as serving engines log them, and one lump
that holds the mass of all others. What the list leaves open only makes the certificate smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.single_token import POOLING, pooled_value, single_pool
from derivations.formulas.strict import xlogx
from derivations.formulas.tree import TREE_POOLING
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Instance, Mutant, Step, declare
from derivations.language.instances import MERGED, PAIR_POOL, UNORDERED

__all__ = [
    "accepted_bound",
    "corner_maximum",
    "entropy_bound",
    "inside_threshold",
    "lumped_divergence",
    "single_threshold",
    "tail_threshold",
    "tree_threshold",
]


def lumped_divergence(
    numbers: Any, target_probs: Sequence[Any], draft_probs: Sequence[Any], num_listed: int
) -> Any:
    """K_O = sum_O p log(p/q) + p_T log(p_T/q_T): the first ``num_listed`` tokens are listed, the
    others lumped."""
    pairs = list(zip(target_probs[:num_listed], draft_probs[:num_listed], strict=True))
    pairs.append((sum(target_probs[num_listed:]), sum(draft_probs[num_listed:])))
    return sum((xlogx(numbers, p) - p * numbers.log(q) for p, q in pairs if p > 0), pairs[0][0] * 0)


def inside_threshold(numbers: Any, listed_probs: Sequence[Any], competitor: int) -> Any:
    """C(j), its pool taken among the listed tokens only."""
    return pooled_value(numbers, [listed_probs[i] for i in single_pool(listed_probs, competitor)])


def tail_threshold(numbers: Any, listed_probs: Sequence[Any], tail: Any) -> Any:
    """C_T = min K_O with q_T >= max_O q: the pool of A1 with the lump as competitor."""
    return inside_threshold(numbers, [*listed_probs, tail], len(listed_probs))


def single_threshold(
    numbers: Any, listed_probs: Sequence[Any], tail: Any, rejected: Sequence[int]
) -> Any:
    """min(C(j_O), C_T): what K_O has to stay below where the draft's token may be unlisted."""
    value = tail_threshold(numbers, listed_probs, tail)
    if rejected:
        value = min(
            value,
            inside_threshold(numbers, listed_probs, max(rejected, key=lambda i: listed_probs[i])),
        )
    return value


def lumped_tree_value(
    numbers: Any, listed_probs: Sequence[Any], tail: Any, width: int, num_in_tail: int
) -> Any:
    """min K_O with q_i >= q_1 for i in 2..m+1-r and q_T >= r q_1: S = {1} u {p_i < c} u {T if p_T <
    r c}."""
    rivals = [(prob, 1) for prob in listed_probs[1 : width + 1 - num_in_tail]]
    if num_in_tail:
        rivals.append((tail, num_in_tail))
    mass, count, pool = listed_probs[0], 1, [(listed_probs[0], 1)]
    for prob, copies in sorted(rivals, key=lambda rival: rival[0] / rival[1]):
        if not prob * count < mass * copies:
            break
        mass, count = mass + prob, count + copies
        pool.append((prob, copies))
    level = mass / count
    value = sum((xlogx(numbers, prob) for prob, _ in pool), mass * 0)
    return value - sum(prob * numbers.log(copies * level) for prob, copies in pool)


def tree_threshold(
    numbers: Any, listed_probs: Sequence[Any], tail: Any, width: int, num_unlisted: int
) -> Any:
    """The least of those values over r, the number of competitors in the tail; +inf for a
    vocabulary of <= m tokens."""
    possible = [
        r for r in range(min(width, num_unlisted) + 1) if len(listed_probs) >= width + 1 - r
    ]  # m - r competitors are listed beside token 1
    values = [lumped_tree_value(numbers, listed_probs, tail, width, r) for r in possible]
    return min(values) if values else math.inf


def entropy_bound(numbers: Any, listed_probs: Sequence[Any], tail: Any) -> Any:
    """H_lo = -sum_O p log p - N p_k log p_k - r log r, N = floor(p_T/p_k), r = p_T - N p_k."""
    least = listed_probs[-1]
    copies = int(numbers.floor(tail / least))
    return (
        -sum(xlogx(numbers, prob) for prob in listed_probs)
        - copies * xlogx(numbers, least)
        - xlogx(numbers, tail - copies * least)
    )


def accepted_bound(numbers: Any, listed_probs: Sequence[Any], competitor_bound: Any) -> Any:
    """All listed tokens accepted: the pool with a competitor of mass min(p_k, p_T, tau) >= p_j."""
    return inside_threshold(numbers, [*listed_probs, competitor_bound], len(listed_probs))


def corner_maximum(numbers: Any, target_box: tuple[Any, Any], draft_box: tuple[Any, Any]) -> Any:
    """max of x log(x/y) over the box's four corners."""
    values = [xlogx(numbers, x) - x * numbers.log(y) for x in target_box for y in draft_box]
    best = values[0]
    for value in values[1:]:
        best = value if value > best else best
    return best


def _tail_term_lost(
    numbers: Any, target_probs: Sequence[Any], draft_probs: Sequence[Any], num_listed: int
) -> Any:
    pairs = zip(target_probs[:num_listed], draft_probs[:num_listed], strict=True)
    return sum(xlogx(numbers, p) - p * numbers.log(q) for p, q in pairs)


def _tail_pooled(numbers: Any, listed_probs: Sequence[Any], competitor: int) -> Any:
    return inside_threshold(numbers, [*listed_probs, 1 - sum(listed_probs)], competitor)


def _pair_with_tail(numbers: Any, listed_probs: Sequence[Any], tail: Any) -> Any:
    return pooled_value(numbers, [listed_probs[0], min(tail, listed_probs[0])])


def _inside_alone(
    numbers: Any, listed_probs: Sequence[Any], tail: Any, rejected: Sequence[int]
) -> Any:
    return inside_threshold(numbers, listed_probs, max(rejected, key=lambda i: listed_probs[i]))


def _lump_as_one_token(
    numbers: Any, listed_probs: Sequence[Any], tail: Any, width: int, num_unlisted: int
) -> Any:
    return tree_threshold(numbers, listed_probs, tail, width, min(num_unlisted, 1))


def _none_in_tail(
    numbers: Any, listed_probs: Sequence[Any], tail: Any, width: int, num_unlisted: int
) -> Any:
    return tree_threshold(numbers, listed_probs, tail, width, 0)


def _lump_unsplit(numbers: Any, listed_probs: Sequence[Any], tail: Any) -> Any:
    copies = tail / listed_probs[-1]
    return -sum(xlogx(numbers, prob) for prob in listed_probs) - copies * xlogx(
        numbers, listed_probs[-1]
    )


def _no_competitor_mass(numbers: Any, listed_probs: Sequence[Any], competitor_bound: Any) -> Any:
    return accepted_bound(numbers, listed_probs, competitor_bound * 0)


def _middle(numbers: Any, target_box: tuple[Any, Any], draft_box: tuple[Any, Any]) -> Any:
    x, y = sum(target_box) / 2, sum(draft_box) / 2
    return x * numbers.log(x / y)


P, Q, X, Y, C, R = sympy.symbols("p q x y c r", positive=True)
P1, P2, Q1, Q2 = sympy.symbols("p_1 p_2 q_1 q_2", positive=True)

_PERSPECTIVE = (
    Step(
        "x log(x/y) is jointly convex: its Hessian has trace 1/x + x/y^2 > 0",
        sympy.diff(X * log(X / Y), X, 2) + sympy.diff(X * log(X / Y), Y, 2),
        1 / X + X / Y**2,
    ),
    Step(
        "and determinant 0.",
        sympy.diff(X * log(X / Y), X, 2) * sympy.diff(X * log(X / Y), Y, 2)
        - sympy.diff(X * log(X / Y), X, Y) ** 2,
        0,
    ),
)
LOG_SUM = Derivation(
    "The log-sum inequality",
    (
        *_PERSPECTIVE,
        Step(
            "It is homogeneous, so convexity is subadditivity: (p1+p2) log((p1+p2)/(q1+q2)) <= "
            "the sum of the two terms; equality at equal ratios:",
            ((P1 + R * P1) * log((P1 + R * P1) / (Q1 + R * Q1))),
            P1 * log(P1 / Q1) + R * P1 * log(R * P1 / (R * Q1)),
        ),
        Step(
            "Summing over the tail gives K_O <= KL, with equality where the draft's tail keeps "
            "its ratio.",
            how="cited",
            cites=("lemma.merge",),
            instances=(MERGED,),
        ),
    ),
)
INSIDE = Derivation(
    "The coarse problem has the fine one's KKT point",
    (
        Step(
            "Lump the tail. The lump is no rival: among listed tokens the minimum is the pool of "
            "claim single.pool, and q_T = p_T.",
            how="cited",
            cites=("single.pool",),
            instances=(PAIR_POOL,),
        ),
        *POOLING.steps[3:5],
        Step(
            "O holds the k likeliest tokens: an unlisted p_i is at most p_j, which is at most the "
            "level (c = p_i + r + t), so the pool of j lies in O.",
            (at.x + at.r + at.t) - at.x,
            0,
            "nonnegative",
            cites=("lemma.level",),
        ),
        Step(
            "The fine draft with q = p on the tail is feasible and costs nothing there: the "
            "threshold is C(j) itself.",
            (at.x * at.log(at.x / at.y)).subs(at.y, at.x),
            0,
        ),
        Step(
            "K_O <= KL: nothing that KL certifies is lost.",
            how="cited",
            cites=("lumped.kl",),
            instances=(
                Instance(
                    "lumped.kl",
                    ([at.x, at.a, at.b], [at.y, at.c, at.p], 1),
                    at.x * at.log(at.x / at.y)
                    + (at.a + at.b) * at.log((at.a + at.b) / (at.c + at.p)),
                ),
            ),
        ),
    ),
)
TAIL = Derivation(
    "The lump as competitor",
    (
        Step(
            "An unlisted draft argmax has q_y >= max_O q, hence q_T = q_y + r >= max_O q, q_y = "
            "max_O q + t;",
            ((at.x + at.t) + at.r) - at.x,
            0,
            "nonnegative",
        ),
        Step("One tail token may hold all of q_T, so nothing less is known.", how="remark"),
        Step(
            "min K_O under q_T >= q_i is the pool of claim single.pool with the lump in place of "
            "j. Its stationarity:",
            how="cited",
            cites=("single.pool",),
            instances=(PAIR_POOL,),
        ),
        *POOLING.steps[3:5],
        Step(
            "It is 0 iff no token lies above p_T, that is p_T >= p_1.",
            how="cited",
            cites=("lemma.level",),
            instances=(Instance("lemma.level", (at.x + at.y, [at.x]), at.x + at.y),),
        ),
        Step("C(j) alone forgets these drafts.", how="remark"),
    ),
)
TREE = Derivation(
    "r competitors in the lump",
    (
        Step(
            "Tokens 2..m+1-r listed, r competitors unlisted: q_i >= q_1 for each.", how="definition"
        ),
        Step(
            "Their sum is at most q_T: with n competitors of mean q_1 + t and r more in the tail, "
            "q_T - n q_1 is",
            at.n * (at.q + at.t) + at.r - at.n * at.q,
            0,
            "nonnegative",
        ),
        *TREE_POOLING.steps[2:4],
        Step(
            "Multiplier of q_T - r q_1 >= 0: stationarity at T reads -p_T/q_T + 1 - lambda = 0, "
            "and q_T = r c gives lambda = 1 - p_T/(r c);",
            (sympy.diff(-P * log(Q) + Q, Q) - X).subs({Q: R * C, X: 1 - P / (R * C)}),
        ),
        Step(
            "at token 1: -p_1/c + 1 + r lambda = 0, that is (1 + r) c = p_1 + p_T.",
            (-P1 / C + 1 + R * (1 - P / (R * C))) * C,
            (1 + R) * C - P1 - P,
        ),
        Step(
            "The lump joins as r = n numbers of mean p_T/r: it lowers the average of k numbers of "
            "sum y iff p_T/r lies below it. The average moves by",
            (at.y + at.p) / (at.k + at.n) - at.y / at.k,
            at.n * (at.p / at.n - at.y / at.k) / (at.k + at.n),
            cites=("lemma.level",),
        ),
        Step(
            "The least over the possible r is the threshold.",
            how="cited",
            cites=("lemma.infima",),
            read=UNORDERED,
        ),
    ),
)
ENTROPY = Derivation(
    "The least entropy that a list allows",
    (
        Step(
            "Each unlisted token has at most p_k, together p_T. -x log x is concave: its second "
            "derivative is -1/x.",
            sympy.diff(-X * log(X), X, 2),
            -1 / X,
        ),
        Step(
            "Moving mass e from an atom y to an atom x >= y changes -x log x - y log y at the "
            "rate log((y - e)/(x + e)),",
            at.diff(
                -(at.x + at.a) * at.log(at.x + at.a) - (at.y - at.a) * at.log(at.y - at.a), at.a
            ),
            at.log(at.y - at.a) - at.log(at.x + at.a),
        ),
        Step(
            "not positive, as x + e = (y - e)(1 + t). So entropy is least when all atoms but one "
            "are 0 or p_k: N atoms of p_k and one of r.",
            at.log(at.y * (1 + at.t)) - at.log(at.y),
            0,
            "nonnegative",
        ),
        Step(
            "tau = delta exp(-H) is largest at the least H: safe. With H = h + r the loss is "
            "delta exp(-h)(1 - exp(-r)), r = log(1+t).",
            at.k * at.exp(-at.h) - at.k * at.exp(-at.h) / (1 + at.t),
            0,
            "nonnegative",
        ),
    ),
)
ACCEPTED = Derivation(
    "All listed tokens accepted",
    (
        Step(
            "The largest rejected token is unlisted, hence inside p_T = p_j + r,",
            (at.p + at.r) - at.p,
            0,
            "nonnegative",
        ),
        Step(
            "at most p_k, as the list holds the k likeliest, and at most tau, being rejected: p_j "
            "<= min(p_k, p_T, tau).",
            how="definition",
        ),
        Step(
            "The certificate falls in p_j: for the pair {1, j} its derivative is log(2 "
            "p_j/(p_1+p_j)) <= 0,",
            sympy.diff(P1 * log(2 * P1 / (P1 + P2)) + P2 * log(2 * P2 / (P1 + P2)), P2),
            log(2 * P2 / (P1 + P2)),
        ),
        Step(
            "In general, p_j = x beside others of sum y in a pool of n: the pooled value's slope "
            "in p_j is log(p_j/c),",
            at.diff(at.x * at.log(at.x) - (at.x + at.y) * at.log((at.x + at.y) / at.n), at.x),
            at.log(at.x) - at.log((at.x + at.y) / at.n),
        ),
        Step(
            "not positive, as the level is c = p_j (1 + t); so a larger competitor gives a bound.",
            -at.log(at.x / (at.x * (1 + at.t))),
            0,
            "nonnegative",
        ),
    ),
)
CORNERS = Derivation(
    "A convex function is largest at a corner",
    (
        *_PERSPECTIVE,
        Step(
            "On a segment a convex function is at most the mixture of its ends, b + r and b, "
            "hence at most the larger end; along each side of the box in turn, it attains its "
            "maximum at a vertex.",
            at.over_vertices(),
            0,
            "nonnegative",
        ),
    ),
)

_LISTED = "O the k likeliest tokens of the target, T the lump of all others"
for _claim in (
    Claim(
        id="lumped.kl",
        sentence="K_O = sum_O p log(p/q) + p_T log(p_T/q_T) <= KL(p || q).",
        domain="any target, any draft with q > 0",
        theory="E (log-sum)",
        relation="<=",
        formula=lumped_divergence,
        derivation=LOG_SUM,
        mutants=(Mutant("the tail's term left out", _tail_term_lost),),
    ),
    Claim(
        id="lumped.inside",
        sentence="The least K_O at which the listed token j is the draft's maximum is C(j), its "
        "pool among listed tokens: the full certificate.",
        domain=_LISTED + "; any listed j",
        theory="E1",
        relation="=",
        formula=inside_threshold,
        derivation=INSIDE,
        mutants=(Mutant("the lump pooled like a token", _tail_pooled),),
    ),
    Claim(
        id="lumped.tail",
        sentence="C_T = min K_O with q_T >= max_O q is the pool of A1 with the lump as "
        "competitor; 0 iff p_T >= p_1.",
        domain=_LISTED,
        theory="E2 (C_T)",
        relation="=",
        formula=tail_threshold,
        derivation=TAIL,
        mutants=(Mutant("the pair {1, T}", _pair_with_tail),),
    ),
    Claim(
        id="lumped.single",
        sentence="K_O below min(C(j_O), C_T) certifies, wherever the draft's token is; the "
        "threshold is sharp.",
        domain=_LISTED + "; any rejected listed tokens, or none",
        theory="E2",
        relation="=",
        formula=single_threshold,
        derivation=TAIL,
        mutants=(
            Mutant(
                "C_p alone",
                lambda n, listed, tail, j: _inside_alone(n, listed, tail, j or [len(listed) - 1]),
            ),
        ),
    ),
    Claim(
        id="refuted.lumped.inside-alone",
        sentence="K_O < C(j_O) certifies wherever the draft's token is.",
        domain="false at p = (.36, .30, .17, .17), k = 2, strict: q = (.345, .295, .355, .005) "
        "has K_O = .00093 < .00273",
        theory="E2 (refuted)",
        relation="<=",
        formula=_inside_alone,
        derivation=TAIL,
        mutants=(
            Mutant("half of it", lambda n, listed, tail, j: _inside_alone(n, listed, tail, j) / 2),
        ),
        expected="refuted",
        corrected=single_threshold,
    ),
    Claim(
        id="lumped.tree",
        sentence="A tree of width m: K_O below the least, over the number r of competitors in the "
        "lump, of the pool S = {1} u {p_i < c} u {T if p_T < r c} certifies.",
        domain=_LISTED + "; 0 <= r <= min(m, V - k)",
        theory="E3",
        relation="=",
        formula=tree_threshold,
        derivation=TREE,
        mutants=(
            Mutant("the lump as one token", _lump_as_one_token),
            Mutant("r = 0 only", _none_in_tail),
        ),
    ),
    Claim(
        id="lumped.entropy",
        sentence="H >= -sum_O p log p - N p_k log p_k - r log r, N = floor(p_T/p_k), r = p_T - N "
        "p_k.",
        domain=_LISTED + "; attained",
        theory="E4 (entropy)",
        relation="<=",
        formula=entropy_bound,
        derivation=ENTROPY,
        mutants=(Mutant("N not rounded down", _lump_unsplit),),
    ),
    Claim(
        id="lumped.accepted",
        sentence="All listed tokens accepted: C_p is at least the pool with a competitor of mass "
        "min(p_k, p_T, tau).",
        domain=_LISTED + "; any unlisted competitor",
        theory="E4",
        relation="<=",
        formula=accepted_bound,
        derivation=ACCEPTED,
        mutants=(Mutant("a competitor without mass", _no_competitor_mass),),
    ),
    Claim(
        id="lumped.corners",
        sentence="p_T log(p_T/q_T) over a box of (p_T, q_T) is at most its largest value at the "
        "four corners.",
        domain="0 < p_T, 0 < q_T",
        theory="E4 (rounded logprobs)",
        relation=">=",
        formula=corner_maximum,
        derivation=CORNERS,
        mutants=(Mutant("the middle of the box", _middle),),
    ),
):
    declare(_claim)
