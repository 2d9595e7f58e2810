"""Our engine beside llama.cpp: chains drafted by its loop change no token, engines in their own
processes answer and end, and the figures are those of what was emitted."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.cli.bench_tables import file_tables
from certspec.models.cpu.runner import CpuRunner
from certspec.models.padded_runner import TransformersRunner
from certspec.studies.bench import peers
from certspec.studies.bench.peers import LLAMA_CPP_WAYS, Drafting, measure_peers, speculate


@pytest.mark.parametrize("way", [*LLAMA_CPP_WAYS.values(), Drafting(3, 0.5)], ids=str)
def test_a_drafted_chain_changes_no_token_and_saves_passes(tiny, prompts, greedy, way):
    runners = [TransformersRunner(model, tiny.num_tokens) for model in (tiny.target, tiny.draft)]
    with torch.inference_mode():
        for prompt in prompts[1:3]:
            whole = greedy(tiny, prompt, 21)
            found, num_passes = speculate(*runners, prompt, 21, frozenset(), way)
            assert found == whole
            assert (num_passes == 21) if way.most == 0 else (num_passes < 21)
            eos = frozenset(whole[11:12])
            ended = whole[: whole.index(whole[11]) + 1]
            assert speculate(*runners, prompt, 21, eos, way)[0] == ended


class Echo:
    def __init__(self, word):
        self.word = word

    def say(self, other):
        return self.word + other


def test_an_engine_lives_in_a_process_of_its_own_that_ends_in_words():
    engine = peers._Process("echo", Echo, "a")
    assert engine("say", "b") == "ab"
    assert engine.peak_bytes() > 10_000_000
    engine._process.terminate()
    engine._process.join()
    with pytest.raises(cs.CertspecError, match="echo: its process ended"):
        engine("say", "c")
    engine.close()


class Inside:
    """Stands for a process: the same calls, here."""

    def __init__(self, name, make, *arguments):
        self.made = make(*arguments)

    def __call__(self, method, *arguments):
        return getattr(self.made, method)(*arguments)

    def peak_bytes(self):
        return 1_000_000_000

    def close(self):
        pass


class Impostor:
    """llama.cpp's place taken by our engine, which errs at the first token of every answer."""

    def __init__(self, files, num_tokens, context):
        pair = cs.load_pair(*files)
        self.runners = [CpuRunner(model, num_tokens) for model in (pair.target, pair.draft)]

    def decode(self, prompt, num_tokens, eos, way):
        tokens, num_passes = speculate(*self.runners, prompt, num_tokens, eos, way)
        return peers.Answer([tokens[0] + 1, *tokens[1:]], num_passes, 0.5)


@pytest.fixture
def files(tmp_path):
    pytest.importorskip("gguf")
    from tests.support.gguf_files import make_file

    shape = {"model_type": "qwen2", "tie_word_embeddings": False}
    target = make_file(tmp_path / "target.gguf", "Q4_K", **shape)
    return target, make_file(tmp_path / "draft.gguf", "Q8_0", num_hidden_layers=1, **shape)


def test_ours_is_bit_for_bit_the_float32_model_and_what_differs_is_counted(files, monkeypatch):
    monkeypatch.setattr(peers, "_Process", Inside)
    monkeypatch.setattr(peers, "_LlamaCpp", Impostor)
    pair = cs.load_pair(*files)
    ours = {"plain": {"draft_length": 0}, "chain": {"draft_length": 3}, "tree": {"tree": 2}}
    theirs = {"plain": Drafting(0), "chain of 2": Drafting(2)}
    prompts = [[1, 2, 3], [4, 5]]
    found = measure_peers(pair, prompts, 9, 2, ours, llama_cpp=theirs)
    assert found["same_bits_as_float32"] == found["greedy_output_of_float32"] == [True, True]
    assert found["num_prompts_unlike_our_plain"] == {
        **{f"certspec {name}": 0 for name in ours},
        **{f"llama.cpp {name}": 2 for name in theirs},
    }
    assert found["references"]["llama.cpp plain"] == "llama.cpp plain"
    assert found["ratios"]["certspec plain"]["our plain"]["median"] == 1.0
    assert found["tokens_per_target_pass"]["certspec plain"] == 1.0
    assert found["tokens_per_target_pass"]["llama.cpp plain"] == 1.0
    assert found["num_tokens"] <= 18 and len(found["peak_bytes"]) == 3
    [table] = file_tables({"prompts": 2, **json.loads(json.dumps(found))})
    assert "2 of llama.cpp plain" in table.note and table.note.endswith("in 2 prompts.")
    with pytest.raises(cs.InvalidArgument, match="target: expected a GGUF file"):
        measure_peers(dataclasses.replace(pair, target=SimpleNamespace()), prompts, 9, 1, ours)


def test_the_command_times_two_files_without_peers(files, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_Process", Inside)
    (tmp_path / "prompts.txt").write_text("ABC\nDE\nFGH\n")
    arguments = ["--target", str(files[0]), "--draft", str(files[1]), "--limit", "2"]
    arguments += ["--prompts", str(tmp_path / "prompts.txt"), "--max-new-tokens", "6"]
    done = CliRunner().invoke(main, ["bench", "decode", *arguments, "--repeats", "1"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["prompts"] == 2 and told["same_bits_as_float32"] == [True, True]
    assert "certspec adaptive, within .3 nats" in told["ratios"] and "llama.cpp" not in done.stdout
    refused = CliRunner().invoke(main, ["bench", "decode", "--peers", "llama.cpp"])
    assert refused.exit_code == 2 and "--target and --draft" in refused.output
