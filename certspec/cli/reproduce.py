"""``certspec reproduce``: the paper's protocol, and its figures beside ours. Draws samples and
prints; scoring is that of ``certspec score``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from certspec.cli.options import load_chosen_pair, pair_options, spread_options
from certspec.cli.score import run_with_progress
from certspec.models import BUNDLED_PROMPTS

__all__ = ["command"]

_TARGET = "Qwen/Qwen3-1.7B"


@click.command("reproduce")
@pair_options
@spread_options
@click.option(
    "--bundled",
    is_flag=True,
    help="The bundled pair on its own prompts: the protocol without its models.",
)
@click.option(
    "--prompts",
    "prompts_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Instead of UltraChat-200k from the hub: a prompt file, or Parquet with a column "
    '"prompt".',
)
@click.option(
    "--num-prompts",
    default=500,
    show_default=True,
    type=click.IntRange(min=1),
    help="Prompts drawn.",
)
@click.option(
    "--min-tokens",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Tokens of each, at least.",
)
@click.option(
    "--steps",
    default=128,
    show_default=True,
    type=click.IntRange(min=1),
    help="Greedy steps a prompt.",
)
@click.option("--seed", default=0, show_default=True, help="Of the draw.")
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
    "--out",
    default=Path("certspec-reproduction"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the run; it is gone on with.",
)
def command(
    target: str | None,
    draft: str | None,
    device: str | None,
    dtype: str | None,
    device_map: str | None,
    tp_plan: str | None,
    bundled: bool,
    prompts_path: Path | None,
    num_prompts: int,
    min_tokens: int,
    steps: int,
    seed: int,
    batch_size: int,
    plain_prompts: bool,
    out: Path,
) -> None:
    """Run the paper's protocol: 500 UltraChat prompts of at least 64 tokens, 128 greedy steps, its
    rules.

    Needs the target alone (default Qwen/Qwen3-1.7B; the paper's other one is Qwen/Qwen3-4B); with
    --draft it scores that draft as well. Prints the paper's figures, ours and the differences."""
    from certspec.runs.shards import Shard
    from certspec.scoring.prompts import PromptFile
    from certspec.scoring.run import RunSettings
    from certspec.studies.paper.paper import paper_rules
    from certspec.studies.paper.prompts import download_prompts, sample_prompts, write_sample

    source = prompts_path
    if bundled:
        source = source or BUNDLED_PROMPTS
    elif source is None:
        source = download_prompts()
    target, draft = (None, None) if bundled else (target or _TARGET, draft)
    shard = Shard.from_environment(is_team=tp_plan is not None)
    pair = load_chosen_pair(
        target,
        draft,
        shard.device(device),
        dtype,
        target_alone=True,
        device_map=device_map,
        tp_plan=tp_plan,
    )
    texts = sample_prompts(
        source, pair.tokenizer, num_prompts=num_prompts, min_tokens=min_tokens, seed=seed
    )
    prompts = PromptFile.check(write_sample(out, texts))
    settings = RunSettings(tuple(paper_rules()), steps, batch_size, None, not plain_prompts)
    if run_with_progress(pair, prompts, out, settings, shard):
        _print(
            out,
            _deviations(
                out,
                source.name if bundled or prompts_path else None,
                num_prompts,
                min_tokens,
                steps,
            ),
        )


def _deviations(
    out: Path, prompts_name: str | None, num_prompts: int, min_tokens: int, steps: int
) -> list[str]:
    from certspec.runs.folder import RunFolder
    from certspec.studies.paper.paper import MIN_TOKENS, NUM_PROMPTS, STEPS

    identity = RunFolder(out).manifest()["settings"]["target"]["id"]
    found = (
        []
        if "Qwen3-1.7B" in identity or "Qwen3-4B" in identity
        else [f"the target is {'/'.join(Path(identity).parts[-2:])}"]
    )
    found += [] if prompts_name is None else [f"prompts from {prompts_name}"]
    protocol = (
        ("prompts", num_prompts, NUM_PROMPTS),
        ("tokens a prompt at least", min_tokens, MIN_TOKENS),
        ("steps", steps, STEPS),
    )
    for name, ours, theirs in protocol:
        found += [f"{ours} {name} instead of {theirs}"] if ours != theirs else []
    return found


def _print(out: Path, deviations: list[str]) -> None:
    from certspec.reports.run_page import write_report
    from certspec.reports.run_report import make_report
    from certspec.runs.folder import write_atomically
    from certspec.runs.tables import render_markdown, render_plain
    from certspec.studies.paper.comparison import comparison_json, comparison_table

    report: Any = make_report(out)
    table = comparison_table(report.summary, deviations)
    write_atomically(
        out / "reproduction.json",
        json.dumps(comparison_json(report.summary, deviations), indent=2) + "\n",
    )
    write_atomically(out / "reproduction.md", render_markdown([table]))
    page, *_ = write_report(out, report)
    click.echo(render_plain([table]))
    click.echo(f"{out}: reproduction.json, reproduction.md; all tables and pictures: {page}")
