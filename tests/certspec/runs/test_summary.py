"""Figures and tables of a run whose every number was worked out by hand."""

import json
import math

import numpy as np
import pytest

from certspec.decoding import acceptance_metrics
from certspec.runs.summary import BUDGETS, summarise_run
from certspec.runs.table import RunTable
from certspec.runs.tables import render_markdown, render_plain, summary_tables

INF = math.inf


@pytest.fixture
def run():
    """Two sequences of 3 and 2 steps under strict greedy and a tree of width 2."""
    certificate = np.array([[0.0, 0.2, 0.4, 0.6, 0.02], [0.1, 0.3, INF, 0.9, 0.05]])
    return RunTable(
        rules=("strict", "tree:2"),
        prompt=np.array([0, 0, 0, 1, 1]),
        position=np.array([0, 1, 2, 0, 1]),
        entropy=np.full(5, 0.5),
        prob_margin=np.array([0.0, 0.3, 0.5, 0.9, 0.1]),
        target_token=np.array([3, 1, 4, 1, 5]),
        target_top_prob=np.array([0.5, 0.6, 0.7, 0.95, 0.5]),
        certificate=certificate,
        certificate_lower=certificate,
        kl=np.array([0.1, 0.1, 0.5, 0.1, INF]),
        kl_upper=np.array([0.1, 0.1, 0.5, 0.1, INF]),
        draft_token=np.array([3, 1, 2, 1, 6]),
        draft_token_prob=np.array([0.5, 0.6, 0.1, 0.95, 0.1]),
        accepted=np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0]], dtype=bool),
        certified=np.array([[0, 1, 0, 1, 0], [0, 1, 1, 1, 0]], dtype=bool),
    )


def test_shares_certificates_and_quantiles_are_those_worked_out_by_hand(run):
    strict, tree = summarise_run(run)["rules"]
    assert strict["share_accepted"] == pytest.approx(0.6) and strict[
        "share_certified"
    ] == pytest.approx(0.4)
    assert strict["num_false_certificates"] == 0 and strict["share_infinite"] == 0.0
    assert strict["certificate_finite"]["mean"] == pytest.approx(1.22 / 5)
    assert strict["certificate_finite"]["quantiles"] == pytest.approx([0.004, 0.02, 0.2, 0.4, 0.56])
    assert tree["share_infinite"] == pytest.approx(0.2)
    assert tree["certificate_finite"]["mean"] == pytest.approx(1.35 / 4)
    assert tree["cap"] == pytest.approx(math.log(3)) and strict["cap"] == pytest.approx(math.log(2))
    assert tree["certificate_capped"]["mean"] == pytest.approx((1.35 + math.log(3)) / 5)
    assert tree["certificate_capped"]["quantiles"][2] == pytest.approx(0.3)


def test_a_certified_step_that_was_not_accepted_is_counted_as_false(run):
    run.certified[0, 2] = True
    assert summarise_run(run)["rules"][0]["num_false_certificates"] == 1


def test_budget_runs_count_steps_whose_certificate_exceeds_the_budget(run):
    strict, tree = summarise_run(run)["certified_run_lengths"]
    at = BUDGETS.index(0.1)
    # strict, budget .1: -++ +-   lengths 0 2 1 1 0
    # tree: the certificate must exceed the budget, .1 does not: -++ +-
    assert strict["mean_over_starts"][at] == pytest.approx(4 / 5)
    assert strict["mean_over_maximal_runs"][at] == pytest.approx(3 / 2)
    assert tree["share_of_steps"][at] == pytest.approx(3 / 5)
    # a certificate of +inf holds for every budget
    assert tree["share_of_steps"][BUDGETS.index(1.0)] == pytest.approx(1 / 5)


def test_observed_lengths_agree_with_what_decoding_reports_of_the_same_rounds(run):
    strict, tree = summarise_run(run, draft_length=2)["observed_accepted_lengths"]
    # strict: rounds [++] and the bonus in its place, then [+-]; tree: the same, [++] then bonus,
    # [+-]
    metrics = acceptance_metrics([2, 1], [2, 2], [4, 4])
    assert strict["acceptance_histogram"] == [0, 1, 1] == metrics["acceptance_histogram"]
    for name in metrics.keys() & tree.keys():
        assert tree[name] == pytest.approx(metrics[name]), name
    assert {
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "gpt_fast_mean_accepted",
        "sglang_accept_rate",
    } <= (metrics.keys() & tree.keys())
    assert strict["observed_run_over_starts"] == pytest.approx((2 + 1 + 0 + 1 + 0) / 5)


def test_an_infinite_divergence_is_counted_and_left_out_of_the_mean(run):
    kl = summarise_run(run)["kl"]
    assert kl["share_infinite"] == pytest.approx(0.2) and kl["mean"] == pytest.approx(0.2)


def test_the_summary_is_strict_json_and_its_tables_render_both_ways(run):
    summary = summarise_run(run)
    json.dumps(summary, allow_nan=False)
    tables = summary_tables(summary)
    plain = render_plain(tables)
    assert "strict" in plain and "60.0 %" in plain and "\x1b" not in plain
    assert "| strict | 60.0 % | 40.0 % | 0 | 0.0 % |" in render_markdown(tables)
