"""The pair in the two dtypes that the study needs, read from its files once, and where figures come
from."""

from __future__ import annotations

import copy
import datetime
import json
import os
import subprocess
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from certspec.models.pairs import Pair, load_pair
from certspec.runs.folder import write_atomically
from certspec.scoring.provenance import file_sha256, session_facts

__all__ = ["Models", "in_bfloat16", "write_result"]


@dataclass
class Models:
    """``judged``: float32, in which scores and answers are judged (bfloat16 logits tie at the top
    at about one step in fifty, which is no property of a model). ``fast``: as people run it,
    bfloat16 on a GPU and the same as ``judged`` on a CPU."""

    target: Path | None
    draft: Path | None
    device: str
    commit: str | None = None
    began: float = field(default_factory=time.perf_counter)

    @cached_property
    def judged(self) -> Pair:
        return load_pair(self.target, self.draft, device=self.device, dtype="float32")

    @cached_property
    def fast(self) -> Pair:
        return self.judged if self.judged.device.type == "cpu" else in_bfloat16(self.judged)

    @cached_property
    def _files(self) -> dict[str, str]:
        """SHA-256 of the models' files by name."""
        files: list[Path] = []
        for source in filter(None, (self.target, self.draft)):
            files += [source] if source.is_file() else sorted(source.glob("*.safetensors"))
        return {path.name: file_sha256(path) for path in files}

    def provenance(self, pair: Pair, prompts: Path | None = None) -> dict[str, Any]:
        """What a result was measured with: files, commit, versions, device, dtype, date."""
        return {
            "pair": pair.name,
            "files_sha256": self._files,
            "prompts_sha256": None if prompts is None else file_sha256(prompts),
            "dtype": str(pair.dtype).removeprefix("torch."),
            "notes": list(pair.notes),
            "commit": self.commit or _commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "seconds_since_start": round(time.perf_counter() - self.began, 1),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 2),
            **session_facts(pair.device),
        }


def in_bfloat16(pair: Pair) -> Pair:
    """Copies of both models whose weights are rounded to bfloat16; what is no weight (the
    frequencies of rotations) keeps its dtype."""
    import torch

    copies = {}
    for role in ("target", "draft"):
        copies[role] = copy.deepcopy(getattr(pair, role))
        for parameter in copies[role].parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return replace(pair, **copies)


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_result(path: Path, values: dict[str, Any]) -> None:
    """Write ``values`` as JSON, whole or not at all, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=1) + "\n")
    print(path, flush=True)
