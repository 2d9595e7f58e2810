"""vLLM itself on a CPU, serving the bundled pair with the plugin; ``CERTSPEC_VLLM_PYTHON`` names
the Python of an environment that has both.

    CERTSPEC_VLLM_PYTHON=/path/to/python python -m pytest -n 0 -s tests/certspec/models/vllm"""

import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pyarrow.parquet as pq
import pytest
import torch

import certspec as cs
from certspec.certificates.acceptance import accepts
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.models import BUNDLED, BUNDLED_PROMPTS
from certspec.runs.folder import RunFolder
from certspec.runs.table import read_run
from certspec.scoring.prompts import PromptFile
from certspec.scoring.run import RunSettings, score_run

PYTHON = os.environ.get("CERTSPEC_VLLM_PYTHON")
pytestmark = [
    pytest.mark.served,
    pytest.mark.skipif(
        PYTHON is None, reason="serves with vLLM: set CERTSPEC_VLLM_PYTHON to its Python"
    ),
]
FIVE = ["strict", "additive:0.3", "multiplicative:0.1", "top:4", "entropy:0.09,0.3"]
DRAFTED, NEW = 4, 64
THINKING = (4094, 4095)  # ids that the bundled pair never emits


class Server:
    """A vLLM server of a bundled model on this machine, up when it is entered."""

    def __init__(
        self, folder, model="target", speculates=True, options=(), drafting=(), **environment
    ):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{self.port}.log"
        self.folder, self.environment = folder, environment
        self.words = [PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
        self.words += ["--model", str(BUNDLED / model), "--served-model-name", model]
        self.words += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        self.words += ["--max-model-len", "512", "--enforce-eager", *options]
        if speculates:
            draft = {"method": "draft_model", "model": str(BUNDLED / "draft"), **dict(drafting)}
            given = json.dumps(draft | {"num_speculative_tokens": DRAFTED})
            self.words += ["--speculative-config", given]

    def __enter__(self):
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"VLLM_NO_USAGE_STATS": "1", **self.environment}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.words,
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(600):
            if self.is_up():
                return self
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(1.0)
        self.__exit__()
        raise AssertionError(self.log.read_text()[-3000:])

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    def is_up(self):
        try:
            return self.get("/health") is not None
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def answer(self, prompt, extra=None, **options):
        """Status and body of a completion."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": NEW, "return_token_ids": True}
        body |= options if extra is None else {"vllm_xargs": extra, **options}
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as found:
                return found.status, json.load(found)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def complete(self, prompt, extra=None):
        """The answer's token ids."""
        status, body = self.answer(prompt, extra)
        assert status == 200, body
        return body["choices"][0]["token_ids"]

    def complete_all(self, asked, workers=40):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda each: self.complete(*each), asked))

    def counts(self):
        """Sums over labels of every counter, and each with its labels."""
        found = {}
        for line in self.get("/metrics").splitlines():
            if match := re.match(r"([\w:]+)(\{.*\})? (\S+)$", line):
                name, labels, value = match.groups()
                found[name] = found.get(name, 0.0) + float(value)
                found[name, labels] = float(value)
        return found


@pytest.fixture(scope="module")
def prompts():
    """Token ids of 40 bundled prompts."""
    return bundled_prompt_ids(cs.load_pair(), 40)


@pytest.fixture(scope="module")
def plain(prompts, tmp_path_factory):
    """A server without the plugin: answers, counters, seconds."""
    with Server(tmp_path_factory.mktemp("plain"), VLLM_PLUGINS="") as server:
        return measured(server, prompts)


def measured(server, prompts):
    """Answers, what vLLM counted meanwhile, and tokens a second."""
    server.complete_all([(prompt,) for prompt in prompts[:8]])
    time.sleep(2.0)
    before, started = server.counts(), time.perf_counter()
    answers = server.complete_all([(prompt,) for prompt in prompts])
    speed = sum(map(len, answers)) / (time.perf_counter() - started)
    time.sleep(2.0)
    return answers, differences(before, server.counts()), speed


