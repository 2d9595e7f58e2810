"""Run lengths and replays against counts made by hand."""

import numpy as np
import pytest

from certspec.decoding import acceptance_metrics
from certspec.scoring.run_lengths import forward_run_lengths, replay_rounds, run_lengths


def flags(text):
    return np.array([char == "+" for char in text])


def test_forward_lengths_stop_at_a_failure_and_at_the_end_of_a_sequence():
    holds, starts = flags("++-+" + "+++"), np.array([0, 4, 7])
    assert forward_run_lengths(holds, starts).tolist() == [2, 1, 0, 1, 3, 2, 1]


def test_both_means_are_those_counted_by_hand():
    # sequence "++-+" has runs 2 and 1, sequence "+++" one run of 3: it is not joined to the run before it
    lengths = run_lengths(flags("++-+" + "+++"), np.array([0, 4, 7]))
    assert lengths.mean_over_starts == pytest.approx(10 / 7)
    assert lengths.mean_over_maximal_runs == pytest.approx(6 / 3)
    assert lengths.share_of_steps == pytest.approx(6 / 7)
    assert lengths.share_cut == pytest.approx(4 / 7)


def test_where_nothing_holds_both_means_are_zero():
    lengths = run_lengths(flags("---"), np.array([0, 3]))
    assert (lengths.mean_over_starts, lengths.mean_over_maximal_runs) == (0.0, 0.0)


def test_a_replay_takes_the_accepted_prefix_and_one_token_more():
    # rounds of 2: [-] takes 1 token, [+-] takes 2, [++] and the bonus take 3, [+ is cut by the end
    replay = replay_rounds(flags("-" + "+-" + "++-" + "+"), np.array([0, 7]), 2)
    assert replay.num_accepted_draft.tolist() == [0, 1, 2]
    assert replay.num_cut_rounds == 1


def test_a_full_draft_that_ends_its_sequence_is_decided():
    replay = replay_rounds(flags("++"), np.array([0, 2]), 2)
    assert replay.num_accepted_draft.tolist() == [2] and replay.num_cut_rounds == 0


def test_known_accepts_give_the_lengths_that_decoding_reports():
    replay = replay_rounds(flags("-" + "++-" + "+++++-"), np.array([0, 10]), 5)
    assert replay.num_accepted_draft.tolist() == [0, 2, 5]
    metrics = acceptance_metrics(replay.num_accepted_draft.tolist(), [5, 5, 5])
    assert metrics["mean_acceptance_length"] == pytest.approx(1 + 7 / 3)
