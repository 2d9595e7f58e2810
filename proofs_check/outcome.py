"""What a check concludes: verdicts that refuse to be truth values, evidence by method, outcomes by
claim."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["GENERAL", "INDEPENDENT", "SAMPLES", "Evidence", "Outcome", "Verdict", "combine"]

GENERAL = frozenset({"steps", "enclosure"})  # the whole domain, not a sample of it
SAMPLES = frozenset({"exact-cases", "search", "optimiser", "conic"})
INDEPENDENT = SAMPLES | {"enclosure"}  # without a look at the derivation


class Verdict(enum.Enum):
    """Four answers. ``bool(verdict)`` raises: interval comparisons are three-valued and must not
    collapse to two."""

    VERIFIED = "The statement was confirmed wherever this method looked."
    REFUTED = "The statement is false at the point given."
    UNDECIDED = "The method ran out before it could decide; the remainder is given."
    SKIPPED = "The method needs a package that is not installed."

    def __bool__(self) -> bool:
        raise TypeError(f"{self.name} is not a truth value; compare with 'is Verdict.VERIFIED'")


@dataclass(frozen=True)
class Evidence:
    """What one method found: how many digits agree, the largest residual and where, over how many
    cases or boxes; of a sample also its ``domain``, the least and the largest of each size and
    argument."""

    method: str
    verdict: Verdict
    digits: float | None = None
    worst_residual: str = "0"
    worst_point: str = ""
    cases: int = 0
    seconds: float = 0.0
    detail: str = ""
    domain: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def general(self) -> bool:
        """Confirmed on the whole domain."""
        return self.method in GENERAL and self.verdict is Verdict.VERIFIED

    @property
    def independent(self) -> bool:
        """Confirmed without a look at the derivation."""
        return self.method in INDEPENDENT and self.verdict is Verdict.VERIFIED


@dataclass(frozen=True)
class Outcome:
    """The verdict on one claim, the evidence behind it, and which mutants its checks refuted."""

    claim: str
    expected: str
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    mutants: dict[str, str]  # name -> name of verdict
    complaints: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def as_expected(self) -> bool:
        return not self.complaints and self.verdict.name.lower() == self.expected

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["verdict"] = self.verdict.name
        for row, evidence in zip(plain["evidence"], self.evidence, strict=True):
            row["verdict"] = evidence.verdict.name
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Outcome:
        evidence = tuple(
            Evidence(
                **(row | {"verdict": Verdict[row["verdict"]], "domain": _ranges(row["domain"])})
            )
            for row in plain["evidence"]
        )
        changed = {
            "verdict": Verdict[plain["verdict"]],
            "evidence": evidence,
            "complaints": tuple(plain["complaints"]),
        }
        return cls(**(plain | changed))


def _ranges(plain: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (low, high) for name, (low, high) in plain.items()}


def combine(evidence: tuple[Evidence, ...]) -> Verdict:
    """REFUTED where any method refutes; VERIFIED where all that could run confirm, one of them on
    the whole domain and one without the derivation; else UNDECIDED."""
    if any(item.verdict is Verdict.REFUTED for item in evidence):
        return Verdict.REFUTED
    ran = [item for item in evidence if item.verdict is not Verdict.SKIPPED]
    return (
        Verdict.VERIFIED
        if all(item.verdict is Verdict.VERIFIED for item in ran)
        and any(item.general for item in ran)
        and any(item.independent for item in ran)
        else Verdict.UNDECIDED
    )
