"""The books of ``rank_row`` kept a second time. In Triton's interpreter a kernel is a function of
Python, so its numbers can be caught as it returns: its sums are held against exact ones of the row,
the terms of its stated errors against the formulas that claims give them, and counts against what
they have to pay for. That a bound holds says little of its terms: rounding mostly takes a hundredth
of it, so a term may be gone and nobody notices."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.columns import ENTROPY_ERROR, NORMALISER_ERROR
from certspec.kernels.generated import constants
from certspec.kernels.rule_table import rule_table
from tests.support.device import ON_GPU

pytest.importorskip("triton")
import triton
import triton.language as tl

from certspec.kernels.triton import ranks, segments
from certspec.kernels.triton import rows as triton_rows
from certspec.kernels.triton.ranks import INVALID, TIES, UNDECIDED
from certspec.kernels.triton.segments import SPREAD, power_of_two, segment_errors

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(ON_GPU, reason="a GPU's kernels have no frames to look into"),
]

COLUMNS, NUM_TOP = 521, 4  # of the last columns' segments most have none
LN2, LOG2E = math.log(2), np.float64(1 / math.log(2))
LOG2E32 = np.float32(LOG2E)
# segments of 16 columns: in runs of 8, worked in 2 blocks; in one run, worked at once
PLANS = {
    "two blocks": triton_rows.Plan(
        vector=4, near=2, tiles=2, warps=1, parts=16, quads=1, added=2, batch=2, deep_batch=2
    ),
    "one block": triton_rows.Plan(
        vector=4, near=4, tiles=1, warps=1, parts=16, quads=2, added=2, batch=2, deep_batch=2
    ),
}


def rows_with_every_term() -> tuple[torch.Tensor, torch.Tensor]:
    """Each term of the errors is visible in one of these rows at least."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(2, 11, COLUMNS, generator=generator)
    target, draft = noise[0].clone(), noise[0] + 0.2 * noise[1]
    draft[1] += 700.0  # references of either sign, the draft's the larger
    target[1] -= 90.0
    target[2] += 800.0  # the target's the larger
    draft[2] -= 30.0
    target[3, 100] += 30.0  # what is not kept weighs next to nothing
    draft[3, 100] += 35.0
    draft[4] = 9.0 * noise[1, 4]  # far apart
    target[5, 256:400] -= 400.0  # segments whose own references lie farther out than the row's
    draft[5, 256:400] -= 500.0
    target[6] *= 5.0
    draft[6, ::3] -= 60.0  # tokens that the draft hardly has
    target[7] += 20_000.0  # what the rounded log2 e takes from large logits is most of the error
    draft[7] += 15_000.0
    target[8, 100] += 64.0  # less than rounding
    draft[8, 100] += 64.0
    target[9] += 55_000.0  # both errors together are too wide
    draft[9] += 55_000.0
    target[10] -= target[10].max() + 89.0  # 128 below the reference of what has no logits
    draft[10] -= draft[10].max() + 89.0
    return target, draft


@dataclass
class Launched:
    """What rank_row held when it returned, of each row: with float32 sums, then with float64."""

    fast: list[dict[str, Any]]
    exact: list[dict[str, Any]]
    scores: Any
    guards: Any  # scratch before and behind the rows' own


def plain(value: Any) -> Any:
    """A number or an array in the place of what the interpreter computes with."""
    if isinstance(value, tl.constexpr):
        return value.value
    if isinstance(value, tl.tensor):
        data = np.array(value.handle.data)
        return data.item() if data.size == 1 else data
    return value


def launched(target: torch.Tensor, draft: torch.Tensor, plan: Any) -> Launched:
    """Both launches on every row, whatever the rules say."""
    table = rule_table((cs.StrictGreedy(),))
    parameters = torch.from_numpy(table.parameters.copy())
    half = len(target)
    out = triton_rows.allocate(half, COLUMNS, 1, NUM_TOP, plan, "cpu")
    scratch = torch.full((half + 8, out.scratch.shape[1]), -7, dtype=torch.int32)
    out = replace(out, scratch=scratch[4:-4])
    found: list[dict[str, Any]] = []

    def look(*fields: Any) -> Any:
        caller = sys._getframe(1)
        assert caller.f_code.co_name == "rank_row"
        found.append({name: plain(value) for name, value in caller.f_locals.items()})
        return ranked(*fields)

    def leave_open(row: Any, rules: Any, found: Any, pointers: Any, *_: Any) -> None:
        tl.store(pointers.path + row, UNDECIDED.value)

    with pytest.MonkeyPatch.context() as patch:
        ranked = ranks.Ranked
        patch.setattr(ranks, "Ranked", look)
        patch.setattr(triton_rows, "judge_row", leave_open)
        triton_rows.launch(target, draft, parameters, COLUMNS, NUM_TOP, plan, out)
    assert len(found) == 2 * half
    return Launched(found[:half], found[half:], out, torch.cat([scratch[:4], scratch[-4:]]))


