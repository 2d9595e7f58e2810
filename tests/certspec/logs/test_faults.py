"""Logs as servers really write them, each of which once ended in another program's traceback, in a
position that was lost without a word, or in fewer certificates than the log allows."""

import json
import math

import numpy as np
import pytest

import certspec as cs
from certspec.logs.findings import Finding, Findings
from certspec.logs.import_run import import_logs
from certspec.logs.reading import read_log
from certspec.logs.stated import Stated
from certspec.runs.table import read_run
from tests.support import written_logs as written

LISTS = {  # of each format: how a position loses its list
    "openai-chat": lambda log, at: _content(log)[at].update(top_logprobs=[]),
    "openai-chat, null": lambda log, at: _content(log)[at].update(top_logprobs=None),
    "openai-chat, no key": lambda log, at: _content(log)[at].pop("top_logprobs"),
    "openai-completions": lambda log, at: _logprobs(log)["top_logprobs"].__setitem__(at, {}),
    "openai-completions, null": lambda log, at: _logprobs(log)["top_logprobs"].__setitem__(
        at, None
    ),
    "openai-responses": lambda log, at: _texts(log)[0]["logprobs"][at].update(top_logprobs=[]),
    "ollama, no key": lambda log, at: log["logprobs"][at].pop("top_logprobs"),
    "sglang": lambda log, at: log["meta_info"]["output_top_logprobs"].__setitem__(at, None),
    "llama-cpp": lambda log, at: log["completion_probabilities"][at].update(top_logprobs=[]),
}


def _logprobs(log):
    return log["choices"][0]["logprobs"]


def _texts(log):
    return log["output"][-1]["content"]


def _content(log):
    return _logprobs(log)["content"]


def _read(path, **options):
    findings = Findings()
    return list(read_log(path, findings=findings, **options)), findings


@pytest.mark.parametrize("form", LISTS)
def test_a_position_without_a_list_is_counted_and_the_others_are_read(tmp_path, form):
    log = written.WRITERS[form.split(",")[0]](written.logprobs(6))
    LISTS[form](log, 3)
    positions, findings = _read(written.save(tmp_path / "log.json", log))
    assert [position.position for position in positions] == [0, 1, 2, 4, 5]
    assert findings.counts[Finding.POSITION_WITHOUT_LIST] == 1


@pytest.mark.parametrize("form", LISTS)
def test_a_log_without_any_list_says_what_to_ask_the_server_for(tmp_path, form):
    log = written.WRITERS[form.split(",")[0]](written.logprobs(3))
    for position in range(3):
        LISTS[form](log, position)
    with pytest.raises(cs.UnreadableInput, match=r"none of 3 positions.*ask the server for"):
        _read(written.save(tmp_path / "log.json", log))


@pytest.mark.parametrize("name", ["openai-chat", "openai-completions", "llama-cpp", "vllm"])
def test_half_of_a_surrogate_pair_is_imported_and_is_no_key(tmp_path, name):
    text = json.dumps(written.WRITERS[name](written.logprobs(4)))
    changed = text.replace('" zebra"', r'"\ud83d"').replace('" the"', r'"a\udc00"')
    assert changed != text
    path = tmp_path / "log.json"
    path.write_text(changed)
    run = import_logs(path, None, tmp_path / "run", rules=[cs.StrictGreedy()])
    assert read_run(tmp_path / "run").num_steps == run.num_positions == 4
    if name == "openai-completions":
        assert run.findings.counts[Finding.NO_KEY] > 0


