"""Checks that strict greedy decoding emits the target's own greedy output, token for token, on the
bundled prompts. ``python -m certspec.studies.soaks.losslessness`` runs it; the reference is
transformers' greedy ``model.generate``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from certspec.decoding.calibration import calibrate
from certspec.decoding.generation import generate
from certspec.decoding.policies import Adaptive, BestFirst, WithinBudget
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.models.pairs import Pair, load_pair
from certspec.models.trees import TreeShape
from certspec.studies.options import exit_with, parse_options
from certspec.studies.waiting import counted, doing

__all__ = ["MODES", "Divergence", "adaptive_modes", "first_divergence", "reference_tokens", "run"]

# How the draft proposes; each must give the same tokens
MODES: dict[str, dict[str, Any]] = {
    "chain of 5": {"draft_length": 5},
    "greedy tree 4 x 4": {"tree": TreeShape(4, 4)},
    "full tree 2 x 4": {"tree": TreeShape(2, 4, "full")},
    "best-first 12": {"tree": BestFirst(12, depth=6)},
}


@dataclass(frozen=True)
class Divergence:
    """The first position at which a prompt's tokens differ: what was expected there and what came
    (None: nothing)."""

    prompt: int
    position: int
    expected: int | None
    got: int | None


def adaptive_modes(pair: Pair, prompts: Sequence[Sequence[int]]) -> dict[str, dict[str, Any]]:
    """Ways of drafting that stop by certificates, with a profile measured on ``prompts`` at assumed
    costs."""
    profile = calibrate(pair, prompts, max_new_tokens=48, costs=(0.2, 0.1))
    return {
        "adaptive chain": {"draft_length": Adaptive(profile)},
        "adaptive, width 3": {"draft_length": Adaptive(profile, width=3)},
        "within a tenth of the KL budget": {
            "draft_length": WithinBudget(profile.kl_budget / 10, width=3)
        },
    }


def reference_tokens(
    pair: Pair, prompt: Sequence[int], num_tokens: int, assistant: Any = None
) -> list[int]:
    """The target's own greedy tokens as transformers generates them, with or without an
    ``assistant`` that drafts."""
    import torch

    ids = torch.tensor([list(prompt)], device=pair.target.device)
    with torch.inference_mode():
        output = pair.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            assistant_model=assistant,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def first_divergence(
    expected: Sequence[Sequence[int]], got: Sequence[Sequence[int]]
) -> Divergence | None:
    """The first prompt whose tokens differ, or None where all are the same."""
    for prompt, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for position in range(max(len(ours), len(theirs))):
            pair = [
                tokens[position] if position < len(tokens) else None for tokens in (theirs, ours)
            ]
            if pair[0] != pair[1]:
                return Divergence(prompt, position, *pair)
    return None


def run(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    batch_sizes: Sequence[int] = (1, 8),
    modes: dict[str, dict[str, Any]] | None = None,
    say: Callable[[str], Any] = print,
) -> int:
    """Compare every mode and batch size with the reference; returns the number of failures and says
    what it sees."""
    expected = []
    for index, prompt in enumerate(counted(prompts, "reference, prompt")):
        expected.append(reference_tokens(pair, prompt, num_tokens))
        if (index + 1) % 32 == 0:
            say(f"reference: {index + 1} of {len(prompts)} prompts")
    num_failures = 0
    for name, options in (MODES if modes is None else modes).items():
        for batch_size in batch_sizes:
            with doing(f"{name}, batch {batch_size}"):
                generation = generate(
                    pair, list(prompts), max_new_tokens=num_tokens, batch_size=batch_size, **options
                )
            found = first_divergence(expected, generation.sequences)
            metrics = generation.metrics
            verdict = "equal" if found is None else f"DIFFERS at {found}"
            say(
                f"{name}, batch {batch_size}, {generation.engine}: {verdict}; "
                f"{metrics['num_emitted']} tokens, {metrics['num_rounds']} rounds, "
                f"{metrics['num_false_certificates']} false certificates"
            )
            num_failures += (found is not None) + (metrics["num_false_certificates"] > 0)
    return num_failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit code is 0 only where everything was equal."""
    chosen = parse_options(
        "certspec.studies.soaks.losslessness",
        __doc__,
        {
            "--max-new-tokens": {
                "type": int,
                "default": 128,
                "help": "new tokens a prompt (default 128)",
            },
            "--limit": {
                "type": int,
                "default": None,
                "help": "the first so many bundled prompts (default all)",
            },
            "--adaptive": {
                "action": "store_true",
                "help": "adaptive drafting too, calibrated on 16 prompts",
            },
        },
        arguments,
    )
    warnings.filterwarnings(
        "ignore", category=FutureWarning
    )  # of transformers, about its own next version
    pair = load_pair()
    prompts = bundled_prompt_ids(pair, chosen.limit)
    modes = MODES | (adaptive_modes(pair, prompts[:16]) if chosen.adaptive else {})
    num_failures = run(pair, prompts, chosen.max_new_tokens, modes=modes)
    print("all equal" if not num_failures else f"{num_failures} failures")
    return 1 if num_failures else 0


if __name__ == "__main__":
    exit_with(main, "soaks.losslessness")
