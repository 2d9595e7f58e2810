"""Acceptance rules as data: a single-token rule is a threshold on the target's probabilities, a
tree is a width.

    rule = Additive(0.3)     # accept x when p(x) >= p1 - 0.3, p1 the largest target probability
    rule.label               # "additive:0.3", which parse_rule reads back
    rule.threshold           # Threshold(scale=1.0, offset=-0.3): all that a kernel sees of it

A rule is one subclass of ``Rule`` with a ``name`` and a ``threshold``. That alone makes it work in
``certify``, ``generate``, ``score`` and ``parse_rule``. What else is known of a rule (margins,
radii) is a row of ``certspec.certificates.families``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from numbers import Real
from typing import ClassVar, TypeGuard

from certspec.errors import InvalidArgument

__all__ = [
    "RULE_TYPES",
    "Absolute",
    "Additive",
    "Entropy",
    "Gated",
    "Multiplicative",
    "Rule",
    "StrictGreedy",
    "Threshold",
    "TopM",
    "Tree",
    "as_choice",
    "as_flag",
    "as_index",
    "as_real",
    "default_rules",
    "is_rule",
    "require_rule",
]

_INF = math.inf
_MOST = 2**53  # counts up to it are floats of their own, as the table of rules holds them

RULE_TYPES: dict[str, Callable[..., Rule]] = {}  # by name; each definition below enters itself


@dataclass(frozen=True)
class Threshold:
    """The one normal form of every single-token rule.

    A token x of rank r (1 = the target's argmax, ties broken by the lowest id) is rejected when ``r
    > top_m`` or ``target_probs[x] < tau`` (``<=`` where ``strictly_above``), with

        tau = min(cap, scale * p1 + offset, entropy_scale * exp(-H)),
        H = -sum p log(p + smoothing)  [nats].

    The parts that a rule does not use are neutral (+inf in the minimum; ``top_m = 0`` means no rank
    gate). A rule of rank alone has ``offset = -inf``: no probability is below its threshold.

        Threshold(scale=0.5, offset=0.0)         # half as probable as the best token, or more
        Threshold(top_m=3, offset=-math.inf)     # one of the three best tokens

    Raises InvalidArgument for a number out of range, and for parts that say nothing together: a
    ``scale`` without its ``offset``, a constant ``offset`` (that is ``cap``), or none at all."""

    top_m: int = 0
    scale: float = 0.0
    offset: float = _INF
    cap: float = _INF
    entropy_scale: float = _INF
    smoothing: float = 0.0
    strictly_above: bool = False

    def __post_init__(self) -> None:
        if as_index(self.top_m, otherwise=-1) != 0:
            _require_count(self, "top_m")
        strictly_above = as_flag("Threshold: strictly_above", self.strictly_above)
        object.__setattr__(self, "strictly_above", strictly_above)
        _require_real(self, "scale", lower=0.0, upper=_INF, open_above=True)
        _require_real(self, "offset", lower=-_INF, upper=_INF)
        _require_real(self, "cap", lower=0.0, upper=_INF)
        _require_real(self, "entropy_scale", lower=0.0, upper=_INF, open_below=True)
        _require_real(self, "smoothing", lower=0.0, upper=1.0)
        expected = None
        if self.scale > 0.0 and math.isinf(self.offset):
            expected = "a finite offset beside scale (0.0 for none)"
        elif self.scale == 0.0 and math.isfinite(self.offset):
            expected = "scale beside offset; a threshold that is a constant is cap"
        elif min(self.offset, self.cap, self.entropy_scale) == _INF:
            expected = "scale and offset, cap or entropy_scale; offset=-inf where top_m is all"
        if expected is not None:
            raise InvalidArgument(f"Threshold: expected {expected}, got {self}")

    @property
    def simplest(self) -> Threshold:
        """The same rule without a part that decides nothing: where no probability is below the
        threshold, as under ``p(x) >= p1 - 1``, its ranks alone."""
        highest = min(self.cap, self.scale + self.offset)  # p1 is at most 1
        if highest > 0.0 or (highest == 0.0 and self.strictly_above):
            return self
        return Threshold(top_m=self.top_m, offset=-_INF)

    def value(self, top_prob: float, entropy: float) -> float:
        """tau where the largest target probability is ``top_prob`` and the (smoothed) entropy
        ``entropy`` nats."""
        from_top = self.scale * top_prob + self.offset
        from_entropy = (
            _INF if self.entropy_scale == _INF else self.entropy_scale * math.exp(-entropy)
        )
        return min(self.cap, from_top, from_entropy)


@dataclass(frozen=True)
class Rule:
    """Base of all rules: a name, parameters, and either a ``threshold`` (single token) or a
    ``tree_width``. A subclass with a ``name`` of its own can be parsed from text at once, and is
    taken wherever a rule is.

    Example:
        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> import certspec as cs
        >>> @dataclass(frozen=True)
        ... class Half(cs.Rule):
        ...     name = "half-as-likely"
        ...     share: float = 0.5
        ...
        ...     @property
        ...     def threshold(self):
        ...         return cs.Threshold(scale=self.share, offset=0.0)
        >>> cs.certify(np.log([[0.6, 0.32, 0.08]]), None, "half-as-likely").certificate.round(4)
        array([[0.225]])
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        own = cls.__dict__
        name = own.get("name", "")
        if cls.name and not name and {"threshold", "tree_width"} & own.keys():
            raise InvalidArgument(  # its label would read back as another rule
                f"{cls.__name__}: expected a name beside a threshold or tree width of its own, got "
                f"the name {cls.name!r} of the rule it derives from"
            )
        taken = RULE_TYPES.setdefault(name, cls) if name else cls
        if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidArgument(
                f"{cls.__name__}: expected a name that no other rule has, got {name!r}, which is "
                f"{taken.__qualname__}"
            )

    @property
    def threshold(self) -> Threshold | None:
        """The rule's threshold, or None for a tree."""
        return None

    @property
    def tree_width(self) -> int:
        """Number of draft candidates that the rule accepts a match with; 0 for a single-token
        rule."""
        return 0

    @property
    def is_relaxed(self) -> bool:
        """Whether the rule may accept another token than the target's argmax."""
        return self.tree_width == 0

    @property
    def label(self) -> str:
        """The rule as the command line writes it, e.g. ``additive:0.3``; ``parse_rule`` reads it
        back."""
        given = [
            ("" if f.default is MISSING else f"{f.name}=") + _spell(getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return self.name + (":" + ",".join(given) if given else "")

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class StrictGreedy(Rule):
    """Accept the draft token if, and only if, it is the target's argmax (ties: lowest id)."""

    name: ClassVar[str] = "strict"

    @property
    def threshold(self) -> Threshold:
        return Threshold(top_m=1, offset=-_INF)

    @property
    def is_relaxed(self) -> bool:
        return False


@dataclass(frozen=True)
class Additive(Rule):
    """Accept x when ``p(x) >= p1 - t``; ``t`` in [0, 1]."""

    name: ClassVar[str] = "additive"
    t: float

    def __post_init__(self) -> None:
        _require_real(self, "t", lower=0.0, upper=1.0)

    @property
    def threshold(self) -> Threshold:
        return Threshold(scale=1.0, offset=-self.t)


@dataclass(frozen=True)
class Multiplicative(Rule):
    """Accept x when ``p(x) >= alpha * p1``; ``alpha`` in (0, 1]."""

    name: ClassVar[str] = "multiplicative"
    alpha: float

    def __post_init__(self) -> None:
        _require_real(self, "alpha", lower=0.0, upper=1.0, open_below=True)

    @property
    def threshold(self) -> Threshold:
        return Threshold(scale=self.alpha, offset=0.0)


@dataclass(frozen=True)
class TopM(Rule):
    """Accept x when it is among the target's ``m`` most probable tokens (ties: lowest ids)."""

    name: ClassVar[str] = "top"
    m: int

    def __post_init__(self) -> None:
        _require_count(self, "m")

    @property
    def threshold(self) -> Threshold:
        return Threshold(top_m=self.m, offset=-_INF)


@dataclass(frozen=True)
class Gated(Rule):
    """Accept x when it is among the target's ``top_m`` tokens *and* passes the additive or
    multiplicative slack."""

    name: ClassVar[str] = "gated"
    top_m: int
    additive: float | None = None
    multiplicative: float | None = None

    def __post_init__(self) -> None:
        _require_count(self, "top_m")
        if (self.additive is None) == (self.multiplicative is None):
            raise InvalidArgument(
                "Gated: expected exactly one of additive=... (in [0, 1]) and multiplicative=... "
                "(in (0, 1]), "
                f"got additive={self.additive!r}, multiplicative={self.multiplicative!r}"
            )
        if self.additive is not None:
            _require_real(self, "additive", lower=0.0, upper=1.0)
        else:
            _require_real(self, "multiplicative", lower=0.0, upper=1.0, open_below=True)

    @property
    def threshold(self) -> Threshold:
        if self.additive is not None:
            return Threshold(top_m=self.top_m, scale=1.0, offset=-self.additive)
        return Threshold(top_m=self.top_m, scale=float(self.multiplicative or 0.0), offset=0.0)

    @property
    def parts(self) -> tuple[TopM, Additive | Multiplicative]:
        """The rank rule and the slack rule whose both acceptance the gate asks for."""
        if self.additive is not None:
            return TopM(self.top_m), Additive(self.additive)
        return TopM(self.top_m), Multiplicative(self.multiplicative or 1.0)


@dataclass(frozen=True)
class Entropy(Rule):
    """Accept x when ``p(x) > min(epsilon, delta * exp(-H))`` (Medusa's typical acceptance).

    ``epsilon`` in (0, 1], ``delta`` in (0, inf). With ``delta > 1`` the argmax itself can be
    rejected; its certificate is then 0. ``smoothing`` (>= 0) is the constant that an implementation
    adds inside the logarithm of the entropy."""

    name: ClassVar[str] = "entropy"
    epsilon: float
    delta: float
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _require_real(self, "epsilon", lower=0.0, upper=1.0, open_below=True)
        _require_real(self, "delta", lower=0.0, upper=_INF, open_below=True, open_above=True)
        _require_real(self, "smoothing", lower=0.0, upper=1.0)

    @property
    def threshold(self) -> Threshold:
        return Threshold(
            cap=self.epsilon,
            entropy_scale=self.delta,
            smoothing=self.smoothing,
            strictly_above=True,
        )


@dataclass(frozen=True)
class Absolute(Rule):
    """Accept x when ``p(x) >= tau``; ``tau`` in [0, 1]. Where no token reaches ``tau``, nothing is
    accepted."""

    name: ClassVar[str] = "absolute"
    tau: float

    def __post_init__(self) -> None:
        _require_real(self, "tau", lower=0.0, upper=1.0)

    @property
    def threshold(self) -> Threshold:
        return Threshold(cap=self.tau)


@dataclass(frozen=True)
class Tree(Rule):
    """Accept when the target's argmax is among the draft's ``m`` most probable tokens (a greedy
    tree node)."""

    name: ClassVar[str] = "tree"
    m: int

    def __post_init__(self) -> None:
        _require_count(self, "m")

    @property
    def tree_width(self) -> int:
        return self.m


def default_rules() -> list[Rule]:
    """The eight rules and widths that every command scores unless told otherwise.

    Example:
        >>> import certspec as cs
        >>> print(*cs.default_rules())
        strict additive:0.3 multiplicative:0.1 top:4 entropy:0.09,0.3 tree:2 tree:4 tree:8
    """
    return [
        StrictGreedy(),
        Additive(0.3),
        Multiplicative(0.1),
        TopM(4),
        Entropy(epsilon=0.09, delta=0.3),
        Tree(2),
        Tree(4),
        Tree(8),
    ]


def is_rule(value: object) -> TypeGuard[Rule]:
    """Whether ``value`` is a rule."""
    return isinstance(value, Rule)


def require_rule(value: object, asked_by: str = "rules") -> Rule:
    """``value`` itself; raises InvalidArgument, which names ``asked_by``, where it is no rule."""
    if not is_rule(value):
        got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise InvalidArgument(f"{asked_by}: expected a Rule such as StrictGreedy(), got {got}")
    if (value.threshold is None) == (value.tree_width == 0):
        raise InvalidArgument(
            f"{asked_by}: expected a rule with a threshold or a tree width, got {value!r} with "
            + ("neither" if value.threshold is None else "both")
        )
    return value


def as_index(value: object, otherwise: int) -> int:
    """An integer of any library's kind as Python's own; ``otherwise`` for what is none, and for a
    bool."""
    try:
        return otherwise if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return otherwise


def as_real(value: object) -> float:
    """A real number of any library's kind as Python's own float; NaN for what is none, and for a
    bool."""
    if not isinstance(value, Real) and getattr(value, "shape", None) == ():
        try:
            value = value.item()  # type: ignore[attr-defined]
        except (RuntimeError, NotImplementedError):  # a tensor without numbers
            return math.nan
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return _INF if value > 0 else -_INF  # type: ignore[operator]


def as_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """``value`` itself; raises InvalidArgument, which names ``name``, where it is none of
    ``allowed``."""
    choices = tuple(allowed)
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
    return value


def as_flag(name: str, value: object) -> bool:
    """True or False of any library's kind as Python's own; raises InvalidArgument, which names
    ``name``, for anything else."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise InvalidArgument(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _spell(value: object) -> str:
    return (
        f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
    )


def _require_real(
    rule: Rule | Threshold,
    name: str,
    *,
    lower: float,
    upper: float,
    open_below: bool = False,
    open_above: bool = False,
) -> None:
    given = getattr(rule, name)
    value = as_real(given)
    allowed = f"{'(' if open_below else '['}{lower:g}, {upper:g}{')' if open_above else ']'}"
    inside = (value > lower if open_below else value >= lower) and (
        value < upper if open_above else value <= upper
    )
    if not inside:  # a NaN fails both comparisons
        kind = "" if isinstance(given, Real) and not isinstance(given, bool) else "a real number "
        raise InvalidArgument(
            f"{type(rule).__name__}: expected {name} {kind}in {allowed}, got {given!r}"
        )
    object.__setattr__(rule, name, value)


def _require_count(rule: Rule | Threshold, name: str) -> None:
    value = getattr(rule, name)
    count = as_index(value, otherwise=0)
    if not 1 <= count <= _MOST:
        too_many = max(count, as_real(value)) > _MOST  # the text of a long one is read as a float
        wanted = "an integer of at most 2^53" if too_many else "an integer of at least 1"
        raise InvalidArgument(f"{type(rule).__name__}: expected {name} {wanted}, got {value!r}")
    object.__setattr__(rule, name, count)
