"""What the results say, in sentences and short tables for the study's README: every figure is read
from the results' JSON."""

from __future__ import annotations

import textwrap
from typing import Any

from certspec.runs.summary import BUDGETS, QUANTILES
from certspec.runs.tables import spell_share
from certspec.studies.coder.questions import ARITHMETIC, CODE
from certspec.studies.coder.tables import SPEEDS, place_of, rule_speed
from certspec.studies.smollm.claims import judge_claims

__all__ = ["findings"]


def findings(results: dict[str, Any]) -> str:
    """Markdown of what is there of score, robust, quality and speeds."""
    parts = []
    if "score" in results:
        parts.append(_score(results["score"]))
    if "robust" in results:
        parts.append(_robust(results["robust"]))
    if "rules" in results.get("quality", {}):
        parts.append(_quality(results["quality"], results))
    parts += [_speed(results[name]) for name in SPEEDS if name in results]
    blocks = "\n\n".join(parts).split("\n\n")
    return "\n\n".join(map(_wrapped, blocks))


def _wrapped(block: str) -> str:
    """A paragraph or an item of a list within 118 columns; what else there is as it is."""
    if block.startswith(("#", "|", "![")):
        return block
    after = "  " if block.startswith("- ") else ""
    lines = textwrap.wrap(
        block, 118, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def _score(score: dict[str, Any]) -> str:
    summary = score["summary"]
    rules = {row["rule"]: row for row in summary["rules"]}
    runs = {row["rule"]: row for row in summary["certified_run_lengths"]}
    false = sum(row["num_false_certificates"] for row in rules.values())
    at, low = BUDGETS.index(0.3), QUANTILES.index(0.05)
    nearest = min(value for value in score["nearest_rejections"].values() if value is not None)
    shown = ("strict", "additive:0.3", "multiplicative:0.1", "top:4", "tree:2", "tree:4", "tree:8")
    table = _markdown(
        ("rule", "accepted", "certified", "certificate 5 %", "mean", "run at .3 nats"),
        [
            (
                f"`{name}`",
                spell_share(rules[name]["share_accepted"]),
                spell_share(rules[name]["share_certified"]),
                f"{rules[name]['certificate_capped']['quantiles'][low]:.3f}",
                f"{rules[name]['certificate_capped']['mean']:.3f}",
                f"{runs[name]['mean_over_starts'][at]:.1f}",
            )
            for name in shown
            if name in rules
        ],
    )
    verdicts = judge_claims(score)
    claims = "\n\n".join(
        f"- {'Holds' if each.holds else 'Does not hold'}: {each.claim} (the paper: {each.paper}). "
        f"Here {each.here}."
        for each in verdicts
    )
    where = score["provenance"]
    adaptive = "; ".join(
        f"for {row['nats']:g} nats {row['mean_width']:.2f} tokens a step on average, which hold "
        f"the target's token on {spell_share(row['share_accepted'])} of the steps (a fixed width "
        f"needs {row['fixed_width_as_good'] or 'more than 16'})"
        for row in score["adaptive"]
        if row["budget"] in ("0.1", "0.3", "1")
    )
    return (
        "## Certificates\n\n"
        f"{summary['num_prompts']:,} prompts and up to 128 greedy steps each gave "
        f"{summary['num_steps']:,} steps, float32, on {place_of(where)} "
        f"({where['date']}, commit {where['commit'][:10]}). **False certificates: {false:,}** of "
        f"{summary['num_steps'] * len(rules):,} decisions at {len(rules)} rules and widths; the "
        f"nearest rejection lay at {nearest:.3f} of its certificate. The target's top probability "
        f"is {summary['target_top_prob']['mean']:.3f} on average, KL(target || draft) "
        f"{summary['kl']['quantiles'][QUANTILES.index(0.5)]:.3f} nats in the median and "
        f"{summary['kl']['mean']:.3f} in the mean.\n\n{table}\n\n"
        f"Trees as wide as a KL budget needs take {adaptive}.\n\n"
        f"## The paper's claims\n\n{claims}\n\n"
        "What each test compares stands in [published/evidence.md](published/evidence.md).\n\n"
        "![Mean certificates over strict greedy's, as difference and factor, by margin]"
        "(published/enlargement.png)"
    )


def _robust(robust: dict[str, Any]) -> str:
    rules = {row["rule"]: row for row in robust["rules"]}
    errors = robust["errors"]["target_error"]
    contradicted = sum(row["contradicted"] for row in robust["rules"])
    columns = {
        "certified": "certified",
        "reached_by_target": "with the target's own error",
        "reached": "with both models' errors",
        "decided_otherwise": "decided otherwise",
    }
    columns = {key: head for key, head in columns.items() if key in rules["strict"]}
    table = _markdown(
        ("rule", *columns.values()),
        [
            (f"`{name}`", *(f"{100 * rules[name][key]:.3g} %" for key in columns))
            for name in ("strict", "additive:0.3", "tree:2", "tree:4", "tree:8")
        ],
    )
    return (
        "## On another server: float32 to bfloat16\n\n"
        f"Over {robust['num_steps']:,} steps of {robust['num_prompts']} prompts the target's "
        f"bfloat16 logits are off by {errors['0.5']:.3f} nats in the median, {errors['0.99']:.3f} "
        f"at 99 %. What stays certified (`cs.certify(..., logit_error=...)`):\n\n{table}\n\n"
        f"**Contradicted by the bfloat16 pair: {contradicted:,}.** A draft that is off by e adds "
        "2 e to KL; its largest error in a block of steps is more than strict greedy can allow."
    )


def _quality(quality: dict[str, Any], results: dict[str, Any]) -> str:
    def kind(figures: dict[str, Any]) -> str:
        if not figures["num"]:
            return "-"
        low, high = (f"{100 * end:.0f}" for end in figures["interval"])
        return f"{100 * figures['right'] / figures['num']:.1f} % [{low}, {high}]"

    def speed(row: dict[str, Any]) -> str:
        found = row["tokens_per_second"], rule_speed(results, row["rule"])
        return " / ".join("-" if value is None else f"{value:,.0f}" for value in found)

    def passes(row: dict[str, Any]) -> str:
        found = [row["kinds"][name]["tokens_per_pass"] for name in (CODE, ARITHMETIC)]
        return " / ".join("-" if value is None else f"{value:.2f}" for value in found)

    counts = quality["rules"][0]["kinds"]
    table = _markdown(
        (
            "rule",
            f"HumanEval, n = {counts[CODE]['num']}",
            f"GSM8K, n = {counts[ARITHMETIC]['num']}",
            "tokens a pass, code / arithmetic",
            f"tokens/s, batch {quality['batch']} / 1",
            "nats lost",
        ),
        [
            (
                f"`{row['rule']}`",
                kind(row["kinds"][CODE]),
                kind(row["kinds"][ARITHMETIC]),
                passes(row),
                speed(row),
                f"{row['nats_lost'] / row['tokens']:.3f}",
            )
            for row in quality["rules"]
        ],
    )
    false = sum(row["false"] for row in quality["rules"])
    drafted = sum(row["drafted"] for row in quality["rules"])
    return (
        f"## What a rule gives up\n\nDrafts of {quality['draft_length']}, "
        f"{quality['provenance']['dtype']} on {place_of(quality['provenance'])}; HumanEval's "
        "pass@1 and GSM8K's right answers, in brackets 95 % intervals (Wilson); nats a token. "
        f"{counts[ARITHMETIC]['cut']} of strict greedy's answers to GSM8K were "
        "cut off before their end. Questions won and lost against strict greedy are in the full "
        f"table.\n\n{table}\n\nFalse certificates: {false:,} of {drafted:,} drafted "
        "positions.\n\n![Right answers against tokens a target pass](published/frontier.png)"
    )


def _speed(speed: dict[str, Any]) -> str:
    rows = [
        (way, f"{row['median']:.0f}", f"{row['lowest']:.0f} to {row['highest']:.0f}", *ratios)
        for way, row in speed["tokens_per_second"].items()
        for ratios in [
            [
                f"{speed['ratios'][way][name]['median']:.2f}"
                if name in speed["ratios"][way]
                else "-"
                for name in ("plain", "best of transformers")
            ]
        ]
    ]
    table = _markdown(
        ("way", "tokens/s", "spread", "x plain", f"x {speed['peer'] or 'its best'}"), rows
    )
    where = speed["provenance"]
    return (
        f"## Speed on {place_of(where)}, {where['dtype']}\n\n{speed['prompts']} prompts, one at a "
        f"time, at most {speed['new_tokens']} new tokens, {speed['complete_repeats']} repeats.\n\n"
        f"{table}"
    )


def _markdown(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
