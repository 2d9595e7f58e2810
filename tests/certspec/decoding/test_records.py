"""Records are columns inside: the same values either way, at any index, cheap while they come."""

import numpy as np
import pytest

import certspec as cs
from certspec.decoding.records import StepList


def test_records_and_columns_say_the_same(tiny, prompts):
    steps = cs.generate(tiny, prompts, tree=2, max_new_tokens=15, rules=[cs.TopM(4)]).steps
    records = list(steps)
    assert len(records) == len(steps)
    assert [r.token for r in records] == steps.column("token").tolist()
    np.testing.assert_array_equal([r.kl for r in records], steps.column("kl"))
    np.testing.assert_array_equal(
        [r.extra["top:4"].certificate for r in records], steps.extra_column("top:4", "certificate")
    )
    assert repr(steps[-1]) == repr(records[-1]) and [r.token for r in steps[2:5]] == [
        r.token for r in records[2:5]
    ]


def test_a_step_that_is_not_there_is_an_index_error():
    with pytest.raises(IndexError, match="step 0 of 0"):
        StepList()[0]


def test_a_column_that_is_not_there_is_said_with_those_that_are():
    steps = StepList(["tree:2"])
    for ask, expected in (
        (lambda: steps.column("nats"), "column: expected one of prompt, position.*got 'nats'"),
        (lambda: steps.extra_column("tree:4", "kl"), "label: expected one of tree:2, got 'tree:4'"),
        (
            lambda: steps.extra_column("tree:2", "kl"),
            "extra_column: expected one of accepted.*got 'kl'",
        ),
        (
            lambda: StepList().extra_column("strict", "kl"),
            "expected one of the rules scored besides",
        ),
    ):
        with pytest.raises(cs.InvalidArgument, match=expected):
            ask()


def test_a_position_without_a_draft_has_no_verdict(scripted):
    step = scripted([4, 5], [4, 5], max_new_tokens=1, extra=[cs.TopM(3)]).steps[0]
    assert (
        step.kind == "plain"
        and step.accepted is None
        and step.draft_token == -1
        and not step.certified
    )
    assert np.isnan(
        [step.kl, step.kl_upper, step.certificate, step.tree_margin, step.draft_token_prob]
    ).all()
    assert 0 < step.prob_margin < step.top_prob < 1 and step.entropy > 0
    assert step.extra["top:3"].accepted is None


def test_margins_are_those_of_the_target(scripted):
    from certspec.models.trees import TreeShape

    target = [[1.0 + 0.25 * token for token in range(12)]]
    result = scripted(
        lambda context: target[0], [11, 11], topology=TreeShape(3, 1).topology, max_new_tokens=2
    )
    probs = np.sort(np.exp(target[0]) / np.exp(target[0]).sum())[::-1]
    step = result.steps[0]
    assert step.prob_margin == pytest.approx(probs[0] - probs[1], rel=1e-6)
    assert step.tree_margin == pytest.approx(probs[0] - probs[3], rel=1e-6)
    assert step.draft_token_prob == pytest.approx(probs[0], rel=1e-6)
