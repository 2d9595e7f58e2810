"""``python -m certspec`` is the command ``certspec``."""

import codecs
import io
import os
import signal
import sys

__all__ = ["run"]


def _as_it_can_be(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler: bytes of a path that are no text are printed as they are, and what a
    terminal's alphabet lacks with a backslash."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


class _StandardError(io.TextIOWrapper):
    """Standard error that a command outlives: what can't be written there, since a disk is full or
    whoever read it has gone, is heard by nobody, and the work goes on."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _hear_nothing(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _hear_nothing(2)


def _hear_nothing(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _open_standard_streams() -> None:
    """A file that is opened must not become what others take for a closed standard stream."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _hear_nothing(descriptor)
    before = sys.stderr
    if before is None:  # printed there, a text would go to standard output
        sys.stderr = _StandardError(os.fdopen(2, "wb"), line_buffering=True)
    elif isinstance(before, io.TextIOWrapper):
        sys.stderr = _StandardError(before.buffer, before.encoding, line_buffering=True)


def run() -> None:
    """The command. From here on an interrupt ends the process where it is; ``certspec.cli`` says
    when it is answered instead."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    codecs.register_error("certspec", _as_it_can_be)
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="certspec")
    from certspec.cli import main

    try:
        main(prog_name="certspec")
    except SystemExit as ended:
        if ended.code == 130:  # by Ctrl-C: what a thread still compiles is not waited for
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise


if __name__ == "__main__":
    run()
