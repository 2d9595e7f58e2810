"""The seam between models and decoding: a runner holds one model, a key/value cache of committed
tokens, and a block of staged nodes, which are run but not yet part of the text.

A round of a chain of two drafted tokens, batch 1, looks like this to the target's runner::

    logits = runner.forward(tensor([[last, first, second]]))  # stages three nodes
    runner.commit([[0, 1]])  # the first draft token was accepted, the second is forgotten

Every runner is a ``ModelRunner``. What only some can do stands in the three protocols below it, and
decoding asks by ``isinstance``. README.md beside this file has a whole one in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from certspec.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from certspec.models.weights import Geometry

__all__ = ["BoundedRunner", "CompiledRunner", "DeviceRunner", "ModelRunner", "require_runners"]


_WANTED = ("num_tokens", "prefill", "forward", "commit", "drop_rows")


def require_runners(runners: Any, num_tokens: int, *, target_alone: bool = False) -> None:
    """Raise InvalidArgument unless ``runners`` are two ``ModelRunner``s of ``num_tokens`` columns,
    naming what one lacks. ``target_alone``: the second may be None."""
    if not (isinstance(runners, (tuple, list)) and len(runners) == 2):
        raise InvalidArgument(
            f"runners: expected None or (target's runner, draft's runner), got {runners!r}"
        )
    for role, runner in zip(("target", "draft"), runners, strict=True):
        if role == "draft" and runner is None and target_alone:
            continue
        missing = [name for name in _WANTED if not hasattr(runner, name)]
        if missing:
            raise InvalidArgument(
                f"runners: expected (target's runner, draft's runner); the {role}'s, {runner!r}, "
                f"has no {', '.join(missing)}"
            )
        if runner.num_tokens != num_tokens:
            raise InvalidArgument(
                f"runners: expected num_tokens {num_tokens} as the pair has them, got "
                f"{runner.num_tokens} from the {role}'s"
            )


class ModelRunner(Protocol):
    """One model with a key/value cache of committed tokens and room for a block of staged nodes."""

    num_tokens: int  # vocabulary columns of the logits, padding excluded

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Reset the cache, commit the prompts; (batch, num_tokens) logits after each prompt's last
        token."""

    def forward(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Stage ``tokens`` (batch, n) int64 after what is staged already; (batch, n, num_tokens)
        logits.

        ``parents`` (n,) or (batch, n): each node's parent among *all* nodes staged this round, -1 =
        the last committed token. None chains the nodes, the first one to the node staged last (or
        to the last committed token). Each node sees the committed tokens and its own ancestors
        only."""

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Per row, keep the staged nodes ``kept`` (one path, in order) and drop all others from the
        cache."""

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep only the rows ``remaining`` of the batch."""


@runtime_checkable
class BoundedRunner(Protocol):
    """A runner that holds a limited number of rows."""

    max_batch: int


@runtime_checkable
class CompiledRunner(ModelRunner, Protocol):
    """A runner whose passes can be called from compiled loops, and whose rows may come and go
    between rounds: the CPU engine, ``models.cpu.runner``, where each of these is described."""

    num_threads: int  # may be set at any time
    geometry: Geometry
    lengths: np.ndarray[Any, Any]  # (batch,) committed tokens of each row
    num_staged: int  # nodes staged in this round
    num_columns: int  # of a row of logits in memory, padding included
    forward_ragged: Callable[..., Any]  # blocks of different lengths: each row's logits
    join: Callable[..., Any]  # append rows
    sibling: Callable[[int], Any]  # a runner over the same weights, for another thread
    adopt: Callable[..., Any]  # hold copies of a sibling's rows
    one_thread_is_enough: Callable[[int], bool]
    run_levels: Callable[..., Any]  # call a compiled draft loop
    lend: Callable[..., Any]  # hand the model and its cache to compiled rounds


@runtime_checkable
class DeviceRunner(ModelRunner, Protocol):
    """A runner whose rows can stay on a device for whole rounds: the CUDA engine.
    ``makes_rounds``: whether that is wanted."""

    makes_rounds: bool

    cache_rows: np.ndarray[Any, Any]  # (batch,) where each row lies in the cache
    read_prompts: Callable[..., None]  # forget all, make room, commit prompts without logits
    replace_row: Callable[..., None]  # another text in a row's place
    tree_rounds: Callable[..., Any]  # rounds of these rows, made once and kept
