"""Opens a log of any known format, and says which one it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.logs.documents import iterate_documents
from certspec.logs.findings import Finding, Findings
from certspec.logs.formats import (
    llama_cpp,
    lm_eval,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
    sglang,
    vllm,
)
from certspec.logs.formats.tensors import SUFFIXES, tensor_positions
from certspec.logs.normalise import Normaliser
from certspec.logs.position import LoggedPosition
from certspec.logs.shapes import Place, Sequences, Stream
from certspec.logs.stated import NOTHING_STATED, Stated

__all__ = ["FORMATS", "read_log", "sniff_format"]

_JSON_FORMATS: dict[str, Any] = {
    "openai-chat": openai_chat,
    "openai-completions": openai_completions,
    "openai-responses": openai_responses,
    "ollama": ollama,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
    "vllm": vllm,
    "lm-eval": lm_eval,
}
FORMATS = (*_JSON_FORMATS, "tensors")
_ASK_FOR = {
    "openai-chat": "logprobs=true and top_logprobs=20",
    "openai-completions": "logprobs=5 (vLLM: up to its --max-logprobs)",
    "openai-responses": 'include=["message.output_text.logprobs"] and top_logprobs=20, and keep a '
    "stream's event response.completed",
    "ollama": "logprobs=true and top_logprobs=20",
    "sglang": "return_logprob=true and top_logprobs_num=20",
    "llama-cpp": "n_probs=20",
    "vllm": "logprobs=20 or prompt_logprobs=20",
    "lm-eval": "logs of another program",
}
_LAST_EVENTS = ("response.completed", "response.incomplete")  # of a stream of OpenAI's Responses
_SNIFFED_DOCUMENTS = 64  # a stream may begin with chunks that hold no token


def read_log(
    path: str | Path,
    *,
    format: str = "auto",
    findings: Findings | None = None,
    stated: Stated = NOTHING_STATED,
) -> Iterator[LoggedPosition]:
    """Positions of a log, one at a time and in bounded memory.

    ``format``: one of FORMATS, or "auto"; ``findings`` counts what was noticed on the way;
    ``stated``: what the log doesn't show. Raises UnreadableInput with file, line and reason where
    the log can't be read or would certify nothing (processed lists, raw logits, ...)."""
    path = Path(path)
    findings = findings if findings is not None else Findings()
    if format not in ("auto", *FORMATS):
        raise InvalidArgument(
            f"format: expected auto or one of {', '.join(FORMATS)}, got {format!r}"
        )
    _require_file(path)
    chosen = sniff_format(path) if format == "auto" else format
    if chosen == "tensors":
        return tensor_positions(path, findings)
    return _json_positions(path, chosen, findings, Normaliser(str(path), findings, stated))


def sniff_format(path: Path) -> str:
    """The format of the file by its name and first documents; raises UnreadableInput where none
    fits."""
    _require_file(path)
    if path.suffix in SUFFIXES:
        return "tensors"
    seen: Any = None
    for number, (document, line) in enumerate(iterate_documents(path)):
        for name, reader in _JSON_FORMATS.items():
            if isinstance(document, dict) and _answer(document, reader) is not None:
                return name
        seen = (document, line) if seen is None else seen
        if number + 1 >= _SNIFFED_DOCUMENTS:
            break
    raise _unknown(path, *(seen or ({}, 1)))


def _require_file(path: Path) -> None:
    if not os.path.isfile(path):  # False too of a name that no file can have
        if os.path.isdir(path):
            what = "a directory"
        elif os.path.exists(path):
            what = "expected a file, got a pipe or a device (a log is read more than once)"
        else:
            what = "no such file"
        raise UnreadableInput(f"{path}: {what}")


def _json_positions(
    path: Path, name: str, findings: Findings, normalise: Normaliser
) -> Iterator[LoggedPosition]:
    reader = _JSON_FORMATS[name]
    read: Callable[..., Iterator[Any]] = reader.positions
    sequences, found = Sequences(), False
    last = _LastPositions(sequences, normalise)
    for document, line in iterate_documents(path):
        if not isinstance(document, dict):
            raise UnreadableInput(
                f"{path}:{line}: expected an object, got {type(document).__name__}"
            )
        batched = "custom_id" in document or "response" in document
        is_answer = "choices" in document or document.get("object") == "response"
        if document.get("error") and not is_answer and not batched:
            raise UnreadableInput(
                f"{path}:{line}: the server answered with an error: {str(document['error'])[:200]}"
            )
        answer = _answer(document, reader)
        if answer is None:
            ended = sequences.end_finished(document)
            yield from last.end(ended)
            left_out = _left_out(document) if not ended or "choices" in document else None
            if left_out is not None:
                findings.note(left_out, f"{path}:{line}")
                if left_out is not Finding.OTHER_SHAPE:
                    sequences.skip(document)
            continue
        request = document.get("custom_id")
        metrics = answer.get("metrics")
        if isinstance(metrics, dict):
            findings.server.add(metrics.get("speculative_decoding"))
        others = answer.get("choices") if name.startswith("openai") else None
        for choice in others if isinstance(others, list) else ():
            if _is_left_out(choice):
                findings.note(Finding.WITHOUT_LOGPROBS, f"{path}:{line}")
        if name.startswith("openai") and vllm.matches(answer):
            findings.note(Finding.PROMPT_LISTS, f"{path}:{line}")
        for raw in read(answer, Place(str(path), line), sequences):
            position = normalise(raw)
            if position is not None:
                found = True
                position.request = request if isinstance(request, str) else None
                yield from last.add(position)
        yield from last.end(sequences.end_finished(answer))
    yield from last.rest()
    normalise.finish()
    temperature = normalise.grid.temperature()
    if temperature is not None:
        findings.temperature = temperature
        if temperature != 1.0:
            findings.note(
                Finding.LOG_OF_ANOTHER_TEMPERATURE, f"{path}: {temperature:g}, up to a power of two"
            )
    if not found:
        count = normalise.num_without_list
        told = f"none of {count:,} positions has a list of" if count else "no position with"
        raise UnreadableInput(
            f"{path}: {told} the most probable tokens in a log of format {name}; ask the server "
            f"for {_ASK_FOR[name]}"
        )


