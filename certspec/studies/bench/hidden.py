"""``python -m certspec.studies.bench.hidden``: certify_hidden on a long sequence, its time and the
memory it takes beside its inputs. Hidden states and heads are random, in the widths of Qwen3-4B and
0.6B. The last line is JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from certspec.certificates.certify import certify
from certspec.certificates.hidden import certify_hidden
from certspec.models.devices import chosen_device
from certspec.rules import default_rules
from certspec.studies.bench.kernels import provenance
from certspec.studies.options import exit_with, parse_options
from certspec.studies.waiting import counted

__all__ = ["measure_hidden"]

WIDTHS = (2560, 1024)


def measure_hidden(
    rows: int, vocab: int, chunk_bytes: int, *, device: torch.device, backend: str | None
) -> dict[str, Any]:
    """Score ``rows`` bfloat16 rows twice, the first time with what compiles; the first rows are
    scored again from whole logits and must not differ."""
    generator = torch.Generator(device).manual_seed(0)
    sides = []
    for width in WIDTHS:
        for shape, scale in (((rows, width), 1.0), ((vocab, width), 4.0 / width**0.5)):
            sides.append(
                scale * torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
            )
    cuda = device.type == "cuda"
    target, target_head, draft, draft_head = sides
    rules, inputs = default_rules(), 0
    taken = []
    # kernels are compiled for as many rows as a chunk has, and as the last one has
    for _ in counted(range(2), "round"):
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            inputs = torch.cuda.memory_allocated()
        start = time.perf_counter()
        ours = certify_hidden(
            target, target_head, draft, draft_head, rules, chunk_bytes=chunk_bytes, backend=backend
        )
        false = int((ours.certified & ~ours.accepted).sum())  # waits for the device
        taken.append(round(time.perf_counter() - start, 3))
    peak = torch.cuda.max_memory_allocated() - inputs if cuda else None
    first = min(rows, chunk_bytes // (4 * vocab))
    whole = certify(
        target[:first] @ target_head.T, draft[:first] @ draft_head.T, rules, backend=backend
    )
    same = bool((ours.certified[:, :first] == whole.certified).all()) and bool(
        torch.equal(ours.kl[:first], whole.kl)
    )
    return {
        "rows": rows,
        "vocab": vocab,
        "widths": WIDTHS,
        "dtype": "bfloat16",
        "backend": backend or "default",
        "chunk_bytes": chunk_bytes,
        "seconds": taken[1],
        "first_seconds": taken[0],
        "logits_bytes": 4 * rows * vocab,
        "peak_beside_inputs_bytes": peak,
        "first_rows": first,
        "first_rows_equal_certify": same,
        "false_certificates": false,
        **ours.path_counts,
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(
        "certspec.studies.bench.hidden",
        __doc__,
        {
            "--rows": {"type": int, "default": 32_768},
            "--vocab": {"type": int, "default": 151_936},
            "--chunk-bytes": {"type": int, "default": 256 << 20},
            "--device": {"default": "cuda"},
            "--backend": {"default": None},
        },
        arguments,
    )
    device = chosen_device(options.device)
    result = measure_hidden(
        options.rows, options.vocab, options.chunk_bytes, device=device, backend=options.backend
    )
    print(f"{result['rows']:,} rows in {result['seconds']} s")
    print(json.dumps({**(provenance() if device.type == "cuda" else {}), **result}))
    return 0


if __name__ == "__main__":
    exit_with(main, "bench.hidden")
