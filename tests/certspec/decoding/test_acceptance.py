"""Rules at a node: by definition, on small vocabularies, with ties, and among several
candidates."""

import math

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding.candidates import top_ids
from certspec.decoding.verify import accepts, prob_ratio
from certspec.models.trees import TreeShape, chain

RULES = [
    cs.StrictGreedy(),
    cs.Additive(0.3),
    cs.Additive(0.0),
    cs.Multiplicative(0.1),
    cs.Multiplicative(1.0),
    cs.TopM(2),
    cs.Gated(top_m=3, additive=0.2),
    cs.Gated(top_m=2, multiplicative=0.3),
    cs.Entropy(epsilon=0.09, delta=0.3),
    cs.Entropy(epsilon=1.0, delta=1.5),
    cs.presets.medusa(),
    cs.Absolute(0.4),
]


def accepts_by_definition(rule, probs, token):
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    threshold = rule.threshold
    if threshold.top_m and order.index(token) >= threshold.top_m:
        return False
    entropy = -sum(p * math.log(p + threshold.smoothing) for p in probs if p > 0)
    tau = threshold.value(max(probs), entropy)
    return probs[token] > tau if threshold.strictly_above else probs[token] >= tau


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_decision_is_the_definition_and_agrees_with_certify_on_the_draft_token(rule):
    generator = np.random.default_rng(5)
    for _ in range(40):
        logits = generator.normal(size=5) * 2
        probs = np.exp(logits) / np.exp(logits).sum()
        row = torch.from_numpy(logits)
        for token in range(5):
            expected = accepts_by_definition(rule, probs.tolist(), token)
            assert accepts(rule, row, token) == expected
            draft = np.where(np.arange(5) == token, 1.0, 0.0)
            assert bool(cs.certify(logits, draft, rule).accepted[0, 0]) == expected


def test_a_tie_goes_to_the_lowest_id_everywhere():
    row = torch.tensor([0.0, 1.0, 2.0, 5.0, 1.0, 0.0, 0.0, 5.0])
    assert top_ids(row, 1) == [3]
    assert top_ids(row, 3) == [3, 7, 2]
    assert top_ids(row, 5) == [3, 7, 2, 1, 4]
    assert top_ids(row.to(torch.bfloat16), 4) == [3, 7, 2, 1]
    assert top_ids(torch.zeros(6), 3) == [0, 1, 2]
    assert accepts(cs.StrictGreedy(), row, 3) and not accepts(cs.StrictGreedy(), row, 7)
    assert accepts(cs.TopM(2), row, 7) and not accepts(cs.TopM(2), row, 2)


def test_a_masked_candidate_is_no_trouble():
    row = torch.tensor([0.0, -math.inf, 1.0])
    assert top_ids(row, 3) == [2, 0, 1]
    assert not accepts(cs.Multiplicative(0.1), row, 1)
    assert prob_ratio(row, 1, 2) == 0.0


def test_a_tree_rule_is_no_single_token_rule():
    with pytest.raises(cs.InvalidArgument, match="expected a single-token rule, got tree:2"):
        accepts(cs.Tree(2), torch.zeros(3), 0)


def row_of(logits):
    return [float(logits.get(token, -5.0)) for token in range(12)]


def test_among_accepted_candidates_the_targets_favourite_is_taken(scripted):
    def target(context):
        return row_of({3: 2.0, 4: 1.9, 5: 1.8})

    def draft(context):
        return row_of({5: 2.0, 4: 1.5, 7: 1.0, 3: 0.5})

    chained = scripted(target, draft, rule=cs.Additive(0.3), topology=chain(1), max_new_tokens=2)
    assert chained.steps[0].token == 5 and chained.steps[0].kind == "accepted"
    assert chained.steps[0].token_prob_ratio == pytest.approx(math.exp(-0.2), rel=1e-5)
    wide = scripted(
        target, draft, rule=cs.Additive(0.3), topology=TreeShape(2, 1).topology, max_new_tokens=2
    )
    assert wide.steps[0].token == 4  # not the draft's favourite
    wider = scripted(
        target, draft, rule=cs.Additive(0.3), topology=TreeShape(4, 1).topology, max_new_tokens=2
    )
    assert wider.steps[0].token == 3 and wider.steps[0].token_prob_ratio == 1.0


def test_a_second_candidate_is_accepted_where_the_draft_token_is_not(scripted):
    def target(context):
        return row_of({3: 2.0, 4: 1.9})

    def draft(context):
        return row_of({9: 2.0, 4: 1.5})

    result = scripted(
        target, draft, rule=cs.Additive(0.3), topology=TreeShape(2, 1).topology, max_new_tokens=2
    )
    step = result.steps[0]
    assert (step.token, step.draft_token, step.kind) == (4, 9, "accepted")
    assert not step.certified and step.rule == "additive:0.3"


def test_a_rule_that_rejects_even_the_argmax_still_emits_it_as_corrected(scripted):
    def flat(context):
        return row_of(dict.fromkeys(range(12), 0.0))

    for topology in (chain(3), TreeShape(3, 2).topology):
        result = scripted(flat, flat, rule=cs.Absolute(0.9), topology=topology, max_new_tokens=3)
        assert result.tokens == [0, 0, 0]
        assert [step.kind for step in result.steps] == ["corrected", "corrected", "plain"]
        assert result.steps[0].certificate == 0.0 and not result.steps[0].certified


def test_a_flat_draft_is_flagged(scripted):
    result = scripted([4, 5, 6], lambda context: [0.0] * 12, topology=chain(2), max_new_tokens=3)
    assert (
        result.tokens == [4, 5, 6] and result.counts.num_flat_draft_rows == 2
    )  # of two drafted positions


def test_a_nan_names_prompt_and_round(scripted):
    def target(context):
        return row_of({4: 1.0}) if len(context) < 4 else [math.nan] * 12

    with pytest.raises(
        cs.InvalidLogits, match=r"prompt 0, round \d, after \d new tokens: target_logits holds a"
    ):
        scripted(target, [5] * 8, topology=chain(1))
