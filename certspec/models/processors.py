"""Logits processors, one tuple a prompt: those that transformers would make of the model's
generation config, and those of a batch, each seeing the row that plain ``generate`` shows it. A
user's own are asked their first question again at the end, so that one with a state is found.

Example: with ``repetition_penalty=1.1`` in the target's generation_config.json, ``in_config`` gives
every prompt a RepetitionPenaltyLogitsProcessor, and a note that says so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from certspec.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Asked",
    "in_batch",
    "in_config",
    "name_of",
    "never_applied",
    "of_users",
    "require_same_answers",
    "require_stateless",
    "watched",
]

LogitsProcessor = Callable[..., Any]


class Asked(NamedTuple):
    """A prompt and where it ends."""

    prompt: Sequence[int]
    max_new_tokens: int
    eos_token_ids: Iterable[int]


# What a generation config may ask for that greedy decoding here has no way to do, and the values
# that ask for nothing.
_NEVER_APPLIED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_return_sequences": (None, 1),
    "guidance_scale": (None, 1, 1.0),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "force_words_ids": (None,),
    "constraints": (None,),
}
# What ``model.generate`` does before or besides decoding, so that only its bridge has it.
_BESIDES: dict[str, tuple[Any, ...]] = {
    "stop_strings": (None,),
    "max_time": (None,),
    "token_healing": (None, False),
}
# transformers' processors that keep a state from token to token. Drafts that are rejected would
# leave theirs.
_WITH_STATE = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
)


def in_config(
    model: Any, prompts: Sequence[Asked], given: Sequence[LogitsProcessor]
) -> tuple[tuple[tuple[LogitsProcessor, ...], ...], tuple[str, ...]]:
    """For each prompt the processors of greedy ``model.generate`` with ``given`` ones, and notes
    on what of the model's generation config is applied and what is not. No processors: ()."""
    from transformers import LogitsProcessor as OfTransformers

    config = getattr(model, "generation_config", None)
    if config is None or not hasattr(model, "_get_logits_processor"):
        return (tuple(given),) * len(prompts) if given else (), ()
    left = never_applied(config) | _asked_for(config, _BESIDES)
    notes = [f"generation_config: {name}={value!r} is not applied" for name, value in left.items()]
    made = [_of_config(model, config, asked) for asked in prompts]
    own = [[each for each in some if not _keeps_state(each)] for some in made]
    notes += [
        f"generation_config: {type(each).__name__} is not applied, as it keeps a state"
        for each in (made[0] if made else ())
        if _keeps_state(each)
    ]
    applied = dict.fromkeys(type(each).__name__ for each in (own[0] if own else ()))
    notes += [f"generation_config: {name} applied" for name in applied]
    if not own or not (own[0] or given):
        return (), tuple(notes)
    # a processor that is given replaces the config's of the same class, as in transformers
    kinds = {type(each) for each in given if isinstance(each, OfTransformers)}
    merged = ((*(each for each in some if type(each) not in kinds), *given) for some in own)
    return tuple(merged), tuple(notes)


def never_applied(config: Any) -> dict[str, Any]:
    """What a generation config asks for by name and the engines' greedy decoding does not do."""
    found = _asked_for(config, _NEVER_APPLIED)
    # a cache that rounds its keys and values gives other logits
    if getattr(config, "cache_implementation", None) == "quantized":
        found["cache_implementation"] = "quantized"
    return found


def _asked_for(config: Any, names: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in names}
    return {name: value for name, value in values.items() if value not in names[name]}


def require_stateless(processors: Iterable[LogitsProcessor]) -> None:
    """InvalidArgument for a processor of transformers that keeps a state from token to token."""
    for each in processors:
        if _keeps_state(each):
            raise InvalidArgument(
                f"logits_processor: expected processors without a state, got a "
                f"{type(each).__name__}; a rejected draft would stay in it"
            )


def _keeps_state(processor: LogitsProcessor) -> bool:
    return any(kind.__name__ in _WITH_STATE for kind in type(processor).__mro__)


def of_users(given: Iterable[Any]) -> list[Any]:
    """Those of ``given`` that are none of transformers' own."""
    return [each for each in given if not type(each).__module__.startswith("transformers.")]


