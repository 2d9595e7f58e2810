"""How far the logits of one text differ between two numerics (float32 and bfloat16, batch 1 and 8,
two servers), and which decisions of a draft that could turn. From two run folders, without a model;
``certspec.scoring.numerics`` measures whole rows with one.

Example: logits (2, 1, 0) and (2.1, .9, 0) differ by (.1, -.1, 0). A shift of a row changes nothing,
so the error is half the range, .1 nats. A step whose ``reach`` is at least that is certified under
both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from certspec.errors import InvalidArgument, RunMismatch, UnreadableInput
from certspec.runs.folder import RunFolder
from certspec.runs.schema import opened
from certspec.runs.table import RunTable, read_run
from certspec.runs.tables import TextTable, spell_nats, spell_share

__all__ = ["Numerics", "compare_numerics", "error_of", "numerics_tables", "summarise_numerics"]

_SHOWN = 10  # decisions that differ, in the table


@dataclass(frozen=True)
class Numerics:
    """Steps of the same texts under two numerics, the one and the other.

    Arrays (steps,): ``prompt``, ``position``; ``error``, nats, of the other's target logits, a
    shift removed; ``token``, ``other_token``, the target's argmaxes; ``same_draft``, whether both
    judged the same draft token, which alone makes decisions comparable. Arrays (rules, steps):
    ``accepted``, ``other_accepted``; ``reach`` of the one [nats]. None without a draft, or where a
    run lacks it. ``num_listed``: the error is that of the tokens which both list, at most so many a
    step; None where it is that of all."""

    rules: tuple[str, ...]
    prompt: np.ndarray
    position: np.ndarray
    error: np.ndarray
    token: np.ndarray
    other_token: np.ndarray
    same_draft: np.ndarray | None = None
    accepted: np.ndarray | None = None
    other_accepted: np.ndarray | None = None
    reach: np.ndarray | None = None
    num_listed: int | None = None


def error_of(moved: np.ndarray) -> np.ndarray:
    """(rows,) half the range of each row of differences of logits, (rows, tokens), NaN where a
    token is in neither; raised by more than what float64 rounds."""
    high = np.fmax.reduce(moved, axis=1, initial=-np.inf)
    low = np.fmin.reduce(moved, axis=1, initial=np.inf)
    error: np.ndarray = np.maximum(high - low, 0.0) / 2.0 * (1.0 + 1e-15)
    return error


def compare_numerics(one: str | Path, other: str | Path) -> Numerics:
    """Two runs of the same prompts, up to where their texts part: both list the target's likeliest
    tokens, and the error is measured on those in both lists.

    Raises RunMismatch where prompts, tokenizers or rules differ, or no step is shared."""
    folders = RunFolder(one), RunFolder(other)
    _require_same_texts(*folders)
    runs = read_run(one), read_run(other)
    if runs[0].rules != runs[1].rules:
        raise RunMismatch(
            f"{other}: expected the rules of {one}, {' '.join(runs[0].rules)}, got "
            f"{' '.join(runs[1].rules)}"
        )
    rows = _shared_rows(*runs)
    if not len(rows[0]):
        raise RunMismatch(f"{other}: expected steps of the prompts of {one}, got none of them")
    lists = [
        _lists(folder, run)[index] for folder, run, index in zip(folders, runs, rows, strict=True)
    ]
    a, b = runs
    drafts = (
        None if a.draft_token is None or b.draft_token is None else (a.draft_token, b.draft_token)
    )
    has_draft = drafts is not None
    return Numerics(
        rules=a.rules,
        prompt=a.prompt[rows[0]],
        position=a.position[rows[0]],
        error=_listed_error(*lists),
        token=a.target_token[rows[0]],
        other_token=b.target_token[rows[1]],
        same_draft=None if drafts is None else drafts[0][rows[0]] == drafts[1][rows[1]],
        accepted=_at(a.accepted, rows[0]) if has_draft else None,
        other_accepted=_at(b.accepted, rows[1]) if has_draft else None,
        reach=_at(a.reach, rows[0]) if has_draft else None,
        num_listed=max(each.shape[1] for each in lists),
    )


def _at(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[:, rows]


def _require_same_texts(one: RunFolder, other: RunFolder) -> None:
    settings = [folder.manifest()["settings"] for folder in (one, other)]
    for name in ("prompts_sha256", "tokenizer_sha256", "chat"):
        there = [each.get(name) for each in settings]
        if there[0] != there[1]:
            raise RunMismatch(
                f"{other.path}: expected a run of the same texts as {one.path}, got another {name}"
            )


def _shared_rows(one: RunTable, other: RunTable) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each with the same prompt and position whose texts so far are the same."""
    keys = [run.prompt.astype(np.int64) << 32 | run.position for run in (one, other)]
    _, first, second = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    prompts = one.prompt[first]
    starts = np.flatnonzero(np.diff(prompts, prepend=-1))
    differs = one.target_token[first] != other.target_token[second]
    before = np.cumsum(differs) - differs  # differing tokens before each step, of all prompts
    since = before - np.repeat(before[starts], np.diff([*starts, len(prompts)]))
    return first[since == 0], second[since == 0]