OTHERS = {
    "another server's": (written.WRITERS["sglang"], Finding.OTHER_SHAPE),
    "no log at all": (lambda rows: {"hello": 1}, Finding.OTHER_SHAPE),
    "a failed batch line": (
        lambda rows: {"custom_id": "a", "response": {"status_code": 500, "body": {"error": {}}}},
        Finding.FAILED_ANSWER,
    ),
    "a batch line without an answer": (
        lambda rows: {"custom_id": "a", "response": None, "error": {"code": "batch_expired"}},
        Finding.FAILED_ANSWER,
    ),
    "a batch line whose status is text": (
        lambda rows: {"response": {"status_code": "500", "body": {"choices": []}}},
        Finding.FAILED_ANSWER,
    ),
    "a tool's call without logprobs": (
        lambda rows: {"choices": [{"message": {"content": None, "tool_calls": [{"id": 1}]}}]},
        Finding.WITHOUT_LOGPROBS,
    ),
    "an answer of the other endpoint": (written.completions, Finding.OTHER_SHAPE),
    "an answer without logprobs": (
        lambda rows: {"choices": [{"index": 0, "logprobs": None, "message": {"content": "Hi"}}]},
        Finding.WITHOUT_LOGPROBS,
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_document_of_another_shape_is_counted_with_its_line(tmp_path, kind):
    make, finding = OTHERS[kind]
    rows = written.logprobs(2)
    path = written.save(tmp_path / "log.jsonl", written.chat(rows), make(rows), written.chat(rows))
    positions, findings = _read(path)
    assert len(positions) == 4
    assert findings.counts[finding] == 1 and findings.first_seen[finding] == f"{path}:2"


def test_a_choice_without_logprobs_beside_one_with_them_is_counted(tmp_path):
    log = written.chat(written.logprobs(2))
    log["choices"].append({"index": 1, "logprobs": None, "message": {"content": "Hi"}})
    positions, findings = _read(written.save(tmp_path / "log.json", log))
    assert len(positions) == 2 and findings.counts[Finding.WITHOUT_LOGPROBS] == 1


def test_a_log_most_of_whose_pairs_hold_all_the_mass_is_said_to_look_processed(tmp_path):
    def entry(text, prob):
        return {"token": text, "logprob": math.log(prob), "bytes": [ord(text)]}

    def log_of(*probs):
        pairs = [[entry("y", prob), entry("n", left - prob)] for prob, left in probs]
        content = [pair[0] | {"top_logprobs": pair} for pair in pairs]
        return {"choices": [{"index": 0, "logprobs": {"content": content}}]}

    whole, natural = (0.7, 1.0), (0.7123456789, 0.98)
    for probs, count in (([whole] * 3 + [natural] * 2, 3), ([whole] + [natural] * 3, None)):
        _, findings = _read(written.save(tmp_path / "log.json", log_of(*probs)))
        assert findings.counts.get(Finding.LOOKS_PROCESSED) == count


@pytest.mark.parametrize("rank", [0, -3])
def test_a_rank_below_1_is_refused(tmp_path, rank):
    with pytest.raises(cs.UnreadableInput, match=f":1: expected rank to be at least 1, got {rank}"):
        _read(written.save(tmp_path / "log.json", _vllm([(5, -0.5, rank), (6, -2.0, 2)])))


def test_a_stream_and_its_ends_without_tokens_are_no_finding(tmp_path):
    chunk = written.chat(written.logprobs(1)) | {"object": "chat.completion.chunk", "id": "x"}
    ends = [
        {"object": "chat.completion.chunk", "choices": []},
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": ""}}]},
    ]
    positions, findings = _read(written.save(tmp_path / "log.jsonl", ends[1], chunk, *ends))
    assert len(positions) == 1
    assert set(findings.counts) <= {Finding.CUT}


HUGE = {
    "an id above int32": ('"id": 7', '"id": 3000000000', "id from 0 to"),
    "an id of 23 digits": ('"id": 7', '"id": 10000000000000000000000', "id from 0 to"),
    "a negative id": ('"id": 7', '"id": -1', "id from 0 to"),
    "an integer of 5,000 digits": ('"id": 7', f'"id": {"7" * 5000}', "too many digits"),
    "a logprob of 401 digits": ('"logprob": -2.5', f'"logprob": -1{"0" * 400}', "300 digits"),
    "brackets without end": ('"id": 7', f'"id": {"[" * 100_000}', "nested too deeply"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_number_without_bounds_is_refused_with_file_line_and_reason(tmp_path, kind):
    old, new, reason = HUGE[kind]
    listed = [{"id": 7, "token": "a", "logprob": -0.5}, {"id": 8, "token": "b", "logprob": -2.5}]
    log = {"completion_probabilities": [{**listed[0], "top_logprobs": listed}] * 2}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(log) + "\n" + json.dumps(log).replace(old, new, 1) + "\n")
    with pytest.raises(cs.UnreadableInput, match=reason) as error:
        _read(path)
    assert str(error.value).startswith(f"{path}:2")


def _vllm(entries):
    """One position of a prompt, entries being (id, logprob, rank)."""
    listed = {str(token): {"logprob": value, "rank": rank} for token, value, rank in entries}
    return {"prompt_logprobs": [None, listed], "choices": []}


def test_tokens_tied_at_the_top_are_one_block_of_ranks(tmp_path):
    # vLLM counts >=: the chosen token 14, tied with 28, has rank 2
    low = [(322, -1.8, 3), (1560, -2.2, 4)]
    for ranks in ((2, 1), (2, 2)):
        tied = [(14, -1.5, ranks[0]), (28, -1.5, ranks[1])]
        [position], findings = _read(written.save(tmp_path / "log.json", _vllm(tied + low)))
        assert position.num_ranked == 4 and position.keys[:2] == [14, 28]
        assert findings.counts[Finding.TOP_TIE] == 1


def test_a_tie_that_goes_on_beyond_the_list_cuts_the_ranks_before_it(tmp_path):
    tied = [(5, -1.25, 1), (6, -2.0, 4), (7, -2.0, 3)]
    [position], _ = _read(written.save(tmp_path / "log.json", _vllm(tied)))
    assert position.num_ranked == 1


@pytest.mark.parametrize("name", ["openai-chat", "openai-completions"])
def test_ids_written_for_texts_are_read_as_ids_and_the_chosen_one_is_found(tmp_path, name):
    rows = written.logprobs(5)
    text = json.dumps(written.WRITERS[name](rows))
    for number, token in sorted(enumerate(written.TEXTS), key=lambda item: -len(item[1])):
        text = text.replace(json.dumps(token), f'"token_id:{number}"')
    path = tmp_path / "log.json"
    path.write_text(text)
    positions, findings = _read(path)
    assert [position.keys[:3] for position in positions] == [written.best(row, 3) for row in rows]
    assert all(position.chosen == 0 for position in positions)
    assert Finding.TEXT_KEYS not in findings.counts


def test_of_a_whole_vocabulary_keyed_by_text_only_ranks_above_the_lost_mass_count(tmp_path):
    lost = 0.01
    probs = [0.6, 0.3, 0.004] + [(1 - lost - 0.904) / 1200] * 1200
    listed = {f"t{number}": math.log(prob) for number, prob in enumerate(probs)}
    chosen = {"tokens": ["t0"], "token_logprobs": [listed["t0"]], "top_logprobs": [listed]}
    log = {"choices": [{"index": 0, "logprobs": chosen}]}
    [position], findings = _read(written.save(tmp_path / "log.json", log))
    assert position.num_ranked == 2 and findings.counts[Finding.KEY_LOST] == 1


def test_a_servers_own_counters_are_summed_over_the_answers(tmp_path):
    told = {"num_spec_steps": 12, "num_accepted_draft_tokens": 37, "num_draft_tokens": 48}
    log = written.chat(written.logprobs(2)) | {"metrics": {"speculative_decoding": told}}
    odd = log | {"metrics": {"speculative_decoding": told | {"num_draft_tokens": None}}}
    _, findings = _read(written.save(tmp_path / "log.jsonl", log, odd, log))
    assert vars(findings.server) == {name: 2 * count for name, count in told.items()}
    assert findings.server.mean_acceptance_length == pytest.approx(1 + 37 / 12)


def test_paths_may_be_texts(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(written.chat(written.logprobs(4))), encoding="utf-8")
    assert import_logs(str(log), str(log), str(tmp_path / "run")).num_positions == 4


def test_a_list_that_a_likelier_token_is_missing_from_is_refused(tmp_path):
    rows = np.log([[0.6, 0.3999, 5e-5, 3e-5, 2e-5], [0.6, 0.3999, 5e-5, 3e-5, 2e-5]])
    log = written.sglang(rows, depth=4)
    _read(written.save(tmp_path / "whole.json", log))
    for listed in log["meta_info"]["output_top_logprobs"]:
        listed[2:] = [[value - 10.0, token, None] for value, token, _ in listed[2:]]
        del listed[1]  # an end of text that the server hides, say
    path = written.save(tmp_path / "log.json", log)
    with pytest.raises(
        cs.UnreadableInput, match=r"leaves out 0\.4 of the probability, more than 262"
    ):
        _read(path)
    # nothing of it is seen where a vocabulary has room, and all where it has none
    path = written.save(tmp_path / "log.json", written.sglang(written.logprobs(2), depth=5))
    _read(path, stated=Stated(num_tokens=12))
    with pytest.raises(cs.UnreadableInput, match="num_tokens is too small"):
        _read(path, stated=Stated(num_tokens=5))


def test_a_token_that_is_listed_twice_counts_once(tmp_path):
    rows = written.logprobs(2)
    log = written.sglang(rows, depth=4)
    listed = log["meta_info"]["output_top_logprobs"][0]
    listed.append([*listed[1]])
    [position, _], findings = _read(written.save(tmp_path / "log.json", log))
    assert position.keys == written.best(rows[0], 4) and position.num_ranked == 4
    assert Finding.DUPLICATE_KEYS not in findings.counts
    listed[-1][0] -= 0.5
    with pytest.raises(cs.UnreadableInput, match=r"token [0-9]+ is listed with -"):
        _read(written.save(tmp_path / "other.json", log))


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_stream_of_sglang_is_one_answer_whether_its_chunks_repeat_or_go_on(tmp_path, goes_on):
    rows, chunks = written.logprobs(4), []
    for number in range(1, 5):
        chunk = written.sglang(rows[number - 1 if goes_on else 0 : number], depth=4)
        told = chunk["meta_info"]
        prompt = written.sglang(rows, depth=4, part="input")["meta_info"]
        told |= {name: prompt[name] for name in prompt if name.startswith("input")}
        told |= {"id": "a", "completion_tokens": number}
        told["finish_reason"] = {"type": "stop"} if number == 4 else None
        chunks.append(chunk)
    positions, _ = _read(written.save(tmp_path / "log.jsonl", *chunks, *chunks))
    for part in ("prompt", "output"):
        places = [(each.sequence, each.position) for each in positions if each.part == part]
        assert places == [(answer, number) for answer in range(2) for number in range(4)]
    assert [each.finish for each in positions if each.finish] == ["stop"] * 2


def test_outputs_of_vllm_that_are_not_finished_are_refused(tmp_path):
    lists = written.vllm(written.logprobs(2))["prompt_logprobs"][1:]
    outputs = [{"outputs": [{"logprobs": lists[:n]}], "finished": n == 2} for n in (1, 2)]
    with pytest.raises(cs.UnreadableInput, match="expected finished outputs"):
        _read(written.save(tmp_path / "log.jsonl", *outputs))
    assert len(_read(written.save(tmp_path / "last.jsonl", outputs[1]))[0]) == 2


@pytest.mark.parametrize("order", [int, str])
def test_ids_that_were_put_in_order_say_nothing_of_the_chosen_token(tmp_path, order):
    # JavaScript does so with every object whose keys are numbers
    row = written.logprobs(1)[0]
    last = written.best(row, 12)[-1]
    log = written.vllm([row], depth=4, chosen=[last])
    listed = log["prompt_logprobs"][1]
    log["prompt_logprobs"][1] = {key: listed[key] for key in sorted(listed, key=order)}
    [position], _ = _read(written.save(tmp_path / "log.json", log))
    assert position.chosen_key is None and position.num_ranked == 4
    for entry in listed.values():
        del entry["rank"]
    [position], _ = _read(written.save(tmp_path / "unranked.json", log))
    assert position.chosen_key is None and position.num_ranked == 4
    log["prompt_token_ids"] = [0, last]
    [position], _ = _read(written.save(tmp_path / "ids.json", log))
    assert position.chosen_key == last and position.num_ranked == 4


def test_two_logs_whose_prompts_differ_are_not_joined(tmp_path):
    rows = written.logprobs(3)
    lists = written.vllm(rows)["prompt_logprobs"]
    ids = [written.best(row, 1)[0] for row in rows]
    kinds = (
        (lambda first: written.chat(rows) | {"prompt_token_ids": [first]}, "prompts differ"),
        (lambda first: written.completions(rows) | {"prompt_token_ids": [first]}, "prompts differ"),
        (
            lambda first: {"prompt_token_ids": [first], "outputs": [{"logprobs": lists}]},
            "prompts differ",
        ),
        (
            lambda first: {"prompt_token_ids": [first, *ids], "prompt_logprobs": lists},
            "prompt position 0: the target's log goes on with 1",
        ),
    )
    for number, (writer, message) in enumerate(kinds):
        logs = [written.save(tmp_path / f"{n}.json", writer(n)) for n in (1, 2)]
        with pytest.raises(cs.UnreadableInput, match=message):
            import_logs(*logs, tmp_path / "run", rules=[cs.StrictGreedy()])
        import_logs(logs[0], logs[0], tmp_path / f"run-{number}", rules=[cs.StrictGreedy()])


def test_lists_of_prompts_that_are_left_out_are_said(tmp_path):
    rows = written.logprobs(2)
    log = written.chat(rows) | {"prompt_logprobs": written.vllm(rows)["prompt_logprobs"]}
    path = written.save(tmp_path / "log.json", log)
    positions, findings = _read(path)
    assert len(positions) == 2 and findings.counts[Finding.PROMPT_LISTS] == 1
    positions, _ = _read(path, format="vllm")
    assert [position.part for position in positions] == ["prompt"] * 2


def test_arrays_one_after_the_other_are_read_to_the_end_of_the_file(tmp_path):
    # a batch of prompts is answered by an array, and a log holds one a line
    one = json.dumps(written.sglang(written.logprobs(2)))
    for text in (
        f"[{one}]\n[{one}, {one}]\n",
        f"{one}\n[{one}, {one}]",
        f"[{one}] [] [{one}]{one}",
    ):
        path = tmp_path / "log.jsonl"
        path.write_text(text)
        assert len(_read(path)[0]) == 6
    path.write_text(f"[{one}] and more")
    with pytest.raises(cs.UnreadableInput, match="not JSON"):
        _read(path)


@pytest.mark.parametrize("name", written.WRITERS)
def test_answers_in_a_batch_or_beside_their_requests_are_read_in_every_format(tmp_path, name):
    answer = written.WRITERS[name](written.logprobs(3))
    batch = {"custom_id": "a", "response": {"status_code": 200, "body": answer}}
    for document in (batch, {"request": {"temperature": 0}, "response": answer}):
        positions, findings = _read(written.save(tmp_path / "log.jsonl", document, document))
        assert len(positions) == 6 and {each.request for each in positions} <= {None, "a"}
    if name == "openai-chat":
        answer["choices"].append({"index": 1, "message": {"content": "x"}, "logprobs": None})
        _, findings = _read(written.save(tmp_path / "log.jsonl", batch))
        assert findings.counts[Finding.WITHOUT_LOGPROBS] == 1


STREAMS = {  # of a chat, of completions, of llama.cpp's server and of Ollama
    "openai-chat": ({"object": "chat.completion.chunk"}, {"delta": {}}),
    "openai-completions": ({"object": "text_completion"}, {"text": ""}),
}


def _stream(name, rows, reason):
    """An answer token by token, then a chunk without tokens that says why it ended."""
    chunks = [written.WRITERS[name]([row]) for row in rows]
    if name == "llama-cpp":
        end = {"content": "", "id_slot": 0, "index": 0, "stop": True, "stop_type": reason}
        return [each | {"stop": False, "id_slot": 0, "index": 0} for each in chunks] + [end]
    if name == "ollama":
        end = {"model": "gemma3", "message": {"content": ""}, "done": True, "done_reason": reason}
        return [{**each, "done": False} for each in chunks] + [end]
    facts, empty = STREAMS[name]
    for chunk in chunks:
        chunk |= {"id": "a"} | facts
        chunk["choices"][0]["finish_reason"] = None
    last = {"index": 0, "finish_reason": reason, "logprobs": None} | empty
    return [*chunks, {"id": "a", "choices": [last]} | facts]


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", [*STREAMS, "llama-cpp", "ollama"])
def test_the_end_of_a_stream_is_read_from_a_chunk_without_tokens(tmp_path, name, reason):
    """llama.cpp's next answer went on in the sequence of the one before it."""
    rows = written.logprobs(3)
    stream = _stream(name, rows, reason)
    path = written.save(tmp_path / "log.jsonl", *stream, *stream)
    positions, findings = _read(path, stated=Stated(text_keys_are_tokens=True))
    assert sorted((each.sequence, each.position, each.finish) for each in positions) == [
        (answer, number, reason if number == 2 else None)
        for answer in range(2)
        for number in range(3)
    ]
    assert findings.counts.get(Finding.CUT, 0) == 2 * (reason == "length")
    assert set(findings.counts) <= {Finding.CUT, Finding.TEXT_KEYS}


def test_streams_that_never_end_are_read_to_their_last_position(tmp_path, monkeypatch):
    monkeypatch.setattr("certspec.logs.reading._LastPositions._MOST", 2)
    chunks = []
    for number, row in enumerate(written.logprobs(8)):
        chunk = written.chat([row]) | {"object": "chat.completion.chunk", "id": str(number % 4)}
        chunk["choices"][0]["finish_reason"] = None
        chunks.append(chunk)
    positions, _ = _read(written.save(tmp_path / "log.jsonl", *chunks))
    places = sorted((each.sequence, each.position) for each in positions)
    assert places == [(answer, number) for answer in range(4) for number in range(2)]


def test_an_end_is_not_said_of_a_position_that_was_not_the_last(tmp_path):
    rows = written.logprobs(3)
    stream = _stream("ollama", rows, "stop")
    del stream[2]["logprobs"][0]["top_logprobs"]
    positions, _ = _read(written.save(tmp_path / "log.jsonl", *stream))
    assert [each.finish for each in positions] == [None, None]


def test_a_stream_of_responses_is_read_from_its_last_event(tmp_path):
    whole = written.responses(written.logprobs(3))
    told = _texts(whole)[0]["logprobs"]
    events = [
        {"type": "response.created", "response": {"object": "response", "output": []}},
        *({"type": "response.output_text.delta", "delta": "x", "logprobs": [t]} for t in told),
        {"type": "response.output_text.done", "text": "xxx", "logprobs": told},
        {"type": "response.incomplete", "response": whole},
    ]
    without = whole | {"output": [{"type": "message", "content": [{"logprobs": []}]}]}
    failed = {"object": "response", "status": "failed", "error": {"code": "server_error"}}
    path = tmp_path / "log.txt"
    others = [
        {"type": "response.completed", "response": without},
        without,
        {"type": "response.failed", "response": failed},
        failed,
        {"custom_id": "a", "response": {"status_code": 200, "body": whole}},
    ]
    path.write_text("".join(f"event: x\ndata: {json.dumps(each)}\n\n" for each in events + others))
    positions, findings = _read(path)
    assert [(each.sequence, each.position) for each in positions] == [
        (answer, number) for answer in (0, 5) for number in range(3)
    ]
    assert positions[2].finish == "max_output_tokens" and positions[5].request == "a"
    assert findings.counts == {
        Finding.CUT: 2,
        Finding.WITHOUT_LOGPROBS: 2,
        Finding.FAILED_ANSWER: 2,
    }


def test_texts_of_one_response_are_one_sequence(tmp_path):
    whole = written.responses(written.logprobs(3)) | {"status": "completed"}
    whole["incomplete_details"] = None
    _texts(whole).append(_texts(whole)[0])
    positions, _ = _read(written.save(tmp_path / "log.json", whole))
    assert [(each.sequence, each.position) for each in positions] == [(0, n) for n in range(6)]
    assert [each.finish for each in positions] == [None] * 5 + ["stop"]


def test_answers_of_ollama_without_logprobs_are_counted_once_each(tmp_path):
    whole = written.ollama(written.logprobs(2))
    bare = {key: value for key, value in whole.items() if key != "logprobs"}
    streamed = [bare | {"done": False}, bare | {"done": False}, bare]
    positions, findings = _read(written.save(tmp_path / "log.jsonl", whole, bare, *streamed, whole))
    assert [each.sequence for each in positions] == [0, 0, 3, 3]
    assert findings.counts[Finding.WITHOUT_LOGPROBS] == 2
    # its server may be llama.cpp's, whose sums lose what is small
    assert positions[0].error > 0.01
    [first, _], _ = _read(
        written.save(tmp_path / "one.json", whole), stated=Stated(num_tokens=2**10)
    )
    assert first.error < 1e-4


def test_a_sum_in_order_loses_no_more_than_all_but_its_largest_term(tmp_path):
    log = written.save(tmp_path / "log.json", written.llama_cpp(written.logprobs(2)))
    positions, _ = _read(log, stated=Stated(num_tokens=2**53))
    assert positions[0].error == pytest.approx(math.log(2.0**53), rel=1e-6)
    run = import_logs(log, None, tmp_path / "run", stated=Stated(num_tokens=2**53))
    lower = read_run(tmp_path / "run").certificate_lower
    assert run.num_positions == 2 and all((column >= 0.0).all() for column in lower)
    assert all((column < math.inf).all() for column in lower)
