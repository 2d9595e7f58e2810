"""``python -m certspec.studies.coder`` measures the pair. ``measure`` does all parts at once, so
that the models are read once; ``judge`` runs HumanEval's tests on saved answers, ``tables`` remakes
tables, plots and README from results; neither needs a model. Everything goes into --out, part by
part, and what was stopped goes on from there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from certspec.studies.coder.questions import PROMPTS
from certspec.studies.options import Options, add_options, exit_with

__all__ = ["main"]

PARTS = ("score", "robust", "speed", "quality")
_MEASURING: Options = {
    "--target": {"type": Path, "help": ".gguf file or directory (default: the bundled pair)"},
    "--draft": {"type": Path},
    "--prompts": {"type": Path, "default": PROMPTS, "help": "default: the study's own 500"},
    "--out": {"type": Path, "required": True, "help": "folder of the results"},
    "--device": {"default": "cpu"},
    "--commit": {"help": "of this checkout, where git can't tell"},
    "--limit": {"type": int, "help": "so many prompts (quality: of each kind)"},
    "--batch": {"type": int, "help": "prompts at once"},
}
_STEPS: Options = {"--steps": {"type": int, "default": 128, "help": "greedy steps a prompt"}}
_SPEED: Options = {
    "--num-prompts": {"type": int, "default": 4, "help": "that are timed"},
    "--tokens": {"type": int, "default": 96, "help": "new tokens of each"},
    "--repeats": {"type": int, "default": 2},
    "--without-rules": {"action": "store_true", "help": "time strict greedy and trees only"},
}
_QUALITY: Options = {
    "--way": {"default": "engine", "choices": ("engine", "rows"), "help": "what decodes"},
    "--rules": {"help": "as the command line writes them (default: 12)"},
    "--max-new-tokens": {"type": int, "help": "default: 384 for code, 320 for arithmetic"},
}
_PARTS: Options = {"--parts": {"default": ",".join(PARTS), "help": "which, in this order"}}
_JUDGING: Options = {
    "--prompts": {"type": Path, "default": PROMPTS},
    "--out": {"type": Path, "required": True, "help": "folder with quality.jsonl"},
    "--workers": {"type": int, "help": "programs at once"},
}
_TABLES: Options = {
    "--results": {"type": Path, "help": "default: the committed ones"},
    "--out": {"type": Path, "default": Path("coder-evidence")},
    "--write-readme": {
        "action": "store_true",
        "help": "put the results beside this module, and their tables into published/ and README",
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run its part."""
    options = _parser().parse_args(arguments)
    options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m certspec.studies.coder", description=__doc__)
    parts = parser.add_subparsers(required=True)
    for name, run, options, line in (
        (
            "measure",
            _measure,
            {**_MEASURING, **_STEPS, **_SPEED, **_QUALITY, **_PARTS},
            "all parts",
        ),
        ("score", _measure, {**_MEASURING, **_STEPS}, "score the prompts step by step"),
        ("robust", _measure, _MEASURING, "after score: what survives from float32 to bfloat16"),
        ("speed", _measure, {**_MEASURING, **_SPEED}, "time decoding beside transformers"),
        ("quality", _measure, {**_MEASURING, **_QUALITY}, "answer under every rule"),
        ("judge", _judge, _JUDGING, "grade saved answers"),
        ("tables", _tables, _TABLES, "tables and plots from results"),
    ):
        part = parts.add_parser(name, help=line)
        part.set_defaults(run=run, part=name)
        add_options(part, options)
    return parser


def _measure(options: argparse.Namespace) -> None:
    from certspec.presets import parse_rules
    from certspec.studies.coder.models import Models
    from certspec.studies.coder.quality import STRENGTHS, measure_quality
    from certspec.studies.coder.scoring import measure_robustness, measure_score
    from certspec.studies.coder.speed import measure_speed

    models = Models(options.target, options.draft, options.device, options.commit)
    where = models, options.prompts, options.out
    chosen = options.parts.split(",") if options.part == "measure" else [options.part]
    for part in chosen:
        if part == "score":
            batch = options.batch or 125
            measure_score(*where, limit=options.limit, steps=options.steps, batch=batch)
        elif part == "robust":
            measure_robustness(*where, limit=options.limit or 120, batch=options.batch or 8)
        elif part == "speed":
            measure_speed(
                *where,
                num_prompts=options.num_prompts,
                tokens=options.tokens,
                repeats=options.repeats,
                rules=() if options.without_rules else STRENGTHS,
            )
        else:
            measure_quality(
                *where,
                way=options.way,
                rules=parse_rules(options.rules.split()) if options.rules else STRENGTHS,
                limit=options.limit,
                batch=options.batch or 64,
                max_new_tokens=options.max_new_tokens,
            )


def _judge(options: argparse.Namespace) -> None:
    from certspec.studies.coder.judging import judge

    judge(options.out, options.prompts, options.workers)


def _tables(options: argparse.Namespace) -> None:
    from certspec.studies.coder.publishing import publish

    for path in publish(options.results, options.out, options.write_readme):
        print(path)


if __name__ == "__main__":
    exit_with(main, "coder")
