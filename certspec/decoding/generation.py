"""The public ``generate``: a pair, prompts and a rule in, sequences, step records and metrics out.
How a round goes stands in ``plain_rounds``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from certspec.decoding.drafting import DraftPolicy, StaticPolicy
from certspec.decoding.groups import Workload, decode_shared
from certspec.decoding.prompts import WithList, listed, prompt_token_ids
from certspec.decoding.records import KINDS, StepList, StepRecord, acceptance_metrics
from certspec.decoding.requests import (
    DecodingPlan,
    LogitsProcessor,
    Request,
    RoundCounts,
    StoppingRules,
    stop_at,
    stopping_rules,
)
from certspec.decoding.schedules import RuleSchedule, Throughout, token_ids_of
from certspec.errors import InvalidArgument
from certspec.models.choice import chosen_runners, require_models
from certspec.models.processors import (
    Asked,
    in_config,
    require_same_answers,
    require_stateless,
    watched,
)
from certspec.models.runner import BoundedRunner, require_runners
from certspec.models.settings import context_limit, find_eos_token_ids, within
from certspec.models.trees import TreeShape, TreeTopology, chain
from certspec.presets import as_rule, as_rules
from certspec.rules import Rule, StrictGreedy, as_index, require_rule

if TYPE_CHECKING:
    from typing import Unpack

    from certspec.models.pairs import Pair
    from certspec.models.runner import ModelRunner

__all__ = [
    "DecodingOptions",
    "Generation",
    "draft_policy",
    "eos_ids",
    "generate",
    "inference",
    "positive_count",
    "prompt_stopping",
    "rule_schedules",
]


def rule_schedules(rule: Any, num_prompts: int, num_tokens: int) -> list[RuleSchedule]:
    given = list(rule) if isinstance(rule, (list, tuple)) else [rule] * num_prompts
    if len(given) != num_prompts:
        raise InvalidArgument(
            f"rule: expected one a prompt, or one for all, got {len(given)} for {num_prompts} "
            "prompts"
        )
    schedules = [
        one
        if isinstance(one, RuleSchedule) and not isinstance(one, type)
        else Throughout(as_rule(one, "generate"))
        for one in given
    ]
    for schedule in schedules:
        beyond = [token for token in token_ids_of(schedule) if token >= num_tokens]
        if beyond:  # never emitted, so the rule would never change
            raise InvalidArgument(
                f"Between: expected token ids in [0, {num_tokens - 1}], got {beyond[0]}"
            )
        for one in schedule.rules:
            require_rule(one, "generate")
    return schedules


def draft_policy(
    rules: Sequence[Rule], draft_length: Any, tree: Any, num_tokens: int
) -> DraftPolicy:
    """The policy asked for: a policy itself, the tree asked for or that a Tree rule implies, or a
    chain."""
    tree_rules = [rule for rule in rules if rule.tree_width]
    given = tree if tree is not None else draft_length
    if isinstance(given, DraftPolicy) and not isinstance(given, type):
        if tree_rules:
            raise InvalidArgument(
                f"rule {tree_rules[0]} expects a static tree of width {tree_rules[0].tree_width}, "
                f"got {type(given).__name__}"
            )
        policy = given
    else:
        policy = StaticPolicy(_topology(tree_rules, draft_length, tree))
    if policy.width >= num_tokens:
        raise InvalidArgument(
            f"tree: expected a width below the vocabulary of {num_tokens} tokens, got "
            f"{policy.width}"
        )
    return policy


def _topology(tree_rules: Sequence[Rule], draft_length: int, tree: Any) -> TreeTopology:
    if tree is None and tree_rules:
        tree = tree_rules[0].tree_width
    if tree is None:
        return chain(draft_length)
    if not isinstance(tree, (TreeShape, TreeTopology)):
        tree = TreeShape(tree, draft_length)
    topology = tree.topology if isinstance(tree, TreeShape) else tree
    for rule in tree_rules:
        if rule.tree_width != topology.width:
            raise InvalidArgument(
                f"rule {rule} expects a draft tree of width {rule.tree_width}, got one of width "
                f"{topology.width}"
            )
    return topology


def eos_ids(
    pair: Pair, given: int | Iterable[int] | None
) -> tuple[frozenset[int], tuple[str, ...]]:
    """The ids that end a sequence: those given, or else the target's own, with a note on those of
    its own that are no tokens."""
    if given is None:
        return within(find_eos_token_ids(pair.target, pair.tokenizer), pair.num_tokens)
    try:
        values = listed("eos_token_ids", given) if isinstance(given, WithList) else given
        ids = list(values) if isinstance(values, Iterable) else [values]
        found = frozenset(operator.index(token) for token in ids)
        if any(isinstance(token, bool) for token in ids):
            raise TypeError
    except TypeError:
        raise InvalidArgument(
            f"eos_token_ids: expected a token id or several, got {given!r}"
        ) from None
    tokens, beyond = within(found, pair.num_tokens)
    if beyond:
        raise InvalidArgument(
            f"eos_token_ids: expected ids from 0 to {pair.num_tokens - 1}, or an empty list to "
            f"never stop, got {given!r}"
        )
    return tokens, ()


def prompt_stopping(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, limit: int | None, eos: frozenset[int]
) -> list[StoppingRules]:
    """``stopping_rules`` of each prompt. An error names all prompts that leave no room for a
    token."""
    count = positive_count("max_new_tokens", max_new_tokens)
    try:
        return [stopping_rules(len(prompt), count, limit, eos) for prompt in prompts]
    except InvalidArgument as error:
        first, *others = (n for n, each in enumerate(prompts) if len(each) >= (limit or 0))
        also = f"; too long as well: {', '.join(map(str, others))}" if others else ""
        raise InvalidArgument(f"prompt {first}: {error}{also}") from error


def callables(name: str, given: Any, *, many: bool = True) -> tuple[Callable[..., Any], ...]:
    """What is to be called: those that ``given`` lists, or where not ``many`` itself; none for
    None. Raises InvalidArgument, naming ``name``, for what can't be."""
    try:
        found = () if given is None else tuple(given) if many else (given,)
    except TypeError:
        found = (None,)
    for each in found:
        is_class = isinstance(each, type)  # calling it would make one, of ids and scores
        if is_class or not callable(each):
            expected = "a list of callables" if many else "a callable"
            got = f"the class {each.__name__}" if is_class else repr(given)
            raise InvalidArgument(f"{name}: expected None or {expected}, got {got}")
    return found


