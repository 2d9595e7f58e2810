"""The header of a GGUF file: metadata, and where each tensor lies. Nothing of it is executed.

The package ``gguf`` knows the types; its reader makes an object of every token and merge (half a
minute for 150,000 tokens), so the header is read here, by
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from certspec.errors import CertspecError, InvalidArgument, UnreadableInput

__all__ = ["GgufFile", "GgufTensor", "is_gguf", "read_header"]

_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST = 1 << 28  # of a count or a length in a header: larger ones are damage


@dataclass(frozen=True)
class GgufTensor:
    """``shape``: outputs first. ``offset``: from the beginning of the file."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufFile:
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def is_gguf(source: Any) -> bool:
    """Whether this names a GGUF file that is there."""
    path = Path(os.path.expanduser(source))
    return path.suffix == ".gguf" and os.path.isfile(path)


def read_header(role: str, path: Path) -> GgufFile:
    """Metadata and tensors of a file. Raises UnreadableInput, naming ``role`` ("target"), the file
    and the tensor, for a file that was cut off or holds types that nothing here reads, and
    InvalidArgument where the package ``gguf`` is missing."""
    try:
        import gguf
    except ImportError as error:
        raise InvalidArgument(
            f"{role}: {path}: reading GGUF needs the package gguf (pip install 'certspec[gguf]')"
        ) from error
    types = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    where = f"{role}: {path}"
    try:
        with path.open("rb") as stream:
            reader = _Reader(stream, path.stat().st_size)
            if reader.take(4) != b"GGUF":
                raise UnreadableInput(f"{where}: expected a GGUF file, got another one")
            version, num_tensors, num_fields = reader.numbers("IQQ")
            if version not in (2, 3):
                raise UnreadableInput(
                    f"{where}: expected GGUF version 2 or 3 (little-endian), got {version}"
                )
            metadata = {}
            for _ in range(reader.checked(num_fields)):
                key = reader.text()
                metadata[key] = reader.value(*reader.numbers("I"))
            entries = [reader.tensor() for _ in range(reader.checked(num_tensors))]
            alignment = metadata.get("general.alignment", 32)
            begin = -(-stream.tell() // alignment) * alignment
            size = reader.size
    except CertspecError:
        raise
    except OSError as error:
        raise UnreadableInput(f"{where}: {error.strerror or error}") from error
    except (EOFError, ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise UnreadableInput(
            f"{where}: its GGUF header was cut off or damaged ({error})"
        ) from error
    tensors = {}
    for name, shape, number, offset in entries:
        kind = types.get(number, f"number {number}")
        if kind not in sizes:
            raise UnreadableInput(f"{where}: tensor {name} has the unknown type {kind}")
        block, block_bytes = sizes[kind]
        if not shape or shape[-1] % block:
            raise UnreadableInput(
                f"{where}: tensor {name}: expected rows in blocks of {block} ({kind}), got the "
                f"shape {shape}"
            )
        num_bytes = prod(shape) // block * block_bytes
        if begin + offset + num_bytes > size:
            raise UnreadableInput(
                f"{where}: was cut off: tensor {name} ends at byte {begin + offset + num_bytes:,}, "
                f"the file at {size:,}"
            )
        tensors[name] = GgufTensor(name, kind, shape, begin + offset, num_bytes)
    return GgufFile(path, metadata, tensors)


class _Reader:
    """Takes values off a stream; EOFError at its end, ValueError for what can't be."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.size = stream, size

    def take(self, count: int) -> bytes:
        found = self.stream.read(count)
        if len(found) < count:
            raise EOFError("it ends early")
        return found

    def checked(self, count: int) -> int:
        if count > min(_MOST, self.size):
            raise ValueError(f"a count of {count:,}")
        return count

    def numbers(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        (length,) = self.numbers("Q")
        return self.take(self.checked(length)).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            kind, count = self.numbers("IQ")
            self.checked(count)
            if kind in _NUMBERS:
                return list(self.numbers(f"{count}{_NUMBERS[kind]}"))
            if kind == _STRING:
                return [self.text() for _ in range(count)]
        if kind not in _NUMBERS:
            raise ValueError(f"a value of type {kind}")
        return self.numbers(_NUMBERS[kind])[0]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape with outputs first, number of the type, offset behind the header."""
        name = self.text()
        (rank,) = self.numbers("I")
        if rank > 8:
            raise ValueError(f"a tensor of {rank} dimensions")
        shape = self.numbers(f"{rank}Q")[::-1]
        return name, shape, *self.numbers("IQ")
