"""What rows.py does around the Triton kernels: the shapes it plans, which rows it works again, and
which figures it hands on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import certspec as cs
from certspec.kernels.columns import ENTROPY_ERROR, NORMALISER_ERROR
from certspec.kernels.row_scores import WEIGHT_ERROR
from certspec.kernels.rule_table import rule_table
from tests.support.device import DEVICE

pytest.importorskip("triton")
from certspec.kernels.triton import rows as triton_rows
from certspec.kernels.triton.ranks import THRESHOLD, UNDECIDED
from certspec.kernels.triton.rows import FastScores, Plan, allocate, launch, plan_for

pytestmark = pytest.mark.triton

PLANS = [
    plan_for(num_rows, columns, itemsize, num_top)
    for num_rows in (1, 100, 1000)
    for columns in (3, 1000, 33_000, 152_000, 1_000_000)
    for itemsize in (2, 4)
    for num_top in (1, 16, 20, 32)
]


def test_every_plan_knows_the_ranks_that_are_asked_for_and_no_more_than_it_has_slots():
    tops = [1, 16, 20, 32]
    for n, plan in enumerate(PLANS):
        assert max(12, tops[n % 4]) <= plan.ranks <= plan.slots


def test_a_program_works_as_many_segments_at_once_as_its_threads_hold():
    for plan in PLANS:
        at_once = plan.parts * plan.quads * plan.added
        assert plan.quads >= 1 and at_once <= 2048
        assert 1 <= plan.deep_batch <= plan.batch <= 32
        assert plan.batch == 1 or plan.batch * plan.segment <= plan.combine_warps * 256
    wide = plan_for(1, 1_000_000, 4, 10)
    assert wide.parts * wide.quads * wide.added == wide.combine_warps * 128
    assert wide.batch > wide.deep_batch > 1


def test_cards_from_hopper_on_launch_early(monkeypatch):
    launches_early = triton_rows._launches_early.__wrapped__
    monkeypatch.setattr(triton_rows.tl.extra.cuda, "gdc_wait", None, raising=False)
    found = {}
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, own=capability: own)
        found[capability] = launches_early(torch.device("cuda"))
    assert found == {(8, 9): False, (9, 0): True, (10, 0): True}


@pytest.mark.parametrize(
    ("name", "megahertz", "bits"), [("H100", 2619, 5120), ("H200", 3201, 6016)]
)
def test_many_rows_get_long_segments_where_memory_is_fast(monkeypatch, name, megahertz, bits):
    card = SimpleNamespace(memory_clock_rate=1000 * megahertz, memory_bus_width=bits)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    reads_fast = triton_rows._reads_fast.__wrapped__
    assert reads_fast(torch.device("cuda")) is (name == "H200")
    assert reads_fast(torch.device("cpu")) is reads_fast(None) is False
    monkeypatch.setattr(triton_rows, "_reads_fast", reads_fast)
    few, many = (plan_for(n, 151_936, 2, 10, torch.device("cuda")) for n in (128, 129))
    assert few == plan_for(128, 151_936, 2, 10)
    assert plan_for(129, 65_535, 2, 10, torch.device("cuda")) == plan_for(129, 65_535, 2, 10)
    assert (many != plan_for(129, 151_936, 2, 10)) is (name == "H200")
    assert many.segment == (256 if name == "H200" else 128)
    assert many.segment * many.batch <= 32 * many.combine_warps * 8


def room_for(num_rows: int, columns: int, num_top: int, plan: Any) -> tuple[FastScores, FastScores]:
    """Outputs of so many rows, and the same memory with a row more."""
    whole = allocate(num_rows + 1, columns, 1, num_top, plan, DEVICE)
    views = {
        name: tensor[:num_rows] for name, tensor in vars(whole).items() if len(tensor) > num_rows
    }
    views["certificate"] = whole.certificate.flatten()[: 2 * num_rows].view(2, 1, num_rows)
    views["verdict"] = whole.verdict.flatten()[: 2 * num_rows].view(2, 1, num_rows)
    views["ids"] = whole.ids.flatten()[: 2 * num_rows * num_top].view(2, num_rows, num_top)
    return FastScores(**views), whole


def test_the_second_kernel_works_the_open_rows_of_its_own_and_no_others(monkeypatch):
    """Rows 1 and 2 lie nearer their threshold than float32 sums can tell; a row past the last says
    that it is open too."""
    columns, worked = 300, []
    target = torch.randn(4, columns, generator=torch.Generator().manual_seed(2))
    target[:, 7] = 6.0
    target[1:, 9] = 5.0
    target[2:] = target[1]
    top = torch.softmax(target[1].double(), -1).topk(2).values
    rule = cs.Additive(float(top[0] - top[1] * (1 - 1e-8)))
    table = rule_table((rule,))
    plan = plan_for(3, columns, 4, table.num_top)
    out, whole = room_for(3, columns, table.num_top, plan)
    whole.path[3] = UNDECIDED.value
    parameters = torch.from_numpy(table.parameters.copy()).to(DEVICE)
    sides = target[:3].to(DEVICE), (0.9 * target[:3]).to(DEVICE)
    kernel = triton_rows.combine_open_rows
    monkeypatch.setattr(triton_rows, "OPEN_PROGRAMS", 1)  # all rows in one
    monkeypatch.setattr(triton_rows, "combine_open_rows", Before(kernel, out, worked))
    launch(*sides, parameters, columns, table.num_top, plan, out)
    assert [path != 0 for path in worked] == [False, True, True]
    assert whole.path.tolist() == [0, 0, 0, UNDECIDED.value]


@pytest.mark.parametrize("is_near", [False, True])
def test_rows_are_summed_again_only_where_one_is_open(monkeypatch, is_near):
    """In calls of several blocks too, each with its own."""
    target = torch.randn(5, 300, generator=torch.Generator().manual_seed(2))
    target[:, 7] = 6.0
    target[3, 9] = 5.0
    top = torch.softmax(target[3].double(), -1).topk(2).values
    gap = float(top[0] - top[1] * (1 - 1e-8)) if is_near else 0.5
    rules, worked = (cs.Additive(gap),), []
    again = triton_rows.launch_open_rows

    def noted(*given: Any) -> None:
        worked.append(given[-1].path.tolist())
        again(*given)
        assert given[-1].path.tolist() == [0] * len(worked[-1])

    monkeypatch.setattr(triton_rows, "ROW_BLOCK", 3)
    monkeypatch.setattr(triton_rows, "launch_open_rows", noted)
    ours = cs.certify(target.to(DEVICE), 0.9 * target.to(DEVICE), rules, backend="triton")
    theirs = cs.certify(target, 0.9 * target, rules, backend="numba")
    assert worked == ([[0, 0, 0], [THRESHOLD.value, 0]] if is_near else [])
    assert ours.accepted.cpu().tolist() == theirs.accepted.tolist()
    assert ours.path_counts == {"fast": 5, "rigorous": 0}


class Before:
    """A kernel; the paths at its launch are noted."""

    def __init__(self, kernel: Any, out: FastScores, noted: list[int]) -> None:
        self.kernel, self.out, self.noted = kernel, out, noted

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.noted += self.out.path.tolist()
        return self.kernel[grid]


def test_the_stated_errors_are_the_kernels_and_a_weights_own():
    fast = allocate(2, 50, 1, 10, Plan(), "cpu")
    fast.errors[:, NORMALISER_ERROR] = torch.tensor([0.25, 0.5])
    fast.errors[:, ENTROPY_ERROR] = torch.tensor([0.125, 2.0])
    scores = triton_rows._views(fast)
    assert scores.entropy_error.tolist() == [0.125, 2.0]
    assert scores.prob_error.tolist() == [0.25 + WEIGHT_ERROR, 0.5 + WEIGHT_ERROR]


def test_no_rows_have_no_scores():
    none = torch.zeros(0, 50, device=DEVICE)
    table = rule_table((cs.StrictGreedy(),))
    scores = triton_rows.score_rows(none, none, 50, table, 10)
    assert scores.kl.shape == (0,) and scores.accepted.shape == (1, 0)
