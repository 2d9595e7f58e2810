"""``certify``: exact acceptance certificates for rows of target and draft logits, and the
``Certificates`` it returns.

    found = certify(target_logits, draft_logits, [StrictGreedy(), Tree(4)])
    found.at(StrictGreedy()).certified      # (rows,) bool: the target accepts the draft's token

The arguments are checked and a backend is picked here; the arithmetic is in
``certspec.kernels``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import numpy as np

from certspec.certificates.divergences import in_divergence, is_kl, read_divergence
from certspec.certificates.mistakes import notes_on
from certspec.certificates.pools import FLOAT_KINDS, Array, kind_of, readable
from certspec.certificates.robust import read_logit_error, within_logit_error
from certspec.errors import InvalidArgument, InvalidLogits
from certspec.kernels.row_scores import PATHS, RowScores
from certspec.kernels.rule_table import RuleTable, rule_table
from certspec.presets import as_rules, parse_rule
from certspec.rules import Rule, as_choice, as_flag, as_index, default_rules, is_rule

if TYPE_CHECKING:
    from certspec.certificates.lumped import LumpedCertificates

__all__ = ["BACKENDS", "PRECISIONS", "Certificates", "RuleView", "certify"]

BACKENDS = ("numba", "reference", "torch", "triton")
PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class RuleView(Generic[Array]):
    """One rule's part of ``Certificates``: arrays of shape (rows,)."""

    rule: Rule
    certificate: Array
    certificate_lower: Array
    accepted: Array
    certified: Array


@dataclass(frozen=True, repr=False)
class Certificates(Generic[Array]):
    """Certificates of ``rows`` positions under ``rules``; numpy arrays or torch tensors as the
    logits were.

    ``kl, kl_upper, entropy, prob_margin``: (rows,) float64, nats but for ``prob_margin`` = p1 - p2
    of the target. ``certificate, certificate_lower``: (rules, rows) float64 nats, +inf where the
    rule rejects nothing. ``accepted, certified``: (rules, rows) bool; ``certified`` is ``kl_upper <
    certificate_lower`` and implies accepted. Which tokens a rule rejects is decided exactly, also
    where a threshold lies within rounding of a token's probability. ``target_token, draft_token``:
    (rows,) int64 argmaxes, the lowest id on ties. ``target_top_ids, target_top_probs,
    draft_top_ids``: (rows, K), sorted by (-value, id). ``draft_token_prob``: the target's
    probability of draft_token. ``paths``: (rows,) int8, 0 where a float32 filter with a proved
    bound decided the row (``precision="float32"``), 1 where the rigorous float64 path scored it;
    ``path_counts`` counts them. ``entropy_error, prob_error``: (rows,) float64 bounds on the errors
    of ``entropy`` (nats) and of every probability (relative) where a fast filter was at work, None
    where all is float64. ``notes``: what is almost surely a mistake in the logits,
    such as rows that hold probabilities. ``logit_error``: the errors of target's and draft's logits
    that these hold for, as asked; ``kl, kl_upper, certificate, certificate_lower, certified`` are
    then those of the worst server within them, and ``reach`` (rules, rows) is the largest error
    [nats] of the target's logits at which a step stays certified: a lower bound, at most 4, -inf
    where it is not certified. ``divergence``: what ``kl, kl_upper, certificate, certificate_lower``
    are of, as asked. Without draft logits the fields that need them are None."""

    rules: tuple[Rule, ...]
    kl: Array
    kl_upper: Array
    entropy: Array
    prob_margin: Array
    certificate: Array
    certificate_lower: Array
    accepted: Array
    certified: Array
    target_token: Array
    draft_token: Array
    target_top_ids: Array
    target_top_probs: Array
    draft_top_ids: Array
    draft_token_prob: Array
    paths: Array
    entropy_error: Array | None = None
    prob_error: Array | None = None
    notes: tuple[str, ...] = ()
    logit_error: tuple[float, float] | None = None
    reach: Array | None = None
    divergence: str = "kl"

    @property
    def path_counts(self) -> dict[str, int]:
        """How many rows took each path, by the names "fast" and "rigorous"."""
        return {name: int((self.paths == index).sum()) for index, name in enumerate(PATHS)}

    @property
    def undecided(self) -> Any:
        """(rules, rows) bool: not certified, though KL < C is possible within both sides' error
        bounds (each taken to reach as far up as down), so that exact arithmetic might have
        certified. None without draft logits."""
        if self.certified is None:
            return None
        positive = (self.certificate > 0) & (
            self.certificate < float("inf")
        )  # KL < 0 is false, KL < inf no question
        # kl - (kl_upper - kl) < certificate + (certificate - certificate_lower), without inf - inf
        possible = 2 * self.kl + self.certificate_lower < self.kl_upper + 2 * self.certificate
        return ~self.certified & positive & possible

    def __len__(self) -> int:
        return len(self.entropy)

    def at(self, rule: Rule | str | int) -> RuleView[Array]:
        """The view of one rule, given itself, its text or its index.

        Raises InvalidArgument where it was not scored."""
        if isinstance(rule, str):
            rule = parse_rule(rule)
        if is_rule(rule):
            if rule not in self.rules:
                raise InvalidArgument(
                    f"at: expected one of {', '.join(map(str, self.rules))}, got {rule}"
                )
            index = self.rules.index(rule)
        else:
            index = as_index(rule, otherwise=len(self.rules))
        if not -len(self.rules) <= index < len(self.rules):
            raise InvalidArgument(
                f"at: expected an index below {len(self.rules)} or a rule, got {rule!r}"
            )
        parts: list[Any] = [
            None if part is None else part[index]
            for part in (self.certificate, self.certificate_lower, self.accepted, self.certified)
        ]
        return RuleView(self.rules[index], *parts)

    def __repr__(self) -> str:
        lines = [f"Certificates: {len(self)} rows x {len(self.rules)} rules"]
        if self.kl is not None and len(self):
            name = "KL" if self.divergence == "kl" else self.divergence
            unit = " nats" if name == "KL" or name.startswith("renyi") else ""
            lines[0] += f", mean {name} {float(self.kl.mean()):.4g}{unit}"
        for index, rule in enumerate(self.rules):
            view = self.at(index)
            text = f"  {rule.label:<24}"
            if len(self) and view.accepted is not None:
                text += (
                    f" accepted {int(view.accepted.sum())}, certified {int(view.certified.sum())}"
                )
            lines.append(text)
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@overload
def certify(
    target_logits: Array,
    draft_logits: Array | None,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    lumped: Literal[True],
) -> LumpedCertificates: ...


