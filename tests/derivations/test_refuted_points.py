"""What false statements and true ones come to at the points told beside them is computed here."""

import math
import re
from collections.abc import Callable, Sequence

import mpmath
import pytest

import certspec as cs
from derivations.language.claim import all_claims, get_claim
from proofs_check.methods.numbers import MP

_NUMBER = re.compile(r"\d?\.\d{4,}")
REFUTED = {name: claim for name, claim in all_claims().items() if claim.expected == "refuted"}


def _pool(*probs: float) -> float:
    """sum p log(p/c), c the mean."""
    level = sum(probs) / len(probs)
    return sum(p * math.log(p / level) for p in probs)


def _kl(target: Sequence[float], draft: Sequence[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(target, draft, strict=True))


def _formula(name: str, *given: str) -> float:
    return float(get_claim(name).formula(MP, *map(mpmath.mpf, given)))


def _flat(m: int, d: float) -> list[float]:
    flat = _pool((1 + d) / (m + 1), (1 + d) / (m + 1) - d)  # the middle lies above the level
    return [flat, cs.margin_certificate(f"tree:{m}", d, gap="p1-p(m+1)")]


TOLD: dict[str, Callable[[], list[float]]] = {
    "refuted.entropy.second-token": lambda: [
        _formula("refuted.entropy.second-token", ".1", "1", ".8"),
        _pool(0.415, 0.27),  # the second, .315, lies below the level
    ],
    "refuted.lumped.inside-alone": lambda: [
        _kl((0.36, 0.30, 0.34), (0.345, 0.295, 0.36)),
        _pool(0.36, 0.30),
    ],
    "refuted.pool.too-many": lambda: [
        _pool(0.5, 0.1),
        _pool(0.5, 0.2, 0.1),
        _pool(0.5, 0.2, 0.2, 0.1),
    ],
    "refuted.strict.level-set": lambda: [_pool(0.4, 0.4, 0.2)],
    "refuted.tree.flat-top": lambda: [*_flat(4, 0.2), *_flat(8, 0.05)],
    "refuted.tree.folklore": lambda: [9 * 0.81 / 4, cs.margin_certificate("tree:8", 0.9)],
}


def test_every_refuted_claim_that_tells_numbers_is_computed_here() -> None:
    assert {name for name, claim in REFUTED.items() if _NUMBER.search(claim.domain)} == set(TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_the_numbers_beside_a_refuted_claim_are_those_of_its_point(name: str) -> None:
    told, found = _NUMBER.findall(REFUTED[name].domain), TOLD[name]()
    assert all(any(f"{x:.{len(t.split('.')[1])}f}".lstrip("0") == t for x in found) for t in told)
    assert len(set(told)) == len(found)
