"""Joint programmes over target and draft: one for each rule, margin and competitor, from the
definitions alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal

import mpmath

from derivations.language.claim import Formula
from proofs_check.methods.cases import Relation, Tally, exactly
from proofs_check.methods.joint import JointProgramme, minimise_jointly
from proofs_check.methods.numbers import MP, working_digits
from proofs_check.methods.optimise import Bracket
from proofs_check.outcome import Evidence
from proofs_check.registry import Effort

__all__ = ["Margin", "least", "margin_programme", "tree_programme", "with_tail"]

Margin = Literal["exactly", "at least"]
# (label, the programmes whose least value is the infimum, +inf where there is none, arguments of
# the formula)
Case = tuple[str, Sequence[Callable[[], JointProgramme]], tuple[Any, ...]]


def margin_programme(
    num_tokens: int,
    competitor: int,
    gap: Fraction,
    *,
    last: int = 1,
    margin: Margin = "exactly",
    slack: Fraction | None = None,
    factor: Fraction | None = None,
    ceiling: Fraction | None = None,
) -> JointProgramme:
    """Sorted target with p_1 - p_{last+1} = g (or >= g); the draft's maximum at ``competitor``
    (0-based).

    ``slack`` t: p_competitor <= p_1 - t. ``factor`` alpha: p_competitor <= alpha p_1.
    ``ceiling`` tau: p_competitor <= tau.
    """
    programme = _sorted_target(num_tokens, gap, last, margin)
    if slack is not None:
        programme.at_least(programme.target(0), programme.target(competitor), slack)
    if factor is not None:
        programme.row_at_least(
            {programme.target(0): factor, programme.target(competitor): Fraction(-1)}, 0
        )
    if ceiling is not None:
        programme.row_at_least({programme.target(competitor): Fraction(-1)}, -ceiling)
    for i in range(num_tokens):
        if i != competitor:
            programme.at_least(programme.draft(competitor), programme.draft(i))
    return programme


def tree_programme(
    num_tokens: int, width: int, gap: Fraction, *, last: int, margin: Margin
) -> JointProgramme:
    """Sorted target with p_1 - p_{last+1} = g (or >= g); tokens 2..m+1 reach token 1 in the
    draft."""
    programme = _sorted_target(num_tokens, gap, last, margin)
    for i in range(1, width + 1):
        programme.at_least(programme.draft(i), programme.draft(0))
    return programme


def _sorted_target(num_tokens: int, gap: Fraction, last: int, margin: Margin) -> JointProgramme:
    programme = JointProgramme(num_tokens)
    if margin == "exactly":
        programme.apart(programme.target(0), programme.target(last), gap)
    else:
        programme.at_least(programme.target(0), programme.target(last), gap)
    for i in range(num_tokens - 1):
        if not (i == 0 and last == 1):  # there the margin itself orders the two
            programme.at_least(programme.target(i), programme.target(i + 1))
    return programme


def with_tail(
    programme_of: Callable[[int], JointProgramme], num_tokens: int, competitor: int, tail: int
) -> JointProgramme:
    """The last token stands for ``tail`` equal tokens: its target and draft mass may be that many
    times larger."""
    programme = programme_of(num_tokens)
    programme.stands_for = num_tokens - 1 + tail
    columns = {programme.target(num_tokens - 1), programme.draft(num_tokens - 1)}
    programme.inequalities = [
        ({k: v / tail if k in columns else v for k, v in row.items()}, bound)
        for row, bound in programme.inequalities
    ]
    return programme


def least(
    formula: Formula, cases: Iterable[Case], effort: Effort, *, relation: Relation = "="
) -> Evidence:
    """``formula`` against the least of each case's programmes, bracketed at the working digits, one
    at the second."""
    tally = Tally.at_digits("optimiser", effort.digits, relation)
    repeated = 0
    for number, (label, makes, arguments) in enumerate(cases):
        programmes = [make() for make in makes]
        tally.of_tokens(*(programme.stands_for for programme in programmes))
        for digits in (effort.digits, effort.second_digits) if number == 1 else (effort.digits,):
            bracket = _least_bracket(programmes, digits)
            with working_digits(effort.digits + 20):
                tally.add(
                    label, MP.mpf(formula(MP, *exactly(arguments))), bracket.lower, bracket.upper
                )
            repeated += digits == effort.second_digits
        if tally.refuted:
            break
    return tally.evidence(
        f"{effort.digits} digits, target and draft free; {repeated} again at {effort.second_digits}"
    )


def _least_bracket(programmes: Sequence[JointProgramme], digits: int) -> Bracket:
    if not programmes:
        return Bracket(mpmath.inf, mpmath.inf, (), 0)
    brackets = [_solve_once(programme, digits) for programme in programmes]
    best = min(brackets, key=lambda b: b.upper)
    return Bracket(min(b.lower for b in brackets), best.upper, best.draft_probs, best.iterations)


_SOLVED: dict[tuple[str, int], Bracket] = {}


def _solve_once(programme: JointProgramme, digits: int) -> Bracket:
    """Solved once a process, however many mutants ask; the key is the programme itself, not a
    label."""
    key = (repr(programme), digits)
    if key not in _SOLVED:
        _SOLVED[key] = minimise_jointly(programme, digits=digits)
    return _SOLVED[key]
