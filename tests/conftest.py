"""One thread a test process: the workers already fill the cores, and threads that spin beside each
other waste them. Set before torch and numba are imported; a test of threads asks for its own
number. Triton runs on a GPU where there is one, else in its interpreter."""

import gc
import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from certspec.reports.plots import Drawing
from tests.support.device import ON_GPU, interpret_without_gpu, start_triton
from tests.support.one_compiler import compile_in_turn

interpret_without_gpu()

# Python would look for garbage after every 700 objects, through all that is imported, which takes a
# tenth of the suite's time.
gc.set_threshold(50_000, 20, 20)

# What begins first, a file a worker: the proofs compile nothing, while another worker compiles the
# CPU engine's rounds for everyone. Then come the files that take long, so that none is left over.
FIRST = ["proofs_check/test_claims.py", "certspec/decoding/test_compiled_rounds.py"]
LONG = ["tests/test_readme_blocks.py"]  # beside Triton's


def pytest_collection_modifyitems(items):
    compile_in_turn()
    slow = {item.path for item in items if any(map(item.path.match, LONG))}
    for item in items:
        if item.get_closest_marker("triton"):
            slow.add(item.path)
            # numpy in the interpreter, on infinities
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
    items.sort(
        key=lambda item: (*(not item.path.match(name) for name in FIRST), item.path not in slow)
    )


def pytest_collection_finish():
    gc.freeze()  # modules and tests stay to the end


def pytest_unconfigure():
    gc.unfreeze()  # at which some libraries count what was left over


@pytest.fixture(autouse=True, scope="session")
def interrupts_count():
    """Where a shell runs the suite in the background, interrupts are ignored, and so they would be
    in every process that a test starts and interrupts."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def small_pictures(request, monkeypatch):
    """Pictures that show nothing, since of most reports the words alone count and drawing takes
    most of their time. ``@pytest.mark.pictures`` has all of them drawn, with names those."""
    marker, render = request.node.get_closest_marker("pictures"), Drawing.render

    def render_named(drawing, scene, kind):
        if drawing.name in marker.args:
            return render(drawing, scene, kind)
        return f"<{kind}/>".encode()

    if marker is None or marker.args:
        marker = marker or pytest.mark.pictures.mark
        monkeypatch.setattr(Drawing, "render", render_named)


def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") and not ON_GPU:
        pytest.skip("needs a CUDA device, or takes minutes in Triton's interpreter")
    if item.get_closest_marker("triton"):
        start_triton()
