"""The CPU benchmark and the count of undecided rows report what they measured."""

import json
import math
from itertools import islice

import pytest
import torch
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.models.pairs import load_pair
from certspec.studies.soaks.losslessness import reference_tokens
from proofs_check.hunts.undecided import (
    added,
    count_undecided,
    drawn_prompts,
    greedy_logits,
    rate_upper_bound,
)
from tests.support.device import DEVICE


def test_the_cpu_benchmark_ends_in_json_with_ratios_and_their_spread(monkeypatch):
    arguments = ["bench", "kernels", "--device", "cpu", "--rows", "2", "--columns", "700"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    [row] = facts["results"]
    monkeypatch.setattr("certspec.studies.bench.kernels_cpu.measure_cpu", lambda *_: row)
    told, alone = (CliRunner().invoke(main, [*arguments, *more]) for more in ([], ["--json"]))
    assert told.stdout.splitlines()[:-1] == result.stdout.splitlines()[:-1] != []
    assert json.loads(alone.stdout)["results"] == [row]
    assert facts["device"] == "cpu" and row["rows"] == 2 and row["columns"] == 700
    for ratio in (
        "ours_over_read",
        "ours_float64_over_read",
        "eager_with_top_over_ours",
        "float64_over_ours",
    ):
        assert 0 < row[ratio]["lowest"] <= row[ratio]["median"] <= row[ratio]["highest"]
    assert row["paths"] == {"fast": 2, "rigorous": 0} and row["paths_float64"] == {
        "fast": 0,
        "rigorous": 2,
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_undecided_pairs_are_counted_by_row_and_rule(dtype):
    target = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]))
    draft = target.clone()
    counts = count_undecided(
        [(target, draft)] * 3, [cs.StrictGreedy(), cs.Tree(2)], dtype=dtype, backend=None
    )
    assert counts["rows"] == counts["rigorous"] == 6 and counts["pairs"] == 12
    assert counts["undecided_pairs"] == 0 and counts["certified"] == 12


def test_pairs_that_the_filter_leaves_open_are_counted_before_float64_settles_them():
    target = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]))
    draft = torch.log(
        torch.tensor([[0.4, 0.4, 0.2], [0.6, 0.3, 0.1]])
    )  # the first lies on strict greedy's boundary
    rules = [cs.StrictGreedy(), cs.Tree(2)]
    counts = count_undecided(
        [(target, draft)], rules, dtype="float32", backend="numba", precision="float32"
    )
    assert counts["left_open"] == 1 and counts["fast"] == counts["rigorous"] == 1


def test_the_upper_bound_of_a_rate_is_clopper_and_pearsons():
    assert rate_upper_bound(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000), rel=1e-9)
    bound = rate_upper_bound(2, 50)
    seen = sum(math.comb(50, k) * bound**k * (1 - bound) ** (50 - k) for k in range(3))
    assert seen == pytest.approx(0.05, rel=1e-9) and rate_upper_bound(7, 7) == 1.0


def test_counts_of_two_chunks_add_up_to_those_of_both():
    one = {"backend": "triton", "rows": 2, "reasons": {"ties": 1}, "first": [1]}
    assert added(one, {**one, "rows": 3}) == {
        "backend": "triton",
        "rows": 5,
        "reasons": {"ties": 2},
        "first": [1, 1],
    }


def test_the_steps_of_a_batch_are_those_of_each_prompts_greedy_answer():
    pair = load_pair()
    prompts = list(islice(drawn_prompts(pair), 140))
    assert len(set(map(tuple, prompts))) == 140
    few = [prompts[0], prompts[60], prompts[135]]  # of several lengths, the last one drawn
    [(target, draft)] = greedy_logits(pair, 1, 6, few)
    answers = [reference_tokens(pair, prompt, 6) for prompt in few]
    assert target.argmax(dim=1).tolist() == [token for answer in answers for token in answer]
    assert target.shape == draft.shape == (18, pair.num_tokens)
    alone = torch.tensor([[*few[1], *answers[1][:-1]]])
    assert torch.allclose(
        target[6:12], pair.target(alone).logits[0, -6:, : pair.num_tokens], atol=1e-4
    )


@pytest.mark.triton
def test_rows_that_triton_leaves_to_float64_are_explained_by_rule():
    """On strict greedy's boundary; the second token on the additive threshold to float64's last
    bit; far from either."""
    tail = torch.linspace(0.5, 1.5, 700)[torch.arange(700) * 37 % 700].expand(3, 700) * 0.2 / 700
    target, draft = (
        torch.cat([torch.tensor([head, [0.4, 0.25, 0.15], [0.6, 0.1, 0.1]]), tail], dim=1).log()
        for head in ([0.42, 0.21, 0.17], [0.315, 0.315, 0.17])
    )
    probs = torch.softmax(target[1].double(), 0)
    rules = [cs.StrictGreedy(), cs.Additive(float(probs[0] - probs[1]))]
    pair = target.to(DEVICE), draft.to(DEVICE)
    counts = count_undecided([pair], rules, dtype="float32", backend="triton")
    assert (counts["rows"], counts["fast"], counts["rigorous"], counts["open_pairs"]) == (
        3,
        1,
        2,
        3,
    )
    [[kl, same], [threshold]] = counts["first"]
    assert same["rule"].startswith("additive:")
    assert same["kl_minus_certificate"] == kl["kl_minus_certificate"]
    assert (kl["rule"], kl["reasons"]) == ("strict", ["undecided"])
    assert abs(kl["kl_minus_certificate"]) < kl["kl_error"] < 1e-10
    assert (threshold["rule"], threshold["reasons"]) == (same["rule"], ["threshold"])
    assert threshold["threshold_margin"] < 1.1
    assert (counts["reasons"]["undecided"], counts["reasons"]["threshold"]) == (2, 1)
    assert counts["within"]["either"]["1"] == 0 and counts["errors_of_fast_rows"]["kl"] > 0


def test_rows_that_no_memory_holds_are_refused_by_their_size() -> None:
    for rows in (str(2**31), "9" * 20, "9" * 400):
        done = CliRunner().invoke(main, ["bench", "kernels", "--device", "cpu", "--rows", rows])
        assert done.exit_code == 2
        assert f"got {rows[:20]}" in done.stderr
