"""``python -m certspec.studies.soaks.logs``: writes a long synthetic log of a server's stream,
imports it in a process of its own, and prints how long that took and its peak memory. The last line
is JSON; exit code 1 above ``--max-memory-mb``."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from certspec.studies.options import exit_with, parse_options
from certspec.studies.waiting import doing

__all__ = ["import_measured", "main", "write_stream"]

_ANSWER = 128  # tokens of an answer
_VARIANTS = 4096  # different lists of logprobs; a stream repeats them in random order


def write_stream(path: Path, num_lines: int, depth: int = 5, seed: int = 0) -> None:
    """Write ``num_lines`` lines, each one token of a streamed answer as llama.cpp's server sends
    it, with the ``depth`` most probable tokens. Answers are 128 tokens long; the logprobs are those
    of random float32 logits."""
    chance = np.random.default_rng(seed)
    logits = chance.normal(0.0, 3.0, (_VARIANTS, 64)).astype(np.float32).astype(np.float64)
    logprobs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :depth]
    items = [
        json.dumps(_item(logprobs[row], ids.tolist()), separators=(",", ":"))
        for row, ids in enumerate(order)
    ]
    with path.open("w", encoding="utf-8") as stream:
        for start in range(0, num_lines, 65_536):
            chosen = chance.integers(0, _VARIANTS, min(65_536, num_lines - start)).tolist()
            stream.writelines(
                _line(items[row], is_last=(start + place) % _ANSWER == _ANSWER - 1)
                for place, row in enumerate(chosen)
            )


def _line(item: str, *, is_last: bool) -> str:
    stop = "true" if is_last else "false"
    return (
        f'{{"index":0,"content":"t","stop":{stop},"id_slot":0,'
        f'"completion_probabilities":[{item}]}}\n'
    )


def _item(row: np.ndarray, ids: list[int]) -> dict[str, object]:
    def entry(token: int) -> dict[str, object]:
        text = f" t{token}"
        # the decimals that float32 needs, as servers print them
        return {
            "id": token,
            "token": text,
            "bytes": list(text.encode()),
            "logprob": float(str(row[token])),
        }

    return entry(ids[0]) | {"top_logprobs": [entry(token) for token in ids]}


def import_measured(log: Path, out: Path, rules: str = "") -> dict[str, float]:
    """Import ``log`` into ``out`` in a fresh process: positions, seconds, and its peak memory in
    bytes."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_import, args=(str(log), str(out), rules, sender))
    child.start()
    sender.close()
    try:
        found: dict[str, float] = receiver.recv()
    except EOFError as error:
        raise RuntimeError(
            "the importing process ended without a result; its message is above"
        ) from error
    finally:
        child.join()
    return found


def _import(log: str, out: str, rules: str, sender: object) -> None:
    from certspec.logs.import_run import import_logs
    from certspec.presets import parse_rules

    began = time.monotonic()
    run = import_logs(Path(log), None, Path(out), rules=parse_rules((rules,)))
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    sender.send({"positions": run.num_positions, "seconds": seconds, "peak_memory_bytes": peak})  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, write, import, print; returns the exit code."""
    options = parse_options(
        "certspec.studies.soaks.logs",
        __doc__,
        {
            "--lines": {"type": int, "default": 10_000_000},
            "--depth": {"type": int, "default": 5, "help": "tokens listed at a position"},
            "--rules": {
                "default": "",
                "help": 'e.g. "strict tree:4" (default: the eight of every command)',
            },
            "--max-memory-mb": {"type": float, "default": 1000.0},
            "--folder": {
                "type": Path,
                "help": "where the log and the run are written and kept (default: nowhere)",
            },
        },
        arguments,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "stream.jsonl"
        with doing("writing the log"):
            write_stream(log, options.lines, options.depth)
        num_bytes = log.stat().st_size
        print(f"{log.name}: {options.lines:,} lines, {num_bytes:,} bytes", flush=True)
        with doing("importing it"):
            found = import_measured(log, folder / "run", options.rules)
    found["bytes"] = num_bytes
    found["positions_per_second"] = found["positions"] / found["seconds"]
    print(json.dumps(found))
    whole = (
        found["positions"] == options.lines
        and found["peak_memory_bytes"] <= 1e6 * options.max_memory_mb
    )
    return 0 if whole else 1


if __name__ == "__main__":
    exit_with(main, "soaks.logs")
