"""Checks of the normal form of rules: each rule's own words against the printed threshold, in exact
arithmetic, and the raised threshold against every error it must cover."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from sympy import exp, log, symbols

from derivations.arithmetic.thresholds import NORMAL_FORMS, THRESHOLD, THRESHOLD_BOUND, NormalForm
from derivations.language.claim import Formula, Step
from proofs_check.methods.cases import Cases, exact_cases, tallied
from proofs_check.methods.jets import all_enclosed, derivative, values
from proofs_check.methods.numbers import MP, interval_digits, to_mp
from proofs_check.methods.steps import prove_identities, random_rationals
from proofs_check.methods.targets import generate_targets
from proofs_check.outcome import Evidence, Verdict
from proofs_check.registry import Effort, check

CAP, SCALE, OFFSET, ENTROPY_SCALE, TOTAL, ENTROPY, TOP = symbols(
    "cap scale offset E S H p_1", positive=True
)
Words = Callable[[tuple[Fraction, ...], int], bool]


@check("rule.threshold", method="steps")
def prove_threshold(formula: Formula, effort: Effort) -> Evidence:
    """tau S from the printed form: one threshold active at a time, and the smallest wins where all
    three are finite."""
    parts = [
        ("cap", (CAP, sympy.oo, sympy.oo, sympy.oo), CAP * TOTAL),
        ("from the top", (sympy.oo, SCALE, OFFSET, sympy.oo), TOTAL * (SCALE / TOTAL + OFFSET)),
        (
            "entropy",
            (sympy.oo, sympy.oo, sympy.S.Zero, ENTROPY_SCALE),
            TOTAL * ENTROPY_SCALE * exp(-ENTROPY),
        ),
        ("all three, the cap smallest", (sympy.S.One, 5, 7, 90), TOTAL),
    ]
    gap = log(TOTAL) - ENTROPY
    identities = [
        (label, formula(sympy, *given, TOTAL, gap), value) for label, given, value in parts[:3]
    ]
    number = {TOTAL: sympy.Integer(2), ENTROPY: sympy.Rational(1, 3)}
    label, given, value = parts[3]
    identities.append((label, formula(sympy, *given, TOTAL, gap).subs(number), value.subs(number)))
    return prove_identities(
        THRESHOLD, identities, random_rationals([CAP, SCALE, OFFSET, ENTROPY_SCALE, TOTAL, ENTROPY])
    )


_TENTH, _HALF, _ONE = Fraction(1, 10), Fraction(1, 2), Fraction(1)
_SLACKS, _FACTORS = (Fraction(0), _TENTH, Fraction(3, 10), _ONE), (_TENTH, _HALF, _ONE)


def _rules() -> Iterator[tuple[str, NormalForm | None, Words]]:
    """(name, normal form, the rule in its own words: is the token of that 0-based rank
    accepted?), for every entry of the table of normal forms; None in place of a form whose words
    nobody has written here."""
    for name, form in NORMAL_FORMS.items():
        if name == "entropy":  # no rational number: the search compares it
            continue
        if name not in _IN_WORDS:
            yield name, None, _top_words(1)
            continue
        words, settings = _IN_WORDS[name]
        for given in settings:
            yield f"{name} {', '.join(map(str, given))}", form(*given), words(*given)


def _top_words(m: int) -> Words:
    return lambda probs, rank: rank < m


def _additive_words(t: Fraction) -> Words:
    return lambda probs, rank: probs[rank] >= probs[0] - t


def _factor_words(alpha: Fraction) -> Words:
    return lambda probs, rank: probs[rank] >= alpha * probs[0]


def _absolute_words(tau: Fraction) -> Words:
    return lambda probs, rank: probs[rank] >= tau


def _both(first: Words, second: Words) -> Words:
    return lambda probs, rank: first(probs, rank) and second(probs, rank)


_GATES = tuple(itertools.product((1, 2), (*_SLACKS, *_FACTORS)))
# name -> (its words, the parameters that are tried)
_IN_WORDS: dict[str, tuple[Callable[..., Words], Sequence[tuple[Any, ...]]]] = {
    "strict": (lambda: _top_words(1), [()]),
    "additive": (_additive_words, [(t,) for t in _SLACKS]),
    "multiplicative": (_factor_words, [(alpha,) for alpha in _FACTORS]),
    "top": (_top_words, [(1,), (3,)]),
    "gated additive": (lambda m, t: _both(_top_words(m), _additive_words(t)), _GATES),
    "gated multiplicative": (lambda m, a: _both(_top_words(m), _factor_words(a)), _GATES),
    "absolute": (_absolute_words, [(Fraction(1, 5),), (_HALF,), (_ONE,)]),
}


class _Rationals:
    """Arithmetic of a threshold without entropy: exp is multiplied by an infinite scale and never
    matters."""

    log = sqrt = log1p = expm1 = staticmethod(lambda value: value)
    exp = staticmethod(lambda value: 1)


@check("rule.threshold", method="exact-cases")
def compare_with_words(formula: Formula, effort: Effort) -> Evidence:
    targets = generate_targets(effort.seed, effort.per_family)

    def holds(case: tuple[NormalForm | None, Words, tuple[Fraction, ...]]) -> Any:
        form, words, probs = case
        if form is None:
            return "a normal form that is in no words here"
        total = 1 / probs[0]
        tau = formula(
            _Rationals, form.cap, form.scale, form.offset, form.entropy_scale, total, Fraction(0)
        )
        for rank, prob in enumerate(probs):
            accepted = (rank < (form.top_m or len(probs))) and not (prob * total < tau)
            if accepted != words(probs, rank):
                return f"rank {rank + 1}: accepted {accepted}, in words {not accepted}"
        return True

    cases = itertools.product(_rules(), targets)
    return exact_cases(
        holds, ((f"{name}; {t}", (form, words, t.target_probs)) for (name, form, words), t in cases)
    )


@tallied("rule.threshold", method="search", more=20, told="entropy rule")
def compare_entropy_rule(formula: Formula, effort: Effort) -> Cases:
    """tau of the entropy rule from weights against min(epsilon, delta exp(-H)) from
    probabilities."""
    for target in generate_targets(effort.seed, effort.per_family):
        probs = [to_mp(prob) for prob in target.target_probs if prob > 0]
        entropy = -mpmath.fsum(p * mpmath.log(p) for p in probs)
        total = 1 / probs[0]
        for epsilon, delta in (("0.09", "0.3"), ("0.9", "0.5")):
            form = NORMAL_FORMS["entropy"](MP.mpf(epsilon), MP.mpf(delta))
            gap = mpmath.log(total) - entropy
            found = formula(MP, form.cap, form.scale, form.offset, form.entropy_scale, total, gap)
            direct = min(MP.mpf(epsilon), MP.mpf(delta) * mpmath.exp(-entropy))
            yield f"{target}, {epsilon}, {delta}", found / total, direct, direct


@check("bound.threshold", method="steps")
def prove_raised_threshold(formula: Formula, effort: Effort) -> Evidence:
    """The printed formula, one threshold active at a time: every branch of it is at least the exact
    value, for every normaliser S (1 + x), |x| <= e = 1/(64 + k). The entropy threshold, and what
    the formula itself rounds, are left to the enclosure."""
    room, size = sympy.symbols("k o", nonnegative=True)
    error = 1 / (64 + room)
    modes = [
        ("cap", (CAP, sympy.oo, sympy.oo, sympy.oo), CAP * TOTAL * (1 + error)),
        ("offset < 0", (sympy.oo, SCALE, -size, sympy.oo), SCALE - size * TOTAL * (1 - error)),
        (
            "offset > 0",
            (sympy.oo, SCALE, size + OFFSET, sympy.oo),
            SCALE + (size + OFFSET) * TOTAL * (1 + error),
        ),
    ]
    steps = []
    for label, given, exact in modes:
        printed = formula(sympy, *given, TOTAL, sympy.S.Zero, error, sympy.S.Zero)
        for branch in printed.args if isinstance(printed, sympy.Min) else (printed,):
            steps.append(
                Step(label, sympy.together(sympy.expand(branch - exact)), 0, "nonnegative")
            )
    failing = [step.text for step in steps if not step.holds()]
    if failing:
        values = {CAP: 1, SCALE: 1, OFFSET: 1, TOTAL: 2, room: 1, size: 1}
        low = min(float(step.lhs.subs(values)) for step in steps)
        verdict = Verdict.REFUTED if low < -1e-12 else Verdict.UNDECIDED
        return Evidence(
            "steps", verdict, None, f"{low:.3g}", f"{failing[0]} at {values}", len(steps)
        )
    found = prove_identities(THRESHOLD_BOUND, [])
    return replace(
        found,
        cases=found.cases + len(steps),
        detail=f"{found.detail}; the printed formula, all branches",
    )


@check("bound.threshold", method="enclosure")
def enclose_raised_threshold(formula: Formula, effort: Effort) -> Evidence:
    """The printed formula less what its own roundings may take off, against the exact threshold at
    the worst error.

    Each part scales with its parameter, so that is 1, and so are S and exp(gap). Of the cap: a sum
    and two products (its 65/64 e is rounded as well, u of it). Of scale + offset S: a product and
    two sums of scale and of |offset| S, three products and two sums of what is added to them. This
    part is linear in scale and |offset| S, what roundings take is convex, so the corners decide.
    Of the entropy's part: 8 u of exp (claim kernel.exp), and one each of two products, two sums and
    the slack, with room for a sixth."""
    far, little = 10**6, Fraction(1, 2**99)  # an offset <= 0 leaves scale as it is
    unit = Fraction(1, 2**53)
    once, thrice, fourteen = 1 - unit, (1 - unit) ** 3, 1 - 14 * unit
    lost, lost_of_added = thrice**-1 - 1, 1 - (1 - unit) ** 5

    def cap(n: Any, error: Any) -> Any:
        return formula(n, 1, far, 0, far, 1, 0, error * once, 0) * thrice - (1 + error)

    def scale(n: Any, error: Any) -> Any:
        return formula(n, far, 1, little, far, 1, 0, error, 0) * thrice - (1 + little * (1 + error))

    def raised(n: Any, error: Any) -> Any:
        return formula(n, far, 0, 1, far, 1, 0, error, 0) * (1 - lost_of_added) - (1 + error)

    def lowered(n: Any, error: Any) -> Any:
        added = formula(n, far, 0, -1, far, 1, 0, error, 0) + 1
        return (added * (1 - lost_of_added) - lost) - error

    def entropy(n: Any, error: Any) -> Any:
        return formula(n, far, far, 0, 1, 1, 0, 0, error) * fourteen - n.exp(error)

    half = Fraction(1, 128)
    linear = {"cap": cap, "scale": scale, "offset > 0": raised, "offset < 0": lowered}
    with interval_digits(40):  # u beside 1
        return all_enclosed(
            [
                *(
                    (f"{part}: raised > exact", values(over), [(0, 0)])
                    for part, over in linear.items()
                ),
                *(
                    (f"{part}: and more so with e", derivative(over), [(0, 2 * half)])
                    for part, over in linear.items()
                ),
                ("raised - exact > 0 without error", values(entropy), [(0, 0)]),
                ("the slack grows for h <= 1/128", derivative(entropy), [(0, half)]),
                ("raised - exact >= 0 for 1/128 <= h <= 1/64", values(entropy), [(half, 2 * half)]),
            ]
        )


@tallied(
    "bound.threshold",
    method="search",
    relation=">=",
    confirm=mpmath.mpf(0),
    refute=mpmath.mpf(10) ** -30,
    told="errors up to 1/64",
)
def search_raised_threshold(formula: Formula, effort: Effort) -> Cases:
    """Random errors, the extreme ones included: the exact threshold never exceeds the raised
    one."""
    rng = random.Random(effort.seed)
    for case in range(4000 if effort.thorough else 600):
        form = _random_form(rng, case % 4)
        total, gap = mpmath.mpf(rng.uniform(1, 50)), mpmath.mpf(rng.uniform(-5, 0))
        errors = [mpmath.mpf(rng.choice([1, 1e-3, 1e-9])) / 64 for _ in range(2)]
        share = [mpmath.mpf(rng.choice([-1, 1, rng.uniform(-1, 1)])) for _ in range(2)]
        exact_total, exact_gap = total * (1 + share[0] * errors[0]), gap + share[1] * errors[1]
        exact = min(
            form.cap * exact_total,
            form.scale + form.offset * exact_total,
            form.entropy_scale * mpmath.exp(exact_gap),
        )
        raised = formula(
            MP, form.cap, form.scale, form.offset, form.entropy_scale, total, gap, *errors
        )
        if exact in (math.inf, -math.inf):
            continue
        yield (
            f"{form}, S={mpmath.nstr(total, 8)}, gap={mpmath.nstr(gap, 8)}",
            raised,
            exact,
            exact,
        )


def _random_form(rng: random.Random, kind: int) -> NormalForm:
    number = mpmath.mpf(rng.uniform(0.01, 1))
    made = {
        0: lambda: NORMAL_FORMS["additive"](number),
        1: lambda: NORMAL_FORMS["multiplicative"](number),
        2: lambda: NORMAL_FORMS["absolute"](number),
        3: lambda: NORMAL_FORMS["entropy"](mpmath.inf, number),
    }[kind]()
    return NormalForm(
        *(mpmath.mpf(part) if isinstance(part, (int, float)) else part for part in made)
    )
