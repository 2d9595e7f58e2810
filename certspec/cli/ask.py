"""``certspec ask``: prompts go to a live server, and a run comes out (``certspec.logs.asking``).
Prints what would be certified of drafts that stay within a divergence."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.import_logs import import_facts, print_cases
from certspec.cli.interrupts import ended_by_interrupts
from certspec.cli.options import (
    count_option,
    draft_length_option,
    json_option,
    limit_option,
    out_option,
    plain_prompts_option,
    prompts_option,
    rules_option,
)
from certspec.cli.progress import ProgressBar
from certspec.cli.report import print_report
from certspec.cli.terminal import print_tables
from certspec.errors import RunMismatch
from certspec.models import BUNDLED_PROMPTS
from certspec.presets import parse_rule, parse_rules

if TYPE_CHECKING:
    from certspec.logs.asking import Asked
    from certspec.scoring.prompts import PromptFile

__all__ = ["command"]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What the command was given; an option a field."""

    url: str
    model: str | None
    draft_url: str | None
    draft_model: str | None
    prompts_path: Path | None
    max_new_tokens: int
    limit: int | None
    top_logprobs: int
    plain_prompts: bool
    concurrency: int
    retries: int
    rules: tuple[str, ...]
    draft_length: int
    out: Path
    as_json: bool


@click.command("ask")
@click.argument("url")
@click.option("--model", metavar="NAME", help="The target's name there (default: the only one).")
@click.option(
    "--draft-url",
    metavar="URL",
    help="A draft's server: it scores the target's tokens (both must be vLLM's).",
)
@click.option("--draft-model", metavar="NAME", help="The draft's name there.")
@prompts_option(
    'One prompt a line: .jsonl with "prompt" or "messages", else plain text (default: 128 bundled).'
)
@count_option("--max-new-tokens", default=96, help="Tokens an answer, at most.")
@limit_option("Ask only the first prompts of the file.")
@count_option("--top-logprobs", default=20, help="Most probable tokens a position.")
@plain_prompts_option
@count_option("--concurrency", default=4, most=1024, help="Prompts under way at once.")
@count_option(
    "--retries", default=8, least=0, help="Of a failed request, waiting longer each time."
)
@rules_option
@draft_length_option()
@out_option("certspec-run", "Folder of the run; what was answered there is not asked again.")
@json_option
def command(**given: Any) -> None:
    """Ask the OpenAI-compatible server at URL (vLLM, SGLang, llama.cpp, OpenAI) for greedy answers
    to prompts, with the most probable tokens of each position, and make a run of them.

    Certificates need the target alone, so this certifies models that can't be downloaded. API keys
    are read from OPENAI_API_KEY, and of a draft's server from CERTSPEC_DRAFT_API_KEY; they are
    written nowhere. A command that was stopped goes on where it was. The answers stay in
    OUT/answers, which "certspec import" reads as well."""
    from certspec.logs.import_run import import_logs
    from certspec.logs.stated import Stated
    from certspec.runs.folder import RunFolder
    from certspec.runs.writing import write_atomically
    from certspec.scoring.prompts import PromptFile

    options = _Options(**given)
    rules = parse_rules(options.rules)
    prompts = PromptFile.check(options.prompts_path or BUNDLED_PROMPTS)
    folder, answers = RunFolder(options.out), options.out / "answers"
    with folder.locked():  # to the end: another command's answers would change this one's logs
        if folder.manifest_path.exists() and not answers.exists():
            raise RunMismatch(
                f"{options.out}: holds a run that was not asked of a server; pass another folder "
                "with --out"
            )
        asked = _ask(options, prompts, answers)
        # only what was asked of completions may come keyed by text
        stated = Stated(top_logprobs=options.top_logprobs if options.plain_prompts else None)
        logs = asked.target_log, asked.draft_log
        # other rules, or more prompts, make another run
        run = import_logs(*logs, folder, rules=rules, stated=stated, replace=True)
        facts = import_facts(run)
        write_atomically(options.out / "import.json", json.dumps(facts, indent=2) + "\n")
        if options.as_json:
            from certspec.reports.run_report import make_report

            summary = make_report(options.out, draft_length=options.draft_length).summary
            click.echo(json.dumps(facts | _told(asked) | {"summary": summary}))
            return
        print_report(options.out, draft_length=options.draft_length)
        print_cases(run)
        _print_refused(asked)
        _print_certified(options.out, asked)


def _ask(options: _Options, prompts: PromptFile, folder: Path) -> Asked:
    from certspec.logs.asking import ask_servers
    from certspec.logs.servers import Address, Question

    total = min(prompts.num_prompts, options.limit or prompts.num_prompts)
    draft = None
    if options.draft_url is not None:
        draft = Address(options.draft_url, options.draft_model, "CERTSPEC_DRAFT_API_KEY")
    stopped = (
        f"stopped; the answers so far are kept in {folder}. The same command goes on from there."
    )
    with ended_by_interrupts(stopped), ProgressBar("ask", "prompts") as bar:
        bar.start(total)
        asked = ask_servers(
            (prompt.messages for prompt in itertools.islice(prompts, total)),
            folder,
            Address(options.url, options.model),
            draft,
            Question(options.max_new_tokens, options.top_logprobs, options.plain_prompts),
            settings={"prompts_sha256": prompts.sha256},
            concurrency=options.concurrency,
            retries=options.retries,
            on_advance=bar.advance,
        )
    if asked.num_resumed:
        click.echo(f"{asked.num_resumed:,} prompts had been answered before", err=True)
    return asked


def _told(asked: Asked) -> dict[str, Any]:
    return {
        "target_model": asked.target_model,
        "draft_model": asked.draft_model,
        "num_answered": asked.num_answered,
        "refused": asked.refused,
    }


def _print_refused(asked: Asked) -> None:
    for number, why in itertools.islice(asked.refused.items(), 1):
        click.echo(
            f"warning: {len(asked.refused):,} prompts were refused (first: prompt {number}: {why})"
        )


# Divergences (nats) of a close draft, a usual and a far one.
_TOLD_BUDGETS = (0.03, 0.1, 0.3)


def _print_certified(folder: Path, asked: Asked) -> None:
    """What is certified of any draft within a divergence: strict greedy, and the rule and the tree
    width that reach farthest."""
    from certspec.runs.summary import BUDGETS
    from certspec.runs.tables import TextTable

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    reach = {parse_rule(each["rule"]): each for each in summary["certified_run_lengths"]}
    groups = (
        [rule for rule in reach if not rule.tree_width and rule.label == "strict"],
        [rule for rule in reach if not rule.tree_width and rule.label != "strict"],
        [rule for rule in reach if rule.tree_width],
    )
    rows = []
    for place in map(BUDGETS.index, _TOLD_BUDGETS):
        cells = [f"{BUDGETS[place]:g}"]
        for rules in groups:
            found = [(reach[rule]["mean_over_starts"][place], rule) for rule in rules]
            best = max(found, key=lambda each: each[0], default=None)
            if best is None:
                cells.append("-")
                continue
            share = reach[best[1]]["share_of_steps"][place]
            cells.append(f"{best[1].label}: {100 * share:.1f} %, {best[0]:.2f}")
        rows.append(tuple(cells))
    table = TextTable(
        f"What {asked.target_model} certifies of any draft within a KL",
        ("KL, nats", "strict", "the rule that reaches farthest", "the tree width"),
        tuple(rows),
        "Share of steps on which such a draft's token is accepted for certain, and how many in a "
        "row from any step: the draft length that pays without luck.",
    )
    click.echo("")
    print_tables([table])
