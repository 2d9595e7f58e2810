"""The CPU benchmark and the count of undecided rows report what they measured."""

import json

import pytest
import torch
from click.testing import CliRunner

import certspec as cs
from certspec.bench.undecided import count_undecided
from certspec.cli import main


def test_the_cpu_benchmark_ends_in_json_with_ratios_and_their_spread():
    result = CliRunner().invoke(main, ["bench", "kernels", "--device", "cpu", "--rows", "2", "--columns", "700"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output.splitlines()[-1])
    [row] = facts["results"]
    assert facts["device"] == "cpu" and row["rows"] == 2 and row["columns"] == 700
    for ratio in ("ours_over_read", "ours_float64_over_read", "eager_with_top_over_ours", "float64_over_ours"):
        assert 0 < row[ratio]["lowest"] <= row[ratio]["median"] <= row[ratio]["highest"]
    assert row["paths"] == {"fast": 2, "rigorous": 0} and row["paths_float64"] == {"fast": 0, "rigorous": 2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_undecided_pairs_are_counted_by_row_and_rule(dtype):
    target = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]))
    draft = target.clone()
    counts = count_undecided([(target, draft)] * 3, [cs.StrictGreedy(), cs.Tree(2)], dtype=dtype, backend=None)
    assert counts["rows"] == counts["rigorous"] == 6 and counts["pairs"] == 12
    assert counts["undecided_pairs"] == 0 and counts["certified"] == 12


def test_pairs_that_the_filter_leaves_open_are_counted_before_float64_settles_them():
    target = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]))
    draft = torch.log(torch.tensor([[0.4, 0.4, 0.2], [0.6, 0.3, 0.1]]))  # the first lies on strict greedy's boundary
    rules = [cs.StrictGreedy(), cs.Tree(2)]
    counts = count_undecided([(target, draft)], rules, dtype="float32", backend="numba", precision="float32")
    assert counts["left_open"] == 1 and counts["fast"] == counts["rigorous"] == 1
