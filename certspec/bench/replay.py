"""Accept patterns: how many draft tokens each round of a real pair accepted, and the same pattern forced on models with
random weights, which by themselves accept nothing. This module times nothing.

The force is one edited target logit a drafted position: the draft's token is put above all others where the pattern
accepts it, below all others where the pattern rejects it. The engine does it in a kernel of its round
(``CudaRunner.replayed_accepts``), transformers in a hook on the target's forward pass; the work beside it is the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

from certspec.decoding.drafting import DraftPolicy
from certspec.decoding.generate import generate
from certspec.decoding.records import KINDS
from certspec.models.pairs import load_pair
from certspec.studies.soaks.losslessness import bundled_prompt_ids

if TYPE_CHECKING:
    from certspec.models.pairs import Pair

__all__ = ["bundled_accepts", "replayed_in_transformers", "rounds_accepted"]

_EDITED_LOGIT = 60.0


def rounds_accepted(
    pair: Pair, prompts: Sequence[Sequence[int]], draft: int | DraftPolicy, num_tokens: int
) -> tuple[int, ...]:
    """Draft tokens accepted in each full round of chains of length ``draft``, or of that policy, by prompt (but for
    rounds cut short)."""
    import numpy as np

    steps = generate(pair, list(prompts), draft_length=draft, max_new_tokens=num_tokens, eos_token_ids=[]).steps
    keys = steps.column("prompt") * (num_tokens + 1) + steps.column("round")
    rounds, index = np.unique(keys, return_inverse=True)
    accepted = np.bincount(index, steps.column("kind") == KINDS.index("accepted"), len(rounds)).astype(int)
    last = np.searchsorted(rounds, (np.unique(steps.column("prompt")) + 1) * (num_tokens + 1)) - 1
    return tuple(np.delete(accepted, last).tolist())


def bundled_accepts(draft: int | DraftPolicy, num_prompts: int = 16, num_tokens: int = 64) -> tuple[int, ...]:
    """``rounds_accepted`` of the bundled pair on the CPU, shuffled with a seed: a short replay takes the beginning."""
    pair = load_pair()
    accepted = list(rounds_accepted(pair, bundled_prompt_ids(pair, num_prompts), draft, num_tokens))
    random.Random(0).shuffle(accepted)
    return tuple(accepted)


@contextmanager
def replayed_in_transformers(target: Any, pattern: Sequence[int]) -> Iterator[None]:
    """Inside, assisted generation with ``target`` accepts what ``pattern`` says, round by round from its start."""
    counts = cycle(pattern)

    def edit(_module: Any, _arguments: Any, keywords: dict[str, Any], output: Any) -> Any:
        num_drafted = int(keywords.get("logits_to_keep", 1)) - 1
        if num_drafted < 1:  # a pass that verifies nothing
            return output
        accepted = next(counts)
        drafted = keywords["input_ids"][0, -num_drafted:]
        for node in range(min(accepted + 1, num_drafted)):
            output.logits[0, node, drafted[node]] = _EDITED_LOGIT if node < accepted else -_EDITED_LOGIT
        return output

    handle = target.register_forward_hook(edit, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
