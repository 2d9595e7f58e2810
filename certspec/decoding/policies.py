"""Draft trees that grow where a token is most likely to be accepted: candidates are scored by the
product of their probabilities along the path, and the best ones are kept.

Example: at the root the draft says "the" .6, "a" .3; below "the" it says "cat" .5. Then "the cat"
scores .3 like "a", and a budget of two nodes keeps "the" and "a" (ties go to the earlier node)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from certspec.certificates.coverage import coverage_certificates
from certspec.decoding.candidates import top_probs
from certspec.decoding.drafting import DraftTree, Grower, topology_of
from certspec.decoding.profiles import DraftingProfile
from certspec.errors import InvalidArgument
from certspec.models.growth import BUDGET, PROFILE, GrowthNumbers
from certspec.models.trees import MAX_NODES
from certspec.rules import as_index, as_real

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Adaptive", "BestFirst", "GrowthRule", "ScoredGrower", "WithinBudget", "require_counts"]


class GrowthRule(Protocol):
    """What a ``ScoredGrower`` asks: a node's candidates, which new ones are worth running, which
    are kept."""

    def candidates(self, row: Tensor) -> tuple[Sequence[int], Sequence[float]]:
        """The best tokens at a draft row (vocab,) and their scores given the node, not increasing,
        in [0, 1]."""

    def worth_running(self, scores: Sequence[float], fresh: Sequence[int]) -> Sequence[int]:
        """Of the nodes ``fresh`` (just added), those whose children are worth a draft pass;
        ``scores``: of all."""

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        """The nodes to verify, in order; with a node its parent and its better siblings (their
        scores are no less)."""


@dataclass(frozen=True)
class BestFirst:
    """At most ``num_nodes`` nodes, at most ``depth`` deep and ``width`` children a node: those with
    the largest cumulative draft probability (EAGLE-2's expansion). Each draft pass runs at most
    ``beam`` nodes (None: ``width``).

    A node that no descendant of which could still be among the best is not run, so a sure draft
    gets a long thin tree and an unsure one a short bushy one. Pass it as ``generate(...,
    tree=BestFirst(16))``."""

    num_nodes: int
    depth: int = 6
    width: int = 4
    beam: int | None = None

    def __post_init__(self) -> None:
        beam = {} if self.beam is None else {"beam": self.beam}
        require_counts(
            "BestFirst", num_nodes=self.num_nodes, depth=self.depth, width=self.width, **beam
        )
        exist = 0
        for _ in range(self.depth):
            exist = self.width * (1 + exist)
            if exist >= self.num_nodes:
                return
        raise InvalidArgument(
            f"BestFirst: expected num_nodes at most {exist}, all that a tree of width "
            f"{self.width} and depth {self.depth} has, got {self.num_nodes}"
        )

    def start(self, max_depth: int) -> Grower:
        return ScoredGrower(self, max_depth)

    def candidates(self, row: Tensor) -> tuple[Sequence[int], Sequence[float]]:
        ids, probs = top_probs(row, self.width)
        return ids, probs.tolist()

    def worth_running(self, scores: Sequence[float], fresh: Sequence[int]) -> Sequence[int]:
        # a child scores less than its parent: below the last place of the budget it could not enter
        bar = (
            sorted(scores, reverse=True)[self.num_nodes - 1]
            if len(scores) >= self.num_nodes
            else 0.0
        )
        best = sorted(fresh, key=lambda node: (-scores[node], node))[: self.beam or self.width]
        return sorted(node for node in best if scores[node] > bar)

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        return sorted(
            sorted(range(len(scores)), key=lambda node: (-scores[node], node))[: self.num_nodes]
        )


class ScoredGrower:
    """Grows one tree by a ``GrowthRule``: every candidate is a node until the end, when only the
    kept ones stay."""

    def __init__(self, rule: GrowthRule, max_depth: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._ranks: list[int] = []
        self._rule, self._levels_left = rule, max_depth
        self._rows: dict[int, Tensor] = {}

    def grow(self, rows: Sequence[tuple[int, Tensor]]) -> Sequence[int]:
        first = len(self.tokens)
        for node, row in rows:
            self._rows[node] = row
            ids, shares = self._rule.candidates(row)
            above = 1.0 if node < 0 else self.scores[node]
            self.tokens += ids
            self.parents += [node] * len(ids)
            self._ranks += range(len(ids))
            self.scores += [above * share for share in shares]
        self._levels_left -= 1
        if self._levels_left == 0:
            return ()
        return self._rule.worth_running(self.scores, range(first, len(self.tokens)))

    def finish(self, staged: dict[int, int]) -> DraftTree:
        kept = self._rule.kept(self.scores)
        renamed = {-1: -1} | {node: index for index, node in enumerate(kept)}
        topology = topology_of(
            tuple(renamed[self.parents[node]] for node in kept),
            tuple(self._ranks[node] for node in kept),
        )
        rows = {
            renamed[node]: row
            for node, row in self._rows.items()
            if renamed.get(node) in topology.children
        }
        return DraftTree(
            topology,
            [self.tokens[node] for node in kept],
            rows,
            {renamed[node]: index for node, index in staged.items() if node in renamed},
        )


def require_counts(owner: str, **counts: object) -> None:
    """Raise InvalidArgument unless each of ``counts`` is an integer from 1 to ``MAX_NODES``."""
    for name, value in counts.items():
        if not 1 <= as_index(value, otherwise=0) <= MAX_NODES:
            raise InvalidArgument(
                f"{owner}: expected {name} an integer from 1 to {MAX_NODES}, got {value!r}"
            )


@dataclass(frozen=True)
class Adaptive:
    """Spends draft passes and nodes where a profile says that they pay: ``generate(...,
    draft_length=Adaptive(p))``.

    A candidate's chance is the product, along its path, of coverage probabilities that the profile
    reads off the certificates: rank r has coverage(r + 1) - coverage(r). It is verified where
    chance >= rate * node_cost, and run by the draft where chance >= rate * (draft_cost +
    node_cost). ``width`` 1 is a chain, ``profile.width`` the widest tree; ``rate`` None takes the
    profile's."""

    profile: DraftingProfile
    depth: int = 16
    width: int = 1
    rate: float | None = None
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if not isinstance(self.profile, DraftingProfile):
            raise InvalidArgument(
                f"Adaptive: expected a DraftingProfile, as load_profile gives it, got "
                f"{self.profile!r}"
            )
        require_counts("Adaptive", depth=self.depth, width=self.width, max_nodes=self.max_nodes)
        if self.rate is not None and not as_real(self.rate) >= 0.0:
            raise InvalidArgument(
                f"Adaptive: expected rate None or a number of at least 0, got {self.rate!r}"
            )
        if self.width > self.profile.width:
            raise InvalidArgument(
                f"Adaptive: expected width at most {self.profile.width}, got {self.width}"
            )

    def start(self, max_depth: int) -> Grower:
        return ScoredGrower(self, max_depth)

    def candidates(self, row: Tensor) -> tuple[Sequence[int], Sequence[float]]:
        ids, probs = top_probs(row, self.width + 1)
        certificates = coverage_certificates(np.minimum(probs, 1.0)[None], self.width)[
            :, 0
        ].tolist()
        shares: list[float] = []
        before = 0.0
        for coverage, certificate in zip(
            self.profile.coverage[: self.width], certificates, strict=True
        ):
            covered = max(before, coverage.at(certificate))
            shares.append(min(covered - before, shares[-1] if shares else 1.0))
            before = covered
        return ids[: self.width], shares

    def worth_running(self, scores: Sequence[float], fresh: Sequence[int]) -> Sequence[int]:
        bar = self._rate * (self.profile.draft_cost + self.profile.node_cost)
        if len(fresh) == 1:
            return fresh if scores[fresh[0]] >= bar else ()
        # one pass runs several nodes at little more than the price of one: the best of them has to
        # pay for it
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
            PROFILE,
            self.width,
            run_score=self._rate * (profile.draft_cost + profile.node_cost),
            keep_score=self._rate * profile.node_cost,
            max_nodes=self.max_nodes,
            knots=tuple(each.knots for each in coverage),
            values=tuple(each.values for each in coverage),
        )

    @property
    def _rate(self) -> float:
        return self.profile.rate if self.rate is None else self.rate


@dataclass(frozen=True)
class WithinBudget:
    """A chain that goes on while the certificate exceeds the KL budget, each node just as wide as
    that takes.

    Where the target keeps within ``budget`` [nats], a node whose certificate is above it is
    accepted for certain. A node that no width up to ``width`` covers gets ``width`` candidates and
    is the last."""

    budget: float
    depth: int = 16
    width: int = 4

    def __post_init__(self) -> None:
        require_counts("WithinBudget", depth=self.depth, width=self.width)
        if not as_real(self.budget) >= 0.0:
            raise InvalidArgument(
                f"WithinBudget: expected a budget of at least 0 nats, got {self.budget!r}"
            )

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
