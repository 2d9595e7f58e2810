"""A first divergence is called rounding only where the two tokens are as close as the logits' own
error."""

import copy
import json

import pytest
import torch

from certspec.decoding.policies import Adaptive, BestFirst
from certspec.models.pairs import Pair
from certspec.studies.soaks import divergences
from certspec.studies.soaks.divergences import RoundedDivergence, explain, modes


@pytest.fixture(scope="module")
def rounded(tiny):
    target = copy.deepcopy(tiny.target).to(torch.bfloat16)
    exact = copy.deepcopy(target).float()
    return Pair(target, tiny.draft, None, tiny.num_tokens), exact


def test_equal_outputs_have_no_divergence(rounded):
    assert explain(*rounded, [5, 6], [7, 8], [7, 8]) is None


def test_a_wrong_token_far_from_the_best_is_no_rounding(rounded):
    pair, exact = rounded
    logits = exact(torch.tensor([[5, 6, 7]])).logits[0, -1]
    best, worst = int(logits.argmax()), int(logits.argmin())
    found = explain(pair, exact, [5, 6], [7, best], [7, worst], index=3)
    assert (found.prompt, found.position, found.expected, found.got) == (3, 1, best, worst)
    assert found.gap > 2 * found.error > 0 and not found.is_rounding
    assert found.exact_gap == pytest.approx(float(logits[best] - logits[worst]))


def test_a_gap_within_the_error_is_rounding_and_one_beyond_is_not():
    facts = {"prompt": 0, "position": 0, "expected": 1, "got": 2, "spacing": 0.0625, "error": 0.07}
    assert RoundedDivergence(gap=0.125, exact_gap=-0.03, **facts).is_rounding
    assert not RoundedDivergence(gap=0.0625, exact_gap=0.2, **facts).is_rounding
    assert not RoundedDivergence(gap=0.2, exact_gap=0.01, **facts).is_rounding


def test_an_output_that_merely_ends_is_an_error(rounded):
    with pytest.raises(RuntimeError, match="prompt 4: one output ends at position 1"):
        explain(*rounded, [5, 6], [7, 8], [7], index=4)


def test_chain_trees_and_adaptive_drafting_are_compared_at_batch_1_and_8(tiny):
    ways = modes(tiny, [[5, 6, 7], [8, 9]])
    assert sorted({options["batch_size"] for options in ways.values()}) == [1, 8] and len(ways) == 8
    assert isinstance(ways["adaptive chain, batch 8"]["draft_length"], Adaptive)
    assert isinstance(ways["best-first 12, batch 1"]["tree"], BestFirst)
    assert (
        ways["chain of 5, batch 1"]["draft_length"] == 5
        and ways["greedy tree 4 x 4, batch 8"]["tree"].width == 4
    )


def test_in_float32_on_a_cpu_no_mode_parts_from_transformers(capsys, monkeypatch):
    monkeypatch.setattr(divergences, "CALIBRATED", 2)
    command = [
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--limit",
        "2",
        "--max-new-tokens",
        "6",
        "--modes",
        "chain,best",
    ]
    assert divergences.main(command) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(facts["modes"]) == 6 and all(mode["parted"] == 0 for mode in facts["modes"].values())
