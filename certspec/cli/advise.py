"""``certspec advise``: which rule, width and draft length are fastest at given costs, from a run's
recorded steps (``certspec.reports.advising``). Needs neither torch nor a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.options import (
    Count,
    count_option,
    json_file_option,
    json_option,
    numbers_option,
    tell_and_write,
)
from certspec.cli.terminal import print_tables
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED

if TYPE_CHECKING:
    from certspec.reports.advising.advice import Advice, Candidate
    from certspec.reports.advising.costs import Costs

__all__ = ["command"]


@click.command("advise")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--draft-ms", type=float, metavar="MS", help="A draft step.")
@click.option(
    "--verify-ms",
    metavar="N=MS,...",
    help='Verify steps by positions, "1=7.6,5=8.0"; 1 is no draft at all.',
)
@click.option(
    "--overhead-ms", type=float, metavar="MS", help="What else a round takes (default: 0)."
)
@click.option(
    "--costs",
    "costs_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help='JSON instead, with "draft_step_ms" and "verify_ms" (as "certspec bench decode" prints '
    "them).",
)
@click.option(
    "--max-nats-lost",
    default=0.02,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="Quality limit: log-probability that relaxed rules may give up, nats a token.",
)
@count_option("--max-length", default=12, most=64, help="Longest draft tried.")
@numbers_option("--widths", default="2,3,4,6,8", help="Tree widths tried beside those in the run.")
@click.option(
    "--neighbours",
    type=Count(min=1),
    metavar="N",
    help="Print the N fastest ways instead of the fastest of each kind.",
)
@json_file_option
@json_option
def command(
    run: Path,
    draft_ms: float | None,
    verify_ms: str | None,
    overhead_ms: float | None,
    costs_path: Path | None,
    max_nats_lost: float,
    max_length: int,
    widths: list[int],
    neighbours: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Rank rules, tree widths, draft lengths and KL budgets of RUN by tokens per second.

    Replays the recorded steps (accepted drafts come in streaks, so averages would mislead) at the
    costs you give."""
    from certspec.reports.advising.advice import advise
    from certspec.reports.advising.engine_options import ENGINES
    from certspec.runs.guarantees import measure_guarantees
    from certspec.runs.stream import open_run

    costs = _costs(draft_ms, verify_ms, overhead_ms, costs_path)
    table = open_run(run)
    guaranteed = measure_guarantees(table, max_length)
    advice = advise(
        table, costs, lengths=range(1, max_length + 1), widths=widths, max_nats_lost=max_nats_lost
    )
    if not advice.candidates:
        raise InvalidArgument(
            f"advise: no rule of the run stays within {max_nats_lost:g} nats lost a token"
        )
    settings = table.manifest.get("settings", {})
    models = [_elsewhere((settings.get(role) or {}).get("id")) for role in ("target", "draft")]
    best = advice.candidates[0]
    options = {engine: _best_of(advice, engine, models) for engine in ENGINES}
    found = _json(advice, best, options)
    found["sampled_acceptance_at_least"] = guaranteed and guaranteed.sampled
    text = json.dumps(found, indent=2)

    def tell() -> None:
        if as_json:
            click.echo(text)
            return
        _print(advice, options, neighbours, max_nats_lost)
        if guaranteed is not None:
            click.echo(
                f"  sampled at temperature 1: at least {100 * guaranteed.sampled:.1f} % of the "
                "draft's tokens are accepted on these steps\n  (each with 1 - total variation: a "
                "draft trained on that may do better than its KL says)"
            )

    tell_and_write(text, out, tell)


def _elsewhere(model: str | None) -> str | None:
    """None for a bundled model: its folder here is nowhere on the machine that serves."""
    is_bundled = model is not None and Path(model).parent.parts[-3:] == BUNDLED.parts[-3:]
    return None if is_bundled else model


def _best_of(advice: Advice, engine: str, models: list[str | None]) -> str:
    """The engine's options for the fastest way that it has; where that isn't the choice, its reason
    comes first."""
    from certspec.reports.advising.engine_options import engine_options, has_options

    target, draft = models
    lines = (
        engine_options(each.rule, each.draft_length, target, draft, each.kl_budget)[engine]
        for each in advice.candidates
    )
    first = next(lines)
    if has_options(first):
        return first
    for each, line in zip(advice.candidates[1:], lines, strict=False):
        if has_options(line):
            speed = f"{each.tokens_per_second:.1f} tokens/s"
            return f"{first}. Fastest that it has: {each.name}, {speed}: {line}"
    return first


