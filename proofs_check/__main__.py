"""``python -m proofs_check``: proves or refutes every claim, a line each, and exits non-zero unless
all come out as expected."""

from __future__ import annotations

import argparse
import json
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
    from proofs_check.running.report import render_html
    from proofs_check.running.runner import UnknownClaim, fingerprint, run_claims, select_claims


def main(arguments: list[str] | None = None) -> int:
    """0 where every claim came out as expected, 1 where one did not, 2 for a wrong call, 130 when
    interrupted."""
    try:
        return _chosen(_parser().parse_args(arguments))
    except BrokenModule as error:
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
    done = _resume(options.json, effort) if options.resume and options.json else {}
    outcomes = {claim.id: done[claim.id] for claim in claims if claim.id in done}
    waiting = [claim for claim in claims if claim.id not in outcomes]
    try:
        with _progress(console) as progress:
            task = progress.add_task("proving", total=len(claims), completed=len(outcomes))
            for outcome in run_claims(
                waiting, effort, jobs=min(options.jobs, max(1, len(waiting)))
            ):
                outcomes[outcome.claim] = outcome
                progress.console.print(one_line(outcome), markup=False)
                progress.advance(task)
                _write_json(options.json, outcomes, effort)
    except KeyboardInterrupt:
        kept = (
            f"kept in {options.json}; --resume goes on from there"
            if options.json
            else "pass --json to keep them"
        )
        console.print(
            f"interrupted after {len(outcomes)} of {len(claims)} claims ({kept})", markup=False
        )
        return 130
    finally:
        _write_json(options.json, outcomes, effort)
        if options.html:
            Path(options.html).write_text(render_html(claims, outcomes), encoding="utf-8")
    return _verdict(outcomes, console)


def _mutate(options: argparse.Namespace, console: Console) -> int:
    """0 where every mutant is noticed or harmless, 1 where one is not, 2 where none is named so."""
    wanted = chosen(all_mutations(), options.claims, options.mutants, Effort().seed)
    wanted = wanted[options.part[0] - 1 :: options.part[1]]
    if not wanted:
        print(f"no mutant is like {', '.join(options.claims)}", file=sys.stderr)
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
    return 1 if wrong else 0


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _write_json(path: str | None, outcomes: dict[str, Outcome], effort: Effort) -> None:
    if path is None:
        return
    content = {
        "fingerprint": fingerprint(),
        "thorough": effort.thorough,
        "outcomes": [outcome.to_json() for _, outcome in sorted(outcomes.items())],
    }
    partial = Path(f"{path}.partial")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)  # a reader, or an interrupt, never sees half a file


def _resume(path: str, effort: Effort) -> dict[str, Outcome]:
    """Finished outcomes of an earlier run over the same sources and effort; nothing where they
    differ."""
    if not Path(path).exists():
        return {}
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if content["fingerprint"] != fingerprint() or content["thorough"] != effort.thorough:
        print(
            f"{path}: made from other sources or another effort; starting afresh", file=sys.stderr
        )
        return {}
    return {plain["claim"]: Outcome.from_json(plain) for plain in content["outcomes"]}


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, got {text!r}")
    return int(number), int(count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proofs_check", description="Prove or refute every claim."
    )
    parser.add_argument("claims", nargs="*", metavar="ID", help="claim ids or globs (default: all)")
    parser.add_argument(
        "--thorough", action="store_true", help="more targets a family, without regard to time"
    )
    parser.add_argument("--json", metavar="FILE", help="write outcomes, after every claim")
    parser.add_argument("--html", metavar="FILE", help="write a readable report")
    parser.add_argument("--list", action="store_true", help="list ids and sentences")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print statement, derivation and where kernels use it",
    )
    parser.add_argument(
        "--resume", action="store_true", help="skip claims already finished in the --json file"
    )
    parser.add_argument(
        "--mutants",
        nargs="?",
        type=int,
        const=0,
        metavar="N",
        help="change formulas, generated bodies and certifying kernels one piece at a time, and "
        "see who notices: all (hours), or N drawn from all kinds; IDs are globs of their names",
    )
    parser.add_argument(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="I/N",
        help="of the mutants every N-th from the I-th on, where N machines share them",
    )
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: 2)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
