"""A checksum of weights sees every bit that changes, and where numbers stand."""

import numpy as np
import pytest
import torch

from certspec.models import checksum
from certspec.models.checksum import checksums

SHAPES = [(1,), (3,), (64,), (7, 5), (40, 33), (16, 128), (2, 3, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_any_number_that_changes_changes_it(shape, dtype):
    weight = (100 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    before = checksums([weight])
    on_device = checksum._of_device(weight)
    for index in range(weight.numel()):
        changed = weight.clone()
        bits = changed.view(-1).view(torch.uint8)
        bits[index * weight.element_size()] ^= 1  # its last bit
        assert checksums([changed]) != before
        assert not torch.equal(checksum._of_device(changed), on_device)
    assert checksums([weight.clone()]) == before


def test_numbers_that_change_places_change_it():
    weight = torch.randn(30, 20, generator=torch.Generator().manual_seed(2))
    before = checksums([weight])
    generator = np.random.default_rng(3)
    for _ in range(200):
        changed = weight.clone().view(-1)
        one, other = generator.choice(600, 2, replace=False).tolist()
        changed[[one, other]] = changed[[other, one]]
        assert checksums([changed.view(30, 20)]) != before
    for moved in (weight.roll(1, 0), weight.roll(1, 1), weight.flip(1), weight.T.contiguous()):
        assert checksums([moved]) != before
        assert not torch.equal(checksum._of_device(moved), checksum._of_device(weight))


def test_a_view_that_is_not_contiguous_is_read_as_its_numbers():
    weight = torch.randn(6, 10)
    assert checksums([weight.T]) == checksums([weight.T.contiguous()])
    assert checksums([weight[:, 1::3]]) == checksums([weight[:, 1::3].contiguous()])
    shifted = torch.randn(65).bfloat16()[1:].view(4, 16)  # begins at an odd place
    assert checksums([shifted]) == checksums([shifted.clone()])
    assert len(checksum._of_device(shifted)) > 0
    assert checksums([torch.zeros(0, 4)]) == checksums([torch.zeros(4, 0)])


def test_numbers_that_lie_in_memory_otherwise_have_the_checksum_of_plain_ones():
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(4))
    for odd in (weight[:1].expand(6, 8), weight.T, torch._neg_view(weight)):
        plain = odd.resolve_neg().clone(memory_format=torch.contiguous_format)
        assert checksums([odd]) == checksums([plain])
        assert torch.equal(checksum._of_device(odd), checksum._of_device(plain))