def positive_count(name: str, value: Any) -> int:
    """``value`` as an integer of at least 1; raises InvalidArgument naming ``name``."""
    count = as_index(value, otherwise=0)
    if count < 1:
        raise InvalidArgument(f"{name}: expected an integer of at least 1, got {value!r}")
    return count


@dataclass(repr=False)
class Generation:
    """What ``generate`` returns, one entry a prompt in each list.

    ``sequences``: new token ids (an end-of-sequence token included); ``texts``: the same as text;
    ``finish_reasons``: "eos", "length", "context" or "stopped" (by a stop string); ``steps``: a
    StepRecord for each emitted token, in columns; ``metrics``: every acceptance convention by name
    and counts of what was emitted (None where there is no such quantity); ``engine``: what ran the
    models; ``notes``: what was aligned, and why transformers ran them if it did."""

    sequences: list[list[int]]
    steps: StepList
    metrics: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    engine: str = ""
    notes: tuple[str, ...] = ()

    @property
    def given_up(self) -> list[StepRecord]:
        """The steps where a relaxed rule emitted another token than the target's argmax (see
        token_prob_ratio)."""
        changed = self.steps.column("token") != self.steps.column("target_token")
        return [self.steps[int(index)] for index in np.flatnonzero(changed)]

    def __repr__(self) -> str:
        count = len(self.sequences)
        rounds, share = self.metrics.get("num_rounds"), self.metrics.get("certified_share")
        return (
            f"Generation({count} sequence{'s' if count != 1 else ''}, {len(self.steps)} tokens"
            + (f" in {rounds} rounds" if rounds is not None else "")
            + (f", {100 * share:.0f} % of the drafted certified" if share is not None else "")
            + (f", by {self.engine}" if self.engine else "")
            + ")"
        )


class DecodingOptions(TypedDict, total=False):
    """Further keywords of ``generate``, each as its documentation says."""

    chat: bool | None
    logits_processor: Iterable[LogitsProcessor] | None
    on_step: Callable[[StepRecord], Any] | None
    runners: tuple[ModelRunner, ModelRunner] | None
    stop_strings: str | Iterable[str] | None