@overload
def certify(
    target_logits: Array,
    draft_logits: Array | None,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    backend: str | None = None,
    precision: str | None = None,
    align: int | None = None,
    lumped: Literal[False] = False,
    logit_error: float | tuple[float, float] | None = None,
    draft_vocabulary: Any = None,
    divergence: str = "kl",
) -> Certificates[Array]: ...


def certify(
    target_logits: Array,
    draft_logits: Array | None,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    backend: str | None = None,
    precision: str | None = None,
    align: int | None = None,
    lumped: bool = False,
    logit_error: float | tuple[float, float] | None = None,
    draft_vocabulary: Any = None,
    divergence: str = "kl",
) -> Certificates[Array] | LumpedCertificates:
    """Score draft against target: KL(target || draft), every rule's exact certificate, and what is
    certified.

    Args:
        target_logits: (rows, vocab) or (vocab,), a numpy array or a torch tensor, float64, float32,
            bfloat16 or float16, -inf for a masked token.
        draft_logits: the same of the draft, on the same device; None gives the target's
            certificates only.
        rules: one rule or several, each itself or its text, ``"strict tree:4"``; None:
            ``default_rules()``.
        backend: "numba" (CPU), "torch", "triton" (CUDA) or "reference"; None: "numba", for tensors
            on a GPU "torch".
        precision: "float64" (the default but for "triton"), or "float32" ("numba" and "triton",
            whose default it is): one pass in float32 decides the rows that its proved bounds
            decide, float64 the others. ``kl`` and ``entropy`` of the former are good to about 1e-5
            nats (``kl_upper``, ``entropy_error``); decisions, certificates and ids are as sound as
            in float64.
        align: only the first ``align`` columns are real ids, the rest of both is dropped.
        lumped: the rows are lists, not logits: ``target_logits`` holds the log-probabilities (nats,
            (rows, k)) of the target's k most probable tokens in any order, ``draft_logits`` the
            draft's log-probabilities of the same columns; -inf pads, as does what is below -1,000,
            and what the lists leave of 1 is one lump each. Returns ``LumpedCertificates`` (numpy):
            a lower bound of every certificate, and what K_O, the divergence of the lumped lists,
            certifies (theory E). Values are taken for a server's: off by 2e-6 nats (a float32
            log-softmax), a unit in the last place of their dtype, and half a unit of the last
            decimal or digit where a row shows few; ``lumped_certificates`` takes their error.
        logit_error: eps [nats], or (eps, eps of the draft): what holds on another server.
            Certificates, divergences and flags are those of the worst target whose logits (less a
            shift of the row) are within eps of the given ones, and ``reach`` says up to which eps
            each step stays certified; 0 keeps everything and adds ``reach``. Claims robust.*. Costs
            a sort of each row, and torch.
        draft_vocabulary: rising ids: the draft proposes from these tokens alone (EAGLE-3, FR-Spec)
            and column k of ``draft_logits`` is token ``ids[k]`` of the target. Thresholds are those
            of the whole target, ``kl`` and certificates those of the target given ``ids``: a step
            is certified where KL(p_D || q) is below. Under strict greedy and trees a step whose
            argmax is not among them has the certificate 0. Token ids in the result are the
            target's. Claims reduced.*.
        divergence: what ``kl``, ``kl_upper`` and the certificates are of, target first: "kl";
            "renyi:ALPHA", D_alpha in nats, alpha from .05 to 64 and .01 from 1; "chi2", exp(D_2) -
            1; "hellinger", 1 - sum sqrt(p q); "tv", total variation. Who trains a draft on one of
            them has its radius: p = (.5, .3, .2) under strict greedy has .1 in total variation.
            Decisions are the same. A rejected token beyond the 256 likeliest counts as the last of
            them, a lower bound. Claims renyi.*, variation.*; costs as much again, and torch.

    Returns ``Certificates``, in nats throughout. Theory: the pool certificate (single token), its
    tree form, and directed rounding bounds.

    Raises InvalidLogits naming the row for a NaN, +inf or a row of -inf, and for shapes or widths
    that do not match; with ``lumped`` also for a positive logprob or a sum above 1, and
    InvalidArgument for ``backend``, ``precision`` or ``align``.

    Example:
        >>> import numpy as np
        >>> import certspec as cs
        >>> target, draft = np.log([[0.7, 0.2, 0.1]]), np.log([[0.6, 0.3, 0.1]])
        >>> found = cs.certify(target, draft, "strict tree:2")
        >>> round(float(found.kl[0]), 4), found.certificate.round(4).tolist()
        (0.0268, [[0.1471], [0.2968]])
        >>> found
        Certificates: 1 rows x 2 rules, mean KL 0.02681 nats
          strict                   accepted 1, certified 1
          tree:2                   accepted 1, certified 1
    """
    chosen = _default_rules() if rules is None else as_rules(rules)
    if as_flag("lumped", lumped):
        _require_none("logit_error", logit_error)
        _require_none("draft_vocabulary", draft_vocabulary)
        if not is_kl(divergence):
            _require_none("divergence", divergence)
        return _certify_lumped(target_logits, draft_logits, chosen, backend, precision, align)
    errors = None if logit_error is None else read_logit_error(logit_error)
    other = None if is_kl(divergence) else read_divergence(divergence)
    if (errors is not None) + (draft_vocabulary is not None) + bool(other) > 1:
        raise InvalidArgument(
            "certify: expected one of logit_error, draft_vocabulary and divergence at a time"
        )
    table = rule_table(chosen)
    target = _as_rows("target_logits", target_logits)
    draft = None if draft_logits is None else _as_rows("draft_logits", draft_logits)
    if draft_vocabulary is not None:
        return _certify_reduced(target, draft, table, draft_vocabulary, (backend, precision), align)
    num_columns = _num_columns(target, draft, align)
    num_top = min(num_columns, table.num_top)
    on_torch = not isinstance(target, np.ndarray)
    name = "torch" if on_torch and target.device.type != "cpu" else "numba"
    if backend is not None:
        name = as_choice("backend", backend, BACKENDS)
    if precision is not None:
        as_choice("precision", precision, PRECISIONS)
    if precision == "float32" and name not in ("numba", "triton"):
        raise InvalidArgument(
            f"precision: expected 'float64' with backend {name!r}, which has no other, got "
            "'float32'"
        )
    if precision == "float64" and name == "triton":
        name = "torch"
    scores = _run(name, target, draft, num_columns, table, num_top, precision)
    draft_top_ids: Any = scores.draft_top_ids
    draft_token: Any = None if draft_top_ids is None else draft_top_ids[:, 0]
    found = Certificates(
        rules=table.rules,
        target_token=scores.target_top_ids[:, 0],
        draft_token=draft_token,
        notes=notes_on("target_logits", target[:, :num_columns])
        + (() if draft is None else notes_on("draft_logits", draft[:, :num_columns])),
        **vars(scores),
    )
    if other:
        return in_divergence(found, (target, draft), num_columns, table, other)
    if errors is None:
        return found
    return within_logit_error(found, (target, draft), num_columns, table, num_top, errors)


