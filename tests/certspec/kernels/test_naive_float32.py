"""Why the error bounds are there: float32 sums certify drafts that win against the target. Twenty
rows whose draft lies a hair beyond the boundary, every one rejected, are judged by naive sums and
by ours."""

import numpy as np
import pytest

import certspec as cs

VOCAB, ROWS = 50_000, 20


def near_tie_rows():
    """(target, draft) float32 logits: two leading tokens nearly tie, and the draft swaps them at
    the least KL. The others weigh half a unit in the last place of a float32 sum, a little more in
    the target and a little less in the draft."""
    generator = np.random.default_rng(7)
    half_unit = -24 * np.log(2.0)
    ties = 1 - generator.uniform(1e-3, 3e-3, ROWS)  # weights of the second token
    noise = generator.uniform(0, 1e-3, (2, ROWS, VOCAB))
    target, draft = half_unit + noise[0], half_unit + np.log((1 + ties[:, None]) / 2) - noise[1]
    target[:, 0], target[:, 1] = 0.0, np.log(ties)
    target, draft = target.astype(np.float32), draft.astype(np.float32)
    draft[:, 0] = np.log((1 + ties) / 2)
    draft[:, 1] = np.nextafter(draft[:, 0], np.float32(np.inf))  # the second token wins
    return target, draft


def sequential(terms):
    return np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]


def pairwise(terms):
    return terms.sum(axis=1, dtype=np.float32)


def float32_divergence(target, draft, total):
    target_logprobs, draft_logprobs = (
        gaps - np.log(total(np.exp(gaps)))[:, None]
        for gaps in (rows - rows.max(axis=1, keepdims=True) for rows in (target, draft))
    )
    return total(np.exp(target_logprobs) * (target_logprobs - draft_logprobs))


@pytest.fixture(scope="module")
def rows():
    return near_tie_rows()


def falsely_certified(rows, total):
    target, draft = rows
    certificates = cs.certify(target, None, cs.StrictGreedy()).certificate[0]
    return int((float32_divergence(target, draft, total) < certificates).sum())


def test_all_twenty_drafts_are_rejected(rows):
    assert not cs.certify(*rows, cs.StrictGreedy(), backend="reference").accepted.any()


def test_sequential_float32_sums_certify_all_of_them(rows):
    assert falsely_certified(rows, sequential) == ROWS


def test_pairwise_float32_sums_certify_many_of_them(rows):
    assert falsely_certified(rows, pairwise) >= 7


def test_ours_certifies_none_of_them(rows, backend):
    scored = cs.certify(*rows, cs.StrictGreedy(), backend=backend)
    assert not scored.certified.any() and not scored.accepted.any()


def test_ours_certifies_all_where_the_draft_lies_a_hair_inside(rows, backend):
    target, draft = rows
    inside = draft.copy()
    inside[:, :2] = target[:, :2] * np.float32(0.1) + draft[:, :2] * np.float32(0.9)
    scored = cs.certify(target, inside, cs.StrictGreedy(), backend=backend)
    assert scored.accepted.all() and scored.certified.all()
