"""One thread a test process: the workers already fill the cores, and threads that spin beside each
other waste them. Set before torch and numba are imported; a test of threads asks for its own
number. Triton runs on a GPU where there is one, else in its interpreter."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests.support.device import ON_GPU, interpret_without_gpu, start_triton

interpret_without_gpu()

LENGTHY = "proofs_check/test_claims.py"  # proves every claim


def pytest_collection_modifyitems(items):
    """Files that run Triton's interpreter take minutes, and so does the one of all proofs: they
    begin first, so that no worker is left alone with one."""
    slow = set()
    for item in items:
        if item.get_closest_marker("triton"):
            slow.add(item.path)
            # numpy in the interpreter, on infinities
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
    items.sort(key=lambda item: (item.path not in slow, not item.path.match(LENGTHY)))


def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") and not ON_GPU:
        pytest.skip("needs a CUDA device, or takes minutes in Triton's interpreter")
    if item.get_closest_marker("triton"):
        start_triton()
