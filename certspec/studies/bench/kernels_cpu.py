"""The CPU kernels against torch eager, and against one read of the same rows, interleaved in one
run. Times are milliseconds; a ratio is taken within a round, so that a machine that slows down
slows both of its sides.

The floor of bytes: 64 pairs of float32 rows of 151,936 columns are 77.8 MB, read in 2.3 to 3.3 ms
by two cores (24 to 34 GB/s; an AMD EPYC of 256-bit vectors, 2.45 to 3.2 GHz, two multiply-adds a
cycle and core).

The floor of arithmetic, per pair of logits: in float64 two exponentials of 12 multiply-adds and 2
for the sums, on 4 pairs a vector: 26/4 x .155 ns / 2 cores = .50 ns, 4.9 ms for these rows, 1.9
reads: no float64 pass reaches 1.6. In float32 (``numba/filter_loop.py``) 8 pairs take 31
vector operations: 12 multiply-adds or products on two of four pipes, 11 additions on the others, 8
of integers: 8 cycles, 1.5 ms at 3.2 GHz, .5 reads. Written as x86
instructions, as they once were here, they took 11.6, 2.2 ms:

- A processor that works ahead finds too little that does not wait: the chain of an exponential is
  28 cycles, and 64
  operations may wait at a time. Interleaved by twos or threes, or merged into one loop for both
  models, it is no
  faster; beginning a vector before the one before it is finished gives .7 cycles; with a third
  step, constants no
  longer fit the registers, and loads would take 10 cycles.
- The polynomial of degree 3 with a table of four costs two multiply-adds less than degree 5 (13.7
  cycles) and is off by
  5 units where that is by 2; degree 2 with a table of eight would be 57 off (.7 cycles less).
- The end of a group of 128 columns costs .7 cycles for 8 pairs.
- As LLVM compiles the portable form, it is 14.1 cycles: what does not fit the registers is read
  again and copied.

A row takes 75 to 95 us in that loop (69 if its logits are near), 5 to 9 for 32 ranks of the target,
3 to 4 for 10 of the draft, 3 to 4 for the rules. What is left of a call are .4 ms of Python, slow
because a call leaves nothing of it in the caches, and .1 to .2 until the second thread has come and
both have ended. Without gain: fetching 128 to 4,096 columns ahead, past the near caches or into the
second one; large pages.

The host matters as much: a row takes 90 us at one time and 150 some minutes later, with the same
instructions. Of six runs in a row at real-time priority (``chrt -f 1``) the median ratios to the
read were 1.48, 1.56, 1.58, 1.64, 1.71 and 1.80, of four an hour before 1.38, 1.45, 1.49 and 1.51;
on 2 of 16 cores of an Intel Xeon, which read in 2.3 ms, 1.9 to 2.0. ``results/kernels-cpu.json`` is
the fourth of those six by size: read 2.8 ms, filter 4.9 (1.64 reads; 33 times as fast as eager with
ranks), float64 19.1 (6.5 reads, 8.4 times). With less Python in a call, since then, four of four
runs: 1.50, 1.51, 1.52 and 1.53 (read 2.7 to 3.1 ms, filter 4.3 to 4.9)."""

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

import certspec
from certspec.certificates.certify import certify
from certspec.kernels.numba.rows import num_threads
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
    result: dict[str, Any] = {
        "rows": num_rows,
        "columns": columns,
        "dtype": str(dtype).removeprefix("torch."),
    }
    result["input_bytes"] = target.nbytes + draft.nbytes
    result.update({f"{name}_ms": spread(values) for name, values in times.items()})
    result["ours_first_ms"] = spread(first["ours"])
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
        "certspec": certspec.__version__,
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
