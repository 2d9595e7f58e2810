"""A progress bar that several commands show."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click

from certspec.studies.waiting import doing, waiting

__all__ = ["ProgressBar"]


class ProgressBar:
    """A rich progress bar with the time left on stderr. Where that is no terminal, lines: one after
    some seconds and then every half minute, whether anything is done or not, and one every tenth.

    ``verb``: without its ending, "scor" for "scoring" and "scored"; ``unit``: what is counted."""

    def __init__(self, verb: str, unit: str, *, shown: bool = True) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._progress: Any = None
        self._shown, self._verb, self._unit = shown, verb, unit
        if shown and console.is_terminal:
            self._progress = Progress(
                TextColumn(f"{verb}ing"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
            )
        self._task: Any = None
        self._total = self._done = self._told = 0
        self._began = time.monotonic()
        self._lines = ExitStack()
        self._now: Callable[[str], None] = lambda words: None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, total: int) -> None:
        self._total = total
        if self._progress is None and self._shown:
            self._lines.enter_context(waiting(f"{self._verb}ing", at_once=False))
            self._now = self._lines.enter_context(doing(f"0 of {total:,} {self._unit}"))
        if self._progress is not None:
            self._task = self._progress.add_task("", total=total)
            try:
                self._progress.start()
            except RuntimeError:  # no thread can start that redraws it: lines instead
                self._progress.stop()
                self._progress = None

    def advance(self, num_done: int) -> None:
        self._done += num_done
        self._now(f"{self._done:,} of {self._total:,} {self._unit}")
        if self._progress is not None:
            self._progress.update(self._task, advance=num_done)
        elif self._shown and self._total and 10 * self._done // self._total > self._told:
            self._told = 10 * self._done // self._total
            click.echo(
                f"{self._verb}ed {10 * self._told} % in {time.monotonic() - self._began:.0f} s",
                err=True,
            )

    def close(self) -> None:
        self._lines.close()
        if self._progress is not None:
            self._progress.stop()
