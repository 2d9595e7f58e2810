"""The evidence as tables, from the results' JSON alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from certspec.runs.summary import BUDGETS, QUANTILES
from certspec.runs.tables import TextTable, spell_count, spell_length, spell_nats, spell_share
from certspec.studies.paper.comparison import comparison_table
from certspec.studies.smollm.claims import judge_claims
from certspec.studies.smollm.modelled_speed import place_of, tokens_per_second

__all__ = ["SPEEDS", "evidence_tables", "score_tables"]

SPEEDS = ("speed-cuda", "speed-cpu")


def evidence_tables(results: dict[str, Any]) -> list[TextTable]:
    """One table a result that is there: score (five tables), quality (two), losses, speed."""
    tables: list[TextTable] = []
    if "score" in results:
        tables += score_tables(results["score"], "SmolLM2-135M-Instruct")
    if "quality" in results:
        speeds = [results[name] for name in SPEEDS if name in results]
        tables += [_quality(results["quality"], speeds), _tasks(results["quality"])]
    if results.get("losses"):
        tables.append(_losses(results["losses"]))
    tables += [_speed(results[name]) for name in SPEEDS if name in results]
    return tables


def score_tables(score: dict[str, Any], target: str) -> list[TextTable]:
    """Claims, the paper's figures, rules, distributions and adaptive widths, of what ``reduce_run``
    returned for a run of ``target``."""
    return [
        _claims(score, target),
        comparison_table(score["summary"], score["comparison"]["deviations"]),
        _rules(score),
        _distributions(score["summary"]),
        _adaptive(score),
    ]


def _claims(score: dict[str, Any], target: str) -> TextTable:
    return TextTable(
        f"The paper's claims on {target}",
        ("claim", "paper (Qwen3)", "here", "verdict", "test"),
        tuple(
            (
                verdict.claim,
                verdict.paper,
                verdict.here,
                "holds" if verdict.holds else "does not hold",
                verdict.test,
            )
            for verdict in judge_claims(score)
        ),
    )


def _rules(score: dict[str, Any]) -> TextTable:
    summary, nearest = score["summary"], score["nearest_rejections"]
    at = BUDGETS.index(0.3)
    return TextTable(
        f"Rules over {summary['num_steps']:,} steps of {summary['num_prompts']:,} prompts",
        (
            "rule",
            "accepted",
            "certified",
            "false",
            "mean",
            "5 %",
            "median",
            "run at .3",
            "maximal",
            "nearest",
        ),
        tuple(
            (
                row["rule"],
                spell_share(row["share_accepted"]),
                spell_share(row["share_certified"]),
                spell_count(row["num_false_certificates"]),
                spell_nats(row["certificate_capped"]["mean"]),
                *(spell_nats(row["certificate_capped"]["quantiles"][place]) for place in (0, 2)),
                spell_length(runs["mean_over_starts"][at]),
                spell_length(runs["mean_over_maximal_runs"][at]),
                "-" if nearest[row["rule"]] is None else f"{nearest[row['rule']]:.3f}",
            )
            for row, runs in zip(summary["rules"], summary["certified_run_lengths"], strict=True)
        ),
        "Certificates in nats, +inf counted as the cap. Runs: certified tokens in a row for any "
        "draft within .3 nats, mean over starts and over maximal runs. Nearest: the least KL / "
        f"certificate of a step whose token was rejected. {_false_certificates(summary)}",
    )


def _false_certificates(summary: dict[str, Any]) -> str:
    rules = summary["rules"]
    ends = ", ".join(f"{count} at {end}" for end, count in summary["ends"].items())
    return (
        f"False certificates: {sum(row['num_false_certificates'] for row in rules):,} of "
        f"{summary['num_steps'] * len(rules):,} decisions ({summary['num_steps']:,} steps x "
        f"{len(rules)} rules and widths; answers ended: {ends})."
    )


def _distributions(summary: dict[str, Any]) -> TextTable:
    return TextTable(
        "Target and draft",
        ("quantity", "mean", *(f"{100 * level:g} %" for level in QUANTILES)),
        tuple(
            (name, spell_nats(summary[key]["mean"]), *map(spell_nats, summary[key]["quantiles"]))
            for key, name in {
                "target_top_prob": "target top-1 probability",
                "prob_margin": "target margin p1 - p2",
                "entropy": "target entropy, nats",
                "kl": "KL(target || draft), nats",
            }.items()
        ),
    )


def _adaptive(score: dict[str, Any]) -> TextTable:
    return TextTable(
        "Trees as wide as a KL budget needs, at most 16",
        ("budget", "nats", "mean width", "certified", "accepted", "fixed width as good", "false"),
        tuple(
            (
                row["budget"],
                spell_nats(row["nats"]),
                f"{row['mean_width']:.2f}",
                spell_share(row["share_certified"]),
                spell_share(row["share_accepted"]),
                str(row["fixed_width_as_good"] or "-"),
                spell_count(row["num_false"]),
            )
            for row in score["adaptive"]
        ),
        "The least width whose certificate exceeds the budget at that step. Certified: for every "
        "draft within the budget. Accepted: this draft's best so many hold the target's argmax; "
        "beside it the least fixed width that accepts at least as many. The width needs the "
        "target's probabilities, so this measures what the certificate knows and is no way to "
        "draft.",
    )


def _quality(quality: dict[str, Any], speeds: Sequence[dict[str, Any]]) -> TextTable:
    length = quality["draft_length"]
    return TextTable(
        f"What relaxation costs: {quality['num_prompts']} prompts decoded under each rule, drafts "
        f"of {length}",
        (
            "rule",
            "tokens a pass",
            *(f"tokens/s, {place_of(speed)}" for speed in speeds),
            "nats lost",
            "+-",
            "not argmax",
            "differ",
            "first",
            "text",
            "certified",
            "false",
        ),
        tuple(
            (
                row["rule"],
                f"{row['tokens_per_pass']:.2f}",
                *(f"{tokens_per_second(row, length, speed['costs']):.1f}" for speed in speeds),
                f"{row['nats_lost_per_token']:.4f}",
                f"{row['nats_lost_standard_error']:.4f}",
                spell_share(row["share_not_argmax"]),
                spell_share(row["share_differing_from_greedy"]),
                "-"
                if row["first_divergence_median"] is None
                else f"{row['first_divergence_median']:.0f}",
                f"{row['text_logprob_above_greedy']:+.3f}",
                spell_share(row["share_certified"]),
                spell_count(row["num_false_certificates"]),
            )
            for row in quality["rules"]
        ),
        "Tokens a pass: emitted tokens over target passes; tokens/s: the same over the time of a "
        "round at the costs of passes that were measured there (modelled, batch 1). Nats lost: log "
        "p1 - log p(token) of the target at its own text, a token, with its standard error over "
        "prompts. Differ: positions at which the text differs from greedy text; first: median "
        "position of the first one, where there is one. Text: the text's own log-probability a "
        "token under the target, minus greedy text's. False certificates: "
        f"{sum(row['num_false_certificates'] for row in quality['rules']):,} of "
        f"{sum(row['num_drafted'] for row in quality['rules']):,} drafted positions.",
    )


def _tasks(quality: dict[str, Any]) -> TextTable:
    kinds = list(quality["rules"][0]["tasks"])
    return TextTable(
        "Right answers",
        ("rule", *kinds, "tokens a pass"),
        tuple(
            (
                row["rule"],
                *(f"{row['tasks'][kind]['right']}/{row['tasks'][kind]['num']}" for kind in kinds),
                f"{statistics.mean(row['tasks'][kind]['tokens_per_pass'] for kind in kinds):.2f}",
            )
            for row in quality["rules"]
        ),
        "Tokens a pass: mean of the four kinds. The draft never saw such tasks but for the code "
        "prompts.",
    )


_LOSS_KEYS = ("accepted strict", "accepted tree:8", "certified strict", "certified tree:4", "kl")


def _losses(losses: Sequence[dict[str, Any]]) -> TextTable:
    rows = []
    for name in losses[0]["losses"]:
        cells = []
        for key in _LOSS_KEYS:
            values = [seed["losses"][name][key] for seed in losses]
            cells.append(f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})")
        rows.append((name, *cells))
    plan = losses[0]
    return TextTable(
        f"Losses of the draft, {len(losses)} seeds, {plan['tokens'] / 1e6:.1f} M tokens each",
        ("loss", "strict accepted", "in top 8", "strict certified", "tree:4 certified", "mean KL"),
        tuple(rows),
        "Mean over seeds, lowest to highest. One seed's drafts share initial weights and batches; "
        "C is the strict or the tree's certificate of the target. Measured on "
        f"{losses[0]['losses']['plain KL']['steps']:,} greedy steps. "
        + " ".join(dict.fromkeys(note for seed in losses for note in seed.get("notes", []))),
    )


def _speed(speed: dict[str, Any]) -> TextTable:
    rows = tuple(
        (
            name,
            f"{row['median']:.1f}",
            f"{row['lowest']:.1f} to {row['highest']:.1f}",
            f"{speed['ratios'][name]['plain']['median']:.2f}",
            f"{speed['ratios'][name]['best assisted']['median']:.2f}",
        )
        for name, row in speed["tokens_per_second"].items()
    )
    where = speed["provenance"]
    name = (
        where["device_name"]
        if "NVIDIA" in where["device_name"]
        else f"{place_of(speed)} ({where['device_name']})"
    )
    reason = next((text for text in speed["run_by_transformers_because"].values() if text), None)
    unlike = speed.get("num_rows_unlike_plain", {})
    same = f"same output everywhere: {'yes' if speed['same_output'] else 'no'}"
    if any(unlike.values()):
        counts = ", ".join(f"{way} {count}" for way, count in unlike.items() if count)
        same += f" (answers unlike plain's: {counts})"
    costs = ", ".join(f"{count}: {ms:.1f}" for count, ms in speed["costs"]["verify_ms"].items())
    return TextTable(
        f"Decoding speed on {name}, {where['dtype']}",
        ("way", "tokens/s", "spread", "x plain", "x best assisted"),
        rows,
        f"{speed['prompts']} prompts, {speed['new_tokens']} new tokens, {speed['repeats']} "
        f"repeats, medians, ratios within a repeat; {same}. Milliseconds of a draft pass: "
        f"{speed['costs']['draft_step_ms']:.1f}, of target passes by positions: {costs}. "
        + (
            f"Ours ran the models through transformers: {reason}."
            if reason
            else "Ours ran the models by its engine."
        ),
    )
