"""An outside witness: the same constrained minima by cvxpy and Clarabel, in float64. Needs the test extra; knows
nothing about certificates."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy

from proofs_check.optimise import Bracket

__all__ = ["TOLERANCE", "solve_hub_by_cone"]

TOLERANCE = mpmath.mpf("1e-6")  # Clarabel's exponential cones settle near 1e-9; the claim asks for 1e-6


def solve_hub_by_cone(target_probs: Sequence[Fraction], hub: int, spokes: Sequence[int], *, sign: int) -> Bracket:
    """min KL(target || draft) with ``sign * (draft[hub] - draft[i]) >= 0``; the solver's point, re-evaluated here."""
    import cvxpy

    target = numpy.array([float(prob) for prob in target_probs])
    draft = cvxpy.Variable(len(target), nonneg=True)
    constraints = [cvxpy.sum(draft) == 1, sign * (draft[hub] - draft[list(spokes)]) >= 0]
    present = [i for i, prob in enumerate(target) if prob > 0]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.rel_entr(target[present], draft[present]))), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cvxpy warns about inaccurate solutions; the tolerance judges them here
        problem.solve(solver="CLARABEL")
    point = numpy.clip(numpy.asarray(draft.value), 1e-300, None)
    point = point / point.sum()
    value = mpmath.mpf(float(sum(target[i] * numpy.log(target[i] / point[i]) for i in present)))
    return Bracket(value, value, tuple(mpmath.mpf(float(x)) for x in point), 0)
