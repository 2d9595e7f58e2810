"""Two logs of the same tokens, joined on sequence and position."""

from __future__ import annotations

from collections.abc import Iterator

from certspec.errors import UnreadableInput
from certspec.logs.findings import Finding, Findings
from certspec.logs.position import Key, LoggedPosition

__all__ = ["join_logs"]

_WINDOW = 16_384  # draft positions kept while their target position is looked for


def join_logs(
    target: Iterator[LoggedPosition],
    draft: Iterator[LoggedPosition],
    findings: Findings,
    names: tuple[str, str],
) -> Iterator[tuple[LoggedPosition, LoggedPosition]]:
    """Yield (target position, draft position) of the same sequence, part and position; order may
    differ a little.

    ``names``: of the two files. Raises UnreadableInput where two positions go on with different
    tokens (the contexts differ), where their tokens are known by different things (ids, bytes,
    text), or where nothing matches."""
    waiting: dict[tuple[int, str, int], LoggedPosition] = {}
    alone: dict[tuple[int, str, int], Key] = {}  # chosen tokens of the target's without a draft's
    num_joined, parts = 0, (set[str](), set[str]())
    for position in target:
        parts[0].add(position.part)
        other = waiting.pop(position.place, None)
        while other is None and len(waiting) < _WINDOW:
            candidate = next(draft, None)
            if candidate is None:
                break
            parts[1].add(candidate.part)
            if candidate.place == position.place:
                other = candidate
            else:
                waiting[candidate.place] = candidate
        if other is None:
            findings.note(Finding.TARGET_WITHOUT_DRAFT, f"{names[0]}:{position.line}")
            if len(waiting) >= _WINDOW:  # the oldest have had their chance
                _drop_oldest(waiting, findings, names[1])
            alone[position.place] = position.chosen_key
            if len(alone) > _WINDOW:
                del alone[next(iter(alone))]
            continue
        _require_same_tokens(position, other, names)
        _require_same_before(position, other, names, waiting, alone)
        if position.num_ranked != other.num_ranked:
            findings.note(
                Finding.DEPTHS_DIFFER,
                f"{names[0]}: {position.num_ranked}, {names[1]}: {other.num_ranked}",
            )
        num_joined += 1
        yield position, other
    num_left = len(waiting) + sum(1 for _ in draft)
    if num_left:
        findings.note(Finding.DRAFT_WITHOUT_TARGET, names[1], num_left)
    if not num_joined:
        raise UnreadableInput(
            f"{names[0]} and {names[1]}: no position is in both; the target's log holds "
            f"{_said(parts[0])} positions, the draft's {_said(parts[1])} positions"
        )


def _drop_oldest(
    waiting: dict[tuple[int, str, int], LoggedPosition], findings: Findings, name: str
) -> None:
    for place in list(waiting)[: _WINDOW // 2]:
        findings.note(Finding.DRAFT_WITHOUT_TARGET, f"{name}:{waiting.pop(place).line}")


def _require_same_tokens(
    target: LoggedPosition, draft: LoggedPosition, names: tuple[str, str]
) -> None:
    kinds = [
        {type(key).__name__ for key in position.keys if key is not None}
        for position in (target, draft)
    ]
    files = f"{names[0]}:{target.line} and {names[1]}:{draft.line}"
    where = f"{files}: {target.part} position {target.position}"
    if kinds[0] and kinds[1] and not kinds[0] & kinds[1]:
        said = [_KINDS[next(iter(kind))] for kind in kinds]
        raise UnreadableInput(
            f"{where}: the target's tokens are known by {said[0]}, the draft's by {said[1]}"
        )
    requests = target.request, draft.request
    if None not in requests and requests[0] != requests[1]:
        raise UnreadableInput(
            f"{where}: the target's log answers request {requests[0]!r}, the draft's "
            f"{requests[1]!r}; sort both files by custom_id and leave out what only one answers"
        )
    known = target.chosen_key is not None and draft.chosen_key is not None
    if known and target.chosen_key != draft.chosen_key:
        raise UnreadableInput(
            f"{where}: the target's log goes on with {target.chosen_key!r}, the draft's with "
            f"{draft.chosen_key!r}; both must score the same text (feed the target's answer to the "
            "draft)"
        )


def _require_same_before(
    target: LoggedPosition,
    draft: LoggedPosition,
    names: tuple[str, str],
    waiting: dict[tuple[int, str, int], LoggedPosition],
    alone: dict[tuple[int, str, int], Key],
) -> None:
    """Compare the tokens of positions that one of the logs, or both, has no list for."""
    here = dict(target.before)
    there = dict(draft.before)
    for number in sorted({*here, *there}):
        place = (target.sequence, target.part, number)
        other = waiting.get(place)
        keys = (
            here.get(number, alone.get(place)),
            there.get(number, None if other is None else other.chosen_key),
        )
        if None not in keys and type(keys[0]) is type(keys[1]) and keys[0] != keys[1]:
            files = f"{names[0]}:{target.line} and {names[1]}:{draft.line}"
            if number < 0:
                raise UnreadableInput(
                    f"{files}: the answers' prompts differ (prompt_token_ids); both must score the "
                    "same text"
                )
            raise UnreadableInput(
                f"{files}: {target.part} position {number}: the target's log goes on with "
                f"{keys[0]!r}, the draft's with {keys[1]!r}; both must score the same text (feed "
                "the target's answer to the draft)"
            )


_KINDS = {"int": "id", "bytes": "bytes", "str": "text"}


def _said(parts: set[str]) -> str:
    return " and ".join(sorted(parts)) or "no"
