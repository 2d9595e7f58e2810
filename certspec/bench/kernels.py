"""The kernels against torch eager, torch.compile and Liger-Kernel (where installed) on the same rows in one run: time,
bytes moved, share of the copy bandwidth measured in that run.

``results/kernels-h100.json`` is what ``certspec bench kernels`` wrote at revision f4325ea (H100; a copy moves 2,955
GB/s). Rows of 151,936 bfloat16 columns, microseconds; the floor is the inputs' bytes at the speed of that copy:

    rows    floor    ours            eager + top-9      eager              torch.compile
    8         1.6     25.1             463 (18.4x)        161 (6.4x)         297 (11.8x)
    64       13.2     36.9             694 (18.8x)        420 (11.4x)        281 (7.6x)
    1,024   210.6    332.5 (63.3 %)  7,833 (23.6x)      5,388 (16.2x)        675 (2.03x)

Short of 20, 35 and 263 (80 %). Eight times as fast as that torch.compile (no ranks, no certificates) at 1,024 rows
would be 84 us, below the floor: no kernel that reads the logits can be. Thirty times eager with ranks would be 261 us,
81 %.

Each kernel alone in a CUDA graph on an H100 (copy 2,995 GB/s), with the faster of the shapes tried:

    rows    streaming    ranking    judging    overlapped in 2, 4, 8 blocks (whole: 332)
    8            6.4       13.8        5.9
    64          16.2       15.2        6.6
    1,024      253.2       82.9       15.9     340, 359, 453

So at 8 and 64 rows bytes are not what takes the time: ranking a row is a serial chain of about 22,000 clocks in one
program (4,400 to find the segments to read again, 2,300 to add the others, 7,700 to read, 4,450 to sort what was kept,
3,200 of scalars), of some 4,600 instructions with 82 block-wide barriers (as Triton 3.9 compiles it; the card ran 3.6),
and judging another of 8,900, 6,100 of them in the pools. Two kernel boundaries come on top. At 1,024 rows streaming
alone reaches 82 % of a copy's speed, at 16.7 instructions and 2 exponentials a pair of logits (counted, not measured:
about 88 us of issue slots and as much of the exponential unit at 1.75 GHz), so 80 % asks for combining that is all but
hidden; in blocks beside the stream it costs more than it hides.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton

import certspec
from certspec.bench.eager import eager_statistics, eager_with_top
from certspec.bench.synthetic import peaked_rows
from certspec.errors import InvalidArgument
from certspec.kernels import triton_rows
from certspec.kernels.rule_table import rule_table
from certspec.rules import default_rules

__all__ = ["copy_bandwidth", "graph_times", "measure", "provenance", "stream_times"]

INPUT_BYTES = 160 << 20  # of different inputs in rotation: more than the caches hold


def stream_times(calls: Sequence[Callable[[], Any]], repeats: int = 7) -> list[float]:
    """Microseconds a call, one figure a repeat, launched as any program launches them."""
    for call in calls:
        call()
    return [_timed(lambda: [call() for call in calls]) / len(calls) for _ in range(repeats)]


def graph_times(calls: Sequence[Callable[[], Any]], repeats: int = 7) -> list[float]:
    """The same for calls captured in one CUDA graph."""
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return [_timed(graph.replay) / len(calls) for _ in range(repeats)]


def _timed(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def copy_bandwidth() -> float:
    """Bytes read plus bytes written a second by a large device-to-device copy."""
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda").normal_()
    sink = torch.empty_like(source)
    return 2 * source.nbytes / statistics.median(stream_times([lambda: sink.copy_(source)] * 3)) * 1e6


def _liger() -> Callable[..., Any] | None:
    try:
        from liger_kernel.transformers import LigerKLDIVLoss
    except ImportError:
        return None
    loss = LigerKLDIVLoss(reduction="none", log_target=True)
    return lambda target, draft: loss(torch.log_softmax(draft, -1), torch.log_softmax(target, -1))


def measure(
    num_rows: int, columns: int, bandwidth: float, plan: Any = None, *, baselines: bool = True
) -> dict[str, Any]:
    """Times of ``num_rows`` bfloat16 rows under the default rules; ours in a CUDA graph, inputs in rotation."""
    table = rule_table(tuple(default_rules()))
    parameters = torch.from_numpy(table.parameters.copy()).cuda()
    total = 2 * num_rows * columns * 2
    pairs = [
        peaked_rows(num_rows, columns, dtype=torch.bfloat16, device="cuda", seed=seed)
        for seed in range(max(2, -(-INPUT_BYTES // total)))
    ]
    plan = plan or triton_rows.plan_for(num_rows, columns, 2, table.num_top)
    out = triton_rows.allocate(num_rows, columns, len(table.rules), table.num_top, plan, "cuda")

    def ours(pair):
        return triton_rows.launch(pair[0], pair[1], parameters, columns, table.num_top, plan, out)

    result: dict[str, Any] = {"rows": num_rows, "columns": columns, "dtype": "bfloat16", "input_bytes": total}
    result["plan"] = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    result["floor_us"] = total / bandwidth * 1e6
    result["ours"] = _summary(graph_times([partial(ours, pair) for pair in pairs]), result["floor_us"])
    undecided = sum(int((ours(pair).path != 0).sum()) for pair in pairs)
    result["undecided_rows"], result["scored_rows"] = undecided, num_rows * len(pairs)
    if not baselines:
        return result
    others = {"eager_with_top": eager_with_top, "eager": eager_statistics}
    others["compile"] = torch.compile(eager_statistics, dynamic=False)
    liger = _liger()
    if liger is not None:
        others["liger_kl"] = liger
    for name, function in others.items():
        try:
            with torch.no_grad():
                times = stream_times([partial(function, *pair) for pair in pairs[:8]])
        except RuntimeError as error:  # a baseline that can't run here is said to, not left out
            result[name] = {"error": str(error)[:200]}
            continue
        result[name] = _summary(times, result["floor_us"])
        result[name]["ours_is_faster_by"] = result[name]["median_us"] / result["ours"]["median_us"]
    result["liger_installed"] = liger is not None
    return result


def _summary(times: list[float], floor: float) -> dict[str, float]:
    median = statistics.median(times)
    return {"median_us": median, "lowest_us": min(times), "highest_us": max(times), "share_of_copy": floor / median}


def provenance() -> dict[str, str]:
    """What the figures depend on."""
    if not torch.cuda.is_available():
        raise InvalidArgument("bench kernels: expected a CUDA device, got none; the kernels' tests run without one")
    return {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "cuda": str(torch.version.cuda), "python": platform.python_version(), "certspec": certspec.__version__,
        "inputs": "certspec.bench.synthetic.peaked_rows",
    }  # fmt: skip
