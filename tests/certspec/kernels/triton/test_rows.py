"""The Triton kernels, on a GPU or in the interpreter, against numba on rows of every regime."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.kernels.columns import ENTROPY, ENTROPY_ERROR, KL, KL_UPPER
from certspec.kernels.rule_table import rule_table
from proofs_check.hunts.soundness import disagreements
from tests.support.device import DEVICE

pytest.importorskip("triton")
from certspec.kernels.triton import rows as triton_rows
from certspec.kernels.triton.ranks import TIES
from certspec.kernels.triton.segments import CONSTANT_ERROR, EXACT_FARTHEST_ERROR, segment_errors

pytestmark = pytest.mark.triton

VOCAB = 1030  # an odd tail


def rows_of_every_regime() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    rows = (
        torch.randn(9, VOCAB, generator=generator)
        * torch.tensor([0.2, 1, 2, 1, 1, 1, 1, 1, 1])[:, None]
    )
    # ranks past the known ones
    rows[3, torch.randperm(VOCAB, generator=generator)[:40]] = torch.linspace(9, 8, 40)
    rows[4, [3, 7]] = 9.0  # two maxima
    rows[5, 11] = 90.0  # saturated
    rows[6] = 0.5  # all equal: more ties than there are cells
    rows[7, 100:200] = -torch.inf  # masked tokens
    rows[8, [5, 900]] = torch.tensor([12.0, 11.0])
    return rows


def on_host(found: Any) -> Any:
    """The same with its tensors on the CPU."""
    moved = {f.name: getattr(found, f.name) for f in fields(found)}
    return replace(found, **{n: v.cpu() for n, v in moved.items() if isinstance(v, torch.Tensor)})


def launch(
    target: torch.Tensor, draft: torch.Tensor, table: Any, plan: Any, columns: int = VOCAB
) -> Any:
    """The kernels alone on the first columns: rows that they leave open stay open."""
    parameters = torch.from_numpy(table.parameters.copy()).to(DEVICE)
    sides = target.to(DEVICE), draft.to(DEVICE)
    return on_host(triton_rows.launch(*sides, parameters, columns, table.num_top, plan))


def gaps_beyond_bounds(one: Any, other: Any) -> np.ndarray:
    """(rows, 2): whether KL or entropy of two launches differ by more than both bound."""
    errors = [
        torch.stack(
            [fast.scalars[:, KL_UPPER] - fast.scalars[:, KL], fast.errors[:, ENTROPY_ERROR]]
        )
        for fast in (one, other)
    ]
    gaps = (one.scalars - other.scalars)[:, [KL, ENTROPY]].abs()
    return (gaps > (errors[0] + errors[1]).T).numpy()


def near_a_threshold(target: torch.Tensor, draft: torch.Tensor) -> dict[str, float]:
    """A row whose second token lies a relative 1e-8 above an additive threshold, which float32 sums
    can't tell."""
    top = torch.softmax(target.double(), -1).topk(2).values[0]
    table = rule_table((cs.Additive(float(top[0] - top[1] * (1 - 1e-8))), cs.StrictGreedy()))
    plan = triton_rows.plan_for(1, VOCAB, target.element_size(), table.num_top)
    fast = launch(target, draft, table, plan)
    theirs = cs.certify(target, draft, table.rules, backend="numba")
    tail = torch.softmax(target[0].double(), -1).sort().values[: -triton_rows.CELLS]
    paid = EXACT_FARTHEST_ERROR * float(-(tail * tail.log()).sum())
    return {
        "entropy_error_over_the_exponentials": float(fast.errors[0, 1]) / paid,
        "path": int(fast.path[0]),
        "kl_gap": abs(float(fast.scalars[0, 0] - theirs.kl[0])),
        "kl_excess": float(fast.scalars[0, 1] - fast.scalars[0, 0]),
        "upper_below_kl": bool(fast.scalars[0, 1] < theirs.kl[0]),
        "different": int((fast.verdict[0, :, 0].bool() != theirs.accepted[:, 0]).sum()),
        "certificate_gap": float(
            (fast.certificate[0, :, 0] - theirs.certificate[:, 0]).abs().max()
        ),
        "lower_above": int((fast.certificate[1, :, 0] > theirs.certificate[:, 0]).sum()),
    }


