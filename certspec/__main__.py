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


def run() -> None:
    """The command. From here on an interrupt ends the process where it is; ``certspec.cli`` says
    when it is answered instead."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    codecs.register_error("certspec", _as_it_can_be)
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
