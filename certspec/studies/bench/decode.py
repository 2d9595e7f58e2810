"""Decoding speed: ours against transformers' plain and assisted generation, same prompts, same
weights, one run, ways in turns. Both sides count emitted token ids."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from certspec.decoding.generation import generate
from certspec.models.pairs import Pair
from certspec.studies.bench.spreads import in_turns, ratio_spread, spread, tokens_per_second
from certspec.studies.soaks.losslessness import reference_tokens
from certspec.studies.waiting import counted

__all__ = ["ASSISTED_SETTINGS", "assistant_setting", "measure_decoding"]

# batches of prompts that each way decodes in its turn: a row that is done makes room for a waiting
# prompt
_TURN = 2
Prompts = Sequence[Sequence[int]]
Decoder = Callable[[Prompts], list[list[int]]]

# (num_assistant_tokens, schedule, assistant_confidence_threshold): transformers' own default first
ASSISTED_SETTINGS: dict[str, tuple[int, str, float]] = {
    "default": (20, "constant", 0.4),
    "3 tokens": (3, "constant", 0.0),
    "5 tokens": (5, "constant", 0.0),
    "8 tokens, threshold 0.4": (8, "constant", 0.4),
    "heuristic from 5": (5, "heuristic", 0.0),
}


def measure_decoding(
    pair: Pair,
    prompts: Prompts,
    num_tokens: int,
    repeats: int,
    ours: dict[str, dict[str, Any]],
    batch_size: int = 8,
    in_batches: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Tokens a second of every way, and its ratio to plain, to assisted at its best setting, and to
    our first way.

    ``ours``: keywords of ``generate`` by name; each is also run with ``batch_size`` prompts at
    once, and so are those of ``in_batches`` (a batch fills the cores by itself, so that a shorter
    draft may suit it better). The best assisted setting is the fastest over all repeats. Ratios are
    taken within a repeat, in which the ways take turns; the figures are medians with lowest and
    highest. ``same_output`` says whether all ways emitted the same tokens."""
    ways = _ways(pair, num_tokens, ours, in_batches or {}, batch_size)
    for name in counted(list(ways), "warming up, way"):
        decode, size = ways[name]
        decode(prompts[:size])
    size = _TURN * batch_size
    blocks = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    decoders = {name: decode for name, (decode, _) in ways.items()}
    turns = list(in_turns(decoders, blocks, repeats))
    speeds = tokens_per_second(turns, lambda rows: sum(map(len, rows)))
    outputs: dict[str, list[list[int]]] = {name: [] for name in ways}
    for turn in turns:
        outputs[turn.way] += turn.result if turn.repeat == repeats - 1 else []
    assisted = max(
        (f"assisted ({name})" for name in ASSISTED_SETTINGS),
        key=lambda name: statistics.median(speeds[name]),
    )
    first = f"certspec {next(iter(ours))}"
    references = {"plain": "transformers plain", "best assisted": assisted, "our batch 1": first}
    return {
        "best_assisted": assisted,
        "same_output": all(rows == outputs["transformers plain"] for rows in outputs.values()),
        "num_rows_unlike_plain": {
            name: sum(
                one != other for one, other in zip(rows, outputs["transformers plain"], strict=True)
            )
            for name, rows in outputs.items()
        },
        "tokens": {name: sum(map(len, rows)) for name, rows in outputs.items()},
        "tokens_per_second": {name: spread(values) for name, values in speeds.items()},
        "ratios": {
            name: {
                label: ratio_spread(values, speeds[reference])
                for label, reference in references.items()
            }
            for name, values in speeds.items()
        },
    }


def _ways(
    pair: Pair,
    num_tokens: int,
    ours: dict[str, dict[str, Any]],
    in_batches: dict[str, dict[str, Any]],
    batch_size: int,
) -> dict[str, tuple[Decoder, int]]:
    plain = {"transformers plain": (_transformers(pair, num_tokens, None), 1)}
    assisted = {
        f"assisted ({name})": (_transformers(pair, num_tokens, setting), 1)
        for name, setting in ASSISTED_SETTINGS.items()
    }
    one_by_one = {
        f"certspec {name}": (_certspec(pair, num_tokens, options, 1), 1)
        for name, options in ours.items()
    }
    at_once = {
        f"certspec {name}, batch {batch_size}": (
            _certspec(pair, num_tokens, options, batch_size),
            batch_size,
        )
        for name, options in (ours | in_batches).items()
    }
    return plain | assisted | one_by_one | at_once


def _certspec(pair: Pair, num_tokens: int, options: dict[str, Any], size: int) -> Decoder:
    return lambda prompts: (
        generate(
            pair, list(prompts), max_new_tokens=num_tokens, batch_size=size, **options
        ).sequences
    )


def _transformers(pair: Pair, num_tokens: int, setting: tuple[int, str, float] | None) -> Decoder:
    assistant = None if setting is None else pair.draft

    def decode(prompts: Prompts) -> list[list[int]]:
        with assistant_setting(pair.draft, setting):
            return [reference_tokens(pair, prompt, num_tokens, assistant) for prompt in prompts]

    return decode


@contextmanager
def assistant_setting(draft: Any, setting: tuple[int, str, float] | None) -> Iterator[None]:
    """transformers reads these from the assistant's own generation config; it is as it was
    afterwards."""
    names = (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
    )
    config = draft.generation_config
    before = {name: getattr(config, name) for name in names}
    try:
        if setting is not None:
            for name, value in zip(names, setting, strict=True):
                setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
