"""The constrained minimum solved from its definition: min KL(target || draft), or a Renyi
divergence of another order, over drafts in a region, by a primal-dual interior-point method in
mpmath, bracketed by a duality gap. Neither pooling nor a closed form is used, so that it is a
witness for both."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import mpmath

from proofs_check.methods.numbers import to_mp, working_digits

__all__ = ["Bracket", "NoConvergence", "minimise_single", "minimise_tree", "minimise_with_hub"]

mpf = mpmath.mpf


class NoConvergence(RuntimeError):
    """The interior-point method stopped with a duality gap above the one asked for."""


@dataclass(frozen=True)
class Bracket:
    """lower <= the minimum <= upper, by a dual point and a strictly feasible primal point
    (nats)."""

    lower: mpmath.mpf
    upper: mpmath.mpf
    draft_probs: tuple[mpmath.mpf, ...]
    iterations: int

    @property
    def gap(self) -> mpmath.mpf:
        return self.upper - self.lower


def minimise_single(
    target_probs: Sequence[Fraction], competitor: int, *, digits: int = 50
) -> Bracket:
    """min KL(target || draft) over drafts with ``draft[competitor] >= draft[i]`` for all i."""
    others = [i for i in range(len(target_probs)) if i != competitor]
    return minimise_with_hub(target_probs, competitor, others, sign=1, digits=digits)


def minimise_tree(target_probs: Sequence[Fraction], width: int, *, digits: int = 50) -> Bracket:
    """min KL(target || draft) over drafts in which at least ``width`` other tokens reach token 0
    (all sets tried)."""
    brackets = [
        minimise_with_hub(target_probs, 0, chosen, sign=-1, digits=digits)
        for chosen in itertools.combinations(range(1, len(target_probs)), width)
    ]
    if not brackets:
        raise ValueError(
            f"minimise_tree: no {width} competitors among {len(target_probs)} tokens: nothing "
            "rejects"
        )
    best = min(brackets, key=lambda bracket: bracket.upper)
    return Bracket(
        min(b.lower for b in brackets),
        best.upper,
        best.draft_probs,
        sum(b.iterations for b in brackets),
    )


def minimise_with_hub(
    target_probs: Sequence[Fraction],
    hub: int,
    spokes: Sequence[int],
    *,
    sign: int,
    digits: int = 50,
    order: Fraction | None = None,
) -> Bracket:
    """min KL(target || draft), or that of Renyi's ``order``, subject to ``sign * (draft[hub] -
    draft[i]) >= 0`` for i in ``spokes``.

    The Newton matrix is an arrow (hub against spokes) with one equality row, so a step costs
    O(vocab). The returned bracket is narrower than 10**-(digits - 5) or NoConvergence is raised.
    """
    with working_digits(
        2 * digits + 20
    ):  # slacks shrink to 10**-digits and are differences of numbers near 1
        target = [to_mp(prob) for prob in target_probs]
        cost = _Logarithm() if order is None else _Power(to_mp(order))
        found = _HubProblem(target, hub, list(spokes), sign, cost).solve(mpf(10) ** -digits)
        lower, upper = (cost.divergence(value) for value in (found.lower, found.upper))
        bracket = Bracket(lower, upper, found.draft_probs, found.iterations)
        if not bracket.gap <= mpf(10) ** -(digits - 5):
            raise NoConvergence(
                f"hub {hub}, spokes {list(spokes)}: gap {mpmath.nstr(bracket.gap, 3)}"
            )
        return bracket


class _Logarithm:
    """A token's cost t log(t/d), whose sum is KL."""

    def at(self, t: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
        return t * mpmath.log(t / d) if t > 0 else mpf(0)

    def slope(self, t: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
        return -t / d

    def curvature(self, t: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
        return t / d**2

    def least(self, t: mpmath.mpf, weight: mpmath.mpf) -> mpmath.mpf:
        """The least of cost + weight d over d >= 0."""
        if t == 0:
            return mpf(0)
        return t + t * mpmath.log(weight) if weight > 0 else -mpmath.inf

    def divergence(self, total: mpmath.mpf) -> mpmath.mpf:
        return total


class _Power:
    """A token's cost t^a d^(1-a), turned in sign for a < 1, where it is concave; the divergence is
    the logarithm of the sum of powers over a - 1."""

    def __init__(self, order: mpmath.mpf) -> None:
        self.order, self.sign = order, 1 if order > 1 else -1

    def at(self, t: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
        return self.sign * t**self.order * d ** (1 - self.order)

    def slope(self, t: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
        return -abs(self.order - 1) * (t / d) ** self.order

    def curvature(self, t: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
        return self.order * abs(self.order - 1) * (t / d) ** self.order / d

    def least(self, t: mpmath.mpf, weight: mpmath.mpf) -> mpmath.mpf:
        """The least of cost + weight d over d >= 0: at d = t (|a-1|/weight)^(1/a)."""
        if t == 0:
            return mpf(0)
        if weight <= 0:
            return mpf(0) if self.sign > 0 else -mpmath.inf
        d = t * (abs(self.order - 1) / weight) ** (1 / self.order)
        return self.at(t, d) + weight * d

    def divergence(self, total: mpmath.mpf) -> mpmath.mpf:
        power = self.sign * total
        if power <= 0:  # a dual value that says nothing
            return -mpmath.inf
        return mpmath.log(power) / (self.order - 1)


class _HubProblem:
    """State of the interior-point iteration; ``bound`` multiplies draft >= 0, ``slope`` the hub
    constraints."""

    def __init__(
        self,
        target: list[mpmath.mpf],
        hub: int,
        spokes: list[int],
        sign: int,
        cost: _Logarithm | _Power,
    ) -> None:
        self.target, self.hub, self.spokes, self.sign = target, hub, spokes, sign
        self.cost = cost
        self.size = len(target)
        self.draft = self._strictly_feasible()
        self.level = mpf(1)
        self.slope = {i: mpf(1) for i in spokes}
        self.bound = [mpf(1) for _ in target]
        self.nearest = mpf(1)  # of the way to the boundary, at most

    def _strictly_feasible(self) -> list[mpmath.mpf]:
        # every tilted token is lighter (tree) or the hub is heavier (single) than a uniform start
        weights = [mpf(2) if i == self.hub and self.sign > 0 else mpf(1) for i in range(self.size)]
        if self.sign < 0:
            weights = [mpf(2) if i in self.spokes else mpf(1) for i in range(self.size)]
        total = mpmath.fsum(weights)
        return [weight / total for weight in weights]

    def slack(self, i: int) -> mpmath.mpf:
        return self.sign * (self.draft[self.hub] - self.draft[i])

    def solve(self, goal: mpmath.mpf) -> Bracket:
        """Iterate until the complementarity products are below the goal, then bracket the value."""
        count = len(self.spokes) + self.size
        for iteration in range(1, 1000):
            products = [self.slope[i] * self.slack(i) for i in self.spokes]
            products += [bound * draft for bound, draft in zip(self.bound, self.draft, strict=True)]
            mean = mpmath.fsum(products) / count
            if mean * count < goal:
                lower, upper = self.dual_value(), self.primal_value()
                if upper - lower < goal * 1000:
                    return Bracket(lower, upper, tuple(self.draft), iteration)
            self.nearest = 1 - min(mpf("0.01"), mpmath.sqrt(mean))
            self._newton_step(min(mean / 5, mean * mpmath.sqrt(mean)))
        return Bracket(self.dual_value(), self.primal_value(), tuple(self.draft), 1000)

    def _newton_step(self, centre: mpmath.mpf) -> None:
        hub, sign = self.hub, self.sign
        gradient = [
            self.cost.slope(t, d) - centre / d + self.level
            for t, d in zip(self.target, self.draft, strict=True)
        ]
        diagonal = [
            self.cost.curvature(t, d) + b / d
            for t, d, b in zip(self.target, self.draft, self.bound, strict=True)
        ]
        stiffness = {}
        for i in self.spokes:
            slack = self.slack(i)
            stiffness[i] = self.slope[i] / slack
            gradient[i] += sign * centre / slack
            gradient[hub] -= sign * centre / slack
            diagonal[i] += stiffness[i]
            diagonal[hub] += stiffness[i]
        move, level_move = self._solve_arrow(diagonal, stiffness, gradient)
        slope_move = {
            i: (centre - self.slope[i] * sign * (move[hub] - move[i])) / self.slack(i)
            - self.slope[i]
            for i in self.spokes
        }
        bound_move = [
            (centre - b * m) / d - b for b, m, d in zip(self.bound, move, self.draft, strict=True)
        ]
        step = self._longest_step(move, slope_move, bound_move)
        self.draft = [d + step * m for d, m in zip(self.draft, move, strict=True)]
        total = mpmath.fsum(self.draft)
        self.draft = [d / total for d in self.draft]
        self.slope = {i: self.slope[i] + step * slope_move[i] for i in self.spokes}
        self.bound = [b + step * m for b, m in zip(self.bound, bound_move, strict=True)]
        self.level += step * level_move

    def _solve_arrow(self, diagonal, stiffness, gradient):
        """Solve H move + level_move * 1 = -gradient with sum(move) = 0, H an arrow around the
        hub."""
        solutions = []
        for right in ([-g for g in gradient], [mpf(1)] * self.size):
            pivot, rest = diagonal[self.hub], right[self.hub]
            for i, stiff in stiffness.items():
                pivot -= stiff**2 / diagonal[i]
                rest += stiff * right[i] / diagonal[i]
            at_hub = rest / pivot
            solved = [
                at_hub
                if i == self.hub
                else (right[i] + stiffness.get(i, mpf(0)) * at_hub) / diagonal[i]
                for i in range(self.size)
            ]
            solutions.append(solved)
        plain, ones = solutions
        level_move = mpmath.fsum(plain) / mpmath.fsum(ones)
        return [a - level_move * b for a, b in zip(plain, ones, strict=True)], level_move

    def _longest_step(self, move, slope_move, bound_move):
        step = mpf(1)
        values = [*zip(self.draft, move, strict=True), *zip(self.bound, bound_move, strict=True)]
        values += [(self.slope[i], slope_move[i]) for i in self.spokes]
        values += [(self.slack(i), self.sign * (move[self.hub] - move[i])) for i in self.spokes]
        for value, change in values:
            if change < 0:
                step = min(step, self.nearest * value / -change)
        return step

    def primal_value(self) -> mpmath.mpf:
        """The cost of the present strictly feasible draft: an upper bound of the minimum."""
        return mpmath.fsum(self.cost.at(t, d) for t, d in zip(self.target, self.draft, strict=True))

    def dual_value(self) -> mpmath.mpf:
        """The Lagrange dual at the present multipliers, the sum of each token's least cost less the
        level: a lower bound.

        weight_i = level + (the multipliers' pull on i) must be >= 0; the level is raised where it
        is not."""
        pull = [mpf(0)] * self.size
        for i in self.spokes:
            pull[i] += self.sign * self.slope[i]
            pull[self.hub] -= self.sign * self.slope[i]
        level = max([self.level, *[-p for p in pull]])
        least = [self.cost.least(t, level + p) for t, p in zip(self.target, pull, strict=True)]
        return -mpmath.inf if -mpmath.inf in least else mpmath.fsum(least) - level
