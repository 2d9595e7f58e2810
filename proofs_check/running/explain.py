"""Words for the terminal: one line an outcome, and a claim with its derivation."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection
from pathlib import Path

from derivations.language.claim import Claim, Step
from derivations.language.written import sides_of
from proofs_check.methods.domain import in_words, joined
from proofs_check.outcome import Evidence, Outcome, Verdict
from proofs_check.running.checks import checks_of
from proofs_check.running.routes import reason_without, routes_of

_GENERATED = Path(__file__).resolve().parents[2] / "certspec" / "kernels" / "generated"
_KERNEL = re.compile(r"^# claims: (.*)\n(?:@.*\n)*(?:def )?(\w+)", re.MULTILINE)

__all__ = ["explain", "kernels_using", "one_line", "routes_in_words", "standing_of"]


def one_line(outcome: Outcome, told: set[str] | None = None) -> str:
    """``VERIFIED strict.closed  steps (7), optimiser 51 digits (20, worst 3e-52)``, and so on.

    ``told``: why claims do without a route, as far as it was printed already; what is there is not
    said again."""
    said = set() if told is None else told
    mark = " " if outcome.as_expected else "!"
    methods = ", ".join(_method(item) for item in outcome.evidence)
    killed = sum(verdict == "REFUTED" for verdict in outcome.mutants.values())
    line = f"{mark} {outcome.verdict.name:9} {outcome.claim:24} {methods}; "
    line += f"mutants {killed}/{len(outcome.mutants)}; {outcome.seconds:.1f} s"
    without = [
        route
        for route, used in routes_of({item.method for item in outcome.evidence}).items()
        if not used
    ]
    if without:
        line += f"; no {', no '.join(without)} route"
    for route in without:
        why = reason_without(outcome.claim, route)
        if why and outcome.expected == "verified" and why not in said:
            said.add(why)
            line += f"\n      no {route}: {why}"
    if domain := joined(item.domain for item in outcome.evidence):
        line += f"\n      sampled: {in_words(domain)}"
    for item in outcome.evidence:
        if item.verdict in (Verdict.REFUTED, Verdict.UNDECIDED):
            found = f"{item.verdict.value} [{item.worst_residual}] " if item.worst_residual else ""
            line += f"\n      {item.method}: {found}{item.worst_point}"
    return line + "".join(f"\n      ! {complaint}" for complaint in outcome.complaints)


def _method(item: Evidence) -> str:
    if item.verdict is Verdict.SKIPPED:
        return f"{item.method} skipped: {item.worst_point}"
    name = item.method if item.verdict is Verdict.VERIFIED else f"{item.method}={item.verdict.name}"
    if item.digits is None:
        return f"{name} ({item.cases})"
    return f"{name} {item.digits:.0f} digits ({item.cases}, worst {item.worst_residual})"


def explain(claim: Claim) -> str:
    """Statement, domain, derivation step by step, mutants, and the generated kernels that rely on
    the claim."""
    kernels = ", ".join(kernels_using(claim.id)) or "no kernel"
    parts = [
        f"{claim.id}  (theory {claim.theory}; expected {claim.expected})",
        _wrap("Claim. " + claim.sentence),
        _wrap("Domain. " + claim.domain),
        f"  Derivation. {claim.derivation.title}",
        *[_step(number, step) for number, step in enumerate(claim.derivation.steps, 1)],
        _wrap("Mutants. " + "; ".join(mutant.name for mutant in claim.mutants)),
        _wrap(
            "Routes. "
            + "; ".join(routes_in_words(claim.id, {check.method for check in checks_of(claim.id)}))
        ),
        _wrap(f"Used by. {kernels}"),
    ]
    return "\n".join(parts) + "\n"


def routes_in_words(claim: str, methods: Collection[str]) -> list[str]:
    """One phrase a route: its methods, or why there is none."""
    return [
        f"{route}: {' and '.join(used)}"
        if used
        else f"{route}: none, because it is {reason_without(claim, route)}"
        for route, used in routes_of(methods).items()
    ]


def _step(number: int, step: Step) -> str:
    told = f"{step.text} [{standing}]" if (standing := standing_of(step)) else step.text
    text = textwrap.fill(told, 112, initial_indent=f"  {number:3}. ", subsequent_indent=" " * 7)
    if not step.symbolic:
        return text
    sign = "=" if step.how == "identity" else ">="
    left, right = sides_of(step)
    return text + f"\n         {left}  {sign}  {right}   [checked]"


def standing_of(step: Step) -> str:
    """What stands behind a step besides SymPy: the claims it cites, or that it is words, a
    definition or a remark."""
    kind = {"prose": "in words", "definition": "definition", "remark": "remark"}.get(step.how, "")
    return "by " + ", ".join(step.cites) if step.cites else kind


def _wrap(text: str) -> str:
    return textwrap.fill(text, 112, initial_indent="  ", subsequent_indent="    ")


def kernels_using(claim_id: str) -> list[str]:
    """``file: kernel`` for each generated kernel that names the claim (read as text: nothing is
    imported)."""
    return sorted(
        {
            f"{source.name}: {kernel}"
            for source in _GENERATED.glob("*.py")
            for claims, kernel in _KERNEL.findall(source.read_text(encoding="utf-8"))
            if claim_id in claims.split(", ")
        }
    )
