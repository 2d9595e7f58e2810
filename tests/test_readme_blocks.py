"""Every fenced block of every README is run, or compared with what its command printed: nothing
stands there that nobody checks. Long runs are compared with the results that are committed; with
``CERTSPEC_README=full`` they are made anew."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import certspec as cs
from certspec.cli import main
from certspec.cli.bench_tables import decoding_tables
from certspec.models.vllm.admission import asks_to_attach
from certspec.models.vllm.request_rules import read_rules
from certspec.runs.summary import QUANTILES
from certspec.runs.tables import render_plain, summary_tables
from derivations.language.claim import all_claims
from proofs_check.registry import Effort
from proofs_check.running.explain import one_line
from proofs_check.running.runner import run_claim
from tests.support import written_logs
from tests.support.readme_blocks import Block, blocks_of, complaint_about, differences, readmes
from tests.support.stub_server import StubServer

ROOT = Path(__file__).resolve().parent.parent
README = "README.md"
REPORTS = "certspec/reports/README.md"
LOGS = "certspec/logs/README.md"
BENCH = "certspec/studies/bench/README.md"
VLLM = "certspec/models/vllm/README.md"
RESULTS = ROOT / "certspec" / "studies" / "bench" / "results"
IS_FULL = os.environ.get("CERTSPEC_README") == "full"
SCORED = ["score", "--limit", "8", "--out", "run"]

# Blocks that another test runs from the README itself.
ELSEWHERE = {
    "certspec/models/README.md": "tests/certspec/models/test_given_runners.py",
    "certspec/certificates/README.md": "tests/certspec/certificates/test_added_rule.py",
    "proofs_check/README.md": "tests/proofs_check/test_readme.py",
}


def call(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "110"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the second door's run lies: 8 prompts of the bundled pair."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call(*SCORED)
    return folder


@pytest.fixture
def reader(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(here)
    return here


def committed(name: str) -> dict[str, Any]:
    """What a long command once wrote."""
    result = json.loads((RESULTS / f"{name}-cpu.json").read_text("utf-8"))
    return result.get("summary", result)


def words_of(command: str) -> list[str]:
    """A command's words after ``certspec``."""
    return shlex.split(command)[1:]


def without_figures(text: str) -> str:
    return re.sub(r"\d[\d,.]*", "#", text)


# --- what stands behind a block of output: its README and first line, then what makes it


def decisions(block: Block, _: Path) -> list[str]:
    """``certspec score`` on all 128 prompts, half a minute: its summary is committed."""
    summary = json.loads(call("score", "--out", "all", "--json")) if IS_FULL else committed("score")
    return differences(block.shown, render_plain(summary_tables(summary)[:1]))


def python_example(block: Block, _: Path) -> list[str]:
    """The block is run, and the figures of its comment are those of what it left behind."""
    names: dict[str, object] = {}
    exec(block.text, names)
    found, fox = names["found"], names["fox"]
    kl, radius = found.kl.item(), found.certificate[0].item()
    told = f"# {kl:.4f} nats, below {radius:.4f} nats: {found.certified[0].item()}"
    wrong = [] if told in block.text else [told]
    is_told = fox.texts[0] and fox.metrics["mean_acceptance_length"] > 1.0
    return wrong + ([] if is_told and fox.steps else ["no story"])


def rooms(block: Block, _: Path) -> list[str]:
    """Every folder or file that the map names is there, in the repository or in certspec."""
    places = (ROOT, ROOT / "certspec", ROOT / "certspec" / "kernels")
    names = re.findall(r"(?:\w+/)*\w+(?:/|\.py)", block.text)
    return [name for name in names if not any((place / name).exists() for place in places)]


def citation(block: Block, _: Path) -> list[str]:
    told = f"version = {{{cs.__version__}}}"
    return [] if told in block.text else [told]


def command_after_score(block: Block, _: Path) -> list[str]:
    (command,) = block.commands
    return differences(block.shown, call(*words_of(command)))


def decoding_speeds(block: Block, _: Path) -> list[str]:
    """``certspec bench decode --repeats 3``, some minutes: its JSON is committed."""
    return differences(block.shown, render_plain(decoding_tables(committed("decode"))), share=0.0)


def imported_log(block: Block, here: Path) -> list[str]:
    """A log of somebody else's: with CERTSPEC_REAL_LOGS it is imported; without it the words are
    those of a log made here, and its figures are not looked at."""
    real = Path(os.environ.get("CERTSPEC_REAL_LOGS", "/nonexistent")) / "logprobe"
    words = words_of(block.commands[0])
    if real.is_dir():
        shutil.copy(real / words[1], here)
        return differences(block.shown, call(*words))
    logits = np.round(8 * np.random.default_rng(0).normal(0.0, 2.0, (150, 12))) / 8  # as bfloat16
    logits[:4, :2] = 9.0
    rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    written_logs.save(here / words[1], written_logs.chat(rows.astype(np.float32)))
    return differences(without_figures(block.shown), without_figures(call(*words)))


