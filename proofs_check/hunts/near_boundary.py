"""``python -m proofs_check.hunts.near_boundary``: hunts for false certificates among rows built to
sit a hair on either side of a rule's boundary, in every dtype and backend. Resumable; the last line
is JSON, the exit status 1 where one is found.

Every (row, rule) pair is judged by a second float64 path: what one backend certifies, another one
must accept, with both error bounds in the right order. Of every batch some pairs are judged again
from the stored logits in 50-digit arithmetic: the decision, KL below its bound, the certificate
above its bound.

``--device cuda`` hunts in the Triton backend on a GPU, in narrow rows and in wide ones whose head
lies near the boundary (several segments, programs and blocks a row). A batch of rows follows from
its cell and number alone, and ``--processes`` make batches side by side that are counted in order:
the counts depend neither on how many processes there are nor on a kill."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import mpmath
import numpy as np

from certspec.certificates.certify import Certificates, certify
from certspec.kernels.row_scores import FAST
from certspec.rules import Absolute, Additive, Gated, Multiplicative, Rule, default_rules
from proofs_check.hunts.rows import BAND, NEAR_FAMILIES, near_rows
from proofs_check.hunts.soundness import score_alone, versions_used

__all__ = ["CELLS", "TRITON_CELLS", "Cell", "Plan", "hunt", "judge_exactly"]

mpf = mpmath.mpf
DIGITS = 50
PAIRS_OF_A_ROW = 3  # about so many of its rules share the certificate that a row sits beside
BATCH_ROWS = 1 << 12
WIDE_VALUES = 1 << 17  # logits of a side in a batch of wide rows; BATCH_ROWS rows of 32
DEVICE_VALUES = 1 << 24  # the same for a GPU
DEVICE_ROWS = 1 << 14  # at most, in a batch for a GPU
EXACT_VALUES = (
    1 << 10
)  # logits of a row that 50-digit arithmetic sums in any batch; of wider rows in few batches
WIDEST_INTERPRETED = 40_000  # columns of a row for Triton's interpreter
DTYPES = ("float64", "float32", "bfloat16", "float16")


class Cell(NamedTuple):
    """What is hunted in: a backend at a precision, a dtype, the share of all pairs, and the columns
    of a row where a tail is added to its head (0: none)."""

    backend: str
    precision: str | None
    dtype: str
    share: float
    width: int = 0

    @property
    def name(self) -> str:
        filtered = self.precision and f"filter {self.precision},"
        width = f"of {self.width} columns" if self.width else ""
        return " ".join(part for part in (self.backend, filtered, self.dtype, width) if part)


# Triton's interpreter runs a row in about a second: it gets a handful of rows, for the path and not
# for the number.
CELLS: tuple[Cell, ...] = (
    *(Cell("numba", None, dtype, 0.1) for dtype in DTYPES),
    *(Cell("numba", "float32", dtype, 0.15) for dtype in DTYPES[1:]),
    *(Cell("torch", None, dtype, 0.0375) for dtype in DTYPES),
)
# In rows of 32 columns all are among the few that the Triton kernels work in float64; from 512 on
# the others are summed in float32. Of 6,000 columns a row has two streaming programs, of 40,000
# three to five and several blocks of segments, of 100,000 the longer segments that a fast card's
# plan has. float64 logits are the torch backend's, whole rows of them.
WIDE = ((0, 0.1), (512, 0.889), (6000, 0.01), (40_000, 0.0005), (100_000, 0.0005))
TRITON_CELLS: tuple[Cell, ...] = tuple(
    Cell("triton", None, dtype, share / 3, width) for width, share in WIDE for dtype in DTYPES[1:]
)
COUNTS = (
    "pairs",
    "beside",
    "rows",
    "certified",
    "accepted",
    "false_certificates",
    "false_bounds",
    "undecided",
    "judged_exactly",
    "false_by_50_digits",
    "fast_rows",
    "rigorous_rows",
    "near_fast",
)
DECADES = tuple(range(-12, 0))  # |KL / C - 1| of a pair, by its decade
HUNTED_RULES: tuple[Rule, ...] = (
    *default_rules(),
    Gated(top_m=10, additive=0.6),
    Absolute(0.2),
    Additive(0.01),
    Multiplicative(0.9),
)
Progress = Callable[[str, dict[str, Any], float], None]


@dataclass(frozen=True)
class Plan:
    """Everything that a batch follows from, beside its cell and number: ``pairs`` (row, rule) pairs
    within BAND over all cells, of ``vocab`` tokens, of which ``sample`` a batch are judged by
    50-digit arithmetic. Logits lie on ``device``; ``judge`` is the backend that judges Triton's
    pairs, on the CPU ("numba") or on the device ("torch")."""

    pairs: int
    vocab: int = 32
    seed: int = 0
    sample: int = 2
    rules: tuple[Rule, ...] = HUNTED_RULES
    device: str = "cpu"
    judge: str = "numba"

    def rows(self, cell: Cell) -> int:
        """Rows of a batch."""
        most = BATCH_ROWS
        if self.device != "cpu":
            most = max(1, min(DEVICE_ROWS, DEVICE_VALUES // max(cell.width, self.vocab)))
        elif cell.width:
            most = max(1, WIDE_VALUES // cell.width)
        return max(
            1, min(most, int(cell.share * self.pairs / PAIRS_OF_A_ROW) // len(NEAR_FAMILIES) + 1)
        )


def hunt(
    plan: Plan,
    cells: Sequence[tuple[Any, ...]] = CELLS,
    *,
    state_path: Path | None = None,
    say: Progress | None = None,
    processes: int = 1,
) -> dict[str, Any]:
    """Score the pairs of ``plan`` over the ``cells`` (Cell or its fields), in that many
    ``processes``. With ``state_path`` the counts are kept there after every batch, and a later call
    with the same plan and cells goes on from them, in any number of processes."""
    named = [Cell(*cell) for cell in cells]
    stated = {
        **asdict(plan),
        "rules": [str(rule) for rule in plan.rules],
        "cells": [list(cell) for cell in named],
    }
    state: dict[str, Any] = {"plan": stated, "cells": {}}
    if state_path is not None and state_path.exists():
        kept = json.loads(state_path.read_text("utf-8"))
        if kept["plan"] != stated:
            raise ValueError(
                f"{state_path}: expected a hunt of {stated}, got one of {kept['plan']}; give "
                "another file"
            )
        state = kept
    pool = _pool(processes) if processes > 1 else None
    try:
        if (
            pool is not None
        ):  # every cell's kernels are compiled at once and found in their caches afterwards
            warm = [
                pool.submit(_count_batch, plan, cell, number, 0)
                for number, cell in enumerate(named)
            ]
            for future in warm:
                future.result()
        for number, cell in enumerate(named):
            total = state["cells"].setdefault(cell.name, _no_counts())
            wanted = cell.share * plan.pairs
            if total["pairs"] >= wanted:
                continue
            for counts in _batches(pool, processes, plan, cell, number, total["batches"]):
                _add(total, counts)
                if state_path is not None:
                    unfinished = state_path.with_suffix(".partial")
                    unfinished.write_text(json.dumps(state) + "\n", "utf-8")
                    unfinished.replace(state_path)
                if say is not None:
                    say(cell.name, total, wanted)
                if total["pairs"] >= wanted:
                    break
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return state


def _no_counts() -> dict[str, Any]:
    return {"batches": 0, **dict.fromkeys(COUNTS, 0), "near": [[0, 0] for _ in DECADES]}


def _add(total: dict[str, Any], counts: dict[str, Any]) -> None:
    for name in ("batches", *COUNTS):
        total[name] += counts[name]
    for sides, more in zip(total["near"], counts["near"], strict=True):
        sides[:] = [side + other for side, other in zip(sides, more, strict=True)]


def _batches(
    pool: ProcessPoolExecutor | None,
    processes: int,
    plan: Plan,
    cell: Cell,
    number: int,
    first: int,
) -> Iterator[dict[str, Any]]:
    """Counts of the batches from ``first`` on, in order, without end. Batches under way when the
    caller has enough are dropped uncounted, so that what is counted does not depend on the number
    of processes."""
    if pool is None:
        for batch in count(first):
            yield _count_batch(plan, cell, number, batch)
    else:
        ahead: deque[Future[dict[str, Any]]] = deque()
        try:
            for batch in count(first):
                ahead.append(pool.submit(_count_batch, plan, cell, number, batch))
                if len(ahead) > processes + 2:
                    yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _pool(processes: int) -> ProcessPoolExecutor:
    """Fresh processes: one that was forked from a process with threads or a CUDA context cannot be
    trusted."""
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), score_alone)


def _make_rows(
    generator: np.random.Generator, plan: Plan, cell: Cell, batch: int
) -> tuple[Any, Any]:
    """Target and draft logits of a batch, a family after the other."""
    rows = plan.rows(cell)
    blocks = min(rows, len(NEAR_FAMILIES)) if plan.device != "cpu" else 1
    families = [
        NEAR_FAMILIES[(batch * blocks + block) % len(NEAR_FAMILIES)] for block in range(blocks)
    ]
    columns = cell.width or plan.vocab
    return near_rows(
        generator, plan.rules, families, rows, plan.vocab, columns, cell.dtype, plan.device
    )


def _count_batch(plan: Plan, cell: Cell, number: int, batch: int) -> dict[str, Any]:
    """The counts of one batch; the same ones for the same arguments."""
    generator = np.random.default_rng((plan.seed, number, batch))
    there = _make_rows(generator, plan, cell, batch)
    here = [side.cpu() for side in there]
    rules = list(plan.rules)
    ours = certify(there[0], there[1], rules, backend=cell.backend, precision=cell.precision)
    if cell.backend == "triton":
        judged, rigorous = (there if plan.judge == "torch" else here), plan.judge
    else:
        judged, rigorous = (
            here,
            "torch" if cell.backend == "numba" and cell.precision is None else "numba",
        )
    a, b = _arrays(ours), _arrays(certify(judged[0], judged[1], rules, backend=rigorous))
    counts = {**_no_counts(), "batches": 1, "rows": len(here[0])}
    near = _add_distances(counts["near"], b)
    counts["pairs"] = int(near.sum())
    counts["near_fast"] = int(near[:, a["paths"] == FAST].sum())
    counts["beside"] = a["accepted"].size - counts["pairs"]
    counts["certified"] = int(a["certified"].sum())
    counts["accepted"] = int(b["accepted"].sum())
    counts["undecided"] = int(_numpy(ours.undecided).sum())
    counts["fast_rows"] = ours.path_counts["fast"]
    counts["rigorous_rows"] = ours.path_counts["rigorous"]
    counts["false_certificates"] = int((a["certified"] & ~(a["accepted"] & b["accepted"])).sum())
    # a bound below the truth is below every bound above it, whoever computed that one
    with np.errstate(invalid="ignore"):  # inf - inf, where the value itself is the bound
        kl_lower = b["kl"] - np.where(np.isfinite(b["kl"]), b["kl_upper"] - b["kl"], 0.0)
        slack = np.where(
            np.isfinite(b["certificate"]), b["certificate"] - b["certificate_lower"], 0.0
        )
    counts["false_bounds"] = int(
        (a["kl_upper"] < kl_lower).sum() + (a["certificate_lower"] > b["certificate"] + slack).sum()
    )
    sample = plan.sample if batch % -(-here[0].shape[1] // EXACT_VALUES) == 0 else 0
    chosen = generator.integers(0, len(here[0]), sample)
    for row, rule in zip(chosen, generator.integers(0, len(rules), sample), strict=True):
        exact_target, exact_draft = (side[row].double().numpy() for side in here)
        counts["judged_exactly"] += 1
        counts["false_by_50_digits"] += not judge_exactly(
            rules[rule], int(rule), exact_target, exact_draft, a, row
        )
    return counts


def _add_distances(near: list[list[int]], scored: dict[str, Any]) -> np.ndarray:
    """Counts pairs below and above the certificate by the decade of their distance; (rules, rows)
    which lie within BAND."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = scored["kl"] / scored["certificate"] - 1
        decade = np.floor(np.log10(np.abs(ratio)))
    for place, exponent in enumerate(DECADES):
        here = np.isfinite(ratio) & (decade == exponent)
        near[place][0] += int((here & (ratio < 0)).sum())
        near[place][1] += int((here & (ratio > 0)).sum())
    with np.errstate(invalid="ignore"):
        within: np.ndarray = (np.abs(ratio) >= BAND[0]) & (np.abs(ratio) <= BAND[1])
    return within


