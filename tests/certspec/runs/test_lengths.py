"""Run lengths and replays against counts made by hand."""

import numpy as np
import pytest

from certspec.decoding import acceptance_metrics
from certspec.runs.lengths import (
    count_runs,
    forward_run_lengths,
    mean_lengths,
    replay_rounds,
    run_lengths,
)


def flags(text):
    return np.array([char == "+" for char in text])


def test_forward_lengths_stop_at_a_failure_and_at_the_end_of_a_sequence():
    holds, starts = flags("++-+" + "+++"), np.array([0, 4, 7])
    assert forward_run_lengths(holds, starts).tolist() == [2, 1, 0, 1, 3, 2, 1]


def test_both_means_are_those_counted_by_hand():
    # sequence "++-+" has runs 2 and 1, sequence "+++" one run of 3: it is not joined to the run
    # before it
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
    assert sorted(replay.num_accepted_draft.tolist()) == [0, 1, 2]
    assert replay.num_cut_rounds == 1


def test_a_full_draft_that_ends_its_sequence_is_decided():
    replay = replay_rounds(flags("++"), np.array([0, 2]), 2)
    assert replay.num_accepted_draft.tolist() == [2] and replay.num_cut_rounds == 0


def test_known_accepts_give_the_lengths_that_decoding_reports():
    replay = replay_rounds(flags("-" + "++-" + "+++++-"), np.array([0, 10]), 5)
    assert replay.num_accepted_draft.tolist() == [0, 2, 5]
    metrics = acceptance_metrics(replay.num_accepted_draft.tolist(), [5, 5, 5])
    assert metrics["mean_acceptance_length"] == pytest.approx(1 + 7 / 3)


def test_counts_of_blocks_of_whole_sequences_add_up_to_those_of_the_whole():
    chance = np.random.default_rng(1)
    starts = np.concatenate([[0], np.cumsum(chance.integers(1, 9, 40))])
    holds = chance.random(starts[-1]) < 0.8
    whole = count_runs(holds, starts)
    halves = [
        count_runs(holds[: starts[17]], starts[:18]),
        count_runs(holds[starts[17] :], starts[17:] - starts[17]),
    ]
    assert (halves[0] + halves[1]).tolist() == whole.tolist()
    assert mean_lengths(whole) == run_lengths(holds, starts)


def test_a_leaf_of_a_greedy_tree_is_accepted_and_ends_its_path():
    # chain "+-++", leaves "++--": the round takes + and the leaf, then the bonus; the last one is
    # cut
    replay = replay_rounds(flags("+-++"), np.array([0, 4]), 3, leaf=flags("++--"))
    assert replay.num_accepted_draft.tolist() == [2] and replay.num_cut_rounds == 1
