"""``python -m derivations [--check | --steps]``: the generated kernels and the derivations' steps.

Without an option it writes the files under ``certspec/kernels/generated``, in a checkout only: an
installed copy has no repository that could keep what changed. ``--check`` fails where a file is not
what the derivations give. ``--steps`` counts the steps of all derivations by kind, and prints those
that rest on words alone and the citations whose instance is read and not computed."""

from __future__ import annotations

import argparse
import sys

from derivations.kernels.emit import COMMAND, GENERATED, drift, is_checkout, write_files
from derivations.language.claim import distinct_steps


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Emit the kernels from their derivations."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a generated file drifted"
    )
    parser.add_argument(
        "--steps",
        action="store_true",
        help="write nothing; count steps by kind, print those in prose",
    )
    options = parser.parse_args(arguments)
    if options.steps:
        return _print_steps()
    if not options.check and not is_checkout():
        print(
            f"{GENERATED}: not part of a checkout (no pyproject.toml beside certspec), nothing "
            f"written; run `{COMMAND}` in a clone of the repository, or `{COMMAND} --check` here",
            file=sys.stderr,
        )
        return 2
    if not options.check:
        changed = write_files()
        print(f"{GENERATED}: {', '.join(changed) if changed else 'nothing'} changed")
        return 0
    drifted = drift()
    for name in drifted:
        print(
            f"{GENERATED / name}: not what the derivations give; run `{COMMAND}` and commit the "
            "result"
        )
    if not drifted:
        print(f"{GENERATED}: as derived")
    return 1 if drifted else 0


def _print_steps() -> int:
    steps = distinct_steps()
    for owner, step in steps.get("prose", []):
        print(f"{owner}: {step.text}")
    for owner, step in steps.get("cited", []):
        if step.read:
            print(f"{owner} cites {', '.join(step.cites)}, read ({step.read}): {step.text}")
    print(
        "; ".join(
            f"{len(found)} {how}"
            for how, found in sorted(steps.items(), key=lambda item: -len(item[1]))
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
