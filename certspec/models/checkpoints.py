"""A checkpoint's folder, looked over before anything is loaded from it.

What people hand over by mistake is named with its file and a remedy: weights as pickles, a
git-lfs pointer in place of the weights, a download that broke off, a web page saved under the
file's name, a config whose numbers can't be a model's. Nothing of a checkpoint is executed.

Example: a ``model.safetensors`` of 134 bytes that begins with ``version https://git-lfs`` gives
``target: .../model.safetensors is a git-lfs pointer, not the file itself; fetch it (git lfs
pull)``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput

__all__ = ["TOKENIZER_FILES", "check_checkpoint", "read_config"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_WEIGHTS_THAT_RUN_CODE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_INDEX = ".safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_GENERATION_CONFIG = "generation_config.json"
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)


def check_checkpoint(role: str, folder: Path) -> None:
    """Raise UnreadableInput, naming ``role`` ("target", "draft") and the file, where ``folder``
    can't be a model in safetensors."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UnreadableInput(f"{role}: {folder}: {error.strerror or error}") from error
    weights = [name for name in names if name.endswith(".safetensors")]
    indices = [name for name in names if name.endswith(_INDEX)]
    if not weights and not indices:
        raise UnreadableInput(f"{role}: {_no_safetensors(folder, names)}")
    if _GENERATION_CONFIG in names:  # transformers goes on without what it can't read
        _read_object(role, folder / _GENERATION_CONFIG)
    config = read_config(role, folder)
    for name in _COUNTS:
        count = config.get(name, 1)
        if count is not None and (type(count) is not int or count < 1):
            raise UnreadableInput(
                f"{role}: {folder / 'config.json'}: expected {name} an integer of at least 1, got "
                f"{count!r}"
            )
    for name in indices:
        missing = sorted(set(_files_of_index(role, folder / name)) - set(weights))
        if missing:
            raise UnreadableInput(
                f"{role}: {folder / name} names {missing[0]}, which is not in {folder}"
            )
    for name in weights:
        _check_safetensors(role, folder / name)
    for name in filter(names.__contains__, TOKENIZER_FILES):
        _check_fetched(role, folder / name)


def read_config(role: str, folder: Path) -> dict[str, Any]:
    """The folder's config.json; raises UnreadableInput where it is none."""
    return _read_object(role, folder / "config.json")


def _no_safetensors(folder: Path, names: list[str]) -> str:
    asked = f"expected safetensors weights in {folder}, got"
    unsafe = [name for name in names if name.endswith(_WEIGHTS_THAT_RUN_CODE)]
    if unsafe:
        return (
            f"{asked} {unsafe[0]} only; loading a pickle can run code, so convert it first "
            "(model.save_pretrained writes safetensors)"
        )
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"{asked} {gguf[0]} only; GGUF is read where the file itself is named"
    return f"{asked} {', '.join(names) or 'nothing'}"


def _files_of_index(role: str, path: Path) -> list[str]:
    files = _read_object(role, path).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise UnreadableInput(f"{role}: {path}: expected weight_map, tensor to file, got {files!r}")
    return list(files.values())


def _read_object(role: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UnreadableInput(f"{role}: {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{role}: {path} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UnreadableInput(f"{role}: {path}: expected an object, got {type(found).__name__}")
    return found


def _check_safetensors(role: str, path: Path) -> None:
    """Eight bytes with the header's length, the header (JSON), then the tensors it promises."""
    _check_fetched(role, path)
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            fits = 2 <= length <= min(size - 8, _MOST_HEADER_BYTES)
            text = stream.read(length) if fits else b""
    except OSError as error:
        raise UnreadableInput(f"{role}: {path}: {error.strerror or error}") from error
    if not fits:
        raise UnreadableInput(f"{role}: {path} is no safetensors file, or was cut off")
    try:
        header = json.loads(text)
        ends = [0] + [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise UnreadableInput(f"{role}: {path} is no safetensors file (its header)") from error
    expected = 8 + length + max(ends)
    if size != expected:
        raise UnreadableInput(
            f"{role}: {path} was cut off or changed: expected {expected:,} bytes by its header, "
            f"got {size:,}"
        )


def _check_fetched(role: str, path: Path) -> None:
    """Refuse what begins as something else than the file itself does."""
    try:
        with path.open("rb") as stream:
            told = _told_by(stream.read(64))
    except OSError as error:
        raise UnreadableInput(f"{role}: {path}: {error.strerror or error}") from error
    if told is not None:
        raise UnreadableInput(f"{role}: {path} {told}")


def _told_by(start: bytes) -> str | None:
    """What a file that begins like this is instead of weights, and what to do."""
    text = start.lstrip().lower()
    if not start:
        return "is empty; fetch it again"
    if text.startswith(b"version https://git-lfs"):
        return "is a git-lfs pointer, not the file itself; fetch it (git lfs pull)"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page saved under that name; fetch the file itself"
    if text.startswith(b"gguf"):
        return "is a GGUF file under another name"
    return None
