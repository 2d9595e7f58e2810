"""The outer infimum solved from its definition: min KL(target || draft) over target and draft
together, under linear constraints on both, by an interior-point method in mpmath with a dual
bracket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath

from proofs_check.methods.numbers import to_mp, working_digits
from proofs_check.methods.optimise import Bracket, NoConvergence

__all__ = ["JointProgramme", "Row", "minimise_jointly"]

mpf = mpmath.mpf
_ROUGHLY = 1e-7  # how near floats come without trouble
Row = dict[int, Fraction]


@dataclass
class JointProgramme:
    """Linear constraints on 2n variables: ``target(i)`` and ``draft(i)`` are their columns; both
    sum to 1 already. ``stands_for``: how many tokens it speaks of, where some are merged."""

    num_tokens: int
    equalities: list[tuple[Row, Fraction]] = field(default_factory=list)
    inequalities: list[tuple[Row, Fraction]] = field(default_factory=list)  # row . x >= bound
    stands_for: int = 0

    def __post_init__(self) -> None:
        self.stands_for = self.stands_for or self.num_tokens
        one = Fraction(1)
        sums = [({self.target(i): one for i in range(self.num_tokens)}, one)]
        sums.append(({self.draft(i): one for i in range(self.num_tokens)}, one))
        self.equalities = [*sums, *self.equalities]

    def target(self, i: int) -> int:
        return i

    def draft(self, i: int) -> int:
        return self.num_tokens + i

    def at_least(self, larger: int, smaller: int, by: Fraction | int = 0) -> JointProgramme:
        """x[larger] - x[smaller] >= by."""
        self.inequalities.append(({larger: Fraction(1), smaller: Fraction(-1)}, Fraction(by)))
        return self

    def apart(self, larger: int, smaller: int, by: Fraction) -> JointProgramme:
        """x[larger] - x[smaller] = by."""
        self.equalities.append(({larger: Fraction(1), smaller: Fraction(-1)}, by))
        return self

    def row_at_least(self, row: Row, bound: Fraction | int) -> JointProgramme:
        self.inequalities.append((row, Fraction(bound)))
        return self


def minimise_jointly(programme: JointProgramme, *, digits: int = 50) -> Bracket:
    """[lower, upper] around the infimum, narrower than 10**-(digits - 8); ``draft_probs`` holds
    target, then draft."""
    with working_digits(2 * digits + 20):
        for from_near in (True, False):
            solver = _JointSolver(programme, mpmath.mp)
            if from_near and not solver.begin_near(programme):
                continue
            bracket = solver.solve(mpf(10) ** -digits)
            if abs(bracket.gap) < mpf(10) ** -(digits - 8):
                return bracket
        raise NoConvergence(f"joint programme: gap {mpmath.nstr(bracket.gap, 3)}")


class _JointSolver:
    """In mpmath's numbers, or (``mpmath.fp``) in Python's floats."""

    def __init__(self, programme: JointProgramme, numbers: Any) -> None:
        self.numbers, self.count = numbers, programme.num_tokens
        mpf = numbers.mpf
        size = 2 * self.count
        exact = float if numbers is mpmath.fp else to_mp
        self.equal = [
            ([exact(row.get(i, Fraction(0))) for i in range(size)], exact(bound))
            for row, bound in programme.equalities
        ]
        self.above = [
            ({k: exact(v) for k, v in row.items()}, exact(bound))
            for row, bound in programme.inequalities
        ]
        self.point = [mpf(1) / self.count] * size
        self.level = [mpf(0)] * len(self.equal)
        self.slack = [mpf(1) / 4] * len(self.above)
        self.slope = [mpf(1)] * len(self.above)
        self.bound = [mpf(1)] * size
        self.last_step = mpf(1)
        self.nearest = mpf(1)  # of the way to the boundary, at most

    def begin_near(self, programme: JointProgramme) -> bool:
        """Begin where floats come to, most of the way at a tenth of the time; False where they come
        to nothing. The bracket is as sharp from anywhere."""
        rough = _JointSolver(programme, mpmath.fp)
        try:
            if rough.solve(_ROUGHLY, 100).iterations == 100:
                return False
        except (ArithmeticError, ValueError):
            return False
        for name in ("point", "level", "slack", "slope", "bound"):
            setattr(self, name, [mpf(value) for value in getattr(rough, name)])
        return True

    def solve(self, goal: Any, most: int = 400) -> Bracket:
        count = len(self.slack) + len(self.point)
        for iteration in range(1, most):
            products = [a * b for a, b in zip(self.slack, self.slope, strict=True)]
            products += [a * b for a, b in zip(self.point, self.bound, strict=True)]
            mean = self.numbers.fsum(products) / count
            residual = max(self._infeasibility(), self._dual_residual())
            if mean * count < goal and residual < goal:
                return Bracket(self.dual_value(), self.primal_value(), tuple(self.point), iteration)
            # the barrier must not vanish before the residuals do: else the iterate sticks to a
            # wrong boundary
            lagging = residual > 10 * mean or self.last_step < self.numbers.mpf("0.1")
            # a last part of the way to the boundary that is fixed would halve the pace
            self.nearest = 1 - min(self.numbers.mpf("0.02"), self.numbers.sqrt(mean))
            self._newton_step(mean if lagging else min(mean / 5, mean * self.numbers.sqrt(mean)))
        return Bracket(self.dual_value(), self.primal_value(), tuple(self.point), most)

    def _infeasibility(self) -> mpmath.mpf:
        misses = [bound - _dot(row, self.point) for row, bound in self.equal]
        misses += [self._excess(k) - self.slack[k] for k in range(len(self.above))]
        return max(abs(miss) for miss in misses)

    def _dual_residual(self) -> mpmath.mpf:
        n = self.count
        gradient = [self.numbers.log(self.point[i] / self.point[n + i]) + 1 for i in range(n)]
        gradient += [-self.point[i] / self.point[n + i] for i in range(n)]
        for i, bound in enumerate(self.bound):
            gradient[i] -= bound + self.numbers.fsum(
                y * row[i] for y, (row, _) in zip(self.level, self.equal, strict=True)
            )
        for slope, (row, _) in zip(self.slope, self.above, strict=True):
            for i, value in row.items():
                gradient[i] -= slope * value
        return max(abs(value) for value in gradient)

    def _excess(self, k: int) -> mpmath.mpf:
        row, bound = self.above[k]
        return self.numbers.fsum(value * self.point[i] for i, value in row.items()) - bound

    def _newton_step(self, centre: mpmath.mpf) -> None:
        size, rows = len(self.point), len(self.equal)
        matrix, right = self._objective()
        for i in range(size):
            matrix[i][i] += self.bound[i] / self.point[i]
            right[i] += centre / self.point[i]
            right[i] += self.numbers.fsum(self.level[k] * self.equal[k][0][i] for k in range(rows))
        miss = [self._excess(k) - self.slack[k] for k in range(len(self.above))]
        for k, (row, _) in enumerate(self.above):
            stiffness = self.slope[k] / self.slack[k]
            push = centre / self.slack[k] - stiffness * miss[k]
            for i, value in row.items():
                right[i] += value * push
                for j, other in row.items():
                    matrix[i][j] += stiffness * value * other
        system = [matrix[i] + [-self.equal[k][0][i] for k in range(rows)] for i in range(size)]
        system += [list(row) + [self.numbers.mpf(0)] * rows for row, _ in self.equal]
        right += [bound - _dot(row, self.point) for row, bound in self.equal]
        solution = _solve_linear(system, right)
        self._advance(solution[:size], solution[size:], miss, centre)

    def _objective(self) -> tuple[list[list[mpmath.mpf]], list[mpmath.mpf]]:
        """Hessian and negative gradient of sum p log(p/q)."""
        n = self.count
        matrix = [[self.numbers.mpf(0)] * (2 * n) for _ in range(2 * n)]
        right = [self.numbers.mpf(0)] * (2 * n)
        for i in range(n):
            own, other = self.point[i], self.point[n + i]
            matrix[i][i] = 1 / own
            matrix[i][n + i] = matrix[n + i][i] = -1 / other
            matrix[n + i][n + i] = own / other**2
            right[i] = -(self.numbers.log(own / other) + 1)
            right[n + i] = own / other
        return matrix, right

    def _advance(
        self,
        move: list[mpmath.mpf],
        level_move: list[mpmath.mpf],
        miss: list[mpmath.mpf],
        centre: mpmath.mpf,
    ) -> None:
        slack_move = [
            self.numbers.fsum(value * move[i] for i, value in row.items()) + miss[k]
            for k, (row, _) in enumerate(self.above)
        ]
        slope_move = [
            (centre - z * ds) / s - z
            for z, ds, s in zip(self.slope, slack_move, self.slack, strict=True)
        ]
        bound_move = [
            (centre - v * dx) / x - v for v, dx, x in zip(self.bound, move, self.point, strict=True)
        ]
        pairs = [
            (self.point, move),
            (self.slack, slack_move),
            (self.slope, slope_move),
            (self.bound, bound_move),
        ]
        step = self.numbers.mpf(1)
        for values, changes in pairs:
            for value, change in zip(values, changes, strict=True):
                if change < 0:
                    step = min(step, self.nearest * value / -change)
        self.last_step = step
        for values, changes in [*pairs, (self.level, level_move)]:
            values[:] = [
                value + step * change for value, change in zip(values, changes, strict=True)
            ]

    def primal_value(self) -> mpmath.mpf:
        n = self.count
        return self.numbers.fsum(
            self.point[i] * self.numbers.log(self.point[i] / self.point[n + i]) for i in range(n)
        )

    def dual_value(self) -> mpmath.mpf:
        """The Lagrange dual: bounds times multipliers, where a_i + 1 + log b_i >= 0 and b_i > 0 for
        every token.

        a, b are the multipliers' pulls on target_i and draft_i; inf over p, q of p log(p/q) + a p +
        b q is then 0. The multipliers of the two sums are shifted until the condition holds, which
        only lowers the value."""
        n = self.count
        pull = [
            -self.numbers.fsum(self.level[k] * self.equal[k][0][i] for k in range(len(self.equal)))
            for i in range(2 * n)
        ]
        value = self.numbers.fsum(
            level * bound for level, (_, bound) in zip(self.level, self.equal, strict=True)
        )
        for slope, (row, bound) in zip(self.slope, self.above, strict=True):
            value += slope * bound
            for i, weight in row.items():
                pull[i] -= slope * weight
        if min(pull[n:]) <= 0:
            return -self.numbers.inf
        shortfall = max(
            [
                self.numbers.mpf(0),
                *[-(pull[i] + 1 + self.numbers.log(pull[n + i])) for i in range(n)],
            ]
        )
        return value - shortfall


def _dot(row: Sequence[Any], point: Sequence[Any]) -> Any:
    return sum(a * b for a, b in zip(row, point, strict=True))


def _solve_linear(matrix: list[list[Any]], right: list[Any]) -> list[Any]:
    """Gaussian elimination with row pivoting, in place."""
    size = len(right)
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(matrix[r][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        right[column], right[pivot] = right[pivot], right[column]
        head = matrix[column]
        for r in range(column + 1, size):
            if matrix[r][column] == 0:
                continue
            factor = matrix[r][column] / head[column]
            line = matrix[r]
            for c in range(column + 1, size):
                if head[c] != 0:
                    line[c] -= factor * head[c]
            right[r] -= factor * right[column]
    for r in range(size - 1, -1, -1):
        tail = sum(matrix[r][c] * right[c] for c in range(r + 1, size))
        right[r] = (right[r] - tail) / matrix[r][r]
    return right