def _run(
    name: str,
    target: Any,
    draft: Any,
    num_columns: int,
    table: RuleTable,
    num_top: int,
    precision: str | None,
) -> RowScores:
    if name == "torch":
        from certspec.kernels.torch import rows as torch_rows

        tensors = [
            _torch().from_numpy(_plain(x)) if isinstance(x, np.ndarray) else x
            for x in (target, draft)
        ]
        scores: RowScores = torch_rows.score_rows(
            tensors[0], tensors[1], num_columns, table, num_top
        )
        on_numpy = isinstance(target, np.ndarray)
        return _converted(scores, lambda tensor: tensor.numpy()) if on_numpy else scores
    if name == "triton":
        from certspec.kernels.triton import rows as triton_rows

        return triton_rows.score_rows(target, draft, num_columns, table, num_top)
    if name == "reference":
        from certspec.kernels import reference

        exact_draft = None if draft is None else _to_float64(draft[:, :num_columns])
        scores = reference.score_rows(
            _to_float64(target[:, :num_columns]), exact_draft, table, num_top
        )
    else:
        kind, (readable_target, readable_draft) = _to_readable(target, draft)
        scores = _numba_scorer(precision)(
            readable_target, readable_draft, kind, num_columns, table, num_top
        )
    if isinstance(target, np.ndarray):
        return scores
    return _converted(scores, lambda array: _torch().from_numpy(array).to(target.device))


