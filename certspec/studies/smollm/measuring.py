"""The measurements that end up in the results: score, quality, speed. Each loads the pair,
measures, and writes one JSON file with where it came from."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

from certspec.runs.writing import write_atomically
from certspec.scoring.prompts import PromptFile
from certspec.studies.waiting import advancing

__all__ = ["measure_relaxation", "measure_score", "measure_speed"]

DEVIATIONS = [
    "SmolLM2-135M-Instruct (Q4_1 weights) instead of Qwen3",
    "prompts are a request around an answer that the target wrote, not UltraChat's",
]


# Scores and quality are of float32 logits wherever they are computed: bfloat16 ones tie at the top
# at about one step in fifty, and a tie is no property of the model. Speed is measured in the dtype
# that the device would be used with.
JUDGING_DTYPE = "float32"


def measure_score(
    target: Path,
    draft: Path,
    prompts: Path,
    out: Path,
    device: str,
    *,
    limit: int,
    steps: int,
    batch: int = 250,
) -> None:
    """Score the prompts under all rules into ``out/run`` (every step) and ``out/score.json`` (what
    tables need).

    Killed, it goes on at its last finished batch.
    """
    from certspec.runs.folder import RunFolder
    from certspec.scoring.run import RunSettings, score_run
    from certspec.studies.smollm.scores import SCORED_RULES, reduce_run

    pair = _load(target, draft, device, JUDGING_DTYPE)
    began = time.perf_counter()
    settings = RunSettings(SCORED_RULES, steps, batch, limit, True)
    with advancing("scoring", "steps") as told:
        score_run(pair, PromptFile.check(prompts), RunFolder(out / "run"), settings, **told)
    _write(out / "score.json", {**_facts(pair, began), **reduce_run(out / "run", DEVIATIONS)})


def measure_relaxation(
    target: Path,
    draft: Path,
    prompts: Path,
    out: Path,
    device: str,
    *,
    num_prompts: int,
    steps: int,
    batch: int = 64,
    num_tasks: int = 27,
    draft_length: int = 4,
) -> None:
    """Decode prompts and tasks under every rule and strength into ``out/quality.json``.

    ``batch`` prompts at a time, each of which may become as many rows as there are rules.
    """
    from certspec.scoring.greedy import GreedyLimits
    from certspec.studies.smollm.quality import measure_quality
    from certspec.studies.smollm.tasks import draw_tasks

    pair = _load(target, draft, device, JUDGING_DTYPE)
    began = time.perf_counter()
    context = min(int(model.config.max_position_embeddings) for model in (pair.target, pair.draft))
    limits = GreedyLimits(steps, context, frozenset([int(pair.target.config.eos_token_id)]))
    figures = measure_quality(
        pair,
        _texts(prompts, num_prompts),
        draw_tasks(min(num_tasks, num_prompts), seed=0),
        limits,
        draft_length=draft_length,
        batch=batch,
    )
    _write(out / "quality.json", {**_facts(pair, began), **figures})


def measure_speed(
    target: Path,
    draft: Path,
    prompts: Path,
    out: Path,
    device: str,
    *,
    num_prompts: int,
    tokens: int,
    repeats: int = 3,
) -> None:
    """Tokens a second of ours and of transformers plain and assisted, in one run, into
    ``out/speed-DEVICE.json``."""
    from certspec.decoding.calibration import pass_costs
    from certspec.decoding.policies import BestFirst
    from certspec.models.choice import reason_for_transformers
    from certspec.scoring.batches import prompt_token_ids
    from certspec.studies.bench.decode import measure_decoding

    # In its own bfloat16 on a GPU; a CPU without bfloat16 arithmetic takes many times as long in it
    # as in float32.
    pair = _load(target, draft, device, JUDGING_DTYPE if device == "cpu" else None)
    load_before = os.getloadavg()[0]
    began = time.perf_counter()
    ids = [
        list(prompt_token_ids(pair.tokenizer, [{"role": "user", "content": text}]))
        for text in _texts(prompts, num_prompts)
    ]
    ours: dict[str, dict[str, Any]] = {
        "chain of 4": {"draft_length": 4},
        "tree of 4 x 4": {"tree": 4},
        "best-first tree of 16": {"tree": BestFirst(16, depth=8)},
    }
    fallback = {role: reason_for_transformers(getattr(pair, role)) for role in ("target", "draft")}
    batch = (
        1 if any(fallback.values()) else min(4, num_prompts)
    )  # transformers' runner takes one prompt at a time
    figures = measure_decoding(pair, ids, tokens, repeats, ours, batch_size=batch)
    facts = _facts(pair, began) | {
        "prompts": num_prompts,
        "new_tokens": tokens,
        "repeats": repeats,
        "run_by_transformers_because": fallback,
        "costs": pass_costs(pair, ids[0], (1, 2, 5, 9, 17)),
        "cores": os.cpu_count(),
        "load_average": [load_before, os.getloadavg()[0]],
    }
    _write(out / f"speed-{pair.device.type}.json", {**facts, **figures})


def _load(target: Path, draft: Path, device: str, dtype: str | None) -> Any:
    from certspec.models.pairs import load_pair

    warnings.filterwarnings(
        "ignore", category=FutureWarning
    )  # of transformers, about its own next version
    return load_pair(target, draft, tokenizer=target, device=device, dtype=dtype)


def _texts(prompts: Path, count: int) -> list[str]:
    return [str(prompt.messages[-1]["content"]) for prompt in PromptFile.check(prompts)][:count]


def _facts(pair: Any, began: float) -> dict[str, Any]:
    """Where figures come from: weights, tokenizer, versions, device, seconds."""
    from certspec.scoring.provenance import session_facts, tokenizer_sha256, weights_sha256

    models = {role: getattr(pair, role) for role in ("target", "draft")}
    return {
        "provenance": {
            "weights_sha256": {role: weights_sha256(model) for role, model in models.items()},
            "parameters": {
                role: sum(p.numel() for p in model.parameters()) for role, model in models.items()
            },
            "dtype": str(pair.dtype).removeprefix("torch."),
            "tokenizer_sha256": tokenizer_sha256(pair.tokenizer),
            "seconds": round(time.perf_counter() - began, 1),
            **session_facts(pair.device),
        }
    }


def _write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=1) + "\n")
    print(path, flush=True)
