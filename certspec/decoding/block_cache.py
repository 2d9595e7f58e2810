"""A runner with rows of different lengths: which tokens of each row are committed, which wait, and
how ragged blocks are staged as one rectangle.

Example: blocks of 2 and 5 nodes are staged as a rectangle of 2 by 5, whose three spare nodes hang
from the last committed token and are never committed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from certspec.models.runner import CompiledRunner, ModelRunner

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.models.cpu.growth import Drafts

__all__ = ["BlockCache"]


class BlockCache:
    """One runner's rows during a round: first the pending tokens (emitted, not yet run) are staged,
    then drafted nodes. ``compiled``: the runner once more where it is a ``CompiledRunner``.

    Rows shorter than the longest one of a pass are filled up with nodes that nobody commits, unless
    the runner takes ragged blocks; no row sees another's."""

    def __init__(self, runner: ModelRunner, prompts: Sequence[Sequence[int]]) -> None:
        self._use(runner)
        self.last_rows: Tensor | None = runner.prefill(
            prompts
        )  # logits after the prompts, until something is run
        self.num_committed = [len(prompt) for prompt in prompts]
        self.num_pending = [0] * len(prompts)
        self.num_staged = 0
        self.num_passes = 0
        self.draft_space: Drafts | None = None  # of a compiled draft loop

    def _use(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.compiled: Any = runner if isinstance(runner, CompiledRunner) else None

    def stage(
        self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> Sequence[Tensor] | Tensor:
        """Stage ``tokens[row]`` hanging from ``parents[row]`` (staged indices, -1: the last
        committed token) in one pass; for each row (its length or more, vocab) logits. The new
        nodes' staged indices start at the old ``num_staged``."""
        longest = max(len(block) for block in tokens)
        if self.compiled is not None:
            rows = self.compiled.forward_ragged(tokens, parents)
            self.num_staged += longest
            self.num_passes += 1
            return rows
        import torch

        block = [[*row, *[0] * (longest - len(row))] for row in tokens]
        hung = [[*row, *[-1] * (longest - len(row))] for row in parents]
        chained = list(range(self.num_staged - 1, self.num_staged + longest - 1))
        is_chain = all(row == chained for row in hung)
        given = None if is_chain else torch.tensor(hung, dtype=torch.int64)
        logits = self.runner.forward(torch.tensor(block, dtype=torch.int64), given)
        self.num_staged += longest
        self.num_passes += 1
        return logits

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Per row, keep the pending tokens and then the staged indices ``kept`` (one path); forget
        the rest."""
        paths = [
            [*range(pending), *path] for pending, path in zip(self.num_pending, kept, strict=True)
        ]
        if any(paths) or self.num_staged:
            self.runner.commit(paths)
        for row, path in enumerate(paths):
            self.num_committed[row] += len(path)
            self.num_pending[row] = 0
        if self.num_staged:
            self.last_rows = None
        self.num_staged = 0

    def join(self, prompts: Sequence[Sequence[int]]) -> None:
        """Append rows of new prompts between rounds, to a compiled runner; each one's last token is
        its first pending one."""
        import torch

        self.compiled.join([prompt[:-1] for prompt in prompts])
        self.num_committed += [len(prompt) - 1 for prompt in prompts]
        self.num_pending += [0] * len(prompts)
        if self.last_rows is not None:  # a row with a pending token has no use for it
            empty = self.last_rows.new_full((len(prompts), self.last_rows.shape[1]), float("nan"))
            self.last_rows = torch.cat([self.last_rows, empty])

    def moved(self, rows: Sequence[int], runner: ModelRunner) -> BlockCache:
        """Between rounds: a cache of these rows in ``runner``, a sibling of this one's; they stay
        here too, until they are dropped."""
        other = copy(self)
        other._use(runner)
        other.num_passes, other.draft_space = 0, None
        other.compiled.adopt(self.runner, rows)
        other.num_committed = [self.num_committed[row] for row in rows]
        other.num_pending = [self.num_pending[row] for row in rows]
        other.last_rows = None if self.last_rows is None else self.last_rows[list(rows)]
        return other

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        self.runner.drop_rows(remaining)
        self.num_committed = [self.num_committed[row] for row in remaining]
        self.num_pending = [self.num_pending[row] for row in remaining]
        if self.last_rows is not None:
            self.last_rows = self.last_rows[list(remaining)]
