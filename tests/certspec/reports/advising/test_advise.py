"""Advice: replays against a walk step by step, costs against hand-made ones, and a choice that
keeps to its limit."""

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.logs.import_run import import_logs
from certspec.reports.advising.advice import advise
from certspec.reports.advising.costs import Costs, parse_verify, read_costs
from certspec.reports.advising.engine_options import engine_options
from certspec.reports.advising.replay import replay
from certspec.runs.folder import RunFolder
from certspec.runs.table import read_run
from certspec.scoring.prompts import PromptFile
from certspec.scoring.run import RunSettings, score_run
from tests.support import written_logs as written
from tests.support.tiny_pair import write_tiny_pair
from tests.support.written_runs import run_of_seven, write_run

COSTS = Costs(1.0, ((1, 10.0), (5, 12.0), (9, 16.0)))


def walk(chain, leaf, starts, length, nats):
    """The replay as a person would do it: (rounds, nats) by prompt."""
    found = []
    for first, end in itertools.pairwise(starts):
        row, rounds, lost = first, 0, 0.0
        while row < end:
            rounds += 1
            accepted = 0
            while accepted < length and row + accepted < end and chain[row + accepted]:
                lost += nats[row + accepted]
                accepted += 1
            if accepted < length and row + accepted < end and leaf[row + accepted]:
                accepted += 1
            row += accepted + 1
        found.append((rounds, lost))
    return found


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_a_replay_takes_the_rounds_that_decoding_takes(length):
    chance = np.random.default_rng(length)
    starts = np.concatenate([[0], np.cumsum(chance.integers(1, 30, 20))])
    chain = chance.random(starts[-1]) < 0.7
    leaf = chain | (chance.random(starts[-1]) < 0.5)
    nats = chance.random(starts[-1])
    rounds = replay(chain, starts, length, leaf=leaf, nats=nats)
    expected = walk(chain, leaf, starts.tolist(), length, nats)
    assert rounds.num_rounds.tolist() == [each for each, _ in expected]
    assert rounds.nats_lost == pytest.approx([each for _, each in expected])
    fewer = replay(chain & (chance.random(len(chain)) < 0.5), starts, length)
    assert (fewer.num_rounds >= rounds.num_rounds).all(), "fewer accepted steps took fewer rounds"


def test_costs_are_linear_between_those_given_and_never_fall_beyond_them():
    assert [COSTS.verify(count) for count in (1, 3, 5, 7, 9, 13)] == [
        10.0,
        11.0,
        12.0,
        14.0,
        16.0,
        20.0,
    ]
    assert Costs(1.0, ((1, 10.0), (5, 8.0))).verify(50) == 8.0
    assert COSTS.round_ms(4, 4) == 4 * 1.0 + 12.0 and COSTS.is_beyond(10) and not COSTS.is_beyond(9)
    for wrong in ({"verify_ms": ((2, 1.0),)}, {"verify_ms": ((1, 0.0),)}, {"draft_ms": -1.0}):
        with pytest.raises(cs.InvalidArgument, match="cost"):
            Costs(**({"draft_ms": 1.0, "verify_ms": ((1, 1.0),)} | wrong))
    with pytest.raises(cs.InvalidArgument, match="POSITIONS=MS"):
        parse_verify("1=2,x=3")


