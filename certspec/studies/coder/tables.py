"""The study's tables, from the results' JSON alone."""

from __future__ import annotations

from typing import Any

from certspec.runs.summary import BUDGETS
from certspec.runs.tables import TextTable, spell_count, spell_length, spell_share
from certspec.studies.coder.questions import ARITHMETIC, CODE
from certspec.studies.coder.scoring import LEVELS
from certspec.studies.smollm.tables import score_tables

__all__ = ["SPEEDS", "TARGET", "coder_tables", "place_of", "rule_speed"]

TARGET = "Qwen2.5-Coder-1.5B-Instruct"
SPEEDS = ("speed-cuda", "speed-cpu")


def coder_tables(results: dict[str, Any]) -> list[TextTable]:
    """Of each result that is there: score (six tables), robust, quality, speed."""
    tables: list[TextTable] = []
    if "score" in results:
        tables += score_tables(results["score"], TARGET)
        tables.append(_run_lengths(results["score"]["summary"]))
    if "robust" in results:
        tables.append(_robust(results["robust"]))
    if "rules" in results.get("quality", {}):
        tables.append(_quality(results["quality"], results))
    tables += [_speed(results[name]) for name in SPEEDS if name in results]
    return tables


def place_of(provenance: dict[str, Any]) -> str:
    """Where a figure was measured, in words: "NVIDIA H200" or "2 CPU cores"."""
    name = str(provenance["device_name"])
    return name if name.startswith("NVIDIA") else f"{provenance['cores']} CPU cores"


def rule_speed(results: dict[str, Any], rule: str) -> float | None:
    """Median tokens a second of a rule decoded one prompt at a time, where it was timed."""
    ways = {"strict": "chain of 4", "tree:4": "tree of 4 x 4"}
    for name in SPEEDS:
        timed = results.get(name, {}).get("tokens_per_second", {})
        way = f"certspec {ways.get(rule, rule)}"
        if way in timed:
            return float(timed[way]["median"])
    return None


def _run_lengths(summary: dict[str, Any]) -> TextTable:
    return TextTable(
        "Certified runs by KL budget, mean over starts, tokens",
        ("rule", *(f"{budget:g} nats" for budget in BUDGETS)),
        tuple(
            (row["rule"], *map(spell_length, row["mean_over_starts"]))
            for row in summary["certified_run_lengths"]
        ),
        "Guaranteed for any draft within the budget at every step; texts end after 128 tokens.",
    )


def _robust(robust: dict[str, Any]) -> TextTable:
    errors = robust["errors"]
    spelled = {
        name: ", ".join(f"{100 * float(q):g} %: {error:.3f}" for q, error in own.items())
        for name, own in errors.items()
    }
    contradicted = sum(row["contradicted"] for row in robust["rules"])
    reached = sum(round(row["reached"] * robust["num_steps"]) for row in robust["rules"])
    return TextTable(
        f"From float32 to bfloat16: {robust['num_steps']:,} steps of {robust['num_prompts']} "
        "prompts",
        (
            "rule",
            "certified",
            "with the target's own error",
            "and the draft's",
            *(f"within its {100 * level:g} %" for level in LEVELS),
            "median reach",
            "decided otherwise",
            "contradicted",
        ),
        tuple(
            (
                row["rule"],
                spell_share(row["certified"]),
                spell_share(row.get("reached_by_target")),
                spell_share(row["reached"]),
                *(spell_share(row["within"][f"{level:g}"]) for level in LEVELS),
                "-" if row["reach_median"] is None else f"{row['reach_median']:.3f}",
                f"{100 * row['decided_otherwise']:.2f} %",
                spell_count(row["contradicted"]),
            )
            for row in robust["rules"]
        ),
        "Error: half the spread of the difference of logits at a step, nats; quantiles over "
        f"steps, of the target {spelled['target_error']}; of the draft "
        f"{spelled['draft_error']}. Certified: for the float32 logits as they are. With the "
        "target's own error: for every target whose logits are off by what the bfloat16 "
        "target's are at that step, the draft as it is; and the draft's: as well for every "
        "draft off by at most the largest error of its block of steps (which adds twice that "
        "to KL: for strict greedy more than its certificate can be); within a quantile: for "
        "every target off by that much, and every such draft. Reach: the error of the target "
        "alone up to which a certified step stays so. Decided otherwise: the bfloat16 pair "
        "accepts where the float32 pair does not, or the other way round; the argmax of the "
        f"target is the same at {spell_share(robust['same_argmax'])} of the steps. "
        f"Contradicted: {contradicted:,} of {reached:,} certificates that hold with both errors.",
    )