def differences(before, after):
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    return {
        name: after[f"vllm:spec_decode_{name}_total"] - before[f"vllm:spec_decode_{name}_total"]
        for name in names
    }


ATTACHED = ("--worker-cls", "certspec.models.vllm.attaching.CpuWorker")


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A folder, and a server with the plugin that keeps a trace there."""
    folder = tmp_path_factory.mktemp("traced")
    metrics = folder / "metrics"
    metrics.mkdir()
    with Server(
        folder,
        options=ATTACHED,
        CERTSPEC_TRACE=str(folder / "trace"),
        PROMETHEUS_MULTIPROC_DIR=str(metrics),
        CERTSPEC_THINKING_TOKENS=",".join(map(str, THINKING)),
    ) as server:
        yield server


# Runner V2 needs Triton. On a CPU its kernels run in Triton's interpreter, if vLLM finds a backend.
SHIM = """
import types, triton.backends
class Driver:
    is_active = staticmethod(lambda: True)
triton.backends.backends["cpu"] = types.SimpleNamespace(driver=Driver, compiler=None)
# two masks of one bit, one of them a scalar, are one of eight bits there, which it can't store by
from triton.runtime import interpreter
inner = interpreter._interpreter.store
def create_masked_store(self, places, values, mask, policy):
    return inner(places.data, values.data, mask.data.astype(bool))
interpreter.InterpreterBuilder.create_masked_store = create_masked_store
"""


@pytest.fixture(scope="module")
def traced_v2(tmp_path_factory):
    """The same of Runner V2."""
    if subprocess.run([PYTHON, "-c", "import triton"], capture_output=True).returncode:
        pytest.skip("needs Triton beside vLLM")
    folder = tmp_path_factory.mktemp("traced_v2")
    metrics = folder / "metrics"
    metrics.mkdir()
    (folder / "sitecustomize.py").write_text(SHIM)
    with Server(
        folder,
        options=("--max-num-seqs", "4"),
        drafting={"draft_sample_method": "probabilistic"},
        VLLM_USE_V2_MODEL_RUNNER="1",
        TRITON_INTERPRET="1",
        PYTHONPATH=os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))),
        CERTSPEC_TRACE=str(folder / "trace"),
        PROMETHEUS_MULTIPROC_DIR=str(metrics),
    ) as server:
        yield server


def test_strict_ids_and_counters_are_the_plain_servers_and_ours_are_vllms(plain, traced, prompts):
    answers, counted, plain_speed = plain
    found, again, speed = measured(traced, prompts)
    assert found == answers and again == counted
    time.sleep(3.0)  # certificates and the trace follow within two seconds
    counts = traced.counts()
    for ours, theirs in (("draft", "draft"), ("accepted", "accepted")):
        assert (
            counts[f"certspec:{ours}_tokens_total"]
            == (counts[f"vllm:spec_decode_num_{theirs}_tokens_total"])
        )
    assert counts["certspec:false_certificates_total"] == 0 < counts["certspec:steps_total"]
    assert counts.get("certspec:failures_total", 0.0) == 0
    print(f"\nplain {plain_speed:.0f} tokens/s, with a trace {speed:.0f}", file=sys.stderr)


def test_the_plugin_without_a_wish_costs_nothing_that_can_be_seen(plain, prompts, tmp_path):
    with Server(tmp_path, options=ATTACHED) as server:
        answers, counted, speed = measured(server, prompts)
    assert (answers, counted) == plain[:2]
    print(f"\nplain {plain[2]:.0f} tokens/s, attached {speed:.0f}", file=sys.stderr)


def test_forty_requests_at_once_under_five_rules_get_what_each_gets_alone(traced, prompts):
    asked = [(prompt, {"certspec_rule": FIVE[n % 5]}) for n, prompt in enumerate(prompts)]
    together = traced.complete_all(asked)
    assert together == [traced.complete(*each) for each in asked]
    own, total = within_rules(asked, together)
    assert total["strict"] == own["strict"]
    assert all(own[rule] < total[rule] for rule in FIVE[1:])


def within_rules(asked, answers):
    """Teacher-forced through our own engine: every token is the target's own or its rule accepts
    it. By rule how many are its own, and how many there are."""
    target = cs.load_pair().target
    own, total = dict.fromkeys(FIVE, 0), dict.fromkeys(FIVE, 0)
    for (prompt, extra), answer in zip(asked, answers, strict=True):
        rule = cs.parse_rule(extra["certspec_rule"])
        with torch.inference_mode():
            logits = target(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        tokens = torch.tensor(answer)
        is_own = logits.argmax(-1) == tokens
        slack = near_ties(logits, tokens)
        assert bool((is_own | accepts(rule, logits, tokens) | slack).all()), (rule, prompt)
        own[rule.label] += int((is_own | slack).sum())
        total[rule.label] += len(answer)
    return own, total


def near_ties(logits, tokens):
    """Tokens that two engines' rounding may tell apart from the best: within 1e-4 of it."""
    return logits.max(-1).values - logits.gather(1, tokens[:, None])[:, 0] < 1e-4