def name_of(processor: Any) -> str:
    """A function's own name, an object's class."""
    found = processor.processor if isinstance(processor, _Watched) else processor
    return str(found.__name__ if isinstance(found, FunctionType) else type(found).__name__)


class _Watched:
    """A processor, with what it was first asked and what it answered."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self.processor = processor
        self.num_calls = 0

    def __call__(self, tokens: Tensor, scores: Tensor) -> Any:
        self.num_calls += 1
        if self.num_calls > 1:
            return self.processor(tokens, scores)
        self._asked = tokens.clone(), scores.clone()
        answer = self.processor(tokens, scores)
        # what is no tensor is refused where it is used
        self._answer = answer.clone() if hasattr(answer, "clone") else answer
        return answer

    def answers_as_first(self) -> bool:
        """Whether the first question still gets its answer; asked once, a state can't matter."""
        import torch

        if self.num_calls < 2:
            return True
        again = self.processor(*self._asked)
        same_kind = isinstance(again, torch.Tensor) and again.dtype == self._answer.dtype
        return same_kind and torch.equal(again, self._answer)


def watched(processors: Iterable[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    """``processors``, a user's own among them ready for ``require_same_answers``."""
    given = tuple(processors)
    own = {id(each) for each in of_users(given)}
    return tuple(_Watched(each) if id(each) in own else each for each in given)


def require_same_answers(processors: Iterable[LogitsProcessor]) -> None:
    """InvalidArgument for a watched processor that no longer answers as it did at first: what it
    remembers from call to call, it remembers of rejected drafts too."""
    for each in processors:
        if isinstance(each, _Watched) and not each.answers_as_first():
            raise InvalidArgument(
                f"logits_processor {name_of(each)}: expected the same scores whenever it is shown "
                "the same tokens and logits, got others at the end than at first; a rejected draft "
                "would stay in its state"
            )


def _of_config(model: Any, config: Any, asked: Asked) -> list[Any]:
    import torch

    config = copy.deepcopy(config)
    length = len(asked.prompt)
    ends = sorted(asked.eos_token_ids)
    try:
        config.do_sample, config.guidance_scale = False, None
        config.max_length = length + asked.max_new_tokens
        if getattr(config, "min_new_tokens", None) is not None:
            config.min_length = length + config.min_new_tokens
        config._eos_token_tensor = torch.tensor(ends, device=model.device) if ends else None
        return list(
            model._get_logits_processor(
                config,
                input_ids_seq_length=length,
                encoder_input_ids=torch.tensor([list(asked.prompt)], device=model.device),
                device=model.device,
            )
        )
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidArgument(f"generation_config of {type(model).__name__}: {error}") from error


def in_batch(
    processors: Sequence[LogitsProcessor], input_ids: Tensor, prompt_lengths: Sequence[int]
) -> tuple[tuple[LogitsProcessor, ...], ...]:
    """``processors`` of ``model.generate(input_ids)`` for each row alone: a processor sees as many
    rows as plain ``generate`` has, all of them this row with its padding, and its own is taken."""
    if not processors or prompt_lengths == [input_ids.shape[1]]:
        return (tuple(processors),) if processors else ()
    return tuple(
        tuple(_for_row(each, input_ids, index, length) for each in processors)
        for index, length in enumerate(prompt_lengths)
    )


def _for_row(
    processor: LogitsProcessor, input_ids: Tensor, index: int, prompt_length: int
) -> LogitsProcessor:
    import torch
    from transformers import PrefixConstrainedLogitsProcessor

    count = len(input_ids)
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        # one row, under its number in the batch: the function is asked about no other
        processor, count = (
            PrefixConstrainedLogitsProcessor(lambda _, sent: allowed(index, sent), 1),
            1,
        )

    def process(tokens: Tensor, scores: Tensor) -> Tensor:
        padded = input_ids[index : index + 1].to(tokens.device)
        shown = torch.cat([padded, tokens[:, prompt_length:]], dim=1)
        rows = scores.expand(count, -1).clone()
        made = processor(shown.expand(count, -1), rows)
        # anything but scores of these rows is refused by name where it is used
        fits = isinstance(made, torch.Tensor) and made.shape == rows.shape
        return made[min(index, count - 1)][None] if fits else made

    process.__name__ = name_of(processor)
    return process