class Exact:
    """A row's sums in float64, over the columns that each of them is about."""

    def __init__(self, target: np.ndarray, draft: np.ndarray, plan: Any, ranks: int) -> None:
        sides = np.stack([target, draft]).astype(np.float64)
        column = np.arange(sides.shape[1])
        chunk, inside = np.divmod(column, plan.lanes * plan.segment)
        run = plan.near * plan.vector
        segment = chunk * plan.lanes + inside % (plan.lanes * run) // run
        self.num_segments = plan.segments(len(column))
        each = self.num_segments // SPREAD.value
        segment = segment % each * SPREAD.value + segment // each  # its place
        largest = np.full((2, self.num_segments), -np.inf)
        for side in (0, 1):
            np.maximum.at(largest[side], segment, sides[side])
        part = np.arange(self.num_segments) // plan.added % plan.parts
        by_part = np.full((2, plan.parts), -np.inf)
        for side in (0, 1):
            np.maximum.at(by_part[side], part, largest[side])
        descending = -np.sort(-by_part, axis=1)
        self.bars = descending[0, ranks - 1], descending[1, NUM_TOP - 1]
        bars = np.array(self.bars)[:, None]
        self.near = reference_of(sides.max(axis=1))
        listed = (largest >= bars).any(axis=0)
        self.listed = np.flatnonzero(listed)
        kept = (sides >= bars).any(axis=0)
        self.kept = np.flatnonzero(kept)
        own = reference_of(largest)
        x = sides * LOG2E - self.near[:, None]
        x_own = np.where(listed[segment], x, sides * LOG2E - own[:, segment])
        weight, rest = np.exp2(x), ~kept
        self.reach = np.maximum(np.abs(self.near), np.abs(own[:, ~listed]).max(axis=1))
        self.mass = weight.sum(axis=1)
        self.tail = weight[:, rest].sum(axis=1)
        self.cross = (weight[0] * x)[:, rest].sum(axis=1)
        self.cross_own = (weight[0] * x_own)[:, rest].sum(axis=1)
        self.cross_all = (weight[0] * x).sum(axis=1)
        self.draft_unlisted = weight[1, ~listed[segment]].sum()
        low = rest & listed[segment]
        self.draft_low = (weight[1] * x[1])[low].sum()
        self.draft_cross = (weight[1] * x[1])[rest].sum()
        self.probs = weight / self.mass[:, None]
        log_probs = LN2 * x - np.log(self.mass)[:, None]
        self.ratios = log_probs[0] - log_probs[1]
        self.sizes = -log_probs[0]
        self.kl = float(self.probs[0] @ self.ratios)
        self.entropy = float(self.probs[0] @ self.sizes)
        self.rest, self.summed = rest, np.where(listed[segment], -1 - column, segment)
        self.x_own = x_own
        self.own = np.where(listed[segment], self.near[:, None], own[:, segment])

    def worst_errors(self, plan: Any) -> tuple[float, float, float, float]:
        """Of float32 sums: the largest first-order change of both normalisers, relative, of KL and
        of the entropy. A weight moves with its exponential and its exponent, all of a segment with
        a sum; sums of weights times exponents move once more."""
        additions = max(plan.vector + plan.near + plan.tiles + plan.added - 2, segments.LOW_AT_ONCE)
        added = additions * constants.UNIT32
        kappa = abs(float(LOG2E32 / LOG2E) - 1)
        exponents = (kappa + constants.UNIT32) * np.abs(self.x_own) + kappa * np.abs(self.own)
        exponents = LN2 * exponents[:, self.rest]
        weights = constants.EXP2_ERROR + exponents
        p, q = self.probs[:, self.rest]
        cross = LN2 * added * np.abs(self.x_own[:, self.rest]) + exponents
        in_t, in_d = float(p @ (weights[0] + added)), float(q @ (weights[1] + added))
        of_kl = self._moved(self.ratios - self.kl - 1, weights[0], added) + float(p @ cross.sum(0))
        of_entropy = self._moved(self.sizes - self.entropy + 1, weights[0], added)
        return in_t, in_d, of_kl + in_d, of_entropy + float(p @ cross[0])

    def _moved(self, slopes: np.ndarray, weights: np.ndarray, added: float) -> float:
        """What the target's weights move, each by its own error and with its segment's sum."""
        p, slopes = self.probs[0, self.rest], slopes[self.rest]
        _, group = np.unique(self.summed[self.rest], return_inverse=True)
        by_segment = np.abs(np.bincount(group, p * slopes))
        return float(p @ (weights * np.abs(slopes)) + added * by_segment.sum())


