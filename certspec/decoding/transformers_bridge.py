"""certspec's decoding inside ``model.generate``: the callable that transformers takes as
``custom_generate``, with its stopping criteria and streamers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from certspec.decoding.batch import Batch
from certspec.decoding.generation import callables, draft_policy, inference, rule_schedules
from certspec.decoding.loop import decode_batch
from certspec.decoding.records import StepList
from certspec.decoding.requests import DecodingPlan, Request, RoundCounts, StoppingRules
from certspec.errors import InvalidArgument
from certspec.models.choice import chosen_runners
from certspec.models.pairs import Pair
from certspec.models.processors import (
    in_batch,
    name_of,
    never_applied,
    of_users,
    require_same_answers,
    require_stateless,
    watched,
)
from certspec.models.runner import BoundedRunner
from certspec.models.settings import GenerationSettings, context_limit, logits_width, within
from certspec.rules import StrictGreedy

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["transformers_generate"]


@runtime_checkable
class Streamer(Protocol):
    """What transformers asks of a streamer."""

    def put(self, value: Any) -> Any: ...

    def end(self) -> Any: ...


def transformers_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    *,
    draft_model: Any = None,
    rule: Any = None,
    draft_length: Any = 4,
    tree: Any = None,
    on_step: Callable[..., Any] | None = None,
    **model_kwargs: Any,
) -> Any:
    """For ``model.generate(..., custom_generate=certspec.transformers_generate,
    assistant_model=draft)``.

    Emits what greedy ``model.generate`` emits (with a relaxed ``rule``: what the rule allows), for
    batches too. Stopping criteria are asked after every token, as transformers does, so a stop
    string that straddles two blocks ends the text at the same token. Give stop strings as a
    StopStringCriteria: transformers loses ``tokenizer`` before it builds one for a callable. Where
    transformers itself runs the models, a warning says why and what would change it, as
    ``Generation.notes`` does. It does so, without drafts, for a batch with a logits processor or a
    stopping criterion of your own, which may look at several rows at once.

    Args:
        model: the target.
        input_ids: (batch, length) integers.
        logits_processor: what ``generate`` made of its arguments (your own keep no state).
        stopping_criteria: the same.
        draft_model: the same as ``assistant_model``; this and what follows may be given to
            ``model.generate``.
        rule: as in ``certspec.generate``.
        draft_length: as there.
        tree: as there.
        on_step: as there.
        model_kwargs: of these ``attention_mask``, ``generation_config`` and ``streamer`` matter.

    Returns (batch, length) ids, or a GenerateDecoderOnlyOutput with ``return_dict_in_generate``.

    Raises InvalidArgument for sampling, beams, scores, inputs that are no tokens, or a missing
    draft.

    Example:
        >>> import certspec as cs
        >>> pair = cs.load_pair()
        >>> ids = pair.tokenizer("The fox", return_tensors="pt").input_ids
        >>> options = {"max_new_tokens": 8, "do_sample": False}
        >>> ours = pair.target.generate(
        ...     ids, custom_generate=cs.transformers_generate, assistant_model=pair.draft, **options
        ... )
        >>> bool((ours == pair.target.generate(ids, **options)).all())
        True
    """
    caller = _arguments_of_generate()
    draft_model = draft_model if draft_model is not None else caller.get("assistant_model")
    streamer = model_kwargs.get("streamer")
    streamer = streamer if streamer is not None else caller.get("streamer")
    settings = GenerationSettings.of(model_kwargs.get("generation_config"))
    _require_greedy(settings, draft_model, never_applied(model_kwargs.get("generation_config")))
    _require_module("model", model)
    _require_module("draft_model", draft_model)
    _require_tokens_alone(model_kwargs)
    _require_matrix("input_ids", input_ids)
    if input_ids.is_floating_point() or input_ids.is_complex():
        raise InvalidArgument(f"input_ids: expected integers, got {input_ids.dtype}")
    prompts, num_columns = (
        _prompts(input_ids, model_kwargs.get("attention_mask")),
        input_ids.shape[1],
    )
    _require_usual_places(input_ids, model_kwargs)
    given_processors = callables("logits_processor", logits_processor)
    require_stateless(given_processors)
    callables("on_step", on_step, many=False)
    if streamer is not None and not isinstance(streamer, Streamer):
        raise InvalidArgument(
            f"streamer: expected one with the methods put and end, got {streamer!r}"
        )
    if streamer is not None and len(prompts) > 1:
        raise InvalidArgument(f"streamer: expected a single prompt, got {len(prompts)}")
    widths = [logits_width(one) for one in (model, draft_model)]
    pair = Pair(model, draft_model, None, min(widths))
    [schedule] = rule_schedules(StrictGreedy() if rule is None else rule, 1, pair.num_tokens)
    policy = draft_policy(schedule.rules, draft_length, tree, pair.num_tokens)
    criteria = callables("stopping_criteria", stopping_criteria)
    max_new_tokens, ends, others = _split(criteria, num_columns)
    eos, beyond = within(ends, pair.num_tokens)
    own = of_users([*given_processors, *criteria])
    if own and len(prompts) > 1:
        asked = [str(rule) for rule in schedule.rules if rule.is_relaxed]
        asked += ["on_step"] if on_step is not None else []
        asked += ["a call outside model.generate"] if "use_cache" not in model_kwargs else []
        _say_without_drafts(own, asked)
        # rows go on together there, which drafts do not let them
        return model._sample(
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            **model_kwargs,
        )
    given_processors = watched(given_processors)
    stopping = StoppingRules(eos, max_new_tokens)
    requests = [
        Request(
            index,
            prompt,
            schedule,
            stopping,
            _after_block(input_ids[index], len(prompt), others, streamer, model.device),
        )
        for index, prompt in enumerate(prompts)
    ]
    plan = DecodingPlan(
        policy,
        (),
        context_limit(draft_model),
        in_batch(given_processors, input_ids, [*map(len, prompts)]),
        on_step,
    )
    steps, counts = StepList(), RoundCounts()
    with inference(model, draft_model), chosen_runners(pair) as (target, draft, _, notes):
        if notes or beyond:
            warnings.warn(f"transformers_generate: {', '.join(notes + beyond)}", stacklevel=2)
        size = target.max_batch if isinstance(target, BoundedRunner) else len(requests)
        for start in range(0, len(requests), size):
            batch = Batch(target, draft, requests[start : start + size], plan)
            decode_batch(batch, steps, counts)
        require_same_answers(given_processors)
    if streamer is not None:
        streamer.end()
    return _output(input_ids, [request.tokens for request in requests], settings)


def _arguments_of_generate() -> dict[str, Any]:
    """``assistant_model`` and ``streamer`` as ``generate`` was called with. transformers takes them
    by name and does not hand them on to a callable, so they are read from its frame; where that is
    not our caller there are none."""
    frame = sys._getframe(2)
    found = frame.f_locals if frame.f_code.co_name == "generate" else {}
    return {name: found.get(name) for name in ("assistant_model", "streamer")}


# What ``model.generate`` hands to every decoding method, whatever it was asked for.
_HANDED_ON = {
    "attention_mask",
    "cache",
    "cache_position",
    "generation_config",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "streamer",
    "synced_gpus",
    "use_cache",
}


def _require_tokens_alone(model_kwargs: Mapping[str, Any]) -> None:
    """InvalidArgument, by name, for what would change the logits besides the tokens and their
    mask."""
    for name, value in model_kwargs.items():
        if value is not None and name not in _HANDED_ON:
            raise InvalidArgument(
                f"transformers_generate: expected tokens alone, got {name} as well"
            )
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise InvalidArgument(
                f"{name}: expected none or an empty one, got one of {cache.get_seq_length()} tokens"
            )


def _require_usual_places(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    places, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
    if places is None:
        return
    seen = (input_ids == input_ids if mask is None else mask.to(input_ids.device)).bool()
    fits = places.shape == seen.shape
    if not fits or bool(((places.to(seen.device) != seen.cumsum(-1) - 1) & seen).any()):
        raise InvalidArgument(
            "position_ids: expected each token's place in its row, padding left out, got others"
        )


def _require_greedy(
    settings: GenerationSettings, draft_model: Any, never_applied: Mapping[str, Any]
) -> None:
    if draft_model is None:
        raise InvalidArgument("transformers_generate: expected assistant_model=..., got none")
    for name, wanted in (
        ("do_sample", False),
        ("num_beams", 1),
        ("output_scores", False),
        ("output_logits", False),
        ("output_hidden_states", False),
        ("output_attentions", False),
    ):
        got = settings.requested[name]
        if got not in (wanted, None):
            raise InvalidArgument(
                f"transformers_generate: expected {name}={wanted}, got {got!r}; decoding is greedy"
            )
    for name, value in never_applied.items():
        raise InvalidArgument(
            f"transformers_generate: expected no {name}, got {value!r}; decoding is greedy"
        )


def _say_without_drafts(own: Sequence[Any], asked: Sequence[str]) -> None:
    """Say that transformers decodes a batch because of ``own``; InvalidArgument where more is asked
    for than it can give."""
    names = ", ".join(map(name_of, own))
    reason = f"{names} may look at several rows of the batch at once"
    remedy = "decode one prompt at a time, or with certspec.generate"
    if asked:
        raise InvalidArgument(
            f"transformers_generate: expected strict greedy decoding alone, as {reason}, got "
            f"{', '.join(asked)}; {remedy}"
        )
    warnings.warn(
        f"transformers_generate: run by transformers without drafts ({reason}); {remedy}",
        stacklevel=3,
    )


def _require_module(name: str, model: Any) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"{name}: expected a transformers causal model, got {model!r}")


def _require_matrix(name: str, given: Any) -> None:
    import torch

    fits = isinstance(given, torch.Tensor) and given.layout == torch.strided
    if not (fits and not given.is_meta and given.ndim == 2 and given.numel() > 0):
        raise InvalidArgument(
            f"{name}: expected a tensor (batch, length) of at least 1, got {given!r}"
        )


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The real tokens of each row: padding is what the attention mask hides."""
    if mask is None:
        rows: list[list[int]] = input_ids.tolist()
        return rows
    _require_matrix("attention_mask", mask)
    if mask.shape != input_ids.shape or not bool(mask[:, -1].all()):
        raise InvalidArgument(
            f"attention_mask: expected {tuple(input_ids.shape)} with padding on the left, got "
            f"{tuple(mask.shape)}" + (" with padding on the right" if mask.ndim == 2 else "")
        )
    return [
        ids[keep.bool().to(ids.device)].tolist() for ids, keep in zip(input_ids, mask, strict=True)
    ]


