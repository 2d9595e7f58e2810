"""Whatever has mutants: generated bodies, formulas of claims, and the certifying kernels that are
written by hand."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from random import Random

from derivations.kernels.emit import GENERATED, kernel_topics
from derivations.language.claim import Claim, all_claims
from proofs_check.methods.examination import examined_functions
from proofs_check.mutants.changes import Change, changes_of
from proofs_check.running.checks import checks_of

__all__ = ["KERNEL_TESTS", "ROOT", "Mutation", "all_mutations", "chosen"]

ROOT = GENERATED.parents[2]
_TESTS = "tests/certspec/"
_LAWS = (_TESTS + "kernels/test_laws.py", _TESTS + "kernels/test_exact_thresholds.py")
_REGIMES = (*_LAWS, _TESTS + "kernels/test_regimes.py")
_TRITON = (_TESTS + "kernels/triton/test_rows.py",)
_DECIDED = (_TESTS + "kernels/triton/test_decisions.py", *_TRITON)
_LAUNCHED = (_TESTS + "kernels/triton/test_launches.py", *_TRITON)
_STATED = (_TESTS + "kernels/triton/test_stated_errors.py", *_TRITON)
_FILTER = tuple(
    f"{_TESTS}kernels/numba/test_filter{part}.py" for part in ("_decisions", "_bounds", "", "_loop")
)
_MARGINS = (_TESTS + "certificates/test_margins_below.py", _TESTS + "certificates/test_margins.py")
_CLAIM = (
    "tests/proofs_check/test_claims.py::"
    "test_claim_comes_out_as_expected_and_its_mutants_are_refuted"
)
_CELLS = tuple(f"{_CLAIM}[kernel.entropy_{name}]" for name in ("cells", "floor"))
_DRAFTER = (_TESTS + "certificates/test_drafter_lower.py", _TESTS + "certificates/test_drafter.py")
_SEARCH = (_TESTS + "certificates/test_entropy_search.py",)
_OTHER = tuple(f"{_TESTS}certificates/test_divergences{part}.py" for part in ("_parts", ""))
_LISTS = (_TESTS + "certificates/test_lumped_parts.py", _TESTS + "certificates/test_lumped.py")
# Certifying kernels written by hand -> the tests that have to notice their mutants, quickest first.
KERNEL_TESTS: dict[str, tuple[str, ...]] = {
    "certspec/kernels/reference.py": _LAWS,
    "certspec/kernels/rounding.py": _LAWS,
    "certspec/kernels/torch/rows.py": _REGIMES,
    "certspec/kernels/torch/rules.py": (_TESTS + "kernels/torch/test_rules.py", *_LAWS),
    "certspec/kernels/torch/robust.py": (_TESTS + "certificates/test_robust.py",),
    "certspec/kernels/torch/divergences.py": _OTHER,
    "certspec/kernels/numba/rules.py": (_TESTS + "kernels/numba/test_rules.py", *_LAWS),
    "certspec/kernels/numba/rows.py": (_TESTS + "kernels/numba/test_rows.py", *_REGIMES),
    "certspec/kernels/numba/filter.py": _FILTER,
    "certspec/kernels/numba/filter_loop.py": _FILTER,
    "certspec/kernels/numba/filter_sums.py": _FILTER,
    "certspec/kernels/numba/vectors.py": (_TESTS + "kernels/numba/test_vectors.py", *_FILTER),
    "certspec/kernels/triton/rules.py": _DECIDED,
    "certspec/kernels/triton/rows.py": _LAUNCHED,
    "certspec/kernels/triton/ranks.py": _STATED,
    "certspec/kernels/triton/segments.py": _STATED,
    "certspec/certificates/margin_bounds.py": (*_MARGINS, *_CELLS),
    "certspec/certificates/tree_widths.py": (*_MARGINS[:1], *_DRAFTER[1:]),
    "certspec/certificates/drafter.py": _DRAFTER,
    "certspec/certificates/drafter_entropy.py": (*_SEARCH, *_DRAFTER),
    "certspec/certificates/pools.py": _DRAFTER,
    "certspec/certificates/radii.py": _DRAFTER,
    "certspec/certificates/reduced.py": (_TESTS + "certificates/test_reduced.py",),
    "certspec/certificates/lumped_rules.py": (
        *_LISTS,
        _TESTS + "certificates/test_lumped_certify.py",
    ),
    "certspec/certificates/lumped_masses.py": _LISTS,
}


@dataclass(frozen=True)
class Mutation:
    """One change of one file. ``kind``: body, formula or kernel. ``target``: the claim that has to
    notice, or for a kernel nothing. ``function``: of a body, ``file.function``; of a formula, the
    name under which the changed module or text has it."""

    kind: str
    path: str  # from the repository's root
    change: Change
    target: str = ""
    function: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target or '-'} {self.path}:{self.change}"


@cache
def all_mutations() -> tuple[Mutation, ...]:
    """Every mutant of every kind, in an order that does not change."""
    return (*_bodies(), *_formulas(), *_kernels())


def chosen(
    mutations: Sequence[Mutation], patterns: list[str], count: int, seed: int
) -> list[Mutation]:
    """Those with a part of their name like any of the globs; ``count`` of them drawn evenly from
    the kinds, 0 for all."""
    kept = [
        m for m in mutations if not patterns or any(fnmatch(m.name, f"*{p}*") for p in patterns)
    ]
    if not count or count >= len(kept):
        return kept
    rng = Random(seed)
    drawn: list[Mutation] = []
    pools = [[m for m in kept if m.kind == kind] for kind in ("body", "formula", "kernel")]
    pools = [rng.sample(pool, len(pool)) for pool in pools if pool]
    while len(drawn) < count:
        for pool in pools:
            if pool and len(drawn) < count:
                drawn.append(pool.pop())
    return drawn


def _bodies() -> Iterator[Mutation]:
    checks_of("margin.strict")  # registers every claim's checks
    for key, claim in examined_functions().items():
        file, function = key.split(".")
        path = GENERATED / f"{file}.py"
        for change in changes_of(path.read_text("utf-8"), {function}):
            yield Mutation("body", _within(path), change, claim, key)


def _formulas() -> Iterator[Mutation]:
    for claim in all_claims().values():
        if claim.expected == "verified":
            yield from _of_formula(claim)


def _of_formula(claim: Claim) -> Iterator[Mutation]:
    printed = _printed_as(claim)
    if printed:
        topic, name = printed
        path = sorted(GENERATED.glob(f"{topic}_*.py"))[0]
        for change in changes_of(path.read_text("utf-8"), {name}):
            yield Mutation("formula", _within(path), change, claim.id, name)
        return
    code = getattr(claim.formula, "__code__", None)
    if code is None or "<" in claim.formula.__qualname__:  # made by another function
        return
    path = Path(inspect.getsourcefile(claim.formula) or "")
    if not path.is_relative_to(ROOT / "derivations"):
        return
    text = path.read_text("utf-8")
    for change in changes_of(text, _reached(text, claim.formula.__name__)):
        yield Mutation("formula", _within(path), change, claim.id, claim.formula.__name__)


def _printed_as(claim: Claim) -> tuple[str, str] | None:
    """(topic, kernel) whose expression is the claim's formula, where it is one."""
    names = claim.formula.__code__.co_freevars if hasattr(claim.formula, "__code__") else ()
    if "expression" not in names:
        return None
    expression = claim.formula.__closure__[names.index("expression")].cell_contents  # type: ignore[index]
    for topic, specs in kernel_topics().items():
        for spec in specs:
            if spec.expression == expression:
                return topic, spec.name
    return None


def _reached(text: str, name: str) -> set[str]:
    """The functions of a module that one of them calls, at any remove."""
    nodes = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    reached, waiting = set(), [name]
    while waiting:
        own = waiting.pop()
        if own in nodes and own not in reached:
            reached.add(own)
            waiting += [n.id for n in ast.walk(nodes[own]) if isinstance(n, ast.Name)]
    return reached


def _kernels() -> Iterator[Mutation]:
    for path in KERNEL_TESTS:
        for change in changes_of((ROOT / path).read_text("utf-8")):
            yield Mutation("kernel", path, change)


def _within(path: Path) -> str:
    return str(path.relative_to(ROOT))
