"""The three routes: the derivation's steps, samples of the definition, enclosures of the domain.
The last two never look at the derivation. Which methods belong to each, why a claim does without
one, and how far its samples have to go: to 64 tokens, to width 16, and near to both ends of an
argument's domain."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch

from proofs_check.methods.domain import TOKENS, WIDTHS, Domain
from proofs_check.methods.targets import MANY, WIDE

__all__ = ["ROUTES", "reason_without", "routes_of", "too_small"]

ROUTES: dict[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "sample": ("exact-cases", "search", "optimiser", "conic"),
    "enclosure": ("enclosure",),
}
_ANY_SIZE = (
    "a statement for any number of tokens: no box of fixed dimension is left, and the signs are "
    "steps of the derivation that SymPy decides for all symbols"
)
_POINT = "refuted by a point: there is no domain to enclose"
_ATTAINED = (
    "an equality at a given margin: attained exactly, its slope in the margin a step of "
    "the derivation"
)
# (pattern of ids, route, why it does not apply); the first match counts
_REASONS: tuple[tuple[str, str, str], ...] = (
    ("refuted.*", "enclosure", _POINT),
    ("refuted.*", "steps", "false: nothing derives it"),
    ("strict.closed", "enclosure", _ANY_SIZE),
    ("single.*", "enclosure", _ANY_SIZE),
    ("tree.*", "enclosure", _ANY_SIZE),
    ("robust.*", "enclosure", _ANY_SIZE),
    ("budget.*", "enclosure", "a statement on whole numbers: every case of a size is counted"),
    (
        "sampling.dual",
        "enclosure",
        "every line touches the curve, and no box can enclose a zero: contact and convexity are "
        "steps of the derivation",
    ),
    ("sampling.set", "enclosure", _ANY_SIZE),
    ("sampling.block", "enclosure", _ANY_SIZE),
    ("sampling.tokens", "enclosure", _ANY_SIZE),
    ("reduced.*", "enclosure", _ANY_SIZE),
    ("renyi.*", "enclosure", _ANY_SIZE),
    ("variation.*", "enclosure", _ANY_SIZE),
    ("caps.*", "enclosure", _ANY_SIZE),
    ("projection.*", "enclosure", _ANY_SIZE),
    ("reverse.margin.*", "enclosure", _ATTAINED),
    ("reverse.*", "enclosure", _ANY_SIZE),
    ("lumped.*", "enclosure", _ANY_SIZE),
    ("drafter.margin.*", "enclosure", _ATTAINED),
    ("drafter.*", "enclosure", _ANY_SIZE),
    (
        "lemma.infima",
        "enclosure",
        "a statement on sets of numbers: no function of real arguments to enclose",
    ),
    ("lemma.kkt", "enclosure", _ANY_SIZE),
    ("lemma.level", "enclosure", _ANY_SIZE),
    ("lemma.mixture", "enclosure", "claim lemma.merge, enclosed there, applied token by token"),
    (
        "lemma.variational",
        "enclosure",
        "claim lemma.tangent, enclosed there, applied token by token",
    ),
    ("margin.gate.*", "enclosure", "the smaller of bounds that are enclosed in their own claims"),
    ("upper.relaxed", "enclosure", "claim caps.single with d <= p1, which SymPy decides"),
    ("upper.tree", "enclosure", "linear in the margin: convexity of KL, a step of the derivation"),
    ("rule.threshold", "enclosure", "an equality of sets, compared exactly in rationals"),
    (
        "bound.*",
        "enclosure",
        "a sum of products of stated error terms: SymPy decides the sign of every remainder",
    ),
)


_BRUTE = "solved by brute force over all laws of two or three tokens"
# (pattern of ids, why nothing of that size is sampled)
_FEW: tuple[tuple[str, str], ...] = (
    ("drafter.edges", "limits of vanishing entries, listed one by one"),
    ("drafter.entropy", _BRUTE),
    ("drafter.entropy.inner", _BRUTE),
    ("drafter.entropy.simple", _BRUTE),
    ("drafter.entropy.tangents", "no tree: the width of a cell of shares"),
)


# An argument of these names -> how near to both ends of its domain samples have to come.
_ENDS: dict[str, tuple[float, float]] = {
    "gap": (0.025, 0.95),
    "slack": (0.02, 0.9),
    "alpha": (0.02, 0.9),
    "tau": (0.02, 0.5),
    "order": (0.1, 16.0),
    "growth": (1.005, 2.5),
    "radius": (0.005, 0.5),
}
# (pattern of ids, argument, why its samples end before)
_NARROW: tuple[tuple[str, str, str], ...] = (
    ("renyi.scaled", "order", "2 and 1/2, the two orders there are"),
    ("drafter.margin.chord", "gap", "a line in the margin"),
)


def too_small(claim: str, domain: Domain) -> list[str]:
    """What the samples of a claim have too little of, tokens, width or the ends of an argument's
    domain, where nothing says why."""
    if any(fnmatch(claim, pattern) for pattern, _ in _FEW):
        return []
    least = {TOKENS: MANY} | dict.fromkeys(WIDTHS, WIDE)
    short = [
        f"sampled to {name} {domain[name][1]:g} only, not to {count}"
        for name, count in least.items()
        if name in domain and domain[name][1] < count
    ]
    excused = {name for pattern, name, _ in _NARROW if fnmatch(claim, pattern)}
    return short + [
        f"sampled at {name} {domain[name][0]:g} to {domain[name][1]:g} only, not from {low:g} to "
        f"{high:g}"
        for name, (low, high) in _ENDS.items()
        if name in domain and name not in excused
        if domain[name][0] > low or domain[name][1] < high
    ]


def routes_of(methods: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The methods used on each route, in the order of ROUTES."""
    return {route: tuple(m for m in among if m in methods) for route, among in ROUTES.items()}


def reason_without(claim: str, route: str) -> str | None:
    """Why a claim does without a route; None where nothing says so."""
    return next(
        (why for pattern, of, why in _REASONS if of == route and fnmatch(claim, pattern)), None
    )
