"""The draft's logits are kept for each request until its draft is verified, and no longer."""

from types import SimpleNamespace

import pytest
import torch

from certspec.models.vllm.drafts import DraftLogits

VOCAB = 5


def runner_of(steps_a_call=1, **options):
    """A runner that proposes two tokens for each request of its batch; row values say whose and
    which token they are of."""
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=[]), requests={})

    def compute_logits(values):
        return torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, VOCAB)

    model = SimpleNamespace(compute_logits=compute_logits)

    def propose():
        owners = [10.0 * runner.requests[name] for name in runner.input_batch.req_ids]
        if steps_a_call == 2:
            model.compute_logits([owner + token for owner in owners for token in (0, 1)])
            return
        for token in (0, 1):
            model.compute_logits([owner + token for owner in owners])

    runner.drafter = SimpleNamespace(propose=propose, model=model, **options)
    return runner, DraftLogits(runner)


def proposed(runner, *names):
    runner.input_batch.req_ids = list(names)
    for name in names:
        runner.requests[name] = ord(name) - ord("a")
    runner.drafter.propose()


def values(taken):
    logits, places = taken
    return [None if place < 0 else float(logits[place, 0]) for place in places]


@pytest.mark.parametrize("steps_a_call", [1, 2])
def test_every_drafted_token_has_its_own_row(steps_a_call):
    runner, drafts = runner_of(steps_a_call)
    proposed(runner, "b", "a", "c")
    assert values(drafts.take(["c", "b", "a"], [2, 0, 1])) == [20.0, 21.0, 0.0]


def test_a_request_that_waits_for_its_turn_keeps_its_own_and_takes_none_from_the_others():
    runner, drafts = runner_of()
    proposed(runner, "a", "b")
    proposed(runner, "b")
    proposed(runner, "b", "c")
    assert drafts._kept["a"].calls[0].shape == (2, VOCAB)  # not the batch that it was in
    waited = drafts.take(["c", "a", "d", "b"], [1, 2, 2, 1])
    assert values(waited) == [20.0, 0.0, 1.0, None, None, 10.0]


def test_what_was_verified_dropped_or_never_drafted_has_no_rows():
    runner, drafts = runner_of()
    proposed(runner, "a", "b", "c")
    drafts.take(["a"], [2])
    drafts.forget(["b"])
    assert values(drafts.take(["a", "b", "c"], [1, 1, 3])) == [None] * 5
    del runner.requests["a"]
    proposed(runner, "a")
    del runner.requests["a"]
    proposed(runner, "b")
    assert "a" not in drafts._kept


def test_a_draft_of_other_token_ids_has_none():
    runner, drafts = runner_of(use_heterogeneous_vocab=True)
    proposed(runner, "a")
    assert drafts.take(["a"], [2]) == (None, [-1, -1])
