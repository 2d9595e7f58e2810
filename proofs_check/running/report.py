"""A readable HTML page of claims and outcomes, self-contained."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence
from typing import Any

import sympy
from sympy.printing.mathml import MathMLPresentationPrinter

from derivations.language.claim import Claim, Step
from derivations.language.written import merged, sides_of
from derivations.statements import statement_of
from derivations.theorems import LABELS, SYMBOLS, labels_in, reading_order
from proofs_check.methods.domain import in_words, joined
from proofs_check.outcome import Evidence, Outcome
from proofs_check.running.explain import kernels_using, routes_in_words, standing_of
from proofs_check.running.plots import render_plot

__all__ = ["render_html"]

_STYLE = """\
:root{--ink:#1f2937;--quiet:#5b6472;--line:#d1d5db;--paper:#fff;--good:#166534;--goodbg:#dcfce7;
--false:#4b5563;--falsebg:#e5e7eb;--bad:#b91c1c;--badbg:#fee2e2;--link:#1d4ed8
;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e5e7eb;--quiet:#9ca3af;--line:#374151;
--paper:#111827;--good:#86efac;--goodbg:#14532d;--false:#d1d5db;--falsebg:#374151;--bad:#fca5a5;
--badbg:#7f1d1d;--link:#93c5fd}svg{background:#f9fafb;border-radius:.4em}}
body{font:17px/1.55 Georgia,'DejaVu Serif',serif;max-width:58em;margin:2em auto;padding:0 1.2em;
color:var(--ink);background:var(--paper);overflow-wrap:anywhere}
h1{margin-bottom:.2em}h2{border-top:3px double var(--line);padding-top:1em;margin-top:2.5em}
h3{border-top:1px solid var(--line);padding-top:1em;margin-top:2em;font-size:1.1em}
a{color:var(--link)}
code,td{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:.82em}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.6em 0}
td,th{padding:.2em .8em .2em 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:normal}
th{font-size:.85em}
.badge{float:right;white-space:nowrap;padding:.05em .6em;border-radius:.4em;
font:bold .75em sans-serif}
.VERIFIED{color:var(--good)}.false,.SKIPPED,.not{color:var(--false)}
.REFUTED,.UNDECIDED,.wrong{color:var(--bad)}
.badge.VERIFIED{background:var(--goodbg)}.badge.false,.badge.not{background:var(--falsebg)}
.badge.REFUTED,.badge.UNDECIDED,.badge.wrong{background:var(--badbg)}
math{font-size:1.05em}.formula{overflow-x:auto;overflow-y:hidden;padding:.4em 0}
summary{cursor:pointer}
.quiet{color:var(--quiet);font-size:.88em}figure{margin:.5em 0}
figure svg{max-width:100%;height:auto}
figcaption{color:var(--quiet);font-size:.85em}li{margin:.35em 0}
nav ul{columns:18em;font-size:.9em;list-style:none;padding:0;margin:.3em 0 1em}
nav li{margin:0;padding:.1em 0;break-inside:avoid;display:flex;
justify-content:space-between;gap:.5em;align-items:baseline}nav a{text-decoration:none}
.where{overflow-wrap:anywhere;min-width:12em;max-width:22em}
@media (max-width:600px){body{font-size:16px;padding:0 .8em;margin:1em auto}ol{padding-left:1.4em}
table,tbody,tr{display:block}tr:first-child,td:empty{display:none}
tr{padding:.3em 0;border-bottom:1px solid var(--line)}td:first-child{font-weight:bold}
td,.where{display:inline;border:0;padding:0;margin-right:.7em;overflow-wrap:anywhere}
td:nth-child(3)::before{content:"digits "}td:nth-child(4)::before{content:"worst "}
.where::before{content:"at "}td:nth-child(6)::before{content:"cases "}
td:nth-child(7)::after{content:" s"}}
@media print{body{max-width:none;font-size:10pt}nav,.badge{break-inside:avoid}
h2,h3{break-after:avoid}table,figure,.formula{break-inside:avoid}
.formula,.scroll{overflow:visible}.formula.long{font-size:.82em}}"""

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
    """A page without any outside reference: a table of contents, then one section a claim, in the
    order in which the theory is read."""
    chosen = {claim.id for claim in claims}
    parts: dict[str, list[Claim]] = {}
    for claim in reading_order():
        if claim.id in chosen:
            parts.setdefault((labels_in(claim.theory) or [""])[0], []).append(claim)
    as_expected = sum(outcome.as_expected for outcome in outcomes.values())
    killed = sum(
        fate == "REFUTED" for outcome in outcomes.values() for fate in outcome.mutants.values()
    )
    mutants = sum(len(outcome.mutants) for outcome in outcomes.values())
    head = (
        f"<p>{len(claims)} claims, {len(outcomes)} examined, {as_expected} as expected; {killed} "
        f"of {mutants} mutants "
        "refuted. Natural logarithms; all values in nats. Statements marked <b>false</b> look "
        "right and are not: each is refuted by a point, as it should be.</p><h3>Methods</h3><ul>"
        + "".join(
            f"<li><b>{name}</b>: {html.escape(meaning)}</li>" for name, meaning in _METHODS.items()
        )
        + "</ul><h3>Letters</h3><p class=quiet>"
        + "; ".join(f"<b>{name}</b>: {html.escape(means)}" for name, means in SYMBOLS.items())
        + ".</p>"
    )
    contents, body = "", ""
    for label, members in parts.items():
        title = html.escape(_title(label))
        links = "".join(
            f"<li><a href='#{claim.id}'>{claim.id}</a>{_badge(claim, outcomes.get(claim.id))}</li>"
            for claim in members
        )
        contents += f"<p><a href='#part-{label}'>{title}</a></p><ul>{links}</ul>"
        body += f"<h2 id='part-{label}'>{title}</h2><p>{html.escape(LABELS.get(label, ''))}</p>"
        body += "\n".join(
            _section(claim, outcomes.get(claim.id), plots, chosen) for claim in members
        )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'><title>Claims and "
        f"proofs</title><style>{_STYLE}</style>"
        f"<h1>Claims and proofs</h1>{head}<nav>{contents}</nav>{body}</html>"
    )


def _title(label: str) -> str:
    volume, _, name = label.rpartition(".")
    return f"Theory {name}" + (", second volume" if volume else "")


def _badge(claim: Claim, outcome: Outcome | None) -> str:
    """What came out, in a word: an expected refutation is no alarm."""
    if outcome is None:
        return "<span class='badge not'>not run</span>"
    if outcome.as_expected and claim.expected == "refuted":
        return "<span class='badge false'>false, as said</span>"
    verdict = outcome.verdict.name
    if outcome.as_expected:
        return f"<span class='badge {verdict}'>{verdict.lower()}</span>"
    return f"<span class='badge wrong'>! {verdict}</span>"


def _section(claim: Claim, outcome: Outcome | None, plots: bool, shown: Collection[str]) -> str:
    kernels = ", ".join(kernels_using(claim.id))
    is_false = claim.expected == "refuted"
    parts = [
        f"<h3 id='{claim.id}'>{_badge(claim, outcome)}<code>{claim.id}</code></h3>",
        f"<p>{'<b>False:</b> ' if is_false else ''}{html.escape(claim.sentence)}</p>",
        *[_mathml(relation) for relation in statement_of(claim)],
        f"<p class=quiet>Domain: {html.escape(claim.domain)}. Theory: {html.escape(claim.theory)}."
        + (f" Used by: {html.escape(kernels)}." if kernels else "")
        + "</p>",
        render_plot(claim) if plots else "",
        f"<details><summary>Derivation: {html.escape(claim.derivation.title)}</summary><ol>",
        "".join(_step(step, shown) for step in claim.derivation.steps),
        "</ol></details>",
        _evidence_table(outcome.evidence, is_false) if outcome else "",
    ]
    if outcome:
        told = routes_in_words(claim.id, {item.method for item in outcome.evidence})
        parts.append(f"<p class=quiet>Routes. {html.escape('; '.join(told))}.</p>")
        if domain := joined(item.domain for item in outcome.evidence):
            parts.append(f"<p class=quiet>Sampled: {html.escape(in_words(domain))}.</p>")
        fates = "; ".join(
            f"{html.escape(name)} ({fate.lower()})" for name, fate in outcome.mutants.items()
        )
        parts.append(f"<p class=quiet>Mutants: {fates or 'none'}.</p>")
        parts += [f"<p class=wrong>{html.escape(text)}</p>" for text in outcome.complaints]
    return "\n".join(parts)


def _step(step: Step, shown: Collection[str]) -> str:
    standing = html.escape(standing_of(step))
    for name in step.cites:
        if name in shown:
            standing = re.sub(
                rf"(?<![\w.]){re.escape(html.escape(name))}(?![\w.(-])",
                f"<a href='#{name}'>{name}</a>",
                standing,
            )
    text = html.escape(step.text) + (f" <span class=quiet>[{standing}]</span>" if standing else "")
    if not step.symbolic:
        return f"<li>{text}</li>"
    if merged(step):
        left, right = map(html.escape, sides_of(step))
        return f"<li>{text}<br><code>{left} = {right}</code></li>"
    relation = (sympy.Eq if step.how == "identity" else sympy.Ge)(
        sympy.sympify(step.lhs), sympy.sympify(step.rhs), evaluate=False
    )
    return f"<li>{text}<br>{_mathml(relation)}</li>"


class _Printer(MathMLPresentationPrinter):
    """SymPy's, with a function's own letters (it prints T_m as t_m) and cases below each other."""

    def _print_AppliedUndef(self, expression: Any) -> Any:
        name, _, below = expression.func.__name__.partition("_")
        head = self._tag("mo" if name == "sum" else "mi", _LETTERS.get(name, name))
        if below:
            head = self._tag("munder" if name == "sum" else "msub", head, self._tag("mi", below))
        listed: list[Any] = []
        for argument in expression.args:
            listed += [self._tag("mo", ","), self._print(argument)]
        inside = self._tag("mrow", *listed[1:])
        return self._tag("mrow", head, self._tag("mo", "("), inside, self._tag("mo", ")"))

    def _print_Piecewise(self, expression: Any) -> Any:
        rows = []
        for value, condition in expression.args:
            when = (
                [self._tag("mtext", "otherwise")]
                if condition == sympy.true
                else [self._tag("mtext", "if\u2002"), self._print(condition)]
            )
            cells = self._tag("mrow", self._print(value)), self._tag("mrow", *when)
            rows.append(self._tag("mtr", *[self._tag("mtd", cell) for cell in cells]))
        return self._tag("mrow", self._tag("mo", "{"), self._tag("mtable", *rows))

    def _tag(self, name: str, *content: Any) -> Any:
        element = self.dom.createElement(name)
        for each in content:
            text = isinstance(each, str)
            element.appendChild(self.dom.createTextNode(each) if text else each)
        return element


_LETTERS = {"phi": "\u03c6", "sum": "\u2211"}
_LONG = 120  # characters of a formula that a printed page holds in small letters alone


def _mathml(expression: object) -> str:
    printed = _Printer({"fold_short_frac": False}).doprint(expression)
    apart = "<mo lspace='.12em' rspace='.12em'>&InvisibleTimes;</mo>"
    printed = printed.replace("<mo>&InvisibleTimes;</mo>", apart)
    look = "'formula long'" if len(str(expression)) > _LONG else "formula"
    return f"<div class={look}><math display=block>{printed}</math></div>"


def _evidence_table(evidence: tuple[Evidence, ...], is_false: bool) -> str:
    """What each method found; of a statement that is false a refutation is what was looked for."""
    rows = "".join(
        f"<tr><td>{item.method}<td class={_look(item, is_false)}>{item.verdict.name.lower()}"
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
    return f"<div class=scroll><table><tr>{heads}{rows}</table></div>"


def _look(item: Evidence, is_false: bool) -> str:
    return "false" if is_false and item.verdict.name == "REFUTED" else item.verdict.name
