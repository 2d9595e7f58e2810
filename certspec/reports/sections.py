"""The sections of a report on one run, as tables and pictures in reading order; the page and the
Markdown are made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certspec.reports.findings import of_reach
from certspec.reports.improvement import Improvement, measure_improvement
from certspec.reports.provenance import findings_of, provenance_table
from certspec.reports.relaxation import Relaxation, given_up_nats, measure_relaxation
from certspec.reports.scene import Scene
from certspec.reports.speeds import Speeds, speeds_table
from certspec.reports.splits import Share, Split, splits_of
from certspec.reports.token_names import token_names
from certspec.reports.token_view import TokenView, token_view
from certspec.runs.guarantees import Guarantees, measure_guarantees
from certspec.runs.summary import MEDIAN, REACHES, Run
from certspec.runs.table import RunTable
from certspec.runs.tables import TextTable, spell_length, spell_nats, spell_share, summary_tables

__all__ = ["Figures", "Section", "measure", "report_sections"]

_LENGTH_KEYS = (
    ("mean_acceptance_length", "vLLM: 1 + accepted / rounds, bonus token in"),
    ("draft_acceptance_rate", "vLLM: accepted / drafted"),
    ("acceptance_histogram", "vLLM: rounds that accepted 0, 1, 2 ... draft tokens"),
    ("num_spec_steps", "vLLM: rounds"),
    ("num_accepted_draft_tokens", "vLLM: accepted draft tokens"),
    ("num_draft_tokens", "vLLM: drafted tokens"),
    ("num_spec_tokens", "vLLM: draft length asked for"),
    ("gpt_fast_mean_accepted", "gpt-fast: accepted / rounds, bonus token out"),
    ("sglang_accept_length", "SGLang: tokens a verify pass, bonus token in"),
    ("sglang_accept_rate", "SGLang: accepted / drafted tree nodes"),
    ("spec_bench_mean_accepted_tokens", "Spec-Bench: tokens a round, bonus token in"),
    ("num_cut_rounds", "rounds that the end of a prompt cut; left out above"),
)


@dataclass(frozen=True)
class Figures:
    """A run with everything that a report says about it. ``speeds``: None where no costs are
    known."""

    folder: Path
    scene: Scene
    relaxation: list[Relaxation]
    improvement: list[Improvement]
    guarantees: Guarantees | None = None
    speeds: Speeds | None = None

    @property
    def run(self) -> Run:
        return self.scene.run

    @property
    def summary(self) -> dict[str, Any]:
        return self.scene.summary


@dataclass(frozen=True)
class Section:
    """A part of a report: a heading, what to know before reading it, then tables, pictures (names
    of drawings) and coloured texts."""

    title: str
    words: str
    blocks: tuple[TextTable | str | TokenView, ...]


def measure(
    folder: Path, scene: Scene, *, draft_length: int, speeds: Speeds | None = None
) -> Figures:
    """Everything that the sections show."""
    kl = scene.summary["kl"]
    return Figures(
        folder,
        scene,
        measure_relaxation(scene.run, draft_length=draft_length),
        measure_improvement(scene.run, None if kl is None else kl["quantiles"][MEDIAN]),
        measure_guarantees(scene.run, draft_length),
        speeds,
    )


def report_sections(figures: Figures) -> list[Section]:
    """The sections in order; those about a draft are left out of a run of the target alone."""
    tables = {table.title: table for table in summary_tables(figures.summary)}
    observed = figures.summary["observed_accepted_lengths"]
    return [
        *([_speed(figures.speeds)] if figures.speeds else []),
        *(_about_decisions(figures, tables) if figures.run.has_draft else []),
        Section(
            "Certificates",
            "A certificate needs the target alone: it holds for every draft whose KL is below it."
            + _bounds(figures)
            + _of_variation(figures),
            (
                "certificates",
                *_present(tables, "Certificates in nats, finite", "Certificates in nats, +inf"),
            ),
        ),
        Section(
            "Run lengths",
            "How many steps in a row are certain for every draft that keeps within a KL budget.",
            (
                "run-lengths",
                *_present(
                    tables, *(title for title in tables if title.startswith("Certified run"))
                ),
            ),
        ),
        *([_beyond_a_step(figures, figures.guarantees)] if figures.guarantees else []),
        *([_improvement(figures)] if figures.improvement else []),
        *([_relaxation(figures)] if figures.relaxation else []),
        *([_conventions(figures.summary, _present(tables, "Observed"))] if observed else []),
        Section("Target and draft", "", tuple(_present(tables, "Target and draft", "Skipped"))),
        *([_import(figures)] if figures.run.is_import else []),
        Section("Provenance", "", (provenance_table(figures.run, figures.folder),)),
    ]


def _speed(speeds: Speeds) -> Section:
    return Section(
        "Speed",
        "What the recorded steps come to at these costs of passes; certspec advise has every way.",
        (speeds_table(speeds),),
    )


def _about_decisions(figures: Figures, tables: dict[str, TextTable]) -> list[Section]:
    splits = splits_of(figures.run)
    rules = figures.run.rules
    (plain,) = _present(tables, "Decisions")
    # the terminal's table with an interval beside each share of steps
    decisions = TextTable(
        plain.title,
        ("rule", "accepted", "90 %", "certified", "90 %", *plain.columns[3:]),
        tuple(
            (rule, *_with_interval(accepted), *_with_interval(certified), *row[3:])
            for rule, accepted, certified, row in zip(
                rules, splits.overall.accepted, splits.overall.certified, plain.rows, strict=True
            )
        ),
        plain.note + " 90 %: the interval that 9 in 10 draws of such prompts would give.",
    )
    return [
        Section(
            "Decisions",
            "How often each rule accepts the draft's token, and how often that was certain "
            "beforehand.",
            (decisions, "margin"),
        ),
        Section(
            "By category and position",
            "Where the draft does well and where it doesn't.",
            (
                *_split_tables("category", splits.by_kind, rules),
                *_split_tables("position", splits.by_position, rules),
                "positions",
            ),
        ),
        *_other_servers(figures),
        Section(
            "Token by token",
            "Texts of the target from the least to the most accepted. Point at a token for its "
            "probabilities.",
            (token_view(figures.run, figures.scene.lead),),
        ),
    ]


def _other_servers(figures: Figures) -> list[Section]:
    """What of the certificates holds on another server; nothing where the run has no reach."""
    rows = figures.summary["rules"]
    if rows[0]["certified_within"] is None:
        return []
    table = TextTable(
        "Steps certified within an error of the target's logits (nats)",
        ("rule", "0", *map(str, REACHES)),
        tuple(
            (
                row["rule"],
                spell_share(row["share_certified"]),
                *map(spell_share, row["certified_within"].values()),
            )
            for row in rows
        ),
        "Half the range by which a row of logits differs: a shift changes nothing. certspec "
        "numerics measures it between two runs, or float32 and bfloat16.",
    )
    return [Section("On another server", of_reach(figures.scene), (table, "reach"))]


def _beyond_a_step(figures: Figures, found: Guarantees) -> Section:
    """Sampled traffic beside greedy, and texts beside steps."""
    strict = dict(zip(figures.run.rules, found.lost, strict=True)).get("strict")
    greedy = "" if strict is None else f", strict greedy {spell_share(1.0 - strict)}"
    table = TextTable(
        "Steps lost within each text's summed KL",
        ("rule", "at most", "this draft", "tokens a pass at least"),
        tuple(
            (rule, spell_share(most), spell_share(lost), spell_length(tokens))
            for rule, most, lost, tokens in zip(
                figures.run.rules, found.most_lost, found.lost, found.least_tokens, strict=True
            )
        ),
        "At most: what any draft could lose whose KL sums to this draft's over each text, spent "
        "where certificates are smallest (cs.rejections_within); tokens a target pass at that.",
    )
    return Section(
        "Sampled, and over a text",
        f"Sampled at temperature 1, whatever the draft does with its KL, at least "
        f"{spell_share(found.sampled)} of its tokens are accepted on these steps{greedy}; "
        f"{spell_length(found.sampled_tokens)} tokens a target pass at least. A sampled text goes "
        "another way than these greedy ones (cs.sampling_acceptance).",
        (table,),
    )


def _with_interval(share: Share) -> tuple[str, str]:
    return spell_share(share.value), f"{100 * share.low:.1f} to {100 * share.high:.1f}"


def _split_tables(
    what: str, splits: Sequence[Split], rules: Sequence[str]
) -> list[TextTable | str | TokenView]:
    """Accepted and certified shares a rule; none where there is nothing to tell apart."""
    if len(splits) < 2:
        return []
    rows = tuple(
        (
            split.name,
            f"{split.num_prompts:,}",
            f"{split.num_steps:,}",
            *(
                f"{100 * accepted.value:.1f} / {100 * certified.value:.1f}"
                for accepted, certified in zip(split.accepted, split.certified, strict=True)
            ),
        )
        for split in splits
    )
    return [
        TextTable(
            f"Accepted / certified steps by {what}, %", (what, "prompts", "steps", *rules), rows
        )
    ]


def _bounds(figures: Figures) -> str:
    """Which rules' certificates are lower bounds, in words."""
    known = [(row, row["share_certificate_known"]) for row in figures.summary["rules"]]
    partial = [row for row, share in known if share is not None and share < 1.0]
    if not partial:
        return ""
    shares = ", ".join(
        f"{row['rule']} {spell_share(1.0 - row['share_certificate_known'])}" for row in partial
    )
    return f" Lower bounds, where the log tells no more: {shares} of the steps."


