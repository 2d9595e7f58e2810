"""``python -m proofs_check.hunts.undecided``: how often error bounds leave a rule open on real
decoding data, and which path rows take. The last line is JSON.

Rates come with their one-sided 95 % upper bound (Clopper-Pearson). Of Triton's filter every row
that it leaves to float64 is explained, rule by rule, by the bits of triton_ranks. Such rows are
rare: how many would be among them if the filter's errors were larger by each of FACTORS tells,
where that number grows with the factor, what to expect at 1 and below."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certspec.certificates.certify import Certificates, certify
from certspec.decoding.prompts import bundled_prompt_ids, prompt_token_ids
from certspec.kernels.numba.filter import filter_rows
from certspec.kernels.rule_table import rule_table
from certspec.models.prompt_templates import draw_prompts
from certspec.rules import Rule, default_rules
from proofs_check.hunts.rows import as_dtype
from proofs_check.hunts.soundness import versions_used

__all__ = ["added", "count_undecided", "drawn_prompts", "greedy_logits", "rate_upper_bound"]

DTYPES = ("float32", "bfloat16", "float16")
PROMPTS_AT_ONCE, ON_A_GPU = 64, 256
REASONS = ("invalid", "ties", "undecided", "threshold", "deep")  # bit by bit, see triton_ranks
EXPLAINED = 100  # rows of a dtype, at most
FACTORS = (1, 3, 10, 30, 100, 300, 1000, 3000)


def drawn_prompts(pair: Any, seed: int = 1) -> Iterator[list[int]]:
    """Token ids of the bundled prompts, then of distinct ones by the templates of the pair's
    corpus."""
    bundled = bundled_prompt_ids(pair)
    seen = set(map(tuple, bundled))
    yield from bundled
    for text in dict.fromkeys(prompt for _, prompt in draw_prompts(200_000, seed)):
        [ids] = prompt_token_ids([text], pair.tokenizer, pair.num_tokens)
        if tuple(ids) not in seen:
            seen.add(tuple(ids))
            yield ids


def greedy_logits(
    pair: Any, num_steps: int, tokens: int, prompts: Iterable[Sequence[int]] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """(target, draft) logits, each (steps, columns), of every step of the target's greedy answers
    to ``prompts`` (by default the bundled ones), a batch of prompts at a time, until there are
    ``num_steps``."""
    waiting = iter(bundled_prompt_ids(pair) if prompts is None else prompts)
    at_once = PROMPTS_AT_ONCE if pair.device.type == "cpu" else ON_A_GPU
    done = 0
    while done < num_steps:
        taken = [list(prompt) for prompt in islice(waiting, at_once)]
        if not taken:
            return
        answers = _greedy_answers(pair, taken, tokens)
        width = max(
            len(prompt) + len(answer) - 1 for prompt, answer in zip(taken, answers, strict=True)
        )
        ids = torch.zeros(
            (len(taken), width), dtype=torch.int64
        )  # what follows a row's end changes none of its logits
        predicts = torch.zeros((len(taken), width), dtype=torch.bool)
        for row, (prompt, answer) in enumerate(zip(taken, answers, strict=True)):
            ids[row, : len(prompt) + len(answer) - 1] = torch.tensor([*prompt, *answer[:-1]])
            predicts[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = True
        ids, predicts = ids.to(pair.device), predicts.to(pair.device)
        with torch.inference_mode():
            target, draft = (
                model(ids, use_cache=False).logits[..., : pair.num_tokens][predicts]
                for model in (pair.target, pair.draft)
            )
        done += len(target)
        yield target, draft


def _greedy_answers(pair: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """New tokens of each prompt up to its end, an end-of-sequence token included, all prompts in
    one batch."""
    width = max(map(len, prompts))
    ids = torch.tensor(
        [[0] * (width - len(prompt)) + prompt for prompt in prompts], device=pair.device
    )
    there = torch.tensor(
        [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=pair.device
    )
    with torch.inference_mode():
        output = pair.target.generate(
            ids,
            attention_mask=there,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=pair.target.generation_config.pad_token_id or 0,
        )
    ends = pair.target.generation_config.eos_token_id
    last = {ends} if isinstance(ends, int) else set(ends or ())
    answers: list[list[int]] = output[:, width:].tolist()
    return [
        answer[
            : next((place + 1 for place, token in enumerate(answer) if token in last), len(answer))
        ]
        for answer in answers
    ]


def count_undecided(
    rows: Iterable[tuple[Tensor, Tensor]],
    rules: Sequence[Rule],
    *,
    dtype: str,
    backend: str | None,
    precision: str | None = None,
) -> dict[str, Any]:
    """Undecided (row, rule) pairs, rows with one, certified pairs, rows by path, and (numba,
    float32) the pairs that the filter alone leaves open, before float64 settles them. Of Triton
    also ``open_pairs``, the pairs that its filter leaves open, by ``reasons`` (a pair may have
    several), with the evidence of the ``first`` rows; and of the rows that it decides the sums of
    the errors that it states, and ``within``: how many a KL, a threshold, or either, would leave
    open if these errors were larger by each of FACTORS."""
    names = (
        "rows",
        "pairs",
        "certified",
        "undecided_pairs",
        "undecided_rows",
        "fast",
        "rigorous",
        "left_open",
    )
    counts: dict[str, Any] = dict.fromkeys(names, 0)
    if backend == "triton":
        counts |= {"open_pairs": 0, "reasons": dict.fromkeys(REASONS, 0), "first": []}
        counts["errors_of_fast_rows"] = dict.fromkeys(("kl", "normaliser", "entropy"), 0.0)
        counts["within"] = {
            kind: dict.fromkeys(map(str, FACTORS), 0) for kind in ("kl", "threshold", "either")
        }
    for target, draft in rows:
        sides = (as_dtype(target, dtype), as_dtype(draft, dtype))
        scored = certify(*sides, list(rules), backend=backend, precision=precision)
        if backend == "numba" and precision == "float32":
            counts["left_open"] += _left_open(*sides, dtype, rules)
        counts["rows"] += len(scored)
        counts["pairs"] += scored.undecided.numel()
        counts["certified"] += int(scored.certified.sum())
        counts["undecided_pairs"] += int(scored.undecided.sum())
        counts["undecided_rows"] += int(scored.undecided.any(dim=0).sum())
        for name, number in scored.path_counts.items():
            counts[name] += number
        if backend == "triton":
            _add_margins(counts, sides[0], scored, rules)
            _explain(counts, sides, scored.paths, rules)
    return {
        "dtype": dtype,
        "backend": backend or "default",
        "precision": precision or "default",
        **counts,
    }


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The counts of both (numbers, lists, dicts of these); what is text is the first one's."""
    return {
        name: value
        if isinstance(value, str)
        else added(value, other[name])
        if isinstance(value, dict)
        else value + other[name]
        for name, value in one.items()
    }


