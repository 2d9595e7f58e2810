"""The CPU kernels against torch eager, and against one read of the same rows, interleaved in one run. Times are
milliseconds; a ratio is taken within a round, so that a machine that slows down slows both of its sides.

The floor of bytes: 64 pairs of float32 rows of 151,936 columns are 77.8 MB, read in 2.3 to 3 ms by two cores (26 to 34
GB/s; an AMD EPYC of 256-bit vectors, 3.2 GHz, two multiply-adds a cycle and core, .155 ns each, on both cores).

The floor of arithmetic, per pair of logits: in float64 two exponentials of 12 multiply-adds and 2 for the sums, on 4
pairs a vector: 26/4 x .155 ns / 2 cores = .50 ns, 4.9 ms for these rows, 1.9 reads: no float64 pass reaches 1.6. In
float32 (``vector_filter``) two of 7 and 2 for the sums, on 8 pairs: .16 ns, 1.5 ms: below the read, so 1.6 reads is not
out of reach in principle. Its 32 vector instructions for 8 pairs take 10 cycles where 3.3 of them start in a cycle,
.39 ns a pair and core; with loads, copies of what a multiply-add overwrites, and the end of a group, of which there are
24 more, it takes .57 (2.8 ms on two cores), about 4 instructions a cycle.

What held the loop back before (1.33 ns in cache as from memory, so neither bandwidth nor latency of memory; fetching
ahead changes nothing measurable): 8 vectors of both models side by side do not fit 16 registers, and a third of its
instructions moved numbers to and from the stack. Two passes over a group of columns, one for each model, 4 vectors
abreast, need few such (.67); a multiply-add that applies the scale, in place of two additions, and groups of 128
columns, whose ends cost 24 cycles, give the rest. A new maximum costs one group, not a chunk of 512 columns. The top
ranks were 28 us a row, mostly waiting for blocks that no near cache holds by then: they are fetched before they are
read (16 us).

Of 64 rows one thread spends 8.5 ms in that loop, 1.5 on ranks and .9 on rules where the processor runs at its nominal
2.45 GHz; 7.3 in all where it runs at 3.2. So on two cores the loop alone is 1.4 reads in the one state and 1.1 in the
other, for a read waits for memory and does not care. Without gain: fetching 512 to 16,384 columns ahead, 2 vectors
abreast or the 4 in twos (LLVM interleaves them again), 12 ranks first and 32 only where they leave a rule open.

Two threads take rows one by one, the caller among them. Handed out in eight pieces, they took 8 to 12 % longer (40
interleaved calls: 6.8 ms against 6.2), as one waited for the other at the end; each more piece costs 25 us. Of 256 rows
64 take 4.8 ms, 1.5 reads: what is left of the difference is the start.

``results/kernels-cpu.json`` was measured before that, at real-time priority (``chrt -f 1``) on a quiet machine: read
3.0 ms (2.7 to 3.6), filter 6.2 (2.12 reads, 1.69 at best; 22.2 times as fast as eager with ranks), float64 17.1 (5.7,
8.4 times); an earlier run gave read 3.7, filter 7.3 (1.94 reads). Without that priority the read is slowed down by
other work as well, and the ratios to it look better than they are."""

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
from certspec.bench.eager import eager_statistics, eager_with_top
from certspec.bench.spreads import ratio_spread, spread
from certspec.bench.synthetic import peaked_rows
from certspec.certificates import certify
from certspec.kernels.numba_rows import num_threads

__all__ = ["measure_cpu", "provenance"]

_IN_A_ROW = 5  # calls of a way, after a first one
_REST = 0.02  # seconds before them, in which the threads of the way before fall asleep


def measure_cpu(
    num_rows: int, columns: int, *, repeats: int = 15, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Times of ``num_rows`` rows under the default rules, each the median of calls in a row, after a rest and one call
    that is not counted (``ours_first``): torch's threads spin for 7 ms after an operation, which would be charged to
    the next way, if that has threads of its own. ``ours``: the float32 filter with float64 for what it leaves
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
    result: dict[str, Any] = {"rows": num_rows, "columns": columns, "dtype": str(dtype).removeprefix("torch.")}
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
    """What the figures depend on; a load average above the threads in use says that something else was running, which
    takes processors from a run without real-time priority."""
    return {
        "device": "cpu", "processor": _processor(), "threads": num_threads(), "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "real_time_priority": hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == os.SCHED_FIFO,
        "torch": torch.__version__,
        "numba": numba.__version__, "python": platform.python_version(), "certspec": certspec.__version__,
        "inputs": "certspec.bench.synthetic.peaked_rows",
    }  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
