"""Each convention counts what it says: the bonus token in or out, positions or tree nodes."""

import pytest

from certspec.decoding import acceptance_metrics


def test_known_accepts_under_every_convention():
    metrics = acceptance_metrics([0, 2, 5], [5, 5, 5], [20, 20, 20], num_spec_tokens=5)
    expected = {
        "mean_acceptance_length": 1 + 7 / 3,
        "draft_acceptance_rate": 7 / 15,
        "acceptance_histogram": [1, 0, 1, 0, 0, 1],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 7,
        "num_draft_tokens": 15,
        "num_spec_tokens": 5,
        "gpt_fast_mean_accepted": 7 / 3,
        "sglang_accept_rate": 7 / 60,
        "sglang_accept_length": 10 / 3,
        "spec_bench_mean_accepted_tokens": (1 + 3 + 6) / 3,
        "acceptance_rate_by_position": pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3]),
        "num_draft_nodes": 60,
        "num_plain_steps": 0,
    }
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def test_on_a_chain_positions_are_nodes():
    metrics = acceptance_metrics([0, 2, 5], [5, 5, 5])
    assert metrics["sglang_accept_rate"] == metrics["draft_acceptance_rate"] == 7 / 15


def test_a_round_without_a_draft_is_a_plain_step_and_no_rejection():
    metrics = acceptance_metrics([3, 0, 0], [4, 0, 2])
    assert metrics["num_spec_steps"] == 2 and metrics["num_plain_steps"] == 1
    assert metrics["gpt_fast_mean_accepted"] == 1.5 and metrics["draft_acceptance_rate"] == 0.5
    assert metrics["acceptance_rate_by_position"] == [0.5, 0.5, 1.0, 0.0]


def test_a_rate_over_nothing_is_none():
    metrics = acceptance_metrics([], [])
    assert metrics["mean_acceptance_length"] is None and metrics["draft_acceptance_rate"] is None
    assert metrics["num_spec_steps"] == 0


def test_the_loop_counts_what_a_script_accepts(scripted):
    # accepted 0, then 2, then all 4 of 4
    target = [4, 5, 6, 7, 4, 5, 6, 7, 8]
    draft = [9, 5, 6, 9, 4, 5, 6, 7, 8]
    result = scripted(target, draft, max_new_tokens=9)
    assert result.tokens == target
    assert (result.counts.accepted, result.counts.drafted) == ([0, 2, 4], [4, 4, 4])
    kinds = [step.kind for step in result.steps]
    assert kinds == ["corrected", "accepted", "accepted", "corrected", *["accepted"] * 4, "bonus"]
    assert [step.round for step in result.steps] == [0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert [step.depth for step in result.steps] == [0, 0, 1, 2, 0, 1, 2, 3, 4]
