"""The hunt for false certificates counts what it says, goes on where it stopped, and its 50-digit
judge sees a bound that is wrong by a hair."""

import json
from functools import partial

import numpy as np
import pytest
import torch

import certspec as cs
from proofs_check.hunts import near_boundary
from proofs_check.hunts.near_boundary import Plan, hunt, judge_exactly
from proofs_check.hunts.rows import (
    BAND,
    NEAR_FAMILIES,
    as_dtype,
    boundary_pairs,
    target_rows,
    with_tail,
)
from tests.support.device import DEVICE

CELLS = (
    ("numba", None, "float32", 0.4),
    ("torch", None, "bfloat16", 0.3),
    ("numba", "float32", "float16", 0.3),
)
HUNTED = [
    *cs.default_rules(),
    cs.Gated(top_m=10, additive=0.6),
    cs.Absolute(0.2),
    cs.Multiplicative(0.9),
]
RULES = (cs.StrictGreedy(), cs.Entropy(epsilon=0.09, delta=0.3), cs.Tree(2))


def _rounded(rows, dtype):
    return as_dtype(rows, dtype).double()


def test_no_pair_of_a_small_hunt_is_falsely_certified():
    state = hunt(Plan(2000, vocab=12, rules=RULES), CELLS)
    for cell in state["cells"].values():
        assert cell["pairs"] >= 500 and cell["certified"] > 0 and cell["judged_exactly"] > 0
        assert cell["false_certificates"] == cell["false_bounds"] == cell["false_by_50_digits"] == 0
        assert (
            min(sum(decade[side] for decade in cell["near"][:9]) for side in (0, 1))
            > 0.2 * cell["pairs"]
        )
        assert (
            cell["pairs"] > cell["rows"]
        )  # every row sits beside a certificate, of one rule or of several


SMALL = Plan(3000, vocab=12, rules=RULES, sample=1)


@pytest.fixture(scope="module")
def whole():
    return hunt(SMALL, CELLS)


def test_a_hunt_goes_on_where_it_stopped(whole, tmp_path):
    path = tmp_path / "state.json"

    class Interrupted(Exception):
        pass

    def interrupt(name, cell, wanted):
        if cell["batches"] == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        hunt(SMALL, CELLS, state_path=path, say=interrupt)
    assert json.loads(path.read_text())["cells"]["numba float32"]["batches"] == 3
    assert hunt(SMALL, CELLS, state_path=path) == whole


def test_processes_side_by_side_count_what_one_counts_and_no_batch_twice_after_a_kill(
    whole, tmp_path
):

    class Killed(Exception):
        pass

    def kill(name, cell, wanted):
        if name == "torch bfloat16" and cell["batches"] == 2:
            raise Killed

    path = tmp_path / "state.json"
    with pytest.raises(Killed):
        hunt(SMALL, CELLS, state_path=path, say=kill, processes=2)
    counted = json.loads(path.read_text())["cells"]
    assert counted["torch bfloat16"]["batches"] == 2
    assert counted["numba float32"] == whole["cells"]["numba float32"]
    assert hunt(SMALL, CELLS, state_path=path) == whole  # goes on in any number of processes


@pytest.mark.triton
def test_the_device_hunt_runs_every_cell_of_triton_on_a_gpu_or_in_the_interpreter(
    capsys, monkeypatch
):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")  # else the command would leave it set
    assert near_boundary.main(f"--device {DEVICE} --pairs 9 --sample 1".split()) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["total"]["near_fast"] > 0 and facts["total"]["judged_exactly"] >= 9
    assert [
        name for name in facts["cells"] if "of 40000 columns" in name and "triton" in name
    ] and facts["triton"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_with_a_tail_sit_beside_a_certificate_too(dtype):
    generator = np.random.default_rng(6)
    rounded = partial(_rounded, dtype=dtype)
    head = target_rows(generator, "steep", 60, 32)
    wide = with_tail(generator, head, 700)
    assert wide.shape == (60, 700) and all(
        np.isin(a, b).all() for a, b in zip(head, wide, strict=True)
    )
    assert (np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1) < 34).all()
    target = rounded(torch.from_numpy(wide))
    draft = boundary_pairs(generator, target, HUNTED, rounded)
    scored = cs.certify(target.numpy(), draft.numpy(), HUNTED)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(scored.kl / scored.certificate - 1)
    assert ((distance >= BAND[0]) & (distance <= BAND[1])).any(axis=0).mean() > 0.8


def test_a_hunt_with_other_arguments_does_not_mix_its_counts_in(tmp_path):
    path = tmp_path / "state.json"
    hunt(Plan(100, vocab=8, rules=RULES, sample=0), CELLS[:1], state_path=path)
    with pytest.raises(ValueError, match="give another file"):
        hunt(Plan(100, vocab=9, rules=RULES, sample=0), CELLS[:1], state_path=path)


@pytest.mark.parametrize("rule", [cs.StrictGreedy(), cs.Additive(0.3), cs.TopM(2), cs.Tree(3)])
def test_the_judge_refutes_bounds_on_the_wrong_side(rule):
    generator = np.random.default_rng(2)
    target = np.sort(generator.normal(size=9))[::-1] * 2
    draft = target + generator.normal(size=9) * 0.1
    scored = cs.certify(target, draft, rule)
    names = ("kl", "kl_upper", "certificate", "certificate_lower", "accepted", "certified")
    arrays = {name: np.array(getattr(scored, name)) for name in names}
    assert judge_exactly(rule, 0, target, draft, arrays, 0)
    assert not judge_exactly(
        rule, 0, target, draft, {**arrays, "kl_upper": arrays["kl"] * (1 - 1e-12)}, 0
    )
    if np.isfinite(arrays["certificate"]).all():
        raised = {**arrays, "certificate_lower": arrays["certificate"] * (1 + 1e-12)}
        assert not judge_exactly(rule, 0, target, draft, raised, 0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(set(NEAR_FAMILIES)))
def test_nearly_every_row_sits_within_the_band_of_a_certificate_on_either_side(family, dtype):
    generator = np.random.default_rng(5)
    rounded = partial(_rounded, dtype=dtype)
    target = rounded(torch.from_numpy(target_rows(generator, family, 400, 32)))
    draft = boundary_pairs(generator, target, HUNTED, rounded)
    assert torch.equal(draft, rounded(draft))
    scored = cs.certify(target.numpy(), draft.numpy(), HUNTED)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = scored.kl / scored.certificate - 1
    near = (np.abs(distance) >= BAND[0]) & (np.abs(distance) <= BAND[1])
    assert near.any(axis=0).mean() > 0.9
    below, above = near & (distance < 0), near & (distance > 0)
    assert min(below.sum(), above.sum()) > 0.2 * near.sum()
    assert scored.accepted[below].all() and not scored.accepted[above].all()
    # the nearest tenth, which only float64 and what is subnormal in 16 bits can place at will
    if dtype in ("float64", "float32"):
        assert np.quantile(np.abs(distance[near]), 0.1) < 1e-10