def _lists(folder: RunFolder, run: RunTable) -> np.ndarray:
    """(rows, K, 2) float64: id and log-probability of each row's listed tokens, NaN where there is
    none; rows as in ``run``."""
    names = ["prompt", "position", "target_top_ids", "target_top_probs"]
    try:
        table = pa.concat_tables(
            pq.read_table(opened(part), columns=names) for part in folder.parts()
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UnreadableInput(f"{folder.path}: not readable parts of a run: {error}") from error
    table = table.sort_by([("prompt", "ascending"), ("position", "ascending")]).combine_chunks()
    columns = [table.column(name).combine_chunks() for name in names[2:]]
    lengths = pc.list_value_length(columns[0]).to_numpy()
    ids, probs = (column.flatten().to_numpy().astype(np.float64) for column in columns)
    if len(ids) and not (ids >= 0).any():
        raise InvalidArgument(f"{folder.path}: expected a run that lists tokens' ids, got texts")
    found = np.full((run.num_steps, max(int(lengths.max()), 1), 2), np.nan)
    inside = np.arange(found.shape[1]) < lengths[:, None]
    with np.errstate(divide="ignore"):
        found[inside] = np.stack([np.where(ids >= 0, ids, np.nan), np.log(probs)], axis=1)
    return found


def _listed_error(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    moved = np.full(one.shape[:2], np.nan)
    for place in range(other.shape[1]):
        same = one[:, :, 0] == other[:, place, None, 0]
        moved = np.where(same, other[:, place, None, 1] - one[:, :, 1], moved)
    return error_of(moved)


def summarise_numerics(found: Numerics, errors: Sequence[float]) -> dict[str, Any]:
    """The figures, as JSON values: quantiles of the error, and by rule the share of steps certified
    within each of ``errors`` and within the largest error measured, the decisions that differ, and
    how many of those were certified within their own step's error (none, where all tokens were
    measured: claims robust.*)."""
    num_steps, largest = len(found.error), float(found.error.max())
    rules = []
    for index, rule in enumerate(found.rules if found.accepted is not None else ()):
        assert found.accepted is not None  # for the type checker
        assert found.other_accepted is not None and found.same_draft is not None
        accepted, other = found.accepted[index], found.other_accepted[index]
        differ = found.same_draft & (accepted != other)
        entry: dict[str, Any] = {"rule": rule, "num_differ": int(differ.sum())}
        entry["differ"] = [
            [int(found.prompt[i]), int(found.position[i])] for i in np.flatnonzero(differ)
        ]
        if found.reach is not None:
            reach = found.reach[index]
            held = {error: float((reach >= error).mean()) for error in (0.0, *errors, largest)}
            entry |= {
                "certified": held[0.0],
                "certified_within": {str(error): held[error] for error in errors},
                "certified_within_largest": held[largest],
                "num_false": int((differ & (reach >= found.error)).sum()),
                "num_false_within_largest": int((differ & (reach >= largest)).sum()),
            }
        rules.append(entry)
    return {
        "num_steps": num_steps,
        "num_prompts": len(np.unique(found.prompt)),
        "num_listed": found.num_listed,
        "error": {
            "median": _finite(np.median(found.error)),
            "99 %": _finite(np.quantile(found.error, 0.99, method="higher")),
            "largest": _finite(largest),
        },
        "num_other_argmax": int((found.token != found.other_token).sum()),
        "num_other_draft": None if found.same_draft is None else int((~found.same_draft).sum()),
        "errors": list(errors),
        "rules": rules,
    }


def _finite(value: Any) -> float | None:
    """None for +inf: a token that is masked under one of the two alone."""
    return float(value) if value < np.inf else None


def numerics_tables(found: Numerics, summary: dict[str, Any]) -> list[TextTable]:
    """What ``certspec numerics`` prints."""
    num_steps, error = summary["num_steps"], summary["error"]
    share_moved = 100 * summary["num_other_argmax"] / num_steps
    measured = (
        "all tokens"
        if found.num_listed is None
        else f"the tokens that both runs list, at most {found.num_listed} a step: the error of "
        "others is not in it"
    )
    shares = [
        TextTable(
            f"Error of the target's logits over {num_steps:,} steps of "
            f"{summary['num_prompts']:,} prompts, nats",
            ("", "median", "99 %", "largest", "another argmax"),
            (
                (
                    "half range, a shift removed",
                    *(_spell(error[name]) for name in ("median", "99 %", "largest")),
                    f"{summary['num_other_argmax']:,} ({share_moved:.2f} %)",
                ),
            ),
            f"Measured on {measured}.",
        )
    ]
    rules = summary["rules"]
    if not rules:
        return shares
    known = found.reach is not None
    within = [*(f"{each:g}" for each in summary["errors"]), f"largest {_spell(error['largest'])}"]
    shares.append(
        TextTable(
            "Steps certified on every server whose logits are within an error (nats)",
            (
                "rule",
                *(["0", *within, "of them decided otherwise"] if known else []),
                "decided otherwise",
            ),
            tuple(
                (
                    row["rule"],
                    *(
                        [
                            spell_share(row["certified"]),
                            *map(spell_share, row["certified_within"].values()),
                            spell_share(row["certified_within_largest"]),
                            f"{row['num_false_within_largest']:,}",
                        ]
                        if known
                        else []
                    ),
                    f"{row['num_differ']:,}",
                )
                for row in rules
            ),
            "Decided otherwise: the draft's token is accepted under one of the two and rejected "
            "under the other."
            + (
                ""
                if known
                else " certspec score --reach tells how many steps are certified within an error."
            )
            + _other_drafts(summary),
        )
    )
    shares += _differing(found, rules)
    return shares


def _spell(error: float | None) -> str:
    return "inf" if error is None else f"{error:.4g}"


def _other_drafts(summary: dict[str, Any]) -> str:
    count = summary["num_other_draft"]
    return f" At {count:,} steps the draft's tokens differ, and are not compared." if count else ""


def _differing(found: Numerics, rules: Sequence[dict[str, Any]]) -> list[TextTable]:
    places = {
        (p, s): row
        for row, (p, s) in enumerate(
            zip(found.prompt.tolist(), found.position.tolist(), strict=True)
        )
    }
    rows = []
    for index, entry in enumerate(rules):
        for prompt, position in entry["differ"]:
            row = places[prompt, position]
            assert found.accepted is not None  # for the type checker
            words = (
                ("rejected", "accepted") if found.accepted[index, row] else ("accepted", "rejected")
            )
            rows.append(
                (
                    entry["rule"],
                    f"{prompt}:{position}",
                    spell_nats(float(found.error[row])),
                    words[1],
                    words[0],
                )
            )
    if not rows:
        return []
    return [
        TextTable(
            f"Decisions that differ ({min(len(rows), _SHOWN)} of {len(rows)})",
            ("rule", "prompt:position", "error, nats", "the one", "the other"),
            tuple(rows[:_SHOWN]),
        )
    ]
