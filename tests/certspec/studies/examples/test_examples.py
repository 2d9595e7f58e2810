"""The examples run: the hub pair's script with the bundled pair, the notebook cell by cell, the
server's script against a stub."""

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path

import matplotlib
import pytest

import certspec as cs
from certspec.studies.examples import ask_server, hub_pair
from tests.support.readme_blocks import differences
from tests.support.stub_server import StubServer

NOTEBOOK = Path(cs.__file__).parent / "studies" / "examples" / "bundled_pair.ipynb"
CELLS = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]


def test_the_script_for_a_hub_pair_decodes_with_the_bundled_one(capsys):
    hub_pair.main(["--bundled", "--max-new-tokens", "12"])
    told = capsys.readouterr().out
    assert told.startswith("Pair(target + draft")
    assert re.search(r"^tree:4: [\d.]+ tokens a target pass, \d+ % of the drafted", told, re.M)


def test_the_notebook_runs_cell_by_cell_and_prints_what_it_shows(monkeypatch):
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    for cell in CELLS:
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        shown = "".join(line for out in cell["outputs"] for line in out.get("text", []))
        assert differences(shown, printed.getvalue(), share=0.02) == []


def test_the_notebooks_picture_is_small():
    pictures = [
        output["data"]["image/png"]
        for cell in CELLS
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    assert len(pictures) == 1 and len(pictures[0]) < 40_000


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="openai is missing")
def test_the_script_for_a_server_says_how_far_a_draft_may_stray(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(cs.__file__).parents[1]))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    arguments = ["--out", str(tmp_path / "asked"), "--max-new-tokens", "6"]
    with StubServer().running() as url:
        ask_server.main([url, "A fox.", "A bear.", *arguments])
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3 and re.fullmatch(r"strict: a draft within [\d.]+ nats .*", told[0])
