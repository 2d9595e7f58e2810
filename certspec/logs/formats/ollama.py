"""Ollama's own endpoints, /api/generate and /api/chat (0.12.11 and later): ``logprobs`` as
``[{token, logprob, bytes, top_logprobs}]`` beside ``done``, whole or streamed line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.logs.formats.openai_chat import content_positions
from certspec.logs.position import RawPosition
from certspec.logs.shapes import Place, Sequences, ollama_stream

__all__ = ["matches", "positions"]


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    listed = document.get("logprobs")
    if type(document.get("done")) is not bool or not isinstance(listed, list) or not listed:
        return False
    return isinstance(listed[0], dict) and "logprob" in listed[0]


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of the answer; lines of one model are one sequence until a line says done."""
    name = ollama_stream(document)
    is_streamed = not document["done"] or sequences.is_open(name)
    stream = sequences.stream(name, is_streamed=is_streamed)
    finish = document.get("done_reason", "stop") if document["done"] else None
    for raw in content_positions(document["logprobs"], place, stream, finish):
        raw.summed_in_order = True  # later versions leave it to llama.cpp's server
        yield raw
