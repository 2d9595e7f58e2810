"""The examples run: the hub pair's script with the bundled pair, the server's script against a
stub."""

import importlib.util
import re
from pathlib import Path

import pytest

import certspec as cs
from certspec.studies.examples import ask_server, hub_pair
from tests.support.stub_server import StubServer


def test_the_script_for_a_hub_pair_decodes_with_the_bundled_one(capsys):
    hub_pair.main(["--bundled", "--max-new-tokens", "12"])
    told = capsys.readouterr().out
    assert told.startswith("Pair(target + draft")
    assert re.search(r"^tree:4: [\d.]+ tokens a target pass, \d+ % of the drafted", told, re.M)


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="openai is missing")
def test_the_script_for_a_server_says_how_far_a_draft_may_stray(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(cs.__file__).parents[1]))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    arguments = ["--out", str(tmp_path / "asked"), "--max-new-tokens", "6"]
    with StubServer().running() as url:
        ask_server.main([url, "A fox.", "A bear.", *arguments])
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3 and re.fullmatch(r"strict: a draft within [\d.]+ nats .*", told[0])
