"""OpenAI completions (also vLLM's server): ``choices[].logprobs = {tokens, token_logprobs,
top_logprobs}``, lists keyed by text, so that two tokens of the same text become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from certspec.logs.position import Entry, RawPosition
from certspec.logs.shapes import Place, Sequences, expect_list, expect_mapping, named_id

__all__ = ["matches", "positions"]


def matches(document: Mapping[str, Any]) -> bool:
    """Whether the document has this shape."""
    choices = document.get("choices")
    if not isinstance(choices, list):
        return False
    found = [choice.get("logprobs") for choice in choices if isinstance(choice, dict)]
    return any(isinstance(logprobs, dict) and "token_logprobs" in logprobs for logprobs in found)


def positions(
    document: Mapping[str, Any], place: Place, sequences: Sequences
) -> Iterator[RawPosition]:
    """Positions of all choices, each choice a sequence of its own (streamed chunks of a choice are
    one)."""
    for choice in expect_list(place, document.get("choices"), "choices"):
        choice = expect_mapping(place, choice, "a choice")
        if choice.get("logprobs") is None:
            continue
        logprobs = expect_mapping(place, choice["logprobs"], "logprobs")
        tokens = expect_list(place, logprobs.get("tokens"), "logprobs.tokens")
        values = expect_list(place, logprobs.get("token_logprobs"), "logprobs.token_logprobs")
        lists = expect_list(
            place, logprobs.get("top_logprobs") or [None] * len(tokens), "logprobs.top_logprobs"
        )
        if not len(tokens) == len(values) == len(lists):
            raise place.error(
                "tokens, token_logprobs and top_logprobs of one length",
                f"{len(tokens)}, {len(values)}, {len(lists)}",
            )
        identity = document.get("id")
        answer = (identity, choice.get("index"))
        stream = sequences.stream(answer, is_streamed=identity is not None)
        finish = choice.get("finish_reason")
        prompt = choice.get("prompt_token_ids", document.get("prompt_token_ids"))
        for number, (token, value, listed) in enumerate(zip(tokens, values, lists, strict=True)):
            if not isinstance(token, str):
                raise place.error("a token's text", token)
            entries = (
                []
                if listed is None
                else list(expect_mapping(place, listed, "an entry of top_logprobs").items())
            )
            yield RawPosition(
                stream.sequence,
                stream.position,
                "output",
                place.line,
                [_entry(place, text, logprob) for text, logprob in entries],
                chosen=_entry(place, token, value),
                keyed_by_text=True,
                chosen_may_be_added=True,
                prompt=prompt if stream.position == 0 else None,
                finish=str(finish) if finish is not None and number == len(tokens) - 1 else None,
            )
            stream.position += 1


def _entry(place: Place, text: str, logprob: object) -> Entry:
    """A token known by its text, or by its id where that is written for the text."""
    number = named_id(place, text)
    return Entry(text, text, logprob) if number is None else Entry(number, None, logprob)
