"""What a reader noticed in a file and went on: each kind of finding has a name, a count and a place
it was first seen. What a reader can't go on from is an UnreadableInput instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Finding", "Findings", "ServerCounters"]


class Finding(Enum):
    """Kinds of findings. The values are sentences for people."""

    FIRST_WITHOUT_LIST = "a sequence's first position has no logprobs (null): left out"
    POSITION_WITHOUT_LIST = "positions without a list of logprobs: left out"
    PROMPT_LISTS = (
        "lists of prompts (prompt_logprobs) beside those of answers: left out; --format vllm reads "
        "them"
    )
    WITHOUT_LOGPROBS = "answers without logprobs: left out"
    FAILED_ANSWER = "requests that the server answered with an error: left out"
    OTHER_SHAPE = "documents of another shape than the log's: left out"
    LOOKS_PROCESSED = "lists whose mass is 1 although tokens are missing, as top-p leaves them"
    CHOSEN_OUTSIDE = "the chosen token's logprob says only that it is outside the list (sentinel)"
    CHOSEN_BEYOND = (
        "the chosen token may rank beyond the list that it stands in: one true rank fewer than "
        "entries"
    )
    TOP_UNKNOWN = (
        "lists that don't tell the most probable token, for they hold the chosen one alone or may "
        "have lost one of the same text: left out, and the run holds the likelier positions only; "
        "ask the server for several logprobs, by id"
    )
    SENTINELS_DROPPED = (
        "listed tokens with a sentinel instead of a logprob: dropped, their mass counts as tail"
    )
    DUPLICATE_KEYS = (
        "tokens of one list share their key: such tokens can't be matched between files"
    )
    KEY_LOST = (
        "lists keyed by text may have lost tokens to others of the same text: only those likelier "
        "than all that is missing have a rank (--top-logprobs says how many were asked for, "
        "--text-keys-are-tokens that none is lost)"
    )
    NO_KEY = (
        "tokens whose text is no key (escaped or missing bytes): they can't be matched between "
        "files"
    )
    TEXT_KEYS = "tokens are known by text alone: two files are joined on text"
    SURELY_A_MISTAKE = "rows that are surely no logits"
    TOP_TIE = "exact ties at the top: an argmax may fall on either token"
    FORCED = (
        "tokens at logprob 0 that a template seems to force: their certificates say nothing about "
        "the model"
    )
    CUT = "answers cut by length"
    DEPTH_VARIES = "positions whose list is shorter than the deepest one"
    COARSE_DECIMALS = (
        "logprobs rounded to few decimals: bounds are widened by half a unit of the last one"
    )
    LOG_OF_ANOTHER_TEMPERATURE = (
        "gaps between logprobs fall on the grid of bfloat16 logits only after multiplying by a "
        "temperature"
    )
    DEPTHS_DIFFER = "target and draft lists have different depths"
    TEMPERATURES_DIFFER = "temperatures contradict one another"
    TARGET_WITHOUT_DRAFT = "target positions without a draft position: left out"
    DRAFT_WITHOUT_TARGET = "draft positions without a target position: left out"
    RULE_TOO_WIDE = (
        "positions whose list is too short for a rule: its certificate there is 0, a lower bound"
    )


@dataclass
class ServerCounters:
    """What a server says of its own speculation (vLLM: ``metrics.speculative_decoding``), summed
    over the answers of a log."""

    num_spec_steps: int = 0
    num_accepted_draft_tokens: int = 0
    num_draft_tokens: int = 0

    def add(self, told: object) -> None:
        """Add one answer's counters; an object that lacks one of them is left out."""
        counts = [told.get(name) for name in vars(self)] if isinstance(told, dict) else []
        if counts and all(type(count) is int and 0 <= count < 2**63 for count in counts):
            for name, count in zip(vars(self), counts, strict=True):
                setattr(self, name, getattr(self, name) + count)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a verify step, the target's own counted (vLLM's convention); None for no steps."""
        if not self.num_spec_steps:
            return None
        return 1.0 + self.num_accepted_draft_tokens / self.num_spec_steps


@dataclass
class Findings:
    """Counts of findings, each with the place it was first seen and, where there is one, a fact
    about it."""

    counts: dict[Finding, int] = field(default_factory=dict)
    first_seen: dict[Finding, str] = field(default_factory=dict)
    temperature: float | None = (
        None  # at which the log's gaps fit the grid of bfloat16 logits; None where they fit none
    )

    server: ServerCounters = field(default_factory=ServerCounters)

    def note(self, finding: Finding, where: str, count: int = 1) -> None:
        """Count a finding; ``where`` (file:line, or a fact) is kept the first time."""
        self.counts[finding] = self.counts.get(finding, 0) + count
        self.first_seen.setdefault(finding, where)

    def lines(self) -> list[str]:
        """One line a finding, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: -item[1])
        return [
            f"{finding.value}: {count:,} (first: {self.first_seen[finding]})"
            for finding, count in ordered
        ]

    def as_json(self) -> list[dict[str, object]]:
        """The same for a manifest."""
        return [
            {
                "finding": finding.name.lower(),
                "meaning": finding.value,
                "count": count,
                "first": self.first_seen[finding],
            }
            for finding, count in self.counts.items()
        ]
