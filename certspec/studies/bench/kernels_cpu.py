"""The CPU kernels against torch eager, and against one read of the same rows, in turns in one run.
Times are milliseconds; a ratio is taken within a turn, so that a machine that slows down slows both
of its sides. Results and what takes the time: README.md."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch

from certspec.certificates.certify import certify
from certspec.kernels.numba.rows import num_threads
from certspec.scoring.provenance import certspec_version
from certspec.studies.bench.eager import eager_statistics, eager_with_top, peaked_rows
from certspec.studies.bench.spreads import ratio_spread, spread

__all__ = ["measure_cpu", "provenance"]

_IN_A_ROW = 5  # calls of a way, after a first one
_REST = 0.02  # seconds before them, in which the threads of the way before fall asleep


def measure_cpu(
    num_rows: int, columns: int, *, repeats: int = 15, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Times of ``num_rows`` rows under the default rules, each the median of calls in a row, after
    a rest and one call that is not counted (``ours_first``): torch's threads spin for 7 ms after an
    operation, which would be charged to the next way, if that has threads of its own. ``ours``: the
    float32 filter with float64 for what it leaves open (``precision="float32"``), ``ours_float64``:
    float64 alone, certify's default. ``read``: the sum of both arrays with all threads of torch;
    ``read_one_thread``: numpy's sum."""
    target, draft = peaked_rows(num_rows, columns, dtype=dtype, device="cpu")
    numbers = [
        side.numpy() if dtype == torch.float32 else side.view(torch.int16).numpy()
        for side in (target, draft)
    ]
    ways: dict[str, Callable[[], Any]] = {
        "read": lambda: (target.sum(), draft.sum()),
        "read_one_thread": lambda: [side.sum(dtype=side.dtype) for side in numbers],
        "ours": lambda: certify(target, draft, precision="float32"),
        "ours_float64": lambda: certify(target, draft),
        "eager_with_top": lambda: eager_with_top(target, draft),
        "eager": lambda: eager_statistics(target, draft),
    }
    first, times = ({name: list[float]() for name in ways} for _ in range(2))
    with torch.no_grad():
        for way in ways.values():
            way()
        for _ in range(repeats):
            for name, way in ways.items():
                time.sleep(_REST)
                calls = []
                for _ in range(1 + _IN_A_ROW):
                    start = time.perf_counter()
                    way()
                    calls.append((time.perf_counter() - start) * 1e3)
                first[name].append(calls[0])
                times[name].append(statistics.median(calls[1:]))
    scored, rigorous = certify(target, draft, precision="float32"), certify(target, draft)
    ratios = {
        f"{one}_over_{other}": ratio_spread(times[one], times[other])
        for name in ("ours", "ours_float64")
        for one, other in (
            (name, "read"),
            (name, "read_one_thread"),
            ("eager_with_top", name),
            ("eager", name),
        )
    }
    return {
        "rows": num_rows,
        "columns": columns,
        "dtype": str(dtype).removeprefix("torch."),
        "input_bytes": target.nbytes + draft.nbytes,
        **{f"{name}_ms": spread(values) for name, values in times.items()},
        "ours_first_ms": spread(first["ours"]),
        **ratios,
        "float64_over_ours": ratio_spread(times["ours_float64"], times["ours"]),
        "paths": scored.path_counts,
        "paths_float64": rigorous.path_counts,
        "undecided": int(np.asarray(scored.undecided).sum()),
        "largest_kl_excess": float((scored.kl_upper - scored.kl).max()),
    }


def provenance() -> dict[str, Any]:
    """What the figures depend on; a load average above the threads in use says that something else
    was running, which takes processors from a run without real-time priority."""
    return {
        "device": "cpu",
        "processor": _processor(),
        "threads": num_threads(),
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "real_time_priority": hasattr(os, "sched_getscheduler")
        and os.sched_getscheduler(0) == os.SCHED_FIFO,
        "torch": torch.__version__,
        "numba": numba.__version__,
        "python": platform.python_version(),
        "certspec": certspec_version(),
        "inputs": "certspec.studies.bench.eager.peaked_rows",
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(
                (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
                "unknown",
            )
    except OSError:
        return platform.processor() or "unknown"