def _of_variation(figures: Figures) -> str:
    """For a draft that was trained on total variation: its radius under strict greedy."""
    half = figures.summary["prob_margin"]["quantiles"][MEDIAN] / 2.0
    return (
        " A draft trained on total variation is certain under strict greedy where it lies within "
        f"(p1 - p2)/2 of the target, {half:.3f} at the median step; certify(..., "
        'divergence="tv") has the other rules.'
    )


def _present(tables: dict[str, TextTable], *starts: str) -> list[TextTable]:
    return [table for start in starts for title, table in tables.items() if title.startswith(start)]


def _improvement(figures: Figures) -> Section:
    typical = figures.improvement[0].typical_kl
    rows = tuple(
        (
            entry.rule,
            spell_share(entry.share_small_margin),
            spell_share(entry.accepted_small_margin),
            spell_share(entry.share_widened),
            spell_share(entry.share_large_kl),
            spell_share(entry.accepted_large_kl),
            spell_share(entry.share_undecided),
        )
        for entry in figures.improvement
    )
    table = TextTable(
        "Steps whose KL exceeds the certificate",
        (
            "rule",
            "small margin",
            "of them accepted",
            "widest tree certifies",
            "large KL",
            "of them accepted",
            "unproved",
        ),
        rows,
        f"Small margin: the certificate is at most the run's median KL ({spell_nats(typical)} "
        "nats), so a draft of this quality is rarely certified there: widen (a tree, a relaxed "
        "rule). Large KL: the certificate is larger than that, but KL still exceeds it: train the "
        "draft on such steps. Shares of all steps, except the two of acceptance and that of the "
        "widest tree, which are of the steps to their left. Unproved: neither certified nor known "
        "to exceed.",
    )
    return Section(
        "Where the draft must improve",
        "Uncertified is not rejected: most such steps are accepted all the same.",
        ("improvement", table, _worst_kl(figures)),
    )


