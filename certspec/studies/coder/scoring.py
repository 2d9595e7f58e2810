"""The prompts scored step by step under the paper's rules and more, and what of it survives from
float32 to bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from certspec.certificates.certify import certify
from certspec.models.pairs import Pair
from certspec.presets import parse_rule
from certspec.rules import Absolute, Gated, Rule, TopM
from certspec.runs.folder import RunFolder, appearing_whole
from certspec.runs.table import RunTable, read_run
from certspec.scoring.batches import prompt_token_ids
from certspec.scoring.prompts import PromptFile, read_prompts
from certspec.scoring.run import RunSettings, score_run
from certspec.studies.bench.spreads import every_so_many
from certspec.studies.coder.models import Models, write_result
from certspec.studies.smollm.scores import SCORED_RULES, reduce_run
from certspec.studies.waiting import advancing, counted

__all__ = ["LEVELS", "ROBUST", "RULES", "measure_robustness", "measure_score"]

DEVIATIONS = [
    "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M weights) instead of Qwen3",
    "public prompts of MT-bench, HumanEval and GSM8K instead of UltraChat's, of any length",
]
RULES: tuple[Rule, ...] = (
    *SCORED_RULES,
    TopM(2),
    TopM(4),
    Gated(top_m=10, additive=0.6),
    Absolute(0.2),
)
# rules whose certificates are asked for under errors of the logits, which is dear
ROBUST = ("strict", "additive:0.3", "multiplicative:0.1", "top:4", "tree:2", "tree:4", "tree:8")
LEVELS = (0.5, 0.9, 0.99, 1.0)  # of the measured errors
_Text = tuple[tuple[int, ...], np.ndarray[Any, Any]]  # a prompt's tokens, and the emitted ones


def measure_score(
    models: Models, prompts: Path, out: Path, *, limit: int | None, steps: int, batch: int
) -> None:
    """Score the prompts into ``out/run`` (every step) and ``out/score.json`` (what tables need).
    Stopped, it goes on at its last finished batch."""
    pair, folder = models.judged, out / "run"
    settings = RunSettings(RULES, steps, batch, limit, True)
    with advancing("scoring", "steps") as told:
        score_run(pair, PromptFile.check(prompts), RunFolder(folder), settings, **told)
    facts = {"provenance": models.provenance(pair, prompts)}
    write_result(out / "score.json", {**facts, **reduce_run(folder, DEVIATIONS)})


def measure_robustness(
    models: Models, prompts: Path, out: Path, *, limit: int | None, batch: int
) -> None:
    """Along the texts of ``out/run``: how far bfloat16 logits of both models lie from float32
    ones, which certificates survive such errors, and whether bfloat16 then decides as certified.
    Into ``out/robust.json``; blocks that were done are in ``out/robust``."""
    done = out / "robust"
    done.mkdir(parents=True, exist_ok=True)
    judged, fast = models.judged, models.fast
    texts = _texts(judged, read_run(out / "run"), prompts, limit)
    parts = []
    for start in counted(range(0, len(texts), batch), "comparing, batch"):
        path = done / f"block-{start:04d}-{min(start + batch, len(texts)):04d}.npz"
        if not path.exists():
            block = _compare(judged, fast, texts[start : start + batch])
            with appearing_whole(path) as file:
                np.savez(file, allow_pickle=False, **block)
        parts.append(dict(np.load(path)))
    joined = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    facts = {"provenance": models.provenance(fast, prompts), "num_prompts": len(texts)}
    write_result(out / "robust.json", {**facts, **_robust_figures(joined)})


def _texts(pair: Pair, run: RunTable, prompts: Path, limit: int | None) -> list[_Text]:
    """Of ``limit`` of the run's prompts, spread evenly over all."""
    messages = {prompt.index: prompt.messages for prompt in read_prompts(prompts)}
    found = []
    for start, stop in zip(run.starts[:-1], run.starts[1:], strict=True):
        asked = prompt_token_ids(pair.tokenizer, messages[int(run.prompt[start])])
        found.append((asked, np.asarray(run.target_token[start:stop])))
    return list(every_so_many(found, limit or len(found)))