def _costs(
    draft_ms: float | None, verify_ms: str | None, overhead_ms: float | None, path: Path | None
) -> Costs:
    from certspec.reports.advising.costs import Costs, parse_verify, read_costs

    if path is not None:
        if {draft_ms, verify_ms, overhead_ms} != {None}:
            raise InvalidArgument(
                "advise: expected --costs or --draft-ms with --verify-ms (and --overhead-ms), got "
                "both"
            )
        return read_costs(path)
    if draft_ms is None or verify_ms is None:
        raise InvalidArgument("advise: expected --draft-ms and --verify-ms, or --costs FILE")
    return Costs(draft_ms, parse_verify(verify_ms), overhead_ms or 0.0)


def _shown(advice: Advice, neighbours: int | None) -> list[Candidate]:
    """The fastest way of each kind, or of all ways the first few."""
    if neighbours is not None:
        return list(advice.candidates[:neighbours])
    return advice.of_each_kind()


def _print(advice: Advice, options: dict[str, str], neighbours: int | None, limit: float) -> None:
    from certspec.runs.tables import TextTable, spell_nats

    lossless = next((each for each in advice.candidates if each.nats_lost_per_token == 0.0), None)
    shown = _shown(advice, neighbours)
    if lossless is not None and lossless not in shown:
        shown.append(lossless)
    rows = tuple(
        (
            each.name,
            str(each.draft_length),
            str(each.num_nodes) + ("*" if each.is_beyond_costs else ""),
            f"{each.tokens_per_second:.1f}",
            f"{each.interval[0]:.1f}-{each.interval[1]:.1f}",
            f"{each.certified_tokens_per_second:.1f}",
            f"{each.speedup:.2f}",
            f"{each.tokens_per_round:.2f}",
            spell_nats(each.nats_lost_per_token),
        )
        for each in shown
    )
    note = (
        f"Without a draft: {advice.plain_tokens_per_second:.1f} tokens/s. Tokens/s and their 90 % "
        "interval over prompts are predictions: the recorded steps, replayed. Certified: if "
        "nothing but certified tokens were accepted, a lower bound on these steps. Relaxed rules "
        "are replayed along the target's own text."
    )
    if advice.num_over_limit:
        over = f"give up more than {limit:g} nats a token"
        note += f" Left out: {advice.num_over_limit} ways that {over}."
    if advice.num_unknown_loss:
        note += f" Left out: {advice.num_unknown_loss} ways whose loss the log doesn't tell."
    if any(each.kl_budget is not None for each in shown):
        note += (
            " Within a KL budget: a chain of at most that length ends with the first token whose "
            "drafter-side certificate is not above the budget."
        )
    if any(each.is_beyond_costs for each in shown):
        note += " *: more positions than the given verify costs, extrapolated."
    columns = (
        "rule",
        "length",
        "nodes",
        "tokens/s",
        "90 %",
        "certified",
        "speed-up",
        "tokens/round",
        "nats lost",
    )
    title = "Fastest ways to draft" if neighbours else "Fastest way of each kind to draft"
    print_tables([TextTable(title, columns, rows, note)])
    click.echo("")
    best = advice.candidates[0]
    if best.speedup <= 1.0:
        click.echo("At these costs no draft pays: decode without one.\n")
    click.echo(f"choice: {best.name}, draft length {best.draft_length}")
    for engine, line in options.items():
        click.echo(f"  {engine}: {line}")


def _json(advice: Advice, best: Candidate, options: dict[str, str]) -> dict[str, Any]:
    def flat(each: Candidate) -> dict[str, Any]:
        return vars(each) | {"rule": each.rule.label, "interval": list(each.interval)}

    return {
        "choice": flat(best),
        "options": options,
        "plain_tokens_per_second": advice.plain_tokens_per_second,
        "num_over_limit": advice.num_over_limit,
        "num_unknown_loss": advice.num_unknown_loss,
        "candidates": [flat(each) for each in advice.candidates],
    }
