"""On bundled prompts strict greedy output is what transformers' own greedy generation writes, chain
and tree; ``python -m certspec.studies.soaks.losslessness`` takes all 128 of them."""

import pytest
import torch

import certspec as cs
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.studies.soaks import losslessness


@pytest.fixture(scope="module")
def one_thread():
    """Small passes on a busy machine wait for their slowest thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_bundled_pair_decodes_as_its_target_alone(one_thread):
    pair = cs.load_pair()
    said = []
    prompts = bundled_prompt_ids(pair)
    assert len(prompts) == 128
    assert losslessness.run(pair, prompts[::4], 8, batch_sizes=(8,), say=said.append) == 0
    assert losslessness.run(pair, prompts[::32], 12, batch_sizes=(1,), say=said.append) == 0
    assert len([line for line in said if ": equal;" in line]) == 2 * len(losslessness.MODES)


def test_a_difference_is_found_and_named():
    expected = [[1, 2, 3], [4, 5]]
    assert losslessness.first_divergence(expected, [[1, 2, 3], [4, 5]]) is None
    assert losslessness.first_divergence(expected, [[1, 2, 3], [4, 6]]) == losslessness.Divergence(
        1, 1, 5, 6
    )
    assert losslessness.first_divergence(expected, [[1, 2], [4, 5]]) == losslessness.Divergence(
        0, 2, 3, None
    )


def test_a_run_that_differs_counts_as_a_failure(tiny, prompts, monkeypatch):
    monkeypatch.setattr(losslessness, "reference_tokens", lambda pair, prompt, count: [1] * count)
    said = []
    assert (
        losslessness.run(tiny, prompts[:1], 4, batch_sizes=(1,), modes={"x": {}}, say=said.append)
        == 1
    )
    assert "DIFFERS" in said[0]


def test_adaptive_modes_are_lossless_too(tiny, prompts):
    modes = losslessness.adaptive_modes(tiny, prompts)
    assert len(modes) == 3
    assert (
        losslessness.run(
            tiny, prompts[:2], 12, batch_sizes=(1, 2), modes=modes, say=lambda line: None
        )
        == 0
    )
