"""Decoding row by row gives what drafting in blocks gives: tokens, rounds and decisions."""

from __future__ import annotations

import numpy as np
import pytest

import certspec as cs
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.scoring.greedy import GreedyLimits
from certspec.studies.smollm.quality import measure_quality
from certspec.studies.smollm.relaxed_decoding import decode_rows
from certspec.studies.smollm.tasks import draw_tasks

RULES = [cs.StrictGreedy(), cs.Additive(0.3), cs.Multiplicative(0.1), cs.TopM(2)]
STEPS = 24


@pytest.fixture(scope="module")
def pair():
    return cs.load_pair()


@pytest.fixture(scope="module")
def limits(pair):
    return GreedyLimits(STEPS, 512, frozenset([pair.target.config.eos_token_id]))


def test_rows_are_decoded_as_generate_decodes_them(pair, limits):
    prompts = bundled_prompt_ids(pair, 3)
    rows = [prompt for prompt in prompts for _ in RULES]
    traces = decode_rows(
        pair, rows, [*range(len(RULES))] * len(prompts), RULES, limits, draft_length=4, batch=2
    )
    for index, rule in enumerate(RULES):
        found = cs.generate(pair, prompts, rule, draft_length=4, max_new_tokens=STEPS)
        ours = traces[index :: len(RULES)]
        assert [trace.tokens for trace in ours] == found.sequences
        assert (
            sum(map(len, (trace.accepted for trace in ours)))
            == found.metrics["num_drafted_positions"]
        )
        assert sum(trace.num_rounds for trace in ours) == found.metrics["num_rounds"]
        assert sum(sum(trace.relaxed) for trace in ours) == found.metrics["num_relaxed_tokens"]


def test_a_tree_emits_greedy_text_in_fewer_rounds(pair, limits):
    prompts = bundled_prompt_ids(pair, 2)
    rules = [cs.StrictGreedy(), cs.Tree(4)]
    strict, tree = (decode_rows(pair, prompts, [index] * 2, rules, limits) for index in (0, 1))
    assert [trace.tokens for trace in strict] == [trace.tokens for trace in tree]
    assert sum(trace.num_rounds for trace in tree) < sum(trace.num_rounds for trace in strict)
    assert not any(any(trace.relaxed) for trace in tree)


def test_strict_greedy_and_trees_lose_nothing_and_a_relaxed_rule_loses_what_its_tokens_say(
    pair, limits
):
    rules = [cs.StrictGreedy(), cs.Additive(0.5), cs.Tree(4)]
    figures = measure_quality(
        pair,
        ["Tell me a story about a fox.", "What is light?"],
        draw_tasks(1, seed=0),
        limits,
        rules=rules,
    )
    strict, relaxed, tree = figures["rules"]
    for row in (strict, tree):
        assert (
            row["nats_lost_per_token"],
            row["share_not_argmax"],
            row["share_differing_from_greedy"],
        ) == (0, 0, 0)
        assert row["first_divergence_median"] is None
    assert relaxed["nats_lost_per_token"] > 0
    assert relaxed["share_differing_from_greedy"] >= relaxed["share_not_argmax"] > 0
    assert sum(row["num_false_certificates"] for row in figures["rules"]) == 0
    assert np.isfinite(relaxed["text_logprob_per_token"])