def rate_upper_bound(found: int, of: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the rate at which no more than ``found`` of ``of`` are
    seen with probability 1 - ``confidence``."""
    if found >= of:
        return 1.0
    counts = range(found + 1)
    ways = np.array(
        [math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in counts]
    )
    low, high = found / of, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        seen = np.exp(
            ways
            + np.array(counts) * math.log(middle)
            + (of - np.array(counts)) * math.log1p(-middle)
        ).sum()
        low, high = (middle, high) if seen > 1 - confidence else (low, middle)
    return high


def _explain(
    counts: dict[str, Any], sides: tuple[Tensor, Tensor], paths: Tensor, rules: Sequence[Rule]
) -> None:
    """Asks the kernels again about the rows that they left to float64, one rule at a time."""
    from certspec.kernels.triton.rows import launch, plan_for

    rows = torch.nonzero(paths != 0).flatten()
    if not rows.numel():
        return
    target, draft = (side[rows].contiguous() for side in sides)
    columns, num_top = target.shape[1], rule_table(tuple(rules)).num_top
    plan = plan_for(len(rows), columns, target.element_size(), num_top)
    exact = certify(target, draft, list(rules), backend="torch")
    found: list[list[dict[str, Any]]] = [[] for _ in range(len(rows))]
    for number, rule in enumerate(rules):
        parameters = torch.from_numpy(rule_table((rule,)).parameters.copy()).to(target.device)
        fast = launch(target, draft, parameters, columns, num_top, plan)
        [margins] = _threshold_margins(target, [rule], fast.errors[:, 0], fast.errors[:, 1])
        for row, path in enumerate(fast.path.tolist()):
            names = [name for bit, name in enumerate(REASONS) if path >> bit & 1]
            if not names:
                continue
            counts["open_pairs"] += 1
            for name in names:
                counts["reasons"][name] += 1
            found[row].append(
                {
                    "rule": str(rule),
                    "reasons": names,
                    "kl_minus_certificate": float(exact.kl[row] - exact.certificate[number, row]),
                    "kl_error": float(fast.scalars[row, 1] - fast.scalars[row, 0]),
                    "threshold_margin": float(margins[row]),
                    "normaliser_error": float(fast.errors[row, 0]),
                    "entropy_error": float(fast.errors[row, 1]),
                }
            )
    counts["first"] += found[: EXPLAINED - len(counts["first"])]


def _add_margins(
    counts: dict[str, Any], target: Tensor, scored: Certificates, rules: Sequence[Rule]
) -> None:
    """Distances of the rows that the filter decided, in units of the errors that it states of
    them."""
    assert scored.prob_error is not None and scored.entropy_error is not None  # it is a filter
    fast = scored.paths == 0
    normaliser, entropy = scored.prob_error[fast], scored.entropy_error[fast]
    errors = {
        "kl": (scored.kl_upper - scored.kl)[fast],
        "normaliser": normaliser,
        "entropy": entropy,
    }
    for name, values in errors.items():
        counts["errors_of_fast_rows"][name] += float(values.sum())
    certificate, lower = scored.certificate[:, fast], scored.certificate_lower[:, fast]
    slack = torch.where(torch.isfinite(certificate), certificate - lower, 0.0)
    kl = ((scored.kl[fast] - certificate).abs() / (errors["kl"] + slack)).min(dim=0).values
    threshold = _threshold_margins(target[fast], rules, normaliser, entropy).min(dim=0).values
    for kind, distance in (
        ("kl", kl),
        ("threshold", threshold),
        ("either", torch.minimum(kl, threshold)),
    ):
        for factor in FACTORS:
            counts["within"][kind][str(factor)] += int((distance < factor).sum())


def _threshold_margins(
    target: Tensor, rules: Sequence[Rule], normaliser_error: Tensor, entropy_error: Tensor
) -> Tensor:
    """(rules, rows): how far a rule's threshold is from some token's probability, in units of what
    the (rows,) errors of the normaliser (relative) and of the entropy (nats) move it by; inf where
    it depends on neither."""
    logits = target.double()
    gaps = logits - logits.max(dim=1, keepdim=True).values
    weights = torch.exp(gaps)
    normaliser = weights.sum(dim=1)
    mean_gap = (weights * torch.where(weights > 0, -gaps, 0.0)).sum(dim=1) / normaliser
    margins = torch.full(
        (len(rules), len(target)), torch.inf, dtype=torch.float64, device=target.device
    )
    for number, rule in enumerate(rules):
        threshold = rule.threshold
        if threshold is None or not np.isfinite(threshold.offset):
            continue
        cap, offset = threshold.cap * normaliser, threshold.offset * normaliser
        from_entropy = threshold.entropy_scale * torch.exp(-mean_gap)
        levels = torch.stack([cap, threshold.scale + offset, from_entropy])
        moves = torch.stack(
            [
                cap * normaliser_error,
                offset.abs() * normaliser_error,
                from_entropy * (entropy_error + normaliser_error),
            ]
        )
        lowest = levels.argmin(dim=0, keepdim=True)
        level, move = levels.gather(0, lowest)[0], moves.gather(0, lowest)[0]
        nearest = (weights - level[:, None]).abs().min(dim=1).values
        margins[number] = torch.where((move > 0) & (level > 0), nearest / move, torch.inf)
    return margins


def _left_open(target: Tensor, draft: Tensor, dtype: str, rules: Sequence[Rule]) -> int:
    table = rule_table(tuple(rules))
    bits = torch.float32 if dtype == "float32" else torch.int16
    sides = [side.cpu().contiguous().view(bits).numpy() for side in (target, draft)]
    readable = [side if dtype == "float32" else side.view(np.uint16) for side in sides]
    columns = target.shape[1]
    _, left_open = filter_rows(
        readable[0], readable[1], dtype, columns, table, min(columns, table.num_top)
    )
    return int(left_open.sum())


def main(arguments: list[str] | None = None) -> int:
    from certspec.models.pairs import load_pair

    parser = argparse.ArgumentParser(
        prog="python -m proofs_check.hunts.undecided", description=__doc__
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens a prompt")
    parser.add_argument(
        "--prompts",
        choices=("bundled", "drawn"),
        default="bundled",
        help="drawn: after the bundled ones, others by the templates of the corpus",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--model-dtype", default=None, help="the models' own (default: as load_pair has it)"
    )
    parser.add_argument(
        "--backends",
        default="numba,numba:float32,torch",
        help="names or name:precision, with commas",
    )
    parser.add_argument(
        "--noise",
        default="0",
        help="the draft's logits plus normal noise of these sizes, with commas",
    )
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    pair = load_pair(device=options.device, dtype=options.model_dtype)
    prompts = drawn_prompts(pair) if options.prompts == "drawn" else None
    generator = torch.Generator().manual_seed(0)
    rules = default_rules()
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for plain, draft in greedy_logits(pair, options.steps, options.tokens, prompts):
        rows = [
            (plain, draft + float(noise) * torch.randn(draft.shape, generator=generator).to(draft))
            for noise in options.noise.split(",")
        ]
        for dtype in DTYPES:
            for backend in options.backends.split(","):
                name, _, precision = backend.partition(":")
                counts = count_undecided(
                    rows, rules, dtype=dtype, backend=name, precision=precision or None
                )
                known = results.get((backend, dtype))
                results[backend, dtype] = counts if known is None else added(known, counts)
    for (backend, dtype), counts in sorted(
        results.items(), key=lambda item: options.backends.index(item[0][0])
    ):
        print(
            f"{backend:<16}{dtype:<10}{counts['undecided_pairs']:>6} of {counts['pairs']:,} pairs "
            "undecided, "
            f"{counts['fast']:,} fast and {counts['rigorous']:,} rigorous rows, "
            f"{counts['left_open']:,} pairs left open by the filter"
        )
        if backend == "triton":
            rates = counts["rates"] = _rates(counts)
            print(
                f"{'':16}to float64 {rates['rows']} of rows, {rates['pairs']} of pairs, each with "
                "its 95 % bound; "
                f"by reason {counts['reasons']}; decided rows within so many errors "
                f"{counts['within']}"
            )
    print(
        json.dumps(
            {
                "tokens": options.tokens,
                "prompts": options.prompts,
                "noise": options.noise,
                **_provenance(pair.device),
                "models": str(pair.dtype).removeprefix("torch."),
                "seconds": round(time.monotonic() - begun, 1),
                "results": list(results.values()),
            }
        )
    )
    return 0


def _provenance(device: torch.device) -> dict[str, Any]:
    """The device and the versions that computed."""
    facts = {
        "device": device.type,
        "python": platform.python_version(),
        **versions_used(str(device)),
    }
    if "triton" in sys.modules:
        facts["triton"] = sys.modules["triton"].__version__
    return facts


def _rates(counts: dict[str, Any]) -> dict[str, list[float]]:
    """Shares of rows and pairs that the filter left to float64, each with its upper bound."""
    shares = {
        "rows": (counts["rigorous"], counts["rows"]),
        "pairs": (counts["open_pairs"], counts["pairs"]),
    }
    return {name: [found / of, rate_upper_bound(found, of)] for name, (found, of) in shares.items()}


if __name__ == "__main__":
    sys.exit(main())
