"""GGUF files run by llama.cpp, by way of llama-cpp-python: an example of somebody else's engine as
a ``ModelRunner``. What its certificates hold for: README.md beside this file.

llama.cpp's memory gives every token the set of sequences that it belongs to, and a token sees those
of its sequence. Sequence 0 holds the text. A staged tree takes a further sequence where a node gets
a second child. Example, a root with children a and b, and c below a: a and c are of sequence 0; b
begins sequence 1, which has the text in common with sequence 0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.errors import CertspecError, InvalidArgument, UnreadableInput

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LlamaCppRunner"]

_TEXT = 0  # the sequence of the committed tokens
_BATCH = 512  # tokens of a pass


class LlamaCppRunner:
    """``ModelRunner`` of one prompt at a time over a GGUF file.

    ``num_tokens``: columns of the logits (None: all that the file has). ``context``: tokens that
    the memory holds, staged ones included. ``num_threads``: None for one a core.
    ``num_sequences``: branches that a tree may have, 256 at most.

    Example: ``LlamaCppRunner("coder-1.5b-q4_k_m.gguf", context=2048)``

    Raises InvalidArgument where llama-cpp-python is missing, and UnreadableInput for a file that it
    can't load."""

    max_batch = 1

    def __init__(
        self,
        path: str | os.PathLike[str],
        num_tokens: int | None = None,
        *,
        context: int = 4096,
        num_threads: int | None = None,
        num_sequences: int = 64,
    ) -> None:
        self._lib = lib = _library()
        file = Path(os.path.expanduser(path))
        settings = lib.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(os.fsencode(file), settings)
        if not self._model:
            raise UnreadableInput(f"{file}: llama.cpp can't load this file")
        asked = lib.llama_context_default_params()
        asked.n_ctx, asked.n_batch, asked.n_ubatch = context, _BATCH, _BATCH
        asked.n_seq_max, asked.kv_unified = num_sequences, True
        asked.n_threads = asked.n_threads_batch = num_threads or os.cpu_count() or 1
        self._context = lib.llama_init_from_model(self._model, asked)
        if not self._context:
            raise InvalidArgument(
                f"{file}: llama.cpp makes no context of {context} tokens and {num_sequences} "
                "sequences"
            )
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(_BATCH, 0, num_sequences)
        self._width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._size, self._num_sequences = context, num_sequences
        self._most = min(_BATCH, context)  # tokens of a pass: of more llama.cpp ends the process
        self.num_tokens = self._width if num_tokens is None else num_tokens
        self._length = 0  # committed tokens
        self._forget_staged()

    def __del__(self) -> None:
        if getattr(self, "_batch", None) is not None:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
        if getattr(self, "_model", None):
            self._lib.llama_model_free(self._model)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """See ``ModelRunner``: (1, num_tokens) float32."""
        if len(prompts) != 1 or not prompts[0]:
            raise InvalidArgument(
                "LlamaCppRunner.prefill: expected one prompt of at least one token, got lengths "
                f"{[len(prompt) for prompt in prompts]}"
            )
        self._lib.llama_memory_clear(self._memory, False)
        self._forget_staged()
        tokens = [int(token) for token in prompts[0]]
        for first in range(0, len(tokens), self._most):
            part = tokens[first : first + self._most]
            places = [(first + i, [_TEXT]) for i in range(len(part))]
            self._length = first
            rows = self._pass(part, places, [len(part) - 1])
        self._length = len(tokens)
        return rows

    def forward(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """See ``ModelRunner``: (1, nodes, num_tokens) float32."""
        if tokens.ndim != 2 or tokens.shape[0] != 1 or not 0 < tokens.shape[1] <= self._most:
            raise InvalidArgument(
                f"LlamaCppRunner.forward: expected tokens (1, n) with n of 1 to {self._most}, got "
                f"{tuple(tokens.shape)}"
            )
        first, count = len(self._parents), tokens.shape[1]
        hung = range(first - 1, first + count - 1) if parents is None else parents.flatten()
        sequences = self._place([int(parent) for parent in hung])
        places = [(self._length + self._depths[first + i], sequences[i]) for i in range(count)]
        return self._pass(tokens[0].tolist(), places, range(count))[None]

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """See ``ModelRunner``."""
        if len(kept) != 1:
            raise InvalidArgument(f"LlamaCppRunner.commit: expected one row, got {len(kept)}")
        path = [int(node) for node in kept[0]]
        for node, parent in zip(path, [-1, *path], strict=False):
            if not 0 <= node < len(self._parents) or self._parents[node] != parent:
                raise InvalidArgument(
                    "LlamaCppRunner.commit: expected one path from the last committed token among "
                    f"{len(self._parents)} staged nodes, got {path}"
                )
        lib, end = self._lib, self._length + len(path)
        own = self._own[path[-1]] if path else _TEXT
        if own != _TEXT:
            lib.llama_memory_seq_rm(self._memory, _TEXT, self._length, -1)
            lib.llama_memory_seq_cp(self._memory, own, _TEXT, self._length, end)
        lib.llama_memory_seq_rm(self._memory, _TEXT, end, -1)
        for sequence in range(1, self._used):
            lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._length = end
        self._forget_staged()

    def drop_rows(self, remaining: Sequence[int]) -> None:
        """See ``ModelRunner``: of one row, it or nothing remains."""
        if list(remaining) not in ([0], []):
            raise InvalidArgument(
                f"LlamaCppRunner.drop_rows: expected [0] or [], got {list(remaining)}"
            )

    def _forget_staged(self) -> None:
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._own: list[int] = []  # the sequence that ends with a node, or goes on below it
        self._leads: set[int] = set()  # nodes whose sequence goes on below them
        self._used = 1

    def _place(self, parents: Sequence[int]) -> list[list[int]]:
        """Stage nodes; of each, its sequences: its own, and those of its descendants among them."""
        first = len(self._parents)
        sequences: list[list[int]] = []
        for node, parent in enumerate(parents, start=first):
            if not -1 <= parent < node:
                raise InvalidArgument(
                    f"LlamaCppRunner.forward: expected the parent of node {node} in [-1, "
                    f"{node - 1}], got {parent}"
                )
            own = _TEXT if parent < 0 else self._own[parent]
            if parent in self._leads:
                own = self._branch(own, parent, sequences, first)
            self._leads.add(parent)
            self._parents.append(parent)
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
            self._own.append(own)
            sequences.append([own])
        return sequences

    def _branch(self, source: int, node: int, sequences: list[list[int]], first: int) -> int:
        """A new sequence that has all in common with ``source`` down to ``node``: what the memory
        holds is marked there, what is about to be run in ``sequences``."""
        if self._used == self._num_sequences:
            raise InvalidArgument(
                f"LlamaCppRunner.forward: expected a tree of at most {self._num_sequences} "
                "branches; pass num_sequences=..."
            )
        new = self._used
        self._used += 1
        while node >= first:
            sequences[node - first].append(new)
            node = self._parents[node]
        end = self._length + (0 if node < 0 else self._depths[node] + 1)
        self._lib.llama_memory_seq_cp(self._memory, source, new, 0, end)
        return new

    def _pass(
        self, tokens: Sequence[int], places: Sequence[tuple[int, list[int]]], wanted: Sequence[int]
    ) -> Any:
        """Run tokens at their places (position, sequences); (wanted, num_tokens) float32."""
        import torch

        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, (position, sequences)) in enumerate(zip(tokens, places, strict=True)):
            if not 0 <= token < self._width:
                raise InvalidArgument(
                    f"LlamaCppRunner: expected token ids below {self._width}, got {token}"
                )
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, i in wanted
            batch.n_seq_id[i] = len(sequences)
            for number, sequence in enumerate(sequences):
                batch.seq_id[i][number] = sequence
        failed = self._lib.llama_decode(self._context, batch)
        if failed:
            raise CertspecError(
                f"llama.cpp could not run {len(tokens)} tokens behind {self._length} (code "
                f"{failed}; its memory holds {self._size}: pass context=...)"
            )
        rows = np.empty((len(wanted), self.num_tokens), np.float32)
        for row, index in enumerate(wanted):
            found = self._lib.llama_get_logits_ith(self._context, index)
            rows[row] = np.ctypeslib.as_array(found, (self._width,))[: self.num_tokens]
        return torch.from_numpy(rows)


def _library() -> Any:
    """llama-cpp-python's declarations of llama.h, with llama.cpp silent."""
    try:
        import llama_cpp
    except ImportError as error:
        raise InvalidArgument(
            "running models by llama.cpp needs the package llama-cpp-python (pip install "
            "'certspec[llamacpp]')"
        ) from error
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(_SILENT.setdefault("log", llama_cpp.llama_log_callback(_hear)), None)
    return llama_cpp


_SILENT: dict[str, Any] = {}  # what C calls has to stay alive


def _hear(level: int, text: bytes, data: Any) -> None:
    """llama.cpp tells of every tensor that it loads."""
