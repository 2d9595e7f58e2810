"""A readable HTML page of claims and outcomes, self-contained."""

from __future__ import annotations

import html
from collections.abc import Sequence

import sympy

from derivations.language.claim import Claim, Step
from derivations.statements import statement_of
from proofs_check.outcome import Evidence, Outcome
from proofs_check.running.explain import kernels_using, routes_in_words, standing_of
from proofs_check.running.plots import render_plot

__all__ = ["render_html"]

_STYLE = """\
body{font:17px/1.55 Georgia,'DejaVu Serif',serif;max-width:58em;margin:2em auto;padding:0 1.2em;
color:#1f2937}
h1{margin-bottom:.2em}
h2{border-top:1px solid #d1d5db;padding-top:1em;margin-top:2em;font-size:1.1em}
code,td{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:.82em}
table{border-collapse:collapse;margin:.6em 0}
td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #e5e7eb;vertical-align:top}
th{font-size:.85em}
.badge{float:right;padding:.05em .6em;border-radius:.4em;font:bold .8em sans-serif}
.VERIFIED{color:#166534}.REFUTED{color:#9a3412}.UNDECIDED,.not{color:#b91c1c}
.badge.VERIFIED{background:#dcfce7}.badge.REFUTED{background:#ffedd5}
.badge.UNDECIDED{background:#fee2e2}math{font-size:1.05em}summary{cursor:pointer}
.quiet{color:#6b7280;font-size:.88em}figure{margin:.5em 0}
figcaption{color:#6b7280;font-size:.85em}li{margin:.35em 0}nav{columns:2;font-size:.9em}
nav a{text-decoration:none}.where{word-break:break-word;max-width:22em}"""

_METHODS = {
    "steps": "SymPy, exact: the derivation's steps, and the formula against what they derive "
    "(general, and not independent of the derivation)",
    "enclosure": "interval arithmetic over the ranges stated with it (general and independent)",
    "printed": "the text of the generated functions, parsed from the files that run, against the "
    "claim's formula: by algebra on every branch, at 50 digits on a grid",
    "exact-cases": "rational arithmetic at given targets (sample)",
    "search": "mpmath at many points (sample)",
    "optimiser": "the constrained minimum from its definition, bracketed by a duality gap, mpmath "
    "(sample)",
    "conic": "the same minimum by an outside solver, cvxpy with Clarabel (sample)",
}


def render_html(
    claims: Sequence[Claim], outcomes: dict[str, Outcome], *, plots: bool = True
) -> str:
    """A page without any outside reference: a table of contents, then one section a claim."""
    body = "\n".join(_section(claim, outcomes.get(claim.id), plots) for claim in claims)
    as_expected = sum(outcome.as_expected for outcome in outcomes.values())
    killed = sum(
        fate == "REFUTED" for outcome in outcomes.values() for fate in outcome.mutants.values()
    )
    mutants = sum(len(outcome.mutants) for outcome in outcomes.values())
    head = (
        f"<p>{len(claims)} claims, {len(outcomes)} examined, {as_expected} as expected; {killed} "
        f"of {mutants} mutants "
        "refuted. Natural logarithms; all values in nats.</p><h3>Methods</h3><ul>"
        + "".join(
            f"<li><b>{name}</b>: {html.escape(meaning)}</li>" for name, meaning in _METHODS.items()
        )
        + "</ul>"
    )
    contents = "".join(
        f"<div>{_badge(outcomes.get(claim.id))}<a href='#{claim.id}'>{claim.id}</a></div>"
        for claim in claims
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Claims and "
        f"proofs</title><style>{_STYLE}</style>"
        f"<h1>Claims and proofs</h1>{head}<nav>{contents}</nav>{body}</html>"
    )


def _badge(outcome: Outcome | None) -> str:
    verdict = outcome.verdict.name if outcome else "not run"
    mark = "" if outcome is None or outcome.as_expected else "!"
    return f"<span class='badge {verdict.split()[0]}'>{mark}{verdict}</span>"


def _section(claim: Claim, outcome: Outcome | None, plots: bool) -> str:
    kernels = ", ".join(kernels_using(claim.id))
    expected = "" if claim.expected == "verified" else " This statement is expected to be refuted."
    parts = [
        f"<h2 id='{claim.id}'><code>{claim.id}</code> {_badge(outcome)}</h2>",
        f"<p>{html.escape(claim.sentence)}{expected}</p>",
        *[_mathml(relation) for relation in statement_of(claim)],
        f"<p class=quiet>Domain: {html.escape(claim.domain)}. Theory: {html.escape(claim.theory)}."
        + (f" Used by: {html.escape(kernels)}." if kernels else "")
        + "</p>",
        render_plot(claim) if plots else "",
        f"<details><summary>Derivation: {html.escape(claim.derivation.title)}</summary><ol>",
        "".join(_step(step) for step in claim.derivation.steps),
        "</ol></details>",
        _evidence_table(outcome.evidence) if outcome else "",
    ]
    if outcome:
        told = routes_in_words(claim.id, {item.method for item in outcome.evidence})
        parts.append(f"<p class=quiet>Routes. {html.escape('; '.join(told))}.</p>")
        fates = "; ".join(
            f"{html.escape(name)} ({fate.lower()})" for name, fate in outcome.mutants.items()
        )
        parts.append(f"<p class=quiet>Mutants: {fates or 'none'}.</p>")
        parts += [
            f"<p class=UNDECIDED>{html.escape(complaint)}</p>" for complaint in outcome.complaints
        ]
    return "\n".join(parts)


def _step(step: Step) -> str:
    standing = standing_of(step)
    text = html.escape(step.text) + (
        f" <span class=quiet>[{html.escape(standing)}]</span>" if standing else ""
    )
    if not step.symbolic:
        return f"<li>{text}</li>"
    relation = (sympy.Eq if step.how == "identity" else sympy.Ge)(
        sympy.sympify(step.lhs), sympy.sympify(step.rhs), evaluate=False
    )
    return f"<li>{text}<br>{_mathml(relation)}</li>"


def _mathml(expression: object) -> str:
    printed = sympy.mathml(expression, printer="presentation", fold_short_frac=False)
    printed = printed.replace("<mi>phi</mi>", "<mi>&phi;</mi>")
    return f"<p><math display=block>{printed}</math></p>"


def _evidence_table(evidence: tuple[Evidence, ...]) -> str:
    rows = "".join(
        f"<tr><td>{item.method}<td class={item.verdict.name}>{item.verdict.name}"
        f"<td>{'exact' if item.digits is None else f'{item.digits:.1f}'}"
        f"<td>{html.escape(item.worst_residual)}"
        f"<td class=where>{html.escape(item.worst_point)}<td>{item.cases}<td>{item.seconds:.2f}"
        + (f"<tr><td><td colspan=6 class=quiet>{html.escape(item.detail)}" if item.detail else "")
        for item in evidence
    )
    heads = "".join(
        f"<th>{name}"
        for name in ("method", "verdict", "digits", "worst", "where", "cases", "seconds")
    )
    return f"<table><tr>{heads}{rows}</table>"
