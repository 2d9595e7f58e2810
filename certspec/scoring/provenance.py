"""Says what a run was made with: hashes of weights, tokenizer and kernels, versions and device."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from certspec.models.gguf.model import GgufModel

__all__ = [
    "certspec_version",
    "file_sha256",
    "kernel_hashes",
    "kernels_sha256",
    "pair_facts",
    "session_facts",
    "spread_of",
    "tokenizer_sha256",
    "weights_sha256",
]

_LIBRARIES = ("torch", "transformers", "tokenizers", "numba", "numpy", "pyarrow")


def certspec_version() -> str:
    """The installed version, "unknown" in a checkout that was not installed."""
    try:
        return metadata.version("certspec")
    except metadata.PackageNotFoundError:
        return "unknown"


def weights_sha256(model: Any) -> str:
    """SHA-256 over a model's parameters as loaded: names, dtypes, shapes and bytes (tied ones
    once); of a GGUF file that is run as it is, over the file."""
    import torch

    if isinstance(model, GgufModel):
        return file_sha256(model.file.path)
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        if hasattr(parameter, "full_tensor"):  # spread over processes, which all come by here
            parameter = parameter.full_tensor()
        flat = parameter.detach().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(flat.cpu().numpy()))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 over the tokenizer's whole definition and its chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    definition = (
        backend.to_str()
        if backend is not None
        else json.dumps(sorted(tokenizer.get_vocab().items()))
    )
    template = getattr(tokenizer, "chat_template", None)
    return hashlib.sha256((definition + "\n" + json.dumps(template)).encode()).hexdigest()


def kernel_hashes() -> dict[str, Any]:
    """The manifest of the generated kernels: what a number is walked back by, from a row to a
    derivation."""
    manifest = resources.files("certspec.kernels") / "generated" / "manifest.json"
    return json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}


def kernels_sha256() -> str:
    """One hash over ``kernel_hashes``."""
    return hashlib.sha256(json.dumps(kernel_hashes(), sort_keys=True).encode()).hexdigest()


def session_facts(device: Any) -> dict[str, Any]:
    """Versions and device of this process; they may differ from one session of a run to the
    next."""
    import torch

    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {library: metadata.version(library) for library in _LIBRARIES}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "device_name": name,
        "threads": torch.get_num_threads(),
    }


def pair_facts(pair: Any, engine: str) -> dict[str, Any]:
    """What decides a pair's numbers, as JSON values; what was made with one pair is not gone on
    with by another."""
    return {
        "certspec": certspec_version(),
        "target": _model_facts(pair.target),
        "draft": _model_facts(pair.draft) if pair.draft is not None else None,
        "tokenizer_sha256": tokenizer_sha256(pair.tokenizer),
        "num_tokens": int(pair.num_tokens),
        "engine": engine,  # another one may round a logit's last bits otherwise
        "device": pair.device.type,  # ranks and sessions may each take another card of a kind
        "kernels_sha256": kernels_sha256(),
        **spread_of(pair.target),
    }


def spread_of(model: Any) -> dict[str, Any]:
    """How a model is spread over devices or processes, which may change its last bits; nothing for
    a whole one."""
    devices = getattr(model, "hf_device_map", None)
    if devices is not None and len(set(devices.values())) > 1:
        return {"device_map": {name: str(device) for name, device in devices.items()}}
    tensors = [parameter for parameter in model.parameters() if hasattr(parameter, "full_tensor")]
    return {"tensor_parallel": int(tensors[0].device_mesh.size())} if tensors else {}


def _model_facts(model: Any) -> dict[str, Any]:
    return {
        "id": str(getattr(model, "name_or_path", "") or type(model).__name__),
        "dtype": str(model.dtype).removeprefix("torch."),
        "num_parameters": int(model.num_parameters()),
        "weights_sha256": weights_sha256(model),
    }
