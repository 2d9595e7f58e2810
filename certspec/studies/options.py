"""The command lines of studies, each written as a table: an option's name, then what argparse is
told about it. ``{"--rows": {"type": int, "default": 8}}`` parses ``--rows 9`` to ``rows=9``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Options", "add_options", "parse_options"]

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
