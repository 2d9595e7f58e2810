"""The README's example claim runs as it is printed: declared, checked, its mutant refuted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import derivations
import proofs_check

README = Path(proofs_check.__file__).parent / "README.md"
ROOT = README.parents[1]
BLOCK = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.S)


def test_the_readmes_claim_is_verified_and_its_mutant_refuted(tmp_path):
    text = README.read_text("utf-8")
    blocks = dict(BLOCK.findall(text))
    assert len(blocks) == 2
    for package in (derivations, proofs_check):
        source = Path(package.__file__).parent
        for path in source.rglob("*.py"):
            place = tmp_path / source.name / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    for name, content in blocks.items():
        (tmp_path / name).write_text(content, "utf-8")
    assert "python -m proofs_check strict.quadratic\n" in text
    done = subprocess.run(
        [sys.executable, "-m", "proofs_check", "strict.quadratic"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.search(r"```\n(  VERIFIED  strict\.quadratic .*?)```", text, re.S)
    assert _plain(done.stdout) == _plain(printed[1])


def _plain(text):
    """Without seconds, and without the number of boxes, which is another in other arithmetics."""
    return re.sub(r"; [\d.]+ s|(?<=enclosure )\(\d+\)", "", text)
