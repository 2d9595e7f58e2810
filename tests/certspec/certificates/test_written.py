"""Certificates from probabilities that somebody wrote down: whatever was rounded, what they promise
is true of the numbers that were meant."""

import math

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.certificates.written import written_errors
from tests.support.every_rule import EVERY_RULE


def _as_float32_logprobs(probs):
    with np.errstate(divide="ignore"):
        return np.exp(np.log(probs).astype(np.float32).astype(np.float64))


def _digits(count):
    return np.vectorize(lambda value: float(f"{value:.{count - 1}e}"))


WRITERS = {
    "decimals:1": lambda probs: np.round(probs, 1),
    "decimals:2": lambda probs: np.round(probs, 2),
    "decimals:4": lambda probs: np.round(probs, 4),
    "decimals:6": lambda probs: np.round(probs, 6),
    "decimals of float32": lambda probs: np.round(probs, 4).astype(np.float32),
    "digits:3": _digits(3),
    "digits:6": _digits(6),
    "float32": lambda probs: probs.astype(np.float32),
    "float32 in float64": lambda probs: probs.astype(np.float32).astype(np.float64),
    "float32 logprobs": _as_float32_logprobs,
    "float16": lambda probs: probs.astype(np.float16),
    "float16 in float64": lambda probs: probs.astype(np.float16).astype(np.float64),
    "bfloat16": lambda probs: torch.tensor(probs).bfloat16(),
    "bfloat16 in float64": lambda probs: torch.tensor(probs).bfloat16().double().numpy(),
}


def _drafts(rng):
    parts = [rng.dirichlet(np.full(30, alpha), 8) for alpha in (0.03, 0.1, 0.4, 2.0, 30.0)]
    near = rng.dirichlet(np.full(30, 0.3), 8)
    near[:, 1] = near[:, 0] * (1.0 - rng.choice([0.0, 1e-6, 1e-4, 1e-2], 8))
    sharp = np.full((4, 30), 1.0)
    sharp[:, 1:] = 10.0 ** rng.uniform(-14, -3, (4, 29))
    rows = np.concatenate([*parts, near, sharp])
    return -np.sort(-rows / rows.sum(axis=1, keepdims=True), axis=1)


@pytest.mark.parametrize("how", WRITERS)
def test_a_radius_from_a_written_list_is_below_that_of_the_draft_that_was_meant(how):
    rng, said = np.random.default_rng(7), 0
    for _ in range(2):
        drafts = _drafts(rng)
        with np.errstate(divide="ignore"):
            logits = np.log(drafts)
        for rule in [*EVERY_RULE, cs.TopM(4), cs.Tree(4), cs.Multiplicative(1e-3)]:
            truth = cs.drafter_certificate(logits, rule)
            for width in (6, 12):
                written = WRITERS[how](drafts[:, :width])
                found = np.asarray(cs.drafter_certificate_from_top(written, rule))
                assert (found <= truth + 1e-12).all(), (how, str(rule), width)
                said += int((found > 0.5 * truth).sum())
    assert said > 100 or how == "decimals:1"


def test_four_decimals_that_end_in_zeros_are_not_taken_for_exact():
    """(0.69995, 0.20005, ...) is written 0.7, 0.2, whose radius is 0.00008 nats above its own."""
    meant = np.array([0.69995, 0.20005, 0.1])
    truth = cs.drafter_certificate(np.log(meant), "strict")[0]
    exact = cs.drafter_certificate_from_top(np.array([0.7, 0.2]), "strict", abs_error=0.0)[0]
    assert exact > truth + 7e-5
    for error in (None, 5e-5 + 1e-15):
        found = cs.drafter_certificate_from_top(np.array([0.7, 0.2]), "strict", abs_error=error)
        assert found[0] <= truth
    assert truth - found[0] < 3e-4


@pytest.mark.parametrize("how", WRITERS)
def test_a_width_from_a_written_list_certifies_the_budget_of_the_target_that_was_meant(how):
    rng, said = np.random.default_rng(11), 0
    for row in _drafts(rng):
        with np.errstate(divide="ignore"):
            logits = np.log(row)[None]
        certificates = cs.certify(logits, None, [cs.Tree(m) for m in range(1, 8)])
        truth = certificates.certificate[:, 0]
        budget = float(truth[rng.integers(7)]) * rng.choice([1.0 - 1e-9, 1.0 + 1e-9, 0.999])
        written = WRITERS[how](row[None, :8])[0]
        try:
            written = written.double().numpy() if isinstance(written, torch.Tensor) else written
            width = cs.tree_width_for(budget, probabilities=written)
        except cs.InvalidArgument as error:
            assert "more than 8 probabilities" in str(error)
        else:
            assert truth[width - 1] > budget
            said += 1
    assert said > 10 or how == "decimals:1"


@pytest.mark.parametrize(
    ("row", "kind", "errors"),
    [
        ([0.7123, 0.2046], "float64", [5e-5, 5e-5]),
        ([0.5, 0.25], "float64", [0.005, 0.005]),
        ([1.0, 0.0], "float64", [0.5, 0.5]),
        ([0.7123, 1.234e-4], "float64", [5e-5, 5e-8]),
        ([0.7123, 0.2046, 1 / 7], "float64", [1.4246e-6, 4.092e-7, 2e-6 / 7]),
        ([0.75, 2.0**-20], "float64", [0.75 * 2.0**-7, 2.0**-24]),
        ([1 / 3, 1 / 3], "float16", [2.0**-10 / 3, 2.0**-10 / 3]),
        ([1 / 3, 0.0], "bfloat16", [2.0**-7 / 3, 2.0**-133]),
        ([1 / 3, 0.0], "float32", [2e-6 / 3, 2.0**-149]),
        ([1 / 3, 5e-324], "float64", [2e-6 / 3, 2.0**-149]),
    ],
)
def test_a_row_is_as_exact_as_the_number_that_shows_the_most(row, kind, errors):
    assert written_errors(np.array([row]), kind)[0].tolist() == pytest.approx(errors, rel=1e-9)


def test_a_list_of_the_whole_vocabulary_has_no_rest():
    row = np.array([0.7, 0.3])
    assert cs.drafter_certificate_from_top(row, "tree:2", 2, abs_error=0.0)[0] == math.inf
    assert cs.drafter_certificate_from_top(row, "tree:2", 2)[0] == math.inf
    more = cs.drafter_certificate_from_top(np.array([0.7, 0.2998, 0.0001]), "tree:2", 9)[0]
    assert 0.0 < more < math.inf
