"""OpenAI chat completions (also vLLM's and SGLang's chat servers):
``choices[].logprobs.content[]``, whole or streamed in chunks; also bare positions of that form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.logs.position import Entry, RawPosition
from certspec.logs.shapes import (
    Place,
    Sequences,
    Stream,
    expect_list,
    expect_mapping,
    expect_token_id,
    named_id,
    token_bytes,
)

__all__ = ["content_positions", "matches", "positions"]


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    choices = document.get("choices")
    if isinstance(choices, list):
        return any(_has_content(choice) for choice in choices)
    return (
        _has_content(document)
        or _is_position(document)
        or _is_position(_first(document.get("steps")))
    )


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of all choices, each choice a sequence of its own."""
    if _is_position(document):
        stream = sequences.stream("bare positions")
        yield _position(document, place, stream, None)
        stream.position += 1
        return
    if "steps" in document:
        yield from content_positions(
            document["steps"], place, Stream(sequences.new()), document.get("finish_reason")
        )
        return
    streamed = str(document.get("object", "")).endswith(".chunk")
    for choice in expect_list(place, document.get("choices", [document]), "choices"):
        choice = expect_mapping(place, choice, "a choice")
        logprobs = choice.get("logprobs")
        content = (
            None if logprobs is None else expect_mapping(place, logprobs, "logprobs").get("content")
        )
        if content is None:
            if not streamed:  # else a chunk without tokens
                sequences.new()
            continue
        answer = (document.get("id"), choice.get("index"))
        stream = sequences.stream(answer, is_streamed=streamed)
        prompt = choice.get("prompt_token_ids", document.get("prompt_token_ids"))
        yield from content_positions(content, place, stream, choice.get("finish_reason"), prompt)


def content_positions(
    content: object, place: Place, stream: Stream, finish: object, prompt: object = None
) -> Iterator[RawPosition]:
    """Positions of a list ``[{token, logprob, bytes, top_logprobs}]``; ``finish``: why its answer
    ended, where it ends here."""
    content = expect_list(place, content, "logprobs.content")
    for number, item in enumerate(content):
        last = number == len(content) - 1
        item = expect_mapping(place, item, "an entry of logprobs.content")
        raw = _position(item, place, stream, str(finish) if last and finish is not None else None)
        raw.prompt = prompt if stream.position == 0 else None
        yield raw
        stream.position += 1


def _position(
    item: Mapping[str, Any], place: Place, stream: Stream, finish: str | None
) -> RawPosition:
    listed = item.get("top_logprobs")
    entries = [
        _entry(entry, place)
        for entry in expect_list(place, [] if listed is None else listed, "top_logprobs")
    ]
    return RawPosition(
        stream.sequence,
        stream.position,
        "output",
        place.line,
        entries,
        chosen=_entry(item, place),
        chosen_may_be_added=True,
        summed_in_order="id" in item,  # llama.cpp's server alone names ids here
        finish=finish,
    )


def _entry(item: object, place: Place) -> Entry:
    item = expect_mapping(place, item, "an entry of top_logprobs")
    token = item.get("token")
    described = token if isinstance(token, dict) else item
    text = token.get("text") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise place.error("a token's text", text)
    if "logprob" not in item:
        raise place.error("a token's logprob", sorted(item))
    number = described.get("id", described.get("token_id"))
    if number is not None:
        return Entry(expect_token_id(place, number), text, item["logprob"])
    number = named_id(place, text)
    if number is not None:
        return Entry(number, None, item["logprob"])
    known = token_bytes(place, described.get("bytes"))
    unnamed = None if "bytes" in described else text
    return Entry(known if known is not None else unnamed, text, item["logprob"])


def _has_content(choice: object) -> bool:
    logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
    return isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list)


def _is_position(item: object) -> bool:
    return (
        isinstance(item, dict) and "token" in item and "logprob" in item and "top_logprobs" in item
    )


def _first(items: object) -> object:
    return items[0] if isinstance(items, list) and items else None
