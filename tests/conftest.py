"""One thread a test process: the workers already fill the cores, and threads that spin beside each other waste them.
Set before torch and numba are imported; a test of threads asks for its own number."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    """Files that run Triton's interpreter take minutes: they begin first, so that no worker is left alone with one."""
    slow = {item.path for item in items if item.get_closest_marker("triton")}
    items.sort(key=lambda item: item.path not in slow)
