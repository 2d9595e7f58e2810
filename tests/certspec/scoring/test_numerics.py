"""A target in two numerics along one text: what is certified within the error is decided alike."""

import itertools

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.models.pairs import Pair
from certspec.runs.folder import RunFolder
from certspec.runs.numerics import summarise_numerics
from certspec.runs.table import read_run
from certspec.scoring import numerics
from certspec.scoring.batches import plan_batches
from certspec.scoring.numerics import measure_numerics
from certspec.scoring.run import RunSettings, score_run, scoring_runners

SETTINGS = RunSettings(steps=10, batch_size=3, reach=True)


@pytest.fixture(scope="module")
def run(tiny, prompts, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    score_run(tiny, prompts, folder, SETTINGS)
    return read_run(folder.path)


def test_a_run_with_reach_says_how_far_each_certified_step_holds(run):
    assert run.reach.shape == run.certified.shape
    assert np.array_equal(np.isfinite(run.reach), run.certified)


def test_what_is_certified_within_the_error_is_decided_alike_in_bfloat16(
    run, tiny, tiny_folders, prompts
):
    other = cs.load_pair(*tiny_folders, dtype="bfloat16")
    found = measure_numerics(tiny, other, prompts, SETTINGS)
    assert np.array_equal(found.prompt, run.prompt) and np.array_equal(
        found.token, run.target_token
    )
    assert np.array_equal(found.reach, run.reach)
    assert 1e-4 < np.median(found.error) < 0.5
    for entry in summarise_numerics(found, (0.01,))["rules"]:
        assert entry["num_false"] == entry["num_false_within_largest"] == 0
        assert entry["certified_within"]["0.01"] <= entry["certified"]


def test_the_error_is_half_the_range_by_which_whole_rows_differ(tiny, tiny_folders, prompts):
    """Against forward passes of transformers over the whole text, of a target whose weights are
    moved."""
    other = cs.load_pair(*tiny_folders)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in other.target.parameters():
            weights += 0.003 * torch.randn(weights.shape, generator=generator)
    found = measure_numerics(tiny, other, prompts, RunSettings(steps=4, limit=1))
    ids = tiny.tokenizer.apply_chat_template(
        list(next(iter(prompts)).messages), add_generation_prompt=True, return_dict=False
    )
    for token, error in zip(found.token.tolist(), found.error.tolist(), strict=True):
        with torch.inference_mode():
            one, two = (
                model(input_ids=torch.tensor([ids])).logits[0, -1, : tiny.num_tokens].double()
                for model in (tiny.target, other.target)
            )
        moved = two - one
        assert error == pytest.approx(float(moved.max() - moved.min()) / 2, abs=1e-4) and error > 0
        ids = [*ids, token]


def test_prompts_may_be_run_one_by_one_beside_batches(tiny, prompts):
    found = measure_numerics(tiny, tiny, prompts, SETTINGS, other_batch_size=2)
    assert found.error.max() < 1e-3 and (found.token == found.other_token).all()


def test_other_logits_that_are_no_distribution_are_told_with_prompt_and_position(
    tiny, prompts, monkeypatch
):
    def spoilt(pair, *, target_alone=False):
        """The other's third pass has a NaN in row 1."""
        found = scoring_runners(pair, target_alone=target_alone)
        if target_alone:
            plain, passes = found[0].forward, itertools.count(1)

            def forward(tokens):
                logits = plain(tokens)
                if next(passes) == 2:
                    logits[1, -1, 7] = np.nan
                return logits

            monkeypatch.setattr(found[0], "forward", forward)
        return found

    monkeypatch.setattr(numerics, "scoring_runners", spoilt)
    batch = next(plan_batches(prompts, tiny.tokenizer, batch_size=3, context=1024))
    told = f"prompt {batch.prompts[1].index}, position 2, the other numerics: target_logits holds a"
    with pytest.raises(cs.InvalidLogits, match=told):
        measure_numerics(tiny, tiny, prompts, SETTINGS)


def test_other_vocabularies_are_refused(tiny, prompts):
    narrow = Pair(tiny.target, None, tiny.tokenizer, tiny.num_tokens - 1, (), "narrow")
    with pytest.raises(cs.IncompatiblePair, match="same vocabulary"):
        measure_numerics(tiny, narrow, prompts, SETTINGS)
