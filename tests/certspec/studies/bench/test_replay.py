"""A recorded accept pattern comes out of transformers' assisted generation as it went in."""

from itertools import pairwise

import pytest
import torch

import certspec as cs
from certspec.studies.bench.decode import assistant_setting
from certspec.studies.bench.decode_cuda import replayed_in_transformers, rounds_accepted

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def test_rounds_accepted_are_those_of_the_run_but_for_each_prompts_last(tiny, prompts):
    steps = cs.generate(
        tiny, prompts[1:3], draft_length=3, max_new_tokens=20, eos_token_ids=[]
    ).steps
    expected = []
    for prompt in (0, 1):
        rounds = [
            [step.kind for step in steps if (step.prompt, step.round) == (prompt, number)]
            for number in range(20)
        ]
        expected += [kinds.count("accepted") for kinds in rounds if kinds][:-1]
    assert rounds_accepted(tiny, prompts[1:3], 3, 20) == tuple(expected)


def test_assisted_generation_accepts_what_the_pattern_says(tiny, prompts):
    ids, seen = torch.tensor([prompts[1]]), []
    handle = tiny.target.register_forward_pre_hook(
        lambda _module, _arguments, keywords: seen.append(int(keywords["position_ids"].max())),
        with_kwargs=True,
    )
    try:
        with (
            assistant_setting(tiny.draft, (3, "constant", 0.0)),
            replayed_in_transformers(tiny.target, (2, 0, 3, 1)),
        ):
            output = tiny.target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=30,
                min_new_tokens=30,
                do_sample=False,
                assistant_model=tiny.draft,
            )
    finally:
        handle.remove()
    assert output.shape[1] - ids.shape[1] == 30
    # each verify pass ends 3 tokens beyond the sequence, so the steps between their ends are what
    # was emitted
    assert [after - before for before, after in pairwise(seen)][:6] == [3, 1, 4, 2, 3, 1]
    assert not tiny.target._forward_hooks


def test_without_the_pattern_nothing_is_edited(tiny, prompts):
    ids = torch.tensor([prompts[2]])
    before = tiny.target(ids).logits
    with replayed_in_transformers(tiny.target, (1,)):
        assert torch.equal(tiny.target(ids).logits, before)
