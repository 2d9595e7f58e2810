"""Certificates that hold on every server near enough: logits that differ by at most r nats (less a
shift of the row) put each weight between w and w exp(2 r), and what is certified there is the least
certificate over that box against the largest divergence over it.

Example: (.5, .3, .2) and r = .05. The second token can reach .3 exp(.1) = .3316 beside .5, and the
strict certificate falls from .0253 to .0163 nats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import log

from derivations.formulas.single_token import single_pool
from derivations.formulas.tree import tree_certificate
from derivations.language import letters as at
from derivations.language.claim import Claim, Derivation, Mutant, Step, declare
from derivations.language.instances import JOINING, ON_A_POOL, SWAPPED

__all__ = [
    "best_levels",
    "box_divergence_bound",
    "box_entropy",
    "box_single",
    "box_threshold",
    "box_tree",
]


def box_tree(numbers: Any, target_probs: Sequence[Any], width: int, growth: Any) -> Any:
    """The tree's certificate of the sorted target whose others are raised to min(p growth, p_1)."""
    top, *others = target_probs
    raised = [top, *(min(prob * growth, top) for prob in others)]
    total = sum(raised[1:], raised[0])
    return tree_certificate(numbers, [prob / total for prob in raised], width)


def _uncapped(numbers: Any, target_probs: Sequence[Any], width: int, growth: Any) -> Any:
    raised = [target_probs[0], *(prob * growth for prob in target_probs[1:])]
    total = sum(raised[1:], raised[0])
    return tree_certificate(numbers, [prob / total for prob in raised], width)


def _half_the_box(numbers: Any, target_probs: Sequence[Any], width: int, growth: Any) -> Any:
    return box_tree(numbers, target_probs, width, (1 + growth) / 2)


def box_single(
    numbers: Any, weights: Sequence[Any], levels: Sequence[Any], competitor: int, growth: Any
) -> Any:
    """The least of sum w' f / sum w' over w <= w' <= w growth, f = log(v/c) on the pool of the
    levels v that are not None, 0 elsewhere, c their mean: the k largest f at the lower end, for the
    best k."""
    pool = [i for i, level in enumerate(levels) if level is not None]
    mean = sum((levels[i] for i in pool[1:]), levels[pool[0]]) / len(pool)
    gains = [(numbers.log(levels[i] / mean), weights[i]) for i in pool if i != competitor]
    gains.sort(key=lambda gain: -gain[0])
    rival = weights[competitor] * growth
    loss = rival * numbers.log(levels[competitor] / mean)
    outside = rival + growth * sum((w for i, w in enumerate(weights) if i not in pool), 0 * growth)
    values = []
    for split in range(len(gains) + 1):
        ends = [(f, w if k < split else w * growth) for k, (f, w) in enumerate(gains)]
        gained = sum((f * w for f, w in ends), loss)
        values.append(gained / sum((w for _, w in ends), outside))
    return min(values)


def best_levels(
    numbers: Any, weights: Sequence[Any], competitor: int, growth: Any, turns: int = 40
) -> list[Any]:
    """Levels at which ``box_single`` is the least certificate over the box, found in turns: v =
    clip(c exp(value), w, w growth)."""
    levels: list[Any] = [w * growth if i == competitor else w for i, w in enumerate(weights)]
    for turn in range(turns + 1):
        pool = single_pool(levels, competitor)
        pooled = [levels[i] if i in pool else None for i in range(len(weights))]
        if turn == turns:
            break
        rise = numbers.exp(box_single(numbers, weights, pooled, competitor, growth))
        level = sum((levels[i] for i in pool[1:]), levels[pool[0]]) / len(pool)
        for _ in range(2):  # the level that the clipped ones have in the mean
            inner = [i for i in pool if i != competitor]
            free = [i for i in inner if weights[i] < level * rise < weights[i] * growth]
            ends = [
                weights[i] * (1 if weights[i] >= level * rise else growth)
                for i in inner
                if i not in free
            ]
            members = 1 + len(inner) - len(free) * rise
            if members > 0:
                level = sum(ends, levels[competitor]) / members
        levels = [
            levels[i] if i == competitor else max(w, min(w * growth, level * rise))
            for i, w in enumerate(weights)
        ]
    return pooled


