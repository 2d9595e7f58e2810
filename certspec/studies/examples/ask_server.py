"""Scores a server without having its model: asks it for answers with logprobs, and says how far a
draft may stray before its tokens could be rejected.

    python -m certspec.studies.examples.ask_server http://localhost:8000 "Tell me about a fox."

This is ``certspec ask`` and ``certspec report`` in a script; the key is read from OPENAI_API_KEY.
What was answered stays in the folder, so that a second call asks nothing twice."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="of a server that speaks OpenAI's protocol")
    parser.add_argument("prompts", nargs="+", help="one or several")
    parser.add_argument("--out", type=Path, default=Path("asked"), help="folder of the run")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args(arguments)

    given.out.mkdir(parents=True, exist_ok=True)
    prompts = given.out / "prompts.jsonl"
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in given.prompts]
    prompts.write_text("".join(lines), "utf-8")
    run = given.out / "run"
    options = ["--prompts", prompts, "--out", run, "--max-new-tokens", given.max_new_tokens]
    asked = ["ask", given.url, *options, "--rules", "strict additive:0.3 tree:4"]
    _certspec(*asked)
    summary = json.loads(_certspec("report", run, "--json"))
    for row in summary["rules"]:
        finite = row["certificate_finite"]["mean"]
        print(f"{row['rule']}: a draft within {finite:.3f} nats is accepted, on average")


def _certspec(*arguments: object) -> str:
    """What a command of certspec printed; its errors are this script's."""
    command = [sys.executable, "-m", "certspec", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    main()
