"""The Triton kernels in the interpreter, against numba on rows of every regime."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from certspec.kernels.triton.segments import CONSTANT_ERROR, segment_errors

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.triton


@pytest.fixture(scope="module", params=["bfloat16", "float16", "float32"])
def report(request):
    pytest.importorskip("triton")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    script = Path(__file__).with_name("triton_scenes.py")
    done = subprocess.run(
        [sys.executable, script, request.param], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_ids_and_flags_equal_numbas(report):
    assert report["different"] == []


def test_bounds_are_on_their_side(report):
    assert report["upper_below_kl"] == 0
    assert report["lower_above_certificate"] == 0
    assert report["fast_certified_beyond_numba"] == 0


def test_values_are_within_the_float32_bounds(report):
    assert report["worst_kl_gap"] < 1e-6
    assert report["worst_certificate_gap"] < 1e-6


def test_every_value_is_within_the_errors_that_the_backend_states(report):
    assert report["beyond_stated_errors"] == {}
    assert max(report["largest_stated_errors"]) < 1e-4


def test_only_the_rows_that_defy_the_fast_path_leave_it(report):
    assert report["decided"] == [True, True, True, True, True, True, False, False, True]


def test_a_row_worked_in_blocks_of_segments_gets_the_same_ids_and_flags(report):
    assert report["different_in_blocks"] == []
    assert report["worst_gap_in_blocks"] < 2e-6  # both are within the float32 bounds


def test_a_row_that_float32_sums_leave_open_is_decided_by_float64_sums(report):
    found = report["near_a_threshold"]
    assert found["path"] == found["different"] == found["lower_above"] == 0
    assert not found["upper_below_kl"]
    assert found["kl_gap"] < 1e-13
    assert 0 < found["kl_excess"] < 1e-11
    assert found["certificate_gap"] < 1e-12


def test_the_rounded_constant_is_as_near_to_log2_e_as_claimed():
    assert abs(1.44269502162933349609375 / 1.4426950408889634 - 1) < CONSTANT_ERROR


def test_longer_segments_have_larger_errors():
    assert (
        segment_errors(8, 4, 4).term
        > segment_errors(8, 4, 1).term
        > segment_errors(8, 1, 1).term
        > 0
    )
