"""``python -m certspec`` is the command ``certspec``."""

import os
import signal
import sys

__all__ = ["run"]


def run() -> None:
    """The command. From here on an interrupt ends the process where it is; ``certspec.cli`` says
    when it is answered instead."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
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
