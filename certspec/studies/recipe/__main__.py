"""Makes the bundled pair: `python -m certspec.studies.recipe --corpus FILE --out DIR`, about eleven
minutes on one H100.

Everything happens here, top to bottom: read, split, tokenise, train the target, let it write,
distil the draft, export, measure."""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from certspec.runs.writing import write_atomically
from certspec.studies.options import exit_with, parse_options


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; `--tiny` swaps in one-layer models, to try the recipe without a GPU."""
    return parse_options(
        "certspec.studies.recipe",
        __doc__,
        {
            "--corpus": {
                "type": Path,
                "required": True,
                "help": "chats as .jsonl or .jsonl.zst (see certspec.studies.recipe.corpus)",
            },
            "--out": {
                "type": Path,
                "required": True,
                "help": "folder for target/, draft/, prompts.jsonl and losses.json",
            },
            "--vocab-size": {"type": int, "default": 4096},
            "--target-steps": {"type": int, "help": "optimiser steps (default: TargetPlan's)"},
            "--draft-steps": {"type": int, "help": "optimiser steps (default: DraftPlan's)"},
            "--batch": {"type": int, "help": "blocks a step"},
            "--block": {
                "type": int,
                "help": "tokens a block; also the context length written to config.json",
            },
            "--max-new-tokens": {
                "type": int,
                "help": "length of the answers that the target writes for the draft",
            },
            "--num-own": {
                "type": int,
                "default": 16384,
                "help": "chats that the target writes at each temperature, at most",
            },
            "--limit": {"type": int, "help": "read only this many chats"},
            "--reuse-target": {
                "action": "store_true",
                "help": "go on after step 3 with the target and losses.json already in --out",
            },
            "--tiny": {"action": "store_true", "help": "one-layer models"},
            "--device": {"default": None, "help": "default: cuda where there is one, else cpu"},
        },
        arguments,
    )


def override(plan: Any, **changes: Any) -> Any:
    """The plan with those fields replaced that are not None."""
    return replace(plan, **{name: value for name, value in changes.items() if value is not None})


def main(arguments: list[str] | None = None) -> None:
    """Run the whole recipe."""
    options = parse_arguments(arguments)

    import torch

    from certspec.studies.recipe import (
        architecture,
        data,
        draft,
        evaluate,
        export,
        prompts,
        target,
        tokenizer,
    )

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    shared = {"batch": options.batch, "block": options.block}
    target_plan = override(target.TargetPlan(), steps=options.target_steps, **shared)
    draft_plan = override(
        draft.DraftPlan(),
        steps=options.draft_steps,
        max_new_tokens=options.max_new_tokens,
        **shared,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    report: dict[str, Any] = {"target_plan": asdict(target_plan), "training": []}
    if options.reuse_target:
        report = json.loads((options.out / "losses.json").read_text(encoding="utf-8"))
        report["training"] = [
            record for record in report["training"] if record.get("model") == "target"
        ]
    report["draft_plan"] = asdict(draft_plan)

    def log(record: dict[str, Any]) -> None:
        record = {**record, "seconds": round(time.perf_counter() - started, 1)}
        report["training"].append(record)
        print(json.dumps(record), flush=True)
        write_atomically(options.out / "losses.json", json.dumps(report, indent=1) + "\n")

    # 1. Data: whole prompts are held out, with all their answers.
    training, held_out = data.split_by_prompt(
        data.read_corpus(options.corpus, options.limit), prompts.NUM_HELD_OUT, seed=0
    )
    shipped = prompts.choose_prompts(held_out, seed=0)
    prompts.write_prompts(shipped, options.out / "prompts.jsonl")

    # 2. Tokenizer: trained on the training part only.
    bpe = tokenizer.train_tokenizer(
        (text for chat in training for text in (chat.prompt, chat.answer)), options.vocab_size
    )
    documents, held_out_documents = (
        data.encode_chats(bpe, training),
        data.encode_chats(bpe, held_out),
    )
    report["data"] = {
        "training_chats": len(training),
        "held_out_chats": len(held_out),
        "training_tokens": sum(map(len, documents)),
        "held_out_tokens": sum(map(len, held_out_documents)),
        "characters_a_token": round(
            sum(len(chat.answer) for chat in training) / sum(map(len, documents)), 2
        ),
    }
    log({"stage": "data", **report["data"]})

    # 3. Target: next-token cross entropy.
    shapes = (
        (architecture.TINY_SHAPE,) * 2
        if options.tiny
        else (architecture.TARGET_SHAPE, architecture.DRAFT_SHAPE)
    )
    sizes = {
        "vocab_size": bpe.get_vocab_size(),
        "max_positions": target_plan.block,
        "eos_id": bpe.token_to_id(tokenizer.IM_END),
        "pad_id": bpe.token_to_id(tokenizer.END_OF_TEXT),
    }
    if options.reuse_target:
        target_model = export.load_target(options.out / "target", bpe).to(device)
    else:
        target_model = architecture.build_model(shapes[0], **sizes, seed=target_plan.seed).to(
            device
        )
        target.train_target(target_model, documents, target_plan, log)
        architecture.round_to_bfloat16(
            target_model
        )  # the draft learns from the weights that are shipped
        export.export_model(target_model, bpe, options.out / "target")

    # 4. The target's own chats: greedy on every training prompt, sampled on prompts drawn as the
    # corpus has them.
    rng = random.Random(draft_plan.seed)
    own_documents = []
    for temperature in draft_plan.temperatures:
        asked = (
            sorted({chat.prompt for chat in training})
            if temperature == 0
            else [rng.choice(training).prompt for _ in training]
        )
        asked = asked if len(asked) <= options.num_own else rng.sample(asked, options.num_own)
        torch.manual_seed(draft_plan.seed)
        with architecture.mixed_precision(device):
            own_documents += draft.sample_answers(
                target_model, bpe, asked, temperature, draft_plan.max_new_tokens
            )
        log(
            {
                "stage": "own chats",
                "temperature": temperature,
                "chats": len(own_documents),
                "tokens": sum(map(len, own_documents)),
            }
        )

    # 5. Draft: KL(target || draft), half on the corpus, half on the target's own chats.
    draft_model = architecture.build_model(shapes[1], **sizes, seed=draft_plan.seed).to(device)
    draft.distil_draft(draft_model, target_model, documents, own_documents, draft_plan, log)
    architecture.round_to_bfloat16(draft_model)
    export.export_model(draft_model, bpe, options.out / "draft")

    # 6. Measure what is shipped: rounded weights, float32 arithmetic, prompts that nobody trained
    # on.
    report["parameters"] = {
        "target": architecture.count_parameters(target_model),
        "draft": architecture.count_parameters(draft_model),
    }
    report["held_out"] = evaluate.evaluate_text(
        target_model, draft_model, held_out_documents, target_plan.block, num_blocks=200
    )
    questions = [record["prompt"] for record in shipped]
    prompt_lengths = [
        len(bpe.encode(tokenizer.render_chat(question)).ids) for question in questions
    ]
    greedy = draft.sample_answers(target_model, bpe, questions, 0.0, draft_plan.max_new_tokens)
    report["greedy_on_prompts"] = evaluate.evaluate_greedy(
        target_model, draft_model, greedy, prompt_lengths
    )
    log(
        {
            "stage": "measured",
            **{name: report[name] for name in ("parameters", "held_out", "greedy_on_prompts")},
        }
    )


if __name__ == "__main__":
    exit_with(main, "recipe")
