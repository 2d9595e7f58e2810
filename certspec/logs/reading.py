"""Opens a log of any known format, and says which one it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from certspec.errors import InvalidArgument, UnreadableInput
from certspec.logs.documents import iterate_documents
from certspec.logs.findings import Finding, Findings
from certspec.logs.formats import llama_cpp, lm_eval, openai_chat, openai_completions, sglang, vllm
from certspec.logs.formats.tensors import SUFFIXES, tensor_positions
from certspec.logs.normalise import Normaliser
from certspec.logs.position import LoggedPosition

__all__ = ["FORMATS", "read_log", "sniff_format"]

_JSON_FORMATS: dict[str, Any] = {
    "openai-chat": openai_chat,
    "openai-completions": openai_completions,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
    "vllm": vllm,
    "lm-eval": lm_eval,
}
FORMATS = (*_JSON_FORMATS, "tensors")
_SNIFFED_DOCUMENTS = 64  # a stream may begin with chunks that hold no token


def read_log(
    path: str | Path, *, format: str = "auto", findings: Findings | None = None
) -> Iterator[LoggedPosition]:
    """Positions of a log, one at a time and in bounded memory.

    ``format``: one of FORMATS, or "auto"; ``findings`` counts what was noticed on the way. Raises
    UnreadableInput with file, line and reason where the log can't be read or would certify nothing
    (processed lists, raw logits, ...)."""
    path = Path(path)
    findings = findings if findings is not None else Findings()
    if format not in ("auto", *FORMATS):
        raise InvalidArgument(
            f"format: expected auto or one of {', '.join(FORMATS)}, got {format!r}"
        )
    if not path.is_file():
        raise UnreadableInput(f"{path}: no such file")
    chosen = sniff_format(path) if format == "auto" else format
    if chosen == "tensors":
        return tensor_positions(path, findings)
    return _json_positions(path, chosen, findings)


def sniff_format(path: Path) -> str:
    """The format of the file by its name and first documents; raises UnreadableInput where none
    fits."""
    if path.suffix in SUFFIXES:
        return "tensors"
    seen: Any = None
    for number, (document, line) in enumerate(iterate_documents(path)):
        for name, reader in _JSON_FORMATS.items():
            if isinstance(document, dict) and reader.matches(document):
                return name
        seen = (document, line) if seen is None else seen
        if number + 1 >= _SNIFFED_DOCUMENTS:
            break
    raise _unknown(path, *(seen or ({}, 1)))


def _json_positions(path: Path, name: str, findings: Findings) -> Iterator[LoggedPosition]:
    from certspec.logs.shapes import Place, Sequences

    reader = _JSON_FORMATS[name]
    read: Callable[..., Iterator[Any]] = reader.positions
    normalise, sequences = Normaliser(str(path), findings), Sequences()
    found = False
    for document, line in iterate_documents(path, mark_repeated_keys=name == "openai-completions"):
        if not isinstance(document, dict):
            raise UnreadableInput(
                f"{path}:{line}: expected an object, got {type(document).__name__}"
            )
        if "error" in document and "choices" not in document and document["error"]:
            raise UnreadableInput(
                f"{path}:{line}: the server answered with an error: {str(document['error'])[:200]}"
            )
        for raw in (
            read(document, Place(str(path), line), sequences) if reader.matches(document) else ()
        ):
            position = normalise(raw)
            if position is not None:
                found = True
                yield position
    temperature = normalise.grid.temperature()
    if temperature is not None:
        findings.temperature = temperature
        if temperature != 1.0:
            findings.note(
                Finding.LOG_OF_ANOTHER_TEMPERATURE, f"{path}: {temperature:g}, up to a power of two"
            )
    if not found:
        raise UnreadableInput(
            f"{path}: no position with logprobs in a log of format {name}; were logprobs asked for?"
        )


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