def reference_of(largest: np.ndarray) -> np.ndarray:
    """The integer at or above the largest exponent."""
    finite = np.where(np.isfinite(largest), largest, 0.0).astype(np.float32)
    return np.ceil(finite * LOG2E32).astype(np.float64)


def statistics_due(exact: Exact, in_float64: bool) -> dict[str, float]:
    """The sums that rank_row makes its errors of, by their names there."""
    raw = exact.cross if in_float64 else exact.cross_own
    return {
        "bar_t": exact.bars[0],
        "bar_d": exact.bars[1],
        "ref_t": exact.near[0],
        "ref_d": exact.near[1],
        "reach_t": exact.reach[0],
        "reach_d": exact.reach[1],
        "num_kept": len(exact.kept),
        "count": len(exact.listed),
        "tail_t": exact.tail[0],
        "tail_d": exact.tail[1],
        "tail_ct": exact.cross[0],
        "tail_cd": exact.cross[1],
        "raw_t": raw[0],
        "raw_d": raw[1],
        "segment_d": 0.0 if in_float64 else exact.draft_unlisted,
        "low_dd": exact.draft_cross if in_float64 else exact.draft_low,
        "mass_t": exact.mass[0],
        "mass_d": exact.mass[1],
        "all_ct": exact.cross_all[0],
        "all_cd": exact.cross_all[1],
    }


def terms_due(got: Any) -> dict[str, float]:
    """The terms of the stated errors, by their names in rank_row, from the sums that it made: in
    nats, a relative error of the tail's weights counting with the tail's share."""
    share_t, share_d = got.tail_t / got.mass_t, got.tail_d / got.mass_d
    size_t, size_d = -got.raw_t / got.mass_t, -got.raw_d / got.mass_t  # E|x|, own references
    size_dd = (got.segment_d * got.mean_exponent - got.low_dd) / got.mass_d
    log_t, log_d = math.log(got.mass_t), math.log(got.mass_d)
    mean_t, mean_d = LN2 * got.all_ct / got.mass_t, LN2 * got.all_cd / got.mass_t
    kl = got.divergence
    # what a rounded log2 e makes of the references
    moved_by_t = LN2 * got.reference_error * got.reach_t
    moved_by_d = LN2 * got.reference_error * got.reach_d
    error_t = share_t * (got.term_error + moved_by_t) + LN2 * got.exponent_error * size_t
    error_d = share_d * (got.term_error + moved_by_d) + LN2 * got.exponent_error * size_dd
    error_t, error_d = error_t + constants.KEPT_ERROR, error_d + constants.KEPT_ERROR
    farthest = got.farthest_error + moved_by_t
    # sum p|log p/q| of the tail, which claim kernel.filter_rest bounds (with 3/4 of the draft's
    # share where here are 2), and sum p log(1/p), which needs no more
    ratio = LN2 * (got.tail_ct - got.tail_cd) / got.mass_t - (log_t - log_d) * share_t
    ratio += 2 * share_d + constants.TAIL_SLACK
    lone = -LN2 * got.tail_ct / got.mass_t + log_t * share_t + constants.TAIL_SLACK
    per_size = LN2 * (got.addition_error + got.exponent_error)
    moved_t, moved_d = per_size * size_t + share_t * moved_by_t, per_size * size_d
    moved_d += share_t * moved_by_d
    sizes = sum(map(abs, (mean_t, mean_d, log_t, log_d, got.ref_t, got.ref_d)))
    rounding = constants.DIVERGENCE_ROUNDINGS * (1 + sizes)
    added = got.addition_error * share_t
    kl_error = farthest * ratio + (1 + abs(kl)) * error_t + error_d + moved_t + moved_d
    kl_error = constants.FILTER_PRODUCTS * (kl_error + added * abs(mean_t - mean_d)) + rounding
    entropy = log_t - mean_t
    of_entropy = farthest * lone + (1 + abs(entropy)) * error_t + moved_t + added * abs(mean_t)
    return {
        "share_t": share_t,
        "share_d": share_d,
        "error_t": error_t,
        "error_d": error_d,
        "farthest": farthest,
        "tail_ratio": ratio,
        "tail_entropy": lone,
        "moved_t": moved_t,
        "moved_d": moved_d,
        "sizes": sizes,
        "rounding": rounding,
        "kl_error": kl_error,
        "entropy_error": constants.FILTER_PRODUCTS * of_entropy + rounding,
        "kl_upper": kl + kl_error,
        "kl_lower": kl - kl_error,
        "relative": constants.ERROR_PRODUCTS * error_t
        + constants.REFERENCE_ROUNDINGS * (abs(got.top_logit) + constants.REFERENCE_NATS),
    }


