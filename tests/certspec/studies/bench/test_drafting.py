"""The timed study of drafting: chosen on some prompts, measured on others, ratios with their
spread."""

import json

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.studies.bench import drafting


def test_a_confident_chain_stops_after_the_first_unsure_token():
    sure, unsure = torch.tensor([0.0, 9.0, 0.0]), torch.tensor([0.0, 0.5, 0.0])
    grower = drafting.ConfidentChain(0.8, depth=4).start(4)
    assert list(grower.grow([(-1, sure)])) == [0]
    assert list(grower.grow([(0, unsure)])) == []
    assert grower.finish({}).tokens == [1, 1]
    short = drafting.ConfidentChain(0.0, depth=1).start(1)
    assert list(short.grow([(-1, sure)])) == []


def test_every_familys_choice_is_measured_on_prompts_it_was_not_chosen_on(
    tiny, prompts, monkeypatch
):
    seen = []
    measure = drafting._measure
    monkeypatch.setattr(
        drafting, "_measure", lambda *args: seen.append((list(args[1]), args[2])) or measure(*args)
    )
    monkeypatch.setattr(
        drafting,
        "families",
        lambda profile: {
            "adaptive": {"width 1": {"draft_length": cs.Adaptive(profile, depth=4)}},
            "fixed chain": {"chain of 1": {"draft_length": 1}, "chain of 3": {"draft_length": 3}},
        },
    )
    result = drafting.measure_drafting(tiny, prompts[:2], prompts[2:], num_tokens=8, repeats=2)
    assert seen[0] == (
        [("adaptive", "width 1"), ("fixed chain", "chain of 1"), ("fixed chain", "chain of 3")],
        prompts[:2],
    )
    assert seen[1] == (
        [("adaptive", "width 1"), ("fixed chain", result["chosen"]["fixed chain"])],
        prompts[2:],
    )
    best = max(result["tuning_tokens_per_second"]["fixed chain"].items(), key=lambda item: item[1])[
        0
    ]
    assert result["chosen"]["fixed chain"] == best
    ratio = result["ratios"]["fixed chain"]["tokens_per_target_pass"]
    assert ratio["low_95"] <= ratio["ratio"] <= ratio["high_95"]
    assert "oracle" in result["modelled"]
    json.dumps(result, allow_nan=False)


def test_within_a_node_budget_the_choice_is_the_best_setting_that_keeps_to_it(
    tiny, prompts, monkeypatch
):
    monkeypatch.setattr(drafting, "NODE_BUDGETS", (1, 3))
    monkeypatch.setattr(
        drafting,
        "families",
        lambda profile: {
            "adaptive": {
                f"rate {rate}": {"draft_length": cs.Adaptive(profile, rate=rate)}
                for rate in (0.05, 9.0)
            },
            "fixed chain": {f"chain of {length}": {"draft_length": length} for length in (1, 2, 6)},
        },
    )
    result = drafting.measure_drafting(tiny, prompts[:2], prompts[2:], num_tokens=24, repeats=1)
    nodes = result["tuning_nodes_per_target_pass"]
    passes = result["tuning_tokens_per_target_pass"]
    for budget, found in result["at_node_budget"].items():
        for family, chosen in found["chosen"].items():
            allowed = {
                name: passes[family][name]
                for name, count in nodes[family].items()
                if count <= float(budget)
            }
            assert passes[family][chosen] == max(allowed.values())
    wide = result["at_node_budget"]["3"]
    assert wide["chosen"]["fixed chain"] == "chain of 2"
    assert set(wide["ratios"]) <= {"fixed chain"} and set(wide["held_out"]) == set(wide["chosen"])
    assert result["at_node_budget"]["1"]["chosen"]["fixed chain"] == "chain of 1"


def test_the_families_hold_what_they_are_named_for():
    from certspec.decoding.profiles import DraftingProfile, MonotoneMap

    profile = DraftingProfile(
        "x", 1, 0.1, 0.1, (MonotoneMap((0.0,), (0.5,)),) * 2, 0.1, 0.1, 1.0, ()
    )
    groups = drafting.families(profile)
    assert set(groups) == {
        "adaptive",
        "fixed chain",
        "fixed tree",
        "best-first tree",
        "confidence threshold",
    }
    assert all(len(group) >= 4 for group in groups.values())


def test_two_ways_with_different_tokens_are_an_error(tiny, prompts):
    ways = {"strict": {"draft_length": 2}, "relaxed": {"rule": cs.TopM(64), "draft_length": 2}}
    with pytest.raises(RuntimeError, match=r"tokens of prompt . differ"):
        drafting._measure(tiny, ways, prompts, 24, 1)


def test_a_ratio_of_equals_is_one_and_a_clear_win_has_an_interval_above_one():
    def run(seconds):
        ones = np.ones(len(seconds))
        return drafting._Run(np.array([seconds, seconds]), ones, ones, ones, ones)

    same = drafting._ratio(run([1.0, 2.0, 3.0]), run([1.0, 2.0, 3.0]), "seconds")
    assert same["ratio"] == same["low_95"] == same["high_95"] == 1.0
    faster = drafting._ratio(run([1.0, 1.0, 1.0]), run([1.1, 1.2, 1.3]), "seconds")
    assert (
        faster["ratio"] == pytest.approx(1.2)
        and 1.1 <= faster["low_95"] < 1.2 < faster["high_95"] <= 1.3
    )
    assert faster["prompts_won"] == 1.0
