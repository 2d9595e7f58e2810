"""A run read block by block against the same run read at once, however its sequences lie in its
parts."""

import dataclasses
import itertools
import shutil
import tracemalloc

import numpy as np
import pytest

import certspec as cs
from certspec.reports.advising.advice import advise
from certspec.reports.advising.costs import Costs
from certspec.reports.improvement import measure_improvement
from certspec.reports.relaxation import measure_relaxation
from certspec.runs import stream as run_stream
from certspec.runs.folder import RunFolder
from certspec.runs.schema import COLUMNS, step_schema, step_table
from certspec.runs.stream import open_run
from certspec.runs.summary import summarise_run
from certspec.runs.table import read_run

RULES = ("strict", "multiplicative:0.4", "tree:2")


def steps(prompts, positions, rng):
    """Columns of random steps, as unlike one another as a run's."""
    rows = len(prompts)
    accepted = rng.random((rows, 3)) < (0.7, 0.8, 0.9)
    accepted[:, 1:] |= accepted[:, :1]
    certificate = np.where(rng.random((rows, 3)) < 0.05, np.inf, rng.random((rows, 3)))
    top = rng.uniform(0.4, 0.9, rows)
    draft_token = np.where(accepted[:, 0], 1, 2)
    columns = dict.fromkeys(COLUMNS) | {
        "prompt": prompts,
        "position": positions,
        "prompt_tokens": np.full(rows, 3),
        "target_token": np.full(rows, 1),
        "draft_token": draft_token,
        "draft_token_prob": np.where(accepted[:, 0], top, 0.3 * top),
        "entropy": rng.random(rows),
        "prob_margin": rng.random(rows),
        "kl": rng.random(rows),
        "kl_upper": rng.random(rows),
        "certificate": certificate,
        "certificate_lower": certificate,
        "accepted": accepted,
        "certified": accepted & (rng.random((rows, 3)) < 0.5),
        "target_top_ids": np.tile([1, 2], (rows, 1)),
        "target_top_probs": np.stack([top, 1.0 - top], axis=1),
        "draft_top_ids": np.stack([draft_token, 3 - draft_token], axis=1),
        "draft_top_probs": np.stack([rng.uniform(0.5, 0.9, rows), np.full(rows, 0.05)], axis=1),
        "end": np.array([None] * rows, dtype=object),
    }
    return columns


def write_parts(folder, parts, rng):
    run = RunFolder(folder)
    run.open({"rules": list(RULES)}, {})
    for number, (prompts, positions) in enumerate(parts):
        columns = steps(np.asarray(prompts), np.asarray(positions), rng)
        run.write_part(number, step_table(columns, step_schema(list(RULES))))
    return folder


def interleaved_parts(rng, num_sequences=60, part_rows=90):
    """Sequences of 1 to 40 steps, several under way at a time, cut into parts wherever a part is
    full; half of them are prompts of an imported run."""
    lengths = rng.integers(1, 41, num_sequences)
    rows, active, following = [], [], 0
    while active or following < num_sequences:
        while len(active) < 4 and following < num_sequences:
            name = following // 2 + 2**30 if following % 2 else following // 2
            active.append([name, 0, lengths[following]])
            following += 1
        chosen = active[rng.integers(len(active))]
        rows.append((chosen[0], chosen[1]))
        chosen[1] += 1
        if chosen[1] == chosen[2]:
            active.remove(chosen)
    return [
        tuple(zip(*rows[start : start + part_rows], strict=True))
        for start in range(0, len(rows), part_rows)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_stream, "_BLOCK_ROWS", 50)
    rng = np.random.default_rng(5)
    return write_parts(tmp_path / "run", interleaved_parts(rng), rng)


def test_blocks_hold_every_step_once_in_order_and_no_sequence_is_torn(folder):
    whole, stream = read_run(folder), open_run(folder)
    blocks = list(stream.blocks())
    assert len(blocks) > 5 and stream.num_steps == whole.num_steps and stream.has_draft
    keys = [
        key
        for block in blocks
        for key in zip(block.prompt.tolist(), block.position.tolist(), strict=True)
    ]
    assert keys == list(zip(whole.prompt.tolist(), whole.position.tolist(), strict=True))
    for before, after in itertools.pairwise(blocks):
        assert before.prompt[-1] < after.prompt[0], "a sequence goes on in the next block"
    assert np.array_equal(
        np.concatenate([block.certificate for block in blocks], axis=1), whole.certificate
    )


