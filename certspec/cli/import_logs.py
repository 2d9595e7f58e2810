"""``certspec import``: logs that servers wrote become a run (``certspec.logs``). Prints how each
number is known and what was noticed in the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.options import (
    count_option,
    draft_length_option,
    json_option,
    out_option,
    rules_option,
)
from certspec.cli.report import print_report
from certspec.presets import parse_rules

if TYPE_CHECKING:
    from certspec.logs.import_run import ImportedRun

__all__ = ["command", "import_facts", "print_cases"]

_FORMATS = [
    "auto",
    "openai-chat",
    "openai-completions",
    "openai-responses",
    "ollama",
    "sglang",
    "llama-cpp",
    "vllm",
    "lm-eval",
    "tensors",
]
# Tables and pictures of more take minutes; certspec report makes them.
_REPORTED_POSITIONS = 2_000_000


@click.command("import")
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("draft_log", required=False, type=click.Path(path_type=Path, dir_okay=False))
@out_option("certspec-run", "Folder of the run.")
@click.option(
    "--format",
    "format_",
    default="auto",
    show_default=True,
    type=click.Choice(_FORMATS),
    help="Of LOG.",
)
@click.option(
    "--draft-format",
    default="auto",
    show_default=True,
    type=click.Choice(_FORMATS),
    help="Of DRAFT_LOG.",
)
@rules_option
@click.option(
    "--temperature",
    type=click.FloatRange(min=0.0, min_open=True),
    help="At which the target's logprobs were taken; noted in the run, and compared with what "
    "they show.",
)
@count_option("--num-tokens", default=None, least=2, help="Vocabulary size, where it is known.")
@count_option(
    "--top-logprobs",
    default=None,
    help="How many tokens a position the servers were asked for: a list keyed by text with fewer "
    "lost some.",
)
@click.option(
    "--text-keys-are-tokens",
    is_flag=True,
    help="No two tokens have the same text: no list keyed by text lost one, and positions of two "
    "logs that know tokens by text alone are certified.",
)
@draft_length_option()
@json_option
def command(
    log: Path,
    draft_log: Path | None,
    out: Path,
    format_: str,
    draft_format: str,
    rules: tuple[str, ...],
    temperature: float | None,
    num_tokens: int | None,
    top_logprobs: int | None,
    text_keys_are_tokens: bool,
    draft_length: int,
    as_json: bool,
) -> None:
    """Turn LOG, a target's logprobs as a server wrote them, into a run; DRAFT_LOG holds a draft's
    for the same tokens.

    Certificates need the target alone. A truncated list certifies only what it allows: each row of
    the run says which case it is, and numbers that are lower bounds are marked."""
    from certspec.logs.import_run import import_logs
    from certspec.logs.stated import Stated
    from certspec.runs.folder import RunFolder
    from certspec.runs.writing import write_atomically

    run = import_logs(
        log,
        draft_log,
        out,
        format=format_,
        draft_format=draft_format,
        rules=parse_rules(rules),
        stated=Stated(
            temperature=temperature,
            num_tokens=num_tokens,
            top_logprobs=top_logprobs,
            text_keys_are_tokens=text_keys_are_tokens,
        ),
    )
    facts = json.dumps(import_facts(run), indent=2)
    # Another import of these logs into this folder, for no other is let in, may be replacing the
    # run: its manifest is gone for a moment.
    with RunFolder(out).locked(wait=True):
        write_atomically(out / "import.json", facts + "\n")
        if as_json:
            click.echo(facts)
            return
        if run.num_positions <= _REPORTED_POSITIONS:
            print_report(out, draft_length=draft_length)
        else:
            click.echo(
                f"{out}: {run.num_positions:,} positions; certspec report {out} makes tables and "
                "pictures"
            )
    print_cases(run)


def print_cases(run: ImportedRun) -> None:
    """Print how each number of an imported run is known, and what was noticed in the logs."""
    from certspec.certificates.lumped import CASES, Case

    click.echo(f"\n{run.num_positions:,} positions; how each number is known:")
    for index, rule in enumerate(run.rules):
        click.echo(f"  {rule.label}")
        for counts in (run.certificate_cases[index], run.decision_cases[index])[
            : 1 + (run.draft_findings is not None)
        ]:
            for case, count in zip(CASES, counts, strict=True):
                if count:
                    click.echo(f"    {100 * count / run.num_positions:5.1f} %  {case.value}")
    for label, why in run.refused_rules.items():
        click.echo(f"refused: {label}: {why}")
    for name, findings in (("target", run.findings), ("draft", run.draft_findings)):
        for line in findings.lines() if findings is not None else ():
            click.echo(f"warning ({name} log): {line}")
    if run.certificate_cases[:, CASES.index(Case.INTERVAL)].sum() and not run.knows_num_tokens:
        click.echo(
            "hint: an entropy threshold is known more closely with --num-tokens, the size of the "
            "vocabulary"
        )
    server = run.findings.server
    if server.num_spec_steps:
        click.echo(
            f"the server's own counters: {server.num_accepted_draft_tokens:,} of "
            f"{server.num_draft_tokens:,} draft tokens accepted in {server.num_spec_steps:,} "
            f"verify steps, {server.mean_acceptance_length:.3f} tokens a step"
        )
    temperature = run.findings.temperature
    if temperature is not None:
        click.echo(
            f"the target's logprobs fit bfloat16 logits at temperature {temperature:g} (up to a "
            "power of two)"
        )


def import_facts(run: ImportedRun) -> dict[str, object]:
    """The same as JSON values."""
    from certspec.certificates.lumped import CASES

    def named(counts: Any) -> list[dict[str, int]]:
        return [
            {case.name.lower(): int(n) for case, n in zip(CASES, row, strict=True) if n}
            for row in counts
        ]

    return {
        "num_positions": run.num_positions,
        "rules": [rule.label for rule in run.rules],
        "refused_rules": run.refused_rules,
        "certificate_cases": named(run.certificate_cases),
        "decision_cases": named(run.decision_cases) if run.draft_findings is not None else None,
        "num_certified": run.num_certified.tolist() if run.draft_findings is not None else None,
        "temperature_of_the_grid": run.findings.temperature,
        "server_counters": vars(run.findings.server),
        "findings": run.findings.as_json(),
        "draft_findings": None if run.draft_findings is None else run.draft_findings.as_json(),
    }
