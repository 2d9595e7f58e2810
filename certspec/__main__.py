"""``python -m certspec`` is the command ``certspec``."""

from certspec.cli import main

if __name__ == "__main__":
    main(prog_name="certspec")
