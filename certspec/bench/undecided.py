"""``python -m certspec.bench.undecided``: how often error bounds leave a rule open on real decoding data, and which
path rows take. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from certspec.certificates import certify
from certspec.kernels.numba_filter import filter_rows
from certspec.kernels.rule_table import rule_table
from certspec.rules import Rule, default_rules

__all__ = ["count_undecided", "greedy_logits"]

DTYPES = ("float32", "bfloat16", "float16")


def greedy_logits(pair: Any, num_steps: int, tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(target, draft) logits, each (steps, columns), of every greedy step of the bundled prompts, a prompt at a time,
    until there are ``num_steps``."""
    from certspec.decoding import generate
    from certspec.decoding.losslessness import bundled_prompt_ids

    done = 0
    for prompt in bundled_prompt_ids(pair):
        if done >= num_steps:
            return
        [emitted] = generate(pair, [prompt], max_new_tokens=tokens).sequences
        ids = torch.tensor([[*prompt, *emitted[:-1]]], device=pair.device)
        with torch.inference_mode():
            sides = [model(ids).logits[0, len(prompt) - 1 :, : pair.num_tokens] for model in (pair.target, pair.draft)]
        done += len(emitted)
        yield sides[0], sides[1]


def count_undecided(
    rows: Sequence[tuple[torch.Tensor, torch.Tensor]], rules: Sequence[Rule], *, dtype: str, backend: str | None,
    precision: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Undecided (row, rule) pairs, rows with one, certified pairs, rows by path, and (numba, float32) the pairs that
    the filter alone leaves open, before float64 settles them."""
    names = ("rows", "pairs", "certified", "undecided_pairs", "undecided_rows", "fast", "rigorous", "left_open")
    counts = dict.fromkeys(names, 0)
    for target, draft in rows:
        kind = getattr(torch, dtype)
        scored = certify(target.to(kind), draft.to(kind), list(rules), backend=backend, precision=precision)
        if backend == "numba" and precision == "float32":
            counts["left_open"] += _left_open(target.to(kind), draft.to(kind), dtype, rules)
        counts["rows"] += len(scored)
        counts["pairs"] += scored.undecided.numel()
        counts["certified"] += int(scored.certified.sum())
        counts["undecided_pairs"] += int(scored.undecided.sum())
        counts["undecided_rows"] += int(scored.undecided.any(dim=0).sum())
        for name, number in scored.path_counts.items():
            counts[name] += number
    return {"dtype": dtype, "backend": backend or "default", "precision": precision or "default", **counts}


def _left_open(target: torch.Tensor, draft: torch.Tensor, dtype: str, rules: Sequence[Rule]) -> int:
    table = rule_table(tuple(rules))
    bits = torch.float32 if dtype == "float32" else torch.int16
    sides = [side.cpu().contiguous().view(bits).numpy() for side in (target, draft)]
    readable = [side if dtype == "float32" else side.view(np.uint16) for side in sides]
    columns = target.shape[1]
    _, left_open = filter_rows(readable[0], readable[1], dtype, columns, table, min(columns, table.num_top))
    return int(left_open.sum())


def main(arguments: list[str] | None = None) -> int:
    from certspec.pairs import load_pair

    parser = argparse.ArgumentParser(prog="python -m certspec.bench.undecided", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens a prompt")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backends", default="numba,numba:float32,torch", help="names or name:precision, with commas")
    parser.add_argument("--noise", default="0", help="the draft's logits plus normal noise of these sizes, with commas")
    options = parser.parse_args(arguments)
    plain = list(greedy_logits(load_pair(device=options.device), options.steps, options.tokens))
    generator = torch.Generator().manual_seed(0)
    rows = [
        (target, draft + float(noise) * torch.randn(draft.shape, generator=generator).to(draft.device))
        for noise in options.noise.split(",") for target, draft in plain
    ]  # fmt: skip
    results = []
    for backend in options.backends.split(","):
        name, _, precision = backend.partition(":")
        for dtype in DTYPES:
            counts = count_undecided(rows, default_rules(), dtype=dtype, backend=name, precision=precision or None)
            print(f"{backend:<16}{dtype:<10}{counts['undecided_pairs']:>6} of {counts['pairs']:,} pairs undecided, "
                  f"{counts['fast']:,} fast and {counts['rigorous']:,} rigorous rows, "
                  f"{counts['left_open']:,} pairs left open by the filter")  # fmt: skip
            results.append(counts)
    print(json.dumps({"tokens": options.tokens, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
