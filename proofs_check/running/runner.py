"""Runs checks: a claim's own formula through all of its methods, then each mutant until one method
refutes it. Outcomes are yielded as they finish, so that an interrupted run keeps what it has;
printing is left to the command."""

from __future__ import annotations

import difflib
import fnmatch
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from derivations.language.claim import Claim, Formula, Mutant, all_claims
from proofs_check.methods.arguments import Seen, argument_mutants
from proofs_check.methods.domain import Noted, argument_names, joined
from proofs_check.methods.optimise import NoConvergence
from proofs_check.outcome import GENERAL, INDEPENDENT, SAMPLES, Evidence, Outcome, Verdict, combine
from proofs_check.registry import Check, Effort
from proofs_check.running.checks import checks_of
from proofs_check.running.routes import reason_without, routes_of, too_small

__all__ = ["UnknownClaim", "evidence_of", "run_claim", "run_claims", "select_claims"]

_MACHINERY = ("methods", "running", "language")  # folders of what calls checks and formulas


class UnknownClaim(LookupError):
    """A pattern on the command line matches no claim."""


def select_claims(patterns: Sequence[str]) -> list[Claim]:
    """The claims whose ids match any of the globs, in order of id; all of them where no pattern is
    given."""
    claims = all_claims()
    chosen = set(claims) if not patterns else set()
    for pattern in patterns:
        matched = fnmatch.filter(claims, pattern)
        if not matched:
            near = difflib.get_close_matches(pattern, claims, 3, 0.4)
            hint = f"perhaps {' or '.join(near)}; " if near else ""
            raise UnknownClaim(
                f"claim {pattern!r}: expected an id or glob of a claim, {hint}--list shows all "
                f"{len(claims)}"
            )
        chosen.update(matched)
    return [claims[claim_id] for claim_id in sorted(chosen)]


def run_claim(claim: Claim, effort: Effort) -> Outcome:
    """All evidence for one claim, and the fate of its mutants. What a check raises leaves the claim
    UNDECIDED, and says so."""
    started = time.perf_counter()
    checks = checks_of(claim.id)
    seen = Seen(claim)
    evidence = tuple(_sampled(check, seen, effort) for check in checks)
    # a mutant is refuted by the quickest check that can
    costs = {id(check): item.seconds for check, item in zip(checks, evidence, strict=True)}
    quickest = sorted(checks, key=lambda check: costs[id(check)])
    mutants = {
        mutant.name: _first_refutation(quickest, mutant.formula, effort).name
        for mutant in claim.mutants
    }
    if claim.expected == "verified":
        for changes in argument_mutants(claim, seen).values():
            mutants |= _first_refuted(quickest, changes, effort)
    complaints = _complaints(claim, checks, evidence, mutants, effort)
    if claim.corrected is not None:
        repaired = tuple(evidence_of(check, claim.corrected, effort) for check in checks)
        if any(item.verdict not in (Verdict.VERIFIED, Verdict.SKIPPED) for item in repaired):
            complaints.append(
                "the corrected formula does not pass the checks that refute the claim"
            )
    seconds = time.perf_counter() - started
    return Outcome(
        claim.id, claim.expected, combine(evidence), evidence, mutants, tuple(complaints), seconds
    )


def run_claims(claims: Sequence[Claim], effort: Effort, *, jobs: int = 1) -> Iterator[Outcome]:
    """Outcomes in the order in which they finish; with ``jobs`` > 1 in that many processes."""
    if jobs <= 1 or len(claims) <= 1:
        for claim in claims:
            yield run_claim(claim, effort)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        waiting = [pool.submit(_run_by_id, claim.id, effort) for claim in claims]
        for finished in as_completed(waiting):
            yield finished.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run_by_id(claim_id: str, effort: Effort) -> Outcome:
    return run_claim(all_claims()[claim_id], effort)


def _sampled(check: Check, seen: Seen, effort: Effort) -> Evidence:
    """What one check finds; of a sample also which arguments it gave the formula."""
    if check.method not in SAMPLES:
        return _unless_broken(check, seen, effort)
    noted = Noted(seen, argument_names(seen.formula))
    found = _unless_broken(check, noted, effort)
    return replace(found, domain=joined([found.domain, noted.domain]))


def _unless_broken(check: Check, formula: Formula, effort: Effort) -> Evidence:
    """What one check finds; UNDECIDED, with what it raised and where, where it broke."""
    try:
        return evidence_of(check, formula, effort)
    except Exception as error:  # noqa: BLE001 - told, and the other claims go on
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent.name not in _MACHINERY]
        where = (own or frames)[-1]
        told = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return Evidence(check.method, Verdict.UNDECIDED, None, "", told)


