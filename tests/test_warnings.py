"""Warnings of our own modules are errors in tests; what someone else's plugin warns of is none."""

import os
import subprocess
import sys
import warnings

import pytest

from tests.rooms import PACKAGES, ROOT

NOISY = """
import warnings

class NoisyWarning(UserWarning): ...

def pytest_configure(config):
    warnings.warn("at configure", NoisyWarning)

def pytest_collection_finish(session):
    warnings.warn("at collection", NoisyWarning)

def pytest_runtest_setup(item):
    warnings.warn("at setup", NoisyWarning)
"""


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_a_warning_of_our_own_is_an_error(package):
    for module in (package, f"{package}.some.module"):
        with pytest.raises(UserWarning, match="ours"):
            warnings.warn_explicit("ours", UserWarning, "x.py", 1, module=module)
    with pytest.raises(UserWarning, match="ours"):  # as numba warns, by path
        warnings.warn_explicit("ours", UserWarning, f"/home/me/{package}/some/module.py", 1)
    with pytest.raises(RuntimeWarning, match="here"):
        warnings.warn("here", RuntimeWarning, stacklevel=1)


@pytest.mark.parametrize(
    "module", ["torch.testing", "pytest_certspec", "numpy.tests.thing", "testsuite"]
)
def test_a_warning_of_another_module_is_none(module):
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn_explicit("theirs", UserWarning, "x.py", 1, module=module)
        path = f"/home/me/certspec/.venv/lib/site-packages/{module}.py"
        warnings.warn_explicit("theirs", UserWarning, path, 2)
    assert len(seen) == 2


def test_a_plugin_that_warns_at_every_turn_breaks_no_run(tmp_path):
    (tmp_path / "noisy_plugin.py").write_text(NOISY)
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    run = subprocess.run(
        [*command, "-n", "0", "-p", "noisy_plugin", "-p", "no:cacheprovider", "test_it.py"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0 and said.count("NoisyWarning: at ") == 3, said
