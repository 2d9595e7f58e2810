"""The torch backend: the same quantities for CPU and CUDA tensors, in float64, a chunk of rows at a
time so that temporaries stay bounded. Rules enter as the parameter table; one transfer to the host
a chunk carries the checks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from certspec.kernels.exact_thresholds import put_exact
from certspec.kernels.loading import load_kernels
from certspec.kernels.rounding import FAR_BELOW, FARTHEST_RATIO, FARTHEST_WEIGHT, UNIT
from certspec.kernels.row_scores import (
    ALL_MASKED,
    NAN,
    PLUS_INF,
    RIGOROUS,
    RowScores,
    join_scores,
    raise_invalid_row,
)
from certspec.kernels.rule_table import SMOOTHING_INDEX, TREE_WIDTH, RuleTable
from certspec.kernels.torch.rules import (
    Thresholds,
    decisions,
    single_token_certificates,
    thresholds,
    tree_certificates,
)

__all__ = [
    "MIN_SETTLING",
    "Side",
    "draft_masks",
    "entropy_gaps",
    "ratio_error",
    "score_rows",
    "side_of",
    "sum_error",
    "top_ranks",
]

_constants = load_kernels("constants")
SUM_DEPTH, FARTHEST_SPAN = _constants.TORCH_SUM_DEPTH, _constants.FARTHEST_SPAN

MIN_SETTLING = 32  # ranks that are sorted, so that most thresholds fall among them
CHUNK_LOGITS = 1 << 24  # logits of one side in a chunk: 128 MiB a float64 temporary
CPU_CHUNK_LOGITS = 1 << 20  # where Ctrl-C, heard between two operations, is to wait for no long one
FULL_LOGITS = 1 << 22  # the same where a row is sorted in full, with every rule on every rank
_bounds, _divergence = load_kernels("bounds", "torch"), load_kernels("divergence", "torch")


@dataclass
class Side:
    """One model's rows: ``logits`` (rows, vocab), and (rows,) float64 numbers."""

    logits: Tensor
    highest: Tensor
    normaliser: Tensor
    normaliser_error: Tensor
    mean_gap: Tensor
    span: Tensor
    full_span: Tensor
    weights: Tensor  # (rows, vocab) float64, exp(z - max z)
    gaps: Tensor  # (rows, vocab) float64

    @property
    def log_normaliser(self) -> Tensor:
        return torch.log(self.normaliser)


def sum_error(num_columns: int) -> float:
    """Relative error of torch's sum over a row of nonnegative terms: it adds in a tree over at most
    512 strands (CPU) or the threads of a block (CUDA), each of which may add its share in sequence;
    half of that is never exceeded."""
    return (num_columns / 128 + SUM_DEPTH) * UNIT