def _all_low(
    numbers: Any, weights: Sequence[Any], levels: Sequence[Any], competitor: int, growth: Any
) -> Any:
    pool = [i for i, level in enumerate(levels) if level is not None]
    outside = [growth * w for i, w in enumerate(weights) if i not in pool]
    moved = [w * growth if i == competitor else w for i, w in enumerate(weights)]
    mean = sum(levels[i] for i in pool) / len(pool)
    gained = sum(moved[i] * numbers.log(levels[i] / mean) for i in pool)
    return gained / (sum(moved[i] for i in pool) + sum(outside))


def _rest_unraised(
    numbers: Any, weights: Sequence[Any], levels: Sequence[Any], competitor: int, growth: Any
) -> Any:
    shrunk = [
        w if level is not None else w / growth for w, level in zip(weights, levels, strict=True)
    ]
    return box_single(numbers, shrunk, levels, competitor, growth)


def box_threshold(
    numbers: Any, scale: Any, offset: Any, cap: Any, weights: Sequence[Any], growth: Any
) -> Any:
    """A weight from which on a token has p' >= min(cap, scale p'_1 + offset) on every server, the
    least one where there is no cap (``cap`` None); weights sum to S, the largest is 1."""
    total = sum(weights)
    if offset > 0:
        from_top = growth * (scale + offset * total) / (1 - offset + offset * growth)
    else:
        raised = growth if scale + offset >= 0 else 1
        from_top = (scale + offset) * raised + offset * (total - 1)
    if cap is None:
        return from_top
    return min(from_top, cap * total * growth / (1 + cap * (growth - 1)))


def _top_unraised(
    numbers: Any, scale: Any, offset: Any, cap: Any, weights: Sequence[Any], growth: Any
) -> Any:
    return box_threshold(numbers, scale, offset, cap, weights, 1 + (growth - 1) / 2)


def _rest_raised(
    numbers: Any, scale: Any, offset: Any, cap: Any, weights: Sequence[Any], growth: Any
) -> Any:
    lowered = offset * (growth - 1) * (sum(weights) - 1) if offset < 0 else 0
    return box_threshold(numbers, scale, offset, cap, weights, growth) + lowered


def box_entropy(numbers: Any, target_probs: Sequence[Any], radius: Any) -> Any:
    """A number below the entropy of every target of the box: L_1 + (H - L_1) exp(-2 r) - r^2/2,
    with L_1 = -log p_1."""
    surprise = -numbers.log(max(target_probs))
    excess = sum(-p * numbers.log(p) for p in target_probs) - surprise
    return surprise + excess * numbers.exp(-2 * radius) - radius * radius / 2


def _entropy_kept(numbers: Any, target_probs: Sequence[Any], radius: Any) -> Any:
    return sum(-p * numbers.log(p) for p in target_probs) - radius * radius / 2


def box_divergence_bound(
    numbers: Any,
    target_probs: Sequence[Any],
    draft_probs: Sequence[Any],
    radius: Any,
    tilts: Sequence[Any],
) -> Any:
    """max over the two ends of the first token of t - log M, M = sum p exp(x) (1 + t - log(p/q) -
    x), each other token at the end x = r or -r that makes its term smaller."""
    bounds = []
    for end, tilt in zip((radius, -radius), tilts, strict=True):
        mass = radius * 0
        for i, (p, q) in enumerate(zip(target_probs, draft_probs, strict=True)):
            spare = 1 + tilt - numbers.log(p / q)
            terms = [p * numbers.exp(x) * (spare - x) for x in (radius, -radius)]
            mass += p * numbers.exp(end) * (spare - end) if i == 0 else min(terms)
        bounds.append(tilt - numbers.log(mass) if mass > 0 else numbers.inf)
    return max(bounds)


def _first_raised_only(
    numbers: Any, target: Sequence[Any], draft: Sequence[Any], radius: Any, tilts: Sequence[Any]
) -> Any:
    return box_divergence_bound(numbers, target, draft, radius / 2, tilts)


