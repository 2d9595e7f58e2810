"""What a run comes to, in two or three sentences made from its figures: what to use and why, what
it costs, and where the draft is weak."""

from __future__ import annotations

from typing import Any

from certspec.presets import parse_rule
from certspec.reports.improvement import Improvement
from certspec.reports.relaxation import Relaxation
from certspec.reports.speeds import Speed, Speeds
from certspec.reports.splits import Split, Splits
from certspec.runs.tables import spell_length, spell_nats, spell_share

__all__ = ["compare_conclusion", "conclude"]

_FEWEST = 20  # steps: a category with fewer is not spoken of
_BUDGET = 0.1  # nats


def conclude(
    summary: dict[str, Any],
    lead: str,
    *,
    splits: Splits | None = None,
    relaxation: list[Relaxation] | None = None,
    improvement: list[Improvement] | None = None,
    speeds: Speeds | None = None,
) -> list[str]:
    """The sentences. ``lead``: the rule that weakness is told for; without ``splits`` (a run of the
    target alone) they say what any draft would be promised."""
    num_false = sum(row["num_false_certificates"] or 0 for row in summary["rules"])
    alarm = (
        [f"{num_false:,} certificates are FALSE, so trust nothing below and report this run."]
        if num_false
        else []
    )
    if splits is None:
        return [*alarm, _promise(summary, lead)]
    sentences = (
        _by_speed(speeds) if speeds and speeds.ways else _by_tokens(summary, relaxation or [])
    )
    index = [row["rule"] for row in summary["rules"]].index(lead)
    entry = next((each for each in improvement or () if each.rule == lead), None)
    return [*alarm, *sentences, _weakness(splits, index, lead, entry)]


def _promise(summary: dict[str, Any], lead: str) -> str:
    row = next(row for row in summary["certified_run_lengths"] if row["rule"] == lead)
    place = row["budgets"].index(_BUDGET)
    return (
        f"No draft was scored. Any draft whose KL stays below {_BUDGET:g} nats is accepted for "
        f"certain on at least {spell_share(row['share_of_steps'][place])} of these steps under "
        f"{lead}, {spell_length(row['mean_over_starts'][place])} tokens in a row on average."
    )


def _by_speed(speeds: Speeds) -> list[str]:
    best = speeds.ways[0]
    if best.speedup <= 1.0:
        return [
            f"Decode without a draft: at {speeds.costs} the fastest way, {_way(best)}, gives "
            f"{best.tokens_per_second:,.1f} tokens/s against {speeds.without_draft:,.1f} without."
        ]
    found = [
        f"Use {_way(best)}: {best.tokens_per_second:,.1f} tokens/s (90 % over prompts: "
        f"{best.interval[0]:,.1f} to {best.interval[1]:,.1f}), {best.speedup:.2f} x decoding "
        f"without a draft, predicted at {speeds.costs}."
    ]
    lossless = next((way for way in speeds.ways if way.nats_lost == 0.0), None)
    if best.nats_lost > 0.0 and lossless is not None:
        found.append(
            f"It gives up {spell_nats(best.nats_lost)} nats a token; the fastest that gives up "
            f"nothing is {_way(lossless)}, {lossless.tokens_per_second:,.1f} tokens/s."
        )
    elif best.nats_lost == 0.0:
        relaxed = next((way for way in speeds.ways if way.nats_lost > 0.0), None)
        beside = (
            f", and the fastest relaxed rule within the limit, {_way(relaxed)}, gives no more than "
            f"{relaxed.tokens_per_second:,.1f} tokens/s"
            if relaxed is not None
            else ""
        )
        found.append(f"It emits the target's own text, so nothing is given up{beside}.")
    return found


def _way(way: Speed) -> str:
    return f"{way.name} with drafts of {way.draft_length}"


