"""``python -m proofs_check``: proves or refutes every claim, a line each, and exits non-zero unless
all come out as expected."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from derivations.language.importing import BrokenModule, refusing_broken_modules

with refusing_broken_modules():
    from derivations.language.claim import Claim
    from proofs_check.mutants.command import run as run_mutants
    from proofs_check.mutants.command import summary
    from proofs_check.mutants.killing import Fate
    from proofs_check.mutants.subjects import all_mutations, chosen
    from proofs_check.outcome import Outcome
    from proofs_check.registry import Effort
    from proofs_check.running.explain import explain, one_line
    from proofs_check.running.kept import (
        UnusableFile,
        read_results,
        refuse_unwritable,
        sources_hash,
        write_results,
    )
    from proofs_check.running.report import render_html
    from proofs_check.running.runner import UnknownClaim, run_claims, select_claims


def main(arguments: list[str] | None = None) -> int:
    """0 where every claim came out as expected, 1 where one did not, 2 for a wrong call, 130 when
    interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if idle := _idle_option(options):
        parser.error(idle)
    try:
        refuse_unwritable(options.json)
        refuse_unwritable(options.html)
        return _chosen(options)
    except (BrokenModule, UnusableFile) as error:
        print(error, file=sys.stderr)
        return 2


def _chosen(options: argparse.Namespace) -> int:
    console = Console(soft_wrap=True, highlight=False)
    if options.mutants is not None:
        return _mutate(options, console)
    try:
        claims = select_claims(options.claims)
    except UnknownClaim as error:
        print(error, file=sys.stderr)
        return 2
    if options.list or options.explain:
        for claim in claims:
            console.print(
                f"{claim.id:28} {claim.sentence}" if options.list else explain(claim), markup=False
            )
        return 0
    return _run(claims, options, console)


def _run(claims: list[Claim], options: argparse.Namespace, console: Console) -> int:
    effort = Effort.thoroughly() if options.thorough else Effort()
    about = {"sources": sources_hash(), "thorough": effort.thorough}
    kept = read_results(options.json, about, "outcomes") if options.resume else []
    finished = {plain["claim"]: Outcome.from_json(plain) for plain in kept}
    outcomes = {claim.id: finished[claim.id] for claim in claims if claim.id in finished}
    told: set[str] = set()
    waiting = [claim for claim in claims if claim.id not in outcomes]

    def keep() -> None:  # those of other claims too, which the resumed file had
        found = sorted((finished | outcomes).items())
        write_results(options.json, about, "outcomes", [outcome.to_json() for _, outcome in found])

    try:
        with _progress(console) as progress:
            task = progress.add_task("proving", total=len(claims), completed=len(outcomes))
            for outcome in run_claims(
                waiting, effort, jobs=min(options.jobs, max(1, len(waiting)))
            ):
                outcomes[outcome.claim] = outcome
                progress.console.print(one_line(outcome, told), markup=False)
                progress.advance(task)
                keep()
    except KeyboardInterrupt:
        advice = (
            f"kept in {options.json}; --resume goes on from there"
            if options.json
            else "pass --json to keep them"
        )
        console.print(
            f"interrupted after {len(outcomes)} of {len(claims)} claims ({advice})", markup=False
        )
        return 130
    finally:
        keep()
        if options.html:
            Path(options.html).write_text(render_html(claims, outcomes), encoding="utf-8")
    return _verdict(outcomes, console)


def _mutate(options: argparse.Namespace, console: Console) -> int:
    """0 where every mutant is noticed or harmless, 1 where one is not, 2 where none is named so."""
    for pattern in options.claims:
        if not chosen(all_mutations(), [pattern], 0, 0):
            print(f"no mutant is like {pattern!r}; --mutants --list shows all", file=sys.stderr)
            return 2
    wanted = chosen(all_mutations(), options.claims, options.mutants, Effort().seed)
    first, step = options.part or (1, 1)
    wanted = wanted[first - 1 :: step]
    if not wanted:
        print(f"part {first} of {step}: no mutant is left for it", file=sys.stderr)
        return 2
    if options.list:
        for mutation in wanted:
            console.print(mutation.name, markup=False)
        return 0
    with _progress(console) as progress:
        task = progress.add_task("mutants", total=len(wanted))

        def told(fate: Fate) -> None:
            progress.console.print(f"{fate.fate:9} {fate.name}  [{fate.by}]", markup=False)
            progress.advance(task)

        found = run_mutants(
            wanted,
            json_file=options.json,
            resume=options.resume,
            jobs=min(options.jobs, len(wanted)),
            told=told,
        )
    for line in summary(found):
        console.print(line, markup=False)
    if len(found) < len(wanted):
        console.print(
            f"interrupted after {len(found)} of {len(wanted)}; with --json and --resume it goes on",
            markup=False,
        )
        return 130
    return 1 if any(fate.fate == "survived" for fate in found) else 0


