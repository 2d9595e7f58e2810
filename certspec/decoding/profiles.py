"""What calibration learnt about a draft, as a small JSON file: how likely its certificates make a
token to be accepted, a KL budget, and what passes cost.

Example: ``profile.coverage[0](0.4)`` is the probability that the draft's best token is the target's
where the certificate of strict greedy is 0.4 nats."""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.rules import as_real
from certspec.runs.writing import write_atomically

__all__ = [
    "DraftingProfile",
    "MonotoneMap",
    "conformal_quantile",
    "fit_monotone",
    "load_profile",
    "profile_json",
]

_FORMAT = "certspec drafting profile 1"


@dataclass(frozen=True)
class MonotoneMap:
    """A nondecreasing map from a certificate [nats] to a probability: linear between knots,
    constant outside."""

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, certificates: Any) -> Any:
        return np.interp(certificates, *self._table)

    def at(self, certificate: float) -> float:
        """The value at one certificate, for inner loops: what calling the map gives, but for
        rounding."""
        above = bisect_right(self.knots, certificate)
        if above == 0 or above == len(self.knots):
            return self.values[max(above - 1, 0)]
        x1, x2, y1, y2 = *self.knots[above - 1 : above + 1], *self.values[above - 1 : above + 1]
        return y1 + (certificate - x1) * (y2 - y1) / (x2 - x1)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.knots), np.array(self.values)


@dataclass(frozen=True)
class DraftingProfile:
    """``coverage[m - 1]`` maps the certificate of Tree(m) (m = 1: strict) at a draft row to the
    probability that the target's token is among the draft's m best.

    ``kl_budget``: split-conformal quantile, the KL(target || draft) [nats] that a step stays under
    with probability ``1 - alpha`` if steps were exchangeable. ``draft_cost, node_cost``: a draft
    pass and one more node to verify, as shares of a target pass of one token. ``rate``: tokens a
    target pass's time when drafting is tuned; a token more is worth 1 / rate."""

    name: str
    num_steps: int
    alpha: float
    kl_budget: float
    coverage: tuple[MonotoneMap, ...]
    draft_cost: float
    node_cost: float
    rate: float
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Widest tree whose coverage was measured."""
        return len(self.coverage)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, whole or not at all; an infinite budget is written as null.

        Raises CertspecError where ``path`` can't be written."""
        write_atomically(path, profile_json(self) + "\n")


def profile_json(profile: DraftingProfile) -> str:
    """What ``save`` writes."""
    content = {"format": _FORMAT} | asdict(profile)
    if not np.isfinite(profile.kl_budget):
        content["kl_budget"] = None
    return json.dumps(content, indent=1, allow_nan=False)


def load_profile(path: str | os.PathLike[str]) -> DraftingProfile:
    """Read a profile that ``save`` wrote.

    Args:
        path: the file.

    Raises UnreadableInput for anything else.

    Example:
        >>> import certspec as cs
        >>> cs.load_profile("no such file")
        Traceback (most recent call last):
        ...
        certspec.errors.UnreadableInput: no such file: ...
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            raise KeyError("format")
        coverage = tuple(
            MonotoneMap(tuple(m["knots"]), tuple(m["values"])) for m in content.pop("coverage")
        )
        budget = content.pop("kl_budget")
        notes = tuple(content.pop("notes"))
        budget = math.inf if budget is None else as_real(budget)
        profile = DraftingProfile(**content, kl_budget=budget, coverage=coverage, notes=notes)
        _require_numbers(profile)
        return profile
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UnreadableInput(
            f"{path}: expected a JSON file of format {_FORMAT!r} ({error})"
        ) from error


def _require_numbers(profile: DraftingProfile) -> None:
    """ValueError where a number or a text is none, or a map is none of probabilities that rise."""
    for name in ("num_steps", "alpha", "draft_cost", "node_cost", "rate"):
        if not 0.0 <= as_real(vars(profile)[name]) < math.inf:
            raise ValueError(f"{name}: expected a number of at least 0")
    if not profile.kl_budget >= 0.0:
        raise ValueError("kl_budget: expected null or a number of at least 0")
    if not all(isinstance(text, str) for text in (profile.name, *profile.notes)):
        raise ValueError("name and notes: expected texts")
    for each in profile.coverage:
        known = all(math.isfinite(as_real(number)) for number in (*each.knots, *each.values))
        if not known or len(each.knots) != len(each.values) or not each.knots:
            raise ValueError("coverage: expected as many values as knots, all numbers")
        shares = (0.0, *each.values, 1.0)
        if any(list(row) != sorted(row) for row in (each.knots, shares)):
            raise ValueError("coverage: expected knots, and values from 0 to 1, that rise")
    if not profile.coverage:
        raise ValueError("coverage: expected a map for each width")


def conformal_quantile(scores: Any, alpha: float) -> float:
    """The ceil((n + 1)(1 - alpha))-th smallest of ``scores`` (n,), or +inf where n is too small for
    ``alpha``.

    A new score exceeds it with probability at most ``alpha`` if it is exchangeable with these
    (split conformal)."""
    if not 0.0 < as_real(alpha) < 1.0:
        raise InvalidArgument(f"alpha: expected a number between 0 and 1, got {alpha!r}")
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    rank = int(np.ceil((len(ordered) + 1) * (1.0 - alpha)))
    return float(ordered[rank - 1]) if rank <= len(ordered) else float("inf")


def fit_monotone(
    certificates: Any, hits: Sequence[bool] | np.ndarray, max_knots: int = 64
) -> MonotoneMap:
    """Isotonic regression of ``hits`` (n,) on ``certificates`` (n,): pooled adjacent violators of
    quantile bins.

    Empty data give the constant 0; an infinite certificate counts as one nat above the largest
    finite one."""
    scores, hit = np.asarray(certificates, dtype=np.float64), np.asarray(hits, dtype=np.float64)
    finite = scores[np.isfinite(scores)]
    if len(scores) == 0:
        return MonotoneMap((0.0,), (0.0,))
    scores = np.where(np.isfinite(scores), scores, (finite.max() if len(finite) else 0.0) + 1.0)
    order = np.argsort(scores, kind="stable")
    blocks: list[tuple[float, float, int]] = []  # mean certificate, mean hit, size
    for part in np.array_split(order, min(len(order), 4 * max_knots)):
        blocks.append((float(scores[part].mean()), float(hit[part].mean()), len(part)))
        while len(blocks) > 1 and (
            blocks[-2][1] >= blocks[-1][1] or blocks[-2][0] >= blocks[-1][0]
        ):
            (x1, y1, n1), (x2, y2, n2) = blocks[-2:]
            n = n1 + n2
            blocks[-2:] = [((x1 * n1 + x2 * n2) / n, (y1 * n1 + y2 * n2) / n, n)]
    if len(blocks) > max_knots:
        chosen = np.unique(np.linspace(0, len(blocks) - 1, max_knots).round().astype(int))
        blocks = [blocks[index] for index in chosen]
    return MonotoneMap(tuple(x for x, _, _ in blocks), tuple(y for _, y, _ in blocks))
