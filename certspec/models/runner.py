"""The seam between models and decoding: a runner holds one model, a cache of committed tokens, and
a block of staged nodes. ``TransformersRunner`` runs any causal transformers model this way; this
module knows nothing about rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelRunner"]


class ModelRunner(Protocol):
    """One model with a key/value cache of committed tokens and room for a block of staged (not
    committed) nodes.

    A runner may have more, as the CPU engine has: ``forward_ragged(tokens, parents)`` stages rows
    of different lengths and returns each row's logits; ``join(prompts)`` appends rows between
    rounds, prompts committed; ``sibling(index)`` gives runners over the same weights for other
    threads, and ``num_threads`` may be set on each."""

    num_tokens: int  # vocabulary columns of the logits, padding excluded

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Reset the cache, commit the prompts; (batch, num_tokens) logits after each prompt's last
        token."""
        ...

    def forward(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Stage ``tokens`` (batch, n) int64 after what is staged already; (batch, n, num_tokens)
        logits.

        ``parents`` (n,) or (batch, n): each node's parent among *all* nodes staged this round, -1 =
        the last committed token. None chains the nodes, the first one to the node staged last (or
        to the last committed token). Each node sees the committed tokens and its own ancestors
        only."""
        ...

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Per row, keep the staged nodes ``kept`` (one path, in order) and drop all others from the
        cache."""
        ...

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep only the rows ``remaining`` of the batch."""
        ...