@pytest.fixture(scope="module", params=PLANS)
def report(request) -> tuple[Any, Launched, list[Exact]]:
    plan = PLANS[request.param]
    target, draft = rows_with_every_term()
    exact = [
        Exact(*sides, plan, plan.ranks) for sides in zip(target.numpy(), draft.numpy(), strict=True)
    ]
    return plan, launched(target, draft, plan), exact


def differences(got: dict[str, Any], due: dict[str, float], relative: float) -> dict[str, Any]:
    return {
        name: (got[name], value)
        for name, value in due.items()
        if not abs(got[name] - value) <= relative * abs(value)
    }


def test_sums_are_those_of_the_row(report):
    _, kernels, exact = report
    for row, (fast, slow, due) in enumerate(zip(kernels.fast, kernels.exact, exact, strict=True)):
        off = 1e-5 + 1.4e-8 * max(due.reach)
        assert (row, differences(fast, statistics_due(due, False), off)) == (row, {})
        assert (row, differences(slow, statistics_due(due, True), 1e-11)) == (row, {})
        for got in (fast, slow):
            assert got["exists"].sum() == 1 + (due.num_segments - 1) % got["exists"].size
            assert abs(got["divergence"] - due.kl) <= got["kl_error"]
            assert abs(got["entropy"] - due.entropy) <= got["entropy_error"]


def test_every_term_of_the_stated_errors_is_there_in_full(report):
    _, kernels, _ = report
    for got in (*kernels.fast, *kernels.exact):
        assert differences(got, terms_due(SimpleNamespace(**got)), 5e-7) == {}  # float32 factors
    errors = kernels.scores.errors.numpy()
    assert errors[:, NORMALISER_ERROR].tolist() == [got["relative"] for got in kernels.exact]
    assert errors[:, ENTROPY_ERROR].tolist() == [got["entropy_error"] for got in kernels.exact]


def test_stated_errors_cover_the_worst_that_roundings_can_do(report):
    """To first order, every rounding at its largest and in the worst direction."""
    plan, kernels, exact = report
    for got, due in zip(kernels.fast, exact, strict=True):
        worst = due.worst_errors(plan)
        stated = [got[name] for name in ("error_t", "error_d", "kl_error", "entropy_error")]
        assert (np.array(worst) < stated).all(), (worst, stated)


def test_float64_sums_pay_for_as_many_roundings_as_a_term_meets(report):
    plan, kernels, _ = report
    lanes = plan.parts * plan.quads * plan.added
    # a product; a lane's own sums, of which the first adds to 0; and those of all lanes
    met = 1 + (math.ceil(COLUMNS / lanes) - 1) + (lanes - 1)
    for got in kernels.exact:
        assert met * constants.ERROR_PRODUCTS * constants.UNIT <= got["addition_error"] < 1e-13
        assert got["exponent_error"] == constants.EXACT_EXPONENT_ERROR
        assert got["reference_error"] == constants.EXACT_EXPONENT_ERROR
        assert got["farthest_error"] == constants.EXACT_FARTHEST_ERROR
        term = got["addition_error"] + constants.EXACT_EXP2_ERROR
        assert got["term_error"] == pytest.approx(term, rel=1e-9, abs=0.0)


def test_float32_sums_pay_for_as_many_roundings_as_a_term_meets(report):
    plan, kernels, _ = report
    stated = asdict(segment_errors(plan.vector, plan.near, plan.tiles, plan.added))
    for got in kernels.fast:
        for name in ("term", "addition", "exponent", "reference", "farthest"):
            assert got[f"{name}_error"] == pytest.approx(stated[name], rel=1e-6, abs=0.0)
        # low elements meet a product and these sums
        assert got["at_once"] * constants.UNIT32 < got["addition_error"]
        assert got["at_once"] <= segments.LOW_AT_ONCE