def evidence_of(check: Check, formula: Formula, effort: Effort) -> Evidence:
    """What one check finds, with its seconds; what it could not settle is UNDECIDED."""
    started = time.perf_counter()
    try:
        evidence = check.function(formula, effort)
        if check.twice and evidence.verdict is Verdict.VERIFIED:
            evidence = _again(check, formula, effort, evidence)
    except NoConvergence as error:
        evidence = Evidence(check.method, Verdict.UNDECIDED, None, "?", f"no convergence: {error}")
    except ModuleNotFoundError as error:  # the conic witness and Arb come with the test extra
        evidence = Evidence(
            check.method,
            Verdict.SKIPPED,
            None,
            "",
            f"{error.name} missing (pip install 'certspec[test]')",
        )
    if evidence.method != check.method:
        raise ValueError(
            f"check of {check.claim!r} registered as {check.method!r} returned {evidence.method!r}"
        )
    return replace(evidence, seconds=time.perf_counter() - started)


def _again(check: Check, formula: Formula, effort: Effort, first: Evidence) -> Evidence:
    """The same check at the second precision; the two must agree in their verdict, each to its own
    digits."""
    second = check.function(formula, _second(effort))
    digits = effort.second_digits
    if second.verdict is not Verdict.VERIFIED:
        return replace(
            second, detail=f"verified at {effort.digits} digits, not at {digits}: {second.detail}"
        )
    more = f"again at {digits} digits: {second.cases} cases, worst {second.worst_residual}"
    return replace(first, detail=f"{first.detail}; {more}" if first.detail else more)


def _second(effort: Effort) -> Effort:
    """At the second precision, a target a family."""
    return replace(effort, digits=effort.second_digits, per_family=1, large=False)


def _first_refutation(
    checks: list[Check],
    formula: Formula,
    effort: Effort,
    *,
    unreadable: Verdict = Verdict.UNDECIDED,
) -> Verdict:
    """REFUTED by the first check that does; else UNDECIDED, or ``unreadable`` where a check could
    not read what the formula returned. The second precision comes last: hardly a mutant needs
    it."""
    left = Verdict.UNDECIDED
    # not by ``printed``: a text that is right refutes every wrong formula, and shows nothing of the
    # other methods
    once = [replace(check, twice=False) for check in checks if check.method != "printed"]
    again = [replace(check, twice=False) for check in checks if check.twice]
    for check, tried in [(c, effort) for c in once] + [(c, _second(effort)) for c in again]:
        try:
            if evidence_of(check, formula, tried).verdict is Verdict.REFUTED:
                return Verdict.REFUTED
        except Exception:  # noqa: BLE001 - a wrong formula may break a check in any way
            left = unreadable
    return left


def _first_refuted(
    checks: list[Check], changes: Sequence[Mutant], effort: Effort
) -> dict[str, str]:
    """The first of an argument's changes that the checks notice; all of them where none is."""
    for mutant in changes:
        # what no check can read any more is noticed
        found = _first_refutation(checks, mutant.formula, effort, unreadable=Verdict.REFUTED)
        if found is Verdict.REFUTED:
            return {mutant.name: found.name}
    return {", ".join(mutant.name for mutant in changes): Verdict.UNDECIDED.name}


def _complaints(
    claim: Claim,
    checks: list[Check],
    evidence: tuple[Evidence, ...],
    mutants: dict[str, str],
    effort: Effort,
) -> list[str]:
    rules: list[tuple[bool, str]] = [
        (len(checks) < claim.min_methods, f"{len(checks)} methods, {claim.min_methods} required"),
        (not claim.mutants, "no mutant"),
        (
            claim.expected == "verified" and not any(check.method in GENERAL for check in checks),
            f"only samples: {', '.join(check.method for check in checks) or 'none'}",
        ),
        (not any(check.method in INDEPENDENT for check in checks), "nothing but its derivation"),
        (
            claim.expected == "refuted"
            and any(item.verdict not in (Verdict.REFUTED, Verdict.SKIPPED) for item in evidence),
            "not every method refutes it",
        ),
    ]
    methods = {check.method for check in checks}
    rules += [
        (
            not used and reason_without(claim.id, route) is None,
            f"no {route} route, and no reason why",
        )
        for route, used in routes_of(methods).items()
    ]
    if claim.expected == "verified" and effort.large:
        reached = joined(item.domain for item in evidence if item.verdict is Verdict.VERIFIED)
        rules += [(True, complaint) for complaint in too_small(claim.id, reached)]
    survivors = [name for name, verdict in mutants.items() if verdict != Verdict.REFUTED.name]
    return [text for applies, text in rules if applies] + [
        f"mutant not refuted: {name}" for name in survivors
    ]


Runner = Callable[[Sequence[Claim], Effort], Iterator[Outcome]]