def _split(criteria: Sequence[Any], num_columns: int) -> tuple[int, frozenset[int], list[Any]]:
    """New tokens allowed, ids that end a sequence, and the other criteria."""
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

    limits = [
        one.max_length - num_columns for one in criteria if isinstance(one, MaxLengthCriteria)
    ]
    if not limits:
        raise InvalidArgument(
            "transformers_generate: expected max_new_tokens or max_length, got neither"
        )
    ends: set[int] = set()
    for one in criteria:
        if isinstance(one, EosTokenCriteria):
            ends |= {int(token) for token in one.eos_token_id.reshape(-1)}
    others = [one for one in criteria if not isinstance(one, (EosTokenCriteria, MaxLengthCriteria))]
    return min(limits), frozenset(ends), others


def _after_block(
    ids: Tensor, prompt_length: int, criteria: Sequence[Any], streamer: Any, device: Any
) -> Callable[[list[int], int], int | None] | None:
    """What a request does after a block: ask the criteria token by token, and stream what stays."""
    if not criteria and streamer is None:
        return None
    import torch

    def after(sequence: list[int], num_new: int) -> int | None:
        new = torch.tensor(sequence[prompt_length:], dtype=torch.int64, device=device)
        full = torch.cat([ids.to(device), new])[None]
        kept = None
        for count in range(1, num_new + 1) if criteria else ():
            seen = full[:, : full.shape[1] - num_new + count]
            if any(_stops(one, seen) for one in criteria):
                kept = count
                break
        if streamer is not None:
            for token in sequence[len(sequence) - num_new :][:kept]:
                streamer.put(torch.tensor([token]))
        return kept

    return after


def _stops(criterion: Any, seen: Tensor) -> bool:
    import torch

    answer = criterion(seen, None)
    try:
        return bool(torch.as_tensor(answer).any())
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"stopping_criteria {name_of(criterion)}: expected a boolean a row, got {answer!r}"
        ) from error


def _output(input_ids: Tensor, rows: list[list[int]], settings: GenerationSettings) -> Any:
    import torch

    longest = max(map(len, rows))
    pad = settings.pad_token_id
    if pad is None and any(len(row) < longest for row in rows):
        raise InvalidArgument(
            "transformers_generate: expected pad_token_id for rows of different lengths, got none"
        )
    fill = 0 if pad is None else pad
    new = torch.tensor([row + [fill] * (longest - len(row)) for row in rows], dtype=torch.int64)
    sequences = torch.cat([input_ids, new.to(input_ids.device)], dim=1)
    if not settings.returns_dict:
        return sequences
    from transformers.generation import GenerateDecoderOnlyOutput

    result: Any = GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
    return result
