"""``python -m proofs_check.hunts.soundness``: hunts for false certificates, and compares a backend
with the reference on rows of a real vocabulary. The last line of output is JSON; the exit status is
1 where anything is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import numpy as np

from certspec.certificates.certify import PRECISIONS, Certificates, certify
from certspec.rules import Absolute, Gated, Rule, default_rules
from proofs_check.hunts.rows import FAMILIES, as_dtype, boundary_drafts, target_rows

__all__ = [
    "cast_rows",
    "compare_with_reference",
    "count_false_certificates",
    "disagreements",
    "score_alone",
    "versions_used",
]
BATCH_LOGITS = 1 << 21


def count_false_certificates(
    pairs: int,
    vocab: int,
    *,
    seed: int = 0,
    dtype: str = "float64",
    backend: str | None = None,
    precision: str | None = None,
    rules: list[Rule] | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Score at least ``pairs`` adversarial (row, rule) pairs; how many are certified, accepted,
    falsely certified. What a fast filter certifies is judged by the float64 path on the same rows,
    not by the filter's own verdict."""
    rules = rules or default_rules()
    generator = np.random.default_rng(seed)
    batch = max(1, min(BATCH_LOGITS // vocab, pairs // (len(rules) * len(FAMILIES))))
    counts = {"pairs": 0, "certified": 0, "accepted": 0, "false_certificates": 0, "false_bounds": 0}
    fast = 0
    place = None if device == "cpu" and backend != "triton" else device
    number = 0
    while counts["pairs"] < pairs:
        target = target_rows(generator, FAMILIES[number % len(FAMILIES)], batch, vocab)
        draft = boundary_drafts(generator, target)
        target_logits, draft_logits = (cast_rows(side, dtype, place) for side in (target, draft))
        scored = certify(target_logits, draft_logits, rules, backend=backend, precision=precision)
        judge = (
            certify(target_logits, draft_logits, rules, backend="torch")
            if scored.path_counts["fast"]
            else scored
        )
        accepted, certified = _numpy(judge.accepted), _numpy(scored.certified)
        counts["pairs"] += accepted.size
        counts["certified"] += int(certified.sum())
        counts["accepted"] += int(accepted.sum())
        counts["false_certificates"] += int((certified & ~accepted).sum())
        counts["false_bounds"] += int((scored.certificate_lower > scored.certificate).sum())
        counts["false_bounds"] += int((scored.kl_upper < scored.kl).sum())
        fast += scored.path_counts["fast"]
        number += 1
    return {
        **counts,
        "fast_rows": fast,
        "vocab": vocab,
        "dtype": dtype,
        "backend": backend or "default",
        "precision": precision or "default",
        "device": device,
        "rules": len(rules),
    }


def compare_with_reference(
    rows: int,
    vocab: int,
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    backend: str | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Score ``rows`` x ``vocab`` pairs on a device and with the float64 reference; what differs
    beyond the bounds."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(seed)
    target = torch.randn(rows, vocab, generator=generator) * torch.linspace(0.5, 4.0, rows)[:, None]
    draft = (
        target
        + torch.randn(rows, vocab, generator=generator) * torch.logspace(-3, 0, rows)[:, None]
    )
    target, draft = (as_dtype(side, dtype) for side in (target, draft))
    rules = [*default_rules(), Gated(top_m=10, additive=0.6), Absolute(0.2)]
    target_there, draft_there = target.to(device), draft.to(device)
    certify(
        target_there[:1], draft_there[:1], rules, backend=backend, precision=precision
    )  # compile
    start = time.perf_counter()
    ours = certify(target_there, draft_there, rules, backend=backend, precision=precision)
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    wrong = disagreements(ours, certify(target, draft, rules, backend="reference"))
    excess = ours.kl_upper - ours.kl
    return {
        "rows": rows,
        "vocab": vocab,
        "device": device,
        "dtype": dtype,
        "backend": backend or "default",
        "precision": precision or "default",
        "seconds": round(seconds, 4),
        "disagreements": wrong,
        "largest_kl_excess": float(excess.max()),
        "false_certificates": int((ours.certified & ~ours.accepted).sum()),
        **ours.path_counts,
    }


def disagreements(ours: Certificates, reference: Certificates) -> dict[str, int]:
    """How many entries of each field differ by more than both sides' own error bounds allow (ids:
    at all)."""
    a, b = (
        {
            k: _numpy(v)
            for k, v in vars(x).items()
            if v is not None and not isinstance(v, (tuple, str))
        }
        for x in (ours, reference)
    )
    found = {}
    for name in ("target_top_ids", "draft_top_ids", "target_token", "draft_token"):
        found[name] = int((a[name] != b[name]).sum())
    with np.errstate(invalid="ignore"):  # inf - inf, where both must be infinite
        kl_slack = (a["kl_upper"] - a["kl"]) + (b["kl_upper"] - b["kl"])
        slack = (a["certificate"] - a["certificate_lower"]) + (
            b["certificate"] - b["certificate_lower"]
        )
    found["kl"] = _beyond(a["kl"], b["kl"], kl_slack)
    found["certificate"] = _beyond(a["certificate"], b["certificate"], slack)
    found["entropy"] = _beyond(
        a["entropy"], b["entropy"], 1e-11 * (1 + np.abs(b["entropy"])) + _stated(a, "entropy_error")
    )
    for name in ("prob_margin", "target_top_probs", "draft_token_prob"):
        relative = _stated(a, "prob_error").reshape(-1, *[1] * (b[name].ndim - 1))
        found[name] = _beyond(
            a[name], b[name], 1e-11 * (1 + np.abs(b[name])) + relative * np.abs(a[name])
        )
    close = np.abs(b["kl_upper"] - b["certificate_lower"]) <= 1e-9 * (1 + b["kl_upper"])
    found["certified"] = int(((a["certified"] != b["certified"]) & ~close).sum())
    found["accepted"] = int((a["accepted"] != b["accepted"]).sum())
    return {name: count for name, count in found.items() if count}


def _stated(side: dict[str, np.ndarray], name: str) -> np.ndarray:
    """(rows,) errors that a side states beside those of float64, 0 where it states none."""
    return side.get(name, np.zeros(len(side["entropy"])))


def _beyond(ours: np.ndarray, reference: np.ndarray, slack: np.ndarray) -> int:
    with np.errstate(invalid="ignore"):
        same = (ours == reference) | (np.abs(ours - reference) <= slack)
    return int((~same).sum())


def score_alone() -> None:
    """Make this process one of several that score side by side: one thread of torch; and in
    Triton's interpreter, the quick reductions."""
    import torch

    torch.set_num_threads(1)
    if os.environ.get("TRITON_INTERPRET") == "1":
        from proofs_check.hunts.interpreter_reductions import reduce_by_halves

        reduce_by_halves()


def versions_used(device: str) -> dict[str, Any]:
    """Of torch, and on a GPU the card and its CUDA."""
    import torch

    used = {"torch": torch.__version__}
    return (
        used
        if device == "cpu"
        else {**used, "card": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    )


def cast_rows(rows: np.ndarray, dtype: str, device: str | None) -> Any:
    """The rows in ``dtype``; a tensor where a device is named or numpy has no such dtype."""
    if dtype in ("float64", "float32", "float16") and device is None:
        return rows.astype(dtype)
    import torch

    return as_dtype(torch.from_numpy(rows), dtype).to(device or "cpu")


def _numpy(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else value.cpu().numpy()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proofs_check.hunts.soundness", description=__doc__
    )
    parser.add_argument(
        "--pairs", type=int, default=0, help="adversarial (row, rule) pairs to score"
    )
    parser.add_argument(
        "--rows", type=int, default=0, help="rows to compare with the float64 reference"
    )
    parser.add_argument("--vocab", type=int, default=48)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", default="float64", choices=("float64", "float32", "bfloat16", "float16")
    )
    parser.add_argument("--backend", default=None)
    parser.add_argument(
        "--precision", default=None, choices=PRECISIONS, help='"float32": by the fast filter'
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    shared = {
        "dtype": options.dtype,
        "backend": options.backend,
        "precision": options.precision,
        "seed": options.seed,
    }
    if options.rows:
        result = compare_with_reference(
            options.rows, options.vocab, device=options.device, **shared
        )
        wrong = bool(result["disagreements"]) or result["false_certificates"] > 0
    else:
        result = count_false_certificates(
            options.pairs or 1_000_000, options.vocab, device=options.device, **shared
        )
        wrong = result["false_certificates"] > 0 or result["false_bounds"] > 0
    print("FALSE CERTIFICATES OR DISAGREEMENTS" if wrong else "sound: no exception found")
    print(json.dumps(result))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
