"""What is asked for: a prompt with its rule and its end, the plan that all prompts share, and the
counts of what rounds did.

Example: after a prompt of 10 tokens, ``StoppingRules(frozenset({2}), 5)`` emits up to 5 tokens, and
ends earlier at token 2, which is emitted too."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from certspec.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import Tensor

    from certspec.decoding.drafting import DraftPolicy
    from certspec.decoding.records import StepRecord
    from certspec.decoding.schedules import RuleSchedule
    from certspec.rules import Rule

__all__ = [
    "DecodingPlan",
    "LogitsProcessor",
    "Request",
    "RoundCounts",
    "StoppingRules",
    "stop_at",
    "stopping_rules",
]

ShouldStop = Callable[[list[int], int], int | None]
_NO_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class StoppingRules:
    """``eos_token_ids`` end a sequence and are emitted; at most ``max_new_tokens`` tokens are
    emitted, and ``limit_reason`` ("length" or "context") says which limit that number comes
    from."""

    eos_token_ids: frozenset[int]
    max_new_tokens: int
    limit_reason: str = "length"

    def cut(self, num_emitted: int, tokens: Sequence[int]) -> tuple[int, str | None]:
        """How many of ``tokens`` are emitted after ``num_emitted`` earlier ones, and why the
        sequence ends (or None).

        Drafted [a, EOS, b, c], all accepted, emits a and EOS; what lies beyond is dropped however
        sure it was."""
        room = self.max_new_tokens - num_emitted
        for index, token in enumerate(tokens[:room]):
            if token in self.eos_token_ids:
                return index + 1, "eos"
        return (room, self.limit_reason) if len(tokens) >= room else (len(tokens), None)


def stopping_rules(
    prompt_length: int, max_new_tokens: int, limit: int | None, eos_token_ids: Iterable[int]
) -> StoppingRules:
    """Stopping rules of one prompt; raises InvalidArgument where ``limit`` leaves no room for a
    token."""
    try:
        count = operator.index(max_new_tokens)
    except TypeError:
        count = 0
    if count < 1 or isinstance(max_new_tokens, bool):
        raise InvalidArgument(
            f"max_new_tokens: expected an integer of at least 1, got {max_new_tokens!r}"
        )
    eos = frozenset(int(token) for token in eos_token_ids)
    if limit is None or prompt_length + count <= limit:
        return StoppingRules(eos, count)
    if prompt_length >= limit:
        raise InvalidArgument(
            f"prompt of {prompt_length} tokens: expected fewer than the target's context of "
            f"{limit}, "
            "so that one new token fits"
        )
    return StoppingRules(eos, limit - prompt_length, "context")


def stop_at(tokenizer: Any, given: Any) -> ShouldStop | None:
    """``Request.should_stop`` of one or several stop strings: the sequence ends with the token that
    completes one, where ``model.generate(stop_strings=...)`` ends it. None for none.

    Raises InvalidArgument for what are no texts, or where there is no tokenizer."""
    try:
        texts = [given] if isinstance(given, str) else list(() if given is None else given)
    except TypeError:
        texts = [None]
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidArgument(
            f"stop_strings: expected None or texts that are not empty, got {given!r}"
        )
    if not texts:
        return None
    if tokenizer is None:
        raise InvalidArgument(f"stop_strings: expected a pair with a tokenizer, got {given!r}")
    from transformers import StopStringCriteria

    try:
        criterion = StopStringCriteria(tokenizer, texts)
    except ValueError as error:  # half a surrogate pair, or letters that no token has
        raise InvalidArgument(f"stop_strings: got {given!r}: {error}") from error

    def after(sequence: list[int], num_new: int) -> int | None:
        import torch

        # all new tokens at once, each at the end of a window as long as the criterion looks back;
        # before the first token stands none that there is
        width = criterion.maximum_token_len
        seen = [_NO_TOKEN] * width + sequence[-(width + num_new) :]
        windows = torch.tensor(seen).unfold(0, width, 1)[len(seen) - width - num_new + 1 :]
        ends = criterion(windows, None).tolist()
        return ends.index(True) + 1 if True in ends else None

    return after


LogitsProcessor = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class DecodingPlan:
    """What is the same for all prompts: how to draft, extra rules to score, the draft's context
    (None: no limit), each prompt's logits processors (empty: none at all), and who hears of each
    step."""

    policy: DraftPolicy
    extra: tuple[Rule, ...] = ()
    draft_limit: int | None = None
    processors: tuple[tuple[LogitsProcessor, ...], ...] = ()
    on_step: Callable[[StepRecord], Any] | None = None


@dataclass
class Request:
    """One prompt and what it asks for; ``sequence`` grows, ``reason`` says why it ended (None: it
    has not).

    ``should_stop`` sees the sequence after every round and the number of tokens that are new in it;
    it returns how many of those are kept if the sequence ends there, or None."""

    index: int
    prompt: Sequence[int]
    schedule: RuleSchedule
    stopping: StoppingRules
    should_stop: ShouldStop | None = None
    sequence: list[int] = field(default_factory=list)
    num_rounds: int = 0
    reason: str | None = None

    def __post_init__(self) -> None:
        self.sequence = list(self.prompt)

    @property
    def num_emitted(self) -> int:
        return len(self.sequence) - len(self.prompt)

    @property
    def tokens(self) -> list[int]:
        """The new tokens."""
        return self.sequence[len(self.prompt) :]

    def extend(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """Emit ``tokens`` up to where the sequence ends: how many, and why it ends (None: it goes
        on)."""
        num_kept, reason = self.stopping.cut(self.num_emitted, tokens)
        self.sequence += tokens[:num_kept]
        if self.should_stop is not None:
            kept = self.should_stop(self.sequence, num_kept)
            if kept is not None:
                del self.sequence[len(self.sequence) - num_kept + kept :]
                num_kept, reason = kept, "stopped" if kept < num_kept or reason is None else reason
        return num_kept, reason


@dataclass
class RoundCounts:
    """Per verification round of a row: draft tokens accepted, positions drafted, tree nodes
    drafted. Passes count once for a whole batch."""

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    num_target_passes: int = 0
    num_draft_passes: int = 0
    num_flat_draft_rows: int = 0

    def extend(self, other: RoundCounts) -> None:
        """Add what was counted elsewhere."""
        self.accepted += other.accepted
        self.drafted += other.drafted
        self.nodes += other.nodes
        self.num_target_passes += other.num_target_passes
        self.num_draft_passes += other.num_draft_passes
        self.num_flat_draft_rows += other.num_flat_draft_rows
