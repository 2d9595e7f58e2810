"""Logits stored in files, a few rows at a time: .npy and .safetensors arrays of (positions, vocab)
or (sequences, positions, vocab), alone or as the shards of a folder. Reads plain bytes at an
offset, so that memory stays bounded."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certspec.errors import InvalidArgument, UnreadableInput

__all__ = ["StoredArray", "StoredLogits", "open_logits"]

_SUFFIXES = (".npy", ".safetensors")
_SAFETENSORS_DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16"}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class StoredArray:
    """One sequence's logits: ``num_rows`` positions of ``num_columns`` columns, from byte
    ``offset`` of ``path``."""

    path: Path
    name: str
    dtype: str
    offset: int
    num_rows: int
    num_columns: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.num_columns * _BYTES[self.dtype]

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start`` to ``stop``: (rows, columns), a numpy array, or a torch tensor where they
        are bfloat16."""
        count = (stop - start) * self.num_columns
        kind = np.uint16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset + start * self.row_bytes)
                values = np.fromfile(stream, dtype=kind, count=count)
        except OSError as error:
            raise UnreadableInput(f"{self.path}: {error.strerror or error}") from error
        if len(values) < count:
            raise UnreadableInput(
                f"{self.path}: {self.name}: the file ends in row {start + len(values) // count}"
            )
        rows = values.reshape(stop - start, self.num_columns)
        if self.dtype != "bfloat16":
            return rows
        import torch

        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)


@dataclass(frozen=True)
class StoredLogits:
    """The arrays of a file or folder, in the order of their names; sequence number i is
    ``arrays[i]``."""

    path: Path
    arrays: tuple[StoredArray, ...]

    @property
    def num_rows(self) -> int:
        """Positions in all."""
        return sum(array.num_rows for array in self.arrays)

    def facts(self) -> dict[str, Any]:
        """What a run is identified by: names, shapes, dtypes, sizes, and a hash over the ends of
        every file."""
        paths = sorted({array.path for array in self.arrays})
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as stream:
                digest.update(stream.read(1 << 20))
                stream.seek(-min(1 << 20, path.stat().st_size), 2)
                digest.update(stream.read())
        first = self.arrays[0]
        return {
            "name": self.path.name,
            "files": len(paths),
            "sequences": len(self.arrays),
            "rows": self.num_rows,
            "columns": first.num_columns,
            "dtype": first.dtype,
            "sha256_of_ends": digest.hexdigest(),
        }


def open_logits(path: Path) -> StoredLogits:
    """The stored logits of a file, or of every .npy and .safetensors file of a folder, in the order
    of their names.

    Raises UnreadableInput naming the file that holds something else, and where the arrays' widths
    or dtypes differ."""
    files = (
        sorted(child for child in path.iterdir() if child.suffix in _SUFFIXES)
        if os.path.isdir(path)  # False too of a name that no file can have
        else [path]
    )
    if not files:
        raise UnreadableInput(
            f"{path}: expected files of logits ({', '.join(_SUFFIXES)}), got none"
        )
    arrays = [array for file in files for array in _arrays(file)]
    for array in arrays:
        shape = array.num_columns, array.dtype
        if shape != (arrays[0].num_columns, arrays[0].dtype):
            raise UnreadableInput(
                f"{array.path}: {array.name}: expected {arrays[0].num_columns} columns of "
                f"{arrays[0].dtype} like the "
                f"first array, got {shape[0]} of {shape[1]}"
            )
    return StoredLogits(path, tuple(arrays))


def _arrays(path: Path) -> list[StoredArray]:
    if path.suffix not in _SUFFIXES:
        raise UnreadableInput(
            f"{path}: expected .npy or .safetensors, got "
            f"{path.suffix or 'a name without suffix'!r} (certspec import "
            "reads more, but keeps only the best tokens of a row)"
        )
    try:
        found = _npy_header(path) if path.suffix == ".npy" else _safetensors_headers(path)
        size = path.stat().st_size
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableInput(f"{path}: not a readable {path.suffix} file: {error}") from error
    arrays = []
    for name, dtype, offset, shape in found:
        if len(shape) not in (2, 3) or math.prod(shape) == 0:
            raise UnreadableInput(
                f"{path}: {name}: expected (positions, vocab) or (sequences, positions, vocab), "
                f"got shape {shape}"
            )
        if dtype not in _BYTES:
            raise UnreadableInput(
                f"{path}: {name}: expected float16, bfloat16, float32 or float64, got {dtype}"
            )
        rows, columns = shape[-2:]
        step = rows * columns * _BYTES[dtype]
        if size < offset + math.prod(shape) * _BYTES[dtype]:
            raise UnreadableInput(
                f"{path}: {name}: the file ends before its array does: was it cut off?"
            )
        for index in range(math.prod(shape[:-2])):
            arrays.append(StoredArray(path, name, dtype, offset + index * step, rows, columns))
    if not arrays:
        raise UnreadableInput(f"{path}: expected an array of logits, got none")
    return arrays


_Found = list[tuple[str, str, int, tuple[int, ...]]]


def _npy_header(path: Path) -> _Found:
    with path.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
        if fortran and len(shape) > 1:
            raise ValueError("its rows are stored column by column (Fortran order)")
        if not dtype.isnative:
            raise ValueError("its numbers are in the other byte order")
        return [("logits", dtype.name, stream.tell(), tuple(shape))]


def _safetensors_headers(path: Path) -> _Found:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return [
        (
            name,
            _SAFETENSORS_DTYPES.get(item["dtype"], item["dtype"]),
            8 + length + item["data_offsets"][0],
            tuple(item["shape"]),
        )
        for name, item in sorted(header.items())
    ]


def require_same_rows(target: StoredLogits, draft: StoredLogits) -> None:
    """Raises InvalidArgument where the two don't hold the same sequences, naming the first that
    differs."""
    lengths = [[array.num_rows for array in side.arrays] for side in (target, draft)]
    if len(lengths[0]) != len(lengths[1]):
        raise InvalidArgument(
            f"{draft.path}: expected {len(lengths[0])} sequences like {target.path}, got "
            f"{len(lengths[1])}"
        )
    for number, (one, other) in enumerate(zip(*lengths, strict=True)):
        if one != other:
            raise InvalidArgument(
                f"{draft.arrays[number].path}: sequence {number}: expected {one} positions like "
                f"the target, got {other}"
            )