@cache
def _numba_scorer(precision: str | None) -> Callable[..., RowScores]:
    if precision == "float32":
        from certspec.kernels.numba.filter import score_rows
    else:
        from certspec.kernels.numba.rows import score_rows
    return score_rows


def _certify_lumped(
    target_logprobs: Any,
    draft_logprobs: Any,
    rules: tuple[Rule, ...],
    backend: str | None,
    precision: str | None,
    align: int | None,
) -> LumpedCertificates:
    from certspec.certificates.lumped import certify_lists

    for name, given in (("backend", backend), ("precision", precision), ("align", align)):
        _require_none(name, given)
    target = _as_rows("target_logits", target_logprobs)
    draft = None if draft_logprobs is None else _as_rows("draft_logits", draft_logprobs)
    kinds = (kind_of(target), "float64" if draft is None else kind_of(draft))
    return certify_lists(
        _to_float64(target), None if draft is None else _to_float64(draft), kinds, rules
    )


def _certify_reduced(
    target: Any,
    draft: Any,
    table: RuleTable,
    ids: Any,
    how: tuple[str | None, str | None],
    align: int | None,
) -> Certificates:
    from certspec.certificates.reduced import certify_reduced, read_vocabulary

    target = target[:, : _num_columns(target, None, align)]
    columns = read_vocabulary(ids, target.shape[1])
    if draft is None or draft.shape[1] != len(columns):
        raise InvalidLogits(
            f"draft_logits: expected {len(columns)} columns, one a token of draft_vocabulary, got "
            f"{'none' if draft is None else draft.shape[1]}"
        )
    backend, precision = how

    def plain(target: Any, draft: Any, rules: Any) -> Certificates:
        return certify(target, draft, rules, backend=backend, precision=precision)

    return certify_reduced(plain, target, draft, table, columns)


def _require_none(name: str, given: Any) -> None:
    if given is not None:
        raise InvalidArgument(
            f"{name}: expected None with lumped=True (lists are judged in float64), got {given!r}"
        )


@cache
def _default_rules() -> tuple[Rule, ...]:
    return tuple(default_rules())


