"""``certspec numerics``: how far a target's logits differ between two numerics, and which decisions
of a draft that could turn."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from certspec.cli.interrupts import ended_by_interrupts
from certspec.cli.options import (
    PairOptions,
    batch_size_option,
    count_option,
    json_file_option,
    json_option,
    limit_option,
    load_chosen_pair,
    pair_options,
    plain_prompts_option,
    prompts_option,
    rules_option,
    tell_and_write,
)
from certspec.cli.progress import ProgressBar
from certspec.cli.terminal import print_tables
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.presets import parse_rules
from certspec.studies.waiting import compiling

__all__ = ["command"]


@dataclass(frozen=True, kw_only=True)
class _Options(PairOptions):
    """What the command was given; an option a field."""

    runs: tuple[Path, ...]
    prompts_path: Path | None
    steps: int
    limit: int | None
    rules: tuple[str, ...]
    batch_size: int
    plain_prompts: bool
    other_dtype: str | None
    other_device: str | None
    other_batch_size: int | None
    errors: tuple[float, ...]
    out: Path | None
    as_json: bool


class _Errors(click.ParamType):
    """Numbers of nats of at least 0, ".01,.05", as a tuple."""

    name = "nats"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            numbers = ()
        if not numbers or not all(0 <= number < float("inf") for number in numbers):
            self.fail(f"expected nats of at least 0 like .01,.05, got {value!r}", param, ctx)
        return numbers


@click.command("numerics")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN_A RUN_B]")
@pair_options
@prompts_option('One prompt a line: .jsonl with "prompt" or "messages" (default: bundled ones).')
@count_option("--steps", default=96, help="Greedy steps a prompt, at most.")
@limit_option()
@rules_option
@batch_size_option
@plain_prompts_option
@click.option(
    "--other-dtype",
    metavar="NAME",
    help="The other numerics (default: bfloat16, unless another is named below).",
)
@click.option("--other-device", metavar="NAME", help="Where the other runs (default: the same).")
@count_option("--other-batch-size", default=None, help="Prompts a pass of the other.")
@click.option(
    "--errors",
    type=_Errors(),
    default="0.01,0.05,0.12,0.3",
    show_default=True,
    metavar="NATS,...",
    help="Errors of the logits to tell the certified share at.",
)
@json_file_option
@json_option
def command(**given: Any) -> None:
    """Measure how far logits differ between two numerics, and which decisions that could turn.

    With two run folders of the same prompts (float32 and bfloat16, batch 1 and 8, two servers'
    logs) they are compared up to where their texts part, on the tokens that both list; the first
    one's column "reach" (certspec score --reach) says what is certified within an error.

    Without, a target (default: the bundled pair) decodes the prompts in float32 and scores the same
    text in bfloat16 (or as --other-... says): the error of all its logits."""
    options = _Options(**given)
    from certspec.runs.numerics import numerics_tables, summarise_numerics

    found = _from_runs(options) if options.runs else _from_models(options)
    summary = summarise_numerics(found, options.errors)
    text = json.dumps(summary, indent=2, allow_nan=False)

    def tell() -> None:
        if options.as_json:
            click.echo(text)
        else:
            print_tables(numerics_tables(found, summary))

    tell_and_write(text, options.out, tell)


def _from_runs(options: _Options) -> Any:
    from certspec.runs.numerics import compare_numerics

    models = (options.target, options.draft, options.tokenizer, options.device, options.dtype)
    others = (options.other_dtype, options.other_device, options.other_batch_size)
    if len(options.runs) != 2 or {*models, *others, options.prompts_path, options.limit} != {None}:
        raise InvalidArgument(
            "numerics: expected two run folders, or models and their options, got "
            f"{' '.join(map(str, options.runs))} and options of the other way"
            if len(options.runs) == 2
            else f"numerics: expected two run folders or none, got {len(options.runs)}"
        )
    return compare_numerics(*options.runs)


def _from_models(options: _Options) -> Any:
    from certspec.scoring.prompts import PromptFile

    prompts = PromptFile.check(options.prompts_path or BUNDLED_PROMPTS)
    rules = parse_rules(options.rules)
    pair = load_chosen_pair(options, target_alone=True)
    chosen = (options.other_dtype, options.other_device, options.other_batch_size)
    other_dtype = options.other_dtype or ("bfloat16" if chosen == (None,) * 3 else options.dtype)
    other = pair
    if other_dtype != options.dtype or options.other_device is not None:
        device = options.other_device or options.device
        other = load_chosen_pair(
            replace(options, dtype=other_dtype, device=device), target_alone=True
        )

    from certspec.scoring.numerics import measure_numerics
    from certspec.scoring.run import RunSettings

    settings = RunSettings(
        rules, options.steps, options.batch_size, options.limit, not options.plain_prompts
    )
    with ended_by_interrupts("stopped"), ProgressBar("compar", "steps") as bar, compiling():
        return measure_numerics(
            pair,
            other,
            prompts,
            settings,
            other_batch_size=options.other_batch_size,
            on_start=bar.start,
            on_advance=bar.advance,
        )
