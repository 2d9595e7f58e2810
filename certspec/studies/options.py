"""The command lines of studies, each written as a table: an option's name, then what argparse is
told about it. ``{"--rows": {"type": int, "default": 8}}`` parses ``--rows 9`` to ``rows=9``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from certspec.errors import CertspecError
from certspec.kernels.environment import refuse_variables
from certspec.studies.waiting import waiting

__all__ = ["Options", "add_options", "exit_with", "parse_options"]

Options = Mapping[str, Mapping[str, Any]]


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Give ``parser`` all of ``options``."""
    for name, told in options.items():
        parser.add_argument(name, **told)


def parse_options(
    module: str, description: str | None, options: Options, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """What ``arguments`` (None: the process's own) say to ``python -m MODULE``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    add_options(parser, options)
    return parser.parse_args(arguments)


def exit_with(main: Callable[[], int | None], name: str | None = None) -> NoReturn:
    """Run a study as a command: from its first seconds on it says what ``name`` is at (None: a
    study that forks, and so has no other thread), and what certspec refuses is one line and exit
    code 2."""
    try:
        with waiting(name or "", shown=name is not None, at_once=False):
            refuse_variables()
            sys.exit(main())
    except CertspecError as error:
        print(f"certspec: {error}", file=sys.stderr)
        sys.exit(2)