@pytest.mark.parametrize(
    ("extra", "options", "named"),
    [
        ({"certspec_rule": "additiv:0.3"}, {}, "additiv:0.3"),
        ({"certspec_rule": "additive:3"}, {}, "got 3"),
        ({"certspec_rule": "tree:4"}, {}, "tree:4"),
        ({"certspec_rule": ["top:4"]}, {}, "top:4"),
        ({"certspec_rule": "top:4"}, {"temperature": 0.7}, "0.7"),
        ({"certspec_thinking_rule": "top:x"}, {}, "'x'"),
    ],
)
def test_a_bad_rule_gets_400_and_the_engine_lives(traced, prompts, extra, options, named):
    status, text = traced.answer(prompts[0], extra, **options)
    assert status == 400 and named in text
    assert len(traced.complete(prompts[0])) > 0


def test_a_rule_for_thinking_leaves_the_rest_strict(traced, prompts):
    extra = {"certspec_thinking_rule": "top:4"}
    outside = traced.complete_all([(prompt, extra) for prompt in prompts[:8]])
    assert outside == traced.complete_all([(prompt,) for prompt in prompts[:8]])
    thinking = [[*prompt, THINKING[0]] for prompt in prompts[:8]]
    inside = traced.complete_all([(prompt, extra) for prompt in thinking])
    assert inside == traced.complete_all([(p, {"certspec_rule": "top:4"}) for p in thinking])
    assert inside != traced.complete_all([(prompt,) for prompt in thinking])


@pytest.mark.parametrize("runner", ["traced", "traced_v2"])
def test_the_trace_equals_certspec_score_where_both_saw_the_text(runner, request, tmp_path):
    traced, pair = request.getfixturevalue(runner), cs.load_pair()
    folder = RunFolder(tmp_path / "scored")
    settings = RunSettings(steps=NEW, batch_size=4, limit=12)
    score_run(pair, PromptFile.check(BUNDLED_PROMPTS), folder, settings)
    scored = {(row["prompt"], row["position"]): row for row in rows_of(folder)}
    numbers = {}
    for number, prompt in enumerate(bundled_prompt_ids(pair, 12)):
        _, body = traced.answer(prompt)
        own = [scored[number, k]["target_token"] for k in range(NEW) if (number, k) in scored]
        answer = body["choices"][0]["token_ids"]
        same = next((k for k, (a, b) in enumerate(zip(own, answer, strict=False)) if a != b), NEW)
        numbers[body["id"]] = number, same
    time.sleep(3.0)
    compared = 0
    for row in rows_of(RunFolder(traced.folder / "trace")):
        name = next((name for name in numbers if row["request"].startswith(name)), None)
        number, same = numbers.get(name, (0, -1))
        if row["position"] > same or (number, row["position"]) not in scored:
            continue
        other, compared = scored[number, row["position"]], compared + 1
        for column in ("target_token", "draft_token", "prompt_tokens", "accepted", "certified"):
            assert row[column] == other[column], (column, number, row["position"])
        for column in ("kl", "entropy", "prob_margin", "certificate", "certificate_lower"):
            assert row[column] == pytest.approx(other[column], rel=2e-3, abs=2e-4), column
    assert compared > 200
    print(
        f"\n{compared} positions of the trace ({runner}) are those of certspec score",
        file=sys.stderr,
    )