def _arrays(scored: Certificates) -> dict[str, np.ndarray]:
    names = ("kl", "kl_upper", "certificate", "certificate_lower", "accepted", "certified", "paths")
    return {name: _numpy(getattr(scored, name)) for name in names}


def _numpy(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def judge_exactly(
    rule: Rule,
    number: int,
    target: np.ndarray,
    draft: np.ndarray,
    scored: dict[str, np.ndarray],
    row: int,
) -> bool:
    """Whether one scored pair holds in 50-digit arithmetic: KL <= kl_upper, certificate_lower <=
    the certificate, and a certified draft is accepted."""
    with mpmath.workdps(DIGITS):
        target_probs, draft_probs = _softmax(target), _softmax(draft)
        terms = [
            mpf("inf") if other == 0 else prob * mpmath.log(prob / other)
            for prob, other in zip(target_probs, draft_probs, strict=True)
            if prob > 0
        ]
        order, drafted = _ranks(target), _ranks(draft)
        if rule.threshold is None:
            accepted = order[0] in drafted[: rule.tree_width]
            certificate = _tree_certificate(
                [target_probs[token] for token in order], rule.tree_width
            )
        else:
            rejected = _rejected(rule, order, target_probs)
            accepted = drafted[0] not in rejected
            certificate = _certificate(
                [target_probs[token] for token in order], [t in rejected for t in order]
            )
        return bool(
            mpmath.fsum(terms) <= mpf(float(scored["kl_upper"][row]))
            and mpf(float(scored["certificate_lower"][number, row])) <= certificate
            and (accepted or not scored["certified"][number, row])
        )


def _softmax(logits: np.ndarray) -> list[Any]:
    highest = mpf(float(logits.max()))
    weights = [mpf(0) if z == -np.inf else mpmath.exp(mpf(float(z)) - highest) for z in logits]
    total = mpmath.fsum(weights)
    return [weight / total for weight in weights]


def _ranks(logits: np.ndarray) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))