class _LastPositions:
    """Holds back the last position of each streamed answer: that it is the last one, and why the
    answer ended, may be said by a later chunk without tokens."""

    _MOST = 4096

    def __init__(self, sequences: Sequences, normalise: Normaliser) -> None:
        self._sequences, self._normalise = sequences, normalise
        self._held: dict[int, LoggedPosition] = {}

    def add(self, position: LoggedPosition) -> Iterator[LoggedPosition]:
        """The sequence's position before this one, and this one where nothing more is to come."""
        is_output = position.part == "output"
        before = self._held.pop(position.sequence, None) if is_output else None
        if before is not None:
            yield before
        if not is_output or position.finish or not self._sequences.goes_on(position.sequence):
            yield position
            return
        if len(self._held) >= self._MOST:
            yield self._held.pop(next(iter(self._held)))
        self._held[position.sequence] = position

    def end(self, ended: Iterable[tuple[Stream, str]]) -> Iterator[LoggedPosition]:
        """The last positions of answers that have ended."""
        for stream, reason in ended:
            position = self._held.pop(stream.sequence, None)
            if position is not None:
                if position.position == stream.position - 1:  # the last token had a list
                    self._normalise.end(position, reason)
                yield position

    def rest(self) -> Iterator[LoggedPosition]:
        """Those of answers whose end the log doesn't hold."""
        yield from self._held.values()


def _answer(document: Mapping[str, Any], reader: Any) -> Mapping[str, Any] | None:
    """The document, or the answer in a batch's output line or beside its request, where it is of
    the reader's shape."""
    response = document.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    for each in (document, body, response):
        if isinstance(each, dict) and reader.matches(each):
            return each
    return None


def _left_out(document: Mapping[str, Any]) -> Finding | None:
    """What a document that isn't read is, None where it holds no token (the ends of a stream)."""
    event = str(document.get("type", ""))
    if event == "response.failed":
        return Finding.FAILED_ANSWER
    if event.startswith("response.") and event not in _LAST_EVENTS:
        return None
    response = document.get("response")
    if isinstance(response, dict):  # a batch's output line
        status = response.get("status_code")
        is_number = isinstance(status, (int, str)) and str(status).isdecimal()
        if document.get("error") or (is_number and int(str(status)[:9]) >= 400):
            return Finding.FAILED_ANSWER
        document = response["body"] if isinstance(response.get("body"), dict) else response
    if document.get("error"):
        return Finding.FAILED_ANSWER
    if document.get("object") == "response" or document.get("done") is True:
        return Finding.WITHOUT_LOGPROBS
    if document.get("done") is False:
        return None  # an answer of Ollama is counted where it ends
    choices = document.get("choices")
    if isinstance(choices, list):
        answers = [choice for choice in choices if isinstance(choice, dict)]
        if any(choice.get("logprobs") for choice in answers):
            return Finding.OTHER_SHAPE
        left_out = isinstance(response, dict) or any(map(_is_left_out, answers))
        return Finding.WITHOUT_LOGPROBS if left_out else None
    if "stop" in document and not document.get("content"):
        return None  # the last line of llama.cpp's stream
    return Finding.OTHER_SHAPE


def _is_left_out(choice: Any) -> bool:
    """Whether a choice has tokens (text, a call of a tool, a thought) and no logprobs of them."""
    if not isinstance(choice, dict) or choice.get("logprobs"):
        return False
    delta = choice.get("delta")  # of a stream, whose first and last ones hold no token
    told = isinstance(delta, dict) and any(delta[name] for name in delta if name != "role")
    return told or bool(choice.get("text")) or isinstance(choice.get("message"), dict)


def _unknown(path: Path, document: Any, line: int) -> UnreadableInput:
    if not isinstance(document, dict):
        return UnreadableInput(
            f"{path}:{line}: expected a log of {', '.join(FORMATS)}, got {type(document).__name__}"
        )
    known = ", ".join(FORMATS)
    if _holds_text_probability_pairs(document):
        return UnreadableInput(
            f"{path}:{line}: lists of [text, probability]: probabilities, not logprobs; expected a "
            f"log of {known}"
        )
    if isinstance(document.get("choices"), list):
        return UnreadableInput(
            f"{path}:{line}: choices without logprobs; ask the server for logprobs and top_logprobs"
        )
    return UnreadableInput(
        f"{path}:{line}: expected a log of {known}, got an object with "
        f"{sorted(map(str, document))[:8]}"
    )


def _holds_text_probability_pairs(document: Mapping[str, Any]) -> bool:
    for value in document.values():
        first = value[0] if isinstance(value, list) and value else value
        listed = first.get("topk") if isinstance(first, dict) else None
        pair = listed[0] if isinstance(listed, list) and listed else None
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            return True
    return False