def _by_tokens(summary: dict[str, Any], relaxation: list[Relaxation]) -> list[str]:
    observed = {row["rule"]: row for row in summary["observed_accepted_lengths"]}
    lengths = {
        rule: row["mean_acceptance_length"]
        for rule, row in observed.items()
        if row["mean_acceptance_length"] is not None
    }
    if not lengths:
        return ["The texts are too short for a single round of drafts."]
    given_up = {each.rule: each for each in relaxation}
    lossless = [rule for rule in lengths if not given_up[rule].num_relaxed]
    chains = [rule for rule in lossless if parse_rule(rule).tree_width < 2]
    trees = sorted(
        (rule for rule in lossless if parse_rule(rule).tree_width > 1),
        key=lambda rule: parse_rule(rule).tree_width,
    )
    drafted = next(iter(observed.values()))["num_spec_tokens"]
    found = []
    if chains:
        best = max(chains, key=lengths.__getitem__)
        found.append(
            f"Use {best}: at drafts of {drafted} it emits {spell_length(lengths[best])} tokens a "
            "target pass, and the target's own text."
        )
    beside = []
    for tree in dict.fromkeys([*trees[:1], *trees[-1:]]):
        width = parse_rule(tree).tree_width
        beside.append(
            f"{tree} emits {spell_length(lengths[tree])} for {width} times the verified positions"
        )
    gains = {
        rule: (lengths[rule] - min(lengths.values())) / given_up[rule].nats_per_token_replayed
        for rule in lengths
        if given_up[rule].nats_per_token_replayed > 0.0
    }
    if gains:
        rule = max(gains, key=gains.__getitem__)
        loss = given_up[rule]
        bound = "at least " if loss.num_unknown_prob else ""
        beside.append(
            f"{rule}, the relaxed rule that gains most for what it loses, emits "
            f"{spell_length(lengths[rule])} but gives up {bound}"
            f"{spell_nats(loss.nats_per_token_replayed)} nats a token and leaves the target's text "
            f"in {spell_share(loss.share_diverged)} of the prompts"
        )
    if beside:
        found.append(
            f"Beside it, {'; '.join(beside)}. No costs of passes are known here, so this counts "
            "tokens and not seconds (certspec calibrate --costs FILE measures them, "
            "certspec report RUN --costs FILE shows them)."
        )
    return found


def _weakness(splits: Splits, index: int, lead: str, improvement: Improvement | None) -> str:
    overall = splits.overall.accepted[index]
    weak = [
        split
        for split in (*splits.by_kind, *splits.by_position)
        if split.num_steps >= _FEWEST and split.accepted[index].high < overall.low
    ]
    text = (
        f"The draft is accepted on {spell_share(overall.value)} of the steps under {lead} (90 % "
        f"over prompts: {spell_share(overall.low)} to {spell_share(overall.high)}), "
        f"{spell_share(splits.overall.certified[index].value)} for certain"
    )
    if weak:
        worst = min(weak, key=lambda split: split.accepted[index].value)
        text += (
            f"; it is weakest {_place(worst, splits)}, {spell_share(worst.accepted[index].value)}"
        )
    elif splits.by_kind:
        text += "; no category or position stands out below that"
    if improvement is not None and improvement.share_large_kl:
        text += (
            f"; on {spell_share(improvement.share_large_kl)} the target is sure and the draft is "
            "far from it: train it there"
        )
    return text + "."


def _place(split: Split, splits: Splits) -> str:
    return (
        f"on prompts of the category {split.name}"
        if split in splits.by_kind
        else f"at positions {split.name}"
    )


def compare_conclusion(
    names: tuple[str, str], splits: tuple[Splits, Splits], rules: tuple[Any, Any], lead: str
) -> str:
    """Which of two runs accepts more under a rule that both have, and whether that could be the
    choice of prompts. ``rules``: the rules' labels of each run."""
    one, other = (
        each.overall.accepted[list(own).index(lead)]
        for each, own in zip(splits, rules, strict=True)
    )
    more, less = (0, 1) if one.value >= other.value else (1, 0)
    shares = (one, other)
    apart = shares[more].low > shares[less].high
    judged = (
        "more than the choice of prompts explains"
        if apart
        else "but their 90 % intervals over prompts meet, so other prompts could turn this round"
    )
    return (
        f"Under {lead}, {names[more]} accepts {spell_share(shares[more].value)} of its steps and "
        f"{names[less]} {spell_share(shares[less].value)}, {judged}."
    )