def nearly(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        return all(nearly(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(nearly, found, expected))
    return found == (
        pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected
    )


def test_every_figure_is_that_of_the_whole_run(folder):
    whole, stream = read_run(folder), open_run(folder)
    summary = summarise_run(stream)
    assert nearly(summary, summarise_run(whole)) and summary["num_cut_sequences"] == 0
    for measure in (
        lambda run: measure_relaxation(run, draft_length=4),
        lambda run: measure_improvement(run, summary["kl"]["quantiles"][2]),
    ):
        for one, other in zip(measure(stream), measure(whole), strict=True):
            fields = [
                {name: v for name, v in vars(each).items() if name != "worst"}
                for each in (one, other)
            ]
            assert nearly(*fields)
            places = [
                [(int(row.prompt[0]), int(row.position[0])) for row in each.worst]
                for each in (one, other)
            ]
            assert places[0] == places[1]


def test_advice_from_blocks_is_advice_from_the_whole_run(folder):
    costs = Costs(1.0, ((1, 10.0), (9, 14.0)))
    runs = open_run(folder), read_run(folder)
    results = [advise(run, costs, lengths=(1, 3), widths=(2,), max_nats_lost=9.0) for run in runs]
    names = ("rule", "draft_length", "kl_budget", "num_nodes", "tokens_per_round")
    rows = [
        [[getattr(each, name) for name in names] for each in found.candidates] for found in results
    ]
    assert rows[0] == rows[1] and any(each.kl_budget for each in results[0].candidates)
    assert [each.tokens_per_second for each in results[0].candidates] == pytest.approx(
        [each.tokens_per_second for each in results[1].candidates]
    )


def test_a_sequence_longer_than_a_block_may_be_is_cut_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(run_stream, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(run_stream, "_LONGEST_SEQUENCE", 150)
    parts = [([0] * 60, range(start, start + 60)) for start in range(0, 600, 60)]
    stream = open_run(write_parts(tmp_path, parts, np.random.default_rng(0)))
    assert max(block.num_steps for block in stream.blocks()) < 300
    summary = summarise_run(stream)
    assert (
        summary["num_prompts"] == 1
        and summary["num_cut_sequences"] == len(list(stream.blocks())) - 1 > 0
    )


def consume(folder):
    return sum(block.num_steps for block in open_run(folder).blocks(("kl",)))


@pytest.mark.parametrize("copied", [0, 3, 11])
@pytest.mark.parametrize("read", [read_run, consume])
def test_a_part_copied_under_another_number_is_refused_by_the_names_of_both(folder, copied, read):
    parts = RunFolder(folder).parts()
    read(folder)
    shutil.copy(parts[copied], folder / "steps-000099.parquet")
    with pytest.raises(cs.UnreadableInput, match="each step once, in one part") as refused:
        read(folder)
    assert f" is in {parts[copied].name} and steps-000099.parquet;" in str(refused.value)
    parts[copied].unlink()
    read(folder)  # the copy alone is a part as good


def test_a_copied_part_of_a_sequence_that_is_cut_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run_stream, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(run_stream, "_LONGEST_SEQUENCE", 150)
    parts = [([0] * 60, range(start, start + 60)) for start in range(0, 600, 60)]
    folder = write_parts(tmp_path, parts, np.random.default_rng(0))
    shutil.copy(folder / "steps-000001.parquet", folder / "steps-000010.parquet")
    with pytest.raises(cs.UnreadableInput, match=r"steps-000001.parquet and steps-000010.parquet"):
        consume(folder)


@pytest.mark.parametrize("read", [read_run, open_run])
def test_a_copied_part_of_left_out_prompts_alone_is_refused(folder, read):
    skipped = [{"prompt": 7, "line": 8, "reason": "no tokens"}]
    empty = step_table(dict.fromkeys(COLUMNS) | {"prompt": []}, step_schema(list(RULES), skipped))
    RunFolder(folder).write_part(50, empty)
    assert read(folder).skipped == tuple(skipped)
    shutil.copy(folder / "steps-000050.parquet", folder / "steps-000051.parquet")
    with pytest.raises(
        cs.UnreadableInput, match=r"prompt 7 is left out by .*000050.*000051.parquet"
    ):
        read(folder)


def test_a_step_twice_in_one_part_is_refused(tmp_path):
    write_parts(tmp_path, [([0, 0, 0], [0, 1, 1])], np.random.default_rng(0))
    for read in (read_run, consume):
        with pytest.raises(cs.UnreadableInput, match=r"position 1 is in steps-000000.parquet"):
            read(tmp_path)


def peak_of_a_report(folder):
    stream = open_run(folder)
    summarise_run(stream)  # imports and caches
    tracemalloc.start()
    summary = summarise_run(open_run(folder))
    measure_relaxation(stream, draft_length=4)
    measure_improvement(stream, summary["kl"]["quantiles"][2])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_number_of_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(run_stream, "_BLOCK_ROWS", 600)
    monkeypatch.setattr("certspec.runs.quantiles._KEPT", 600)
    monkeypatch.setattr("certspec.runs.quantiles._GATHERED", 16)
    peaks = []
    for num_parts in (4, 24):
        prompts, positions = np.repeat(np.arange(12), 50), np.tile(np.arange(50), 12)
        parts = [(prompts + 12 * part, positions) for part in range(num_parts)]
        folder = write_parts(tmp_path / str(num_parts), parts, np.random.default_rng(1))
        peaks.append(peak_of_a_report(folder))
    assert peaks[1] < 1.3 * peaks[0], (
        f"6 times the prompts took {peaks[1] / peaks[0]:.2f} times the memory"
    )


def test_a_block_can_be_read_of_some_columns_alone(folder):
    block = next(open_run(folder).blocks(("kl",)))
    assert block.kl is not None and block.certificate is None and block.draft_rank is None
    with pytest.raises(cs.InvalidArgument, match="target alone"):
        _ = dataclasses.replace(block, draft_token=None).draft_differs
