"""What a request asks for in ``vllm_xargs``, and which tokens of its draft that lets through.

read_rules({"certspec_rule": "additive:0.3"}, temperature=0.0).outside      # Additive(0.3)
read_rules({"certspec_thinking_rule": "top:3",
            "certspec_thinking_tokens": "151667,151668"}, 0.0)      # strict after </think>"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from certspec.certificates.acceptance import accepts
from certspec.errors import InvalidArgument
from certspec.presets import parse_rule
from certspec.rules import Rule, StrictGreedy

if TYPE_CHECKING:
    import torch

__all__ = [
    "STRICT",
    "RequestRules",
    "inside_along",
    "is_inside",
    "is_ours",
    "read_rules",
    "relax",
    "thinking_tokens",
]

_RULE, _THINKING, _TOKENS = "certspec_rule", "certspec_thinking_rule", "certspec_thinking_tokens"
_GREEDY = 1e-5  # vLLM takes lower temperatures for 0
_LARGEST = 2**31 - 1  # a token's id in vLLM


_STRICT = StrictGreedy()


@dataclass(frozen=True)
class RequestRules:
    """A request's rule; ``inside`` is the one after a token ``start`` until a token ``end``."""

    outside: Rule = _STRICT
    inside: Rule | None = None
    start: int = -1
    end: int = -1

    @property
    def is_strict(self) -> bool:
        return not any(rule.is_relaxed for rule in (self.outside, self.inside or self.outside))

    def at(self, is_thinking: bool) -> Rule:
        """The rule where the request is between its thinking tokens, or is not."""
        return self.inside if is_thinking and self.inside is not None else self.outside


STRICT = RequestRules()


def read_rules(extra: Mapping[str, Any] | None, temperature: float) -> RequestRules:
    """The rules that a request's ``extra_args`` name; strict greedy where they name none.

    Raises InvalidArgument (a ValueError) naming the value where it is no single-token rule, where
    the request samples, where thinking tokens are missing or have no rule, and for any other name
    that begins like ours."""
    given = {name: value for name, value in (extra or {}).items() if is_ours(name)}
    if not given:
        return STRICT
    unknown = sorted(given.keys() - {_RULE, _THINKING, _TOKENS})
    if unknown:
        raise InvalidArgument(
            f"{unknown[0]}: expected {_RULE}, {_THINKING} or {_TOKENS}, got {given[unknown[0]]!r}"
        )
    for name in given.keys() & {_RULE, _THINKING}:
        if not isinstance(given[name], str):
            raise InvalidArgument(f"{name}: expected a rule's text, got {given[name]!r}")
    if _TOKENS in given and _THINKING not in given:
        raise InvalidArgument(f"{_TOKENS}: expected {_THINKING} beside it, got none")
    tokens = given.get(_TOKENS, os.environ.get("CERTSPEC_THINKING_TOKENS"))
    text = ",".join(map(str, tokens)) if isinstance(tokens, list | tuple) else str(tokens)
    found = _read(given.get(_RULE, "strict"), given.get(_THINKING), text)
    if temperature >= _GREEDY and not found.is_strict:
        relaxed = found.outside if found.outside.is_relaxed else found.inside
        raise InvalidArgument(
            f"certspec: expected temperature 0 with the rule {relaxed}, got {temperature!r}"
        )
    return found


def is_ours(name: Any) -> bool:
    """Whether a name was meant for certspec, however it is spelt."""
    return isinstance(name, str) and name.strip().lower().startswith("certspec")


@lru_cache(maxsize=1024)
def _read(outside: str, inside: str | None, tokens: str) -> RequestRules:
    rule = _single_token(_RULE, outside)
    if inside is None:
        return RequestRules(rule)
    start, end = thinking_tokens(tokens)
    return RequestRules(rule, _single_token(_THINKING, inside), start, end)


def _single_token(name: str, text: Any) -> Rule:
    try:
        rule = parse_rule(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error
    if rule.tree_width:
        raise InvalidArgument(
            f"{name}: expected a single-token rule (vLLM drafts one chain), got {text!r}"
        )
    return rule


def thinking_tokens(text: str) -> tuple[int, int]:
    """The ids in ``"151667,151668"``; raises InvalidArgument where they are no two ids."""
    parts = [part.strip() for part in text.split(",")]
    good = len(parts) == 2 and all(p.isascii() and p.isdecimal() and len(p) < 20 for p in parts)
    start, end = map(int, parts) if good else (0, 0)
    if start == end or max(start, end) > _LARGEST:
        raise InvalidArgument(
            f"{_TOKENS}: expected the ids that begin and end thinking, such as '151667,151668' "
            f"(or CERTSPEC_THINKING_TOKENS where the server is started), got {text[:80]!r}"
        )
    return start, end


def is_inside(tokens: torch.Tensor, rules: RequestRules) -> bool:
    """Whether the position after ``tokens`` (any number, 1-D) is a thinking one."""
    marks = ((tokens == rules.start) | (tokens == rules.end)).nonzero()
    return len(marks) > 0 and int(tokens[marks[-1, 0]]) == rules.start


def inside_along(before: bool, tokens: Sequence[int], rules: RequestRules) -> list[bool]:
    """The same of each position of a draft and of the one after it; ``before``: of the first."""
    found = [before]
    for token in tokens:
        found.append(True if token == rules.start else found[-1] and token != rules.end)
    return found


def relax(
    logits: torch.Tensor, tokens: torch.Tensor, rules: Sequence[Rule | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let rows of target ``logits`` (rows, vocab), float32, have those of ``tokens`` (rows,) as
    their argmax that their rule accepts; changes them in place. A row of None is left alone.

    A masked token (-inf) is never let through. Returns the indices of the changed rows and what
    stood there."""
    import torch

    changed, values = [], []
    for rule in dict.fromkeys(rule for rule in rules if rule is not None and rule.is_relaxed):
        own = [row for row, each in enumerate(rules) if each == rule]
        rows = torch.tensor(own, device=logits.device)
        picked = tokens[rows].long()
        taken = accepts(rule, logits[rows], picked) & (logits[rows, picked] > -float("inf"))
        rows, picked = rows[taken], picked[taken]
        top = logits[rows].max(1).values
        changed.append(rows)
        values.append(logits[rows, picked])
        logits[rows, picked] = top + 1.0 + top.abs() / 1024  # above it in float32 at any size
    if not changed:
        return tokens.new_zeros(0), logits.new_zeros(0)
    return torch.cat(changed), torch.cat(values)
