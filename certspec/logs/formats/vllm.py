"""vLLM's own form, of its server and of saved RequestOutputs: ``prompt_logprobs`` and
``outputs[].logprobs`` as lists of ``{"<id>": {logprob, rank, decoded_token}}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.logs.position import Entry, RawPosition
from certspec.logs.shapes import (
    Place,
    Sequences,
    expect_int,
    expect_list,
    expect_mapping,
    expect_token_id,
)

__all__ = ["matches", "positions"]


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    return any(_is_list_of_ids(listed) for listed, _, _ in _parts(document))


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of the prompt (part "prompt") and of each output (part "output"), each a sequence
    of its own."""
    if document.get("finished") is False:
        raise place.error(
            "finished outputs (a stream repeats or parts the others)", "finished: false"
        )
    for lists, part, holder in _parts(document):
        sequence = sequences.new(part)
        prompt = holder.get("prompt_token_ids", document.get("prompt_token_ids"))
        tokens = prompt if part == "prompt" else holder.get("token_ids")
        finish = holder.get("finish_reason") if part == "output" else None
        for number, listed in enumerate(expect_list(place, lists, f"{part} logprobs")):
            last = number == len(lists) - 1
            chosen = (
                tokens[number] if isinstance(tokens, list) and len(tokens) == len(lists) else None
            )
            raw = _position(listed, chosen, place, sequence, number, part)
            raw.finish = str(finish) if finish is not None and last else None
            raw.prompt = prompt if part == "output" and number == 0 else None
            yield raw


def _position(
    listed: object, chosen: object, place: Place, sequence: int, number: int, part: str
) -> RawPosition:
    raw = RawPosition(sequence, number, part, place.line, [])
    if chosen is not None:
        chosen = expect_token_id(place, chosen, "an actual token")
        raw.chosen = Entry(chosen, None, None)
    if listed is None:
        return raw
    ranks: list[int] = []
    for key, entry in expect_mapping(place, listed, f"an entry of {part} logprobs").items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise place.error("a token id as key", key)
        token = expect_token_id(place, int(key), "a key")
        entry = expect_mapping(place, entry, "a logprob with rank")
        text = entry.get("decoded_token")
        if not isinstance(text, (str, type(None))):
            raise place.error("decoded_token to be text", text)
        raw.entries.append(Entry(token, text, entry.get("logprob")))
        if entry.get("rank") is not None:
            ranks.append(expect_int(place, entry["rank"], "rank"))
            if ranks[-1] < 1:
                raise place.error("rank to be at least 1", ranks[-1])
    if len(ranks) == len(raw.entries):
        raw.ranks = ranks
    # vLLM lists the actual token first; its id, where the log has one, is surer
    listed_first = raw.entries[:1] if chosen is None and not _is_sorted(raw.entries) else []
    actual = [entry for entry in raw.entries if entry.key == chosen] or listed_first
    raw.chosen = actual[0] if actual else raw.chosen
    raw.chosen_may_be_added = True
    return raw


def _is_sorted(entries: list[Entry]) -> bool:
    """Whether ids stand in order, of numbers or of texts, as JavaScript or ``sort_keys`` leaves
    them: then the first is no more likely to be the actual token than others."""
    ids = [entry.key for entry in entries]
    return len(ids) > 1 and ids in (sorted(ids), sorted(ids, key=str))  # type: ignore[type-var]


def _parts(document: Mapping[str, Any]) -> Iterator[tuple[Any, str, Mapping[str, Any]]]:
    """(list of positions, part, the object that holds it) of everything of this shape in the
    document."""
    holders = [
        document,
        *(_mappings(document.get("choices"))),
        *(_mappings(document.get("outputs"))),
    ]
    for holder in holders:
        if holder.get("prompt_logprobs") is not None:
            yield holder["prompt_logprobs"], "prompt", holder
        if isinstance(holder.get("logprobs"), list):
            yield holder["logprobs"], "output", holder


def _mappings(items: object) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _is_list_of_ids(listed: object) -> bool:
    if not isinstance(listed, list):
        return False
    first = next((item for item in listed if item), None)
    return isinstance(first, dict) and all(
        isinstance(entry, dict) and "logprob" in entry for entry in first.values()
    )
