"""Decoding leaves no trace: neither in the models nor in what a second run gives."""

import copy

import pytest
import torch

import certspec as cs


def snapshot(model):
    return (
        copy.deepcopy(model.config.to_dict()),
        copy.deepcopy(model.generation_config.to_dict()),
        model.training,
    )


def test_two_runs_in_one_process_are_identical(tiny, prompts):
    runs = [
        cs.generate(tiny, prompts, tree=3, max_new_tokens=20, rules=[cs.Additive(0.3)])
        for _ in range(2)
    ]
    assert runs[0].sequences == runs[1].sequences
    assert repr(runs[0].metrics) == repr(runs[1].metrics)
    assert list(map(repr, runs[0].steps)) == list(map(repr, runs[1].steps))


@pytest.mark.parametrize(
    "options", [{"draft_length": cs.WithinBudget(0.05, width=2)}, {"tree": cs.BestFirst(8)}, {}]
)
def test_two_batched_runs_draft_and_record_the_same_however_threads_take_turns(
    tiny, prompts, options
):
    runs = [
        cs.generate(tiny, [*prompts, *prompts], max_new_tokens=20, batch_size=8, **options)
        for _ in range(2)
    ]
    assert runs[0].sequences == runs[1].sequences
    assert repr(runs[0].metrics) == repr(runs[1].metrics)
    assert list(map(repr, runs[0].steps)) == list(map(repr, runs[1].steps))


def test_nothing_is_written_into_the_models(unused, prompts):
    models = (unused.target, unused.draft)
    before = [snapshot(model) for model in models]
    weights = [
        {name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models
    ]
    cs.generate(unused, prompts, cs.Additive(0.3), tree=2, max_new_tokens=12)
    cs.generate(
        unused, prompts, draft_length=cs.WithinBudget(0.05), max_new_tokens=12, batch_size=4
    )
    assert [snapshot(model) for model in models] == before
    for model, saved in zip(models, weights, strict=True):
        assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


def test_a_model_in_training_mode_is_run_without_dropout_and_left_in_training_mode(tiny, prompts):
    expected = cs.generate(tiny, prompts[1:2], max_new_tokens=10).sequences
    tiny.target.train()
    try:
        assert cs.generate(tiny, prompts[1:2], max_new_tokens=10).sequences == expected
        assert tiny.target.training and not tiny.draft.training
    finally:
        tiny.target.eval()


def test_a_failed_run_leaves_gradients_and_modes_as_they_were(tiny, prompts):
    def fail(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cs.generate(tiny, prompts, on_step=fail)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert not tiny.target.training
