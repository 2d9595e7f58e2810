"""What is to be seen in each picture, in a sentence or two made from the same figures: the text
that stands for the picture where it can't be seen, and under it where it can."""

from __future__ import annotations

import numpy as np

from certspec.presets import parse_rule
from certspec.reports.counts import LEAST, clipped_shares, margin_counts, ratio_counts
from certspec.reports.scene import Scene
from certspec.reports.splits import Split, splits_of
from certspec.runs.summary import MARGIN_EDGES, MEDIAN, REACHES
from certspec.runs.tables import spell_length, spell_nats, spell_share

__all__ = [
    "of_certificates",
    "of_improvement",
    "of_margin",
    "of_positions",
    "of_reach",
    "of_relaxation",
    "of_run_lengths",
]

_DIP = 0.02  # of a share: less is not called a bend
_FEWEST = 20  # steps: a bin with fewer is not spoken of


def of_certificates(scene: Scene) -> str:
    medians = {
        row["rule"]: row["certificate_capped"]["quantiles"][MEDIAN]
        for row in scene.summary["rules"]
    }
    widest, narrowest = (
        max(medians, key=lambda r: medians[r]),
        min(medians, key=lambda r: medians[r]),
    )
    text = f"The median certificate is smallest under {narrowest}, {spell_nats(medians[narrowest])}"
    text += f" nats, and largest under {widest}, {spell_nats(medians[widest])}."
    bounds = [
        row["rule"]
        for row in scene.summary["rules"]
        if row["share_certificate_known"] is not None and row["share_certificate_known"] < 1.0
    ]
    if bounds:
        text += (
            f" Rows marked ≥ ({', '.join(bounds)}) show lower bounds where the log tells no more."
        )
    return text + " The last bin of a row ends at the rule's cap; +inf stands at the right."


def of_margin(scene: Scene) -> str:
    counts = margin_counts(scene.run)
    index = scene.run.rules.index(scene.lead)
    full = np.flatnonzero(counts.steps >= min(_FEWEST, counts.steps.max()))
    first, last = int(full[0]), int(full[-1])

    def shares(name: str) -> str:
        held = getattr(counts, name)[index]
        low, high = held[first] / counts.steps[first], held[last] / counts.steps[last]
        return f"{name} steps go from {spell_share(low)} to {spell_share(high)}"

    text = (
        f"From margins of {_bin(first)} to {_bin(last)}, {scene.lead}'s {shares('accepted')}, its "
        f"{shares('certified')}."
    )
    return text + _bends(scene, full)


def _bends(scene: Scene, full: np.ndarray) -> str:
    """Which rules accept more at a small margin than at a larger one, and why."""
    counts, found = margin_counts(scene.run), []
    for rule, accepted in zip(scene.run.rules, counts.accepted, strict=True):
        shares = accepted[full] / counts.steps[full]
        low = int(np.argmin(shares))
        if not parse_rule(rule).is_relaxed or low == 0 or shares[0] - shares[low] < _DIP:
            continue
        found.append(
            f"{rule} bends, from {spell_share(float(shares[0]))} to its lowest at margins of "
            f"{_bin(int(full[low]))} ({spell_share(float(shares[low]))})"
        )
    why = (
        "at small margins the runner-up is accepted as well as the argmax; where a curve is lowest "
        "runners-up hardly pass any more and the draft still often has one; beyond, the draft is "
        "right."
    )
    return f" {'; '.join(found)}: {why}" if found else ""


def _bin(number: int) -> str:
    return f"{MARGIN_EDGES[number]:.1f} to {MARGIN_EDGES[number + 1]:.1f}"


def of_positions(scene: Scene) -> str:
    index = scene.run.rules.index(scene.lead)
    told = [split for split in splits_of(scene.run).by_position if split.num_steps >= _FEWEST]
    if len(told) < 2:
        return "The texts are too short to tell positions apart."

    def accepted(split: Split) -> str:
        share = split.accepted[index]
        return (
            f"{spell_share(share.value)} at positions {split.name} ({spell_share(share.low)} to "
            f"{spell_share(share.high)})"
        )

    worst = min(told, key=lambda split: split.accepted[index].value)
    best = max(told, key=lambda split: split.accepted[index].value)
    apart = worst.accepted[index].high < best.accepted[index].low
    judged = "" if apart else " The intervals meet: other prompts could turn this round."
    return (
        f"Under {scene.lead} the draft is accepted least, {accepted(worst)}, and most, "
        f"{accepted(best)}.{judged}"
    )


def of_run_lengths(scene: Scene) -> str:
    rows = {row["rule"]: row for row in scene.summary["certified_run_lengths"]}
    budgets = rows[scene.lead]["budgets"]
    places = [budgets.index(0.1), len(budgets) - 1]
    told = ", ".join(
        f"{spell_length(rows[scene.lead]['mean_over_starts'][place])} tokens at {budgets[place]:g}"
        for place in places
    )
    text = (
        f"Under {scene.lead}, the mean certified run over all starts by KL budget (nats): {told}."
    )
    zeros = [rule for rule, row in rows.items() if 0.0 in row["mean_over_starts"]]
    if zeros:
        text += (
            " Hollow marks on the line of 0: no step is certain at that budget, for it is not "
            f"below the rule's cap or no certificate reaches it ({', '.join(zeros)})."
        )
    return text


def of_improvement(scene: Scene) -> str:
    clipped = clipped_shares(scene)
    row = scene.summary["rules"][scene.run.rules.index(scene.lead)]
    text = (
        f"{spell_share(row['share_certified'])} of the steps lie below the line and are certified."
    )
    edge = [
        f"{spell_share(clipped[name])} have {words} below {LEAST:g} nats"
        for name, words in (("small_kl", "a KL"), ("small_certificate", "a certificate"))
        if clipped[name]
    ]
    if edge:
        text += f" Drawn at the edges marked ≤: {', '.join(edge)}."
    if clipped["infinite"]:
        text += (
            f" Not drawn: {spell_share(clipped['infinite'])} with an infinite KL or certificate."
        )
    return text


def of_relaxation(scene: Scene) -> str:
    counts = ratio_counts(scene.run)
    told = [
        f"{rule} {spell_share(float(each.sum()) / scene.run.num_steps)}"
        for rule, each in zip(scene.run.rules, counts, strict=True)
        if each.any()
    ]
    if not told:
        return "No rule of this run accepts any other token than the target's argmax."
    return "Steps at which a token other than the argmax is accepted: " + ", ".join(told) + "."


def of_reach(scene: Scene) -> str:
    index = scene.run.rules.index(scene.lead)
    row = scene.summary["rules"][index]
    shares = row["certified_within"] or {}
    near, far = str(REACHES[2]), str(REACHES[-1])
    return (
        f"Under {scene.lead} {spell_share(row['share_certified'])} of the steps are certified, "
        f"{spell_share(shares.get(near))} stay so on any server whose logits are within {near} "
        f"nats and {spell_share(shares.get(far))} within {far} nats."
    )