def rows_of(folder):
    return [row for part in folder.parts() for row in pq.read_table(part).to_pylist()]


def test_report_and_advise_read_the_trace(traced, tmp_path):
    shutil.copytree(traced.folder / "trace", tmp_path / "trace")
    assert read_run(tmp_path / "trace").num_steps > 1_000
    costs = tmp_path / "costs.json"
    ours("calibrate", "--limit", "2", "--costs", str(costs))
    assert "strict" in ours("report", str(tmp_path / "trace"))
    assert "tokens/s" in ours("advise", str(tmp_path / "trace"), "--costs", str(costs))


def ours(*words):
    done = subprocess.run(
        [sys.executable, "-m", "certspec", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runner_v2_serves_every_rule_in_tritons_interpreter(traced_v2, prompts):
    server = traced_v2
    asked = [(prompt, {"certspec_rule": rule}) for rule in FIVE for prompt in prompts[:3]]
    answers = server.complete_all(asked, workers=4)
    assert answers[:3] == server.complete_all([(prompt,) for prompt in prompts[:3]], workers=4)
    own, total = within_rules(asked, answers)
    assert own["strict"] == total["strict"] and all(own[rule] < total[rule] for rule in FIVE[1:])
    tokens = {"certspec_thinking_tokens": list(THINKING)}
    extra = {"certspec_thinking_rule": "top:4", **tokens}
    asked = [(p, e) for p in (prompts[0], [*prompts[0], THINKING[0]]) for e in (None, extra)]
    strict, outside, bare, inside = server.complete_all(asked, workers=4)
    assert outside == strict and inside != bare
    status, text = server.answer(prompts[0], {"certspec_rule": "additiv:0.3"})
    assert status == 400 and "additiv:0.3" in text and server.is_up()
    assert "Using V2 Model Runner" in server.log.read_text()
    time.sleep(3.0)  # certificates and the trace follow within two seconds
    counts = server.counts()
    for name in ("draft", "accepted"):
        theirs = counts[f"vllm:spec_decode_num_{name}_tokens_total"]
        assert counts[f"certspec:{name}_tokens_total"] == theirs
    assert counts["certspec:false_certificates_total"] == 0 < counts["certspec:steps_total"]
    assert counts.get("certspec:failures_total", 0.0) == 0
    print(f"\nV2: {counts['certspec:steps_total']:.0f} steps, none false", file=sys.stderr)


def test_asking_both_servers_killed_at_random_ends_in_the_run_of_the_saved_answers(
    traced, tmp_path
):
    chance, asked, num_killed = random.Random(18), tmp_path / "asked", 0
    with Server(tmp_path, "draft", speculates=False) as draft:
        words = [sys.executable, "-m", "certspec", "ask", traced.url, "--draft-url", draft.url]
        words += ["--limit", "24", "--max-new-tokens", "48", "--out", str(asked)]
        while True:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                told, _ = process.communicate(
                    timeout=600.0 if num_killed == 6 else chance.uniform(3.0, 15.0)
                )
                assert process.returncode == 0, told
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                num_killed += 1
    answers = asked / "answers"
    logs = (str(answers / "target.jsonl"), str(answers / "draft.jsonl"))
    ours("import", *logs, "--out", str(tmp_path / "imported"))
    runs = [rows_of(RunFolder(folder)) for folder in (asked, tmp_path / "imported")]
    assert num_killed > 0 and len(runs[0]) > 500 and str(runs[0]) == str(runs[1])
    print(f"\nkilled {num_killed} times, {len(runs[0])} positions", file=sys.stderr)
