"""``certspec score``: scores a draft against its target on prompts. Draws the progress bar and
prints the tables; the work is done by ``certspec.scoring``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.options import load_chosen_pair, pair_options, spread_options
from certspec.cli.report import print_report
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.presets import parse_rules

if TYPE_CHECKING:
    from certspec.runs.shards import Shard

__all__ = ["command", "run_with_progress"]


@click.command("score")
@pair_options
@spread_options
@click.option(
    "--prompts",
    "prompts_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='One prompt a line: .jsonl with "prompt" or "messages", else plain text (default: 128 '
    "bundled).",
)
@click.option(
    "--steps",
    default=96,
    show_default=True,
    type=click.IntRange(min=1),
    help="Greedy steps a prompt, at most.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first prompts of the file.")
@click.option(
    "--rules",
    multiple=True,
    metavar="RULES",
    help='E.g. "strict additive:0.3 tree:4"; may be repeated (default: eight rules and widths).',
)
@click.option(
    "--batch-size",
    default=16,
    show_default=True,
    type=click.IntRange(min=1),
    help="Prompts a forward pass.",
)
@click.option(
    "--plain-prompts", is_flag=True, help="Feed the prompts as they are, without the chat template."
)
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
@click.option(
    "--num-tokens",
    type=click.IntRange(min=1),
    help="Stored logits: only the first N columns are real ids.",
)
@click.option(
    "--draft-length",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Draft length of the observed accepted lengths.",
)
@click.option(
    "--out",
    default=Path("certspec-run"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the run; a run that was stopped there is gone on with.",
)
def command(
    target: str | None,
    draft: str | None,
    device: str | None,
    dtype: str | None,
    device_map: str | None,
    tp_plan: str | None,
    prompts_path: Path | None,
    steps: int,
    limit: int | None,
    rules: tuple[str, ...],
    batch_size: int,
    plain_prompts: bool,
    logits_path: Path | None,
    draft_logits_path: Path | None,
    num_tokens: int | None,
    draft_length: int,
    out: Path,
) -> None:
    """Score a draft against its target on prompts; with --target alone, the target's certificates.

    Decodes every prompt greedily with the target, certifies each step of the draft against it under
    every rule, prints tables, and writes a run folder: steps-*.parquet (one row a step),
    manifest.json, summary.json, summary.md and plots. Without arguments it scores the bundled pair
    on its 128 prompts.

    With --logits no model runs: every stored row is certified as it is.

    Under torchrun (``torchrun --nproc-per-node 2 -m certspec score ...``) the ranks share the
    prompts (or rows)."""
    from certspec.runs.shards import Shard
    from certspec.scoring.prompts import PromptFile

    shard = Shard.from_environment(is_team=tp_plan is not None)
    chosen_rules = parse_rules(rules)
    if logits_path is not None or draft_logits_path is not None:
        if logits_path is None or {
            target,
            draft,
            dtype,
            prompts_path,
            limit,
            device_map,
            tp_plan,
        } != {None}:
            raise InvalidArgument(
                "score: --logits (and --draft-logits) stand instead of models, --prompts and "
                "--limit"
            )
        if _score_stored(
            logits_path, draft_logits_path, out, chosen_rules, num_tokens, device, shard
        ):
            print_report(out, draft_length=draft_length)
        return
    if num_tokens is not None:
        raise InvalidArgument(
            "score: --num-tokens is for --logits; a model's tokenizer tells its ids"
        )
    prompts = PromptFile.check(prompts_path or BUNDLED_PROMPTS)
    if shard.rank == 0:
        click.echo("loading the pair ...", err=True)
    pair = load_chosen_pair(
        target,
        draft,
        shard.device(device),
        dtype,
        target_alone=True,
        device_map=device_map,
        tp_plan=tp_plan,
    )
    for note in pair.notes if shard.rank == 0 else ():
        click.echo(f"note: {note}", err=True)

    from certspec.scoring.run import RunSettings

    settings = RunSettings(chosen_rules, steps, batch_size, limit, not plain_prompts)
    if run_with_progress(pair, prompts, out, settings, shard):
        print_report(out, draft_length=draft_length)


def run_with_progress(pair: Any, prompts: Any, out: Path, settings: Any, shard: Shard) -> bool:
    """Score ``prompts`` into the folder ``out`` under a progress bar, as ``shard``.

    Returns whether the run is whole and this process is to report on it. Exits with 130 when
    interrupted."""
    from certspec.runs.folder import RunFolder
    from certspec.scoring.run import score_run

    return _with_progress(
        out, shard, lambda **told: score_run(pair, prompts, RunFolder(out), settings, **told)
    )


def _score_stored(
    logits: Path,
    draft_logits: Path | None,
    out: Path,
    rules: Any,
    num_tokens: int | None,
    device: str | None,
    shard: Shard,
) -> bool:
    from certspec.models.stored_logits import open_logits
    from certspec.rules import default_rules
    from certspec.runs.folder import RunFolder
    from certspec.scoring.stored_run import score_stored

    target = open_logits(logits)
    draft = None if draft_logits is None else open_logits(draft_logits)
    chosen = rules or tuple(default_rules())
    return _with_progress(
        out,
        shard,
        lambda **told: score_stored(
            target,
            draft,
            RunFolder(out),
            chosen,
            num_tokens=num_tokens,
            device=shard.device(device),
            **told,
        ),
    )


def _with_progress(out: Path, shard: Shard, score: Callable[..., Any]) -> bool:
    with _ProgressBar(shown=shard.rank == 0) as bar:
        try:
            outcome = score(shard=shard, on_start=bar.start, on_advance=bar.advance)
        except KeyboardInterrupt:
            bar.close()
            click.echo(
                f"\nstopped; finished batches are kept in {out}. The same command goes on from "
                "there.",
                err=True,
            )
            sys.exit(130)
    if outcome.resumed and shard.world_size == 1:
        click.echo(f"went on with the run in {out}", err=True)
    if not outcome.is_whole and not shard.is_team:
        click.echo(
            f"rank {shard.rank} of {shard.world_size} is done; the last one prints the tables",
            err=True,
        )
    return bool(outcome.is_whole)


class _ProgressBar:
    """A rich progress bar with the time left on stderr; a line every tenth where stderr is no
    terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed
        from rich.progress import TimeRemainingColumn as Remaining

        console = Console(stderr=True)
        self._progress: Any = None
        self._shown = shown
        if shown and console.is_terminal:
            self._progress = Progress(
                TextColumn("scoring"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("steps"),
                Elapsed(),
                TextColumn("left"),
                Remaining(),
                console=console,
            )
        self._task: Any = None
        self._total = self._done = self._told = 0
        self._began = time.monotonic()

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, total: int) -> None:
        self._total = total
        if self._progress is not None:
            self._task = self._progress.add_task("", total=total)
            self._progress.start()

    def advance(self, num_steps: int) -> None:
        self._done += num_steps
        if self._progress is not None:
            self._progress.update(self._task, advance=num_steps)
        elif self._shown and self._total and 10 * self._done // self._total > self._told:
            self._told = 10 * self._done // self._total
            click.echo(
                f"scored {10 * self._told} % in {time.monotonic() - self._began:.0f} s", err=True
            )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
