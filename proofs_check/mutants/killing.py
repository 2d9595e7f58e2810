"""Who notices a mutant: for a generated body the claim's look at its text, for a formula the
claim's own checks, for a kernel its tests in a copy of the repository. The tree itself is never
written to."""

from __future__ import annotations

import sys
import types
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from derivations.language import claim as claims
from derivations.language.claim import Claim, Formula, get_claim
from proofs_check.methods import examination
from proofs_check.methods.arguments import Seen
from proofs_check.methods.numbers import MP, working_digits
from proofs_check.methods.printed import parse
from proofs_check.mutants.changes import with_change
from proofs_check.mutants.copies import Copy
from proofs_check.mutants.subjects import KERNEL_TESTS, ROOT, Mutation, all_mutations
from proofs_check.outcome import Verdict
from proofs_check.registry import Check, Effort
from proofs_check.running.checks import checks_of
from proofs_check.running.runner import evidence_of

__all__ = ["Fate", "kill"]

_BROKEN = (
    ArithmeticError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    StopIteration,  # of a root that is looked for
)
FIRST = 5  # tests that have noticed most go first


@dataclass(frozen=True)
class Fate:
    """``fate``: killed, harmless or survived; ``by``: the method or the test that noticed, or why
    it is harmless."""

    name: str
    fate: str
    by: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def kill(mutation: Mutation, copy: Copy | None = None, killers: Counter[str] | None = None) -> Fate:
    """The fate of one mutant. ``copy``: a copy of the repository (``copied``), for kernels;
    ``killers``: how many mutants of its file each test has noticed, those go first."""
    if mutation.kind == "body":
        return _of_body(mutation)
    if mutation.kind == "formula":
        return _of_formula(mutation)
    if copy is None:
        raise ValueError(f"{mutation.name}: expected a copy of the repository to test it in")
    return _of_kernel(mutation, copy, Counter() if killers is None else killers)


def _changed_text(mutation: Mutation) -> str:
    return with_change((ROOT / mutation.path).read_text("utf-8"), mutation.change)


def _of_body(mutation: Mutation) -> Fate:
    file, name = mutation.function.split(".")
    checks_of(mutation.target)
    changed = parse(file, _changed_text(mutation))[name]
    topic = f"{file.rpartition('_')[0]}.{name}"
    for claim, items in examination.items_of().items():
        for item in items:
            if item.function == topic:
                try:
                    found = item.look(changed, get_claim(claim).formula)
                except _BROKEN as error:  # a text that no longer is a formula
                    return Fate(mutation.name, "killed", f"printed: {type(error).__name__}")
                if found.verdict is not Verdict.VERIFIED:
                    by = f"printed {found.verdict.name}: {found.worst_point[:160]}"
                    return Fate(mutation.name, "killed", by)
    return Fate(mutation.name, "survived", "")


def _of_formula(mutation: Mutation) -> Fate:
    """Where the claim itself doesn't notice, another claim may, whose formula calls what is
    changed."""
    fate = _of_claim(mutation)
    if fate.fate == "survived":
        for other in all_mutations():
            same = (other.path, other.change) == (mutation.path, mutation.change)
            if same and other.kind == "formula" and other.target != mutation.target:
                noticed = _of_claim(other)
                if noticed.fate == "killed":
                    return Fate(mutation.name, "killed", f"{other.target}, {noticed.by}")
    return fate


def _of_claim(mutation: Mutation) -> Fate:
    claim = get_claim(mutation.target)
    changed = _changed_formula(mutation)
    effort = Effort(per_family=1)
    seen = Seen(claim)
    for check in checks_of(claim.id):
        if check.method == "printed" or _verdict(check, seen, effort) is not Verdict.VERIFIED:
            continue
        verdict = _verdict(check, changed, effort)
        if verdict is not Verdict.VERIFIED:
            return Fate(
                mutation.name, "killed", f"{check.method} {getattr(verdict, 'name', 'error')}"
            )
    if claim.relation in ("<=", ">=") and _on_the_safe_side(claim, changed, seen):
        return Fate(mutation.name, "harmless", "the bound moves to its safe side")
    return Fate(mutation.name, "survived", "")


def _verdict(check: Check, formula: Formula, effort: Effort) -> Verdict | None:
    try:
        return evidence_of(check, formula, effort).verdict
    except _BROKEN:
        return None


def _changed_formula(mutation: Mutation) -> Formula:
    text = _changed_text(mutation)
    if mutation.path.startswith("certspec/"):
        file = Path(mutation.path).stem
        return parse(file, text)[mutation.function].formula
    module = types.ModuleType(f"{Path(mutation.path).stem}_changed")
    module.__file__ = mutation.path
    sys.modules[module.__name__] = module
    with _undeclared():
        exec(compile(text, mutation.path, "exec"), module.__dict__)
    formula: Formula = getattr(module, mutation.function)
    return formula


@contextmanager
def _undeclared() -> Any:
    """A module executed twice declares nothing the second time."""
    own = claims.declare
    claims.declare = lambda claim: claim
    try:
        yield
    finally:
        claims.declare = own


def _on_the_safe_side(claim: Claim, changed: Formula, seen: Seen) -> bool:
    sign = 1 if claim.relation == "<=" else -1
    moved = []
    for arguments in seen.calls:
        try:
            with working_digits(50):
                old, new = seen.formula(MP, *arguments), changed(MP, *arguments)
                same = old == new or abs(old - new) <= MP.mpf(10) ** -40 * abs(old)
                moved.append(MP.mpf(0) if same else sign * (old - new))
        except _BROKEN:
            return False
    return bool(moved) and min(moved) >= 0 and max(moved) > 0


def _of_kernel(mutation: Mutation, copy: Copy, killers: Counter[str]) -> Fate:
    first = [name for name, _ in killers.most_common(FIRST)]
    with copy.changed(mutation.path, _changed_text(mutation)):
        told = copy.run(KERNEL_TESTS[mutation.path], first)
    if told is None:
        return Fate(mutation.name, "survived", "")
    killers[told.partition(" ")[2].partition(" - ")[0]] += told.startswith("FAILED ")
    return Fate(mutation.name, "killed", told[:200])