def _worst_kl(figures: Figures) -> TextTable:
    run, lead = figures.run, figures.scene.lead
    index = run.rules.index(lead)
    entry = figures.improvement[index]
    target, draft = token_names(run)
    return TextTable(
        f"Largest excess of KL over the certificate under {entry.rule}",
        (
            "prompt:position",
            "target's token",
            "draft's token",
            "p1 - p2",
            "KL, nats",
            "certificate, nats",
        ),
        tuple(
            (
                _place(row),
                target(row),
                draft(row),
                f"{row.prob_margin[0]:.3f}",
                "-" if row.kl is None else spell_nats(float(row.kl[0])),
                spell_nats(float(row.certificate[index][0])),
            )
            for row in entry.worst
        ),
        "The target is sure at these steps and the draft is far from it: the first to train on.",
    )


def _place(row: RunTable) -> str:
    return f"{row.prompt[0]}:{row.position[0]}"


def _relaxation(figures: Figures) -> Section:
    rows = tuple(
        (
            entry.rule,
            spell_share(entry.share_relaxed),
            *(
                ("-",) * 3
                if entry.prob_ratio is None
                else [f"{entry.prob_ratio[place]:.3f}" for place in (0, 2, 4)]
            ),
            _at_least(entry) + spell_nats(entry.nats_per_token),
            _at_least(entry) + spell_nats(entry.nats_per_token_replayed),
            spell_share(entry.share_diverged),
            "-" if entry.first_divergence is None else f"{entry.first_divergence:g}",
            *([f"{entry.num_unknown_prob:,}"] if _some_unknown(figures.relaxation) else []),
        )
        for entry in figures.relaxation
    )
    columns = [
        "rule",
        "accepted, not argmax",
        "p/p_max 5 %",
        "50 %",
        "95 %",
        "nats lost a token",
        "in rounds",
        "prompts diverged",
        "first at (median)",
    ]
    table = TextTable(
        "Accepted tokens that are not the target's argmax",
        (*columns, *(["p unknown"] if _some_unknown(figures.relaxation) else [])),
        rows,
        "Nats lost: log(p_max / p) of every such token, divided by all steps; in rounds: where "
        "each round of drafts ends with a token of the target, as decoding does. Counted along the "
        "target's own text: up to the first divergence this is what decoding emits, after it "
        "decoding goes another way. Strict greedy and trees emit the argmax always and give up "
        "nothing." + (" " + _UNKNOWN if _some_unknown(figures.relaxation) else ""),
    )
    return Section("What relaxation gives up", "", ("relaxation", table, *_worst_relaxed(figures)))


