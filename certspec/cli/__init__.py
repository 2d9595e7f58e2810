"""The command line: one file a command, loaded when it is called, so that ``--help`` needs neither
torch nor a model. Errors of certspec become one line on stderr and exit code 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from certspec import __version__
from certspec.cli.interrupts import ending_at_once
from certspec.errors import CertspecError
from certspec.kernels.environment import refuse_variables

__all__ = ["main"]

# Command -> (module, one line of help). The line is repeated here so that the list needs no import.
_COMMANDS = {
    "score": (
        "certspec.cli.score",
        "Score a draft against its target on prompts: tables, plots and a Parquet run.",
    ),
    "decode": (
        "certspec.cli.decode",
        "Decode a prompt speculatively and show which tokens were certified.",
    ),
    "import": (
        "certspec.cli.import_logs",
        "Turn a server's logprobs (and a draft's) into a run; needs no model.",
    ),
    "ask": (
        "certspec.cli.ask",
        "Ask a live server (and a draft's) for logprobs; a run at the end, without a model here.",
    ),
    "report": (
        "certspec.cli.report",
        "Make a run's page, tables and plots again, or compare two; needs no model.",
    ),
    "numerics": (
        "certspec.cli.numerics",
        "Measure how far logits differ between two numerics, and which decisions could turn.",
    ),
    "reproduce": (
        "certspec.cli.reproduce",
        "Run the paper's protocol and print its figures beside ours.",
    ),
    "advise": (
        "certspec.cli.advise",
        "Name the fastest rule, width and draft length of a run at given costs.",
    ),
    "calibrate": (
        "certspec.cli.calibrate",
        "Measure a draft on prompts; writes a profile for adaptive drafting.",
    ),
    "bench": (
        "certspec.cli.bench",
        "Measure kernels or decoding against what else there is; the last line is JSON.",
    ),
}


class _LazyGroup(click.Group):
    """Commands are imported when called; a CertspecError is one line on stderr and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(_COMMANDS[cmd_name][0]).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except OSError as error:  # of --help and --version, which print here
            _tell_full_output(error)
            sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with ending_at_once():
                refuse_variables()
                return super().invoke(ctx)
        except CertspecError as error:
            click.echo(f"certspec: {error}", err=True)
            ctx.exit(2)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # a path that no check looks at before it is used
                click.echo(f"certspec: {str(error.filename)[:80]}...: {error.strerror}", err=True)
                ctx.exit(2)
            if error.errno == errno.ENOENT and error.filename is None:
                click.echo("certspec: the folder that this was started in is gone", err=True)
                ctx.exit(2)
            _tell_full_output(error)
            ctx.exit(2)


def _tell_full_output(error: OSError) -> None:
    """Say that standard output is full, where that is what ``error`` says; else raise it: a broken
    pipe is click's to answer."""
    if error.errno != errno.ENOSPC or error.filename is not None:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes nowhere
    click.echo(f"certspec: standard output: {error.strerror}", err=True)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="certspec")
def main() -> None:
    """Exact acceptance certificates for greedy speculative decoding.

    A certificate says how small KL(target || draft) must be, at one step, so that the draft's token
    is accepted for certain. Without arguments the commands use a small pair that comes with the
    package."""
