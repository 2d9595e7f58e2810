"""Certificates from hidden states equal those of the logits that the same products give, and hold
few of them."""

import tracemalloc
from dataclasses import fields

import numpy as np
import pytest
import torch

import certspec as cs

RULES = [*cs.default_rules(), cs.TopM(3)]


def models(rows, vocab, *, draft_vocab=None, seed=0):
    generator = np.random.default_rng(seed)
    target_head, draft_head = (
        generator.normal(size=(vocab, 24)),
        generator.normal(size=(draft_vocab or vocab, 9)),
    )
    arrays = (
        generator.normal(size=(rows, 24)) * 0.7,
        target_head,
        generator.normal(size=(rows, 9)),
        draft_head,
    )
    return [array.astype(np.float32) for array in arrays]


def equal(ours, others):
    for field in fields(cs.Certificates):
        one, other = getattr(ours, field.name), getattr(others, field.name)
        same = one == other if field.name == "rules" or one is None else np.array_equal(one, other)
        assert same, field.name


def test_chunks_give_what_the_logits_of_the_same_products_give():
    target_hidden, target_head, draft_hidden, draft_head = models(50, 300)
    step = 7
    logits = [
        np.concatenate([hidden[start : start + step] @ head.T for start in range(0, 50, step)])
        for hidden, head in ((target_hidden, target_head), (draft_hidden, draft_head))
    ]
    chunked = cs.certify_hidden(
        target_hidden,
        target_head,
        draft_hidden,
        draft_head,
        RULES,
        chunk_bytes=step * 2 * 300 * 4 + 3,
    )
    equal(chunked, cs.certify(*logits, RULES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_and_padded_widths_are_scored_as_certify_scores_them(dtype):
    arrays = [torch.from_numpy(array).to(dtype) for array in models(20, 200, draft_vocab=230)]
    chunked = cs.certify_hidden(*arrays, cs.Tree(2), chunk_bytes=430 * 4 * 20, align=190)
    equal(
        chunked, cs.certify(arrays[0] @ arrays[1].T, arrays[2] @ arrays[3].T, cs.Tree(2), align=190)
    )
    assert isinstance(chunked.kl, torch.Tensor)


def test_the_target_alone_has_certificates():
    target_hidden, target_head, _, _ = models(9, 40)
    scored = cs.certify_hidden(target_hidden, target_head, rules=RULES, chunk_bytes=40 * 4 * 2)
    assert scored.kl is None and scored.certificate.shape == (len(RULES), 9)


def test_no_more_than_the_stated_bytes_of_logits_are_held():
    arrays = models(600, 20_000)  # 96 MB of logits
    small = [array[:8] if index % 2 == 0 else array for index, array in enumerate(arrays)]
    cs.certify_hidden(*small)  # compiled kernels and tables are no part of what a call holds
    chunk_bytes = 4 << 20
    tracemalloc.start()
    scored = cs.certify_hidden(*arrays, chunk_bytes=chunk_bytes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(scored) == 600
    assert peak < chunk_bytes + (2 << 20)


@pytest.mark.parametrize("backend", ["numba", "torch", "reference"])
@pytest.mark.parametrize("row", [0, 7, 8, 17, 29])
def test_a_row_without_a_distribution_is_named_by_its_number_among_all(backend, row):
    arrays = models(30, 40)
    arrays[2][row] = np.nan
    with pytest.raises(cs.InvalidLogits, match=f"^draft_logits: row {row} holds a NaN at column 0"):
        cs.certify_hidden(*arrays, chunk_bytes=8 * 2 * 40 * 4, backend=backend)


def test_notes_count_the_rows_of_all_chunks_from_the_first_one_on():
    arrays = models(30, 40)
    for row in (11, 12, 28):
        arrays[0][row] = 0.0  # every logit is 0
    arrays[2][5] = 0.0
    whole = cs.certify(arrays[0] @ arrays[1].T, arrays[2] @ arrays[3].T)
    chunked = cs.certify_hidden(*arrays, chunk_bytes=8 * 2 * 40 * 4)
    assert chunked.notes == whole.notes
    assert [note.partition(" has")[0] for note in whole.notes] == [
        "target_logits: row 11 (and 2 more)",
        "draft_logits: row 5",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda a: (a[0], a[3], a[2], a[3]),
            r"target_head: expected \(vocab, 24\) for target_hidden .* got \(40, 9\)",
        ),
        (
            lambda a: (a[0], a[1], a[2][:4], a[3]),
            r"draft_hidden: expected 5 rows like target_hidden, got 4",
        ),
        (lambda a: (a[0], a[1], a[2], None), r"draft_head: expected an array"),
        (
            lambda a: (a[0][0], a[1], a[2], a[3]),
            r"target_hidden: expected 2 dimensions, got shape \(24,\)",
        ),
        (
            lambda a: (a[0], a[1].astype(float), a[2], a[3]),
            r"target_head: expected float32 like .* got float64",
        ),
        (
            lambda a: (a[0], a[1], torch.from_numpy(a[2]), a[3]),
            r"draft_hidden: expected the kind of array",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    with pytest.raises(cs.InvalidArgument, match=message):
        cs.certify_hidden(*change(models(5, 40)))


def test_a_chunk_smaller_than_a_row_is_refused():
    with pytest.raises(
        cs.InvalidArgument,
        match=r"chunk_bytes: expected an integer of at least 320, the logits of one row, got 100",
    ):
        cs.certify_hidden(*models(5, 40), chunk_bytes=100)
