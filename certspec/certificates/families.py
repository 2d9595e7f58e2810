"""What is known of each type of rule, beyond its threshold: one row a rule. ``certify``, decoding
and scoring need no row; margins and radii do.

    known(TopM(4), "margin")(TopM(4), TOP_TWO, True)     # the bound as a function of p1 - p2
    FAMILIES[MyRule] = Family(margin=my_margin)          # a row for a rule of one's own

A gate rejects where either of its parts does, so its bounds are the smaller of two rows' ones.
``README.md`` beside this file adds a rule from its definition to its tests, on one page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from certspec.certificates import margin_bounds, radii
from certspec.certificates.drafter_entropy import entropy_radius_lower
from certspec.certificates.margin_bounds import (
    DRAFT_LAST,
    DRAFT_TOP_TWO,
    DRAFT_TREE_LAST,
    LAST,
    TOP_TWO,
    Bound,
    forward,
    least,
    of_draft,
    reverse,
)
from certspec.certificates.pools import lift_radius, sink_radius
from certspec.certificates.radii import Draft, pair_radius, pair_radius_lower, radius_if_wider
from certspec.errors import InvalidArgument
from certspec.rules import (
    Absolute,
    Additive,
    Entropy,
    Gated,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopM,
    Tree,
)

__all__ = ["FAMILIES", "Family", "family_of", "known"]


@dataclass(frozen=True)
class Family:
    """The row of a type of rule; what is None isn't known, and asking for it is an error that says
    so.

    ``margin``: (rule, gap, at_least) -> the least certificate as a function of the target's margin.
    ``reverse_margin``: (rule, gap) -> the same for KL(draft || target). ``radius_margin``: rule ->
    by gap of the draft, the least radius as a function of that margin. ``radius``: (draft, rule) ->
    (rows,) the drafter-side certificate; ``radius_lower``: the same, not above the exact one
    whatever was rounded. All in nats.

    ``gap_width``: rule -> m where the rule has a gap p1 - p(m+1), else None. ``exactly_differs``:
    whether "exactly this margin" has another bound than "at least". ``num_needed``: rule -> how
    many of a draft's largest probabilities the radius needs; ``num_used``: where more of them
    sharpen it, how many it takes."""

    margin: Callable[[Any, str, bool], Bound] | None = None
    reverse_margin: Callable[[Any, str], Bound] | None = None
    radius_margin: Callable[[Any], dict[str, Bound]] | None = None
    radius: Callable[[Draft, Any], Any] | None = None
    radius_lower: Callable[[Draft, Any], Any] | None = None
    gap_width: Callable[[Any], int | None] = lambda rule: None
    exactly_differs: bool = False
    num_needed: Callable[[Any], int] = lambda rule: 2
    num_used: int = 0


_WORDS = {
    "margin": "margin bound",
    "reverse_margin": "reverse margin bound",
    "radius_margin": "drafter-side margin bound",
    "radius": "drafter-side certificate",
    "radius_lower": "drafter-side certificate from below",
}


def family_of(rule: Rule) -> Family:
    """The row of the rule's type or of the nearest type that it derives from, as long as it decides
    as that one does; an empty row where there is none."""
    own: Any = type(rule)
    kind = next((kind for kind in own.__mro__ if kind in FAMILIES), own)
    same = own.threshold is kind.threshold and own.tree_width is kind.tree_width
    return FAMILIES.get(kind, Family()) if same else Family()


def known(rule: Rule, column: str) -> Callable[..., Any]:
    """A cell of the rule's row; raises InvalidArgument, naming the rule and what is missing, where
    it is empty."""
    cell: Callable[..., Any] | None = getattr(family_of(rule), column)
    if cell is None:
        raise InvalidArgument(
            f"{rule}: no {_WORDS[column]} is known for rules of type {type(rule).__name__}: their "
            f"row in certspec.certificates.families has no {column!r}"
        )
    return cell


def _gate_margin(rule: Any, gap: str, at_least: bool) -> Bound:
    if gap != TOP_TWO and rule.top_m > 1:
        return margin_bounds.gate_last_margin(rule, at_least)
    rank, slack = rule.parts
    ranks = known(rank, "margin")(rank, gap, at_least)
    return ranks if rule.top_m == 1 else least(ranks, known(slack, "margin")(slack, gap, at_least))


def _gate_reverse(rule: Any, gap: str) -> Bound:
    if rule.top_m == 1:
        return reverse.pair_reverse_margin
    if gap != TOP_TWO:
        return margin_bounds.gate_last_reverse(rule)
    return least(*(known(part, "reverse_margin")(part, gap) for part in rule.parts))


def _least_radius(column: str) -> Callable[[Draft, Any], Any]:
    return lambda draft, rule: draft.xp.minimum(
        *(known(part, column)(draft, part) for part in rule.parts)
    )


FAMILIES: dict[type, Family] = {
    StrictGreedy: Family(
        margin=lambda rule, gap, at_least: forward.strict_margin,
        reverse_margin=lambda rule, gap: reverse.pair_reverse_margin,
        radius_margin=lambda rule: {DRAFT_TOP_TWO: reverse.pair_reverse_margin},
        radius=lambda draft, rule: pair_radius(draft, "strict_radius"),
        radius_lower=lambda draft, rule: pair_radius_lower(draft),
        gap_width=lambda rule: 1,
    ),
    Additive: Family(
        margin=margin_bounds.additive_margin,
        reverse_margin=lambda rule, gap: lambda g: reverse.additive_reverse_margin(g, rule.t),
        radius_margin=lambda rule: {
            DRAFT_TOP_TWO: lambda g: of_draft.additive_radius_margin(g, rule.t)
        },
        radius=radii.additive_radius,
        radius_lower=lambda draft, rule: pair_radius_lower(draft, slack=rule.t),
        exactly_differs=True,
    ),
    Multiplicative: Family(
        margin=lambda rule, gap, at_least: lambda g: forward.multiplicative_margin(g, rule.alpha),
        reverse_margin=lambda rule, gap: (
            lambda g: reverse.multiplicative_reverse_margin(g, rule.alpha)
        ),
        radius_margin=lambda rule: {
            DRAFT_TOP_TWO: lambda g: margin_bounds.factor_radius_margin(g, rule.alpha)
        },
        radius=radii.multiplicative_radius,
        radius_lower=lambda draft, rule: pair_radius_lower(draft, factor=rule.alpha),
    ),
    TopM: Family(
        margin=margin_bounds.top_margin,
        reverse_margin=lambda rule, gap: lambda g: reverse.top_reverse_margin(g, float(rule.m)),
        radius_margin=lambda rule: {  # the reverse trees' values (claims drafter.margin.top.*)
            DRAFT_TOP_TWO: margin_bounds.tree_reverse(rule, TOP_TWO),
            DRAFT_LAST: margin_bounds.tree_reverse(rule, LAST),
        },
        radius=lambda draft, rule: radius_if_wider(draft, rule.m, sink_radius),
        radius_lower=radii.top_lower,
        gap_width=lambda rule: rule.m,
        num_needed=lambda rule: rule.m + 1,
    ),
    Gated: Family(
        margin=_gate_margin,
        reverse_margin=_gate_reverse,
        radius_margin=lambda rule: {
            DRAFT_TOP_TWO: least(
                *(known(part, "radius_margin")(part)[DRAFT_TOP_TWO] for part in rule.parts)
            )
        },
        radius=_least_radius("radius"),
        radius_lower=_least_radius("radius_lower"),
        gap_width=lambda rule: rule.top_m,
        exactly_differs=True,
        num_needed=lambda rule: rule.top_m + 1,
    ),
    Entropy: Family(
        margin=margin_bounds.entropy_margin,
        reverse_margin=margin_bounds.entropy_reverse,
        radius=lambda draft, rule: entropy_radius_lower(
            draft.xp, draft.top, rule, draft.num_tokens
        ),
        radius_lower=lambda draft, rule: entropy_radius_lower(
            draft.xp, draft.top, rule, draft.num_tokens, rounded=True, num_present=draft.num_present
        ),
        num_needed=lambda rule: 1,
        num_used=64,
    ),
    Absolute: Family(
        margin=lambda rule, gap, at_least: lambda g: forward.absolute_margin(g, rule.tau),
        reverse_margin=lambda rule, gap: (
            (lambda g: reverse.pair_reverse_margin(g) if g >= rule.tau else 0.0)
            if rule.tau > 0.0
            else (lambda g: math.inf)
        ),
        radius=radii.absolute_radius,
        radius_lower=radii.absolute_lower,
        num_needed=lambda rule: 1,
    ),
    Tree: Family(
        margin=margin_bounds.tree_margin,
        reverse_margin=margin_bounds.tree_reverse,
        radius_margin=lambda rule: {
            DRAFT_TREE_LAST: lambda g: margin_bounds.tree_radius_margin(g, rule.m)
        },
        radius=lambda draft, rule: radius_if_wider(draft, rule.m, lift_radius),
        radius_lower=radii.tree_lower,
        gap_width=lambda rule: rule.m,
        num_needed=lambda rule: rule.m + 1,
    ),
}
