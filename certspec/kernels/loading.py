"""Loads a generated kernel module after checking that its text is the one that was emitted."""

from __future__ import annotations

import hashlib
import importlib
import json
from functools import cache
from pathlib import Path
from types import ModuleType

from certspec.errors import CertspecError

__all__ = ["AlteredKernel", "kernel_hashes", "load_kernels"]

_FOLDER = Path(__file__).parent / "generated"
_BODY_MARK = "# --- body ---\n"


class AlteredKernel(CertspecError):
    """A generated kernel file is not the text that the derivations emitted."""


@cache
def load_kernels(topic: str, backend: str = "") -> ModuleType:
    """The module ``generated/{topic}_{backend}.py``, or ``generated/{topic}.py`` of a topic that is
    the same for all (``load_kernels("constants")``); AlteredKernel where its body is not what the
    manifest says."""
    name = f"{topic}_{backend}" if backend else topic
    check_body(_FOLDER / f"{name}.py", kernel_hashes()[f"{name}.py"])
    return importlib.import_module(f"certspec.kernels.generated.{name}")


@cache
def kernel_hashes() -> dict[str, str]:
    """sha256 of every generated file's body, by file name: the identity of the kernels, for
    provenance."""
    manifest = json.loads((_FOLDER / "manifest.json").read_text("utf-8"))
    return {name: entry["body"] for name, entry in manifest["files"].items()}


def check_body(path: Path, expected: str) -> None:
    """Raise AlteredKernel unless the text below the body mark of ``path`` has the sha256
    ``expected``."""
    text = path.read_text("utf-8")
    _, _, body = text.partition(_BODY_MARK)
    found = hashlib.sha256(body.encode("utf-8")).hexdigest()
    if found != expected or f"body:        sha256 {expected}\n" not in text:
        raise AlteredKernel(
            f"{path}: expected a body with sha256 {expected}, got {found}: the file was edited; "
            "run `python -m derivations` to emit it again"
        )
