"""Logs become runs: certificates of the target alone, decisions of a joined pair, refusals that
leave no half run."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.certificates.lumped import CASES, Case
from certspec.cli import main
from certspec.logs.findings import Finding, Findings
from certspec.logs.import_run import import_logs
from certspec.logs.join import join_logs
from certspec.logs.reading import read_log
from certspec.logs.stated import Stated
from certspec.runs.table import read_run
from tests.support import written_logs as written

RULES = (cs.StrictGreedy(), cs.Additive(0.3), cs.Tree(2))


def draft_of(rows, spread=0.05):
    shifted = rows + np.random.default_rng(8).normal(0.0, spread, rows.shape)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("name", written.WRITERS)
def test_a_target_log_alone_gives_the_certificates_of_its_rows(tmp_path, name):
    rows = written.logprobs()
    log = written.save(tmp_path / "log.json", written.WRITERS[name](rows))
    stated = Stated(top_logprobs=5)  # else a list keyed by text may lack some of them
    run = import_logs(log, None, tmp_path / "run", rules=RULES, stated=stated)
    table = read_run(tmp_path / "run")
    assert (
        run.num_positions == table.num_steps == len(rows)
        and table.accepted is None
        and table.kl is None
    )
    expected = [written.strict_certificate(row) for row in rows]
    assert table.certificate[0] == pytest.approx(expected, rel=1e-5)
    assert (table.certificate_lower[0] <= expected).all()


@pytest.mark.parametrize("name", ["openai-chat", "sglang", "llama-cpp", "vllm"])
def test_a_joined_pair_certifies_only_accepted_tokens(tmp_path, name):
    rows = written.logprobs(40)
    drafts = draft_of(rows)
    if name == "vllm":
        chosen = [written.best(row, 1)[0] for row in rows]
        documents = [written.vllm(each, depth=6, chosen=chosen) for each in (rows, drafts)]
    else:
        documents = [written.WRITERS[name](rows, depth=6), _teacher_forced(name, rows, drafts)]
    logs = [written.save(tmp_path / f"{n}.json", document) for n, document in enumerate(documents)]
    # the bytes of a chat log are those of its texts: they name a token where no two have one text
    by_bytes = name == "openai-chat"
    run = import_logs(
        *logs, tmp_path / "run", rules=RULES, stated=Stated(text_keys_are_tokens=by_bytes)
    )
    table = read_run(tmp_path / "run")
    same = rows.argmax(axis=1) == drafts.argmax(axis=1)
    assert run.num_positions == 40 and table.accepted is not None and table.certified is not None
    assert table.accepted[0].tolist() == same.tolist()
    assert not (table.certified & ~table.accepted).any() and table.certified[0].sum() > 20


def test_bytes_that_are_those_of_the_text_certify_nothing_and_those_of_no_character_match_nothing(
    tmp_path,
):
    # vLLM shows each of several pieces of a character as U+FFFD, and that text's bytes
    logs = []
    for number, shift in enumerate((0.0, 0.001)):
        document = written.chat(np.log([[0.8 - shift, 0.1 + shift, 0.06, 0.04]]), depth=3)
        for item in document["choices"][0]["logprobs"]["content"]:
            for entry, text in zip(item["top_logprobs"], ("\ufffd", " a", " b"), strict=True):
                entry |= {"token": text, "bytes": list(text.encode())}
            item |= item["top_logprobs"][1] | {"top_logprobs": item["top_logprobs"]}
        logs.append(written.save(tmp_path / f"{number}.json", document))
    import_logs(*logs, tmp_path / "run", rules=RULES, stated=Stated(text_keys_are_tokens=True))
    table = read_run(tmp_path / "run")
    assert not table.accepted_known[0, 0] and not table.certified.any()
    rows = written.logprobs(10)
    log = written.save(tmp_path / "log.json", written.chat(rows))
    import_logs(log, log, tmp_path / "text", rules=RULES)
    table = read_run(tmp_path / "text")
    assert table.accepted[0].all() and not table.certified[0].any()


def test_a_draft_whose_best_tokens_are_tied_has_no_best_token(tmp_path):
    target = np.log([[0.4, 0.38, 0.1, 0.07, 0.05]])
    draft = np.log([[0.39, 0.39, 0.1, 0.07, 0.05]])
    # Not by their ids either: float32 logits that differ by 1e-7 can have one logprob. Logits show
    # the order.
    for name in ("chat", "sglang"):
        writer = getattr(written, name)
        logs = [
            written.save(tmp_path / f"{name}-{number}.json", writer(rows, depth=4))
            for number, rows in enumerate((target, draft))
        ]
        import_logs(*logs, tmp_path / name, rules=RULES, stated=Stated(text_keys_are_tokens=True))
        table = read_run(tmp_path / name)
        assert not table.accepted_known[0, 0] and not table.certified[0, 0]
    logs = [tmp_path / f"{number}.npy" for number in range(2)]
    for log, rows in zip(logs, (target, draft), strict=True):
        np.save(log, rows)
    import_logs(*logs, tmp_path / "logits", rules=RULES)
    table = read_run(tmp_path / "logits")
    assert table.accepted_known[0, 0] and table.certified[0, 0]
    logs = [
        written.save(tmp_path / f"{number}.json", written.llama_cpp(rows.round(1), depth=4))
        for number, rows in enumerate((np.log([[0.6, 0.2, 0.1, 0.05]]), draft))
    ]
    import_logs(*logs, tmp_path / "rounded", rules=RULES)  # the draft's were .4 and .38, perhaps
    assert not read_run(tmp_path / "rounded").accepted_known[0, 0]


def _teacher_forced(name, rows, drafts):
    """The draft's lists for the tokens of the target's answer."""
    document = written.WRITERS[name](drafts, depth=6)
    tokens = [written.best(row, 1)[0] for row in rows]
    if name == "sglang":
        scored = [
            [float(draft[token]), token, None] for draft, token in zip(drafts, tokens, strict=True)
        ]
        document["meta_info"]["output_token_logprobs"] = scored
        return document
    if name == "openai-chat":
        return written.chat(drafts, depth=6, chosen=tokens)
    for entry, draft, token in zip(
        document["completion_probabilities"], drafts, tokens, strict=True
    ):
        entry |= {"id": token, "logprob": float(draft[token]), "token": written.TEXTS[token]}
    return document


def test_a_draft_whose_tail_rounding_took_away_has_a_finite_divergence(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 2.0, (40, 50))
    drafts = logits + rng.normal(0.0, 0.3, logits.shape)
    for name, array in (("target", logits), ("draft", drafts)):
        np.save(tmp_path / f"{name}.npy", array)
    import_logs(tmp_path / "target.npy", tmp_path / "draft.npy", tmp_path / "run", rules=RULES)
    found = read_run(tmp_path / "run").kl
    assert found == pytest.approx(cs.certify(logits, drafts, "strict").kl, rel=1e-9)


def test_a_vocabulary_that_the_log_contradicts_is_refused(tmp_path):
    rows = written.logprobs(3)
    largest = max(token for row in rows for token in written.best(row, 4))
    log = written.save(tmp_path / "log.json", written.sglang(rows, depth=4))
    with pytest.raises(cs.InvalidArgument, match=rf"num_tokens: expected at least {largest + 1}"):
        import_logs(log, None, tmp_path / "run", rules=RULES, stated=Stated(num_tokens=largest))
    import_logs(log, None, tmp_path / "run", rules=RULES, stated=Stated(num_tokens=largest + 1))
    np.save(tmp_path / "logits.npy", rows)
    with pytest.raises(cs.InvalidArgument, match="expected 12, the logits' columns, got 13"):
        import_logs(
            tmp_path / "logits.npy", None, tmp_path / "t", rules=RULES, stated=Stated(num_tokens=13)
        )


def test_every_row_of_a_run_says_which_case_it_is(tmp_path):
    rows = written.logprobs(10)
    log = written.save(tmp_path / "log.json", written.sglang(rows, depth=3))
    import_logs(log, log, tmp_path / "run", rules=RULES)
    table = pq.read_table(tmp_path / "run" / "steps-000000.parquet")
    for name in ("certificate_case", "decision_case"):
        sentences = table.column(name).to_pylist()
        assert all(
            len(row) == len(RULES) and all(isinstance(text, str) for text in row)
            for row in sentences
        )
    assert table.column("source_line").to_pylist() == [1] * 10


def test_a_chosen_token_beyond_the_list_is_none_of_the_most_probable_ones(tmp_path):
    rows = written.logprobs(4)
    chosen = [written.best(row, 12)[-1] for row in rows]
    log = written.save(tmp_path / "log.json", written.vllm(rows, depth=1, chosen=chosen))
    import_logs(log, log, tmp_path / "run", rules=RULES[:1])
    for row in pq.read_table(tmp_path / "run" / "steps-000000.parquet").to_pylist():
        assert row["target_top_ids"] == row["draft_top_ids"] == [row["target_token"]]
        assert len(row["target_top_probs"]) == len(row["draft_top_probs"]) == 1


def test_logs_that_go_on_with_different_tokens_are_refused_at_the_position(tmp_path):
    rows = written.logprobs(4)
    target = written.save(tmp_path / "t.json", written.sglang(rows))
    draft = written.save(tmp_path / "d.json", written.sglang(rows[:, ::-1]))
    with pytest.raises(
        cs.UnreadableInput, match=r"t\.json:1 and .*d\.json:1: output position 0: .*goes on with"
    ):
        import_logs(target, draft, tmp_path / "run", rules=RULES)


def test_logs_whose_tokens_are_known_by_different_things_are_refused(tmp_path):
    rows = written.logprobs(4)
    target = written.save(tmp_path / "t.json", written.sglang(rows))
    draft = written.save(tmp_path / "d.json", written.chat(rows))
    with pytest.raises(cs.UnreadableInput, match="known by id, the draft's by bytes"):
        import_logs(target, draft, tmp_path / "run", rules=RULES)


def test_logs_without_a_common_position_are_refused_and_say_what_they_hold(tmp_path):
    rows = written.logprobs(4)
    target = written.save(tmp_path / "t.json", written.sglang(rows))
    draft = written.save(tmp_path / "d.json", written.sglang(rows, part="input"))
    with pytest.raises(cs.UnreadableInput, match="holds output positions, the draft's prompt"):
        import_logs(target, draft, tmp_path / "run", rules=RULES)


def test_unmatched_positions_and_other_depths_are_counted_by_name(tmp_path):
    rows = written.logprobs(6)
    target = written.save(tmp_path / "t.json", written.sglang(rows, depth=5))
    draft = written.save(tmp_path / "d.json", written.sglang(rows[:4], depth=4))
    run = import_logs(target, draft, tmp_path / "run", rules=RULES)
    assert run.num_positions == 4
    assert (
        run.findings.counts[Finding.TARGET_WITHOUT_DRAFT] == 2
        and run.findings.counts[Finding.DEPTHS_DIFFER] == 4
    )


def test_draft_positions_that_no_target_position_meets_are_counted(tmp_path):
    rows = written.logprobs(6)
    target = written.save(tmp_path / "t.json", written.sglang(rows[:4]))
    draft = written.save(tmp_path / "d.json", written.sglang(rows))
    run = import_logs(target, draft, tmp_path / "run", rules=RULES)
    assert run.num_positions == 4 and run.findings.counts[Finding.DRAFT_WITHOUT_TARGET] == 2


@pytest.mark.parametrize("moved", [0, 1])
def test_an_import_killed_while_it_replaces_a_run_leaves_none_and_can_be_repeated(
    tmp_path, monkeypatch, moved
):
    monkeypatch.setattr("certspec.logs.import_run._ROWS_A_PART", 1)
    monkeypatch.setattr("certspec.logs.batches._MAX_ROWS", 6)  # 18 positions in 3 parts
    documents = [written.sglang(written.logprobs(seed=seed)) for seed in range(3)]
    log = written.save(tmp_path / "log.jsonl", *documents)
    out = tmp_path / "run"
    import_logs(log, None, out, rules=RULES)
    whole = read_run(out)
    replace, num_moved = Path.replace, 0

    def killed(self, target):
        nonlocal num_moved
        if self.parent.name == ".incoming":
            num_moved += 1
            if num_moved > moved:
                raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        import_logs(log, None, out, rules=RULES)
    with pytest.raises(cs.UnreadableInput, match=r"manifest\.json"):
        read_run(out)
    monkeypatch.setattr(Path, "replace", replace)
    import_logs(log, None, out, rules=RULES)
    assert np.array_equal(read_run(out).certificate, whole.certificate) and whole.num_steps == 18
    assert len(list(out.glob("steps-*.parquet"))) == 3
    assert not (out / ".replacing").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to /dev/full")
def test_a_full_disk_while_importing_is_one_clear_error_and_leaves_no_run(tmp_path, monkeypatch):
    log = written.save(tmp_path / "log.json", written.sglang(written.logprobs()))
    opened = Path.open

    def full(self, mode="r", *rest, **named):
        return opened(
            Path("/dev/full") if self.name.endswith(".tmp") else self, mode, *rest, **named
        )

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(
        cs.CertspecError, match=r"steps-000000\.parquet: could not write: No space left"
    ):
        import_logs(log, None, tmp_path / "run", rules=RULES)
    monkeypatch.setattr(Path, "open", opened)
    assert not list((tmp_path / "run").glob("*.parquet"))
    assert import_logs(log, None, tmp_path / "run", rules=RULES).num_positions == 6


def test_a_join_keeps_a_bounded_window(tmp_path):
    rows = written.logprobs(50)
    path = written.save(tmp_path / "t.json", written.sglang(rows))
    positions = list(read_log(path))
    findings = Findings()
    pairs = list(join_logs(iter(positions), iter(positions[::-1]), findings, ("t", "d")))
    assert len(pairs) == 50 and all(target.place == draft.place for target, draft in pairs)


def test_temperatures_that_differ_are_named(tmp_path):
    logits = np.round(np.random.default_rng(1).normal(18.0, 3.0, (40, 12)) * 8) / 8
    paths = []
    for temperature in (1.0, 0.7):
        rows = logits / temperature
        rows = (
            (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))
            .astype(np.float32)
            .astype(float)
        )
        paths.append(written.save(tmp_path / f"{temperature}.json", written.sglang(rows)))
    run = import_logs(*paths, tmp_path / "run", rules=RULES)
    assert run.findings.first_seen[Finding.TEMPERATURES_DIFFER] == "target 1, draft 0.7"
    run = import_logs(
        paths[1], None, tmp_path / "other", rules=RULES, stated=Stated(temperature=1.0)
    )
    assert "as stated 1" in run.findings.first_seen[Finding.TEMPERATURES_DIFFER]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            (lambda x=x: {"stated": Stated(temperature=x)}, "temperature: expected a finite")
            for x in (0.0, -1.0, np.nan, np.inf)
        ),
        *(
            (
                lambda n=n: {"stated": Stated(num_tokens=n)},
                "num_tokens: expected at least [0-9]+, as many as line 1",
            )
            for n in (2, 4)
        ),
        *(
            (
                lambda n=n: {"stated": Stated(num_tokens=n)},
                r"num_tokens: expected None or an integer from 1 to 2\^53",
            )
            for n in (0, 10**23, "9")
        ),
        (lambda: {"stated": Stated(top_logprobs=0)}, r"top_logprobs: expected None or an integer"),
        (lambda: {"draft_format": "vllm"}, "draft_format: expected a draft's log"),
    ],
)
def test_what_is_said_of_a_log_and_can_not_be_is_refused(tmp_path, wrong, message):
    log = written.save(tmp_path / "log.json", written.sglang(written.logprobs(), depth=5))
    with pytest.raises(cs.InvalidArgument, match=message):
        import_logs(log, None, tmp_path / "run", rules=RULES, **wrong())
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_tree_wider_than_every_list_is_refused_by_name_and_the_rest_is_scored(tmp_path):
    log = written.save(tmp_path / "log.json", written.sglang(written.logprobs(), depth=5))
    run = import_logs(log, None, tmp_path / "run", rules=(cs.StrictGreedy(), cs.Tree(8)))
    assert [rule.label for rule in run.rules] == ["strict"]
    assert run.refused_rules == {"tree:8": "needs 9 true ranks, the lists have at most 5"}
    with pytest.raises(cs.InvalidArgument, match="no rule is left"):
        import_logs(log, None, tmp_path / "none", rules=(cs.Tree(8),))


def test_a_position_too_short_for_a_tree_is_counted_and_certifies_nothing(tmp_path):
    rows = written.logprobs(2)
    log = written.save(
        tmp_path / "log.jsonl", written.sglang(rows[:1], depth=5), written.sglang(rows[1:], depth=3)
    )
    run = import_logs(log, None, tmp_path / "run", rules=(cs.Tree(4),))
    table = read_run(tmp_path / "run")
    assert table.certificate_lower[0, 1] == 0.0 < table.certificate_lower[0, 0]
    assert (
        run.findings.counts[Finding.RULE_TOO_WIDE] == 1
        and run.findings.counts[Finding.DEPTH_VARIES] == 1
    )


def test_a_log_that_fails_halfway_leaves_no_run(tmp_path):
    good, bad = written.sglang(written.logprobs()), written.sglang(written.logprobs())
    bad["meta_info"]["output_top_logprobs"][0][0][0] = 3.0
    log = written.save(tmp_path / "log.jsonl", *[good] * 900, bad)  # more than one batch
    with pytest.raises(cs.UnreadableInput, match=":901:"):
        import_logs(log, None, tmp_path / "run", rules=RULES)
    with pytest.raises(cs.UnreadableInput, match="expected a run folder"):
        read_run(tmp_path / "run")


def test_another_log_into_the_same_folder_is_refused_and_the_same_one_is_read_again(tmp_path):
    log = written.save(tmp_path / "log.json", written.sglang(written.logprobs()))
    other = written.save(tmp_path / "other.json", written.sglang(written.logprobs(seed=3)))
    import_logs(log, None, tmp_path / "run", rules=RULES)
    import_logs(log, None, tmp_path / "run", rules=RULES)
    assert read_run(tmp_path / "run").num_steps == 6
    with pytest.raises(cs.RunMismatch):
        import_logs(other, None, tmp_path / "run", rules=RULES)


def test_tensors_of_target_and_draft_agree_with_whole_rows(tmp_path):
    logits = np.random.default_rng(0).normal(0.0, 2.0, (30, 50))
    np.savez(tmp_path / "t.npz", logits=logits)
    np.savez(
        tmp_path / "d.npz",
        logits=logits + 0.01 * np.random.default_rng(1).normal(size=logits.shape),
    )
    import_logs(tmp_path / "t.npz", tmp_path / "d.npz", tmp_path / "run", rules=RULES)
    table = read_run(tmp_path / "run")
    target = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert table.certificate[0] == pytest.approx(
        [written.strict_certificate(row) for row in target], rel=1e-9
    )
    assert table.entropy == pytest.approx(-(np.exp(target) * target).sum(axis=1), rel=1e-6)


def test_the_command_prints_tables_cases_and_warnings(tmp_path):
    log = written.save(tmp_path / "log.json", written.chat(written.logprobs(30)))
    result = CliRunner().invoke(
        main,
        ["import", str(log), "--out", str(tmp_path / "run"), "--rules", "strict tree:2 tree:8"],
    )
    assert result.exit_code == 0, result.output
    for text in (
        "30 positions",
        "the certificate is known",
        "refused: tree:8",
        "answers cut by length",
    ):
        assert text in result.output
    assert json.loads((tmp_path / "run" / "import.json").read_text())["num_positions"] == 30


def test_the_command_refuses_a_processed_log_in_one_line(tmp_path):
    log = written.sglang(np.log([[1.0, 1e-9, 1e-9]]), depth=3)
    for entry in log["meta_info"]["output_top_logprobs"][0][1:]:
        entry[0] = -9999.0
    path = written.save(tmp_path / "log.json", log)
    result = CliRunner().invoke(main, ["import", str(path), "--out", str(tmp_path / "run")])
    assert (
        result.exit_code == 2 and "processed" in result.output and "Traceback" not in result.output
    )


def test_tokens_that_share_a_text_never_make_a_false_certificate(tmp_path):
    # ids 0 and 1 have the same text; a text-keyed list shows one of them, and the draft's other one
    # looks the same
    chance = np.random.default_rng(4)
    positions = [{"same": -0.05, "b": -3.5, "c": -4.5}, {"same": -0.05, "b": -3.6, "c": -4.4}]
    logs = []
    for number, entries in enumerate(positions):
        lists = [
            {key: value - float(chance.random()) * 1e-3 for key, value in entries.items()}
            for _ in range(5)
        ]
        logprobs = {
            "tokens": ["same"] * 5,
            "token_logprobs": [each["same"] for each in lists],
            "top_logprobs": lists,
        }
        document = {"choices": [{"index": 0, "logprobs": logprobs}]}
        logs.append(written.save(tmp_path / f"{number}.json", document))
    for trusted in (False, True):
        run = import_logs(
            *logs,
            tmp_path / f"run-{trusted}",
            rules=RULES,
            stated=Stated(text_keys_are_tokens=trusted),
        )
        table = read_run(tmp_path / f"run-{trusted}")
        assert table.certified[0].all() == trusted and table.certified[0].any() == trusted
        assert (run.decision_cases[0][CASES.index(Case.TEXT_KEYS)] == 0) == trusted
        assert Finding.TEXT_KEYS in run.findings.counts
    call = ["import", *map(str, logs), "--out", str(tmp_path / "by-command"), "--rules", "strict"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0 and Case.TEXT_KEYS.value in result.output
    assert CliRunner().invoke(main, [*call, "--text-keys-are-tokens"]).exit_code == 2, (
        "other settings, same folder"
    )


REAL = os.environ.get("CERTSPEC_REAL_LOGS", "")


@pytest.mark.skipif(
    not Path(REAL).is_dir() or not REAL, reason="CERTSPEC_REAL_LOGS names no folder of real logs"
)
class TestRealLogs:
    @pytest.mark.parametrize(
        "name, num", [("gpt4o_mini_creative", 150), ("lang_japanese", 100), ("topk_5", 100)]
    )
    def test_real_chat_logs_import_at_temperature_one(self, tmp_path, name, num):
        run = import_logs(
            Path(REAL) / "logprobe" / f"{name}.json", None, tmp_path / "run", rules=RULES
        )
        table = read_run(tmp_path / "run")
        assert run.num_positions == table.num_steps == num and run.findings.temperature == 1.0
        assert (table.certificate[0] <= math.log(2.0)).all() and (table.certificate[0] >= 0.0).all()

    def test_exact_ties_of_a_real_log_are_counted(self, tmp_path):
        run = import_logs(
            Path(REAL) / "logprobe" / "gpt4o_mini_creative.json",
            None,
            tmp_path / "run",
            rules=RULES,
        )
        assert run.findings.counts[Finding.TOP_TIE] == 4

    def test_a_real_log_at_temperature_zero_is_refused_as_processed(self, tmp_path):
        with pytest.raises(cs.UnreadableInput, match="processed"):
            import_logs(
                Path(REAL) / "ds4" / "short_reasoning_plain.official.json", None, tmp_path / "run"
            )

    def test_a_real_file_of_probabilities_is_refused_as_such(self, tmp_path):
        with pytest.raises(cs.UnreadableInput, match="probabilities, not logprobs"):
            import_logs(
                Path(REAL) / "logos-in-layers" / "output-Qwen3-8B.json", None, tmp_path / "run"
            )