def asked_server(block: Block, here: Path) -> list[str]:
    """Two servers play vLLM's: the words are compared, the README says whose its figures are."""
    (here / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    draft = StubServer(noise=0.5)
    with StubServer().running() as url, draft.running() as draft_url:
        words = words_of(block.commands[-1])
        words[1:2], words[words.index("--draft-url") + 1] = [url], draft_url
        made = call(*words, "--prompts", "prompts.jsonl", "--max-new-tokens", "12")
    made = made.replace("What tiny certifies", "What target certifies")
    return differences(without_figures(block.shown), without_figures(made))


def way_of_a_formula(block: Block, _: Path) -> list[str]:
    """The files that a formula goes through are there, and the names stand in them."""
    wrong = []
    for line in block.text.splitlines():
        name, _, rest = line.partition(" ")
        path = ROOT / name if name.startswith("certspec") else ROOT / "derivations" / name
        defined = re.match(r"\s+(\w+) = ", rest)
        if not path.is_file() or (defined and defined[1] not in path.read_text("utf-8")):
            wrong.append(line)
    return wrong


EDITS = """
import dataclasses, sys
from derivations.kernels.emit import drift
from derivations.language.claim import all_claims
from proofs_check.registry import Effort
from proofs_check.running.explain import one_line
from proofs_check.running.runner import run_claim
print(*drift())
claim = dataclasses.replace(all_claims()["bound.kl_upper"], mutants=())
print(one_line(run_claim(claim, Effort())))
"""


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a copy says in which both edits of the page "Change a formula" were made."""
    folder = tmp_path_factory.mktemp("edited")
    for package in ("derivations", "certspec/kernels/generated"):
        shutil.copytree(ROOT / package, folder / package)
    page = (ROOT / "derivations/README.md").read_text("utf-8")
    edits = re.findall(r"`([^`\n]+)`\s+for `([^`\n]+)`\s+in", page)
    assert len(edits) == 2
    source = folder / "derivations/kernels/evaluation.py"
    text = source.read_text("utf-8")
    for new, old in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source.write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", EDITS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def drifted_files(block: Block, edited: str) -> list[str]:
    """After the first edit ``--check`` names these files."""
    told = re.search(r"(\w+)_numba, _torch, _triton and the manifest drifted", block.text)
    assert told
    files = [f"{told[1]}_{backend}.py" for backend in ("numba", "torch", "triton")]
    return [name for name in [*files, "manifest.json"] if name not in edited.splitlines()[0]]


def refuted_claim(block: Block, edited: str) -> list[str]:
    """After the second edit the claim is refuted; the README's lines may end in dots."""
    made = [" ".join(line.split()) for line in edited.splitlines()]
    shown = [" ".join(line.split()) for line in block.shown.splitlines()]
    return [line for line in shown if not any(each.startswith(line.rstrip(".")) for each in made)]


def verified_claim(block: Block, _: Path) -> list[str]:
    """The line of ``strict.closed``, but for its seconds; its mutants are test_claims' business."""
    claim = dataclasses.replace(all_claims()["strict.closed"], mutants=())
    made = one_line(run_claim(claim, Effort())).splitlines()[0]
    made = made.removeprefix("!")  # for want of mutants
    plain = (re.sub(r"mutants \d/\d; [\d.]+ s", "", text) for text in (block.shown, made))
    return differences(*(" ".join(text.split()) for text in plain))


def vllm_server(block: Block, _: Path) -> list[str]:
    """The extra and the variable that are named are there; the served tests start a server."""
    (extra,) = re.findall(r"'\.\[(\w+)\]'", block.text)
    environment = dict(re.findall(r"^(CERTSPEC_\w+)=(\S+)", block.text, re.M))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    wrong = [] if re.search(rf"^{extra} = ", project, re.M) else [extra]
    return wrong + ([] if asks_to_attach(environment) else [str(environment)])


def vllm_request(block: Block, _: Path) -> list[str]:
    """What the request asks for is let in, and relaxes."""
    request = json.loads(block.text)
    rules = read_rules(request["vllm_xargs"], request["temperature"])
    return [] if rules.outside.label in block.text and not rules.is_strict else [block.text]


def vllm_tests(block: Block, _: Path) -> list[str]:
    """The folder of tests is there, and reads the variable that is set."""
    variable, folder = re.findall(r"^(\w+)=.* (\S+)$", block.text, re.M)[0]
    texts = [path.read_text("utf-8") for path in (ROOT / folder).glob("test_*.py")]
    return [] if any(variable in text for text in texts) else [variable]


OUTPUTS = {
    (README, "Decisions over 10,715 steps of 128 prompts"): decisions,
    (README, "import numpy as np"): python_example,
    (README, "derivations/            symbolic statements and claims; prints kernels"): rooms,
    (README, "@article{sharma2026draft"): citation,
    (REPORTS, "$ certspec advise run"): command_after_score,
    (BENCH, "way   "): decoding_speeds,
    (LOGS, "$ certspec import gpt4o_mini_creative.json"): imported_log,
    (LOGS, "$ export OPENAI_API_KEY"): asked_server,
    (VLLM, "pip install '.[vllm]'"): vllm_server,
    (VLLM, '{"model": "TARGET"'): vllm_request,
    (VLLM, "CERTSPEC_VLLM_PYTHON="): vllm_tests,
    ("derivations/README.md", "formulas/strict.py"): way_of_a_formula,
    ("derivations/README.md", "python -m derivations --check   "): drifted_files,
    ("derivations/README.md", "! REFUTED   bound.kl_upper"): refuted_claim,
    ("proofs_check/README.md", "  VERIFIED  strict.closed"): verified_claim,
}
OF_THE_COPY = (drifted_files, refuted_claim)

BLOCKS = [block for name, text in readmes(ROOT).items() for block in blocks_of(name, text)]


def maker_of(block: Block):
    """What makes or checks a block: a function of OUTPUTS, the name of another test, or None."""
    readme, first = block.key
    for (name, beginning), maker in OUTPUTS.items():
        if name == readme and first.startswith(beginning):
            return maker
    if block.is_commands_alone:
        return complaint_about
    text = (ROOT / ELSEWHERE.get(readme, "/dev/null")).read_text("utf-8")
    is_run = block.language == "python" or "VERIFIED  strict\\.quadratic" in text
    return ELSEWHERE[readme] if is_run and "README.md" in text else None


def complaints(block: Block, request: pytest.FixtureRequest) -> list[str]:
    """What is wrong about a block; nothing where it is as it is made."""
    wrong = [f"{each}: {why}" for each in block.commands if (why := complaint_about(each))]
    maker = maker_of(block)
    if maker is None:
        return [*wrong, "nothing makes or checks this block: see OUTPUTS"]
    if isinstance(maker, str) or maker is complaint_about:
        return wrong
    material = request.getfixturevalue("edited" if maker in OF_THE_COPY else "reader")
    return wrong + maker(block, material)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.readme}:{block.line}")
