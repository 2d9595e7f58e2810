"""The plugin of the group ``vllm.logits_processors``: relaxed rules under Model Runner V2, and the
check of every request at admission under both runners. Certificates under Runner V2: see
``certspec.models.vllm.recording``.

Runner V2 runs logits processors under speculation. A row whose draft token the request's rule
accepts gets that token as its argmax, so vLLM's own kernels accept it. Runner V1 runs none under
speculation (its way in is ``certspec.models.vllm.attaching``), but asks every class of the group to
check a request's parameters, and makes an object of it where nothing is drafted; so this class has
V1's methods too, which do nothing. Without vLLM the module still imports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from certspec.models.vllm.request_rules import (
    STRICT,
    RequestRules,
    inside_along,
    is_inside,
    read_rules,
    relax,
)
from certspec.rules import Rule

if TYPE_CHECKING:
    import torch

_Base: Any = object
with contextlib.suppress(ImportError):  # no vLLM, or one before Runner V2
    from vllm.v1.worker.gpu.sample.logits_processor import interface

    _Base = interface.LogitsProcessor

__all__ = ["Drafted", "RelaxedGreedy", "drafted_rows"]


@dataclass(frozen=True)
class Drafted:
    """Of each row of a batch: the token that was drafted after it (what the next row of the same
    request was fed), its slot, and whether there is such a token (vLLM marks placeholders as
    -1)."""

    tokens: torch.Tensor
    owners: list[int]
    followed: list[bool]


class RelaxedGreedy(_Base):
    """Per-request rules as a logits processor."""

    def __init__(
        self, vllm_config: Any, req_states: Any = None, is_pin_memory: bool = False
    ) -> None:
        self.params: dict[int, Any] = {}  # of the request in each slot
        self.states = req_states  # under V1, where nothing is drafted, a device
        # of the last call: the rows that were relaxed, the tokens let through, what stood there
        self.changed: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._rules: dict[int, RequestRules] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request at admission: vLLM answers 400 with the ValueError's text."""
        read_rules(sampling_params.extra_args, sampling_params.temperature)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request enters slot ``req_idx``; whether its logits may be changed."""
        rules = read_rules(sampling_params.extra_args, sampling_params.temperature)
        self.params[req_idx], self._rules[req_idx] = sampling_params, rules
        return not rules.is_strict

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Relax the rows of a batch; ``ctx`` (vLLM's ``LogitsContext``) is None under V1."""
        self.changed = None
        if ctx is None or all(rules.is_strict for rules in self._rules_in(ctx).values()):
            return logits
        drafted = drafted_rows(ctx)
        rows, values = relax(logits, drafted.tokens, self.row_rules(ctx, drafted))
        self.changed = rows, drafted.tokens[rows], values
        return logits

    def row_rules(self, ctx: Any, drafted: Drafted) -> list[Rule | None]:
        """The rule of each row that has a draft."""
        of_slots, inside = self._rules_in(ctx), [False] * len(drafted.owners)
        for slot, rules in of_slots.items():
            if rules.inside is not None:
                own = [row for row, owner in enumerate(drafted.owners) if owner == slot]
                # what row 0 was fed is the last committed token, the others were fed drafts
                history = self.states.all_token_ids.gpu[slot, : int(ctx.pos[own[0]]) + 1]
                fed = ctx.input_ids[own[1:]].tolist()
                states = inside_along(is_inside(history, rules), fed, rules)
                for row, state in zip(own, states, strict=True):
                    inside[row] = state
        return [
            of_slots[owner].at(state) if has_draft and owner in of_slots else None
            for owner, state, has_draft in zip(
                drafted.owners, inside, drafted.followed, strict=True
            )
        ]

    def _rules_in(self, ctx: Any) -> Mapping[int, RequestRules]:
        return {int(slot): self._rules.get(int(slot), STRICT) for slot in ctx.idx_mapping_np}

    def is_argmax_invariant(self) -> bool:
        """For V1: greedy requests may skip it."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """For V1, which tells who came and went: nothing to note."""


def drafted_rows(ctx: Any) -> Drafted:
    """What was drafted in a batch in the layout of vLLM's ``LogitsContext``."""
    import torch

    slot, place = ctx.expanded_idx_mapping, ctx.expanded_local_pos
    followed = torch.zeros(len(slot), dtype=torch.bool, device=slot.device)
    followed[:-1] = (slot[1:] == slot[:-1]) & (place[1:] == place[:-1] + 1)
    tokens = torch.roll(ctx.input_ids, -1).long()
    followed &= tokens >= 0
    return Drafted(tokens.clamp(min=0), slot.tolist(), followed.tolist())
