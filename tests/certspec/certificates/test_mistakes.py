"""Logits that are legal and almost surely a mistake are said in the result, once, with the row."""

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.certificates.mistakes import notes_on

GENERATOR = np.random.default_rng(2)
LOGITS = GENERATOR.normal(size=(5, 200)) * 3
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "float16", "numpy"])
def test_rows_of_probabilities_are_named_and_their_logits_are_not(kind):
    def given(rows):
        return rows if kind == "numpy" else torch.from_numpy(rows).to(getattr(torch, kind))

    for rows in (LOGITS, np.abs(LOGITS), np.log(PROBS), np.full((2, 2), [0.5, 0.2])):
        assert notes_on("target_logits", given(rows)) == ()
    mixed = np.concatenate([LOGITS, PROBS])
    (note,) = cs.certify(given(LOGITS), given(PROBS)).notes
    assert note.startswith("draft_logits: row 0 (and 4 more) holds probabilities")
    (note,) = notes_on("target_logits", given(mixed[:6]))
    assert note.startswith("target_logits: row 5 holds probabilities")


def test_a_row_without_any_spread_is_named():
    flat = LOGITS.copy()
    flat[2] = 7.5
    found = cs.certify(LOGITS, flat)
    assert found.notes == (
        "draft_logits: row 2 has the same logit in every column: it says nothing about any token",
    )
    assert f"note: {found.notes[0]}" in repr(found)
    nearly = flat.copy()
    nearly[2, -1] += 1e-12
    assert cs.certify(nearly, LOGITS).notes == ()


def test_one_hot_rows_count_as_probabilities_and_one_column_as_nothing():
    hot = np.eye(100)[[70]]
    assert "holds probabilities" in notes_on("target_logits", hot)[0]
    assert cs.certify(np.ones((3, 1)), None).notes == ()


def test_a_mask_on_an_array_is_refused_by_name():
    masked = np.ma.masked_less(LOGITS, 0.0)
    with pytest.raises(cs.InvalidLogits, match=r"masked entries; .filled\(-inf\) masks tokens"):
        cs.certify(LOGITS, masked)


def test_columns_beyond_align_are_not_looked_at():
    padded = np.concatenate([PROBS, np.full((5, 8), -50.0)], axis=1)
    assert cs.certify(padded, padded).notes == ()
    assert len(cs.certify(padded, padded, align=200).notes) == 2
