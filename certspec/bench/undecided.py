"""``python -m certspec.bench.undecided``: how often error bounds leave a rule open on real decoding data, and which
path rows take. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from certspec.certificates import certify
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
    rows: Sequence[tuple[torch.Tensor, torch.Tensor]], rules: Sequence[Rule], *, dtype: str, backend: str | None
) -> dict[str, Any]:
    """Undecided (row, rule) pairs, rows with one, certified pairs, and rows by path."""
    names = ("rows", "pairs", "certified", "undecided_pairs", "undecided_rows", "fast", "rigorous")
    counts = dict.fromkeys(names, 0)
    for target, draft in rows:
        kind = getattr(torch, dtype)
        scored = certify(target.to(kind), draft.to(kind), list(rules), backend=backend)
        counts["rows"] += len(scored)
        counts["pairs"] += scored.undecided.numel()
        counts["certified"] += int(scored.certified.sum())
        counts["undecided_pairs"] += int(scored.undecided.sum())
        counts["undecided_rows"] += int(scored.undecided.any(dim=0).sum())
        for name, number in scored.path_counts.items():
            counts[name] += number
    return {"dtype": dtype, "backend": backend or "default", **counts}


def main(arguments: list[str] | None = None) -> int:
    from certspec.pairs import load_pair

    parser = argparse.ArgumentParser(prog="python -m certspec.bench.undecided", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens a prompt")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backends", default="numba,torch", help="separated by commas")
    options = parser.parse_args(arguments)
    rows = list(greedy_logits(load_pair(device=options.device), options.steps, options.tokens))
    results = []
    for backend in options.backends.split(","):
        for dtype in DTYPES:
            counts = count_undecided(rows, default_rules(), dtype=dtype, backend=backend)
            print(f"{backend:<8}{dtype:<10}{counts['undecided_pairs']:>6} of {counts['pairs']:,} pairs undecided, "
                  f"{counts['fast']:,} fast and {counts['rigorous']:,} rigorous rows")  # fmt: skip
            results.append(counts)
    print(json.dumps({"tokens": options.tokens, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
