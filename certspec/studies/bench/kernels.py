"""The kernels on a GPU against torch eager, torch.compile and Liger-Kernel (where installed) on the
same rows in one run: time, bytes moved, and the share of the copy bandwidth measured in that run.
That bandwidth is the floor: 1,024 pairs of rows of 151,936 bfloat16 logits are 622 MB, and a card
whose copies move 3.0 TB/s cannot read them in less than 207 us. Results and what takes the time:
README.md."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from certspec.kernels.rule_table import rule_table
from certspec.models.devices import require_triton
from certspec.rules import default_rules
from certspec.scoring.provenance import certspec_version
from certspec.studies.bench.eager import eager_statistics, eager_with_top, peaked_rows

__all__ = ["copy_bandwidth", "device_time", "graph_times", "measure", "provenance", "stream_times"]

WARM_SECONDS = 0.1  # before anything is timed
# in one graph at the least: launching a graph takes the host some 30 us, which few calls can't hide
GRAPH_CALLS = 32
INPUT_BYTES = 160 << 20  # of different inputs in rotation: more than the caches hold


def stream_times(calls: Sequence[Callable[[], Any]], repeats: int = 7) -> list[float]:
    """Microseconds a call, one figure a repeat, launched as any program launches them."""
    _warm(lambda: [call() for call in calls])
    return [device_time(lambda: [call() for call in calls]) / len(calls) for _ in range(repeats)]


def graph_times(calls: Sequence[Callable[[], Any]], repeats: int = 7) -> list[float]:
    """The same for calls captured in turn, as often as makes GRAPH_CALLS of them, in one CUDA
    graph."""
    calls = [*calls] * -(-GRAPH_CALLS // len(calls))
    torch.cuda.synchronize()  # the other stream does not wait for what is still being drawn
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    _warm(graph.replay)
    return [device_time(graph.replay) / len(calls) for _ in range(repeats)]


def _warm(work: Callable[[], Any]) -> None:
    """Keep the card busy for a while: one that has idled, as it does while something compiles, is
    slower at first."""
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_SECONDS:
        work()
        torch.cuda.synchronize()


def device_time(work: Callable[[], Any]) -> float:
    """Microseconds that the device takes for what ``work`` launches."""
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
    return (
        2 * source.nbytes / statistics.median(stream_times([lambda: sink.copy_(source)] * 3)) * 1e6
    )


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
    """Times of ``num_rows`` bfloat16 rows under the default rules; ours in a CUDA graph, inputs in
    rotation, and without the kernel that only rows left open ask for: ``undecided_rows`` of
    ``scored_rows`` do."""
    table = rule_table(tuple(default_rules()))
    parameters = torch.from_numpy(table.parameters.copy()).cuda()
    total = 2 * num_rows * columns * 2
    torch.cuda.empty_cache()  # new memory: what was cut up by other sizes before lies scattered
    pairs = [
        peaked_rows(num_rows, columns, dtype=torch.bfloat16, device="cuda", seed=seed)
        for seed in range(max(2, -(-INPUT_BYTES // total)))
    ]
    from certspec.kernels.triton import rows as triton_rows

    device = torch.device("cuda", torch.cuda.current_device())
    plan = plan or triton_rows.plan_for(num_rows, columns, 2, table.num_top, device)
    out = triton_rows.allocate(num_rows, columns, len(table.rules), table.num_top, plan, "cuda")

    def ours(pair):
        return triton_rows.launch_fast(
            pair[0], pair[1], parameters, columns, table.num_top, plan, out
        )

    floor = total / bandwidth * 1e6
    result: dict[str, Any] = {
        "rows": num_rows,
        "columns": columns,
        "dtype": "bfloat16",
        "input_bytes": total,
        "plan": {name: getattr(plan, name) for name in plan.__dataclass_fields__},
        "floor_us": floor,
        "ours": _summary(graph_times([partial(ours, pair) for pair in pairs]), floor),
        "undecided_rows": sum(int((ours(pair).path != 0).sum()) for pair in pairs),
        "scored_rows": num_rows * len(pairs),
    }
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
        result[name] = _summary(times, floor)
        result[name]["ours_is_faster_by"] = result[name]["median_us"] / result["ours"]["median_us"]
    result["liger_installed"] = liger is not None
    return result


def _summary(times: list[float], floor: float) -> dict[str, float]:
    median = statistics.median(times)
    return {
        "median_us": median,
        "lowest_us": min(times),
        "highest_us": max(times),
        "share_of_copy": floor / median,
    }


def provenance() -> dict[str, str]:
    """What the figures depend on."""
    require_triton("cuda")
    import triton

    return {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "certspec": certspec_version(),
        "inputs": "certspec.studies.bench.eager.peaked_rows",
    }
