"""Where an engine in low precision leaves transformers' greedy output, and whether rounding alone
explains it. ``python -m certspec.studies.soaks.divergences --device cuda`` prints every first
divergence with the evidence, for chains, trees and adaptive drafting, one prompt at a time and
eight at once.

Two programs that round differently must part where the two best logits are closer than their
rounding. So at each first divergence both candidate tokens are looked up in the transformers
model's own logits: their gap there is compared with the error of those logits, measured against the
same weights in float32 on the same tokens."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from certspec.decoding.generation import generate
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.models.pairs import Pair, load_pair
from certspec.studies.options import exit_with, parse_options
from certspec.studies.soaks.losslessness import (
    MODES,
    adaptive_modes,
    first_divergence,
    reference_tokens,
)
from certspec.studies.waiting import counted

__all__ = ["BATCH_SIZES", "RoundedDivergence", "explain", "modes"]

BATCH_SIZES = (1, 8)
CALIBRATED = 16  # prompts that the adaptive profile is measured on


def modes(pair: Pair, prompts: Sequence[Sequence[int]]) -> dict[str, dict[str, Any]]:
    """Chain, trees and an adaptive chain with a profile measured on ``prompts``, at each of
    BATCH_SIZES."""
    adaptive = adaptive_modes(pair, prompts)["adaptive chain"]
    ways = {name: MODES[name] for name in ("chain of 5", "greedy tree 4 x 4", "best-first 12")}
    return {
        f"{name}, batch {size}": {**options, "batch_size": size}
        for name, options in {**ways, "adaptive chain": adaptive}.items()
        for size in BATCH_SIZES
    }


@dataclass(frozen=True)
class RoundedDivergence:
    """A prompt's first divergence. ``gap``: transformers' logit of its token minus that of ours;
    ``exact_gap``: the same in float32; ``spacing``: distance of neighbouring numbers of the dtype
    at that logit; ``error``: the largest error of transformers' logits at that position, over all
    tokens, against float32."""

    prompt: int
    position: int
    expected: int
    got: int
    gap: float
    exact_gap: float
    spacing: float
    error: float

    @property
    def is_rounding(self) -> bool:
        """Whether the tokens are the two best, no further apart than what rounding did to two
        logits there."""
        return abs(self.gap) <= 2.0 * self.error and abs(self.exact_gap) <= 2.0 * self.error


def explain(
    pair: Pair,
    exact: Any,
    prompt: Sequence[int],
    expected: Sequence[int],
    got: Sequence[int],
    index: int = 0,
) -> RoundedDivergence | None:
    """The first divergence of ``got`` from ``expected`` after ``prompt``, or None. ``exact``: the
    target in float32.

    Raises RuntimeError where one of them just ended: rounding has no part in that.
    """
    import torch

    found = first_divergence([expected], [got])
    if found is None:
        return None
    if found.expected is None or found.got is None:
        raise RuntimeError(
            f"prompt {index}: one output ends at position {found.position}, the other goes on"
        )
    tokens = torch.tensor([[*prompt, *expected[: found.position]]], device=pair.target.device)
    with torch.inference_mode():
        rounded = pair.target(tokens).logits[0, -1, : pair.num_tokens].float().cpu()
        true = exact(tokens.to(exact.device)).logits[0, -1, : pair.num_tokens].float().cpu()
    largest = float(rounded[[found.expected, found.got]].abs().max())
    digits = {torch.bfloat16: 8, torch.float16: 11}.get(pair.target.dtype, 24)
    return RoundedDivergence(
        prompt=index,
        position=found.position,
        expected=found.expected,
        got=found.got,
        gap=float(rounded[found.expected] - rounded[found.got]),
        exact_gap=float(true[found.expected] - true[found.got]),
        spacing=2.0 ** (math.frexp(largest)[1] - digits),
        error=float((rounded - true).abs().max()),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit code is 0 only where rounding explains every divergence. The last line
    is JSON."""
    import torch

    chosen = parse_options(
        "certspec.studies.soaks.divergences",
        __doc__,
        {
            "--device": {"default": "cuda"},
            "--dtype": {"default": "bfloat16"},
            "--limit": {
                "type": int,
                "default": 128,
                "help": "the first so many bundled prompts (default all)",
            },
            "--max-new-tokens": {
                "type": int,
                "default": 64,
                "help": "new tokens a prompt (default 64)",
            },
            "--modes": {
                "default": "",
                "help": "only those whose name holds one of these words, with commas",
            },
        },
        arguments,
    )
    warnings.filterwarnings(
        "ignore", category=FutureWarning
    )  # of transformers, about its own next version
    pair = load_pair(device=chosen.device, dtype=chosen.dtype)
    exact = load_pair(device=chosen.device, dtype=torch.float32).target
    prompts = bundled_prompt_ids(pair, chosen.limit)
    chosen_modes = {
        name: options
        for name, options in modes(pair, prompts[:CALIBRATED]).items()
        if any(each in name for each in chosen.modes.split(","))  # "" is in every name
    }
    begun = time.monotonic()
    expected = [
        reference_tokens(pair, prompt, chosen.max_new_tokens)
        for prompt in counted(prompts, "reference, prompt")
    ]
    print(f"reference: {len(prompts)} prompts in {time.monotonic() - begun:.0f} s", flush=True)
    results: dict[str, Any] = {}
    unexplained = 0
    for name in counted(list(chosen_modes), "mode"):
        options = chosen_modes[name]
        started = time.monotonic()
        generation = generate(pair, prompts, max_new_tokens=chosen.max_new_tokens, **options)
        seconds = time.monotonic() - started
        rows = zip(prompts, expected, generation.sequences, strict=True)
        found = [explain(pair, exact, *row, index) for index, row in enumerate(rows)]
        parted = [divergence for divergence in found if divergence is not None]
        wrong = sum(not divergence.is_rounding for divergence in parted)
        unexplained += wrong
        print(
            f"{name}, {generation.engine}: {len(parted)} of {len(prompts)} prompts part from "
            f"transformers within {chosen.max_new_tokens} tokens, {wrong} of them beyond rounding; "
            f"{generation.metrics['num_false_certificates']} false certificates; {seconds:.0f} s",
            flush=True,
        )
        for divergence in parted:
            print(
                f"  prompt {divergence.prompt:>3} position {divergence.position:>3}: gap "
                f"{divergence.gap:8.4f} ({divergence.exact_gap:8.4f} in float32), spacing "
                f"{divergence.spacing:.4f}, error of the logits "
                f"{divergence.error:.4f}{'' if divergence.is_rounding else '  NOT EXPLAINED'}"
            )
        results[name] = {
            "parted": len(parted),
            "unexplained": wrong,
            "engine": generation.engine,
            "num_false_certificates": generation.metrics["num_false_certificates"],
            "seconds": round(seconds, 1),
            "first": [asdict(each) for each in parted],
        }
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name()
                if chosen.device.startswith("cuda")
                else chosen.device,
                "torch": torch.__version__,
                "dtype": chosen.dtype,
                "prompts": len(prompts),
                "tokens": chosen.max_new_tokens,
                "modes": results,
            }
        )
    )
    return 1 if unexplained else 0


if __name__ == "__main__":
    exit_with(main, "soaks.divergences")
