"""``certspec score``: scores a draft against its target on prompts, or two files of stored logits,
under a progress bar, and prints the tables of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.interrupts import ended_by_interrupts
from certspec.cli.options import (
    PairOptions,
    batch_size_option,
    count_option,
    draft_length_option,
    json_option,
    limit_option,
    load_chosen_pair,
    out_option,
    pair_options,
    plain_prompts_option,
    prompts_option,
    rules_option,
    say_engine,
    spread_options,
)
from certspec.cli.progress import ProgressBar
from certspec.cli.report import print_report
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.presets import parse_rules
from certspec.runs.writing import require_writable_folder
from certspec.studies.waiting import compiling, waiting

if TYPE_CHECKING:
    from certspec.rules import Rule
    from certspec.runs.shards import Shard

__all__ = ["command", "run_with_progress"]


@dataclass(frozen=True, kw_only=True)
class _Options(PairOptions):
    """What the command was given; an option a field."""

    prompts_path: Path | None
    steps: int
    limit: int | None
    rules: tuple[str, ...]
    batch_size: int
    plain_prompts: bool
    logits_path: Path | None
    draft_logits_path: Path | None
    num_tokens: int | None
    reach: bool
    draft_length: int
    out: Path
    as_json: bool


# What only models and their prompts read.
_OF_MODELS = (
    "target",
    "draft",
    "tokenizer",
    "dtype",
    "device_map",
    "tp_plan",
    "prompts_path",
    "limit",
    "steps",
    "batch_size",
    "plain_prompts",
)


@click.command("score")
@pair_options
@spread_options
@prompts_option(
    'One prompt a line: .jsonl with "prompt" or "messages", else plain text (default: 128 bundled).'
)
@count_option("--steps", default=96, help="Greedy steps a prompt, at most.")
@limit_option()
@rules_option
@batch_size_option
@plain_prompts_option
@click.option(
    "--logits",
    "logits_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Instead of a target: its logits, stored as .npy or .safetensors, or a folder of such "
    "shards.",
)
@click.option(
    "--draft-logits",
    "draft_logits_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The draft's, likewise.",
)
@count_option(
    "--num-tokens", default=None, help="Stored logits: only the first N columns are real ids."
)
@click.option(
    "--reach",
    is_flag=True,
    help="Also tell how far a server's logits may be off before a step is no longer certified; "
    "about doubles the time.",
)
@draft_length_option()
@out_option("certspec-run", "Folder of the run; a run that was stopped there is gone on with.")
@json_option
def command(**given: Any) -> None:
    """Score a draft against its target on prompts; with --target alone, the target's certificates.

    Decodes every prompt greedily with the target, certifies each step of the draft against it under
    every rule, prints tables, and writes a run folder: steps-*.parquet (one row a step),
    manifest.json, summary.json, summary.md and plots. Without arguments it scores the bundled pair
    on its 128 prompts.

    With --logits no model runs: every stored row is certified as it is.

    Under torchrun (``torchrun --nproc-per-node 2 -m certspec score ...``) the ranks share the
    prompts (or rows)."""
    from certspec.runs.shards import Shard

    options = _Options(**given)
    shard = Shard.from_environment(is_team=options.tp_plan is not None)
    rules = parse_rules(options.rules)
    is_stored = options.logits_path is not None or options.draft_logits_path is not None
    score = _score_stored if is_stored else _score_prompts
    if score(replace(options, device=shard.device(options.device)), rules, shard):
        with waiting("making tables and pictures"):
            print_report(options.out, draft_length=options.draft_length, as_json=options.as_json)


def _score_prompts(options: _Options, rules: tuple[Rule, ...], shard: Shard) -> bool:
    from certspec.scoring.prompts import PromptFile

    if options.num_tokens is not None:
        raise InvalidArgument(
            "score: --num-tokens is for --logits; a model's tokenizer tells its ids"
        )
    prompts = PromptFile.check(options.prompts_path or BUNDLED_PROMPTS)
    if shard.writes:
        require_writable_folder(options.out)
    pair = load_chosen_pair(options, target_alone=True, shown=shard.rank == 0)

    from certspec.scoring.run import RunSettings

    settings = RunSettings(
        rules,
        options.steps,
        options.batch_size,
        options.limit,
        not options.plain_prompts,
        options.reach,
    )
    return run_with_progress(pair, prompts, options.out, settings, shard)


def run_with_progress(pair: Any, prompts: Any, out: Path, settings: Any, shard: Shard) -> bool:
    """Score ``prompts`` into the folder ``out`` under a progress bar, as ``shard``.

    Returns whether the run is whole and this process is to report on it. Exits with 130 when
    interrupted."""
    from certspec.runs.folder import RunFolder
    from certspec.scoring.run import score_run, scoring_engine

    if shard.rank == 0:
        say_engine(pair, *scoring_engine(pair))
    return _with_progress(
        out, shard, lambda **told: score_run(pair, prompts, RunFolder(out), settings, **told)
    )


def _score_stored(options: _Options, rules: tuple[Rule, ...], shard: Shard) -> bool:
    if options.logits_path is None:
        raise InvalidArgument("score: --draft-logits is for --logits, the target's")
    source = click.get_current_context().get_parameter_source
    given = [name for name in _OF_MODELS if source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise InvalidArgument(
            "score: --logits (and --draft-logits) stand instead of models and prompts; not read "
            "there: "
            + ", ".join("--" + name.removesuffix("_path").replace("_", "-") for name in given)
        )
    from certspec.models.stored_logits import open_logits
    from certspec.rules import default_rules
    from certspec.runs.folder import RunFolder
    from certspec.scoring.stored_run import score_stored

    target = open_logits(options.logits_path)
    draft = None if options.draft_logits_path is None else open_logits(options.draft_logits_path)
    chosen = rules or tuple(default_rules())
    where: dict[str, Any] = {"num_tokens": options.num_tokens, "device": options.device}
    where["reach"] = options.reach
    folder = RunFolder(options.out)
    is_whole = _with_progress(
        options.out,
        shard,
        lambda **told: score_stored(target, draft, folder, chosen, **where, **told),
    )
    for note in folder.manifest().get("notes", ()) if is_whole else ():
        click.echo(f"note: {note}", err=True)
    return is_whole


def _with_progress(out: Path, shard: Shard, score: Callable[..., Any]) -> bool:
    shown = shard.rank == 0
    stopped = f"stopped; finished batches are kept in {out}. The same command goes on from there."
    with (
        ended_by_interrupts(stopped),
        ProgressBar("scor", "steps", shown=shown) as bar,
        compiling(shown=shown),
    ):
        outcome = score(shard=shard, on_start=bar.start, on_advance=bar.advance)
    if outcome.resumed and shard.world_size == 1:
        click.echo(f"went on with the run in {out}", err=True)
    if not outcome.is_whole and not shard.is_team:
        click.echo(
            f"rank {shard.rank} of {shard.world_size} is done; the last one prints the tables",
            err=True,
        )
    return bool(outcome.is_whole)
