"""Logits processors act at every position of a block on both models, each position seeing the
tokens before it."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

import certspec as cs
from certspec.models.trees import TreeShape, chain


def test_a_second_equal_draft_token_sees_the_first(scripted):
    """Both models want 5 over and over; a repetition penalty must stop the second one inside the
    same block."""

    def wants(context):
        return [
            3.0 if token == 5 else 2.0 if token == 6 else 1.0 + 0.01 * token for token in range(12)
        ]

    processors = (RepetitionPenaltyLogitsProcessor(2.0),)
    for topology in (chain(3), TreeShape(2, 3).topology):
        result = scripted(wants, wants, topology=topology, processors=processors, max_new_tokens=4)
        plain = scripted(wants, wants, topology=chain(0), processors=processors, max_new_tokens=4)
        assert result.tokens == plain.tokens
        assert result.tokens[:2] == [5, 6]
        assert {step.kind for step in result.steps} == {
            "accepted",
            "bonus",
        }  # the draft was processed too
        assert (
            max(step.kl for step in result.steps[:3]) == 0.0
        )  # and KL is that of the processed distributions


@pytest.mark.parametrize("options", [{}, {"tree": 3}, {"tree": TreeShape(2, 3, "full")}])
def test_processed_output_equals_transformers_with_the_same_processors(tiny, prompts, options):
    processors = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.3), SuppressTokensLogitsProcessor([9, 60])]
    )
    generation = cs.generate(
        tiny, prompts, max_new_tokens=24, logits_processor=processors, **options
    )
    for prompt, tokens in zip(prompts, generation.sequences, strict=True):
        ids = torch.tensor([prompt])
        output = tiny.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            logits_processor=processors,
        )
        assert tokens == output[0, len(prompt) :].tolist()
    assert generation.metrics["num_accepted"] > 0


def test_recorded_divergences_and_certificates_are_those_of_the_processed_distributions(scripted):
    """Both models' favourite is suppressed: decision, KL and certificate speak of what is left."""

    def target(context):
        return [9.0 if token == 5 else 2.0 if token == 6 else 0.1 * token for token in range(12)]

    def draft(context):
        return [4.0 if token == 5 else 1.5 if token == 6 else 0.05 * token for token in range(12)]

    processor = SuppressTokensLogitsProcessor([5])
    result = scripted(target, draft, topology=chain(1), processors=(processor,), max_new_tokens=2)
    rows = [torch.tensor([side([])]) for side in (target, draft)]
    left = [processor(torch.zeros((1, 0), dtype=torch.int64), row.clone()) for row in rows]
    expected, raw = (cs.certify(*pair, [cs.StrictGreedy()]) for pair in (left, rows))
    step = result.steps[0]
    assert (step.token, step.draft_token) == (6, 6)
    assert step.kl == pytest.approx(float(expected.kl[0])) and step.kl != pytest.approx(
        float(raw.kl[0]), rel=0.1
    )
    assert step.certificate == pytest.approx(float(expected.certificate[0, 0]))


@pytest.mark.parametrize("rule", [cs.StrictGreedy(), cs.TopM(8)], ids=str)
@pytest.mark.parametrize("options", [{}, {"tree": 3}], ids=["chain", "tree"])
def test_each_row_of_a_batch_is_processed_with_its_own_tokens(tiny, prompts, rule, options):
    processors = [RepetitionPenaltyLogitsProcessor(1.3)]
    together, alone = (
        cs.generate(
            tiny,
            prompts,
            rule,
            max_new_tokens=16,
            logits_processor=processors,
            batch_size=size,
            **options,
        )
        for size in (4, 1)
    )
    assert together.sequences == alone.sequences
    assert (
        together.sequences
        != cs.generate(tiny, prompts, rule, max_new_tokens=16, **options).sequences
    )
    assert list(map(repr, together.steps)) == list(map(repr, alone.steps))


def test_a_relaxed_decision_and_its_record_speak_of_the_same_processed_rows(scripted):
    """Without the processor the rule would reject the draft's token; with it both decision and
    record accept."""

    def target(context):
        return [
            9.0 if token == 5 else 2.0 if token == 6 else 1.9 if token == 7 else 0.0
            for token in range(12)
        ]

    def draft(context):
        return [4.0 if token == 5 else 2.0 if token == 7 else 0.0 for token in range(12)]

    rule, processor = cs.Additive(0.1), SuppressTokensLogitsProcessor([5])
    result = scripted(
        target, draft, topology=chain(1), processors=(processor,), rule=rule, max_new_tokens=2
    )
    left = [
        processor(torch.zeros((1, 0), dtype=torch.int64), torch.tensor([side([])]))
        for side in (target, draft)
    ]
    expected = cs.certify(*left, [rule])
    step = result.steps[0]
    assert (step.token, step.target_token, step.accepted) == (7, 6, True) and bool(
        expected.accepted[0, 0]
    )
    assert step.kl == pytest.approx(float(expected.kl[0]))
    assert step.certificate == pytest.approx(float(expected.certificate[0, 0]))
    assert step.token_prob_ratio == pytest.approx(float(torch.exp(torch.tensor(-0.1))), rel=1e-6)
