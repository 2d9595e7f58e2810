"""Every format's reader finds what was written, whole or in pieces, and refuses what would certify
nothing."""

import gzip
import json
import math
import os

import numpy as np
import pytest

import certspec as cs
from certspec.logs.findings import Finding, Findings
from certspec.logs.normalise import FLOAT32_ERROR, Normaliser
from certspec.logs.reading import read_log, sniff_format
from certspec.logs.stated import Stated
from tests.support import written_logs as written


def read(path, **options):
    findings = Findings()
    return list(read_log(path, findings=findings, **options)), findings


@pytest.mark.parametrize("name", written.WRITERS)
@pytest.mark.parametrize("shape", ["lines", "pretty", "array"])
def test_each_format_is_recognised_and_read_in_every_json_layout(tmp_path, name, shape):
    rows = written.logprobs()
    path = written.save(
        tmp_path / "log.json", written.WRITERS[name](rows), written.WRITERS[name](rows), shape=shape
    )
    assert sniff_format(path) == name
    positions, _ = read(path, stated=Stated(top_logprobs=5))
    assert len(positions) == 2 * len(rows)
    for position, row in zip(positions, [*rows, *rows], strict=True):
        assert position.logprobs == pytest.approx(sorted(row)[::-1][:5])
        assert position.num_ranked >= 4 and position.chosen == 0
    assert len({position.sequence for position in positions}) == 2


@pytest.mark.parametrize("name", ["openai-chat", "vllm", "sglang", "llama-cpp"])
def test_a_gzipped_log_reads_like_a_plain_one(tmp_path, name):
    document = written.WRITERS[name](written.logprobs())
    plain = written.save(tmp_path / "log.jsonl", document)
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert [p.logprobs for p in read(plain)[0]] == [
        p.logprobs for p in read(tmp_path / "log.jsonl.gz")[0]
    ]


def test_keys_are_ids_where_there_are_ids_else_bytes_else_text(tmp_path):
    rows = written.logprobs()
    kinds = {}
    for name, writer in written.WRITERS.items():
        positions, _ = read(written.save(tmp_path / f"{name}.json", writer(rows)))
        kinds[name] = type(positions[0].keys[0])
    assert kinds == {
        "openai-chat": bytes,
        "openai-completions": str,
        "openai-responses": bytes,
        "ollama": bytes,
        "vllm": int,
        "sglang": int,
        "llama-cpp": int,
    }


