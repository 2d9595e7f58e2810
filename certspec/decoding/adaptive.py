"""Drafting that stops, widens or goes on by the drafter-side certificate, before the target has run. This module knows
profiles and draft rows, and nothing about targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from certspec.certificates.coverage import coverage_certificates
from certspec.decoding.candidates import top_probs
from certspec.decoding.drafting import Grower
from certspec.decoding.policies import ScoredGrower, require_count
from certspec.decoding.profiles import DraftingProfile
from certspec.errors import InvalidArgument
from certspec.models.growth import BUDGET, PROFILE, GrowthNumbers

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Adaptive", "WithinBudget"]


@dataclass(frozen=True)
class Adaptive:
    """Spends draft passes and nodes where a profile says that they pay: ``generate(..., draft_length=Adaptive(p))``.

    A candidate's chance is the product, along its path, of coverage probabilities that the profile reads off the
    certificates: rank r has coverage(r + 1) - coverage(r). It is verified where chance >= rate * node_cost, and run by
    the draft where chance >= rate * (draft_cost + node_cost). ``width`` 1 is a chain (None: as wide as the profile);
    ``rate`` None takes the profile's.
    """

    profile: DraftingProfile
    depth: int = 16
    width: int = 1
    rate: float | None = None
    max_nodes: int = 64

    def __post_init__(self) -> None:
        for name in ("depth", "width", "max_nodes"):
            require_count("Adaptive", name, getattr(self, name))
        if self.width > self.profile.width:
            raise InvalidArgument(f"Adaptive: expected width at most {self.profile.width}, got {self.width}")

    def start(self, max_depth: int) -> Grower:
        return ScoredGrower(self, max_depth)

    def candidates(self, row: Tensor) -> tuple[Sequence[int], Sequence[float]]:
        ids, probs = top_probs(row, self.width + 1)
        certificates = coverage_certificates(np.minimum(probs, 1.0)[None], self.width)[:, 0].tolist()
        shares: list[float] = []
        before = 0.0
        for coverage, certificate in zip(self.profile.coverage[: self.width], certificates, strict=True):
            covered = max(before, coverage.at(certificate))
            shares.append(min(covered - before, shares[-1] if shares else 1.0))
            before = covered
        return ids[: self.width], shares

    def worth_running(self, scores: Sequence[float], fresh: Sequence[int]) -> Sequence[int]:
        bar = self._rate * (self.profile.draft_cost + self.profile.node_cost)
        if len(fresh) == 1:
            return fresh if scores[fresh[0]] >= bar else ()
        # one pass runs several nodes at little more than the price of one: the best of them has to pay for it
        best = max(fresh, key=lambda node: (scores[node], -node), default=None)
        if best is None or scores[best] < bar:
            return ()
        return [node for node in fresh if node == best or scores[node] >= bar]

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        bar = self._rate * self.profile.node_cost
        best = sorted(range(len(scores)), key=lambda node: (-scores[node], node))[: self.max_nodes]
        return sorted(node for node in best if scores[node] >= bar)

    @cached_property
    def numbers(self) -> GrowthNumbers:
        coverage, profile = self.profile.coverage[: self.width], self.profile
        return GrowthNumbers(
            PROFILE, self.width, run_score=self._rate * (profile.draft_cost + profile.node_cost),
            keep_score=self._rate * profile.node_cost, max_nodes=self.max_nodes,
            knots=tuple(each.knots for each in coverage), values=tuple(each.values for each in coverage),
        )  # fmt: skip

    @property
    def _rate(self) -> float:
        return self.profile.rate if self.rate is None else self.rate


@dataclass(frozen=True)
class WithinBudget:
    """A chain that goes on while the certificate exceeds the KL budget, each node just as wide as that takes.

    Where the target keeps within ``budget`` [nats], a node whose certificate is above it is accepted for certain. A
    node that no width up to ``width`` covers gets ``width`` candidates and is the last.
    """

    budget: float
    depth: int = 16
    width: int = 4

    def __post_init__(self) -> None:
        require_count("WithinBudget", "depth", self.depth)
        require_count("WithinBudget", "width", self.width)
        if not self.budget >= 0.0:
            raise InvalidArgument(f"WithinBudget: expected a budget of at least 0 nats, got {self.budget!r}")

    @cached_property
    def numbers(self) -> GrowthNumbers:
        return GrowthNumbers(BUDGET, self.width, bar=self.budget)

    def start(self, max_depth: int) -> Grower:
        return ScoredGrower(self, max_depth)

    def candidates(self, row: Tensor) -> tuple[Sequence[int], Sequence[float]]:
        ids, probs = top_probs(row, self.width + 1)
        enough = np.flatnonzero(coverage_certificates(probs[None], self.width)[:, 0] > self.budget)
        # scores only mark what goes on: the best candidate of a node that is covered
        needed = int(enough[0]) + 1 if len(enough) else self.width
        return ids[:needed], [1.0 if len(enough) else 0.5, *[0.5] * (needed - 1)]

    def worth_running(self, scores: Sequence[float], fresh: Sequence[int]) -> Sequence[int]:
        return [node for node in fresh if scores[node] == 1.0]

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        return range(len(scores))