def test_only_ranks_that_are_known_are_given(report):
    plan, kernels, exact = report
    for got, due in zip(kernels.fast, exact, strict=True):
        known = np.isfinite(got["logit_t"])
        assert known.tolist() == [slot < plan.ranks for slot in range(plan.slots)]
        assert len(due.kept) > plan.ranks


def test_a_row_stays_open_where_both_errors_together_are_too_wide(report):
    _, kernels, _ = report
    for row, got in enumerate(kernels.fast):
        wide = got["error_t"] + got["error_d"] >= constants.WIDEST
        assert bool(got["path"] & INVALID.value) == wide == (row == 9)
    assert max(kernels.fast[9]["error_t"], kernels.fast[9]["error_d"]) < constants.WIDEST
    assert not any(got["path"] for got in kernels.exact)


def test_rows_list_segments_and_keep_elements_each_in_scratch_of_its_own(report):
    _, kernels, exact = report
    for scratch, due in zip(kernels.scores.scratch.numpy(), exact, strict=True):
        assert sorted(scratch[: len(due.listed)]) == due.listed.tolist()
        kept = scratch[due.num_segments :][: len(due.kept)]
        assert sorted(kept) == due.kept.tolist()
    assert bool((kernels.guards == -7).all())


def test_as_many_ties_as_there_are_cells_leave_no_row_open_and_one_more_writes_nowhere():
    target = torch.full((2, COLUMNS), -3.0)
    target[0, :504:8], target[1, :516:8] = 1.0, 1.0
    target[0, 505] = 1.0
    kernels = launched(target, target.clone(), PLANS["two blocks"])
    assert [got["num_kept"] for got in kernels.fast] == [triton_rows.CELLS, triton_rows.CELLS + 1]
    assert [got["path"] for got in kernels.fast] == [0, TIES.value]
    assert bool((kernels.guards == -7).all())


def test_an_exponents_stated_error_is_what_float32_makes_of_it_at_the_worst():
    stated = segment_errors(1, 1, 1)
    draw = np.random.default_rng(1)
    near_powers = -np.exp2(draw.integers(-3, 7, 40_000)) * (1 + draw.uniform(0, 0.01, 40_000))
    z = (near_powers / LOG2E).astype(np.float32)
    assert 0.95 < worst_of_exponents(z, np.zeros(1), stated) <= 1.0
    z = draw.uniform(1e3, 1e5, 40_000).astype(np.float32)
    assert 0.95 < worst_of_exponents(z, reference_of(z), stated) <= 1.0


def worst_of_exponents(z: np.ndarray, reference: np.ndarray, stated: Any) -> float:
    """The largest error of fma(z, log2 e, -reference) over what is stated."""
    exact = z.astype(np.longdouble) * (1 / np.log(np.longdouble(2))) - reference
    rounded = (z.astype(np.float64) * np.float64(LOG2E32) - reference).astype(np.float32)
    allowed = stated.exponent * np.abs(exact) + stated.reference * np.abs(reference)
    return float((np.abs(rounded - exact) / allowed).max())


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (8, 4, 4, 4)])
def test_a_segments_errors_are_those_of_its_exponentials_and_sums(shape):
    stated, columns = segment_errors(*shape), math.prod(shape[:3])
    assert stated.term == constants.EXP2_ERROR + stated.addition
    # one column: its exponent is above -1, and more are claimed to be log2 of their number beyond
    assert stated.mean_exponent >= 1.0 + math.log2(columns)
    lowest = LN2 * stated.exponent * constants.LOWEST_EXPONENT
    assert stated.farthest == pytest.approx(constants.EXP2_ERROR + lowest, rel=1e-12, abs=0.0)


@triton.jit
def powers_of_two(exponents, powers, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(powers + at, power_of_two(tl.load(exponents + at)))


def test_powers_of_two_are_exact_and_0_below_the_normal_numbers():
    exponents = torch.arange(-511, 1, dtype=torch.float32)
    powers = torch.empty_like(exponents)
    powers_of_two[(1,)](exponents, powers, COUNT=len(exponents))
    assert torch.equal(powers, torch.where(exponents < -126, 0.0, torch.exp2(exponents)))