def _as_rows(name: str, logits: Any) -> Any:
    """A 2-D numpy array or torch tensor of a supported dtype; copied only where bytes are
    swapped."""
    logits = readable(name, logits)
    kind = kind_of(logits)
    if kind not in FLOAT_KINDS:
        raise InvalidLogits(f"{name}: expected float64, float32, bfloat16 or float16, got {kind}")
    if logits.ndim not in (1, 2):
        raise InvalidLogits(
            f"{name}: expected shape (rows, vocab) or (vocab,), got {tuple(logits.shape)}"
        )
    rows = logits[None] if logits.ndim == 1 else logits
    if rows.shape[1] == 0:
        raise InvalidLogits(f"{name}: expected at least 1 column, got shape {tuple(logits.shape)}")
    return rows


def _num_columns(target: Any, draft: Any, align: int | None) -> int:
    width = target.shape[1]
    if draft is not None:
        if isinstance(draft, np.ndarray) != isinstance(target, np.ndarray):
            raise InvalidLogits(
                "draft_logits: expected the same kind of array as target_logits, got "
                f"{type(draft).__name__} "
                f"beside {type(target).__name__}"
            )
        if not isinstance(target, np.ndarray) and draft.device != target.device:
            raise InvalidLogits(
                f"draft_logits: expected device {target.device} like target_logits, got "
                f"{draft.device}"
            )
        if draft.shape[0] != target.shape[0]:
            raise InvalidLogits(
                f"draft_logits: expected {target.shape[0]} rows like target_logits, got "
                f"{draft.shape[0]}"
            )
        if align is None and draft.shape[1] != width:
            raise InvalidLogits(
                f"draft_logits: expected {width} columns like target_logits, got {draft.shape[1]}; "
                f"pass align=N where only the first N columns are real ids"
            )
        width = min(width, draft.shape[1])
    if align is None:
        return width
    count = as_index(align, otherwise=0)
    if not 1 <= count <= width:
        raise InvalidArgument(
            f"align: expected an integer from 1 to {width} (the narrower width), got {align!r}"
        )
    return count


def _to_float64(rows: Any) -> np.ndarray:
    if isinstance(rows, np.ndarray):
        return rows.astype(np.float64)
    return rows.detach().to("cpu").double().numpy()


def _to_readable(target: Any, draft: Any) -> tuple[str, tuple[np.ndarray, np.ndarray | None]]:
    """The dtype's name, and numpy arrays of one dtype whose rows are contiguous; 16-bit floats as
    their bit patterns.

    Copies only where the layout or a difference of dtypes asks for it; every conversion is exact.
    """
    kinds = {kind_of(rows) for rows in (target, draft) if rows is not None}
    kind = kinds.pop() if len(kinds) == 1 else "float64"
    return kind, (_as_numpy(target, kind), None if draft is None else _as_numpy(draft, kind))


def _as_numpy(rows: Any, kind: str) -> np.ndarray:
    if not isinstance(rows, np.ndarray):
        tensor = rows.detach() if rows.requires_grad else rows
        tensor = tensor.cpu() if tensor.device.type != "cpu" else tensor
        if kind_of(tensor) == kind == "bfloat16":
            return np.ascontiguousarray(tensor.view(_torch().int16).numpy().view(np.uint16))
        rows = (tensor.double() if kind_of(tensor) == "bfloat16" else tensor).numpy()
    array = _plain(rows, kind)
    return array.view(np.uint16) if kind == "float16" else array


def _plain(rows: np.ndarray, kind: str | None = None) -> np.ndarray:
    """The rows C-contiguous, aligned and of numpy's writable type, copied only where layout asks.

    numba and torch tell read-only arrays from others, though nothing is written to either: so
    memory that is not to be written is taken under a second view that does not say so."""
    array = np.require(rows, kind, ["C", "A"])
    if array.flags.writeable:
        return array
    return np.asarray(_Unlocked(array))


class _Unlocked:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        facts = array.__array_interface__
        self.__array_interface__ = facts | {"data": (facts["data"][0], False)}


def _torch() -> Any:
    return sys.modules["torch"]


def _converted(scores: RowScores, convert: Callable[[Any], Any]) -> RowScores:
    return RowScores(
        **{name: None if value is None else convert(value) for name, value in vars(scores).items()}
    )