def _at_least(entry: Relaxation) -> str:
    return "≥ " if entry.num_unknown_prob else ""


_UNKNOWN = (
    "Where the log doesn't tell a token's probability it counts as no loss: losses are then lower "
    "bounds."
)


def _some_unknown(relaxation: Sequence[Relaxation]) -> bool:
    return any(entry.num_unknown_prob for entry in relaxation)


def _worst_relaxed(figures: Figures) -> list[TextTable]:
    target, draft = token_names(figures.run)
    tables = []
    for entry in figures.relaxation:
        shown = [(row, float(given_up_nats(row)[0])) for row in entry.worst[:6]]
        rows = tuple(
            (
                _place(row),
                target(row),
                draft(row),
                f"{row.target_top_prob[0]:.3f}",
                _number(float(row.target_top_prob[0]) * np.exp(-nats)),
                _number(np.exp(-nats)),
                _number(nats),
            )
            for row, nats in shown
        )
        if rows:
            columns = (
                "prompt:position",
                "target's token",
                "accepted",
                "p_max",
                "p",
                "p/p_max",
                "nats lost",
            )
            tables.append(
                TextTable(f"The least probable tokens that {entry.rule} accepts", columns, rows)
            )
    return tables


def _number(value: float) -> str:
    return "unknown" if np.isnan(value) else spell_nats(float(value))


def _conventions(summary: dict[str, Any], shown: list[TextTable]) -> Section:
    observed = summary["observed_accepted_lengths"]
    rows = tuple(
        (key, meaning, *(_metric(row[key]) for row in observed)) for key, meaning in _LENGTH_KEYS
    )
    table = TextTable(
        "Every convention by name",
        ("key", "convention and meaning", *(row["rule"] for row in observed)),
        rows,
        "The same rounds under every convention; keys as the engines' dashboards name them.",
    )
    return Section(
        "Accepted lengths",
        "Engines count differently: with or without the bonus token, per drafted token or per tree "
        "node.",
        (*shown, table),
    )


def _metric(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(str(entry) for entry in value)
    if isinstance(value, int):
        return f"{value:,}"
    return spell_length(value) if value is None or value >= 1 else f"{value:.3f}"


def _import(figures: Figures) -> Section:
    run = figures.run
    rows = tuple(
        (label, what, spell_share(count / run.num_steps), case)
        for what in ("certificate", "decision")
        for cases in [figures.summary[f"{what}_cases"]]
        for label, counts in zip(run.rules, cases, strict=False)
        for case, count in sorted(counts.items(), key=lambda item: -item[1])
    )
    blocks = [
        TextTable(
            "How each number is known",
            ("rule", "number", "steps", "case"),
            rows,
            "A truncated list certifies only what it allows. Where a certificate is a lower bound, "
            "tables and pictures show the bound.",
        )
    ]
    findings = findings_of(figures.folder)
    if findings:
        blocks.append(TextTable("Noticed in the logs", ("log", "finding"), tuple(findings)))
    words = "" if not run.has_draft else "KL is that of the lumped lists, at most the full one."
    return Section("Imported logs", words, tuple(blocks))
