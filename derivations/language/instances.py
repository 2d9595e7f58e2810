"""Instances of lemmas that more than one derivation cites, in letters of known sign. What they show
is that the cited formula, put into those letters, is the expression that the steps go on with."""

from __future__ import annotations

from sympy import Rational, exp, log

from derivations.language import letters as at
from derivations.language.claim import Instance

__all__ = [
    "AVERAGED",
    "BEST_OF_TWO",
    "EXP_TANGENT",
    "FALLING",
    "JOINING",
    "LARGER_SHARE",
    "MERGED",
    "ON_A_POOL",
    "PAIR",
    "PAIR_IN_A_TREE",
    "PAIR_OF_ONE",
    "PAIR_POOL",
    "PAIR_WEIGHTS",
    "SWAPPED",
    "TRANSPORTED",
    "UNORDERED",
    "WEIGHED",
]
UNORDERED = "sets of any kind: there is no argument to put in"

_MEAN = at.x + at.y / 2
_PAIR = (at.x + at.y) * log((at.x + at.y) / _MEAN) + at.x * log(at.x / _MEAN)
_PHI = ((1 + at.x) * log(1 + at.x) + (1 - at.x) * log(1 - at.x)) / 2
_THIRD = Rational(1, 3)

# one constraint x >= y of multiplier t: whatever satisfies it lies at least t (x - y) above the KKT
# point
WEIGHED = Instance("lemma.kkt", ([at.t], [at.x - at.y]), at.t * (at.x - at.y))
# x + y joins x, and 0 does not; mirrored, -x joins -(x + y)
JOINING = Instance("lemma.level", (at.x, [at.x + at.y, 0]), _MEAN)
FALLING = Instance("lemma.level", (-at.x - at.y, [-at.x]), -_MEAN)
MERGED = Instance(
    "lemma.merge", (at.x, at.w, at.y, at.v), (at.x + at.y) * log((at.x + at.y) / (at.w + at.v))
)
AVERAGED = Instance(
    "lemma.merge",
    (at.x / 2, at.w / 2, at.y / 2, at.v / 2),
    (at.x + at.y) / 2 * log(((at.x + at.y) / 2) / ((at.w + at.v) / 2)),
)
TRANSPORTED = Instance(
    "lemma.transport",
    ([at.x, at.y, at.a], [at.q, at.p, at.b], 2),
    ([at.x + at.a / 2, at.y + at.a / 2], [at.q + at.b / 2, at.p + at.b / 2]),
)
# the pair of probabilities x + y and x: its cost by the pool, by a tree's pool, as the best of two
# competitors
PAIR = Instance("lemma.pair", (at.x + at.y, at.x), _PAIR)
PAIR_OF_ONE = Instance("lemma.pair", ((1 + at.x) / 2, (1 - at.x) / 2), _PHI)
PAIR_POOL = Instance("single.pool", ([at.x + at.y, at.x], 1), _PAIR)
PAIR_IN_A_TREE = Instance("tree.pool", ([at.x + at.y, at.x], [1]), _PAIR)
BEST_OF_TWO = Instance("single.competitor", ([at.x + at.y, at.x, at.x / 2], [1, 2]), _PAIR)
PAIR_WEIGHTS = Instance("single.dual", ([at.x + at.y, at.x], [at.x + at.y, at.x], 1, _MEAN), _PAIR)
SWAPPED = Instance(
    "lemma.exchange", (at.x, at.y, at.p, at.q), (at.x - at.y) * (log(at.q) - log(at.p))
)
ON_A_POOL = Instance(
    "lemma.variational",
    ([at.x, 1 - at.x], [at.q, 1 - at.q], [log(at.w / at.c), 0]),
    at.x * log(at.w / at.c) - log(1 + at.q * (at.w / at.c - 1)),
)
EXP_TANGENT = Instance("lemma.tangent", (1, exp(at.z), 1, 1), 1 - exp(at.z))
# tau = 1/3 and a share above it
LARGER_SHARE = Instance(
    "drafter.absolute",
    (_THIRD + at.x, _THIRD),
    _THIRD * log(_THIRD / (_THIRD + at.x)) + 2 * _THIRD * log(2 * _THIRD / (2 * _THIRD - at.x)),
)
