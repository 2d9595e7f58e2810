"""A progress bar that several commands show."""

from __future__ import annotations

import time
from typing import Any

import click

__all__ = ["ProgressBar"]


class ProgressBar:
    """A rich progress bar with the time left on stderr; a line every tenth where stderr is no
    terminal.

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
        self._shown, self._verb = shown, verb
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

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, total: int) -> None:
        self._total = total
        if self._progress is not None:
            self._task = self._progress.add_task("", total=total)
            try:
                self._progress.start()
            except RuntimeError:  # no thread can start that redraws it: lines instead
                self._progress.stop()
                self._progress = None

    def advance(self, num_done: int) -> None:
        self._done += num_done
        if self._progress is not None:
            self._progress.update(self._task, advance=num_done)
        elif self._shown and self._total and 10 * self._done // self._total > self._told:
            self._told = 10 * self._done // self._total
            click.echo(
                f"{self._verb}ed {10 * self._told} % in {time.monotonic() - self._began:.0f} s",
                err=True,
            )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
