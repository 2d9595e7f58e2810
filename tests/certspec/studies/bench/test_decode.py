"""The benchmark of decoding runs all ways on the same prompts, leaves the models alone, and prints
JSON last."""

import json

import pytest
import torch
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.cli.bench import _tree_policies
from certspec.decoding.calibration import pass_costs
from certspec.studies.bench.decode import ASSISTED_SETTINGS, measure_decoding
from certspec.studies.bench.decode_trees import stopped_chain

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def test_all_ways_emit_the_same_tokens_and_configs_stay_as_they_were(tiny, prompts):
    before = tiny.draft.generation_config.to_dict()
    shorter = {"shorter": {"draft_length": 1}}
    result = measure_decoding(
        tiny, prompts[1:3], 6, 2, {"chain": {"draft_length": 3}}, batch_size=2, in_batches=shorter
    )
    assert tiny.draft.generation_config.to_dict() == before
    assert result["same_output"] and set(result["tokens"].values()) == {
        result["tokens"]["transformers plain"]
    }
    assert len(result["tokens_per_second"]) == 1 + len(ASSISTED_SETTINGS) + 3
    assert (
        "certspec shorter, batch 2" in result["ratios"]
        and "certspec shorter" not in result["ratios"]
    )
    assert result["ratios"]["certspec chain"]["our batch 1"]["median"] == 1.0
    json.dumps(result, allow_nan=False)


def test_costs_have_the_form_that_advise_reads(tiny, prompts, tmp_path):
    from certspec.reports.advising.costs import read_costs

    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"costs": pass_costs(tiny, prompts[1], (1, 4))}))
    costs = read_costs(path)
    assert costs.draft_ms > 0 and [count for count, _ in costs.verify_ms] == [1, 4]


def test_calibrate_writes_a_profile_that_generate_takes(tmp_path):
    prompts, profile = tmp_path / "prompts.txt", tmp_path / "profile.json"
    prompts.write_text("Tell me a short story about a dog.\nHow do I make tea?\n")
    arguments = [
        "calibrate",
        "--prompts",
        str(prompts),
        "--out",
        str(profile),
        "--max-new-tokens",
        "12",
        "--width",
        "2",
    ]
    done = CliRunner().invoke(main, [*arguments, "--draft-cost", "0.1", "--node-cost", "0.1"])
    assert done.exit_code == 0, done.output
    loaded = cs.load_profile(profile)
    assert (
        loaded.num_steps == 24
        and loaded.width == 2
        and (loaded.draft_cost, loaded.node_cost) == (0.1, 0.1)
    )
    policy = cs.Adaptive(loaded, width=2)
    pair = cs.load_pair()
    ids = [[1, 2, 3]]
    adaptive = cs.generate(pair, ids, draft_length=policy, max_new_tokens=8)
    assert adaptive.sequences == cs.generate(pair, ids, draft_length=0, max_new_tokens=8).sequences
    wrong = CliRunner().invoke(main, [*arguments, "--draft-cost", "0.1"])
    assert wrong.exit_code == 2 and "both --draft-cost and --node-cost" in wrong.output


def test_trees_and_batches_are_timed_on_a_gpu_only_and_trees_named_as_they_are_written():
    wrong = [
        ["--trees", "4x3"],
        ["--device", "cuda", "--trees", "4x3,4y3"],
        ["--device", "cuda", "--trees", "0x3"],
    ]
    wrong += [["--device", "cuda", "--trees", "9of8"], ["--device", "cuda", "--trees", "0of8"]]
    for arguments in wrong:
        done = CliRunner().invoke(main, ["bench", "decode", *arguments])
        assert done.exit_code == 2 and "--trees: expected" in done.output
    done = CliRunner().invoke(main, ["bench", "decode", "--batches", "host"])
    assert done.exit_code == 2 and "--batches: expected" in done.output
    policies = _tree_policies("4x3, 16, 3of8")
    assert list(policies) == ["greedy 4x3", "best first 16", "stopped 3of8"]
    assert len(policies["greedy 4x3"].topology) == 12 and policies["best first 16"] == cs.BestFirst(
        16
    )


@pytest.mark.parametrize(("drafted", "most"), [(1, 1), (1, 8), (3, 8), (8, 8)])
def test_a_stopped_chain_stops_where_it_is_told_to(drafted, most):
    grower, row, passes = stopped_chain(drafted, most).start(most), torch.randn(50), 0
    nodes = [-1]
    while nodes:
        passes, nodes = passes + 1, grower.grow([(node, row) for node in nodes])
    assert passes == drafted and len(grower.finish({}).tokens) == drafted
