"""Calibrated drafting: the profile's numbers are what they say, and the output stays the target's
own."""

import json
import math

import numpy as np
import pytest

import certspec as cs
from certspec.certificates.coverage import coverage_certificates
from certspec.decoding.calibration import (
    GreedySteps,
    chain_stop,
    greedy_steps,
    profile_from_steps,
    simulate_chain,
)
from certspec.decoding.profiles import conformal_quantile, fit_monotone


@pytest.fixture(scope="module")
def profile(tiny, prompts):
    return cs.calibrate(tiny, prompts, max_new_tokens=24, costs=(0.15, 0.05))


def test_adaptive_output_is_the_targets_own(tiny, prompts, greedy, profile):
    policies = [
        cs.Adaptive(profile),
        cs.Adaptive(profile, width=3),
        cs.WithinBudget(profile.kl_budget, width=3),
        cs.WithinBudget(0.01),
        cs.Adaptive(profile, rate=100.0),
        cs.Adaptive(profile, rate=0.0),
    ]
    expected = [greedy(tiny, prompt, 20) for prompt in prompts]
    for policy in policies:
        for size in (1, 4):
            run = cs.generate(
                tiny,
                prompts,
                draft_length=policy,
                max_new_tokens=20,
                eos_token_ids=[],
                batch_size=size,
            )
            assert run.sequences == expected
            assert run.metrics["num_false_certificates"] == 0


def test_two_adaptive_runs_in_one_process_draft_the_same(tiny, prompts, profile):
    runs = [
        cs.generate(tiny, prompts, draft_length=cs.Adaptive(profile, width=2), max_new_tokens=16)
        for _ in range(2)
    ]
    assert repr(runs[0].metrics) == repr(runs[1].metrics)
    assert list(map(repr, runs[0].steps)) == list(map(repr, runs[1].steps))


def test_a_dearer_pass_drafts_less(tiny, prompts, profile):
    passes = [
        cs.generate(
            tiny, prompts, draft_length=cs.Adaptive(profile, rate=rate), max_new_tokens=20
        ).metrics["num_draft_nodes"]
        for rate in (0.2, 2.0, 6.0)
    ]
    assert passes[0] > passes[1] > passes[2]


def test_recorded_steps_are_what_decoding_would_see(tiny, prompts):
    steps = greedy_steps(tiny, prompts, 20)
    run = cs.generate(tiny, prompts, draft_length=1, max_new_tokens=20)
    drafted = run.steps.column("accepted") >= 0
    index = np.flatnonzero(drafted)
    assert len(steps) == len(run.steps)
    np.testing.assert_allclose(steps.kl[index], run.steps.column("kl")[index], rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(steps.rank[index] == 0, run.steps.column("accepted")[index] == 1)


def test_within_the_budget_every_covered_node_is_accepted(tiny, prompts):
    """Where KL stays under the budget, a node whose certificate exceeds it can't fail: the
    definition of a radius."""
    steps = greedy_steps(tiny, prompts, 40)
    certificates = coverage_certificates(steps.top, 4)
    for width in range(1, 5):
        covered = steps.kl < certificates[width - 1]
        assert (steps.rank[covered] < width).all()
    assert (np.diff(certificates, axis=0) >= -1e-12).all()


def test_the_conformal_quantile_is_the_order_statistic():
    scores = np.arange(1, 10) / 10
    assert conformal_quantile(scores, 0.1) == 0.9  # ceil(10 * .9) = 9th of 9
    assert conformal_quantile(scores, 0.2) == 0.8
    assert conformal_quantile(scores, 0.05) == np.inf  # ceil(9.5) = 10th of 9
    generator = np.random.default_rng(0)
    missed = [
        generator.exponential() > conformal_quantile(generator.exponential(size=39), 0.1)
        for _ in range(4000)
    ]
    assert np.mean(missed) < 0.1 + 3 * np.sqrt(0.09 / 4000)
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(cs.InvalidArgument, match="alpha"):
            conformal_quantile(scores, alpha)


def test_a_monotone_fit_rises_and_keeps_the_mean():
    generator = np.random.default_rng(1)
    scores = generator.exponential(size=3000)
    hits = generator.random(3000) < 1 - np.exp(-scores)
    fit = fit_monotone(scores, hits)
    assert (np.diff(fit.knots) > 0).all() and (np.diff(fit.values) > 0).all()
    assert abs(float(fit(scores).mean()) - hits.mean()) < 0.02
    for at in (0.2, 1.0, 2.0):
        assert float(fit(at)) == pytest.approx(1 - np.exp(-at), abs=0.08)
    assert float(fit_monotone([], [])(0.3)) == 0.0
    assert float(fit_monotone([np.inf, 0.1], [True, False])(np.inf)) == 1.0


def test_a_profile_survives_its_file(tmp_path, profile):
    path = tmp_path / "profile.json"
    profile.save(path)
    assert cs.load_profile(path) == profile
    path.write_text("{}")
    with pytest.raises(cs.UnreadableInput, match="certspec drafting profile"):
        cs.load_profile(path)
    with pytest.raises(cs.UnreadableInput):
        cs.load_profile(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 10**400) for name in ("num_steps", "alpha", "draft_cost", "node_cost", "rate")),
        *(("kl_budget", value) for value in (True, "1", -1, math.nan)),
        *(("name", value) for value in (None, 3, [])),
        ("notes", [3]),
        *(
            ("coverage", [{"knots": knots, "values": values}])
            for knots, values in (
                ([0.2, 0.1], [0.0, 1.0]),
                ([0.1, 0.2], [0.5, 0.4]),
                ([0.1], [1.5]),
                ([0.1], [10**400]),
            )
        ),
    ],
)
def test_a_profile_whose_numbers_are_none_is_refused_by_name(tmp_path, profile, name, value):
    path = tmp_path / "profile.json"
    profile.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(cs.UnreadableInput, match=name):
        cs.load_profile(path)


