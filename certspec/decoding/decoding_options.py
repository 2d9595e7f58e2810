"""What a caller asks of ``generate``, checked and turned into schedules, a draft policy and stopping rules. This module
runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from certspec.decoding.drafting import DraftPolicy, StaticPolicy
from certspec.decoding.requests import StoppingRules, find_eos_token_ids, stopping_rules
from certspec.decoding.schedules import RuleSchedule, Throughout
from certspec.errors import InvalidArgument
from certspec.models.trees import TreeShape, TreeTopology, chain
from certspec.rules import Rule, Tree

if TYPE_CHECKING:
    from certspec.models.pairs import Pair

__all__ = ["draft_policy", "eos_ids", "positive_count", "prompt_stopping", "require_rule", "rule_schedules"]


def rule_schedules(rule: Any, num_prompts: int) -> list[RuleSchedule]:
    given = list(rule) if isinstance(rule, (list, tuple)) else [rule] * num_prompts
    if len(given) != num_prompts:
        raise InvalidArgument(
            f"rule: expected one a prompt, or one for all, got {len(given)} for {num_prompts} prompts"
        )
    schedules = [Throughout(one) if isinstance(one, Rule) else one for one in given]
    for schedule in schedules:
        for one in getattr(schedule, "rules", None) or (schedule,):
            require_rule(one)
    return schedules


def require_rule(given: Any) -> None:
    if not isinstance(given, Rule):
        raise InvalidArgument(f"generate: expected a Rule such as StrictGreedy(), got {given!r}")


def draft_policy(rules: Sequence[Rule], draft_length: Any, tree: Any, num_tokens: int) -> DraftPolicy:
    """The policy asked for: a policy itself, the tree asked for or that a Tree rule implies, or a chain."""
    tree_rules = [rule for rule in rules if isinstance(rule, Tree)]
    given = tree if tree is not None else draft_length
    if _is_policy(given):
        if tree_rules:
            raise InvalidArgument(f"rule {tree_rules[0]} expects a static tree of width {tree_rules[0].m}, got {given}")
        policy: DraftPolicy = given
    else:
        policy = StaticPolicy(_topology(tree_rules, draft_length, tree))
    if policy.width >= num_tokens:
        raise InvalidArgument(f"tree: expected a width below the vocabulary of {num_tokens} tokens, got {policy.width}")
    return policy


def _is_policy(given: Any) -> bool:
    return callable(getattr(given, "start", None)) and hasattr(given, "depth")


def _topology(tree_rules: Sequence[Tree], draft_length: int, tree: Any) -> TreeTopology:
    if tree is None and tree_rules:
        tree = tree_rules[0].m
    if tree is None:
        return chain(draft_length)
    if not isinstance(tree, (TreeShape, TreeTopology)):
        tree = TreeShape(tree, draft_length)
    topology = tree.topology if isinstance(tree, TreeShape) else tree
    for rule in tree_rules:
        if rule.m != topology.width:
            raise InvalidArgument(
                f"rule {rule} expects a draft tree of width {rule.m}, got one of width {topology.width}"
            )
    return topology


def eos_ids(pair: Pair, given: int | Iterable[int] | None) -> frozenset[int]:
    """The ids that end a sequence: those given, or else the target's own."""
    if given is None:
        return find_eos_token_ids(pair.target, pair.tokenizer)
    return frozenset([given] if isinstance(given, int) else given)


def prompt_stopping(
    index: int, length: int, max_new_tokens: int, limit: int | None, eos: frozenset[int]
) -> StoppingRules:
    """``stopping_rules`` of prompt ``index``, whose number an error names."""
    try:
        return stopping_rules(length, max_new_tokens, limit, eos)
    except InvalidArgument as error:
        raise InvalidArgument(f"prompt {index}: {error}") from error


def positive_count(name: str, value: Any) -> int:
    """``value`` as an integer of at least 1; raises InvalidArgument naming ``name``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"{name}: expected an integer of at least 1, got {value!r}")
    return value
