"""One thread a test process: the workers already fill the cores, and threads that spin beside each
other waste them. Set before torch and numba are imported; a test of threads asks for its own
number."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


LENGTHY = "proofs_check/test_claims.py"  # proves every claim


def pytest_collection_modifyitems(items):
    """Files that run Triton's interpreter take minutes, and so does the one of all proofs: they
    begin first, so that no worker is left alone with one."""
    slow = {item.path for item in items if item.get_closest_marker("triton")}
    items.sort(key=lambda item: (item.path not in slow, not item.path.match(LENGTHY)))
