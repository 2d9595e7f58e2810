"""SGLang: ``meta_info.{input,output}_top_logprobs`` as lists of ``[logprob, token id, text or
null]`` with ``..._token_logprobs`` beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.logs.position import Entry, RawPosition
from certspec.logs.shapes import Place, Sequences, expect_list, expect_token_id

__all__ = ["matches", "positions"]

_PARTS = (("input", "prompt"), ("output", "output"))


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    facts = _facts(document)
    return any(
        f"{name}_{kind}_logprobs" in facts for name, _ in _PARTS for kind in ("top", "token")
    )


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of the prompt (part "prompt") and of the answer (part "output"). The chunks of a
    streamed answer repeat what was said, or (where more tokens are counted than listed) go on."""
    facts = _facts(document)
    finish = facts.get("finish_reason")
    reason = finish.get("type") if isinstance(finish, dict) else finish
    for name, part in _PARTS:
        lists = facts.get(f"{name}_top_logprobs")
        chosen = facts.get(f"{name}_token_logprobs")
        if not lists and not chosen:
            continue
        length = len(expect_list(place, lists or chosen, f"{name}_top_logprobs"))
        lists, chosen = lists or [None] * length, chosen or [None] * length
        if len(lists) != len(expect_list(place, chosen, f"{name}_token_logprobs")):
            raise place.error(
                f"{name}_top_logprobs and {name}_token_logprobs of one length",
                f"{len(lists)}, {len(chosen)}",
            )
        counted, answer = facts.get("completion_tokens"), (part, facts.get("id"))
        is_streamed = facts.get("id") is not None and counted is not None
        stream = sequences.stream(answer, is_streamed=is_streamed, part=part)
        start = 0
        if is_streamed and part == "output":
            start = max(expect_token_id(place, counted, "completion_tokens") - length, 0)
        for number, (listed, actual) in enumerate(zip(lists, chosen, strict=True), start):
            if number < stream.position:
                continue
            stream.position = number + 1
            entries = [
                _entry(item, place)
                for item in expect_list(place, listed or [], f"an entry of {name}_top_logprobs")
            ]
            last = part == "output" and number == start + length - 1 and reason is not None
            yield RawPosition(
                stream.sequence,
                number,
                part,
                place.line,
                entries,
                chosen=None if actual is None else _entry(actual, place),
                finish=str(reason) if last else None,
            )
        if reason is not None:
            sequences.end(answer)


def _entry(item: object, place: Place) -> Entry:
    item = expect_list(place, item, "[logprob, token id, text]")
    if len(item) < 2:
        raise place.error("[logprob, token id, text]", f"{len(item)} values")
    logprob, token, *rest = item
    text = rest[0] if rest and isinstance(rest[0], str) else None
    return Entry(expect_token_id(place, token), text, logprob)


def _facts(document: Mapping[str, Any]) -> Mapping[str, Any]:
    facts = document.get("meta_info")
    return facts if isinstance(facts, dict) else document