def test_streamed_chunks_of_one_answer_are_one_sequence(tmp_path):
    whole = written.chat(written.logprobs())
    content = whole["choices"][0]["logprobs"]["content"]
    chunks = [
        {
            "id": "a",
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "logprobs": {"content": [item]}}],
        }
        for item in content
    ]
    path = tmp_path / "events.txt"
    path.write_text(
        "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    )
    positions, _ = read(path)
    assert [(p.sequence, p.position) for p in positions] == [(0, n) for n in range(len(content))]


@pytest.mark.parametrize("identity", ["cmpl-0", ["no", "text"]])
@pytest.mark.parametrize("writer", [written.chat, written.completions])
def test_answers_under_one_id_are_one_sequence_each(tmp_path, writer, identity):
    answer = writer(written.logprobs(2)) | {"id": identity}
    if writer is written.chat:
        answer["object"] = "chat.completion.chunk"
    answer["choices"][0]["finish_reason"] = None
    end = answer | {"choices": [{"index": 0, "finish_reason": "stop", "logprobs": None}]}
    path = written.save(tmp_path / "log.jsonl", answer, answer, end, answer)
    positions, _ = read(path)
    assert [(each.sequence, each.position) for each in positions] == [
        *((0, number) for number in range(4)),
        *((1, number) for number in range(2)),
    ]


def test_the_first_prompt_position_without_a_list_is_a_counted_skip(tmp_path):
    _, findings = read(written.save(tmp_path / "v.json", written.vllm(written.logprobs())))
    assert findings.counts[Finding.FIRST_WITHOUT_LIST] == 1


def test_a_chosen_token_beyond_the_list_takes_one_true_rank(tmp_path):
    row = written.logprobs(1)[0]
    last = written.best(row, len(row))[-1]
    positions, findings = read(
        written.save(tmp_path / "v.json", written.vllm([row], depth=5, chosen=[last]))
    )
    assert (
        len(positions[0].logprobs) == 6
        and positions[0].num_ranked == 5
        and positions[0].chosen == 5
    )
    # vLLM's chat server cuts such a list to the depth asked for: the chosen token and k - 1 ranks
    chat = written.chat([row], depth=4, chosen=[last])
    item = chat["choices"][0]["logprobs"]["content"][0]
    item["top_logprobs"].insert(0, {key: item[key] for key in ("token", "logprob", "bytes")})
    positions, findings = read(written.save(tmp_path / "c.json", chat))
    assert len(positions[0].logprobs) == 5 and positions[0].num_ranked == 4
    assert findings.counts[Finding.CHOSEN_BEYOND] == 1


def test_a_chosen_token_at_the_end_of_its_list_may_have_been_added_there(tmp_path):
    # llama-cpp-python lists k best tokens and the chosen one behind them
    rows = written.logprobs(2)
    beyond = written.chat(rows, depth=3, chosen=[written.best(row, 12)[-1] for row in rows])
    for item in beyond["choices"][0]["logprobs"]["content"]:
        item["top_logprobs"].append({key: item[key] for key in ("token", "logprob", "bytes")})
    positions, findings = read(written.save(tmp_path / "c.json", beyond))
    assert [position.num_ranked for position in positions] == [3, 3]
    assert findings.counts[Finding.CHOSEN_BEYOND] == 2
    # without bytes no token has a key: the chosen one is known by its text and value
    for item in beyond["choices"][0]["logprobs"]["content"]:
        for entry in (item, *item["top_logprobs"]):
            entry["bytes"] = None
    beyond["choices"][0]["logprobs"]["content"][1]["top_logprobs"].pop()
    positions, _ = read(written.save(tmp_path / "n.json", beyond))
    assert [position.num_ranked for position in positions] == [3, 3]
    # a list apart from the chosen token, as SGLang's is, holds the best tokens alone
    positions, _ = read(written.save(tmp_path / "s.json", written.sglang(rows, depth=1)))
    assert [position.num_ranked for position in positions] == [1, 1]


@pytest.mark.parametrize("writer", [written.chat, written.completions])
def test_a_chosen_token_alone_in_its_list_is_the_best_where_it_outweighs_the_rest(tmp_path, writer):
    rows = np.log([[0.6, 0.3, 0.1], [0.4, 0.35, 0.25]]).astype(np.float32).astype(float)
    positions, findings = read(written.save(tmp_path / "log.json", writer(rows, depth=1)))
    assert [position.position for position in positions] == [0]
    assert findings.counts[Finding.TOP_UNKNOWN] == 1
    assert Finding.POSITION_WITHOUT_LIST not in findings.counts


def test_tokens_of_the_same_bytes_have_no_key(tmp_path):
    log = written.chat(written.logprobs(1))
    listed = log["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    listed[2]["bytes"] = listed[1]["bytes"]
    positions, findings = read(written.save(tmp_path / "c.json", log))
    assert (
        positions[0].keys[1] is None
        and positions[0].keys[2] is None
        and positions[0].keys[0] is not None
    )
    assert findings.counts[Finding.DUPLICATE_KEYS] == 1


@pytest.mark.parametrize(
    "text, bytes_", [("", None), ("bytes:\\xe9", None), ("\\xe9\\x9b", None), ("\ufffd", None)]
)
def test_a_text_that_is_no_key_is_none(tmp_path, text, bytes_):
    log = written.chat(written.logprobs(1))
    entry = log["choices"][0]["logprobs"]["content"][0]["top_logprobs"][3]
    entry["token"], entry["bytes"] = text, bytes_
    positions, findings = read(written.save(tmp_path / "c.json", log))
    assert positions[0].keys[3] is None and findings.counts[Finding.NO_KEY] == 1


def test_of_a_list_keyed_by_text_only_ranks_above_all_that_is_missing_count(tmp_path):
    rows = np.log([[0.4, 0.25, 0.15, 0.08, 0.05, 0.04, 0.03]] * 4)
    log = written.completions(rows, depth=4)
    lists = log["choices"][0]["logprobs"]["top_logprobs"]
    del lists[2][written.TEXTS[1]]  # the token of 0.25 met another of its text
    path = written.save(tmp_path / "c.json", log)
    # all other lists may have lost one as well: nothing says how many were asked for
    for stated, ranks in (
        (Stated(), [3, 3, 1, 3]),
        (Stated(top_logprobs=4), [4, 4, 1, 4]),
        (Stated(top_logprobs=5), [3, 3, 1, 3]),
        (Stated(text_keys_are_tokens=True), [4, 4, 3, 4]),
    ):
        positions, findings = read(path, stated=stated)
        assert [position.num_ranked for position in positions] == ranks, stated
        uncertain = sum(rank in (1, 3) for rank in ranks)
        uncertain *= not stated.text_keys_are_tokens
        assert findings.counts.get(Finding.KEY_LOST, 0) == uncertain
    with pytest.raises(cs.UnreadableInput, match=r"at most 3 tokens \(top_logprobs\) and"):
        read(path, stated=Stated(top_logprobs=3))


def test_the_chosen_token_may_stand_behind_the_tokens_that_were_asked_for(tmp_path):
    rows = np.log([[0.4, 0.2, 0.1, 0.09, 0.08, 0.07, 0.06]])
    log = written.completions(rows, depth=3)
    told = log["choices"][0]["logprobs"]
    told["tokens"], told["token_logprobs"] = [written.TEXTS[5]], [float(rows[0, 5])]
    told["top_logprobs"][0][written.TEXTS[5]] = float(rows[0, 5])
    path = written.save(tmp_path / "c.json", log)
    for asked, ranks in ((3, 3), (4, 1)):  # of 4 that were asked for one was lost, perhaps
        [position], _ = read(path, stated=Stated(top_logprobs=asked))
        assert position.num_ranked == ranks


def test_a_chosen_token_of_another_logprob_than_its_texts_is_another_token(tmp_path):
    rows = np.log([[0.4, 0.3, 0.2, 0.1]] * 3)
    log = written.completions(rows, depth=3)
    told = log["choices"][0]["logprobs"]
    told["token_logprobs"][1] = math.log(0.05)
    positions, findings = read(written.save(tmp_path / "c.json", log))
    assert [position.chosen for position in positions] == [0, -1, 0]
    assert positions[1].keys[0] is None and findings.counts[Finding.DUPLICATE_KEYS] == 1
    told["token_logprobs"][2] = math.log(0.05)
    path = written.save(tmp_path / "most.json", log)
    with pytest.raises(cs.UnreadableInput, match=r"position 1.*two distributions"):
        read(path)


def test_a_chosen_token_that_may_be_listed_is_not_listed_again(tmp_path):
    log = written.chat(written.logprobs(1))
    item = log["choices"][0]["logprobs"]["content"][0]
    for entry in (item, item["top_logprobs"][0]):
        entry |= {"token": "\ufffd", "bytes": None}
    item["logprob"] -= 1e-6  # another pass over the same logits
    [position], _ = read(written.save(tmp_path / "c.json", log))
    assert len(position.keys) == 5 and position.chosen == -1


@pytest.mark.parametrize("sentinel", [None, "-Infinity", -9999.0, -1000, -100, "-inf", -math.inf])
def test_a_chosen_token_whose_logprob_is_a_sentinel_is_outside_the_list(tmp_path, sentinel):
    log = written.chat(written.logprobs(1))
    item = log["choices"][0]["logprobs"]["content"][0]
    item["token"], item["bytes"], item["logprob"] = "other", list(b"other"), sentinel
    positions, findings = read(written.save(tmp_path / "c.json", log))
    assert positions[0].chosen == -1 and len(positions[0].logprobs) == 5
    assert findings.counts[Finding.CHOSEN_OUTSIDE] == 1


def test_unsorted_lists_are_sorted_and_ties_counted(tmp_path):
    log = written.sglang(np.log([[0.4, 0.4, 0.1, 0.06, 0.03]]))
    log["meta_info"]["output_top_logprobs"][0].reverse()
    positions, findings = read(written.save(tmp_path / "s.json", log))
    assert positions[0].keys == [0, 1, 2, 3, 4] and findings.counts[Finding.TOP_TIE] == 1


def test_forced_tokens_and_cut_answers_are_warned_about(tmp_path):
    log = written.chat(written.logprobs(3))
    item = log["choices"][0]["logprobs"]["content"][0]
    item |= {"token": "<think>", "bytes": list(b"<think>"), "logprob": 0.0}
    item["top_logprobs"] = [{"token": "<think>", "bytes": list(b"<think>"), "logprob": 0.0}]
    _, findings = read(written.save(tmp_path / "c.json", log))
    assert findings.counts[Finding.FORCED] == 1 and findings.counts[Finding.CUT] == 1


def test_a_log_of_one_token_lists_at_logprob_0_is_refused(tmp_path):
    log = written.chat(written.logprobs(3))
    content = log["choices"][0]["logprobs"]["content"]
    for item in content:
        item["logprob"] = 0.0
        item["top_logprobs"] = [item | {"top_logprobs": None}]
    with pytest.raises(
        cs.UnreadableInput, match=r"c\.json: every logprob is a whole number.* or 0"
    ):
        read(written.save(tmp_path / "c.json", log))
    content[-1]["logprob"] = content[-1]["top_logprobs"][0]["logprob"] = -0.3
    assert len(read(written.save(tmp_path / "d.json", log))[0]) == 3


def test_few_decimals_widen_the_error_of_every_value(tmp_path):
    rows = np.log([[0.5, 0.2, 0.15, 0.08, 0.05]]).round(2)
    positions, findings = read(written.save(tmp_path / "s.json", written.sglang(rows)))
    assert (
        positions[0].error == pytest.approx(0.005 + FLOAT32_ERROR)
        and findings.counts[Finding.COARSE_DECIMALS] == 1
    )
    # one value is rounded like many; a 0.0 has no decimal, beside lists of many digits it has one
    for alone, error in (([-0.51, 0.0], 0.5), ([0.0, -0.51], 0.5), ([-0.512345678, 0.0], 0.05)):
        rows = np.array([[value, -np.inf] for value in alone])
        positions, _ = read(written.save(tmp_path / "one.json", written.sglang(rows, depth=1)))
        errors = dict(zip(alone, (position.error for position in positions), strict=True))
        assert errors[0.0] == pytest.approx(error, rel=1e-3)
        assert errors.get(-0.51, 0.005) == pytest.approx(0.005, rel=1e-3)
    # significant digits, as C++ prints six of them
    rows = np.array([[-0.00123457, -6.70012, -12.3457], [-0.00123, -6.7, -12.3]])
    positions, _ = read(written.save(tmp_path / "digits.json", written.sglang(rows, depth=3)))
    assert [position.error for position in positions] == pytest.approx([5e-5, 0.05], rel=0.05)


def test_a_log_of_whole_numbers_is_refused(tmp_path):
    rows = np.array([[-1.0, -1.0, -7.0], [0.0, -9.0, -12.0]])
    with pytest.raises(cs.UnreadableInput, match="every logprob is a whole number"):
        read(written.save(tmp_path / "s.json", written.sglang(rows, depth=3)))
    rows[1, 1] = -9.5
    positions, _ = read(written.save(tmp_path / "t.json", written.sglang(rows, depth=3)))
    # a server that writes whole numbers may have made the first list alone
    assert [each.error for each in positions] == pytest.approx([0.5, 0.05], rel=1e-3)


def test_a_log_of_whole_numbers_and_of_many_digits_is_of_two_servers(tmp_path):
    rows = np.array([[-0.512345678], [0.0], [-1.0], [-2.0]])
    logs = [written.sglang(rows[:length], depth=1) for length in (3, 4)]
    read(written.save(tmp_path / "chance.json", logs[0]))
    with pytest.raises(cs.UnreadableInput, match=r"2 lists hold whole.*of one server"):
        read(written.save(tmp_path / "two.json", logs[1]))
    positions, _ = read(written.save(tmp_path / "no zero.json", written.sglang(rows[::2], depth=1)))
    assert [each.error for each in positions] == pytest.approx([2e-6, 0.5], rel=1e-3)


def test_a_chosen_token_behind_its_list_is_as_exact_as_the_list(tmp_path):
    row = np.array([-0.512345678, -1.012345678, -9.0])
    log = written.sglang([row], depth=2)
    log["meta_info"]["output_token_logprobs"][0] = [-9.0, 2, None]
    [position], _ = read(written.save(tmp_path / "s.json", log))
    assert position.chosen == 2 and position.error == pytest.approx(FLOAT32_ERROR)


@pytest.mark.parametrize("temperature, named", [(1.0, 1.0), (0.7, 0.7), (1.3, 1.3), (0.3, 0.6)])
def test_a_temperature_hidden_in_bfloat16_logits_is_told_up_to_a_power_of_two(
    tmp_path, temperature, named
):
    logits = np.round(np.random.default_rng(1).normal(18.0, 3.0, (40, 12)) * 8) / 8 / temperature
    rows = (
        (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        .astype(np.float32)
        .astype(float)
    )
    _, findings = read(written.save(tmp_path / "s.json", written.sglang(rows)))
    assert findings.temperature == named
    assert (Finding.LOG_OF_ANOTHER_TEMPERATURE in findings.counts) == (temperature != 1.0)


def test_float32_logits_show_no_temperature(tmp_path):
    _, findings = read(written.save(tmp_path / "s.json", written.sglang(written.logprobs(40))))
    assert findings.temperature is None


def _processed(log):
    for entry in log["meta_info"]["output_top_logprobs"][1][1:]:
        entry[0] = -9999.0
    log["meta_info"]["output_top_logprobs"][1][0][0] = 0.0


def _filtered(log):
    listed = log["meta_info"]["output_top_logprobs"][1]
    for entry, prob in zip(listed, [0.7, 0.3, 0, 0, 0], strict=True):
        entry[0] = math.log(prob) if prob else None


def _set_logprob(value):
    def change(log):
        log["meta_info"]["output_top_logprobs"][1][0][0] = value

    return change


HOSTILE = {
    "temperature 0": (_processed, "processed"),
    "top-p with sentinels": (_filtered, "processed"),
    "a raw logit": (_set_logprob(12.5), "above 0: these are raw logits or probabilities"),
    "a sum above one": (_set_logprob(-1e-9), "sum to"),
    "NaN": (_set_logprob(math.nan), "NaN"),
    "a text": (_set_logprob("high"), "'high'"),
    "a truth value": (_set_logprob(True), "bool"),
    "a list": (_set_logprob([1]), "list"),
    "infinity": (_set_logprob(math.inf), "above 0"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_value_is_refused_with_file_line_and_reason(tmp_path, fault):
    change, reason = HOSTILE[fault]
    good, bad = written.sglang(written.logprobs()), written.sglang(written.logprobs())
    change(bad)
    path = written.save(tmp_path / "log.jsonl", good, bad)
    with pytest.raises(cs.UnreadableInput, match=reason) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: output position 1")


def _renormalised(positions):
    """A log in which those positions hold what top-k left, renormalised."""
    log = written.sglang(written.logprobs(24))
    facts = log["meta_info"]
    for position in positions:
        listed = facts["output_top_logprobs"][position]
        for entry, prob in zip(listed, [0.4, 0.3, 0.1, 0.1, 0.1], strict=True):
            entry[0] = math.log(prob)
        facts["output_token_logprobs"][position] = list(listed[0])
    return log


@pytest.mark.parametrize("positions", [range(24), range(1, 24, 2), range(11, 24)])
def test_a_log_most_of_whose_lists_are_renormalised_is_refused(tmp_path, positions):
    path = written.save(tmp_path / "log.jsonl", _renormalised(positions))
    if 2 * len(positions) > 24:
        with pytest.raises(
            cs.UnreadableInput, match=rf":1: output position {positions[0]}: .*processed"
        ):
            read(path)
    else:
        findings = Findings()
        assert len(list(read_log(path, findings=findings))) == 24
        assert findings.counts[Finding.LOOKS_PROCESSED] == len(positions)


def test_one_natural_list_of_mass_one_does_not_refuse_a_good_log(tmp_path):
    rows = written.logprobs(61)
    log = written.chat(rows, depth=3)
    content = log["choices"][0]["logprobs"]["content"][7]
    for entry, prob in zip(content["top_logprobs"], [0.941, 0.0537, 0.0053], strict=True):
        entry["logprob"] = math.log(prob)
    content["logprob"] = content["top_logprobs"][0]["logprob"]
    findings = Findings()
    path = written.save(tmp_path / "log.json", log)
    assert len(list(read_log(path, findings=findings))) == 61
    assert findings.counts[Finding.LOOKS_PROCESSED] == 1
    assert "1 of 61" in findings.first_seen[Finding.LOOKS_PROCESSED]


TEXTS = {
    "empty": ("", "empty"),
    "blank": ("\n \n", "empty"),
    "cut off": (
        json.dumps(written.sglang(written.logprobs())) + "\n" + '{"meta_info": {"out',
        ":2: not JSON.*cut off",
    ),
    "not JSON": ("hello\n", ":1: not JSON"),
    "a number": ("3\n", ":1: expected a log of"),
    "a list of numbers": ("[1, 2]", ":1: expected a log of"),
    "another object": ('{"a": 1}\n', "got an object with"),
    "no logprobs": ('{"choices": [{"text": "a"}]}\n', "choices without logprobs"),
    "lm-eval": ('{"doc_id": 0, "resps": [[[-3.2, false]]]}\n', "lm-eval samples hold only"),
    "nested": ("[" * 200_000, ":1: not JSON"),
    "an error": (
        json.dumps(written.sglang(written.logprobs())) + '\n{"error": {"message": "overloaded"}}\n',
        ":2: the server answered with an error",
    ),
    "ids that aren't": (
        '{"meta_info": {"output_top_logprobs": [[[-0.1, "x", null]]]}}\n',
        ":1: expected token id to be an integer, got 'x'",
    ),
    "sampled probabilities": (
        '{"completion_probabilities": [{"id": 1, "token": "a", "prob": 1.0, "top_probs": []}]}\n',
        ":1: probabilities after sampling",
    ),
    "probabilities": ('{"rows": [{"topk": [[" a", 0.7]]}]}', "probabilities, not logprobs"),
    "no array end": ("[" + json.dumps(written.sglang(written.logprobs())), "expected ',' or ']'"),
}


@pytest.mark.parametrize("fault", TEXTS)
def test_a_hostile_file_is_refused_with_line_and_reason(tmp_path, fault):
    text, reason = TEXTS[fault]
    path = tmp_path / "log.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(cs.UnreadableInput, match=reason):
        read(path)


def test_bytes_that_are_no_text_are_refused_and_a_missing_file_is_named(tmp_path):
    (tmp_path / "log.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(cs.UnreadableInput, match="UTF-8"):
        read(tmp_path / "log.json")
    with pytest.raises(cs.UnreadableInput, match="no such file"):
        read(tmp_path / "none.json")
    with pytest.raises(cs.UnreadableInput, match="got a pipe or a device"):
        read(os.devnull)


def test_an_unknown_format_name_is_an_invalid_argument(tmp_path):
    with pytest.raises(cs.InvalidArgument, match="openai-chat"):
        read(tmp_path / "x", format="openai")


def test_an_array_larger_than_the_buffer_streams_element_by_element(tmp_path):
    documents = [written.chat(written.logprobs(20, seed)) for seed in range(60)]
    path = written.save(tmp_path / "big.json", *documents, shape="array")
    assert path.stat().st_size > 4 * 2**18
    assert len(read(path)[0]) == 1200


def test_most_positions_take_the_short_way_and_come_out_as_on_the_long_one(tmp_path, monkeypatch):
    rows = written.logprobs(60)
    sampled = [int(token) for token in np.random.default_rng(2).integers(0, 5, len(rows))]
    chosen = [written.best(row, 5)[rank] for row, rank in zip(rows, sampled, strict=True)]
    logs = {
        "chat": written.chat(rows, chosen=chosen),
        "llama": written.llama_cpp(rows),
        "sglang": written.sglang(rows),
        "vllm": written.vllm(rows, chosen=chosen),
        "completions": written.completions(rows),
    }
    short = Normaliser._plain
    taken = []
    for name, document in logs.items():
        path = written.save(tmp_path / f"{name}.json", document)
        found = {}
        for way in ("short", "long"):

            def plain(self, raw, way=way):
                position = short(self, raw) if way == "short" else None
                taken.append(position is not None)
                return position

            monkeypatch.setattr(Normaliser, "_plain", plain)
            positions, findings = read(path)
            found[way] = positions, findings.counts, findings.temperature
        assert found["short"] == found["long"], name
    assert sum(taken) > 120, "the short way was hardly taken"


@pytest.mark.parametrize("sentinel", [None, "-Infinity", -9999.0, -1000, -100, -math.inf])
def test_a_listed_sentinel_is_dropped_and_its_mass_counts_as_tail(tmp_path, sentinel):
    log = written.sglang(written.logprobs())
    log["meta_info"]["output_top_logprobs"][2][4][0] = sentinel
    positions, findings = read(written.save(tmp_path / "log.json", log))
    assert len(positions[2].logprobs) == 4 and len(positions[1].logprobs) == 5
    assert findings.counts[Finding.SENTINELS_DROPPED] == 1 and positions[2].num_ranked == 4


def test_a_position_without_a_list_in_the_middle_is_a_counted_skip(tmp_path):
    log = written.sglang(written.logprobs())
    log["meta_info"]["output_top_logprobs"][3] = None
    log["meta_info"]["output_token_logprobs"][3] = None
    positions, findings = read(written.save(tmp_path / "log.json", log))
    assert [position.position for position in positions] == [0, 1, 2, 4, 5]
    assert findings.counts[Finding.POSITION_WITHOUT_LIST] == 1


def test_a_float32_sum_a_hair_above_one_is_rounding_and_no_more_than_that(tmp_path):
    def log_of(excess):
        log = written.sglang(written.logprobs())
        probs = np.array([0.9, 0.05, 0.03, 0.0195, 0.0005]) * (1.0 + excess)
        for entry, prob in zip(log["meta_info"]["output_top_logprobs"][1], probs, strict=True):
            entry[0] = math.log(prob)
        log["meta_info"]["output_token_logprobs"][1][0] = math.log(probs[0])
        return written.save(tmp_path / "log.json", log)

    assert len(read(log_of(1.1e-7))[0]) == 6
    with pytest.raises(cs.UnreadableInput, match="sum to"):
        read(log_of(1e-5))


def test_a_whole_row_with_some_masked_ids_is_no_processed_list(tmp_path):
    logits = np.random.default_rng(1).normal(0.0, 1.0, (2, 1200))
    logits[:, 7] = -np.inf
    rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    lists = [
        [[float(row[token]), token, None] for token in np.argsort(-row).tolist()] for row in rows
    ]
    log = {
        "meta_info": {
            "output_top_logprobs": lists,
            "output_token_logprobs": [listed[0] for listed in lists],
        }
    }
    positions, findings = read(written.save(tmp_path / "log.json", log))
    assert len(positions[0].logprobs) == 1199 and findings.counts[Finding.SENTINELS_DROPPED] == 2