def _verdict(outcomes: dict[str, Outcome], console: Console) -> int:
    wrong = [outcome for outcome in outcomes.values() if not outcome.as_expected]
    killed = sum(
        verdict == "REFUTED"
        for outcome in outcomes.values()
        for verdict in outcome.mutants.values()
    )
    mutants = sum(len(outcome.mutants) for outcome in outcomes.values())
    console.print(
        f"{len(outcomes) - len(wrong)} of {len(outcomes)} claims as expected, {killed} of "
        f"{mutants} mutants refuted",
        markup=False,
    )
    if wrong:
        names = " ".join(sorted(outcome.claim for outcome in wrong))
        console.print(f"not as expected (their lines begin with !): {names}", markup=False)
    return 1 if wrong else 0


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _idle_option(options: argparse.Namespace) -> str | None:
    """What is wrong with a call that names an option which would do nothing."""
    chosen = vars(options)
    given = {
        name
        for name in ("thorough", "json", "html", "list", "explain", "resume", "part")
        if chosen[name]
    }
    if options.resume and not options.json:
        return "--resume: goes on in the file that --json names; expected both"
    if options.part and options.mutants is None:
        return "--part: shares mutants among machines; expected --mutants with it"
    for alone, served in (("list", {"part"}), ("explain", set())):
        if alone in given and (idle := sorted(given - served - {alone})):
            return f"--{idle[0]}: does nothing beside --{alone}; leave one out"
    if options.mutants is not None and (idle := sorted(given & {"thorough", "html", "explain"})):
        return f"--{idle[0]}: does nothing beside --mutants; leave one out"
    return None


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, got {text!r}")
    return int(number), int(count)


_ABOUT = """Prove or refute every claim of the theory, a line each: the verdict, what each method
found over how many cases, how many wrong formulas the same methods refuted, and how far
samples went. A line that begins with ! did not come out as expected."""
_EXAMPLES = """examples:
  python -m proofs_check                             every claim (1 to 3 minutes on two cores)
  python -m proofs_check 'kernel.*' strict.closed    some of them
  python -m proofs_check strict.closed --explain     what it says, and why
  python -m proofs_check --mutants 40                40 small changes of formulas and kernels

exit status: 0 all as expected, 1 a claim is not or a mutant survived, 2 a wrong call,
130 interrupted (with --json, --resume goes on). What each method may conclude: README.md beside
this package."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proofs_check",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("claims", nargs="*", metavar="ID", help="claim ids or globs (default: all)")
    parser.add_argument(
        "--thorough", action="store_true", help="more targets a family, without regard to time"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write all that was found, after every claim: verdict, evidence by method, mutants, "
        "complaints",
    )
    parser.add_argument("--html", metavar="FILE", help="write a readable report, with plots")
    parser.add_argument(
        "--list", action="store_true", help="list ids and sentences; proves nothing"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print statement, domain, derivation and where kernels use it; proves nothing",
    )
    parser.add_argument(
        "--resume", action="store_true", help="skip claims already finished in the --json file"
    )
    parser.add_argument(
        "--mutants",
        nargs="?",
        type=_count,
        const=0,
        metavar="N",
        help="change formulas, generated bodies and certifying kernels one piece at a time, and "
        "see who notices: all (hours), or N drawn from all kinds; IDs are globs of their names",
    )
    parser.add_argument(
        "--part",
        type=_part,
        metavar="I/N",
        help="of the mutants every N-th from the I-th on, where N machines share them",
    )
    parser.add_argument(
        "--jobs", type=_count, default=min(2, os.cpu_count() or 1), help="processes (default: 2)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
