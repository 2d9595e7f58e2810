"""A way of drafting as the options of certspec, vLLM, SGLang and TensorRT-LLM, or the reason why an
engine has none. A strict chain of 5 is, for certspec, ``certspec decode "PROMPT" --rule strict
--draft-length 5``; a tree is for vLLM "none: a draft model proposes one chain"."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

from certspec.rules import Rule

__all__ = ["ENGINES", "engine_options", "has_options"]

ENGINES = ("certspec", "vLLM", "SGLang", "TensorRT-LLM")


def engine_options(
    rule: Rule,
    draft_length: int,
    target: str | None,
    draft: str | None,
    kl_budget: float | None = None,
) -> dict[str, str]:
    """By engine: its options for this rule and draft length (of a tree: its depth), or why it has
    none.

    ``kl_budget``: nats, where drafting stops by a drafter-side certificate; engines have fixed
    lengths only.

    ``target``, ``draft``: ids or directories, None where the run doesn't name them or they are the
    bundled ones.
    """
    if kl_budget is not None:
        reason = "none: its draft length doesn't follow the draft's certainty token by token"
        ours = _certspec(rule, draft_length, target, draft)
        return dict.fromkeys(ENGINES, reason) | {"certspec": f"{ours} --kl-budget {kl_budget:g}"}
    return {
        "certspec": _certspec(rule, draft_length, target, draft),
        "vLLM": _vllm(rule, draft_length, draft or "DRAFT"),
        "SGLang": _sglang(rule, draft_length, draft or "DRAFT"),
        "TensorRT-LLM": _tensorrt(rule, draft_length, draft or "DRAFT"),
    }


def has_options(line: str) -> bool:
    """Whether a line of ``engine_options`` names options, not the reason why there are none."""
    return not line.startswith("none")


def _certspec(rule: Rule, draft_length: int, target: str | None, draft: str | None) -> str:
    models = ""
    if target and draft:
        models = f" --target {shlex.quote(target)} --draft {shlex.quote(draft)}"
    way = f"--tree {rule.tree_width}" if rule.tree_width else f"--rule {rule.label}"
    return f'certspec decode "PROMPT"{models} {way} --draft-length {draft_length}'


def _vllm(rule: Rule, draft_length: int, draft: str) -> str:
    config = json.dumps(
        {"method": "draft_model", "model": draft, "num_speculative_tokens": draft_length}
    )
    options = f"--speculative-config {shlex.quote(config)}"
    if rule.tree_width:
        return "none: a draft model proposes one chain"
    if not rule.is_relaxed:
        return f"{options}, and temperature 0 in each request"
    return f"{options}, and with the plugin certspec[vllm] {_asked(rule)} in each request"


def _asked(rule: Rule) -> str:
    extra = json.dumps({"temperature": 0, "vllm_xargs": {"certspec_rule": rule.label}})
    return extra[1:-1]


def _sglang(rule: Rule, draft_length: int, draft: str) -> str:
    width = max(rule.tree_width, 1)
    options = (
        f"--speculative-algorithm STANDALONE --speculative-draft-model-path {shlex.quote(draft)} "
        f"--speculative-num-steps {draft_length} --speculative-eagle-topk {width} "
        f"--speculative-num-draft-tokens {draft_length * width + 1}"
    )
    if rule.name in _SGLANG:
        return _SGLANG[rule.name](rule, draft_length, options)
    if rule.tree_width:
        return f"{options} (it grows its own tree of that many nodes, the best paths first)"
    return (
        f"none for {rule.label}: it relaxes by an absolute threshold only "
        "(--speculative-accept-threshold-single)"
    )


def _tensorrt(rule: Rule, draft_length: int, draft: str) -> str:
    options = (
        f"DraftTargetDecodingConfig(max_draft_len={draft_length}, speculative_model={draft!r})"
    )
    special = _TENSORRT[rule.name](rule, draft_length, options) if rule.name in _TENSORRT else None
    if special is not None:
        return special
    if rule.tree_width:
        return "none: a draft model proposes one chain"
    return (
        f"none for {rule.label}: relaxed acceptance is top-k with a difference of probabilities "
        "(gated:K,additive=D)"
    )


def _relaxed_in_thinking(rule: Any, draft_length: int, options: str) -> str | None:
    if rule.additive is None:
        return None
    return (
        "none for a draft model; with MTP drafts, in the thinking phase: "
        f"MTPDecodingConfig(max_draft_len={draft_length}, "
        "use_relaxed_acceptance_for_thinking=True, "
        f"relaxed_topk={rule.top_m}, relaxed_delta={rule.additive:g})"
    )


# By engine, the rules that it has options for: (rule, draft length, its options without a rule) to
# a line, by the rule's name.
_SGLANG: dict[str, Callable[[Any, int, str], str]] = {
    "strict": lambda rule, length, options: options,
    "absolute": lambda rule, length, options: (
        f"{options} --speculative-accept-threshold-single {rule.tau:g}"
    ),
}
_TENSORRT: dict[str, Callable[[Any, int, str], str | None]] = {
    "strict": lambda rule, length, options: options,
    "gated": _relaxed_in_thinking,
}
