"""The lowest argmax, on the CPU and by the operations that a device takes."""

import pytest
import torch

from certspec.kernels.torch.argmax import lowest_argmax, lowest_argmax_on_device

INF = torch.inf


@pytest.mark.parametrize("argmax", [lowest_argmax, lowest_argmax_on_device])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ties_go_to_the_lowest_id(argmax, dtype):
    rows = [[0.0, 2.0, 2.0], [3.0, 3.0, 3.0], [-INF, -1.0, -INF], [-INF] * 3, [-0.0, 0.0, -0.0]]
    logits = torch.tensor(rows, dtype=dtype)
    found = argmax(logits)
    assert found.tolist() == [1, 0, 1, 0, 0] and found.dtype == torch.int64
    assert [int(argmax(row)) for row in logits] == found.tolist()
    assert argmax(logits[:0]).shape == (0,)
    assert argmax(logits[:, 1:]).tolist() == [0, 0, 0, 0, 0], "rows of a wider array"


@pytest.mark.parametrize("argmax", [lowest_argmax, lowest_argmax_on_device])
def test_wide_rows_of_few_values_tie_often_and_a_nan_leaves_an_id_that_exists(argmax):
    logits = torch.randint(0, 50, (20, 5003), generator=torch.Generator().manual_seed(0)).float()
    firsts = [row.index(max(row)) for row in logits.tolist()]
    assert argmax(logits).tolist() == argmax(logits.requires_grad_()).tolist() == firsts
    with torch.no_grad():
        logits[3, 5002] = torch.nan
    assert 0 <= int(argmax(logits)[3]) < 5003
