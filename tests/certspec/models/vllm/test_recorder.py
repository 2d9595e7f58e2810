"""What was verified, certified: counts, metrics and a trace that reports read."""

import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import certspec as cs
from certspec.errors import RunMismatch
from certspec.models.vllm.trace import Trace
from certspec.reports.advising.advice import advise
from certspec.reports.advising.costs import Costs
from certspec.reports.provenance import provenance_table
from certspec.reports.run_report import make_report
from certspec.runs.folder import RunFolder
from certspec.runs.table import read_run
from tests.certspec.models.vllm.conftest import RULES
from tests.support.toy_vllm import draft_row, params, target_row

PROMPTS = [[5 + n, 9, 11 + 2 * n] for n in range(10)]
LABELS = [rule.label for rule in RULES]
MODEL = {"id": "toy", "dtype": "float32", "num_parameters": 6, "weights_sha256": None}
SETTINGS = {"rules": LABELS, "target": MODEL, "draft": MODEL, "num_tokens": 40}
SESSION = {"versions": {"python": "3"}, "device_name": "toy"}


def served(toy, trace=None, rule="strict", **options):
    recorder = toy.recorder(trace)
    runner = toy(recorder)
    wanted = [(prompt, params({"certspec_rule": rule}, **options)) for prompt in PROMPTS]
    answers = runner.serve(wanted)
    recorder.close()
    return recorder, runner, answers


def count(counter, *labels):
    return (counter.labels(*labels) if labels else counter)._value.get()


def traced(toy, path, **options):
    trace = Trace(path, LABELS, SETTINGS, SESSION)
    return served(toy, trace, **options)


def rows_of(path):
    return [row for part in RunFolder(path).parts() for row in pq.read_table(part).to_pylist()]


@pytest.mark.parametrize("rule", ["strict", "additive:0.3"])
def test_counts_are_the_engines_and_no_certificate_is_false(either, rule):
    recorder, runner, _ = served(either, rule=rule)
    metrics = recorder.metrics
    assert count(metrics.draft_tokens) == runner.counts["drafted"]
    assert count(metrics.accepted_tokens) == runner.counts["accepted"]
    assert count(metrics.steps) > 100 and count(metrics.failures) == 0
    for label in LABELS:
        assert count(metrics.false, label) == 0
        assert 0 < count(metrics.certified, label) <= count(metrics.accepts, label)


@pytest.mark.parametrize("rule", ["strict", "additive:0.3"])
def test_a_row_is_what_certify_says_of_that_text_and_every_decided_position_has_one(
    either, tmp_path, rule
):
    recorder, _, answers = traced(either, tmp_path, rule=rule)
    rows = rows_of(tmp_path)
    assert len(rows) == count(recorder.metrics.steps)
    assert [row["prompt"] for row in rows] == sorted(row["prompt"] for row in rows)
    assert len({(row["prompt"], row["position"]) for row in rows}) == len(rows)
    named = {row["request"]: row["prompt"] for row in rows}
    assert sorted(named.values()) == list(range(len(PROMPTS)))
    for row in rows:
        number = int(row["request"][1:])
        answer, place = answers[number], row["position"]
        text = [*PROMPTS[number], *answer[:place]]
        assert (row["token"], row["prompt_tokens"], row["rule"]) == (answer[place], 3, rule)
        target, draft = target_row(text)[None], draft_row(text)[None]
        found = cs.certify(target, draft, RULES)
        assert row["certified"] == found.certified[:, 0].tolist()
        assert row["certificate"] == pytest.approx(found.certificate[:, 0].tolist())
        assert row["kl"] == pytest.approx(float(found.kl[0]))
        assert row["taken"] == row["accepted"][LABELS.index(rule)]
        assert row["end"] is None or place == max(
            r["position"] for r in rows if r["request"] == row["request"]
        )
    assert {row["end"] for row in rows} >= {None, "steps"}


def test_report_and_advise_read_a_trace(toy, tmp_path):
    recorder, _, _ = traced(toy, tmp_path)
    run = read_run(tmp_path)
    assert run.num_steps == count(recorder.metrics.steps) and run.has_draft
    summary = make_report(tmp_path, draft_length=3).summary
    strict = next(row for row in summary["rules"] if row["rule"] == "strict")
    assert strict["num_false_certificates"] == 0
    assert strict["share_accepted"] == pytest.approx(run.accepted[0].mean())
    assert "toy, 6 parameters" in str(provenance_table(run, tmp_path))
    costs = Costs(draft_ms=0.2, verify_ms=((1, 1.0), (8, 1.2)))
    found = advise(run, costs, lengths=(1, 2, 3), widths=(), max_nats_lost=0.0)
    assert cs.StrictGreedy() in {each.rule for each in found.candidates}


