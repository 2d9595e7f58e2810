"""Certificates while decoding: every pair of rows is scored once, in few calls, and errors say
where."""

import numpy as np
import pytest
import torch

import certspec as cs
from certspec.decoding.scored_rows import RowBlock, score_rows


@pytest.fixture
def certified(monkeypatch):
    """The rows that ``certify`` was given: one list of (target row, draft row or None), as bytes, a
    call."""
    calls, certify = [], cs.certify

    def listen(targets, drafts, *args, **kwargs):
        sides = [targets, drafts if drafts is not None else [None] * len(targets)]
        pairs = zip(*sides, strict=True)
        calls.append(
            [
                tuple(None if row is None else np.asarray(row).tobytes() for row in pair)
                for pair in pairs
            ]
        )
        return certify(targets, drafts, *args, **kwargs)

    monkeypatch.setattr("certspec.certificates.certify.certify", listen)
    return calls


@pytest.mark.parametrize("rule", [cs.TopM(8), cs.Additive(0.3), cs.StrictGreedy()])
@pytest.mark.parametrize("options", [{}, {"tree": 3}], ids=["chain", "tree"])
def test_no_pair_of_rows_is_certified_twice(tiny, prompts, certified, rule, options):
    steps = cs.generate(
        tiny, prompts, rule, max_new_tokens=12, batch_size=2, rules=[cs.TopM(4)], **options
    ).steps
    rows = [pair for call in certified for pair in call]
    assert len(rows) == len(set(rows)) >= len(steps)


def test_a_relaxed_rule_takes_one_call_a_round_for_the_whole_batch(tiny, prompts, certified):
    generation = cs.generate(
        tiny, prompts[:3], cs.TopM(8), max_new_tokens=12, batch_size=3, draft_length=4
    )
    drafting = [call for call in certified if call[0][1] is not None]
    assert len(drafting) == len({r.round for r in generation.steps if r.accepted is not None})
    assert max(map(len, drafting)) == 12


def test_wide_logits_wait_in_more_than_one_batch(tiny, prompts, certified, monkeypatch):
    expected = cs.generate(tiny, prompts, max_new_tokens=12).steps
    in_one = len(certified)
    monkeypatch.setattr("certspec.decoding.step_writer._WAITING_BYTES", 1)
    monkeypatch.setattr("certspec.decoding.step_writer._MIN_WAITING", 3)
    steps = cs.generate(tiny, prompts, max_new_tokens=12).steps
    assert len(certified) > 2 * in_one
    assert list(map(repr, steps)) == list(map(repr, expected))


def test_rows_are_kept_as_they_were_when_they_came():
    block, row = RowBlock(), torch.arange(5.0)
    for number in range(20):
        row[0] = number
        block.append(row)
    row[:] = -1.0
    np.testing.assert_array_equal(block.rows()[:, 0], np.arange(20.0))
    block.clear()
    block.append(torch.full((5,), 7.0))
    assert len(block) == 1 and block.rows().tolist() == [[7.0] * 5]


def test_float32_among_float64_is_widened_and_other_dtypes_are_stacked():
    wide, mixed = RowBlock(), RowBlock()
    for dtype in (torch.float32, torch.float64):
        wide.append(torch.full((3,), 0.1, dtype=dtype))
    assert wide.rows().dtype == np.float64 and wide.rows()[:, 0].tolist() == [
        float(np.float32(0.1)),
        0.1,
    ]
    mixed.append(torch.ones(3, dtype=torch.bfloat16))
    mixed.append(torch.zeros(3, dtype=torch.bfloat16))
    assert mixed.rows().dtype == torch.bfloat16 and mixed.rows().tolist() == [[1.0] * 3, [0.0] * 3]
    scored = score_rows(mixed.rows(), np.ones((2, 3), np.float32), (cs.StrictGreedy(),), str)
    assert scored.is_flat.tolist() == [True, True]


def test_the_first_bad_row_is_named():
    targets = np.ones((3, 4), np.float32)
    targets[1:, 2] = np.nan
    with pytest.raises(cs.InvalidLogits, match="place 1: target_logits"):
        score_rows(targets, targets * 0, (cs.StrictGreedy(),), lambda row: f"place {row}")


def test_a_bad_row_under_a_relaxed_rule_is_named_by_its_prompt_and_round(scripted):
    def target(context):
        return [float("nan")] * 12 if len(context) == 4 else [0.0] * 11 + [5.0]

    with pytest.raises(
        cs.InvalidLogits, match="prompt 0, round 0, after 0 new tokens: target_logits"
    ):
        scripted(target, [11], rule=cs.TopM(3))
