"""OpenAI's Responses API: ``output[].content[].logprobs``, asked for by ``include:
["message.output_text.logprobs"]``; of a stream the event that holds the whole response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.logs.formats.openai_chat import content_positions
from certspec.logs.position import RawPosition
from certspec.logs.shapes import Place, Sequences, Stream

__all__ = ["matches", "positions"]


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    return document.get("object") == "response" and bool(_lists(document))


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of a response, one sequence, the texts of its output one behind the other."""
    details = document.get("incomplete_details")
    finish = details.get("reason") if isinstance(details, dict) else None
    if finish is None and document.get("status") == "completed":
        finish = "stop"
    stream, lists = Stream(sequences.new()), _lists(document)
    for number, content in enumerate(lists):
        is_last = number == len(lists) - 1
        yield from content_positions(content, place, stream, finish if is_last else None)


def _lists(document: Mapping[str, Any]) -> list[Any]:
    """``logprobs`` of each text of the output that has some: [] stands where none were asked
    for."""
    texts = (
        text
        for message in _mappings(document.get("output"))
        for text in _mappings(message.get("content"))
    )
    return [text["logprobs"] for text in texts if text.get("logprobs")]


def _mappings(items: object) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
