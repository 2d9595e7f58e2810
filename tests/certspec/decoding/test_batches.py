"""Prompts decoded together: each accepts its own number of tokens, leaves when it is done, and
equals its run alone."""

import pytest

import certspec as cs
from certspec.decoding import TreeShape
from certspec.models.cpu.runner import CpuRunner
from certspec.models.padded_runner import TransformersRunner

SHAPES = {
    "no draft": {"draft_length": 0},
    "chain": {"draft_length": 4},
    "greedy tree": {"tree": 3},
    "full tree": {"tree": TreeShape(2, 3, "full")},
    "relaxed": {"rule": cs.TopM(8)},
}


@pytest.mark.parametrize("batch_size", [2, 4, 8])
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_each_row_equals_its_run_alone_in_tokens_and_records(tiny, prompts, options, batch_size):
    many = [*prompts, prompts[2][:7], prompts[3][:3]]
    alone = cs.generate(tiny, many, max_new_tokens=24, rules=[cs.Additive(0.3)], **options)
    together = cs.generate(
        tiny, many, max_new_tokens=24, rules=[cs.Additive(0.3)], batch_size=batch_size, **options
    )
    assert together.sequences == alone.sequences
    assert together.finish_reasons == alone.finish_reasons
    assert list(map(repr, together.steps)) == list(map(repr, alone.steps))
    assert (
        together.metrics["num_rounds"]
        == alone.metrics["num_rounds"]
        == alone.metrics["num_target_passes"]
    )
    assert together.metrics["num_target_passes"] < alone.metrics["num_target_passes"]


class RectangularRunner:
    """A runner with the protocol's methods and no more, as the GPU's is: rows of a pass have one
    length."""

    def __init__(self, model, num_tokens):
        inner = CpuRunner(model, num_tokens)
        self.num_tokens, self.prefill, self.forward = inner.num_tokens, inner.prefill, inner.forward
        self.commit, self.drop_rows = inner.commit, inner.drop_rows


@pytest.mark.parametrize(
    "options",
    [*SHAPES.values(), {"draft_length": cs.WithinBudget(0.05, width=2)}],
    ids=[*SHAPES, "adaptive"],
)
def test_rows_filled_up_to_a_rectangle_equal_their_runs_alone(tiny, prompts, monkeypatch, options):
    """One prompt is too long for the draft, so that its part of the draft's passes is nothing but
    filling."""
    monkeypatch.setattr(
        "certspec.decoding.generation.context_limit",
        lambda model: 20 if model is tiny.draft else 128,
    )
    alone = cs.generate(tiny, prompts, max_new_tokens=14, rules=[cs.Additive(0.3)], **options)
    runners = tuple(
        RectangularRunner(model, tiny.num_tokens) for model in (tiny.target, tiny.draft)
    )
    together = cs.generate(
        tiny,
        prompts,
        max_new_tokens=14,
        rules=[cs.Additive(0.3)],
        batch_size=4,
        runners=runners,
        **options,
    )
    assert together.sequences == alone.sequences
    assert list(map(repr, together.steps)) == list(map(repr, alone.steps))
    assert together.metrics["num_target_passes"] < alone.metrics["num_target_passes"]


def test_rows_that_end_early_leave_and_the_others_go_on(tiny, prompts):
    free = cs.generate(tiny, prompts, max_new_tokens=40, eos_token_ids=[]).sequences
    stop = free[1][3]
    expected = [row[: row.index(stop) + 1] if stop in row else row for row in free]
    generation = cs.generate(tiny, prompts, max_new_tokens=40, eos_token_ids=[stop], batch_size=4)
    assert generation.sequences == expected
    assert len({len(row) for row in expected}) > 1


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_the_next_prompt_takes_the_place_of_a_row_that_is_done(tiny, prompts, options):
    """Each prompt stops at its own length, so that rows come and go in the middle of others."""
    many = [
        *prompts,
        *([*prompt[:-1], 9] for prompt in prompts[::-1]),
        prompts[3][:3],
        prompts[2][:7],
    ]
    alone = cs.generate(tiny, many, max_new_tokens=24, eos_token_ids=[], **options)
    stops = [row[5 + 3 * index % 17] for index, row in enumerate(alone.sequences)][:3]
    alone = cs.generate(
        tiny, many, max_new_tokens=24, eos_token_ids=stops, rules=[cs.Additive(0.3)], **options
    )
    assert len({len(row) for row in alone.sequences}) > 2
    for size in (2, 3, 5):
        together = cs.generate(
            tiny,
            many,
            max_new_tokens=24,
            eos_token_ids=stops,
            rules=[cs.Additive(0.3)],
            batch_size=size,
            **options,
        )
        assert together.sequences == alone.sequences
        assert together.finish_reasons == alone.finish_reasons
        assert list(map(repr, together.steps)) == list(map(repr, alone.steps))
        assert together.metrics["num_rounds"] == alone.metrics["num_rounds"]


def test_a_prompt_too_long_for_the_draft_joins_and_is_decoded_without_it(
    tiny, prompts, monkeypatch
):
    monkeypatch.setattr(
        "certspec.decoding.generation.context_limit",
        lambda model: 20 if model is tiny.draft else 128,
    )
    many = [prompts[1], prompts[2], prompts[3], prompts[0], prompts[3], prompts[2]]
    alone = cs.generate(tiny, many, max_new_tokens=12, eos_token_ids=[])
    for size in (2, 3):
        together = cs.generate(tiny, many, max_new_tokens=12, eos_token_ids=[], batch_size=size)
        assert together.sequences == alone.sequences
        assert list(map(repr, together.steps)) == list(map(repr, alone.steps))


def test_rows_near_the_end_of_the_context_stop_drafting_while_others_draft(tiny, greedy):
    long, short = [5 + i % 7 for i in range(122)], [9, 8, 7]
    generation = cs.generate(
        tiny, [long, short], max_new_tokens=30, eos_token_ids=[], batch_size=2, tree=2
    )
    assert generation.finish_reasons == ["context", "length"]
    assert generation.sequences == [greedy(tiny, long, 6), greedy(tiny, short, 30)]


def test_each_row_of_a_batch_has_its_own_rule(tiny, prompts):
    rules = [cs.StrictGreedy(), cs.TopM(8), cs.Additive(0.3), cs.StrictGreedy()]
    together, alone = (
        cs.generate(tiny, prompts, rules, max_new_tokens=16, batch_size=size) for size in (4, 1)
    )
    assert together.sequences == alone.sequences
    assert list(map(repr, together.steps)) == list(map(repr, alone.steps))


def test_transformers_decodes_one_at_a_time_and_says_so(tiny, prompts):
    runners = tuple(
        TransformersRunner(model, tiny.num_tokens) for model in (tiny.target, tiny.draft)
    )
    generation = cs.generate(tiny, prompts, max_new_tokens=8, batch_size=4, runners=runners)
    assert "batch_size: transformers runs one prompt at a time" in generation.notes
    assert generation.sequences == cs.generate(tiny, prompts, max_new_tokens=8).sequences
    alone = cs.generate(tiny, prompts[:1], max_new_tokens=8, batch_size=4, runners=runners)
    assert alone.notes == () and alone.sequences == generation.sequences[:1]


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_batch_size_that_is_no_count_is_refused(tiny, size):
    with pytest.raises(cs.InvalidArgument, match="batch_size: expected an integer of at least 1"):
        cs.generate(tiny, [[1]], batch_size=size)