def _ends_turned(
    numbers: Any, target: Sequence[Any], draft: Sequence[Any], radius: Any, tilts: Sequence[Any]
) -> Any:
    spares = [1 + tilts[0] - numbers.log(p / q) for p, q in zip(target, draft, strict=True)]
    mass = sum(
        p * max(numbers.exp(x) * (spare - x) for x in (radius, -radius))
        for p, spare in zip(target, spares, strict=True)
    )
    return tilts[0] - numbers.log(mass)


_Z, _X = sympy.symbols("z x", real=True)
_G = 1 + at.t  # the growth
BOX = Derivation(
    "A box of logits is a box of weights",
    (
        Step("z' = z + x with |x| <= r, so w' = w exp(x).", how="definition"),
        Step(
            "A factor common to all weights is none to the law: exp(r) w' lies between w and w "
            "growth, at x = -r",
            at.w * sympy.exp(-at.r) * sympy.exp(at.r),
            at.w,
        ),
        Step("and at x = r.", at.w * sympy.exp(at.r) * sympy.exp(at.r), at.w * sympy.exp(2 * at.r)),
        Step(
            "Weights that are known to a factor exp(e) move an end by e: w exp(-r) is at least "
            "w exp(-e) exp(-(r - e)); the box of radius r + e around the known ones holds it.",
            at.w * sympy.exp(at.e) * sympy.exp(-(at.r + at.e)),
            at.w * sympy.exp(-at.r),
        ),
        Step(
            "Any law of the box may be sorted as the given one: where p_a >= p_b and w'_b = w'_a "
            "+ d, swapping the two keeps both in their ranges, w'_a + d above the lower end of a, "
            "w'_a,",
            (at.a + at.d) - at.a,
            0,
            "nonnegative",
        ),
        Step(
            "and both below the upper end of a, which is that of b, raised by p_a/p_b = 1 + t.",
            at.b * (1 + at.t) - at.b,
            0,
            "nonnegative",
        ),
    ),
)
TREE_BOX = Derivation(
    "The corner of the box at which a tree is cheapest to fool",
    (
        *BOX.steps,
        Step(
            "C = F/W with F = w_1 log(w_1/c) + sum_pool w log(w/c), W = sum w. F has slope "
            "log(w_i/c) in a pooled weight, as c is the pool's mean: with n members of sum y,",
            at.diff(
                at.w * log(at.w) + at.a * log(at.a) - (at.w + at.a) * log((at.w + at.a) / at.n),
                at.w,
            ),
            log(at.w / ((at.w + at.a) / at.n)),
        ),
        Step(
            "which is not positive below the level c = w (1 + t): raising a competitor lowers F "
            "and raises W.",
            -log(at.w / (at.w * (1 + at.t))),
            0,
            "nonnegative",
        ),
        Step(
            "A weight off the pool moves W alone. So all others stand at their upper ends, but not "
            "above w_1 (the law is sorted). Let k of them be tied with w_1; raising all of these "
            "by one, C W' = F' - C W' has F' = log(w_1/c) and W' = k + 1,",
            at.diff(at.w * log(at.w / at.c), at.w) - 1,
            log(at.w / at.c),
        ),
        Step(
            "where C <= w_1 log(w_1/c)/W <= log(w_1/c)/(k + 1), as W >= (k + 1) w_1 and the "
            "competitors' terms are not positive: with W = (k + 1) w_1 + r the spare is",
            log(1 + at.t) / (at.k + 1) - at.w * log(1 + at.t) / ((at.k + 1) * at.w + at.r),
            0,
            "nonnegative",
        ),
        Step(
            "so C rises with w_1 and is least at its lower end: there w_i = min(p_i growth, p_1), "
            "and it is 0 where p_{m+1} growth >= p_1, all m competitors tied.",
            at.b - sympy.Min(at.b + at.r, at.b),
            0,
        ),
    ),
)
SINGLE_BOX = Derivation(
    "One dual function for all targets of a box",
    (
        *BOX.steps,
        Step(
            "For levels v >= c on the pool and c their mean, E_q exp f <= 1 for every draft whose "
            "maximum stands at j (claim single.dual), whichever the target is,",
            how="cited",
            cites=("single.dual", "lemma.variational", "lemma.level"),
            instances=(ON_A_POOL, JOINING),
        ),
        Step(
            "so KL(w'/W' || q) >= N/W', N = sum w' f. N - value W' is linear in each weight, with "
            "slope f - value:",
            at.diff(at.w * (at.f - at.x) + at.y, at.w),
            at.f - at.x,
        ),
        Step(
            "the least fraction stands at the ends: low where f is above it, high elsewhere. With "
            "f sorted, the best of the splits is it, as any split is a target of the box, here of "
            "two tokens f = l and 0:",
            at.w * at.l / (at.w + at.y) - 0,
            at.w * at.l / (at.w + at.y),
        ),
        Step(
            "A likelier rejected token is never dearer on the box: swap it with the other, as in "
            "any law.",
            how="cited",
            cites=("lemma.exchange",),
            instances=(SWAPPED,),
        ),
    ),
)
THRESHOLD_BOX = Derivation(
    "What a token needs to be accepted on every server",
    (
        *BOX.steps,
        Step(
            "p'_x >= s p'_1 + o is w'_x - s w'_1 - o W' >= 0, linear in every weight. For o = -t "
            "<= 0 the slopes are 1 + t in w_x, t - s in w_1 and t in the others: x and the others "
            "at their lower ends. With S the sum of weights and w_1 = 1,",
            (1 + at.t) * at.w - (at.s - at.t) * at.g + at.t * (at.x - 1 - at.w),
            at.w - ((at.s - at.t) * at.g - at.t * (at.x - 1)),
        ),
        Step(
            "For 0 < o <= 1 all but x stand at their upper ends:",
            (1 - at.a) * at.w - at.s * at.g - at.a * at.g * (at.x - at.w),
            (1 - at.a + at.a * at.g) * at.w - at.g * (at.s + at.a * at.x),
        ),
        Step(
            "A cap is that with s = 0.",
            at.g * (0 + at.a * at.x) / (1 - at.a + at.a * at.g),
            at.a * at.x * at.g / (1 + at.a * (at.g - 1)),
        ),
    ),
)
_K = sympy.Function("K")(at.s)
ENTROPY_BOX = Derivation(
    "The least entropy of a box",
    (
        *BOX.steps,
        Step(
            "H(p') = E_p' L - KL(p'||p), L = -log p: token by token",
            -at.a * log(at.a),
            -at.a * log(at.p) - at.a * log(at.a / at.p),
        ),
        Step(
            "L - L_1 is not negative, and p' >= p exp(-2 r): its mean keeps that share at least,",
            (at.p + at.r) * at.t - at.p * at.t,
            0,
            "nonnegative",
        ),
        Step(
            "and KL(p'||p) = s K' - K at s = 1, K = log E_p exp(s x) the cumulant: it is 0 at s = "
            "0 and has the slope",
            at.diff(at.s * at.diff(_K, at.s) - _K, at.s),
            at.s * at.diff(_K, at.s, 2),
        ),
        Step(
            "where K'' is the variance of x under a law, at most the mean of x^2, and x^2 <= r^2: "
            "for x = r - t and y = -x = r - z, r^2 - x^2 = (r - x)(r + x) is",
            at.t * at.z,
            0,
            "nonnegative",
        ),
        Step(
            "So KL(p'||p) is at most the integral of s r^2 from 0 to 1.",
            sympy.integrate(at.s * at.r**2, (at.s, 0, 1)),
            at.r**2 / 2,
        ),
    ),
)
DIVERGENCE_BOX = Derivation(
    "The largest divergence of a box, by one tilt",
    (
        *BOX.steps,
        Step(
            "p' = p exp(x)/W has log(p'/q) = log(p/q) + x - log W.",
            sympy.expand_log(log(at.p * sympy.exp(at.h) / (at.w * at.q)), force=True),
            sympy.expand_log(log(at.p / at.q), force=True) + at.h - log(at.w),
        ),
        Step(
            "The logarithm lies below its tangent: x - 1 - log x is 0 at x = M/W = 1 and has the "
            "slope 1 - 1/x, of the sign of x - 1. So log(M/W) <= M/W - 1.",
            at.diff(at.x - 1 - log(at.x), at.x),
            (at.x - 1) / at.x,
        ),
        Step(
            "So W (KL - b) <= sum p exp(x) (log(p/q) + x - 1 - log M - b) + M, which for b = t - "
            "log M is M - sum p exp(x) (1 + t - log(p/q) - x):",
            at.f + at.h - 1 - log(at.s) - (at.l - log(at.s)),
            -(1 + at.l - at.f - at.h),
        ),
        Step(
            "not positive where M is at most that sum at its least. exp(x) (a - x) rises up to x "
            "= a - 1 and falls beyond it, so its least value on [-r, r] stands at an end.",
            sympy.diff(sympy.exp(_X) * (at.l - _X), _X),
            sympy.exp(_X) * (at.l - 1 - _X),
        ),
        Step(
            "KL is a convex function over a linear one in each weight alone, so that its maximum "
            "stands at an end of the first token too: the larger of both bounds is one.",
            at.diff(at.w * log(at.w) - at.w * at.l, at.w, 2),
            1 / at.w,
        ),
    ),
)