def test_costs_are_read_from_the_last_line_of_a_benchmark(tmp_path):
    path = tmp_path / "bench.txt"
    path.write_text(
        'a table\n{"other": 1}\n{"costs": {"draft_step_ms": 1, "verify_ms": {"1": 2, "3": 2.5}}}\n'
    )
    assert read_costs(path) == Costs(1.0, ((1, 2.0), (3, 2.5)))
    path.write_text("nothing")
    with pytest.raises(cs.UnreadableInput, match="draft_step_ms"):
        read_costs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"draft_step_ms": 1, "verify_ms": {"x": 3}}', "object of milliseconds by number"),
        ('{"draft_step_ms": 1, "verify_ms": {"1_0": 3}}', "object of milliseconds by number"),
        ('{"draft_step_ms": 1, "verify_ms": [1, 3]}', "object of milliseconds by number"),
        ('{"draft_step_ms": 1, "verify_ms": {"1": null}}', "verify_ms of 1: expected .*got None"),
        ('{"draft_step_ms": "1", "verify_ms": {"1": 3}}', "draft_step_ms: expected .*got '1'"),
        ('{"draft_step_ms": true, "verify_ms": {"1": 3}}', "draft_step_ms: expected .*got True"),
        ('{"draft_step_ms": NaN, "verify_ms": {"1": 3}}', "draft_step_ms: expected .*got nan"),
        ('{"draft_step_ms": 1, "verify_ms": {"1": 1e999}}', "verify cost: expected .*got inf"),
        ('{"draft_step_ms": 1, "verify_ms": {"1": 1' + "0" * 400 + "}}", "verify cost: .*got inf"),
        ('{"draft_step_ms": 1, "verify_ms": {"1": 1' + "0" * 5000 + "}}", "got none"),
        ('{"draft_step_ms": 1, "verify_ms": {}}', "1 among them, got"),
        ("[" * 100_000, "got none"),
        ('{"costs": 3}', "got none"),
    ],
)
def test_costs_that_are_none_are_refused_with_their_file(tmp_path, text, message):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(cs.UnreadableInput, match=f"{path}: .*{message}"):
        read_costs(path)


def test_advice_ranks_by_speed_keeps_the_limit_and_never_promises_more_than_it_expects():
    run = run_of_seven(draft_rank=np.array([0, 1, 0, 3, 0, 1, 0]))
    advice = advise(run, COSTS, lengths=(1, 2, 3), widths=(2, 3, 4), max_nats_lost=0.0)
    speeds = [each.tokens_per_second for each in advice.candidates]
    assert speeds == sorted(speeds, reverse=True) and advice.plain_tokens_per_second == 100.0
    assert all(
        each.certified_tokens_per_second <= each.tokens_per_second for each in advice.candidates
    )
    assert {each.rule.label for each in advice.candidates} >= {
        "strict",
        "tree:2",
        "tree:3",
        "tree:4",
    }
    lossy = advise(run, COSTS, lengths=(1, 2, 3), widths=(), max_nats_lost=1.0)
    assert advice.num_over_limit == 2, (
        "multiplicative:0.4 loses something at lengths 2 and 3, nothing at 1"
    )
    assert (
        lossy.num_over_limit == 0 and max(each.nats_lost_per_token for each in lossy.candidates) > 0
    )
    (strict,) = [
        each
        for each in advice.candidates
        if each.rule == cs.StrictGreedy() and each.draft_length == 1
    ]
    assert strict.tokens_per_second == pytest.approx(1000.0 * 7 / (4 * (1.0 + COSTS.verify(2))))


def test_a_run_of_the_target_alone_can_not_be_advised_on():
    with pytest.raises(cs.InvalidArgument, match="target alone"):
        advise(
            run_of_seven(accepted=None, certified=None),
            COSTS,
            lengths=(1,),
            widths=(),
            max_nats_lost=0.0,
        )


def test_each_engine_gets_its_options_or_a_reason():
    strict = engine_options(cs.StrictGreedy(), 4, "big", "small")
    assert '"num_speculative_tokens": 4' in strict["vLLM"] and "--rule strict" in strict["certspec"]
    assert (
        "--speculative-num-draft-tokens 5" in strict["SGLang"]
        and "max_draft_len=4" in strict["TensorRT-LLM"]
    )
    assert "--tree 3" in engine_options(cs.Tree(3), 2, None, None)["certspec"]
    assert "threshold-single 0.2" in engine_options(cs.Absolute(0.2), 4, None, None)["SGLang"]
    relaxed = engine_options(cs.Entropy(0.09, 0.3), 4, None, None)["vLLM"]
    assert '"vllm_xargs": {"certspec_rule": "entropy:0.09,0.3"}' in relaxed
    assert "one chain" in engine_options(cs.Tree(3), 2, None, None)["vLLM"]
    assert (
        "relaxed_delta=0.6"
        in engine_options(cs.Gated(10, additive=0.6), 4, None, None)["TensorRT-LLM"]
    )
    assert "none for top:4" in engine_options(cs.TopM(4), 4, None, None)["SGLang"]


