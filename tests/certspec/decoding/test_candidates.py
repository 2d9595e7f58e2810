"""The draft's best tokens: one order on ties, masked tokens and any count, whichever way they are
found."""

import numpy as np
import pytest
import torch

from certspec.decoding.candidates import top_ids, top_probs
from certspec.decoding.profiles import MonotoneMap


def ordered(row, count):
    return sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]


@pytest.mark.parametrize("count", [1, 2, 6, 7, 12])
def test_ties_go_to_the_lowest_id_at_any_count(count):
    generator = torch.Generator().manual_seed(count)
    for _ in range(20):
        row = torch.randint(0, 6, (40,), generator=generator).float()
        assert top_ids(row, count) == ordered(row.tolist(), count)


def test_masked_tokens_come_last_and_none_comes_twice():
    row = torch.full((9,), -float("inf"))
    row[5], row[2] = 1.0, 3.0
    ids, probs = top_probs(row, 4)
    assert ids == top_ids(row, 4) == [2, 5, 0, 1]
    assert probs[2:].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(probs.sum(), 1.0, rtol=1e-6)


def test_finding_candidates_leaves_the_logits_alone():
    row = torch.arange(8.0)
    top_probs(row, 3)
    assert row.tolist() == list(range(8))


def test_a_monotone_map_says_the_same_at_one_certificate_as_at_many():
    found = MonotoneMap((0.0, 0.1, 0.7), (0.05, 0.5, 1.0))
    places = [-1.0, 0.0, 0.05, 0.1, 0.3, 0.7, 2.0, float("inf")]
    np.testing.assert_allclose([found.at(place) for place in places], found(places), rtol=1e-15)
    assert MonotoneMap((0.0,), (0.25,)).at(3.0) == 0.25