def _rejected(rule: Rule, order: list[int], probs: list[Any]) -> set[int]:
    """Tokens below the threshold, from the rule's normal form."""
    threshold = rule.threshold
    if threshold is None:
        raise TypeError(f"expected a single-token rule, got {rule}")
    level = mpf(threshold.cap)
    if threshold.scale or np.isfinite(threshold.offset):
        level = min(level, mpf(threshold.scale) * probs[order[0]] + mpf(threshold.offset))
    if np.isfinite(threshold.entropy_scale):
        entropy = -mpmath.fsum(p * mpmath.log(p + mpf(threshold.smoothing)) for p in probs if p > 0)
        level = min(level, mpf(threshold.entropy_scale) * mpmath.exp(-entropy))
    if threshold.offset == -np.inf:
        level = mpf("-inf")
    gate = threshold.top_m or len(order)
    return {
        token
        for rank, token in enumerate(order)
        if rank >= gate
        or (probs[token] <= level if threshold.strictly_above else probs[token] < level)
    }


def _certificate(probs: list[Any], rejected: list[bool]) -> Any:
    """min KL over drafts in which a rejected token leads (theory A1), from probabilities sorted
    downwards."""
    if not any(rejected):
        return mpf("inf")
    rank = rejected.index(True)
    pool = [probs[rank]]
    for prob in probs[:rank]:
        if prob <= mpmath.fsum(pool) / len(pool):
            break
        pool.append(prob)
    return _pool_cost(pool)


