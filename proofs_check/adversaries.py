"""``python -m proofs_check.adversaries``: hunts for false certificates among rows built to sit a hair on either side of
a rule's boundary, in every dtype and backend. Resumable; the last line is JSON, the exit status 1 where one is found.

Every (row, rule) pair is judged by a second float64 path: what one backend certifies, another one must accept, with
both error bounds in the right order. Of every batch some pairs are judged again from the stored logits in 50-digit
arithmetic: the decision, KL below its bound, the certificate above its bound. This module knows rules by their normal
form only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from certspec.certificates import Certificates, certify
from certspec.kernels.adversaries import BAND, NEAR_FAMILIES, boundary_pairs, target_rows
from certspec.kernels.soundness import cast_rows
from certspec.rules import Absolute, Additive, Gated, Multiplicative, Rule, default_rules

__all__ = ["CELLS", "Cell", "hunt", "judge_exactly"]

mpf = mpmath.mpf
DIGITS = 50
PAIRS_OF_A_ROW = 3  # about so many of its rules share the certificate that a row sits beside
BATCH_ROWS = 1 << 12  # whose temporaries stay in the caches
DTYPES = ("float64", "float32", "bfloat16", "float16")
Cell = tuple[str, str | None, str, float]  # backend, precision, dtype, share of the pairs
# Triton's interpreter runs a row in about a second: it gets a handful of rows, for the path and not for the number.
CELLS: tuple[Cell, ...] = (
    *(("numba", None, dtype, 0.1) for dtype in DTYPES),
    *(("numba", "float32", dtype, 0.15) for dtype in DTYPES[1:]),
    *(("torch", None, dtype, 0.0375) for dtype in DTYPES),
)
COUNTS = (
    "pairs", "beside", "rows", "certified", "accepted", "false_certificates", "false_bounds", "undecided",
    "judged_exactly", "false_by_50_digits", "fast_rows", "rigorous_rows",
)  # fmt: skip
DECADES = tuple(range(-12, 0))  # |KL / C - 1| of a pair, by its decade


def hunt(
    pairs: int, cells: Sequence[Cell] = CELLS, *, vocab: int = 32, seed: int = 0, sample: int = 2,
    rules: Sequence[Rule] | None = None, state_path: Path | None = None, say: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Score ``pairs`` pairs within BAND of the boundary over the cells. With ``state_path`` the counts are kept
    there after every batch and a later call with the same arguments goes on from them."""
    rules = list(rules or [*default_rules(), Gated(top_m=10, additive=0.6), Absolute(0.2), Additive(0.01),
                           Multiplicative(0.9)])  # fmt: skip
    plan = {"pairs": pairs, "vocab": vocab, "seed": seed, "sample": sample, "rules": [str(rule) for rule in rules]}
    state: dict[str, Any] = {"plan": plan, "cells": {}}
    if state_path is not None and state_path.exists():
        kept = json.loads(state_path.read_text("utf-8"))
        if kept["plan"] != plan:
            raise ValueError(f"{state_path}: expected a hunt of {plan}, got one of {kept['plan']}; give another file")
        state = kept
    for number, (backend, precision, dtype, share) in enumerate(cells):
        name = " ".join(part for part in (backend, precision and f"filter {precision},", dtype) if part)
        cell = state["cells"].setdefault(
            name, {"batches": 0, **dict.fromkeys(COUNTS, 0), "near": [[0, 0] for _ in DECADES]}
        )
        wanted = share * pairs
        rows = max(1, min(BATCH_ROWS, int(wanted / PAIRS_OF_A_ROW) // len(NEAR_FAMILIES) + 1))
        while cell["pairs"] < wanted:
            _add_batch(cell, (backend, precision), dtype, rows, vocab, (seed, number, cell["batches"]), rules, sample)
            cell["batches"] += 1
            if state_path is not None:
                unfinished = state_path.with_suffix(".partial")
                unfinished.write_text(json.dumps(state) + "\n", "utf-8")
                unfinished.replace(state_path)
            if say is not None:
                say(name, cell, wanted)
    return state


def _add_batch(cell: dict[str, Any], way: tuple[str, str | None], dtype: str, rows: int, vocab: int,
               seed: tuple[int, ...], rules: list[Rule], sample: int) -> None:  # fmt: skip
    generator = np.random.default_rng(seed)
    backend, precision = way
    target = _representable(target_rows(generator, NEAR_FAMILIES[seed[-1] % len(NEAR_FAMILIES)], rows, vocab), dtype)
    draft = boundary_pairs(generator, target, rules, partial(_representable, dtype=dtype))
    target_logits, draft_logits = cast_rows(target, dtype, "cpu"), cast_rows(draft, dtype, "cpu")
    ours = certify(target_logits, draft_logits, rules, backend=backend, precision=precision)
    rigorous = "torch" if backend == "numba" and precision is None else "numba"
    judge = certify(target_logits, draft_logits, rules, backend=rigorous)
    a, b = _arrays(ours), _arrays(judge)
    near = _add_distances(cell["near"], b)
    cell["pairs"] += near
    cell["beside"] += a["accepted"].size - near
    cell["rows"] += rows
    cell["certified"] += int(a["certified"].sum())
    cell["accepted"] += int(b["accepted"].sum())
    cell["undecided"] += int(np.asarray(ours.undecided).sum())
    cell["fast_rows"] += ours.path_counts["fast"]
    cell["rigorous_rows"] += ours.path_counts["rigorous"]
    cell["false_certificates"] += int((a["certified"] & ~(a["accepted"] & b["accepted"])).sum())
    # a bound below the truth is below every bound above it, whoever computed that one
    with np.errstate(invalid="ignore"):  # inf - inf, where the value itself is the bound
        kl_lower = b["kl"] - np.where(np.isfinite(b["kl"]), b["kl_upper"] - b["kl"], 0.0)
        slack = np.where(np.isfinite(b["certificate"]), b["certificate"] - b["certificate_lower"], 0.0)
    above = b["certificate"] + slack
    cell["false_bounds"] += int((a["kl_upper"] < kl_lower).sum() + (a["certificate_lower"] > above).sum())
    chosen = generator.integers(0, rows, sample)
    for row, number in zip(chosen, generator.integers(0, len(rules), sample), strict=True):
        exact_target, exact_draft = (side[row].double().numpy() for side in (target_logits, draft_logits))
        cell["judged_exactly"] += 1
        cell["false_by_50_digits"] += not judge_exactly(rules[number], int(number), exact_target, exact_draft, a, row)


def _representable(rows: np.ndarray, dtype: str) -> np.ndarray:
    """float64 numbers, each the nearest of ``dtype``."""
    cast = cast_rows(rows, dtype, None)
    return cast.astype(np.float64) if isinstance(cast, np.ndarray) else cast.double().numpy()


def _add_distances(near: list[list[int]], scored: dict[str, Any]) -> int:
    """Counts pairs below and above the certificate by the decade of their distance; how many lie within BAND."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = scored["kl"] / scored["certificate"] - 1
        decade = np.floor(np.log10(np.abs(ratio)))
    for place, exponent in enumerate(DECADES):
        here = np.isfinite(ratio) & (decade == exponent)
        near[place][0] += int((here & (ratio < 0)).sum())
        near[place][1] += int((here & (ratio > 0)).sum())
    with np.errstate(invalid="ignore"):
        return int(((np.abs(ratio) >= BAND[0]) & (np.abs(ratio) <= BAND[1])).sum())


def _arrays(scored: Certificates) -> dict[str, np.ndarray]:
    names = ("kl", "kl_upper", "certificate", "certificate_lower", "accepted", "certified")
    return {name: np.asarray(getattr(scored, name)) for name in names}


# --- 50 digits -------------------------------------------------------------------------------------------------------
def judge_exactly(
    rule: Rule, number: int, target: np.ndarray, draft: np.ndarray, scored: dict[str, np.ndarray], row: int
) -> bool:
    """Whether one scored pair holds in 50-digit arithmetic: KL <= kl_upper, certificate_lower <= the certificate, and a
    certified draft is accepted."""
    with mpmath.workdps(DIGITS):
        target_probs, draft_probs = _softmax(target), _softmax(draft)
        terms = [
            mpf("inf") if other == 0 else prob * mpmath.log(prob / other)
            for prob, other in zip(target_probs, draft_probs, strict=True) if prob > 0
        ]  # fmt: skip
        order, drafted = _ranks(target), _ranks(draft)
        if rule.threshold is None:
            accepted = order[0] in drafted[: rule.tree_width]
            certificate = _tree_certificate([target_probs[token] for token in order], rule.tree_width)
        else:
            rejected = _rejected(rule, order, target_probs)
            accepted = drafted[0] not in rejected
            certificate = _certificate([target_probs[token] for token in order], [t in rejected for t in order])
        return bool(
            mpmath.fsum(terms) <= mpf(float(scored["kl_upper"][row]))
            and mpf(float(scored["certificate_lower"][number, row])) <= certificate
            and (accepted or not scored["certified"][number, row])
        )


def _softmax(logits: np.ndarray) -> list[Any]:
    highest = mpf(float(logits.max()))
    weights = [mpf(0) if z == -np.inf else mpmath.exp(mpf(float(z)) - highest) for z in logits]
    total = mpmath.fsum(weights)
    return [weight / total for weight in weights]


def _ranks(logits: np.ndarray) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))


def _rejected(rule: Rule, order: list[int], probs: list[Any]) -> set[int]:
    """Tokens below the threshold, from the rule's normal form."""
    threshold = rule.threshold
    if threshold is None:
        raise TypeError(f"expected a single-token rule, got {rule}")
    level = mpf(threshold.cap)
    if threshold.scale or np.isfinite(threshold.offset):
        level = min(level, mpf(threshold.scale) * probs[order[0]] + mpf(threshold.offset))
    if np.isfinite(threshold.entropy_scale):
        entropy = -mpmath.fsum(p * mpmath.log(p + mpf(threshold.smoothing)) for p in probs if p > 0)
        level = min(level, mpf(threshold.entropy_scale) * mpmath.exp(-entropy))
    if threshold.offset == -np.inf:
        level = mpf("-inf")
    gate = threshold.top_m or len(order)
    return {
        token for rank, token in enumerate(order)
        if rank >= gate or (probs[token] <= level if threshold.strictly_above else probs[token] < level)
    }  # fmt: skip


def _certificate(probs: list[Any], rejected: list[bool]) -> Any:
    """min KL over drafts in which a rejected token leads (theory A1), from probabilities sorted downwards."""
    if not any(rejected):
        return mpf("inf")
    rank = rejected.index(True)
    pool = [probs[rank]]
    for prob in probs[:rank]:
        if prob <= mpmath.fsum(pool) / len(pool):
            break
        pool.append(prob)
    return _pool_cost(pool)


def _tree_certificate(probs: list[Any], width: int) -> Any:
    """min KL over drafts in which tokens 2 to m + 1 all reach the first (theory A3)."""
    if width >= len(probs):
        return mpf("inf")
    pool = [probs[0]]
    for prob in reversed(probs[1 : width + 1]):
        if prob >= mpmath.fsum(pool) / len(pool):
            break
        pool.append(prob)
    return _pool_cost(pool)


def _pool_cost(pool: list[Any]) -> Any:
    level = mpmath.fsum(pool) / len(pool)
    return mpmath.fsum(prob * mpmath.log(prob / level) for prob in pool if prob > 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs_check.adversaries", description=__doc__)
    parser.add_argument("--pairs", type=float, default=1e8, help="(row, rule) pairs within BAND, over all cells")
    parser.add_argument("--vocab", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=2, help="pairs of a batch that 50-digit arithmetic judges")
    parser.add_argument("--triton-rows", type=int, default=0, help="rows of each 16- and 32-bit dtype for Triton")
    parser.add_argument("--state", type=Path, default=None, help="file that keeps the counts, to go on from")
    options = parser.parse_args(arguments)
    cells = list(CELLS)
    if options.triton_rows:
        if os.environ.get("TRITON_INTERPRET") == "1":
            from certspec.kernels.interpreter_reductions import reduce_by_halves

            reduce_by_halves()
        share = PAIRS_OF_A_ROW * options.triton_rows / options.pairs
        cells += [("triton", None, dtype, share) for dtype in DTYPES[1:]]
    # Operations on rows this narrow are over before a second thread has started; hunts of other seeds fill other cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begun, said = time.monotonic(), [0.0]

    def say(name: str, cell: dict[str, Any], wanted: float) -> None:
        if time.monotonic() - said[0] > 5 or cell["pairs"] >= wanted:
            said[0] = time.monotonic()
            print(f"{said[0] - begun:7.0f} s  {name:<32}{cell['pairs']:>12,} of {int(wanted):,}", flush=True)

    state = hunt(int(options.pairs), cells, vocab=options.vocab, seed=options.seed, sample=options.sample,
                 state_path=options.state, say=say)  # fmt: skip
    total = {name: sum(cell[name] for cell in state["cells"].values()) for name in COUNTS}
    wrong = total["false_certificates"] + total["false_bounds"] + total["false_by_50_digits"]
    sides = [sum(count[side] for cell in state["cells"].values() for count in cell["near"][:9]) for side in (0, 1)]
    print(f"{total['pairs']:,} pairs near the boundary (below {sides[0]:,}, above {sides[1]:,}) of "
          f"{total['rows']:,} rows, {total['beside']:,} beside them: {wrong} exceptions")  # fmt: skip
    print(json.dumps({**state, "total": total, "seconds": round(time.monotonic() - begun, 1)}))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
