"""The draft of SmolLM2-135M-Instruct from its own writing, and the study of losses at the same
scale: every step from a corpus file to two model directories."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from certspec.runs.writing import appearing_whole, write_atomically
from certspec.scoring.provenance import file_sha256, session_facts, tokenizer_sha256, weights_sha256
from certspec.studies.recipe.architecture import (
    Shape,
    build_model,
    count_parameters,
    round_to_bfloat16,
)
from certspec.studies.recipe.corpus import load_chat_model
from certspec.studies.recipe.data import Chat, read_corpus, split_by_prompt
from certspec.studies.recipe.export import rounded_copy, save_weights
from certspec.studies.recipe.prompts import NUM_HELD_OUT, write_prompts
from certspec.studies.smollm import prompts
from certspec.studies.smollm.distillation import LOSSES, DistillationPlan, distil
from certspec.studies.smollm.documents import encode_documents, own_documents

__all__ = ["DRAFT_SHAPE", "STUDY_PLAN", "Material", "make_draft", "prepare", "study_losses"]

DRAFT_SHAPE = Shape(hidden=256, layers=4, heads=4, mlp=1024)
MAX_POSITIONS = 2048
STUDY_PLAN = DistillationPlan(steps=310, batch=32, block=512)
STUDY_SEEDS = (1, 2, 3)
Log = Callable[[dict[str, Any]], None]


@dataclass
class Material:
    """What both trainings need: the target, its tokenizer, training chats as ids, the target's
    greedy chats, and the prompts that evidence is measured on (made from held-out prompts' answers
    alone)."""

    target: Any
    tokenizer: Any
    documents: list[np.ndarray]
    own: list[np.ndarray]
    evaluation: list[dict[str, str]]
    facts: dict[str, Any]


def prepare(
    model: Path,
    corpus: Path,
    out: Path,
    device: str,
    *,
    limit: int | None = None,
    num_long: int = 4096,
    num_short: int = 4096,
    max_new_tokens: int = 128,
    batch: int = 2048,
    num_evaluation: int = prompts.NUM_PROMPTS,
) -> Material:
    """Steps 1 to 3 of the recipe; writes ``target/`` (safetensors) and ``prompts.jsonl`` into
    ``out``."""
    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)

    # 1. The target, once as a plain directory: bfloat16 safetensors beside its tokenizer.
    target, tokenizer = load_chat_model(model, device)
    if not (out / "target").exists():
        _export(target, tokenizer, out / "target")

    # 2. Data: the bundled pair's split. Whole prompts are held out, with all their answers.
    training, held_out = split_by_prompt(read_corpus(corpus, limit), NUM_HELD_OUT, seed=0)
    documents = encode_documents(tokenizer, training, target.config.eos_token_id)

    def num_tokens(text: str) -> int:
        return len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    evaluation = prompts.build_prompts(held_out, num_evaluation, num_tokens, seed=0)
    write_prompts(evaluation, out / "prompts.jsonl")

    # 3. The target's greedy answers: to training prompts, and to prompts of the evaluation's form
    # on training answers.
    asked = _asked(training, num_tokens, num_short, num_long)
    own = _kept(out / "own.npz", (*map(len, asked), max_new_tokens))
    if own is None:
        own = [
            doc
            for group in asked
            for doc in own_documents(target, tokenizer, group, max_new_tokens, batch)
        ]
        lengths, sizes = np.array(list(map(len, own))), np.array([*map(len, asked), max_new_tokens])
        with appearing_whole(out / "own.npz") as stream:
            np.savez(stream, ids=np.concatenate(own), lengths=lengths, sizes=sizes)
    facts = {
        "training_chats": len(training),
        "training_tokens": sum(map(len, documents)),
        "own_chats": len(own),
        "own_tokens": sum(map(len, own)),
        "max_new_tokens": max_new_tokens,
        "own_short": len(asked[0]),
        "own_long": len(asked[1]),
        "evaluation_prompts": len(evaluation),
        "seconds": round(time.perf_counter() - began, 1),
        "sha256": {"corpus": file_sha256(corpus), "prompts": file_sha256(out / "prompts.jsonl")}
        | ({"model": file_sha256(model)} if model.is_file() else {}),
    }
    return Material(target, tokenizer, documents, own, evaluation, facts)


def make_draft(
    material: Material, plan: DistillationPlan, out: Path, log: Log, shape: Shape = DRAFT_SHAPE
) -> None:
    """Step 4: distil the draft under plain KL and write it, rounded to bfloat16, as
    ``out/draft``."""
    draft = _new_draft(material, shape, plan.seed)
    began = time.perf_counter()
    curve: list[tuple[int, float]] = []

    def note(record: dict[str, Any]) -> None:
        curve.append((record["step"], record["kl"]["plain KL"]))
        log(record)

    steps = distil(
        {"plain KL": draft},
        material.target,
        material.documents,
        material.own,
        plan,
        note,
        compile_rows=material.target.device.type == "cuda",
    )
    seconds = round(time.perf_counter() - began, 1)
    round_to_bfloat16(draft)
    _export(draft, material.tokenizer, out / "draft")
    facts = {
        "plan": asdict(plan) | {"steps": steps},
        "shape": asdict(shape),
        "parameters": count_parameters(draft),
        "tokens": steps * plan.batch * plan.block,
        "data": material.facts,
        "mean_kl_by_step": curve,
        "provenance": _provenance(material, draft, out),
        "seconds": seconds,
    }
    write_atomically(out / "draft.json", json.dumps(facts, indent=1) + "\n")


def study_losses(
    material: Material,
    plan: DistillationPlan,
    seed: int,
    out: Path,
    log: Log,
    shape: Shape = DRAFT_SHAPE,
    num_prompts: int = 256,
    max_new_tokens: int = 128,
) -> dict[str, Any]:
    """Step 5: one draft a loss, all from one seed's initial weights and batches; measured, not
    kept.

    Each is judged on every greedy step of the target's answers to the evaluation prompts. Writes
    ``out/losses-SEED.json``.
    """
    from certspec.studies.smollm.agreement import greedy_agreement

    plan = replace(plan, seed=seed)
    drafts = {name: _new_draft(material, shape, seed) for name in LOSSES}
    steps = distil(
        drafts,
        material.target,
        material.documents,
        material.own,
        plan,
        log,
        compile_rows=material.target.device.type == "cuda",
    )
    for draft in drafts.values():
        round_to_bfloat16(draft)
    chosen = [record["prompt"] for record in material.evaluation[:num_prompts]]
    figures = greedy_agreement(material.target, drafts, material.tokenizer, chosen, max_new_tokens)
    facts = {
        "seed": seed,
        "plan": asdict(plan) | {"steps": steps},
        "shape": asdict(shape),
        "tokens": steps * plan.batch * plan.block,
        "losses": figures,
    }
    write_atomically(out / f"losses-{seed}.json", json.dumps(facts, indent=1) + "\n")
    return facts


def _kept(path: Path, sizes: tuple[int, ...]) -> list[np.ndarray] | None:
    """The greedy chats that an earlier part of the recipe left in ``path``, if they are of these
    sizes."""
    if not path.exists():
        return None
    with np.load(path) as found:
        if tuple(found["sizes"].tolist()) != sizes:
            return None
        return np.split(found["ids"], np.cumsum(found["lengths"])[:-1])


def _asked(
    training: list[Chat], num_tokens: Callable[[str], int], num_short: int, num_long: int
) -> tuple[list[str], list[str]]:
    rng = random.Random(1)
    short = sorted({chat.prompt for chat in training})
    short = rng.sample(short, min(num_short, len(short)))
    long = prompts.build_prompts(training, num_long, num_tokens, seed=1)
    return short, [record["prompt"] for record in long]


def _new_draft(material: Material, shape: Shape, seed: int) -> Any:
    config = material.target.config
    model = build_model(
        shape,
        vocab_size=config.vocab_size,
        max_positions=MAX_POSITIONS,
        eos_id=config.eos_token_id,
        pad_id=config.pad_token_id,
        seed=seed,
    )
    return model.to(material.target.device)


def _provenance(material: Material, draft: Any, out: Path) -> dict[str, Any]:
    return {
        "weights_sha256": {
            "target": weights_sha256(material.target),
            "draft": weights_sha256(rounded_copy(draft)),
        },
        "files_sha256": {
            role: file_sha256(out / role / "model.safetensors") for role in ("target", "draft")
        },
        "tokenizer_sha256": tokenizer_sha256(material.tokenizer),
        **session_facts(material.target.device),
    }


def _export(model: Any, tokenizer: Any, folder: Path) -> None:
    """The whole folder or none: ``prepare`` takes what is there for finished."""
    unfinished = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    save_weights(model, unfinished)
    tokenizer.save_pretrained(unfinished)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
