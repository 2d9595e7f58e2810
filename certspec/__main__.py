"""``python -m certspec`` is the command ``certspec``."""

import signal

__all__ = ["run"]


def run() -> None:
    """The command. From here on an interrupt ends the process where it is; ``certspec.cli`` says
    when it is answered instead."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from certspec.cli import main

    main(prog_name="certspec")


if __name__ == "__main__":
    run()
