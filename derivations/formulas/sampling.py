"""What a divergence says of sampled decoding: distribution-preserving speculative sampling accepts
a draft token with probability sum_x min(p(x), q(x)) = 1 - TV(p, q), and KL(p||q) bounds TV.

Example: at KL = .3 nats at least .6193 of the tokens are accepted, whatever p and q; Pinsker gives
.6127. The curve of Fedotov, Harremoes and Topsoe, here as a family of lines: every tilt y gives a
bound, and the best one the curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import exp, log

from derivations.formulas.projections import bernoulli_divergence
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import MERGED

__all__ = ["acceptance_at", "block_acceptance", "block_tokens", "set_divergence"]


def acceptance_at(numbers: Any, kl: Any, tilt: Any) -> Any:
    """(1 + log v - m - KL)/y with m = y/(exp(y) - 1), v = m + y."""
    low = tilt / (numbers.exp(tilt) - 1)
    return (1 + numbers.log(low + tilt) - low - kl) / tilt


def _half_tilt(numbers: Any, kl: Any, tilt: Any) -> Any:
    return 1 - (1 - acceptance_at(numbers, kl, tilt)) / 2


def _no_log(numbers: Any, kl: Any, tilt: Any) -> Any:
    low = tilt / (numbers.exp(tilt) - 1)
    return (low + tilt - low - kl) / tilt


def set_divergence(numbers: Any, target_probs: Sequence[Any], chosen: Sequence[int], loss: Any):
    """d(a || a - loss) of two tokens, a = p(A): the least KL(p || q) at which a draft puts ``loss``
    less on the set A."""
    mass = sum((target_probs[i] for i in chosen[1:]), target_probs[chosen[0]])
    return bernoulli_divergence(numbers, mass, mass - loss)


def _loss_doubled(numbers: Any, target_probs: Sequence[Any], chosen: Sequence[int], loss: Any):
    return set_divergence(numbers, target_probs, chosen, loss * 11 / 10)


def block_acceptance(numbers: Any, losses: Sequence[Any]) -> Any:
    """1 - sum of the losses: the probability that all of a block's tokens are accepted is at least
    that."""
    total = sum(losses[1:], losses[0])
    return 1 - total


def block_tokens(numbers: Any, losses: Sequence[Any]) -> Any:
    """sum_n max(0, 1 - x_1 - ... - x_n): the mean number of accepted tokens is at least that."""
    spare = [block_acceptance(numbers, losses[: n + 1]) for n in range(len(losses))]
    return sum(max(x, x * 0) for x in spare)


def _first_twice(numbers: Any, losses: Sequence[Any]) -> Any:
    return block_tokens(numbers, [losses[0], losses[0], *losses[2:]])


def _independent(numbers: Any, losses: Sequence[Any]) -> Any:
    kept = 1 - losses[0] / 2
    for loss in losses[1:]:
        kept = kept * (1 - loss / 2)
    return kept


_Y = at.y
_M = _Y / (exp(_Y) - 1)
_B = 1 / _Y - 1 / (exp(_Y) - 1)  # where the line touches
DUAL = Derivation(
    "A line below the divergence, for every tilt",
    (
        Step(
            "A is the set where p > q: TV = p(A) - q(A), and merging its tokens, and the others, "
            "lowers KL (claim lemma.merge): two tokens (a, 1 - a), (b, 1 - b) are left.",
            how="cited",
            cites=("lemma.merge",),
            instances=(MERGED,),
        ),
        Step(
            "KL >= E_p f - log E_q exp(f) for f = y on A and 0 elsewhere (claim "
            "lemma.variational): KL >= y a - log(1 + b (exp(y) - 1)), which is y TV + g(b), g(b) = "
            "y b - log(1 + b (exp(y) - 1)):",
            _Y * at.a - log(1 + at.b * (exp(_Y) - 1)),
            _Y * (at.a - at.b) + _Y * at.b - log(1 + at.b * (exp(_Y) - 1)),
        ),
        Step(
            "g is convex in b,",
            sympy.diff(_Y * at.b - log(1 + at.b * (exp(_Y) - 1)), at.b, 2),
            (exp(_Y) - 1) ** 2 / (1 + at.b * (exp(_Y) - 1)) ** 2,
        ),
        Step(
            "and its slope vanishes at b = 1/y - 1/(exp(y) - 1),",
            sympy.diff(_Y * at.b - log(1 + at.b * (exp(_Y) - 1)), at.b).subs(at.b, _B),
            0,
        ),
        Step(
            "where 1 + b (exp(y) - 1) = 1/m, so that g is 1 - m + log m, m = y/(exp(y) - 1);",
            (1 + _B * (exp(_Y) - 1)) * _M,
            1,
        ),
        Step("y b there is 1 - m.", _Y * _B, 1 - _M),
        Step(
            "1 - TV >= 1 - (KL - 1 + m - log m)/y = (1 + y + log m - m - KL)/y, and y + log m = "
            "log v, as v = m + y = m exp(y):",
            _M + _Y,
            _M * exp(_Y),
        ),
        Step(
            "The pair at which it is attained has a/b = v and (1 - a)/(1 - b) = m, so that its "
            "logarithm of p/q is f less a constant: with a = v b the second is",
            sympy.simplify(1 - (_M + _Y) * _B - _M * (1 - _B)),
            0,
        ),
    ),
)
SET = Derivation(
    "A target, a set and a loss",
    (
        Step(
            "Merging A and its complement gives KL >= d(p(A) || q(A)) (claim lemma.merge),",
            how="cited",
            cites=("lemma.merge",),
            instances=(MERGED,),
        ),
        Step(
            "attained by the draft that scales p by b/a on A: KL of one token of A,",
            at.p * log(at.p / (at.p * at.b / at.a)),
            at.p * log(at.a / at.b),
        ),
        Step(
            "and d(a || b) falls in b up to a: its slope is (b - a)/(b (1 - b)), so a loss of at "
            "least tau costs what tau costs.",
            sympy.diff(at.a * log(at.a / at.b) + (1 - at.a) * log((1 - at.a) / (1 - at.b)), at.b),
            (at.b - at.a) / (at.b * (1 - at.b)),
        ),
    ),
)
BLOCK = Derivation(
    "A block of sampled tokens",
    (
        Step(
            "A text is drafted and accepted with the product of min(p, q), w = p - r, p the "
            "target's chance of it, r >= 0; a further token is rejected after it with a chance t. "
            "What is accepted falls by w t, at most p t:",
            (at.p - at.r) * (1 - at.t) - ((at.p - at.r) - at.p * at.t),
            0,
            "nonnegative",
        ),
        Step(
            "so over all texts by at most x_n, the mean of t over the target's, and in n steps "
            "from 1 to 1 - x_1 - ... - x_n at least; two of them, which leave r and z more:",
            (((1 - at.x) + at.r) - at.y + at.z) - (1 - at.x - at.y),
            0,
            "nonnegative",
        ),
        Step(
            "A bound of t that is linear in KL, as each line of claim sampling.dual, has as its "
            "mean the bound at the mean KL: of two texts with chances a and 1 - a,",
            at.a * (at.c - at.k * at.x) + (1 - at.a) * (at.c - at.k * at.y),
            at.c - at.k * (at.a * at.x + (1 - at.a) * at.y),
        ),
        Step(
            "The mean number of accepted tokens is the sum of the chances that the first n are, "
            "none of which is below 0: of two tokens with such chances 1 - x + r and 1 - x - y + "
            "z, one alone counts once and both twice,",
            ((1 - at.x + at.r) - (1 - at.x - at.y + at.z))
            + 2 * (1 - at.x - at.y + at.z)
            - ((1 - at.x) + (1 - at.x - at.y)),
            0,
            "nonnegative",
        ),
    ),
)
declare(
    Claim(
        id="sampling.dual",
        sentence="For every pair of distributions and every y > 0 the acceptance of speculative "
        "sampling, 1 - TV(p, q), is at least (1 + log v - m - KL(p||q))/y, m = y/(exp(y) - 1), v = "
        "m + y; the best y attains the least acceptance of any pair at that KL.",
        domain="any two distributions, any tilt y > 0",
        theory="E2 (second volume; as lines in place of the curve's parameter)",
        relation="<=",
        formula=acceptance_at,
        derivation=DUAL,
        mutants=(
            Mutant("half of the loss", _half_tilt),
            Mutant("v in place of its logarithm", _no_log),
        ),
    )
)
declare(
    Claim(
        id="sampling.set",
        sentence="The least KL(p || q) of a draft with p(A) - q(A) >= tau is that of two tokens, "
        "d(p(A) || p(A) - tau); the least over all sets A is the radius at TV >= tau.",
        domain="any target, any set A of 0 < tau < p(A)",
        theory="E2 (second volume)",
        relation="=",
        formula=set_divergence,
        derivation=SET,
        mutants=(Mutant("a tenth more loss", _loss_doubled),),
    )
)
declare(
    Claim(
        id="sampling.block",
        sentence="Sampled drafts of a block are all accepted with a chance of at least 1 - sum x, "
        "x_k the mean over the target's own texts of the chance that the k-th is rejected.",
        domain="any target and draft, any length",
        theory="E2 (second volume)",
        relation="<=",
        formula=block_acceptance,
        derivation=BLOCK,
        mutants=(Mutant("half of each chance", _independent),),
    )
)
declare(
    Claim(
        id="sampling.tokens",
        sentence="Of a block of sampled drafts at least sum_n max(0, 1 - x_1 - ... - x_n) are "
        "accepted in the mean, x_k as in sampling.block.",
        domain="any target and draft, any length",
        theory="E2 (second volume)",
        relation="<=",
        formula=block_tokens,
        derivation=BLOCK,
        mutants=(
            Mutant("the first chance twice", _first_twice),
            Mutant("one token more", lambda n, losses: 1 + block_tokens(n, losses)),
        ),
    )
)
