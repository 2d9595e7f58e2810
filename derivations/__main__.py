"""``python -m derivations [--check]``: write the generated kernels, or fail where they drifted from the derivations."""

from __future__ import annotations

import argparse
import sys

from derivations.emit import COMMAND, GENERATED, drift, write_files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Emit the kernels from their derivations.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a generated file drifted")
    options = parser.parse_args(arguments)
    if not options.check:
        changed = write_files()
        print(f"{GENERATED}: {', '.join(changed) if changed else 'nothing'} changed")
        return 0
    drifted = drift()
    for name in drifted:
        print(f"{GENERATED / name}: not what the derivations give; run `{COMMAND}` and commit the result")
    if not drifted:
        print(f"{GENERATED}: as derived")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