def score_rows(
    target: Tensor, draft: Tensor | None, num_columns: int, table: RuleTable, num_top: int
) -> RowScores:
    """Score rows of tensors whose first ``num_columns`` columns are real. Raises InvalidLogits
    naming the row."""
    chunk = max(1, (CHUNK_LOGITS if target.is_cuda else CPU_CHUNK_LOGITS) // num_columns)
    parts = [
        _score_chunk(
            target[start : start + chunk, :num_columns].detach(),
            None if draft is None else draft[start : start + chunk, :num_columns].detach(),
            table,
            num_top,
            start,
        )
        for start in range(0, max(1, target.shape[0]), chunk)
    ]
    scores: RowScores = join_scores(parts, torch.cat)
    return scores


def _score_chunk(
    target: Tensor, draft: Tensor | None, table: RuleTable, num_top: int, first_row: int
) -> RowScores:
    parameters = torch.from_numpy(table.parameters.copy()).to(target.device)
    settling = min(target.shape[1], max(num_top, MIN_SETTLING))
    top_logits, top_ids = top_ranks(target, settling)
    side = side_of(target, top_logits[:, 0].double())
    flags = [_invalid(target, side)]
    if draft is not None:
        draft_top_logits, draft_top_ids = top_ranks(draft, num_top)
        draft_side = side_of(draft, draft_top_logits[:, 0].double())
        flags.append(_invalid(draft, draft_side))

    gaps = top_logits.double() - side.highest[:, None]
    threshold = thresholds(parameters, side, entropy_gaps(side, table))
    is_tree = table.parameters[:, TREE_WIDTH] > 0
    single, tree = (
        torch.from_numpy(np.flatnonzero(flag)).to(target.device) for flag in (~is_tree, is_tree)
    )
    certificate = torch.empty(
        (len(table.rules), target.shape[0]), dtype=torch.float64, device=target.device
    )
    certificate_lower = torch.empty_like(certificate)
    complete = settling == target.shape[1]
    exact, lower, deep, near = single_token_certificates(
        parameters[single],
        threshold.of(single),
        gaps,
        side.normaliser,
        side.normaliser_error,
        complete,
    )
    certificate[single], certificate_lower[single] = exact, lower
    certificate[tree], certificate_lower[tree] = tree_certificates(
        table.parameters[is_tree, TREE_WIDTH],
        gaps,
        target.shape[1],
        side.normaliser,
        side.normaliser_error,
    )
    *invalid, any_deep, any_near = torch.stack(
        [*(flag.any() for flag in flags), deep.any(), near.any()]
    ).tolist()  # one transfer
    if any(invalid):
        _raise_invalid(target, draft, flags, first_row)
    if any_deep:
        _settle(side, parameters, threshold, deep, near, (certificate, certificate_lower), single)

    scores = RowScores(
        entropy=_divergence.entropy(side.log_normaliser, side.mean_gap),
        prob_margin=(1.0 - torch.exp(gaps[:, 1] if target.shape[1] > 1 else gaps[:, 0] - torch.inf))
        / side.normaliser,
        certificate=certificate,
        certificate_lower=certificate_lower,
        target_top_ids=top_ids[:, :num_top],
        target_top_probs=torch.exp(gaps[:, :num_top]) / side.normaliser[:, None],
        paths=torch.full_like(side.highest, RIGOROUS, dtype=torch.int8),
    )
    if draft is not None:
        _score_draft(scores, side, draft_side, draft_top_ids, top_ids, parameters, threshold.tau)
    if any_near or any_deep:
        by_rule = torch.zeros_like(certificate, dtype=torch.bool)
        by_rule[single] = near
        put_exact(
            scores,
            by_rule.cpu().numpy(),
            table,
            lambda row: target[row].double().cpu().numpy(),
            lambda row, other: _score_chunk(
                target[row : row + 1],
                None if draft is None else draft[row : row + 1],
                other,
                min(target.shape[1], other.num_top),
                first_row + row,
            ),
        )
    return scores


def _score_draft(
    scores: RowScores,
    side: Side,
    draft_side: Side,
    draft_top_ids: Tensor,
    top_ids: Tensor,
    parameters: Tensor,
    tau: Tensor,
) -> None:
    """Put the fields that a draft has into ``scores``."""
    scores.kl = _divergence_sum(side, draft_side)
    scores.kl_upper = _kl_bound(scores.kl, side, draft_side)
    drafted = draft_top_ids[:, :1]
    drafted_gap = side.logits.gather(1, drafted)[:, 0].double() - side.highest
    scores.draft_token_prob = torch.exp(drafted_gap) / side.normaliser
    scores.draft_top_ids = draft_top_ids
    scores.accepted = decisions(
        parameters, tau, torch.exp(drafted_gap), drafted, top_ids, draft_top_ids
    )
    scores.certified = scores.kl_upper < scores.certificate_lower


def top_ranks(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest logits and their ids, sorted by (-value, id); NaNs come first.

    Up to 32 bits a logit, value and id are packed in one int64 key; float64 rows are sorted in
    full."""
    if logits.dtype == torch.float64 or count > 256:
        values, ids = torch.sort(logits, dim=1, descending=True, stable=True)
        return values[:, :count], ids[:, :count]
    bits = (logits.float() + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
    ordered = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).long()
    columns = torch.arange(logits.shape[1], device=logits.device)
    keys = torch.topk((ordered << 32) | (0x7FFFFFFF - columns), count, dim=1).values
    ids = 0x7FFFFFFF - (keys & 0x7FFFFFFF)
    return logits.gather(1, ids), ids


def side_of(logits: Tensor, highest: Tensor) -> Side:
    gaps = logits.double() - highest[:, None]
    weights = torch.exp(gaps)
    error = sum_error(logits.shape[1])
    normaliser = weights.sum(dim=1)
    mean_gap = torch.where(weights > 0, weights * -gaps, 0.0).sum(dim=1) / normaliser
    full_span = -torch.where(gaps == -torch.inf, 0.0, gaps).amin(dim=1)
    return Side(
        logits=logits,
        highest=highest,
        normaliser=normaliser,
        normaliser_error=_bounds.relative_normaliser_error(mean_gap, error),
        mean_gap=mean_gap,
        span=full_span.clamp(max=FARTHEST_WEIGHT),
        full_span=full_span,
        weights=weights,
        gaps=gaps,
    )


def _invalid(logits: Tensor, side: Side) -> Tensor:
    """(rows,) whether a row holds a NaN or +inf, or -inf alone: its maximum is then no finite
    number."""
    return ~torch.isfinite(side.highest) | torch.isnan(side.normaliser)


def _raise_invalid(
    target: Tensor, draft: Tensor | None, flags: list[Tensor], first_row: int
) -> None:
    """Raise InvalidLogits for the first row that is flagged."""
    for name, logits, flag in zip(
        ("target_logits", "draft_logits"), (target, draft), flags, strict=False
    ):
        for index in flag.nonzero()[:1, 0].tolist():
            if logits is None:
                continue
            row = logits[index].double()
            for kind, bad in ((NAN, row.isnan()), (PLUS_INF, row == torch.inf)):
                if bad.any():
                    raise_invalid_row(name, first_row + index, int(bad.nonzero()[0, 0]), kind)
            raise_invalid_row(name, first_row + index, 0, ALL_MASKED)


def entropy_gaps(side: Side, table: RuleTable) -> tuple[Tensor, Tensor]:
    """(log S - H, its absolute error) for the exact and each smoothed entropy, each (rules,
    rows)."""
    error = sum_error(side.weights.shape[1])
    gaps = [-side.mean_gap]
    errors = [_bounds.entropy_gap_error(side.mean_gap, side.span, error, side.normaliser_error)]
    for smoothing in table.smoothings.tolist():
        probs = side.weights / side.normaliser[:, None]
        gap = side.log_normaliser + (probs * torch.log(probs + smoothing)).sum(dim=1)
        gaps.append(gap)
        errors.append(
            _bounds.smoothed_entropy_error(
                gap, side.log_normaliser, side.span, error, side.normaliser_error
            )
        )
    index = torch.from_numpy(table.parameters[:, SMOOTHING_INDEX].astype("int64")).to(
        side.gaps.device
    )
    return torch.stack(gaps)[index], torch.stack(errors)[index]


def _settle(
    side: Side,
    parameters: Tensor,
    threshold: Thresholds,
    deep: Tensor,
    near: Tensor,
    certificates: tuple[Tensor, Tensor],
    single: Tensor,
) -> None:
    """Redo the single-token rules of rows with a deep one, on their rows sorted in full, in
    place."""
    rows = deep.any(dim=0).nonzero()[:, 0]
    step = max(1, FULL_LOGITS // side.gaps.shape[1])
    for start in range(0, len(rows), step):
        chosen = rows[start : start + step]
        gaps = torch.sort(side.gaps[chosen], dim=1, descending=True).values
        for number, rule in enumerate(single.tolist()):
            one = slice(rule, rule + 1)
            exact, bound, _, close = single_token_certificates(
                parameters[one],
                threshold.of(one).of((slice(None), chosen)),
                gaps,
                side.normaliser[chosen],
                side.normaliser_error[chosen],
                True,
            )
            near[number, chosen] = close[0]
            for values, found in zip(certificates, (exact, bound), strict=True):
                values[rule, chosen] = found[0]


def _divergence_sum(target: Side, draft: Side) -> Tensor:
    """KL(target || draft) = sum p (d + expm1(-d)), d = log(p/q) [nats]; +inf where the draft masks
    a possible token."""
    probs, draft_probs = (
        target.weights / target.normaliser[:, None],
        draft.weights / draft.normaliser[:, None],
    )
    ratio = (target.gaps - draft.gaps) - (target.log_normaliser - draft.log_normaliser)[:, None]
    terms = torch.where(
        ratio >= FAR_BELOW,
        _divergence.bregman_term(probs, ratio.clamp(min=FAR_BELOW)),
        torch.where(probs > 0, _divergence.far_term(probs, draft_probs, ratio), draft_probs),
    )
    return torch.where(draft_masks(target, draft), torch.inf, terms.sum(dim=1))


def draft_masks(target: Side, draft: Side) -> Tensor:
    """(rows,) whether the draft masks a token that the target may emit, so that KL is infinite."""
    return ((draft.gaps == -torch.inf) & (target.gaps > -torch.inf)).any(dim=1)


def ratio_error(target: Side, draft: Side, farthest: float = FARTHEST_SPAN) -> Tensor:
    """(rows,) a bound on the error of every log(p/q), draft tokens counted down to ``farthest``
    nats."""
    draft_span = draft.full_span.clamp(max=farthest)
    reach = target.span + target.log_normaliser + draft_span + draft.log_normaliser
    bound: Tensor = _bounds.log_ratio_bound(
        target.log_normaliser,
        target.normaliser_error,
        draft.log_normaliser,
        draft.normaliser_error,
        reach,
    )
    return bound


def _kl_bound(kl: Tensor, target: Side, draft: Side) -> Tensor:
    """The emitted upper bound of the exact KL, for the sums as this backend forms them."""
    relative = _bounds.relative_term_error(
        _bounds.relative_weight_error(target.span),
        target.normaliser_error,
        _bounds.relative_weight_error(draft.span),
        draft.normaliser_error,
        sum_error(target.gaps.shape[1]),
    )
    largest = _bounds.kl_upper(kl, relative, ratio_error(target, draft, FARTHEST_RATIO))
    return torch.where(draft.full_span < FARTHEST_SPAN, largest, torch.inf)
