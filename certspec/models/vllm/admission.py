"""Wishes that a server can't serve, refused where they are made: in the environment when it is
started, and by name at a request's admission.

vLLM shows ``RelaxedGreedy.validate_params`` a request's parameters alone. Whether anything is
drafted and whether workers attach is known to its ``InputProcessor``, whose checks are preceded by
ours; and only the body of a request shows a rule that never becomes a parameter."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from certspec.errors import InvalidArgument
from certspec.models.vllm.request_rules import is_ours, read_rules, thinking_tokens
from certspec.presets import parse_rules

__all__ = [
    "asks_to_attach",
    "asks_to_record",
    "check_environment",
    "refuse_lost",
    "refuse_unserved",
    "watch_admissions",
]

_ATTACH, _RULES, _TRACE = "CERTSPEC_ATTACH", "CERTSPEC_RULES", "CERTSPEC_TRACE"
_TOKENS = "CERTSPEC_THINKING_TOKENS"
_NAMES = (_ATTACH, _RULES, _TRACE, _TOKENS)
_PREFIX = "CERTSPEC"
_LETS_MORE_THROUGH = ("synthetic", "fly")  # ways of vLLM's own to accept what is no argmax
_PROCESSOR = ("vllm.v1.engine.input_processor", "InputProcessor")
_REQUESTS = (
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
)


def asks_to_record(environment: Mapping[str, str]) -> str | None:
    """The variable that asks for certificates, or None."""
    return next((name for name in (_TRACE, _RULES) if environment.get(name)), None)


def asks_to_attach(environment: Mapping[str, str]) -> bool:
    """Whether Runner V1's workers attach without ``--worker-cls``: they are told to, or there are
    certificates to make."""
    return environment.get(_ATTACH) == "1" or asks_to_record(environment) is not None


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument naming a variable of ours that is misspelt or has no good value."""
    for name, value in environment.items():
        own = name.upper().removeprefix(_PREFIX).strip("_")
        if name in _NAMES or not name.upper().startswith(_PREFIX):
            continue
        known = {each.removeprefix(_PREFIX).strip("_"): each for each in _NAMES}
        if near := difflib.get_close_matches(own, known, n=1):
            raise InvalidArgument(f"environment: expected {known[near[0]]}, got {name}={value!r}")
    if environment.get(_ATTACH, "") not in ("", "0", "1"):
        raise InvalidArgument(f"{_ATTACH}: expected 1 or 0, got {environment[_ATTACH]!r}")
    if rules := environment.get(_RULES):
        try:
            parse_rules([rules])
        except InvalidArgument as error:
            raise InvalidArgument(f"{_RULES}: {error}") from error
    if tokens := environment.get(_TOKENS):
        thinking_tokens(tokens)


def refuse_unserved(config: Any, params: Any) -> None:
    """Raises InvalidArgument where a server of this ``VllmConfig`` can't do what a request's
    relaxed rule asks: nothing is drafted, no worker attaches, or a token is beyond its
    vocabulary."""
    extra = getattr(params, "extra_args", None)  # pooling has none
    if not extra:
        return
    rules = read_rules(extra, params.temperature)
    if rules.is_strict:
        return
    rule = rules.outside if rules.outside.is_relaxed else rules.inside
    speculation = config.speculative_config
    if speculation is None:
        raise InvalidArgument(
            f"certspec: expected a server with --speculative-config for the rule {rule}, "
            "got one that drafts nothing"
        )
    method = getattr(speculation, "rejection_sample_method", None)
    if method in _LETS_MORE_THROUGH:
        raise InvalidArgument(
            f"certspec: expected a server that accepts by the target's argmax for the rule {rule}, "
            f"got rejection_sample_method {method!r}"
        )
    if not config.use_v2_model_runner and not _attaches(config.parallel_config.worker_cls):
        raise InvalidArgument(
            f"certspec: expected a server started with CERTSPEC_ATTACH=1 or our --worker-cls for "
            f"the rule {rule}, got Runner V1 without either"
        )
    size = config.model_config.get_vocab_size()
    if max(rules.start, rules.end) >= size:
        raise InvalidArgument(
            f"certspec_thinking_tokens: expected ids below {size}, got {rules.start},{rules.end}"
        )


def _attaches(worker_class: str) -> bool:
    return asks_to_attach(os.environ) or _is_ours(worker_class)


@functools.lru_cache
def _is_ours(worker_class: str) -> bool:
    from certspec.models.vllm import attaching

    module, _, name = worker_class.rpartition(".")
    if module == attaching.__name__ or module.partition(".")[0] == "vllm":
        return module == attaching.__name__
    try:  # somebody's own, which may be made from ours
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return False
    return issubclass(found, attaching.Attaching)


def refuse_lost(request: Any, is_beam_search: bool = False) -> None:
    """Raises InvalidArgument where a rule in the body of a ``request`` would be lost: it stands
    beside ``vllm_xargs``, or beams are searched, which verify nothing."""
    beside = dict(request.model_extra or {})
    for name, value in list(beside.items()):
        if isinstance(value, Mapping):
            beside |= {f"{name}.{inner}": inner for inner in value if is_ours(inner)}
    for name in beside:
        if is_ours(name) or is_ours(name.rpartition(".")[2]):
            raise InvalidArgument(f"{name}: expected it in vllm_xargs, got it beside")
    for name, value in (request.vllm_xargs or {}).items() if is_beam_search else ():
        if is_ours(name):
            raise InvalidArgument(f"{name}: expected no beam search, got it with {value!r}")


def watch_admissions() -> None:
    """Refuse at admission what this server can't serve; twice does nothing. What a version of vLLM
    does not have is left alone.

    A request's rule is read when its parameters are made, before a stream has a status."""

    def of_processor(_: Any, processor: Any, params: Any, *__: Any, **___: Any) -> None:
        refuse_unserved(processor.vllm_config, params)

    def of_request(params: Any, request: Any, *_: Any, **__: Any) -> None:
        refuse_lost(request)
        read_rules(params.extra_args, params.temperature)

    def of_beams(_: Any, request: Any, *__: Any, **___: Any) -> None:
        refuse_lost(request, is_beam_search=True)

    _check_after(_PROCESSOR, "_validate_params", of_processor)
    for place in _REQUESTS:
        _check_after(place, "to_sampling_params", of_request)
        _check_after(place, "to_beam_search_params", of_beams)


def _check_after(place: tuple[str, str], name: str, check: Callable[..., None]) -> None:
    """Let ``check`` see the result and the arguments of a method of a class that vLLM has
    loaded."""
    home = getattr(sys.modules.get(place[0]), place[1], None)
    inner = getattr(home, name, None)
    if home is None or inner is None or getattr(inner, "by_certspec", False):
        return

    @functools.wraps(inner)
    def checked(*arguments: Any, **options: Any) -> Any:
        found = inner(*arguments, **options)
        try:
            check(found, *arguments, **options)
        except InvalidArgument as error:  # of vLLM's own kind, or it answers 500
            known = sys.modules.get("vllm.exceptions")
            raise getattr(known, "VLLMValidationError", InvalidArgument)(str(error)) from error
        return found

    checked.by_certspec = True  # type: ignore[attr-defined]
    setattr(home, name, checked)