def _compare(judged: Pair, fast: Pair, texts: Sequence[_Text]) -> dict[str, np.ndarray[Any, Any]]:
    """Columns of a block's steps: errors (steps,) of either model, half the spread of the
    difference of logits (a shift of all is none); by rule (rules, steps) what is certified, how far
    it reaches (``reach_both``: with a draft that is off by up to the block's largest error as
    well), and what bfloat16 accepts."""
    import torch

    with torch.inference_mode():
        wide = [_logits(judged, role, texts) for role in ("target", "draft")]
        narrow = [_logits(fast, role, texts).float() for role in ("target", "draft")]
        errors = [_half_spread(ours - theirs) for ours, theirs in zip(narrow, wide, strict=True)]
        rules = [parse_rule(text) for text in ROBUST]
        found = certify(wide[0], wide[1], rules, logit_error=0.0)
        both = certify(wide[0], wide[1], rules, logit_error=(0.0, float(errors[1].max())))
        served = certify(narrow[0], narrow[1], rules)
        columns = {
            "target_error": errors[0],
            "draft_error": errors[1],
            "certified": found.certified,
            "accepted": found.accepted,
            "reach": found.reach,
            "reach_both": both.reach,
            "served_accepted": served.accepted,
            "served_certified": served.certified,
            "same_argmax": found.target_token == served.target_token,
            "same_draft": found.draft_token == served.draft_token,
        }
        return {name: values.cpu().numpy() for name, values in columns.items()}


def _logits(pair: Pair, role: str, texts: Sequence[_Text]) -> Any:
    """(steps, columns): the logits that chose each emitted token, all steps of a text in one pass.
    Rows are filled up to the right, which a causal model does not see."""
    import torch

    model = getattr(pair, role)
    rows = [[*prompt, *tokens[:-1].tolist()] for prompt, tokens in texts]
    ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
    kept = torch.zeros(ids.shape, dtype=torch.bool)
    for place, (row, (prompt, _)) in enumerate(zip(rows, texts, strict=True)):
        ids[place, : len(row)] = torch.tensor(row)
        kept[place, len(prompt) - 1 : len(row)] = True
    states = model.model(input_ids=ids.to(model.device), use_cache=False).last_hidden_state
    return model.lm_head(states[kept.to(model.device)])[:, : pair.num_tokens]


def _half_spread(difference: Any) -> Any:
    return (difference.amax(dim=1) - difference.amin(dim=1)) / 2


def _robust_figures(found: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Shares by rule. ``reached``: steps certified with bfloat16's own error at that step, both
    models'; ``reached_by_target``: the target's, the draft as it is; ``contradicted``: of either,
    the ones where the bfloat16 target rejects the bfloat16 draft's token (if it is float32's; a
    sound certificate has none). ``within``: steps certified for every target whose
    logits are off by that quantile of all errors, and a draft off by its largest."""
    errors = {
        name: {f"{level:g}": float(np.quantile(found[name], level)) for level in LEVELS}
        for name in ("target_error", "draft_error")
    }
    rules = []
    for index, rule in enumerate(ROBUST):
        certified, accepted = found["certified"][index], found["accepted"][index]
        served, reach = found["served_accepted"][index], found["reach"][index]
        false = (certified & ~accepted) | (found["served_certified"][index] & ~served)
        both = found["reach_both"][index]
        alone = reach > found["target_error"]
        reached = both > found["target_error"]
        contradicted = (reached & ~served) | (alone & ~served & found["same_draft"])
        rules.append(
            {
                "rule": rule,
                "accepted": float(accepted.mean()),
                "certified": float(certified.mean()),
                "reached": float(reached.mean()),
                "reached_by_target": float(alone.mean()),
                "within": {
                    level: float((both > error).mean())
                    for level, error in errors["target_error"].items()
                },
                "reach_median": float(np.median(reach[certified])) if certified.any() else None,
                "served_accepted": float(served.mean()),
                "decided_otherwise": float((served != accepted).mean()),
                "contradicted": int(contradicted.sum()),
                "num_false_certificates": int(false.sum()),
            }
        )
    return {
        "num_steps": len(found["target_error"]),
        "errors": errors,
        "same_argmax": float(found["same_argmax"].mean()),
        "rules": rules,
    }
