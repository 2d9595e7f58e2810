"""Logits that transformers gave (``generate(output_logits=True)``), saved as .npz, .npy,
.safetensors or .pt: whole rows, read a few at a time. Files of torch are loaded with
``weights_only``: they can't run code."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from certspec.certificates.mistakes import PROBABILITIES, mistakes_in
from certspec.errors import UnreadableInput
from certspec.logs.findings import Finding, Findings
from certspec.logs.position import LoggedPosition

__all__ = ["KEPT_TOKENS", "SUFFIXES", "tensor_positions"]

SUFFIXES = (".npz", ".npy", ".safetensors", ".pt", ".pth", ".bin")
KEPT_TOKENS = 1024  # listed tokens of a row; what lies beyond is one lump
_ROWS_AT_ONCE = 64
_PROCESSED_NAMES = ("scores", "output_scores", "probs")


def tensor_positions(path: Path, findings: Findings) -> Iterator[LoggedPosition]:
    """Positions of every array of logits in the file: (positions, vocab), or (batch, positions,
    vocab).

    A file of generate()'s tuple holds (batch, vocab) arrays, one a step, in order. Only arrays of
    floating-point numbers are logits: token ids may stand beside them. Raises UnreadableInput
    naming file, array and row, also where two arrays differ in width (one of them is no logits) and
    where all rows of an array turn out to be probabilities."""
    sequence, first, said = 0, ("", 0), False
    for name, rows_of in _arrays(path):
        if any(
            name == processed or name.startswith(processed + ".") for processed in _PROCESSED_NAMES
        ):
            raise UnreadableInput(
                f"{path}: array {name!r} holds what logits processors left (temperature, top-k, "
                "top-p); save generate(output_logits=True).logits instead"
            )
        where, num_rows, num_probs = f"{path}: array {name!r}", 0, 0
        for rows in rows_of:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                chunk = np.asarray(rows[start : start + _ROWS_AT_ONCE], dtype=np.float64)
                first = first if first[1] else (name, chunk.shape[1])
                if chunk.shape[1] != first[1]:
                    raise UnreadableInput(
                        f"{where}: expected {first[1]} columns like array {first[0]!r}, got "
                        f"{chunk.shape[1]}"
                    )
                yield from _positions(chunk, where, start, sequence, findings)
                found = mistakes_in(chunk, start)
                num_rows += len(chunk)
                num_probs += sum(each.count for each in found if each.what == PROBABILITIES)
                for mistake in () if said else found:
                    findings.note(Finding.SURELY_A_MISTAKE, mistake.note(where))
                    said = True
            sequence += len(rows) > 0
        if num_rows and num_probs == num_rows:
            raise UnreadableInput(
                f"{where}: expected logits, got probabilities: in each of its {num_rows:,} rows "
                "all are >= 0 and their sum is 1; save their logarithms"
            )
    if not sequence:
        raise UnreadableInput(
            f"{path}: expected an array of floating-point logits of 2 or 3 dimensions with at "
            "least one row, found none"
        )


def _positions(
    logits: np.ndarray, where: str, start: int, sequence: int, findings: Findings
) -> Iterator[LoggedPosition]:
    if not logits.shape[1]:
        raise UnreadableInput(f"{where}: expected at least one column, got none")
    bad = np.logical_or(np.isnan(logits), np.isposinf(logits))
    empty = np.asarray(np.isneginf(logits).all(axis=1))
    if bad.any() or empty.any():
        row = int(np.argmax(bad.any(axis=1) | empty))
        column = int(np.argmax(bad[row, :]))
        what = "only -inf" if empty[row] else f"{logits[row, column]} at column {column}"
        raise UnreadableInput(f"{where}, row {start + row}: {what}")
    num_tokens = logits.shape[1]
    if 2 * np.isfinite(logits).sum(axis=1).max() < num_tokens:
        raise UnreadableInput(
            f"{where}, row {start}: most columns are -inf: processed by top-k or top-p, save the "
            "raw logits"
        )
    with np.errstate(over="ignore"):  # what lies 1e308 below the largest has no mass
        shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    kept = min(KEPT_TOKENS, num_tokens)
    order = np.argsort(-logprobs, axis=1, kind="stable")[
        :, :kept
    ]  # stable: the lowest id first in a tie
    for row, ids in enumerate(order):
        values = np.minimum(logprobs[row, ids], 0.0)
        if kept > 1 and values[0] == values[1]:
            findings.note(Finding.TOP_TIE, f"{where}, row {start + row}")
        finite = int(np.isfinite(values).sum())
        whole = kept == num_tokens
        yield LoggedPosition(
            sequence,
            start + row,
            "output",
            start + row,
            values[: kept if whole else finite].tolist(),
            ids[: kept if whole else finite].tolist(),
            [None] * (kept if whole else finite),
            num_ranked=kept if whole else finite,
            error=1e-12,
            num_tokens=num_tokens,
            has_order=True,
        )


def _arrays(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """(name, sequences), each sequence something sliceable of shape (positions, vocab)."""
    if path.suffix in (".npz", ".npy"):
        yield from _numpy_arrays(path)
    elif path.suffix == ".safetensors":
        yield from _safetensors_arrays(path)
    else:
        yield from _torch_arrays(path)


def _numpy_arrays(path: Path) -> Iterator[tuple[str, list[Any]]]:
    try:
        with path.open("rb") as stream:
            loaded = (
                np.load(path, mmap_mode="r", allow_pickle=False)
                if path.suffix == ".npy"
                else np.load(stream, allow_pickle=False)
            )
            named = {"logits": loaded} if isinstance(loaded, np.ndarray) else loaded
            for name in named:
                array = named[name]
                if array.ndim in (2, 3) and array.dtype.kind == "f":
                    yield name, _sequences(array)
    except (ValueError, OSError, EOFError, KeyError, BadZipFile, zlib.error) as error:
        raise UnreadableInput(f"{path}: {error}") from error


def _safetensors_arrays(path: Path) -> Iterator[tuple[str, list[Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  (safe_open isn't a mapping)
                shape = stored.get_slice(name).get_shape()
                if not stored.get_slice(name).get_dtype().startswith(("F", "BF")):
                    continue
                if len(shape) == 2:
                    yield name, [_Slices(stored.get_slice(name), shape[0])]
                elif len(shape) == 3:
                    yield name, _sequences(stored.get_tensor(name).float().numpy())
    except (SafetensorError, OSError) as error:
        raise UnreadableInput(f"{path}: {error}") from error


class _Slices:
    """Rows of a stored tensor, read when they are asked for."""

    def __init__(self, stored: Any, num_rows: int) -> None:
        self.stored, self.num_rows = stored, num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.stored[rows].float().numpy()


def _torch_arrays(path: Path) -> Iterator[tuple[str, list[Any]]]:
    import pickle

    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own text tells to load it with its code
        raise UnreadableInput(
            f"{path}: not a file of tensors alone: its pickle holds other things, or it is of "
            "another format"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableInput(f"{path}: not a file of tensors alone: {reason}") from error
    named = loaded if isinstance(loaded, dict) else {"logits": loaded}
    for name, value in named.items():
        where = f"{path}: array {str(name)!r}"
        if (
            isinstance(value, (tuple, list))
            and value
            and all(isinstance(step, torch.Tensor) and step.ndim for step in value)
        ):
            shapes = {tuple(step.shape) for step in value}
            if len(shapes) > 1:
                raise UnreadableInput(
                    f"{where}: expected steps of one shape (batch, vocab), got "
                    + ", ".join(map(str, sorted(shapes)))
                )
            # (batch, vocab) a step
            value = torch.stack([_plain(where, step) for step in value], dim=-2)
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if is_float and (value.is_nested or value.ndim in (2, 3)):
            yield str(name), _sequences(_plain(where, value).numpy())


def _plain(where: str, tensor: Any) -> Any:
    """The tensor in float32, without a gradient; UnreadableInput where it does not lie in memory
    row by row."""
    import torch

    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        kind = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise UnreadableInput(f"{where}: expected a plain tensor, got a {kind} one")
    return tensor.detach().float()


def _sequences(array: np.ndarray) -> list[np.ndarray]:
    return [array] if array.ndim == 2 else list(array)