def generate(
    pair: Pair,
    prompts: str | Sequence[Any],
    rule: str | Rule | RuleSchedule | Sequence[str | Rule | RuleSchedule] | None = None,
    *,
    draft_length: int | DraftPolicy = 4,
    tree: int | TreeShape | TreeTopology | DraftPolicy | None = None,
    max_new_tokens: int = 128,
    batch_size: int = 1,
    rules: str | Iterable[str | Rule] | None = None,
    eos_token_ids: int | Iterable[int] | None = None,
    **options: Unpack[DecodingOptions],
) -> Generation:
    """Greedy speculative decoding of ``prompts`` with a certificate at every drafted position.

    On acceptance the draft's token is emitted, on rejection the target's argmax, and after a fully
    accepted block the target's next argmax. With strict greedy, or a tree, the output is the
    target's own greedy output. Qwen and Llama models are run by the compiled engines (float32 on a
    CPU, bfloat16 or float32 on a GPU), others by transformers (``Generation.notes`` says why).
    Kernels are compiled once; meanwhile Ctrl-C waits for the one at hand, up to some seconds.

    Args:
        pair: what ``load_pair`` returned.
        prompts: one or several: texts, lists of messages, or token ids.
        rule: which drafts are accepted, itself or its text; None: strict. It may also be a
            ``RuleSchedule`` such as ``Between`` (another rule at other positions), or a list of
            rules and schedules, one a prompt.
        draft_length: so many tokens in a chain, or a ``DraftPolicy`` such as ``Adaptive``.
        tree: the draft proposes a tree instead: ``tree=4`` is ``TreeShape(4, draft_length)``, a
            ``TreeTopology`` is any static tree, and ``rule=Tree(m)`` alone implies width m.
        max_new_tokens: a prompt gets at most so many.
        batch_size: so many prompts are decoded together, each accepting its own number of tokens
            and leaving when it is done (in the compiled engines the next one takes its place); a
            prompt's tokens do not depend on its company. On a CPU the engine's cores share the
            rows out, unless ``on_step`` or a ``logits_processor`` has to be called.
        rules: scored besides, at every drafted position that is emitted; they decide nothing.
        eos_token_ids: replaces the target's own (an empty list: never stop).
        options: further keywords, None by default (``DecodingOptions``):

            - ``chat``: whether text prompts go through the chat template; None: where there is one.
            - ``logits_processor``: some of transformers' or your own (no state), applied at every
              position to both models' logits, each position seeing the tokens before it and no
              other prompt, as ``model.generate`` of this prompt alone; besides those that the
              target's generation_config asks for (``Generation.notes`` names them, and what of it
              is not applied).
            - ``on_step``: hears each ``StepRecord`` as it is emitted.
            - ``runners``: (target, draft), each a ``ModelRunner``, in place of the engines.
            - ``stop_strings``: a text, or several, one of which ends a sequence with the token that
              completes it, where ``model.generate(stop_strings=..., tokenizer=...)`` ends it. They
              are looked for between rounds, so a CPU's rounds are run from Python.

    Raises InvalidArgument for arguments out of range (naming the prompt), InvalidLogits where a
    model's logits are no distribution (naming prompt and round), TypeError for another keyword.

    Example:
        >>> import certspec as cs
        >>> pair = cs.load_pair()
        >>> fox = cs.generate(pair, "Tell me about a fox.", "additive:0.3", max_new_tokens=12)
        >>> fox
        Generation(1 sequence, 12 tokens in ... rounds, ... certified, by certspec cpu)
        >>> fox.steps[0].rule
        'additive:0.3'
    """
    unknown = options.keys() - DecodingOptions.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"generate: expected {', '.join(DecodingOptions.__annotations__)} besides its named "
            f"arguments, got {', '.join(sorted(unknown))}"
        )
    require_models(pair)
    runners = options.get("runners")
    if runners is not None:
        require_runners(runners, pair.num_tokens)
    extra = () if rules is None else as_rules(rules)
    ids = prompt_token_ids(prompts, pair.tokenizer, pair.num_tokens, options.get("chat"))
    schedules = rule_schedules(StrictGreedy() if rule is None else rule, len(ids), pair.num_tokens)
    occurring = list(dict.fromkeys(rule for schedule in schedules for rule in schedule.rules))
    policy = draft_policy(occurring, draft_length, tree, pair.num_tokens)
    batch_size = positive_count("batch_size", batch_size)
    (eos, beyond), limit = eos_ids(pair, eos_token_ids), context_limit(pair.target)
    should_stop = stop_at(pair.tokenizer, options.get("stop_strings"))
    requests = [
        Request(index, *each, should_stop)
        for index, each in enumerate(
            zip(ids, schedules, prompt_stopping(ids, max_new_tokens, limit, eos), strict=True)
        )
    ]
    given_processors = callables("logits_processor", options.get("logits_processor"))
    require_stateless(given_processors)
    given_processors = watched(given_processors)
    on_step = options.get("on_step")
    callables("on_step", on_step, many=False)
    processors, of_config = in_config(
        pair.target,
        [
            Asked(each.prompt, each.stopping.max_new_tokens, each.stopping.eos_token_ids)
            for each in requests
        ],
        given_processors,
    )
    plan = DecodingPlan(policy, extra, context_limit(pair.draft), processors, on_step)
    steps, counts = StepList([other.label for other in extra]), RoundCounts()
    generation = Generation([], steps, {}, prompts=ids)
    lent = nullcontext((*runners, "given runners", ())) if runners is not None else None
    with (
        inference(pair.target, pair.draft),
        lent or chosen_runners(pair) as (target, draft, engine, notes),
    ):
        generation.engine, generation.notes = engine, pair.notes + notes + beyond + of_config
        if batch_size > 1 and any(
            isinstance(runner, BoundedRunner) and runner.max_batch == 1
            for runner in (target, draft)
        ):
            if len(requests) > 1:
                generation.notes += ("batch_size: transformers runs one prompt at a time",)
            batch_size = 1
        decode_shared(target, draft, Workload(requests, batch_size, plan, steps, counts))
        require_same_answers(given_processors)
    steps.sort()
    generation.sequences = [request.tokens for request in requests]
    generation.finish_reasons = [str(request.reason) for request in requests]
    if pair.tokenizer is not None:
        generation.texts = [
            pair.tokenizer.decode(t, skip_special_tokens=True) for t in generation.sequences
        ]
    generation.metrics = _metrics(steps, counts, policy)
    return generation


