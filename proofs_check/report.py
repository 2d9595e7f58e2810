"""A readable HTML page of claims and outcomes, self-contained. Knows nothing about running checks."""

from __future__ import annotations

import html
from collections.abc import Sequence

import sympy

from derivations.claim import Claim, Step
from proofs_check.outcome import Evidence, Outcome

__all__ = ["render_html"]

_STYLE = """body{font:16px/1.5 Georgia,serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
h2{border-top:1px solid #ccc;padding-top:1em;font-size:1.1em}code,td{font-family:ui-monospace,monospace;font-size:.85em}
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #eee;vertical-align:top}
.VERIFIED{color:#166534}.REFUTED{color:#9a3412}.UNDECIDED{color:#b91c1c}math{font-size:1.05em}"""


def render_html(claims: Sequence[Claim], outcomes: dict[str, Outcome]) -> str:
    """One section a claim: statement, domain, derivation, evidence by method, mutants."""
    body = "\n".join(_section(claim, outcomes.get(claim.id)) for claim in claims)
    as_expected = sum(outcome.as_expected for outcome in outcomes.values())
    head = f"<p>{len(claims)} claims, {len(outcomes)} examined, {as_expected} as expected.</p>"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Claims</title><style>{_STYLE}</style>"
        f"<h1>Claims and proofs</h1>{head}{body}</html>"
    )


def _section(claim: Claim, outcome: Outcome | None) -> str:
    verdict = outcome.verdict.name if outcome else "not run"
    parts = [
        f"<h2 id='{claim.id}'><code>{claim.id}</code> <span class={verdict.split()[0]}>{verdict}</span></h2>",
        f"<p>{html.escape(claim.sentence)}</p>",
        _mathml(claim.statement) if claim.statement is not None else "",
        f"<p>Domain: {html.escape(claim.domain)}. Theory: {html.escape(claim.theory)}.</p>",
        f"<details><summary>{html.escape(claim.derivation.title)}</summary><ol>",
        "".join(_step(step) for step in claim.derivation.steps),
        "</ol></details>",
        _evidence_table(outcome.evidence) if outcome else "",
    ]
    if outcome:
        fates = "; ".join(f"{html.escape(name)}: {fate}" for name, fate in outcome.mutants.items())
        parts.append(f"<p>Mutants: {fates or 'none'}.</p>")
        parts += [f"<p class=UNDECIDED>{html.escape(complaint)}</p>" for complaint in outcome.complaints]
    return "\n".join(parts)


def _step(step: Step) -> str:
    if step.how == "prose":
        return f"<li>{html.escape(step.text)}</li>"
    relation = (sympy.Eq if step.how == "identity" else sympy.Ge)(step.lhs, step.rhs, evaluate=False)
    return f"<li>{html.escape(step.text)}<br>{_mathml(relation)}</li>"


def _mathml(expression: object) -> str:
    return f"<p><math display=block>{sympy.mathml(expression, printer='presentation')}</math></p>"


def _evidence_table(evidence: tuple[Evidence, ...]) -> str:
    rows = "".join(
        f"<tr><td>{item.method}<td class={item.verdict.name}>{item.verdict.name}"
        f"<td>{'exact' if item.digits is None else f'{item.digits:.1f}'}<td>{html.escape(item.worst_residual)}"
        f"<td>{html.escape(item.worst_point)}<td>{item.cases}<td>{item.seconds:.2f}"
        for item in evidence
    )
    heads = "".join(f"<th>{name}" for name in ("method", "verdict", "digits", "worst", "where", "cases", "seconds"))
    return f"<table><tr>{heads}{rows}</table>"
