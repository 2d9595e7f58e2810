"""Checks of sampled acceptance: distributions by their definition, the least acceptance at a KL by
moving along its level set, and the least divergence at a loss by the outside solver."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import sympy

from derivations.formulas.sampling import BLOCK, DUAL, SET
from derivations.language.claim import Formula
from proofs_check.methods.cases import Cases, Tally, exact_cases, tallied
from proofs_check.methods.conic import TOLERANCE, clarabel
from proofs_check.methods.examination import Examined, examined
from proofs_check.methods.joint import JointProgramme, minimise_jointly
from proofs_check.methods.numbers import MP, divergence, to_mp, working_digits
from proofs_check.methods.steps import Identities, proved
from proofs_check.methods.targets import MANY
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort, check

F = Fraction
R = sympy.Rational


@proved("sampling.dual", DUAL)
def prove_dual(formula: Formula, effort: Effort) -> Identities:
    """At y = log 2: m = log 2, v = 2 log 2."""
    tilt = sympy.log(2)
    value = (1 + sympy.log(2 * tilt) - tilt - R(1, 10)) / tilt
    yield "KL = 1/10, y = log 2", formula(sympy, R(1, 10), tilt), value


_TILTS = ("0.001", "0.3", "0.8", "2", "3", "20", "200")


def _pairs(effort: Effort) -> Iterator[tuple[str, list[Any], list[Any]]]:
    rng = random.Random(effort.seed)
    for number in range(60):
        size = 2 + number % 7
        target = [MP.mpf(rng.random()) ** (1 + number % 4) for _ in range(size)]
        draft = [p * mpmath.exp(MP.mpf(rng.gauss(0, 0.2 + number % 5 / 3))) for p in target]
        yield (f"pair {number}", [p / sum(target) for p in target], [q / sum(draft) for q in draft])
    for tilt in map(MP.mpf, _TILTS[::2]):  # where a line touches
        low = 1 / tilt - 1 / mpmath.expm1(tilt)
        high = low * tilt / -mpmath.expm1(-tilt)
        yield f"touching at {tilt}", [high, 1 - high], [low, 1 - low]


@tallied("sampling.dual", method="search", relation="<=", told="pairs of 2 to 8 tokens, 7 tilts")
def search_dual(formula: Formula, effort: Effort) -> Cases:
    for label, target, draft in _pairs(effort):
        kl = divergence(target, draft)
        kept = mpmath.fsum(min(p, q) for p, q in zip(target, draft, strict=True))
        for tilt in _TILTS:
            yield f"{label}, y={tilt}", formula(MP, kl, MP.mpf(tilt)), kept, kept


@tallied(
    "sampling.dual",
    method="optimiser",
    confirm=1e-13,
    refute=1e-9,
    told="the least acceptance of binary pairs at a KL, to 13 digits",
)
def attain_dual(formula: Formula, effort: Effort) -> Cases:
    """The best of all lines, by thirds, against the least 1 - a + b of pairs of two tokens at that
    KL, by moving along the level set."""
    for kl in ("0.1", "0.3", "1.5"):
        with mpmath.workdps(30):
            value = -_least(lambda tilt: -formula(MP, MP.mpf(kl), tilt), "0.5", "9")  # noqa: B023
            truth = _least_acceptance(kl)
        yield f"KL={kl}", value, truth, truth


def _least(function: Any, left: str, right: str) -> Any:
    """The least value of a function that falls and then rises."""
    low, high = MP.mpf(left), MP.mpf(right)
    for _ in range(70):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if function(one) < function(two) else (one, high)
    return function((low + high) / 2)


@lru_cache
def _least_acceptance(budget: str) -> Any:
    kl = MP.mpf(budget)

    def kept(a: Any) -> Any:
        low, high = MP.mpf(0), a
        for _ in range(70):
            b = (low + high) / 2
            far = a * mpmath.log(a / b) + (1 - a) * mpmath.log((1 - a) / (1 - b)) > kl
            low, high = (b, high) if far else (low, b)
        return 1 - a + high

    return _least(kept, "0.3", "0.999")


@proved("sampling.set", SET)
def prove_set(formula: Formula, effort: Effort) -> Identities:
    probs = [R(1, 2), R(3, 10), R(1, 5)]
    value = R(7, 10) * sympy.log(R(7, 5)) + R(3, 10) * sympy.log(R(3, 5))
    yield "A = {1, 3}, loss 1/5", formula(sympy, probs, [0, 2], R(1, 5)), value


def _sets(effort: Effort) -> Iterator[tuple[list[F], list[int], F]]:
    """A target, a set of its tokens, and a loss."""
    rng = random.Random(effort.seed)
    for number in range(15):
        size = 2 + number % 5 if number < 14 else MANY
        drawn = [rng.randint(1, 40) for _ in range(size)]
        probs = [F(x, sum(drawn)) for x in drawn]
        chosen = sorted(rng.sample(range(size), 1 + number % (size - 1)))
        yield probs, chosen, sum(probs[i] for i in chosen) * F(1 + number % 4, 6)


@check("sampling.set", method="optimiser")
def solve_set_closely(formula: Formula, effort: Effort) -> Evidence:
    tally = Tally.at_digits("optimiser", effort.digits)
    for probs, chosen, loss in _sets(effort):
        if len(probs) == MANY:
            continue
        fixed = [({i: F(1)}, p) for i, p in enumerate(probs[1:], 1)]  # their sum fixes the first
        programme = JointProgramme(len(probs), equalities=fixed)
        row = {programme.draft(i): F(-1) for i in chosen}
        programme.row_at_least(row, loss - sum(probs[i] for i in chosen))
        found = minimise_jointly(programme, digits=effort.digits)
        with working_digits(effort.digits + 30):
            value = formula(MP, list(map(to_mp, probs)), chosen, to_mp(loss))
            tally.add(f"{probs}, A={chosen}, loss {loss}", value, found.lower, found.upper)
        if tally.refuted:
            break
    return tally.evidence(f"{effort.digits} digits, the draft free")


@check("sampling.set", method="conic")
def solve_set(formula: Formula, effort: Effort) -> Evidence:
    import cvxpy

    tally = Tally("conic", confirm=TOLERANCE, refute=10 * TOLERANCE)
    for probs, chosen, loss in _sets(effort):
        draft = cvxpy.Variable(len(probs), nonneg=True)
        kept = float(sum(probs[i] for i in chosen) - loss)
        constraints = [cvxpy.sum(draft) == 1, cvxpy.sum(draft[chosen]) <= kept]
        found = clarabel(cvxpy.sum(cvxpy.rel_entr([float(p) for p in probs], draft)), constraints)
        value = formula(MP, list(map(to_mp, probs)), chosen, to_mp(loss))
        tally.add(f"{probs}, A={chosen}, loss {loss}", value, found, found)
    return tally.evidence("cvxpy, Clarabel, the draft free")


@proved("sampling.block", BLOCK)
def prove_block(formula: Formula, effort: Effort) -> Identities:
    yield "1/10, 1/5", formula(sympy, [R(1, 10), R(1, 5)]), R(7, 10)


@proved("sampling.tokens", BLOCK)
def prove_tokens(formula: Formula, effort: Effort) -> Identities:
    yield "1/10, 1/5, 4/5", formula(sympy, [R(1, 10), R(1, 5), R(4, 5)]), R(9, 10) + R(7, 10)


def _blocks(effort: Effort) -> Iterator[tuple[str, tuple[list[F], list[F]]]]:
    """(mean chances of rejection over the target's texts, chances that the first n are accepted):
    every text of up to four tokens of two or three kinds, its next token's laws drawn after it; and
    losses that no text changes, of which large ones make the bound sharp."""
    rng = random.Random(effort.seed)

    def law(kinds: int) -> list[F]:
        drawn = [rng.randint(0, 9) ** rng.choice((1, 3)) for _ in range(kinds)]
        total = sum(drawn) or 1
        return [F(x, total) for x in drawn] if sum(drawn) else [F(1), *[F(0)] * (kinds - 1)]

    for number in range(60):
        kinds, texts = 2 + number % 2, [(F(1), F(1))]  # (the target's chance, that of acceptance)
        losses, kept = [], []
        for _ in range(1 + number % 4):
            longer, lost = [], F(0)
            for own, common in texts:
                target, draft = law(kinds), law(kinds)
                if number % 3:  # nearer to the target
                    draft = [(x + 9 * p) / 10 for p, x in zip(target, draft, strict=True)]
                pairs = [(p, min(p, q)) for p, q in zip(target, draft, strict=True)]
                lost += own * (1 - sum(both for _, both in pairs))
                longer += [(own * p, common * both) for p, both in pairs]
            texts = longer
            losses.append(lost)
            kept.append(sum((common for _, common in texts), F(0)))
        yield f"block {number}", (losses, kept)
    grid = (F(0), F(1, 100), F(1, 7), F(1, 2), F(1))
    for alike in itertools.product(grid, repeat=3):
        kept = [1 - alike[0]]
        for loss in alike[1:]:
            kept.append(kept[-1] * (1 - loss))
        yield f"{alike}", (list(alike), kept)


def _compare_blocks(claim: str, truth: Callable[[list[F]], F]) -> None:
    @check(claim, method="exact-cases")
    def compare(formula: Formula, effort: Effort) -> Evidence:
        def holds(case: tuple[list[F], list[F]]) -> Any:
            said, kept = formula(None, case[0]), truth(case[1])
            return True if said <= kept else said - kept

        return exact_cases(holds, _blocks(effort))


_compare_blocks("sampling.block", lambda kept: kept[-1])
_compare_blocks("sampling.tokens", lambda kept: sum(kept, F(0)))


examined(
    "sampling.dual",
    Examined(
        "sampling.acceptance_at",
        {
            "kl": (F(0), F(1, 10), F(3, 10), F(3, 2), F(8)),
            "tilt": (F(1, 50), F(1, 2), F(1), F(5, 2), F(20)),
        },
    ),
)
