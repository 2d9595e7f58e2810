"""Runners of somebody else's engine: the README's toy is a whole one, decodes and scores, and what
lacks something is refused by its name."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import certspec as cs
from certspec.runs.folder import RunFolder
from certspec.scoring.prompts import PromptFile
from certspec.scoring.run import RunSettings, score_run

README = (Path(cs.__file__).parent / "models" / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def toy():
    """What the README's first block defines; its own assertions hold."""
    names = {}
    exec(BLOCKS[0], names)
    return SimpleNamespace(**names)


def test_the_readmes_toy_decodes_chains_and_trees_to_the_targets_own_output(toy):
    runner, text = toy.Toy(slips=False), [1, 2, 3]
    for _ in range(24):
        text.append(int(runner.prefill([text])[0].argmax()))
    assert toy.chain.sequences == toy.tree.sequences == [text[3:]]


def test_given_runners_score_a_run_that_names_them(toy, tmp_path):
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "abc"}) + "\n")
    prompts, folder = PromptFile.check(tmp_path / "prompts.jsonl"), RunFolder(tmp_path / "run")
    settings = RunSettings(steps=10, batch_size=1)
    score_run(toy.pair, prompts, folder, settings, runners=toy.runners)
    assert folder.manifest()["settings"]["engine"] == "given runners: Toy, Toy"
    with pytest.raises(cs.InvalidArgument, match="batch_size: expected at most 1, which Toy"):
        score_run(toy.pair, prompts, folder, RunSettings(batch_size=2), runners=toy.runners)
    with pytest.raises(cs.InvalidArgument, match="one for each model"):
        score_run(toy.pair, prompts, folder, settings, runners=(toy.runners[0], None))


def test_a_runner_without_a_method_or_of_another_width_is_refused_by_name(toy):
    whole = toy.Toy(slips=False)
    lame = SimpleNamespace(num_tokens=4096, prefill=whole.prefill, forward=whole.forward)
    with pytest.raises(cs.InvalidArgument, match=r"the draft's, .* has no commit, drop_rows"):
        cs.generate(toy.pair, [[1]], runners=(whole, lame))
    with pytest.raises(cs.InvalidArgument, match=r"target's runner, draft's runner"):
        cs.generate(toy.pair, [[1]], runners=(whole,))
    narrow = toy.Toy(slips=False)
    narrow.num_tokens = 12
    with pytest.raises(cs.InvalidArgument, match=r"num_tokens 4096 .* got 12 from the draft's"):
        cs.generate(toy.pair, [[1]], runners=(whole, narrow))


def test_the_readmes_other_example_takes_llama_cpp_in_the_same_place(toy, monkeypatch):
    """Its models are files that nobody has here; what it calls is called."""
    made = []
    monkeypatch.setattr(cs, "load_pair", lambda *files: made.append(files) or toy.pair)
    monkeypatch.setattr(
        "certspec.models.llamacpp.LlamaCppRunner",
        lambda file, num_tokens, context: toy.Toy(slips="0.5b" in file),
    )
    (block,) = BLOCKS[1:]
    names = {}
    exec(block, names)
    assert made == [names["files"]] and names["found"].engine == "given runners"
