"""Numbers that a module tells of an example are what it gives for it: each one of four decimals in
the docstrings of certificates and of their derivations is computed here."""

import ast
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import certspec as cs
from certspec.certificates.coverage import coverage_certificates

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("certspec/certificates", "certspec/kernels/torch", "certspec/runs")
DERIVED = ("derivations/formulas", "derivations/margins")
_NUMBER = re.compile(r"(?<![\d.])0?(\.\d{4})(?!\d)")


def _row(*probs: float) -> Any:
    return np.log([probs])


def _certificate(*probs: float, **more: Any) -> float:
    rule, draft = more.pop("rule", "strict"), more.pop("draft", None)
    return cs.certify(_row(*probs), draft, rule, **more).certificate.item()


def _robust() -> Iterator[float]:
    rows = _row(0.7, 0.2, 0.1), _row(0.6, 0.3, 0.1)
    plain = cs.certify(*rows, "strict")
    found = cs.certify(*rows, "strict", logit_error=0.05)
    yield from (plain.kl.item(), plain.certificate.item())
    yield from (found.kl.item(), found.certificate.item(), found.reach.item())


def _box() -> Iterator[float]:
    yield 0.3 * math.exp(0.1)
    yield _certificate(0.5, 0.3, 0.2)
    yield _certificate(0.5, 0.3, 0.2, logit_error=0.05)


def _reduced() -> Iterator[float]:
    draft = _row(0.6, 0.4)
    yield _certificate(0.5, 0.3, 0.2, draft=draft, draft_vocabulary=[0, 2])


def _third() -> Iterator[float]:
    yield _certificate(0.5, 0.3, 0.2, rule="top:2")
    yield math.log(3) + sum(p * math.log(p) for p in (0.5, 0.3, 0.2))


def _divergences(*names: str) -> list[float]:
    return [_certificate(0.5, 0.3, 0.2, divergence=name) for name in names]


def _radius() -> Iterator[float]:
    yield cs.drafter_certificate(_row(0.6, 0.3, 0.1), "strict").item()


def _accepted() -> Iterator[float]:
    yield cs.sampling_acceptance(0.3)


LEVEL = math.sqrt((0.25 + 0.09) / 2)
TOLD: dict[str, Callable[[], Any]] = {
    "certspec/certificates/coverage.py": lambda: coverage_certificates(
        np.array([[0.6, 0.3, 0.05]]), 2
    ).ravel(),
    "certspec/certificates/divergences.py": lambda: _divergences(
        "kl", "renyi:2", "chi2", "hellinger"
    ),
    "certspec/certificates/drafter.py": _radius,
    "certspec/certificates/lumped_masses.py": lambda: (1 - 0.9 * 1.001, 1 - 0.9 * 0.999),
    "certspec/certificates/margin_bounds.py": lambda: [cs.margin_certificate("strict", 0.5)],
    "certspec/certificates/margins.py": lambda: (
        cs.margin_certificate("strict", 0.5),
        cs.required_margin("strict", 0.1),
        cs.drafter_margin_certificate("strict", 0.5),
    ),
    "certspec/certificates/pools.py": _radius,
    "certspec/certificates/radii.py": _radius,
    "certspec/certificates/reduced.py": _reduced,
    "certspec/certificates/reverse.py": lambda: [
        cs.reverse_certificate(_row(0.6, 0.3, 0.1), "strict").item()
    ],
    "certspec/certificates/robust.py": _robust,
    "certspec/certificates/sampling.py": _accepted,
    "certspec/kernels/torch/divergences.py": lambda: [LEVEL, *_divergences("renyi:2")],
    "certspec/kernels/torch/robust.py": _box,
    "certspec/runs/guarantees.py": _accepted,
    "derivations/formulas/drafter.py": _radius,
    "derivations/formulas/reduced.py": _reduced,
    "derivations/formulas/renyi.py": lambda: [LEVEL, *_divergences("renyi:2", "kl")],
    "derivations/formulas/robust.py": _box,
    "derivations/formulas/sampling.py": lambda: [
        cs.sampling_acceptance(0.3),
        1 - math.sqrt(0.3 / 2),
    ],
    "derivations/formulas/single_token.py": _third,
    "derivations/formulas/strict.py": lambda: [_certificate(0.6, 0.3, 0.1)],
    "derivations/margins/margins.py": lambda: [cs.margin_certificate("strict", 0.2)],
}


def _told(path: Path) -> set[str]:
    """The numbers of four decimals in a module's docstring."""
    return set(_NUMBER.findall(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""))


def test_every_module_that_tells_numbers_is_computed_here() -> None:
    paths = [path for folder in (*FOLDERS, *DERIVED) for path in (ROOT / folder).glob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in paths if _told(path)} == set(TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_the_numbers_of_an_example_are_those_of_the_module(name: str) -> None:
    assert _told(ROOT / name) == {f"{value:.4f}".lstrip("0") for value in TOLD[name]()}
