"""llama.cpp's server: ``completion_probabilities`` (or ``probs``) as ``[{id, logprob, token, bytes,
top_logprobs}]``. Probabilities after sampling are refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.errors import UnreadableInput
from certspec.logs.position import Entry, RawPosition
from certspec.logs.shapes import (
    Place,
    Sequences,
    expect_list,
    expect_mapping,
    expect_token_id,
    llama_cpp_stream,
)

__all__ = ["matches", "positions"]

_NAMES = ("completion_probabilities", "probs")


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    return any(isinstance(document.get(name), list) for name in _NAMES)


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of the answer; the lines of a stream without an id are one sequence until a line
    says stop."""
    items = next(document[name] for name in _NAMES if isinstance(document.get(name), list))
    streamed = "stop" in document and len(items) <= 1
    answer = llama_cpp_stream(document)
    stream = sequences.stream(answer, is_streamed=streamed)
    reason = document.get("stop_type") or ("length" if document.get("stopped_limit") else None)
    for number, item in enumerate(expect_list(place, items, "completion_probabilities")):
        item = expect_mapping(place, item, "an entry of completion_probabilities")
        _refuse_sampled(item, place)
        listed = expect_list(place, item.get("top_logprobs") or [], "top_logprobs")
        yield RawPosition(
            stream.sequence,
            stream.position,
            "output",
            place.line,
            [_entry(entry, place) for entry in listed],
            chosen=_entry(item, place),
            summed_in_order=True,
            finish=str(reason) if reason and number == len(items) - 1 else None,
        )
        stream.position += 1


def _entry(item: object, place: Place) -> Entry:
    if (
        type(item) is dict
        and type(item.get("id")) is int
        and 0 <= item["id"] < 2**31
        and type(item.get("token")) is str
        and "logprob" in item
    ):
        return Entry(item["id"], item["token"], item["logprob"])  # as it should be
    item = expect_mapping(place, item, "an entry of top_logprobs")
    if "logprob" not in item:
        raise place.error("a token's logprob", sorted(item))
    text = item.get("token")
    return Entry(
        expect_token_id(place, item.get("id")),
        text if isinstance(text, str) else None,
        item["logprob"],
    )


def _refuse_sampled(item: Mapping[str, Any], place: Place) -> None:
    """``post_sampling_probs`` and servers before logprobs gave what was left after top-k, top-p and
    temperature."""
    if "top_probs" in item or "probs" in item or ("prob" in item and "logprob" not in item):
        raise UnreadableInput(
            f"{place.name}:{place.line}: probabilities after sampling (prob, probs, top_probs): "
            "processed by top-k, top-p and temperature before they were logged; ask for n_probs "
            "without post_sampling_probs"
        )
