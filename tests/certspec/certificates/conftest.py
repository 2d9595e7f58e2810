"""Numbers of a few tokens, with roundings that show."""

import pytest
import torch

from certspec.kernels.torch import divergences, robust, rows


@pytest.fixture
def coarse(monkeypatch):
    """u = 2^-30, at which all that is paid for roundings shows beside what float64 rounds."""
    unit = 2.0**-30
    for module in (rows, robust, divergences):
        monkeypatch.setattr(module, "UNIT", unit)
    return unit


def one(*values):
    return torch.tensor(values, dtype=torch.float64)