@contextmanager
def inference(*models: Any) -> Iterator[None]:
    """No gradients and no dropout inside; each model's training flag is what it was afterwards."""
    import torch

    was_training = [model.training for model in models]
    try:
        for model in models:
            model.eval()
        with torch.inference_mode():
            yield
    finally:
        for model, flag in zip(models, was_training, strict=True):
            if flag:
                model.train()


def _metrics(steps: StepList, counts: RoundCounts, policy: DraftPolicy) -> dict[str, Any]:
    kinds = np.bincount(steps.column("kind"), minlength=len(KINDS))
    drafted = steps.column("accepted") >= 0
    certified = steps.column("certified")
    relaxed = steps.column("token") != steps.column("target_token")
    ratios = steps.column("token_prob_ratio")[relaxed]
    num_drafted = int(drafted.sum())
    metrics = acceptance_metrics(
        counts.accepted, counts.drafted, counts.nodes, num_spec_tokens=policy.depth
    )
    return metrics | {
        "num_emitted": len(steps),
        "num_rounds": len(counts.accepted),
        "num_target_passes": counts.num_target_passes,
        "num_draft_passes": counts.num_draft_passes,
        **{f"num_{kind}": int(kinds[code]) for code, kind in enumerate(KINDS)},
        "num_drafted_positions": num_drafted,
        "num_certified": int(certified.sum()),
        "certified_share": int(certified.sum()) / num_drafted if num_drafted else None,
        "num_false_certificates": int((certified & (steps.column("accepted") == 0)).sum()),
        "num_relaxed_tokens": int(relaxed.sum()),
        "relaxed_prob_ratio_min": float(ratios.min()) if len(ratios) else None,
        "relaxed_prob_ratio_mean": float(ratios.mean()) if len(ratios) else None,
        "num_flat_draft_rows": counts.num_flat_draft_rows,
    }
