"""What is known of each type of rule, beyond its threshold: one row a rule. ``certify``, decoding
and scoring need no row; margins and radii do.

    known(TopM(4), "margin")(TopM(4), TOP_TWO, True)     # the bound as a function of p1 - p2
    FAMILIES[MyRule] = Family(margin=my_margin)          # a row for a rule of one's own

A gate rejects where either of its parts does, so its bounds are the smaller of two rows' ones.
``README.md`` beside this file adds a rule from its definition to its tests, on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from certspec.certificates import margin_bounds, radii
from certspec.certificates.margin_bounds import DRAFT_TOP_TWO, TOP_TWO, Bound, least
from certspec.certificates.radii import Draft
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
    require_rule,
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
    """The row of the rule's type or of the nearest type that it derives from; an empty row where
    there is none. Raises InvalidArgument for what is no rule."""
    kinds = type(require_rule(rule, "rule")).__mro__
    return next((FAMILIES[kind] for kind in kinds if kind in FAMILIES), Family())


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
        return margin_bounds.pair_reverse(rule, gap)
    if gap != TOP_TWO:
        return margin_bounds.gate_last_reverse(rule)
    return least(*(known(part, "reverse_margin")(part, gap) for part in rule.parts))


def _gate_radius_margin(rule: Any) -> dict[str, Bound]:
    bounds = [known(part, "radius_margin")(part)[DRAFT_TOP_TWO] for part in rule.parts]
    return {DRAFT_TOP_TWO: least(*bounds)}


def _gate_radius(draft: Draft, rule: Any) -> Any:
    return draft.xp.minimum(*(known(part, "radius")(draft, part) for part in rule.parts))


def _gate_lower(draft: Draft, rule: Any) -> Any:
    return draft.xp.minimum(*(known(part, "radius_lower")(draft, part) for part in rule.parts))


FAMILIES: dict[type, Family] = {
    StrictGreedy: Family(
        margin=margin_bounds.strict_margin,
        reverse_margin=margin_bounds.pair_reverse,
        radius_margin=margin_bounds.strict_radius_margin,
        radius=radii.strict_radius,
        radius_lower=radii.strict_lower,
        gap_width=lambda rule: 1,
    ),
    Additive: Family(
        margin=margin_bounds.additive_margin,
        reverse_margin=margin_bounds.additive_reverse,
        radius_margin=margin_bounds.additive_radius_margin,
        radius=radii.additive_radius,
        radius_lower=radii.additive_lower,
        exactly_differs=True,
    ),
    Multiplicative: Family(
        margin=margin_bounds.multiplicative_margin,
        reverse_margin=margin_bounds.multiplicative_reverse,
        radius_margin=margin_bounds.multiplicative_radius_margin,
        radius=radii.multiplicative_radius,
        radius_lower=radii.multiplicative_lower,
    ),
    TopM: Family(
        margin=margin_bounds.top_margin,
        reverse_margin=margin_bounds.top_reverse,
        radius_margin=margin_bounds.top_radius_margin,
        radius=radii.top_radius,
        radius_lower=radii.top_lower,
        gap_width=lambda rule: rule.m,
        num_needed=lambda rule: rule.m + 1,
    ),
    Gated: Family(
        margin=_gate_margin,
        reverse_margin=_gate_reverse,
        radius_margin=_gate_radius_margin,
        radius=_gate_radius,
        radius_lower=_gate_lower,
        gap_width=lambda rule: rule.top_m,
        exactly_differs=True,
        num_needed=lambda rule: rule.top_m + 1,
    ),
    Entropy: Family(
        margin=margin_bounds.entropy_margin,
        reverse_margin=margin_bounds.entropy_reverse,
        radius=radii.entropy_radius,
        radius_lower=radii.entropy_lower,
        num_needed=lambda rule: 1,
        num_used=64,
    ),
    Absolute: Family(
        margin=margin_bounds.absolute_margin,
        reverse_margin=margin_bounds.absolute_reverse,
        radius=radii.absolute_radius,
        radius_lower=radii.absolute_lower,
        num_needed=lambda rule: 1,
    ),
    Tree: Family(
        margin=margin_bounds.tree_margin,
        reverse_margin=margin_bounds.tree_reverse,
        radius_margin=margin_bounds.tree_radius_margin,
        radius=radii.tree_radius,
        radius_lower=radii.tree_lower,
        gap_width=lambda rule: rule.m,
        num_needed=lambda rule: rule.m + 1,
    ),
}