def test_a_block_is_what_its_command_makes(block, request):
    assert complaints(block, request) == []


def test_what_makes_a_block_has_one():
    made = [maker_of(block) for block in BLOCKS]
    assert [maker.__name__ for maker in OUTPUTS.values() if maker not in made] == []


def test_the_radii_of_the_table_of_rules_are_those_of_the_bundled_pair():
    rows = re.findall(
        r"^\| `([^`]+)` \|.*\| (?:yes|no), (\d?\.\d+) \|", readmes(ROOT)[README], re.M
    )
    medians = {row["rule"]: row["certificate_finite"] for row in committed("score")["rules"]}
    middle = QUANTILES.index(0.5)
    assert len(rows) > 5
    for label, radius in rows:
        assert f"{medians[label]['quantiles'][middle]:.3f}".lstrip("0") == radius


CHEAP = (decisions, decoding_speeds, citation, rooms, way_of_a_formula, drifted_files)


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if maker_of(block) in CHEAP],
    ids=lambda block: f"{block.readme}:{block.line}",
)
def test_a_changed_figure_or_name_is_noticed_on_every_line(block, request):
    lines = block.text.splitlines()
    figure = re.compile(r"(?<=\s)\d[\d,]*(\.\d+)?(?= %| tokens/s| steps|  )|(?<=version = {)\d")
    name = re.compile(r"\w+(?=/ |\.py|_numba, )")
    edited = 0
    for number, line in enumerate(lines):
        for wrong in (figure.sub("7", line, count=1), name.sub("gone", line, count=1)):
            if wrong != line:
                text = "\n".join([*lines[:number], wrong, *lines[number + 1 :]]) + "\n"
                assert complaints(dataclasses.replace(block, text=text), request), wrong
                edited += 1
    assert edited


@pytest.mark.parametrize(
    "text",
    [
        "one figure: 83.2 %",
        "certspec score --limits 8",
        "certspec scores",
        "python -m proofs_check --explains",
        "python -m certspec.bench.hidden",
        "$ certspec report run\nrule  accepted",
    ],
)
def test_a_block_that_nobody_makes_and_a_command_that_is_gone_are_noticed(text, request):
    assert complaints(Block(README, 1, "", text + "\n"), request)


def test_lines_differ_by_words_by_counts_and_by_more_than_a_rounding():
    made = "rule  tokens/s  nodes\n----  --------\ntree:3     290.6     15\n"
    assert differences("rule tokens/s nodes\n...\ntree:3 290.8 15", made) == []
    told = "a  1\nb  2\nwarning: cut\nfits\n"
    assert differences("a  1\nwarning: cut\nfits", told) == []  # a row of a table may be missing
    assert differences("a  1\nb  2\nfits", told) == ["left out: warning: cut"]
    for wrong in ("tree:3 295.6 15", "tree:3 290.6 16", "tree:4 290.6 15", "tree:3 290.6 15 s"):
        assert differences(wrong, made) == [wrong]
