"""The nearest distribution solved from its definition: min KL(moved || base) over ``moved`` under
linear constraints, by a primal-dual method on the multipliers, bracketed by a duality gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import mpmath

from proofs_check.methods.joint import _solve_linear
from proofs_check.methods.numbers import to_mp, working_digits
from proofs_check.methods.optimise import Bracket, NoConvergence

__all__ = ["Projection", "Row", "project", "reaches"]

mpf = mpmath.mpf
Row = tuple[
    tuple[tuple[int, Fraction], ...], Fraction
]  # (coefficients by token, bound): row . moved >= bound


def reaches(winner: int, loser: int, by: Fraction | int = 0, factor: Fraction | int = 1) -> Row:
    """factor * moved[winner] - moved[loser] >= by."""
    return ((winner, Fraction(factor)), (loser, Fraction(-1))), Fraction(by)


@dataclass(frozen=True)
class Projection:
    """min KL(moved || base) over distributions ``moved`` that satisfy every row; base probabilities
    are positive."""

    base_probs: tuple[Fraction, ...]
    rows: tuple[Row, ...]


def project(projection: Projection, digits: int = 50) -> Bracket:
    """[lower, upper] around the minimum, narrower than 10**-(digits - 5); solved once a process."""
    return _project_once(projection, digits)


@lru_cache(maxsize=20_000)
def _project_once(projection: Projection, digits: int) -> Bracket:
    with working_digits(2 * digits + 20):
        bracket = _Solver(projection).solve(mpf(10) ** -(digits + 2))
        if not 0 <= bracket.gap <= mpf(10) ** -(digits - 5):
            raise NoConvergence(
                f"projection of {len(projection.base_probs)} tokens: gap "
                f"{mpmath.nstr(bracket.gap, 3)}"
            )
        return bracket


class _Solver:
    """Multipliers lambda >= 0 give the point moved = base exp(rows' lambda) / Z, whose dual value
    is lambda . bounds - log Z <= the minimum; where moved satisfies the rows, its KL is >= the
    minimum."""

    def __init__(self, projection: Projection) -> None:
        self.base = [to_mp(prob) for prob in projection.base_probs]
        self.rows = [[(i, to_mp(value)) for i, value in row] for row, _ in projection.rows]
        self.bounds = [to_mp(bound) for _, bound in projection.rows]
        self.slope = [mpf(1) / 4 for _ in self.rows]
        self.slack = [mpf(1) / 4 for _ in self.rows]

    def solve(self, goal: mpmath.mpf) -> Bracket:
        count = len(self.rows)
        for iteration in range(1, 400):
            moved, log_normaliser = self._point()
            true_slack = [
                self._dot(row, moved) - bound
                for row, bound in zip(self.rows, self.bounds, strict=True)
            ]
            products = [a * b for a, b in zip(self.slope, self.slack, strict=True)]
            mean = mpmath.fsum(products) / max(count, 1)
            miss = max(
                (abs(a - b) for a, b in zip(true_slack, self.slack, strict=True)), default=mpf(0)
            )
            if mean * count < goal and all(slack >= 0 for slack in true_slack):
                gap = mpmath.fsum(a * b for a, b in zip(self.slope, true_slack, strict=True))
                if gap < 100 * goal:
                    lower = (
                        mpmath.fsum(a * b for a, b in zip(self.slope, self.bounds, strict=True))
                        - log_normaliser
                    )
                    return Bracket(lower, lower + gap, tuple(moved), iteration)
            centre = mean if miss > 10 * mean else min(mean / 5, mean * mpmath.sqrt(mean))
            self._newton_step(moved, true_slack, max(centre, goal**2))
        raise NoConvergence(f"projection of {len(self.base)} tokens: 400 iterations")

    def _point(self) -> tuple[list[mpmath.mpf], mpmath.mpf]:
        tilt = [mpf(0)] * len(self.base)
        for slope, row in zip(self.slope, self.rows, strict=True):
            for i, value in row:
                tilt[i] += slope * value
        highest = max(tilt)
        weights = [prob * mpmath.exp(t - highest) for prob, t in zip(self.base, tilt, strict=True)]
        total = mpmath.fsum(weights)
        return [weight / total for weight in weights], mpmath.log(total) + highest

    def _newton_step(
        self, moved: list[mpmath.mpf], true_slack: list[mpmath.mpf], centre: mpmath.mpf
    ) -> None:
        count = len(self.rows)
        means = [self._dot(row, moved) for row in self.rows]
        tables = [dict(row) for row in self.rows]
        matrix = [[mpf(0)] * count for _ in range(count)]
        for a in range(count):
            for b in range(a, count):
                shared = mpmath.fsum(
                    moved[i] * v * tables[b][i] for i, v in self.rows[a] if i in tables[b]
                )
                matrix[a][b] = matrix[b][a] = shared - means[a] * means[b]
        right = [centre / self.slope[a] - true_slack[a] for a in range(count)]
        system = [
            [matrix[a][b] + (self.slack[a] / self.slope[a] if a == b else 0) for b in range(count)]
            for a in range(count)
        ]
        move = _solve_linear(system, right)
        slack_move = [
            self._dot_dense(matrix[a], move) + true_slack[a] - self.slack[a] for a in range(count)
        ]
        step = min(
            [mpf(1), *[2 / abs(m) for m in move if m != 0]]
        )  # the point moves exponentially in the multipliers
        for values, changes in ((self.slope, move), (self.slack, slack_move)):
            for value, change in zip(values, changes, strict=True):
                if change < 0:
                    step = min(step, mpf("0.98") * value / -change)
        self.slope = [value + step * change for value, change in zip(self.slope, move, strict=True)]
        self.slack = [
            value + step * change for value, change in zip(self.slack, slack_move, strict=True)
        ]

    @staticmethod
    def _dot(row: Sequence[tuple[int, mpmath.mpf]], point: Sequence[mpmath.mpf]) -> mpmath.mpf:
        return mpmath.fsum(value * point[i] for i, value in row)

    @staticmethod
    def _dot_dense(line: Sequence[mpmath.mpf], point: Sequence[mpmath.mpf]) -> mpmath.mpf:
        return mpmath.fsum(a * b for a, b in zip(line, point, strict=True))
