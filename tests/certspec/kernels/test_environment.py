"""Variables that libraries read when they are imported: with any value there is right work or one
line of ours that names the variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from certspec.errors import InvalidArgument
from certspec.kernels.environment import refuse_variables

_REFUSED = {
    "NUMBA_NUM_THREADS": ("0", "a number of at least 1"),
    "NUMBA_DISABLE_JIT": ("1", "0: kernels are compiled"),
    "NUMBA_CPU_FEATURES": ("nosuch", "features with a sign"),
    "HF_HUB_DOWNLOAD_TIMEOUT": ("soon", "what huggingface_hub can use"),
    "TORCH_LOGS": ("nosuch", "what torch can use"),
    "TORCHINDUCTOR_CACHE_DIR": ("/proc/nosuch", "a folder that is there or can be made"),
    "TORCHINDUCTOR_MULTI_KERNEL": ("nosuch", "what torch can use"),
}
# What libraries do without, or say themselves while the work goes on.
_DONE_WITHOUT = {
    "MPLBACKEND": "nosuch",
    "MPLCONFIGDIR": "/proc/nosuch",
    "MATPLOTLIBRC": "/proc/nosuch",
    "NUMBA_THREADING_LAYER": "nosuch",
    "NUMBA_OPT": "nosuch",
    "OMP_NUM_THREADS": "nosuch",
    "MKL_NUM_THREADS": "nosuch",
    "OPENBLAS_NUM_THREADS": "nosuch",
    "KMP_AFFINITY": "nosuch",
    "HF_HOME": "/proc/nosuch",
    "TORCH_HOME": "/proc/nosuch",
    "TRITON_CACHE_DIR": "/proc/nosuch",
    "TOKENIZERS_PARALLELISM": "nosuch",
    "ARROW_DEFAULT_MEMORY_POOL": "nosuch",
    "CUDA_VISIBLE_DEVICES": "nosuch",
    "TMPDIR": "/proc/nosuch",
}
_WORK = """
import huggingface_hub.constants, pyarrow, tokenizers, torch
import numpy as np
import certspec as cs
from certspec.reports.looks import pyplot_for_files
figure = pyplot_for_files().figure()
figure.savefig(__import__("io").BytesIO(), format="png")
found = cs.certify(np.log([[0.7, 0.2, 0.1]]), np.log([[0.6, 0.3, 0.1]]), "strict")
print(round(float(found.kl[0]), 4), found.certified[0, 0])
"""


@pytest.mark.parametrize("name", _REFUSED)
def test_a_value_that_a_library_would_fail_on_is_refused_in_one_line(
    name: str, tmp_path: Path
) -> None:
    value, expected = _REFUSED[name]
    done = subprocess.run(
        [sys.executable, "-m", "certspec", "report", str(tmp_path)],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"certspec: {name}") and value in line and expected in line


def test_with_every_other_bad_value_at_once_the_work_is_right() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _WORK],
        env=os.environ | _DONE_WITHOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0.0268 True\n"


def test_values_that_libraries_can_use_are_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NUMBA_NUM_THREADS": "2",
        "NUMBA_DISABLE_JIT": "0",
        "NUMBA_CPU_FEATURES": "+avx2, -avx512f",
        "HF_HUB_DOWNLOAD_TIMEOUT": "30",
    }.items():
        monkeypatch.setenv(name, value)
    refuse_variables.__wrapped__()
    monkeypatch.setenv("NUMBA_NUM_THREADS", "many")
    with pytest.raises(InvalidArgument, match="NUMBA_NUM_THREADS in the environment: expected a"):
        refuse_variables.__wrapped__()