def _tree_certificate(probs: list[Any], width: int) -> Any:
    """min KL over drafts in which tokens 2 to m + 1 all reach the first (theory A3)."""
    if width >= len(probs):
        return mpf("inf")
    pool = [probs[0]]
    for prob in reversed(probs[1 : width + 1]):
        if prob >= mpmath.fsum(pool) / len(pool):
            break
        pool.append(prob)
    return _pool_cost(pool)


def _pool_cost(pool: list[Any]) -> Any:
    level = mpmath.fsum(pool) / len(pool)
    return mpmath.fsum(prob * mpmath.log(prob / level) for prob in pool if prob > 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proofs_check.hunts.near_boundary", description=__doc__
    )
    parser.add_argument(
        "--pairs", type=float, default=1e8, help="(row, rule) pairs within BAND, over all cells"
    )
    parser.add_argument("--vocab", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sample", type=int, default=2, help="pairs of a batch that 50-digit arithmetic judges"
    )
    parser.add_argument(
        "--device", default=None, help="hunt in Triton alone, on cuda, or on cpu in its interpreter"
    )
    parser.add_argument(
        "--judge",
        default="numba",
        choices=("numba", "torch"),
        help="float64 backend for Triton's pairs: on the CPU, or (torch) on the device",
    )
    parser.add_argument("--processes", type=int, default=1, help="that make batches side by side")
    parser.add_argument(
        "--triton-rows", type=int, default=0, help="rows of each 16- and 32-bit dtype for Triton"
    )
    parser.add_argument(
        "--state", type=Path, default=None, help="file that keeps the counts, to go on from"
    )
    options = parser.parse_args(arguments)
    device = options.device or "cpu"
    cells = list(TRITON_CELLS if options.device else CELLS)
    if device == "cpu":  # the plan of a fast card's long rows is no interpreter's
        cells = [cell for cell in cells if cell.width <= WIDEST_INTERPRETED]
    if options.triton_rows:
        share = PAIRS_OF_A_ROW * options.triton_rows / options.pairs
        cells += [Cell("triton", None, dtype, share) for dtype in DTYPES[1:]]
    # Operations on rows this narrow are over before a second thread has started; processes fill
    # other cores.
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    score_alone()
    begun, said = time.monotonic(), [0.0]

    def say(name: str, cell: dict[str, Any], wanted: float) -> None:
        if time.monotonic() - said[0] > 5 or cell["pairs"] >= wanted:
            said[0] = time.monotonic()
            print(
                f"{said[0] - begun:7.0f} s  {name:<32}{cell['pairs']:>12,} of {int(wanted):,}",
                flush=True,
            )

    plan = Plan(
        int(options.pairs),
        vocab=options.vocab,
        seed=options.seed,
        sample=options.sample,
        device=device,
        judge=options.judge,
    )
    state = hunt(plan, cells, state_path=options.state, say=say, processes=options.processes)
    total = {name: sum(cell[name] for cell in state["cells"].values()) for name in COUNTS}
    wrong = total["false_certificates"] + total["false_bounds"] + total["false_by_50_digits"]
    sides = [
        sum(count[side] for cell in state["cells"].values() for count in cell["near"][:9])
        for side in (0, 1)
    ]
    print(
        f"{total['pairs']:,} pairs near the boundary (below {sides[0]:,}, above {sides[1]:,}) of "
        f"{total['rows']:,} rows, {total['near_fast']:,} of them decided by a fast path, "
        f"{total['beside']:,} beside "
        f"them: {wrong} exceptions"
    )
    facts = {"seconds": round(time.monotonic() - begun, 1), "processes": options.processes}
    print(json.dumps({**state, "total": total, **facts, **_provenance(device, cells)}))
    return int(wrong > 0)


def _provenance(device: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """The machine and the versions that computed."""
    used = versions_used(device) | {"numpy": np.__version__}
    for library in ("numba", "triton"):
        if library in sys.modules or any(cell.backend == library for cell in cells):
            used[library] = metadata.version(library)
    return {
        "device": device,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **used,
    }


if __name__ == "__main__":
    sys.exit(main())