@pytest.fixture(scope="module", params=["bfloat16", "float16", "float32"])
def report(request) -> dict[str, Any]:
    """What differs between the Triton backend and numba on rows of every regime."""
    dtype = getattr(torch, request.param)
    generator = torch.Generator().manual_seed(6)
    target = rows_of_every_regime().to(dtype)
    draft = (target.float() + 0.1 * torch.randn(target.shape, generator=generator)).to(dtype)
    # padded columns hold what no one may read
    wide = torch.full((len(draft), VOCAB + 34), 77.0, dtype=dtype)
    wide[:, :VOCAB] = draft
    rules = (*cs.default_rules(), cs.Absolute(0.01), cs.Gated(10, additive=0.6))
    table = rule_table(rules)
    plan = triton_rows.plan_for(len(target), VOCAB, target.element_size(), table.num_top)
    sides = target.to(DEVICE), wide.to(DEVICE)
    launched = []  # what the kernels alone say of these rows, before the open ones are settled
    with pytest.MonkeyPatch.context() as patch:
        kernels = triton_rows.launch_fast
        patch.setattr(
            triton_rows,
            "launch_fast",
            lambda *given: launched.append(kernels(*given)) or launched[-1],
        )
        ours = on_host(cs.certify(*sides, rules, backend="triton", align=VOCAB))
    [fast] = map(on_host, launched)
    # 2 blocks of segments, as of long rows
    blocks = replace(plan, parts=32, quads=1, added=2, batch=2, deep_batch=2)
    again = launch(target, wide, table, blocks)
    theirs = cs.certify(target, wide, rules, backend="numba", align=VOCAB)
    names = (
        "target_token",
        "draft_token",
        "target_top_ids",
        "draft_top_ids",
        "accepted",
        "certified",
    )
    decided = fast.path.numpy() == 0
    finite = np.isfinite(theirs.certificate.numpy())
    gap = np.abs(
        ours.certificate.numpy() - theirs.certificate.numpy(),
        where=finite,
        out=np.zeros(finite.shape),
    )
    return {
        "different": [
            name for name in names if not torch.equal(getattr(ours, name), getattr(theirs, name))
        ],
        "near_a_threshold": near_a_threshold(target[:1], draft[:1]),
        "decided": decided.tolist(),
        "different_in_blocks": [
            name
            for name in ("ids", "verdict", "path")
            if not np.array_equal(
                *(
                    side[..., decided, :] if name == "ids" else side[..., decided]
                    for side in (getattr(fast, name).numpy(), getattr(again, name).numpy())
                )
            )
        ],
        "gaps_beyond_bounds_in_blocks": gaps_beyond_bounds(fast, again)[decided].sum(),
        "worst_certificate_gap": float(gap.max()),
        "upper_below_kl": int((ours.kl_upper < theirs.kl - 1e-13).sum()),
        "lower_above_certificate": int((ours.certificate_lower > theirs.certificate + 1e-13).sum()),
        "fast_certified_beyond_numba": int((fast.verdict[1].bool() & ~theirs.certified).sum()),
        "beyond_stated_errors": disagreements(ours, theirs),
        "largest_stated_errors": [float(ours.entropy_error.max()), float(ours.prob_error.max())],
        "worst_kl_gap": float((ours.kl - theirs.kl).abs().nan_to_num(posinf=0.0).max()),
    }


def test_ids_and_flags_equal_numbas(report):
    assert report["different"] == []


def test_bounds_are_on_their_side(report):
    assert report["upper_below_kl"] == 0
    assert report["lower_above_certificate"] == 0
    assert report["fast_certified_beyond_numba"] == 0


def test_values_are_within_the_float32_bounds(report):
    assert report["worst_kl_gap"] < 1e-6
    assert report["worst_certificate_gap"] < 1e-6


def test_every_value_is_within_the_errors_that_the_backend_states(report):
    assert report["beyond_stated_errors"] == {}
    assert max(report["largest_stated_errors"]) < 1e-4


def test_only_the_rows_that_defy_the_fast_path_leave_it(report):
    assert report["decided"] == [True, True, True, True, True, True, False, False, True]


def test_a_row_worked_in_blocks_of_segments_gets_the_same_ids_and_flags(report):
    assert report["different_in_blocks"] == []
    assert report["gaps_beyond_bounds_in_blocks"] == 0