def test_a_server_started_again_goes_on_in_its_trace_and_other_rules_are_refused(toy, tmp_path):
    traced(toy, tmp_path)
    first = rows_of(tmp_path)
    with pytest.raises(RunMismatch, match="rules"):
        Trace(tmp_path, ["strict"], {**SETTINGS, "rules": ["strict"]}, SESSION)
    held = Trace(tmp_path, LABELS, SETTINGS, SESSION)
    with pytest.raises(RunMismatch, match="another process"):
        Trace(tmp_path, LABELS, SETTINGS, SESSION)
    held.close()
    traced(toy, tmp_path)
    rows = rows_of(tmp_path)
    assert rows[: len(first)] == first and len(rows) == 2 * len(first)
    assert {row["prompt"] for row in rows} == set(range(2 * len(PROMPTS)))
    assert np.all(np.diff(read_run(tmp_path).starts) > 0)


def test_an_error_costs_its_batch_and_not_the_engine(toy):
    recorder = toy.recorder()
    runner = toy(recorder)
    drafts = runner.rejection_sampler._drafts
    take, calls = drafts.take, []

    def first_one_broken(names, counts):
        calls.append(names)
        logits, rows = take(names, counts)
        return torch.full_like(logits, torch.nan) if len(calls) == 1 else logits, rows

    drafts.take = first_one_broken
    answers = runner.serve([(prompt, params()) for prompt in PROMPTS])
    recorder.close()
    assert answers == toy().serve([(prompt, params()) for prompt in PROMPTS])
    assert count(recorder.metrics.failures) == 1 and count(recorder.metrics.steps) > 50


def test_rows_of_a_trace_that_cannot_be_written_wait_until_it_can(
    toy, tmp_path, monkeypatch, caplog
):
    write, full = RunFolder.write_part, [True]

    def write_part(folder, *given):
        if full[0]:
            raise OSError("No space left on device")
        write(folder, *given)

    monkeypatch.setattr(RunFolder, "write_part", write_part)
    recorder = toy.recorder(Trace(tmp_path, LABELS, SETTINGS, SESSION))
    runner = toy(recorder)
    runner.serve([(prompt, params()) for prompt in PROMPTS[:5]])
    recorder.flush()
    recorder.flush()
    assert caplog.text.count("the trace can't be written, its rows wait: No space left") == 1
    full[0] = False
    runner.serve([(prompt, params()) for prompt in PROMPTS[5:]])
    recorder.close()
    assert "written again" in caplog.text and "lost" not in caplog.text
    assert len(rows_of(tmp_path)) == count(recorder.metrics.steps) > 100
    assert count(recorder.metrics.failures) == 0


def test_rows_that_a_full_disk_kept_off_a_trace_to_its_end_are_said_to_be_lost(
    toy, tmp_path, monkeypatch, caplog
):
    def write_part(folder, *given):
        raise OSError("No space left on device")

    monkeypatch.setattr(RunFolder, "write_part", write_part)
    traced(toy, tmp_path)
    assert "the rows that waited are lost" in caplog.text
    Trace(tmp_path, LABELS, SETTINGS, SESSION).close()  # the folder was let go


def test_a_masked_token_is_no_false_certificate(toy, monkeypatch):
    stock = sys.modules["vllm.v1.sample.rejection_sampler"].RejectionSampler

    def masked(self, logits, sampling_metadata, metadata):
        logits[:, 20:] = -torch.inf
        return logits

    monkeypatch.setattr(stock, "apply_logits_processors", masked)
    recorder, _, _ = served(toy, rule="additive:0.3")
    rows = count(recorder.metrics.steps)
    assert rows > 50 and count(recorder.metrics.accepts, "additive:0.3") < rows
    for label in LABELS:
        assert count(recorder.metrics.false, label) == 0


def test_what_has_no_certificate_is_counted_with_its_reason(toy):
    sampled, _, _ = served(toy, temperature=0.7)
    assert count(sampled.metrics.unscored, "sampled") > 50 and count(sampled.metrics.steps) == 0
    recorder = toy.recorder()
    runner = toy(recorder)
    runner.rejection_sampler._drafts._keep = lambda *_: None  # as of a drafter without a model
    runner.serve([(prompt, params()) for prompt in PROMPTS])
    recorder.close()
    assert count(recorder.metrics.unscored, "no draft logits") > 50
    assert count(recorder.metrics.draft_tokens) == runner.counts["drafted"]


def test_steps_in_flight_when_a_request_ended_are_not_counted(toy):
    recorder = toy.recorder()
    runner = toy(recorder)
    seen = []
    observe = recorder.observe
    recorder.observe = lambda *given: (seen.append(given), observe(*given))
    runner.serve([(PROMPTS[0], params(max_tokens=6))])
    recorder.flush()
    before = count(recorder.metrics.draft_tokens), count(recorder.metrics.steps)
    observe(*seen[-1])
    recorder.close()
    assert (count(recorder.metrics.draft_tokens), count(recorder.metrics.steps)) == before
