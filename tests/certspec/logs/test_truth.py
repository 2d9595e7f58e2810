"""Imported logs against the distributions they were written from: whatever a server's lists leave
out, round or add, what an import states is true of the numbers that the server had."""

from collections import Counter
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.errors import UnreadableInput
from certspec.logs.import_run import import_logs
from certspec.logs.stated import Stated
from certspec.presets import parse_rules
from certspec.runs.folder import RunFolder
from certspec.runs.schema import PROMPT_PART
from tests.support import simulated_servers as servers
from tests.support import written_logs as written

RULES = parse_rules(
    (
        "strict additive:0.3 additive:0.05 multiplicative:0.1 multiplicative:0.8 top:4 "
        "absolute:0.2 gated:3,additive=0.3 entropy:0.09,0.3 entropy:0.3,0.9 "
        "medusa tree:1 tree:2 tree:4 tree:8",
    )
)
FAMILIES = {
    "id": servers.BY_ID,
    "prompt": servers.OF_PROMPTS,
    "text": servers.BY_TEXT,
    "bytes": servers.BY_BYTES,
}


def _draw_and_import(folder, kind, seed):
    """A pair's logs, drawn and imported; (what was drawn, the run's rules, its rows, whether texts
    name tokens), or None where the log was refused."""
    rng = np.random.default_rng(seed)
    drawn = servers.draw(rng, (20, 60, 300, 2000))
    names_tokens = kind in ("id", "prompt") or rng.random() < 0.7
    if not names_tokens:
        servers.rename(drawn, rng)
    names = [str(rng.choice(list(FAMILIES[kind]))) for _ in range(2)]
    ways = [servers.draw_writing(rng) for _ in range(2)]
    if rng.random() < 0.6:
        names[1], ways[1] = names[0], ways[0]
    if rng.random() < 0.2:
        servers.process(drawn, str(rng.choice(["temperature", "top-p", "top-k"])))
    logs = []
    for number, (name, way) in enumerate(zip(names, ways, strict=True)):
        rows = (drawn.target, drawn.draft)[number]
        logs.append(folder / f"{number}.jsonl")
        servers.write(logs[-1], FAMILIES[kind][name], rows, drawn, way)
    depths = {way.depth for way in ways}
    asked = depths.pop() if len(depths) == 1 and rng.random() < 0.5 else None
    vocab = drawn.target.shape[-1] if rng.random() < 0.5 else None
    stated = Stated(text_keys_are_tokens=names_tokens, top_logprobs=asked, num_tokens=vocab)
    try:
        run = import_logs(*logs, folder / f"run-{seed}", rules=RULES, stated=stated)
    except UnreadableInput:  # most lists were processed
        return None
    parts = sorted((folder / f"run-{seed}").glob("steps-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return drawn, run.rules, rows, names_tokens


def _broken_promises(kind, drawn, rules, rows, names_tokens, counts):
    """What an import's rows state and isn't so, as texts."""
    vocab = drawn.target.shape[-1]
    with np.errstate(all="ignore"):
        truth = cs.certify(*(m.reshape(-1, vocab) for m in (drawn.target, drawn.draft)), rules)
    accepted, certificate = np.atleast_2d(truth.accepted), np.atleast_2d(truth.certificate)
    last = drawn.target.shape[1] - 1
    for row in rows:
        number = row["position"] - (kind == "prompt")
        if row["end"] != ("eos" if number == last and kind != "prompt" else None):
            yield f"row {row['prompt']}, {number}: end {row['end']}"
        at = row["prompt"] % PROMPT_PART * drawn.target.shape[1] + number
        if names_tokens and row["kl"] > truth.kl[at] + 1e-12:
            yield f"row {at}: kl {row['kl']} above {truth.kl[at]}"
        entropy = truth.entropy[at]
        if not row["entropy"] - 1e-12 <= entropy <= row["entropy_upper"] + 1e-12:
            yield f"row {at}: entropy {entropy} not {row['entropy']} to {row['entropy_upper']}"
        for rule, sure in enumerate(accepted[:, at]):
            where = f"row {at}, {rules[rule].label}:"
            least, true = row["certificate_lower"][rule], certificate[rule, at]
            if least > true + 1e-12:
                yield f"{where} certificate_lower {least} above {true}"
            if row["certified"][rule] and not sure:
                yield f"{where} certified"
            told = names_tokens and row["accepted_known"][rule]
            if told and row["accepted"][rule] != sure:
                yield f"{where} accepted"
            counts["certified"] += row["certified"][rule]
            counts["known"] += told


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_an_import_states_is_true_of_the_distributions_that_were_logged(tmp_path, kind):
    counts = Counter()
    for seed in range(45, 85):  # of which the importer has been wrong in one of five
        found = _draw_and_import(tmp_path, kind, seed)
        if found is not None:
            assert not [*_broken_promises(kind, *found, counts)], f"{kind}, seed {seed}"
    assert counts["certified"] > 1000 and counts["known"] > 1000


def _run(tmp_path, writer, target, draft, **options):
    logs = []
    for number, rows in enumerate((target, draft)):
        logs.append(written.save(tmp_path / f"{number}.json", writer(np.array(rows))))
    import_logs(*logs, tmp_path / "run", rules=parse_rules(("strict top:2 tree:2",)), **options)
    return pq.read_table(tmp_path / "run" / "steps-000000.parquet").to_pylist()[0]


def test_of_two_equal_tokens_neither_is_the_argmax_for_certain(tmp_path):
    # The lower id may be the second one's, which the draft nowhere lists; where ids are known, the
    # logits may differ by less than a logprob shows, so the simulated logs found.
    target = np.log([[0.4, 0.4, 0.1, 0.06, 0.04]])
    draft = np.log([[0.7, 1e-9, 0.14, 0.1, 0.06]])
    for writer in (written.chat, written.sglang):
        folder = tmp_path / writer.__name__
        folder.mkdir()
        row = _run(folder, lambda rows: writer(rows, depth=3), target, draft)  # noqa: B023
        assert not row["accepted_known"][0] and not row["accepted_known"][2]
        assert row["accepted_known"][1]  # the first two places are theirs in either order


def test_a_token_as_likely_as_the_lists_last_may_be_any_that_is_not_listed(tmp_path):
    target, draft = np.log([[0.5, 0.2, 0.2, 0.1]]), np.log([[0.3, 0.3, 0.3, 0.1]])
    row = _run(tmp_path, lambda rows: written.sglang(rows, depth=2), target, draft)
    assert not any(row["accepted_known"]) and not any(row["certified"])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_logprobs_in_16_bits_are_taken_for_no_more_exact_than_they_are(tmp_path, half):
    # TGI takes the log-softmax in the model's own type
    drawn = servers.draw(np.random.default_rng(3), (60,), answers=1)
    way = servers.Writing(5, None, half, np.random.default_rng(0))
    log = tmp_path / "log.json"
    servers.write(log, servers.tgi_chat, drawn.target, drawn, way)
    import_logs(log, None, tmp_path / "run", rules=RULES[:1])
    rows = pq.read_table(tmp_path / "run" / "steps-000000.parquet").to_pylist()
    truth = cs.certify(drawn.target[0], None, RULES[0]).certificate.ravel()
    assert all(row["certificate_lower"][0] <= truth[row["position"]] for row in rows)


def test_two_logs_of_a_batch_are_not_joined_where_their_requests_differ(tmp_path):
    logs = []
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        answers = [
            {"custom_id": name, "response": {"status_code": 200, "body": written.chat(rows)}}
            for name, rows in zip(names, [written.logprobs(2)] * 2, strict=True)
        ]
        logs.append(written.save(Path(tmp_path) / f"{number}.jsonl", *answers))
    with pytest.raises(UnreadableInput, match="answers request 'a', the draft's 'b'"):
        import_logs(*logs, tmp_path / "run", rules=RULES)


def test_an_answer_that_is_left_out_keeps_its_number(tmp_path):
    whole = [written.chat(written.logprobs(2, seed)) for seed in range(3)]
    bare = {"object": "chat.completion", "choices": [{"message": {"content": "x"}}]}
    logs = [
        written.save(tmp_path / "0.jsonl", *whole),
        written.save(tmp_path / "1.jsonl", whole[0], bare, whole[2]),
    ]
    run = import_logs(*logs, tmp_path / "run", rules=RULES)
    rows = pq.read_table(tmp_path / "run" / "steps-000000.parquet").to_pylist()
    assert run.num_positions == 4 and {row["prompt"] for row in rows} == {0, 2}


@pytest.mark.parametrize("without", [(0,), (1,), (0, 1)])
def test_two_logs_that_part_where_one_has_no_list_are_not_joined(tmp_path, without):
    # llama.cpp gives no list of tokens that its own draft proposed
    logs = []
    for number, token in enumerate((97, 98)):
        answer = written.llama_cpp(written.logprobs(2), depth=4)
        first = answer["completion_probabilities"][0]
        if number in without:
            first |= {"id": token, "logprob": 0.0, "top_logprobs": []}
        else:
            first |= {"id": token, "logprob": first["top_logprobs"][-1]["logprob"] - 1.0}
        logs.append(written.save(tmp_path / f"{number}.json", answer))
    with pytest.raises(UnreadableInput, match="position 0: the target's log goes on with 97"):
        import_logs(*logs, tmp_path / "run", rules=RULES)


def test_a_folder_that_another_import_writes_into_is_said_or_waited_for(tmp_path):
    log = written.save(tmp_path / "log.json", written.sglang(written.logprobs(4)))
    folder = RunFolder(tmp_path / "run")
    words = ["import", str(log), "--out", str(folder.path), "--rules", "strict", "--json"]
    with folder.locked():
        refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2 and "another process is writing a run" in refused.output
    assert CliRunner().invoke(main, words).exit_code == 0

    entered = Event()

    def report():
        with folder.locked(wait=True):
            entered.set()

    reporting = Thread(target=report)
    with folder.locked():
        reporting.start()
        assert not entered.wait(0.1)
    reporting.join()
    assert entered.is_set()
    (folder.path / ".replacing").touch()
    folder.manifest_path.unlink()
    with pytest.raises(UnreadableInput, match="is being replaced"):
        folder.manifest()