def _quality(quality: dict[str, Any], results: dict[str, Any]) -> TextTable:
    place = place_of(quality["provenance"])
    tokens = quality["max_new_tokens"]
    spelled = tokens if isinstance(tokens, int) else f"{tokens[CODE]} and {tokens[ARITHMETIC]}"
    false = sum(row["false"] for row in quality["rules"])
    return TextTable(
        f"What a rule gives up: right answers beside speed, drafts of {quality['draft_length']}",
        (
            "rule",
            "HumanEval pass@1",
            "won, lost",
            "GSM8K right",
            "won, lost",
            "tokens a pass, code",
            "arithmetic",
            f"tokens/s, batch {quality['batch']}",
            "tokens/s, batch 1",
            "nats lost a token",
            "not argmax",
            "certified",
            "false",
        ),
        tuple(
            (
                row["rule"],
                *_kind(row["kinds"][CODE]),
                *_kind(row["kinds"][ARITHMETIC]),
                *(_passes(row["kinds"][kind]) for kind in (CODE, ARITHMETIC)),
                _speed_cell(row["tokens_per_second"]),
                _speed_cell(rule_speed(results, row["rule"])),
                f"{row['nats_lost'] / row['tokens']:.4f}",
                spell_share(row["not_argmax"] / row["tokens"]),
                spell_share(row["certified"] / row["drafted"] if row["drafted"] else None),
                spell_count(row["false"]),
            )
            for row in quality["rules"]
        ),
        f"Measured on {place}, {quality['provenance']['dtype']}; at most {spelled} new tokens. "
        "HumanEval: the task's own tests, each answer a program of its own with limits; GSM8K: the "
        "number after ####, else in the last box, else the last number, equal to the answer. In "
        "brackets Wilson's 95 % interval. Won, lost: questions that only this rule, or only strict "
        "greedy answers rightly. Nats lost: log p1 - log p(token) of the target at its own text. "
        f"False certificates: {false:,} of "
        f"{sum(row['drafted'] for row in quality['rules']):,} drafted positions.",
    )


def _kind(figures: dict[str, Any]) -> tuple[str, str]:
    if not figures["num"]:
        return "-", "-"
    low, high = figures["interval"]
    share = 100 * figures["right"] / figures["num"]
    shown = f"{share:.1f} % of {figures['num']} [{100 * low:.1f}, {100 * high:.1f}]"
    return shown, f"{figures['won']}, {figures['lost']}"


def _passes(figures: dict[str, Any]) -> str:
    value = figures["tokens_per_pass"]
    return "-" if value is None else f"{value:.2f}"


def _speed_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _speed(speed: dict[str, Any]) -> TextTable:
    def ratio(way: str, name: str) -> str:
        found = speed["ratios"][way].get(name)
        return "-" if found is None else f"{found['median']:.2f}"

    rows = tuple(
        (
            way,
            f"{row['median']:.1f}",
            f"{row['lowest']:.1f} to {row['highest']:.1f}",
            ratio(way, "plain"),
            ratio(way, "best of transformers"),
            str(speed["texts_unlike_plain"][way]),
        )
        for way, row in speed["tokens_per_second"].items()
    )
    costs = speed["costs"]
    told = (
        ""
        if isinstance(costs, str)
        else f" Milliseconds of a draft pass: {costs['draft_step_ms']:.2f}, of target passes by "
        "positions: " + ", ".join(f"{n}: {ms:.2f}" for n, ms in costs["verify_ms"].items()) + "."
    )
    left_out = "; ".join(f"{way}: {why}" for way, why in speed["left_out"].items())
    where = speed["provenance"]
    return TextTable(
        f"Decoding speed on {place_of(where)}, {where['dtype']}, one prompt at a time",
        ("way", "tokens/s", "spread", "x plain", "x best of transformers", "other texts"),
        rows,
        f"{speed['prompts']} prompts, at most {speed['new_tokens']} new tokens, "
        f"{speed['complete_repeats']} repeats, medians, ratios within a repeat; the best way of "
        f"transformers is {speed['peer']}. Other texts: prompts whose text is not that of "
        "transformers plain (relaxed rules mean to; else logits that tie within rounding)."
        + told
        + (f" Left out: {left_out}." if left_out else ""),
    )
