"""A first divergence is called rounding only where the two tokens are as close as the logits' own error."""

import copy

import pytest
import torch

from certspec.decoding.divergences import RoundedDivergence, explain
from certspec.pairs import Pair


@pytest.fixture(scope="module")
def rounded(tiny):
    target = copy.deepcopy(tiny.target).to(torch.bfloat16)
    exact = copy.deepcopy(target).float()
    return Pair(target, tiny.draft, None, tiny.num_tokens), exact


def test_equal_outputs_have_no_divergence(rounded):
    assert explain(*rounded, [5, 6], [7, 8], [7, 8]) is None


def test_a_wrong_token_far_from_the_best_is_no_rounding(rounded):
    pair, exact = rounded
    logits = exact(torch.tensor([[5, 6, 7]])).logits[0, -1]
    best, worst = int(logits.argmax()), int(logits.argmin())
    found = explain(pair, exact, [5, 6], [7, best], [7, worst], index=3)
    assert (found.prompt, found.position, found.expected, found.got) == (3, 1, best, worst)
    assert found.gap > 2 * found.error > 0 and not found.is_rounding
    assert found.exact_gap == pytest.approx(float(logits[best] - logits[worst]))


def test_a_gap_within_the_error_is_rounding_and_one_beyond_is_not():
    facts = {"prompt": 0, "position": 0, "expected": 1, "got": 2, "spacing": 0.0625, "error": 0.07}
    assert RoundedDivergence(gap=0.125, exact_gap=-0.03, **facts).is_rounding
    assert not RoundedDivergence(gap=0.0625, exact_gap=0.2, **facts).is_rounding
    assert not RoundedDivergence(gap=0.2, exact_gap=0.01, **facts).is_rounding


def test_an_output_that_merely_ends_is_an_error(rounded):
    with pytest.raises(RuntimeError, match="prompt 4: one output ends at position 1"):
        explain(*rounded, [5, 6], [7, 8], [7], index=4)