def test_the_command_prints_a_choice_and_refuses_costs_given_twice(tmp_path):
    write_run(tmp_path / "run")
    call = ["advise", str(tmp_path / "run"), "--draft-ms", "1", "--verify-ms", "1=10,9=12"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    assert "Fastest that it has: strict" in result.stdout or "choice: strict" in result.stdout
    assert (
        "choice: " in result.stdout
        and "certspec decode" in result.stdout
        and "SGLang: " in result.stdout
    )
    found = json.loads(CliRunner().invoke(main, [*call, "--json"]).stdout)
    assert (
        found["choice"] == found["candidates"][0] and found["choice"]["nats_lost_per_token"] <= 0.02
    )
    for arguments, fact in ([*call, "--costs", "x.json"], "both"), (call[:4], "--verify-ms"):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2 and fact in result.stderr


def advised(folder):
    """What the command prints of a run, and its JSON."""
    costs = ("--draft-ms", "1", "--verify-ms", "1=10,9=12")
    results = [
        CliRunner().invoke(main, ["advise", str(folder), *costs, *more])
        for more in ([], ["--json"])
    ]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    return " ".join(results[0].stdout.split()), json.loads(results[1].stdout)


def test_what_sampling_accepts_is_said_with_a_word_on_drafts_trained_on_total_variation(tmp_path):
    write_run(tmp_path / "run")
    printed, found = advised(tmp_path / "run")
    least = cs.sampling_acceptance(run_of_seven().kl).mean()
    assert found["sampled_acceptance_at_least"] == pytest.approx(least)
    assert (
        f"sampled at temperature 1: at least {100 * least:.1f} % of the draft's tokens are "
        "accepted on these steps (each with 1 - total variation: a draft trained on that may do "
        "better than its KL says)"
    ) in printed


def test_nothing_is_said_of_sampling_where_lists_do_not_tell_the_divergence(tmp_path):
    rows = written.logprobs(40)
    chosen = [written.best(row, 1)[0] for row in rows]
    logs = [
        written.save(tmp_path / f"{role}.json", written.vllm(rows, depth=6, chosen=chosen))
        for role in ("target", "draft")
    ]
    import_logs(*logs, tmp_path / "run", rules=(cs.StrictGreedy(),))
    printed, found = advised(tmp_path / "run")
    assert found["sampled_acceptance_at_least"] is None
    assert "sampled" not in printed and "total variation" not in printed


@pytest.mark.parametrize("tree, length", [(None, 3), (2, 4)])
def test_replayed_rounds_are_those_that_decoding_really_takes(tmp_path_factory, tree, length):
    folder = tmp_path_factory.mktemp("decoded")
    pair = cs.load_pair(*write_tiny_pair(folder, noise=0.05))
    texts = ["the old river", "a story about the sea", "write"]
    (folder / "prompts.txt").write_text("\n".join(texts))
    rules = (cs.StrictGreedy(), cs.Tree(2))
    score_run(
        pair,
        PromptFile.check(folder / "prompts.txt"),
        RunFolder(folder / "run"),
        RunSettings(rules, 24),
    )
    run = read_run(folder / "run")
    leaf = None if tree is None else run.accepted[1]
    replayed = replay(run.accepted[0], run.starts, length, leaf=leaf)
    metrics = cs.generate(pair, texts, draft_length=length, tree=tree, max_new_tokens=24).metrics
    assert replayed.num_rounds.sum() == metrics["num_spec_steps"] + metrics["num_plain_steps"]
