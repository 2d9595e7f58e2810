"""``python -m derivations [--check | --steps]``: the generated kernels and the derivations' steps.

Without an option it writes the files under ``certspec/kernels/generated`` and the page of theorems,
in a checkout only: an installed copy has no repository that could keep what changed; then it names
the claims of what changed, which are to be proved now. ``--check`` shows what differs from what the
derivations give, and fails there. ``--steps`` counts the steps of all derivations by kind, and
prints those that rest on words alone and the citations whose instance is read and not computed."""

from __future__ import annotations

import argparse
import sys

from derivations.language.importing import BrokenModule, refusing_broken_modules

with refusing_broken_modules():
    from derivations.kernels.emit import (
        COMMAND,
        GENERATED,
        Change,
        changes,
        is_checkout,
        write_files,
    )
    from derivations.language.claim import distinct_steps
    from derivations.theorems import PAGE, theorem_page

_MOST_LINES = 30  # of a file's difference; the whole of it is in git diff after writing


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Emit the kernels from their derivations."
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a generated file drifted"
    )
    shown.add_argument(
        "--steps",
        action="store_true",
        help="write nothing; count steps by kind, print those in prose",
    )
    try:
        return _run(parser.parse_args(arguments))
    except BrokenModule as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.steps:
        return _print_steps()
    if not options.check and not is_checkout():
        print(
            f"{GENERATED}: not part of a checkout (no pyproject.toml beside certspec), nothing "
            f"written; run `{COMMAND}` in a clone of the repository, or `{COMMAND} --check` here",
            file=sys.stderr,
        )
        return 2
    found, page = changes(), theorem_page()
    is_page_old = is_checkout() and (not PAGE.is_file() or PAGE.read_text("utf-8") != page)
    if options.check:
        return _print_drift(found, is_page_old)
    write_files()
    PAGE.write_text(page, "utf-8", newline="\n")
    names = [change.name for change in found] + ([PAGE.name] if is_page_old else [])
    print(f"{GENERATED}: {', '.join(names) or 'nothing'} changed")
    claims = sorted({claim for change in found for claim in change.claims})
    if claims:
        print(f"prove now: python -m proofs_check {' '.join(claims)}")
    return 0


def _print_drift(found: list[Change], is_page_old: bool) -> int:
    """What differs, with its difference; 1 where anything does."""
    remedy = f"not what the derivations give; run `{COMMAND}` and commit the result"
    for change in found:
        print(f"{GENERATED / change.name}: {remedy}")
        if change.name != "manifest.json":  # hashes of the others
            shown = change.lines[:_MOST_LINES]
            print("".join(f"  {line}\n" for line in shown), end="")
            if len(change.lines) > len(shown):
                print(f"  ... {len(change.lines) - len(shown)} more lines")
    if is_page_old:
        print(f"{PAGE}: {remedy}")
    if not found and not is_page_old:
        print(f"{GENERATED}: as derived")
    return 1 if found or is_page_old else 0


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
