"""The backends that run on this machine."""

import pytest


@pytest.fixture(params=["reference", "numba", "torch"])
def backend(request):
    return request.param