def test_a_simulated_chain_counts_by_hand():
    # one answer of 6 tokens; the draft is wrong at the third
    rank = np.array([0, 0, 9, 0, 0, 0])
    steps = GreedySteps(np.zeros(6, int), np.tile([0.9, 0.05, 0.01], (6, 1)), rank, np.zeros(6))
    result = simulate_chain(steps, np.ones(6), lambda p, o, d: (d < 4, d < 3), 0.1, 0.0)
    # round 1: 4 drafted, 2 accepted, 1 corrected; round 2: at most 2 more fit, both accepted, 1
    # bonus
    assert result["tokens_per_target_pass"] == 3.0
    assert result["draft_passes_per_target_pass"] == 3.0
    assert result["rate"] == pytest.approx(6 / (2 + 0.6))
    never = simulate_chain(steps, np.zeros(6), chain_stop(1.0, 0.1, 0.1), 0.1, 0.1)
    assert never["tokens_per_target_pass"] == 1.0


def test_a_width_beyond_the_profile_is_refused(profile):
    with pytest.raises(cs.InvalidArgument, match="expected width at most 4, got 5"):
        cs.Adaptive(profile, width=5)
    with pytest.raises(cs.InvalidArgument, match="budget of at least 0"):
        cs.WithinBudget(float("nan"))


def test_the_tuned_rate_is_a_fixed_point(tiny, prompts):
    steps = greedy_steps(tiny, prompts, 24)
    profile = profile_from_steps(steps, "tiny", 0.1, (0.15, 0.05))
    chances = profile.coverage[0](coverage_certificates(steps.top, 1)[0])
    found = simulate_chain(steps, chances, chain_stop(profile.rate, 0.15, 0.05), 0.15, 0.05)["rate"]
    assert found == pytest.approx(profile.rate, abs=0.05)


def test_calibration_tells_how_many_prompts_are_done(tiny, prompts):
    heard = []
    many = (prompts * 9)[:9]  # more than are answered together
    profile = cs.calibrate(
        tiny, many, max_new_tokens=3, width=2, costs=(0.1, 0.05), on_advance=heard.append
    )
    assert heard == [1] * 9 and profile.num_steps == 27
    with pytest.raises(cs.InvalidArgument, match="on_advance: expected None or a callable"):
        cs.calibrate(tiny, many, costs=(0.1, 0.05), on_advance=3)


def test_timing_that_takes_long_is_repeated_less(monkeypatch):
    from certspec.decoding import calibration

    monkeypatch.setattr(calibration, "_ENOUGH", 0.0)
    assert [*calibration._repeated(6, least=3)] == [0, 1, 2]
    monkeypatch.setattr(calibration, "_ENOUGH", 600.0)
    assert [*calibration._repeated(6, least=3)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_costs_are_shares_of_a_round_whatever_runs_the_models(
    tiny, prompts, batch_size, monkeypatch
):
    from certspec.decoding import calibration
    from certspec.models.cpu.runner import CpuRunner

    runs, generate = [], calibration.generate
    monkeypatch.setattr(
        calibration,
        "generate",
        lambda *args, **options: runs.append(options) or generate(*args, **options),
    )
    draft_cost, node_cost = calibration.measure_costs(tiny, prompts, batch_size, repeats=1)
    assert 0.0 < draft_cost < 10.0 and 0.0 < node_cost < 10.0
    assert {options["batch_size"] for options in runs} == {batch_size}
    runs.clear()
    monkeypatch.delattr(CpuRunner, "run_levels")  # as if there were no compiled loop
    draft_cost, node_cost = calibration.measure_costs(tiny, prompts, batch_size, repeats=1)
    assert 0.0 < draft_cost < 10.0 and 0.0 < node_cost < 10.0 and runs == []