_BOX = "any target of positive probabilities, any radius r >= 0, growth = exp(2 r)"
declare(
    Claim(
        id="robust.tree",
        sentence="Over all targets whose weights lie between w and w growth, the least certificate "
        "of a tree of width m is that of the weights min(w growth, w_1).",
        domain=_BOX + "; m = 1 is the strict rule",
        theory="E1 (second volume)",
        relation="=",
        formula=box_tree,
        derivation=TREE_BOX,
        mutants=(
            Mutant("others raised above the first", _uncapped),
            Mutant("half of the growth", _half_the_box),
        ),
    )
)
declare(
    Claim(
        id="robust.single",
        sentence="For levels v >= c on a pool, c their mean, the least of sum w' f / sum w' over "
        "the box, f = log(v/c), is a lower bound of every certificate of token j in it; the best "
        "levels attain the least one.",
        domain=_BOX + ", any j",
        theory="E1 (second volume)",
        relation="<=",
        formula=box_single,
        derivation=SINGLE_BOX,
        mutants=(
            Mutant("every pooled token at its lower end", _all_low),
            Mutant("what is off the pool not raised", _rest_unraised),
        ),
    )
)
declare(
    Claim(
        id="robust.threshold",
        sentence="A token other than the argmax has at least scale p_1 + offset (a cap: scale 0) "
        "for every target of the box exactly where its weight reaches the number given; for "
        "min(cap, scale p_1 + offset) the smaller of both numbers suffices.",
        domain=_BOX + "; scale >= 0, offset <= 1, cap <= 1",
        theory="E1 (second volume)",
        relation="=",
        formula=box_threshold,
        derivation=THRESHOLD_BOX,
        mutants=(
            Mutant("half of the growth", _top_unraised),
            Mutant("the others at their upper ends", _rest_raised),
        ),
    )
)
declare(
    Claim(
        id="robust.entropy",
        sentence="Every target of the box has an entropy of at least L_1 + (H - L_1) exp(-2 r) - "
        "r^2/2, L_1 = -log p_1.",
        domain=_BOX,
        theory="E1 (second volume)",
        relation="<=",
        formula=box_entropy,
        derivation=ENTROPY_BOX,
        mutants=(Mutant("the excess not lowered", _entropy_kept),),
    )
)
declare(
    Claim(
        id="robust.divergence",
        sentence="For every target p' of the box KL(p'||q) <= t - log M, M the least of sum p "
        "exp(x) (1 + t - log(p/q) - x) over |x| <= r, for any t at which M is positive; the first "
        "token's x may be held at either end, and the larger bound taken.",
        domain=_BOX + ", any draft of positive probabilities",
        theory="E1 (second volume; sharper)",
        relation=">=",
        formula=box_divergence_bound,
        derivation=DIVERGENCE_BOX,
        mutants=(
            Mutant("half of the radius", _first_raised_only),
            Mutant("each token at its other end", _ends_turned),
        ),
    )
)
