"""``python -m certspec.studies.soaks.logits``: writes shards of logits, scores them in one process
and in two that torchrun starts, compares every row, and prints times and peak memory. The last line
is JSON; exit code 1 where rows differ."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from certspec.studies.options import exit_with, parse_options
from certspec.studies.soaks.kills import compare_rows
from certspec.studies.waiting import doing

__all__ = ["main", "write_shards"]

_BASES = 256


def write_shards(
    folder: Path, num_rows: int, num_columns: int, rows_a_shard: int, seed: int = 0
) -> None:
    """Write float16 logits of a target and a draft as .npy shards into ``folder/target`` and
    ``folder/draft``.

    A row is one of 256 random ones, turned by a random number of columns and scaled at random, so
    that margins and divergences differ from row to row."""
    chance = np.random.default_rng(seed)
    bases = chance.standard_normal((_BASES, num_columns), dtype=np.float32)
    noise = chance.standard_normal((_BASES, num_columns), dtype=np.float32)
    for side in ("target", "draft"):
        (folder / side).mkdir(parents=True, exist_ok=True)
    for shard, start in enumerate(range(0, num_rows, rows_a_shard)):
        shape = min(rows_a_shard, num_rows - start), num_columns
        # Plain writes, no mapped files: a child's peak memory, as the system counts it, is never
        # below its parent's.
        header = {"descr": "<f2", "fortran_order": False, "shape": shape}
        with (
            (folder / "target" / f"{shard:05d}.npy").open("wb") as target,
            (folder / "draft" / f"{shard:05d}.npy").open("wb") as draft,
        ):
            for stream in (target, draft):
                np.lib.format.write_array_header_1_0(stream, header)
            for _ in range(shape[0]):
                base, other = chance.integers(0, _BASES, 2)
                turned = np.roll(bases[base], int(chance.integers(num_columns))) * chance.uniform(
                    1.0, 6.0
                )
                target.write(turned.astype("<f2").tobytes())
                draft.write(
                    (turned + chance.choice([0.02, 0.1, 0.5]) * noise[other])
                    .astype("<f2")
                    .tobytes()
                )


def _score(folder: Path, name: str, launcher: Sequence[str]) -> dict[str, float]:
    """Seconds and the largest process's peak memory so far of ``certspec score`` on the shards."""
    command = [
        *launcher,
        "-m",
        "certspec",
        "score",
        "--logits",
        folder / "target",
        "--draft-logits",
        folder / "draft",
        "--out",
        folder / name,
    ]
    began = time.monotonic()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, write, score twice, compare, print; returns the exit code."""
    options = parse_options(
        "certspec.studies.soaks.logits",
        __doc__,
        {
            "--rows": {"type": int, "default": 100_000},
            "--columns": {"type": int, "default": 49_152},
            "--rows-a-shard": {"type": int, "default": 5_000},
            "--processes": {"type": int, "default": 2, "help": "of the run that torchrun starts"},
            "--folder": {
                "type": Path,
                "help": "where everything is written and kept (default: nowhere)",
            },
        },
        arguments,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        with doing("writing logits"):
            write_shards(folder, options.rows, options.columns, options.rows_a_shard)
        num_bytes = sum(path.stat().st_size for path in folder.glob("*/*.npy"))
        print(
            f"{options.rows:,} rows of {options.columns:,} columns, {num_bytes:,} bytes", flush=True
        )
        os.environ.setdefault(
            "OMP_NUM_THREADS", "1"
        )  # torchrun would set it for its processes alone
        with doing("one process"):
            one = _score(folder, "run-of-one", [sys.executable])
        print(
            f"one process: {one['seconds']:.0f} s, peak {one['peak_memory_bytes'] / 1e6:.0f} MB",
            flush=True,
        )
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        with doing(f"{options.processes} processes"):
            many = _score(
                folder, "run-of-many", [*torchrun, "--nproc-per-node", str(options.processes)]
            )
        problems = compare_rows(folder / "run-of-one", folder / "run-of-many")
    for problem in problems:
        print(problem)
    facts = {
        "rows": options.rows,
        "columns": options.columns,
        "bytes": num_bytes,
        "processes": options.processes,
    }
    print(json.dumps(facts | {"one": one, "many": many, "parts_that_differ": len(problems)}))
    return 1 if problems else 0


if __name__ == "__main__":
    exit_with(main, "soaks.logits")
