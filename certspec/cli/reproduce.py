"""``certspec reproduce``: the paper's protocol, and its figures beside ours. A drawn sample of
prompts is scored as ``certspec score`` would."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from certspec.cli.options import (
    PairOptions,
    batch_size_option,
    count_option,
    json_option,
    limit_option,
    load_chosen_pair,
    out_option,
    pair_options_of,
    plain_prompts_option,
    prompts_option,
    spread_options,
)
from certspec.cli.score import run_with_progress
from certspec.cli.terminal import print_tables
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.runs.writing import require_writable_folder

__all__ = ["command"]

_TARGET = "Qwen/Qwen3-1.7B"


@click.command("reproduce")
@pair_options_of(_TARGET)
@spread_options
@click.option(
    "--bundled",
    is_flag=True,
    help="The bundled pair on its own prompts: the protocol without its models.",
)
@prompts_option(
    'Instead of UltraChat-200k from the hub: a prompt file, or Parquet with a column "prompt".'
)
@limit_option("Prompts drawn.", default=500)
@count_option("--min-tokens", default=64, help="Tokens of each, at least.")
@count_option("--steps", default=128, help="Greedy steps a prompt.")
@click.option("--seed", default=0, show_default=True, help="Of the draw.")
@batch_size_option
@plain_prompts_option
@out_option("certspec-reproduction", "Folder of the run; it is gone on with.")
@json_option
def command(
    bundled: bool,
    prompts_path: Path | None,
    limit: int,
    min_tokens: int,
    steps: int,
    seed: int,
    batch_size: int,
    plain_prompts: bool,
    out: Path,
    as_json: bool,
    **models: Any,
) -> None:
    """Run the paper's protocol: 500 UltraChat prompts of at least 64 tokens, 128 greedy steps, its
    rules.

    Needs the target alone (default Qwen/Qwen3-1.7B; the paper's other one is Qwen/Qwen3-4B); with
    --draft it scores that draft as well. Prints the paper's figures, ours and the differences."""
    from certspec.runs.shards import Shard
    from certspec.scoring.prompts import PromptFile
    from certspec.scoring.run import RunSettings
    from certspec.studies.paper.paper import MIN_TOKENS, NUM_PROMPTS, STEPS, paper_rules
    from certspec.studies.paper.prompts import download_prompts, sample_prompts, write_sample

    if bundled and {models["target"], models["draft"], models["tokenizer"]} != {None}:
        raise InvalidArgument(
            "reproduce: expected --bundled or models (--target, --draft, --tokenizer), got both"
        )
    source = prompts_path or (BUNDLED_PROMPTS if bundled else download_prompts())
    chosen = PairOptions(**models)
    shard = Shard.from_environment(is_team=chosen.tp_plan is not None)
    both = {"target": None, "draft": None} if bundled else {"target": chosen.target or _TARGET}
    chosen = replace(chosen, device=shard.device(chosen.device), **both)
    if shard.writes:
        require_writable_folder(out)
    pair = load_chosen_pair(chosen, target_alone=True, shown=shard.rank == 0)
    texts = sample_prompts(
        source, pair.tokenizer, num_prompts=limit, min_tokens=min_tokens, seed=seed
    )
    prompts = PromptFile.check(write_sample(out, texts))
    settings = RunSettings(tuple(paper_rules()), steps, batch_size, None, not plain_prompts)
    if run_with_progress(pair, prompts, out, settings, shard):
        deviations = _deviating_models(out)
        deviations += [f"prompts from {source.name}"] if bundled or prompts_path else []
        deviations += ["prompts without the chat template"] if plain_prompts else []
        deviations += [
            f"{ours} {name} instead of {theirs}"
            for name, ours, theirs in (
                ("prompts", limit, NUM_PROMPTS),
                ("tokens a prompt at least", min_tokens, MIN_TOKENS),
                ("steps", steps, STEPS),
            )
            if ours != theirs
        ]
        _print(out, deviations, as_json=as_json)


def _deviating_models(out: Path) -> list[str]:
    from certspec.runs.folder import RunFolder

    identity = RunFolder(out).manifest()["settings"]["target"]["id"]
    if "Qwen3-1.7B" in identity or "Qwen3-4B" in identity:
        return []
    return [f"the target is {'/'.join(Path(identity).parts[-2:])}"]


def _print(out: Path, deviations: list[str], *, as_json: bool) -> None:
    from certspec.reports.run_page import write_report
    from certspec.reports.run_report import make_report
    from certspec.runs.tables import render_markdown
    from certspec.runs.writing import write_atomically
    from certspec.studies.paper.comparison import comparison_json, comparison_table

    report: Any = make_report(out)
    table = comparison_table(report.summary, deviations)
    text = json.dumps(comparison_json(report.summary, deviations), indent=2)
    write_atomically(out / "reproduction.json", text + "\n")
    write_atomically(out / "reproduction.md", render_markdown([table]))
    page = write_report(out, report).files[0]
    if as_json:
        click.echo(text)
        return
    print_tables([table])
    click.echo("")
    click.echo(f"{out}: reproduction.json, reproduction.md; all tables and pictures: {page}")
