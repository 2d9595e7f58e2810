"""Quantiles that are told by counting against those of numpy over everything at once."""

import numpy as np
import pytest

from certspec.runs import quantiles as selection
from certspec.runs.quantiles import measure_distributions

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
REGIMES = {
    "uniform": lambda rng, n: rng.random(n),
    "tiny and huge": lambda rng, n: np.exp(rng.normal(0.0, 30.0, n)),
    "both signs": lambda rng, n: rng.normal(size=n),
    "mostly one value": lambda rng, n: np.where(rng.random(n) < 0.9, np.log(2.0), rng.random(n)),
    "zeros of both signs": lambda rng, n: rng.choice([0.0, -0.0, 1.0], n),
    "one value": lambda rng, n: np.full(n, 0.1),
    "neighbouring floats": lambda rng, n: 1.0 + rng.integers(0, 50, n) * 2.0**-52,
}


def blocks_of(values, size=9_000):
    return lambda: ({"all": values[start : start + size]} for start in range(0, len(values), size))


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("num_kept", [10, 1_000_000])
def test_quantiles_are_numpys_to_the_last_bit_however_few_numbers_are_kept(
    name, num_kept, monkeypatch
):
    monkeypatch.setattr(selection, "_KEPT", num_kept)
    monkeypatch.setattr(selection, "_GATHERED", 64)
    values = REGIMES[name](np.random.default_rng(3), 30_011)
    found = measure_distributions(blocks_of(values), LEVELS)["all"]
    assert found.quantiles == np.quantile(values, LEVELS).tolist()
    assert found.count == len(values) and found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.largest == values.max() and found.share_infinite == 0.0


def test_entries_that_are_not_finite_are_counted_and_left_out():
    values = np.array([1.0, np.inf, 2.0, np.nan, 3.0])
    found = measure_distributions(blocks_of(values, 2), LEVELS)["all"]
    assert (
        found.num_infinite == 2
        and found.quantiles[3] == 2.0
        and found.share_infinite == pytest.approx(0.4)
    )
    nothing = measure_distributions(blocks_of(np.array([np.inf])), LEVELS)["all"]
    assert (nothing.mean, nothing.quantiles, nothing.share_infinite) == (None, None, 1.0)


def test_a_key_may_be_missing_from_some_blocks(monkeypatch):
    monkeypatch.setattr(selection, "_KEPT", 4)
    blocks = [{"a": np.arange(6.0)}, {"b": np.arange(3.0)}, {"a": np.arange(6.0, 9.0)}]
    found = measure_distributions(lambda: iter(blocks), (0.5,))
    assert found["a"].quantiles == [4.0] and found["b"].quantiles == [1.0]
