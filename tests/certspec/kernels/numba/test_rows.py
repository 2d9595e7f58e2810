"""How the CPU scores rows, besides the laws of every backend: ranks beyond those that are sorted,
rows that are scored again, and how work is shared out."""

import numpy as np
import pytest

import certspec as cs
from certspec.kernels.numba import rows
from certspec.kernels.rule_table import rule_table
from certspec.kernels.threads import allowed_cores


@pytest.mark.parametrize("shift", [-64.0, -8.0, 64.0])
def test_a_rule_that_accepts_more_tokens_than_are_sorted_is_judged_alike_wherever_logits_lie(shift):
    logits = np.round(np.random.default_rng(1).normal(size=(3, 400)) * 100) / 64
    rules = (cs.Multiplicative(1e-2), cs.Absolute(1e-4))
    plain, moved = (
        cs.certify(logits + added, None, rules, backend="numba") for added in (0.0, shift)
    )
    assert np.array_equal(plain.certificate, moved.certificate)
    assert np.array_equal(plain.certificate_lower, moved.certificate_lower)
    assert (moved.certificate_lower < moved.certificate).all()


def test_a_row_that_is_scored_again_goes_alone_and_asks_for_no_more_ranks_than_it_has(monkeypatch):
    asked = []

    def recorded(target, draft, kind, num_columns, table, num_top):
        asked.append((len(target), len(draft), num_top))
        return plainly(target, draft, kind, num_columns, table, num_top)

    plainly, third = rows.score_rows, rule_table((cs.Absolute(1 / 3),))
    monkeypatch.setattr(rows, "score_rows", recorded)
    logits = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1e-16], [2.0, 0.0, 0.0]])
    plainly(logits, logits, "float64", 3, third, 3)  # the second row's third token is near 1/3
    assert asked == [(1, 1, 3)]


@pytest.mark.parametrize(
    ("items", "threads", "numbers", "pieces"),
    [(100, 1, 0, 1), (100, 2, 0, 8), (3, 2, 0, 3), (100, 1, rows.PIECE, 100), (0, 2, 0, 1)],
)
def test_each_thread_gets_four_pieces_or_more_where_they_are_long(items, threads, numbers, pieces):
    done = []
    rows.spread(lambda *piece: done.append(piece), items, threads, numbers)
    assert len(done) == pieces and sum(stop - first for first, stop in done) == items


def test_a_call_uses_no_more_threads_than_either_variable_says(monkeypatch):
    for asked, most, threads in (("2", 3, 2), ("5", 3, 3), ("0", 999, allowed_cores())):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        monkeypatch.setattr(rows.numba.config, "NUMBA_NUM_THREADS", most)
        assert rows.num_threads() == threads