@pytest.mark.parametrize("nats_per_column", [1 / 3000, 1 / 60, 1.0])
@pytest.mark.parametrize("num_rows", [1, 17, 200])
def test_likely_tokens_that_all_have_low_numbers_leave_no_row_open(num_rows, nats_per_column):
    """As tokenizers number them. Each plan cuts a row into parts in its own way; the likeliest lie
    in many parts, in some, or in a run of columns."""
    columns, generator = 33_000, torch.Generator().manual_seed(0)
    slope = nats_per_column * torch.arange(columns)
    target = 2 * torch.randn(1, columns, generator=generator) - slope
    draft = target + 0.3 * torch.randn(1, columns, generator=generator)
    table = rule_table((cs.StrictGreedy(),))
    plan = triton_rows.plan_for(num_rows, columns, target.element_size(), table.num_top)
    plan = replace(plan, tiles=8, warps=1, quads=1) if num_rows == 200 else plan
    fast = launch(target, draft, table, plan, columns)
    theirs = cs.certify(target, draft, table.rules, backend="numba")
    assert fast.path.tolist() == [0]
    assert fast.certificate[1, 0, 0] <= theirs.certificate[0, 0] <= fast.certificate[0, 0] + 2e-6
    assert fast.ids[0, 0].tolist() == theirs.target_top_ids[0].tolist()
    assert fast.ids[1, 0].tolist() == theirs.draft_top_ids[0].tolist()


@pytest.mark.parametrize("side", [0, 1])
def test_likely_tokens_of_one_model_that_lie_together_leave_no_row_open(side):
    generator = torch.Generator().manual_seed(4)
    sides = torch.randn(2, 1, 33_000, generator=generator)
    sides[side, 0, 64:264] += 9.0
    table = rule_table((cs.StrictGreedy(),))
    plan = triton_rows.plan_for(1, 33_000, sides.element_size(), table.num_top)
    fast = launch(*sides, table, plan, 33_000)
    theirs = cs.certify(*sides, table.rules, backend="numba")
    assert fast.path.tolist() == [0]
    assert fast.ids[0, 0].tolist() == theirs.target_top_ids[0].tolist()
    assert fast.ids[1, 0].tolist() == theirs.draft_top_ids[0].tolist()


@pytest.mark.parametrize(("num_ties", "is_open"), [(40, False), (54, False), (55, True)])
def test_only_more_equal_tokens_than_cells_leave_a_row_open(num_ties, is_open):
    """Beside ten that are likelier, all within one part of the row; and a hundred that are less
    likely, which are as many as reach the first bar."""
    target = torch.full((1, 33_000), -9.0)
    target[0, :10] = torch.linspace(9.0, 8.0, 10)
    target[0, 10 : 10 + num_ties] = 5.0
    target[0, 100:200] = torch.linspace(4.0, 3.0, 100)
    table = rule_table((cs.StrictGreedy(),))
    plan = triton_rows.plan_for(1, 33_000, target.element_size(), table.num_top)
    fast = launch(target, target, table, plan, 33_000)
    assert (fast.path.tolist() == [TIES.value]) is is_open


def test_a_row_that_float32_sums_leave_open_is_decided_by_float64_sums(report):
    found = report["near_a_threshold"]
    # each token of the tail may be off by the error of the farthest exponential
    assert found["entropy_error_over_the_exponentials"] >= 1.0
    assert found["path"] == found["different"] == found["lower_above"] == 0
    assert not found["upper_below_kl"]
    assert found["kl_gap"] < 1e-13
    assert 0 < found["kl_excess"] < 1e-11
    assert found["certificate_gap"] < 1e-12


def test_the_rounded_constant_is_as_near_to_log2_e_as_claimed():
    assert abs(1.44269502162933349609375 / 1.4426950408889634 - 1) < CONSTANT_ERROR


def test_longer_segments_have_larger_errors():
    assert (
        segment_errors(8, 4, 4).term
        > segment_errors(8, 4, 1).term
        > segment_errors(8, 1, 1).term
        > 0
    )


def test_a_token_within_rounding_of_a_threshold_gets_numbas_exact_answer():
    target = torch.full((2, VOCAB), -60.0)
    target[0, 0], target[1, :2] = 60.0, 60.0
    draft = target.flip(1).clone()
    draft[1] = target[1]
    rules = [cs.presets.sglang_threshold(), cs.Absolute(0.5), cs.Multiplicative(1.0)]
    theirs = cs.certify(target, draft, rules, backend="numba")
    ours = on_host(cs.certify(target.to(DEVICE), draft.to(DEVICE), rules, backend="triton"))
    assert theirs.accepted[:, 1].tolist() == [False, False, True]  # p1 = p2 < 1/2
    assert torch.equal(ours.accepted, theirs.accepted)
    assert torch.equal(ours.certified, theirs.certified)
    assert torch.allclose(ours.certificate, theirs.certificate, rtol=1e-13)
