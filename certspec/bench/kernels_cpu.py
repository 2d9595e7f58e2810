"""The CPU kernels against torch eager, and against one read of the same rows, interleaved in one run. Times are
milliseconds; a ratio is taken within a round, so that a machine that slows down slows both of its sides.

The floor in float64 arithmetic: a pair of logits costs two exponentials of 12 multiply-adds each (1 to round the
exponent, 1 for the remainder, 1 for its square, 9 for the polynomial) and 2 for the sums, 26 instructions for the 4
pairs of a 256-bit vector, and a core of AVX2 issues 2 a cycle: 3.25 cycles a pair. 64 rows of 151,936 columns on 2
cores at 2.95 GHz then take 5.4 ms at the least, where one read of the rows takes 3.9 to 4.1 ms: no float64 pass comes
below 1.3 times the read on such a machine, and one that keeps three quarters of the peak is at 1.8."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch

import certspec
from certspec.bench.eager import eager_statistics, eager_with_top
from certspec.bench.spreads import ratio_spread, spread
from certspec.bench.synthetic import peaked_rows
from certspec.certificates import certify
from certspec.kernels.numba_rows import num_threads

__all__ = ["measure_cpu", "provenance"]


def measure_cpu(
    num_rows: int, columns: int, *, repeats: int = 15, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Times of ``num_rows`` rows under the default rules. ``ours``: the float32 filter with float64 for what it leaves
    open (``precision="float32"``), ``ours_float64``: float64 alone, certify's default. ``read``: the sum of both arrays
    with all threads of torch; ``read_one_thread``: numpy's sum."""
    target, draft = peaked_rows(num_rows, columns, dtype=dtype, device="cpu")
    numbers = [side.numpy() if dtype == torch.float32 else side.view(torch.int16).numpy() for side in (target, draft)]
    ways: dict[str, Callable[[], Any]] = {
        "read": lambda: (target.sum(), draft.sum()),
        "read_one_thread": lambda: [side.sum(dtype=side.dtype) for side in numbers],
        "ours": lambda: certify(target, draft, precision="float32"),
        "ours_float64": lambda: certify(target, draft),
        "eager_with_top": lambda: eager_with_top(target, draft),
        "eager": lambda: eager_statistics(target, draft),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for way in ways.values():
            way()
        for _ in range(repeats):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                times[name].append((time.perf_counter() - start) * 1e3)
    scored, rigorous = certify(target, draft, precision="float32"), certify(target, draft)
    result: dict[str, Any] = {"rows": num_rows, "columns": columns, "dtype": str(dtype).removeprefix("torch.")}
    result["input_bytes"] = target.nbytes + draft.nbytes
    result.update({f"{name}_ms": spread(values) for name, values in times.items()})
    for name in ("ours", "ours_float64"):
        result[f"{name}_over_read"] = ratio_spread(times[name], times["read"])
        result[f"{name}_over_read_one_thread"] = ratio_spread(times[name], times["read_one_thread"])
        result[f"eager_with_top_over_{name}"] = ratio_spread(times["eager_with_top"], times[name])
        result[f"eager_over_{name}"] = ratio_spread(times["eager"], times[name])
    result["float64_over_ours"] = ratio_spread(times["ours_float64"], times["ours"])
    result["paths"], result["paths_float64"] = scored.path_counts, rigorous.path_counts
    result["undecided"] = int(np.asarray(scored.undecided).sum())
    result["largest_kl_excess"] = float((scored.kl_upper - scored.kl).max())
    return result


def provenance() -> dict[str, Any]:
    """What the figures depend on; a load average above the threads in use says that something else was running."""
    return {
        "device": "cpu", "processor": _processor(), "threads": num_threads(), "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None, "torch": torch.__version__,
        "numba": numba.__version__, "python": platform.python_version(), "certspec": certspec.__version__,
        "inputs": "certspec.bench.synthetic.peaked_rows",
    }  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
