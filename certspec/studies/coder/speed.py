"""Tokens a second of the pair one prompt at a time: ours (chains, trees, adaptive drafts, every
rule) beside transformers plain, compiled and assisted, in one run, taking turns prompt by prompt.
Both sides count emitted token ids.

Every turn is a line of ``speed-turns.jsonl`` as soon as it is over."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from certspec.decoding.calibration import calibrate, pass_costs
from certspec.decoding.generation import generate, inference
from certspec.decoding.policies import Adaptive, BestFirst
from certspec.models.checksum import checksums
from certspec.models.choice import chosen_runners
from certspec.models.pairs import Pair
from certspec.rules import Rule, StrictGreedy, Tree
from certspec.scoring.batches import prompt_token_ids
from certspec.studies.bench.decode import assistant_setting
from certspec.studies.bench.spreads import every_so_many, ratio_spread, spread
from certspec.studies.coder.models import Models, write_result
from certspec.studies.coder.questions import read_questions
from certspec.studies.waiting import counted

__all__ = ["OURS", "measure_speed", "speed_figures"]

CHAIN = 4  # draft length of the rules' own ways, and of the quality study
# keywords of generate by name; "adaptive" is added with a profile measured on the spot
OURS: dict[str, dict[str, Any]] = {
    "no draft": {"draft_length": 0},
    "chain of 2": {"draft_length": 2},
    "chain of 4": {"draft_length": CHAIN},
    "chain of 6": {"draft_length": 6},
    "tree of 2 x 4": {"tree": 2},
    "tree of 4 x 4": {"tree": 4},
    "best-first tree of 16": {"tree": BestFirst(16, depth=8)},
}
_ASSISTED = {"4 tokens": (4, "constant", 0.0), "default": (20, "constant", 0.4)}
# a way that can't run here is left out and said, whatever a compiler or a driver raises for it
_FAILURES = (Exception,)
Way = Callable[[Sequence[int]], list[int]]


def measure_speed(
    models: Models,
    prompts: Path,
    out: Path,
    *,
    num_prompts: int = 4,
    tokens: int = 96,
    repeats: int = 2,
    rules: Sequence[Rule] = (),
) -> None:
    """Time every way on ``num_prompts`` prompts spread over the file into
    ``out/speed-DEVICE.json``; ``rules``: those that are timed besides, with chains of 4."""
    pair = models.fast
    turns = out / "speed-turns.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    turns.unlink(missing_ok=True)
    ids = [
        list(prompt_token_ids(pair.tokenizer, asked.messages))
        for asked in every_so_many(read_questions(prompts), num_prompts)
    ]
    ids.sort(key=len, reverse=True)  # a static cache that fits the longest is kept for the others
    facts: dict[str, Any] = {
        "provenance": models.provenance(pair, prompts),
        "prompts": len(ids),
        "new_tokens": tokens,
        "repeats": repeats,
        "chain": CHAIN,
        "left_out": {},
    }
    path = out / f"speed-{pair.device.type}.json"
    adaptive, failure = _tried(lambda: _adaptive(pair, ids[: min(4, len(ids))]))
    facts["left_out"] |= {"certspec adaptive": failure} if failure else {}
    costs, failure = _tried(lambda: pass_costs(pair, ids[0], (1, 2, 5, 9, 17)))
    facts["costs"] = costs or failure
    facts["weights_check_ms"] = 1e3 * min(_check_of_weights(pair) for _ in range(3))
    with ExitStack() as stack:
        stack.enter_context(inference(pair.target, pair.draft))
        lent, _ = _tried(lambda: stack.enter_context(chosen_runners(pair)))
        runners = None if lent is None else lent[:2]  # else every way of ours says why not
        ways = _ways(pair, tokens, rules, adaptive, runners)
        for name in counted(list(ways), "warming up, way"):
            began = time.perf_counter()
            found, failure = _tried(partial(ways[name], ids[0]))
            spent = time.perf_counter() - began
            print(f"{name}: {failure or 'ready'} in {spent:.1f} s", flush=True)
            if found is None:
                facts["left_out"][name] = failure
                del ways[name]
        for repeat in range(repeats):
            for index, prompt in enumerate(ids):
                for name in counted(list(ways), f"repeat {repeat + 1}, prompt {index + 1}, way"):
                    _timed(turns, name, repeat, index, ways[name], prompt)
                write_result(path, {**facts, **speed_figures(_read(turns))})


def _check_of_weights(pair: Pair) -> float:
    """Seconds of the check that ``generate`` makes of the weights each time it is called, which the
    ways here are spared: an engine is lent to them."""
    began = time.perf_counter()
    for model in (pair.target, pair.draft):
        checksums(list(model.parameters()))  # none where a file's own weights are run
    return time.perf_counter() - began


def speed_figures(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens a second of every way by whole repeats (of those that all ways have been through;
    before the first is over, of what there is), and ratios within a repeat to transformers plain
    and to its best way; how many texts are not those of the plain one (or of the first way, where
    transformers can't run the pair)."""
    ways = list(dict.fromkeys(turn["way"] for turn in turns))
    per_repeat = max((turn["index"] for turn in turns), default=0) + 1
    complete = {
        repeat
        for repeat in {turn["repeat"] for turn in turns}
        if sum(turn["repeat"] == repeat for turn in turns) == per_repeat * len(ways)
    } or {0}
    speeds: dict[str, list[float]] = {}
    for way in ways:
        for repeat in sorted(complete):
            own = [turn for turn in turns if turn["way"] == way and turn["repeat"] == repeat]
            seconds = sum(turn["seconds"] for turn in own)
            speeds.setdefault(way, []).append(sum(len(turn["ids"]) for turn in own) / seconds)
    peers = [way for way in ways if not way.startswith("certspec")]
    peer = max(peers, key=lambda way: statistics.median(speeds[way]), default=None)
    base = "transformers plain" if "transformers plain" in ways else ways[0]
    plain = {t["index"]: t["ids"] for t in turns if t["way"] == base}
    references = {"plain": "transformers plain", "best of transformers": peer}
    return {
        "complete_repeats": len(complete),
        "peer": peer,
        "tokens_per_second": {way: spread(values) for way, values in speeds.items()},
        "ratios": {
            way: {
                label: ratio_spread(values, speeds[other])
                for label, other in references.items()
                if other in speeds
            }
            for way, values in speeds.items()
        },
        "texts_unlike_plain": {
            way: len(
                {
                    turn["index"]
                    for turn in turns
                    if turn["way"] == way and turn["ids"] != plain.get(turn["index"])
                }
            )
            for way in ways
        },
    }


def _ways(
    pair: Pair, tokens: int, rules: Sequence[Rule], adaptive: dict[str, Any] | None, runners: Any
) -> dict[str, Way]:
    ways: dict[str, Way] = {
        "transformers plain": partial(_transformers, pair, tokens=tokens),
        "transformers compiled": partial(
            _transformers, pair, tokens=tokens, cache_implementation="static"
        ),
    }
    if pair.device.type != "cuda":
        del ways["transformers compiled"]  # minutes of compiling, and no gain there
    for name, setting in _ASSISTED.items():
        ways[f"transformers assisted ({name})"] = partial(
            _assisted, pair, tokens=tokens, setting=setting
        )
    ours = dict(OURS) if adaptive is None else {**OURS, "adaptive": adaptive}
    for rule in rules:
        if rule not in (StrictGreedy(), Tree(4)):  # these are timed as a chain and a tree
            ours[rule.label] = {"rule": rule, "draft_length": CHAIN}
    for name, options in ours.items():
        ways[f"certspec {name}"] = partial(
            _ours, pair, tokens=tokens, options={**options, "runners": runners}
        )
    return ways


def _transformers(pair: Pair, prompt: Sequence[int], tokens: int, **options: Any) -> list[int]:
    import torch

    ids = torch.tensor([list(prompt)], device=pair.target.device)
    output = pair.target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **options
    )
    emitted: list[int] = output[0, len(prompt) :].tolist()
    return emitted


def _assisted(
    pair: Pair, prompt: Sequence[int], tokens: int, setting: tuple[int, str, float]
) -> list[int]:
    with assistant_setting(pair.draft, setting):
        return _transformers(pair, prompt, tokens, assistant_model=pair.draft)


def _ours(pair: Pair, prompt: Sequence[int], tokens: int, options: dict[str, Any]) -> list[int]:
    found = generate(pair, [list(prompt)], max_new_tokens=tokens, **options)
    return found.sequences[0]


def _adaptive(pair: Pair, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {"draft_length": Adaptive(calibrate(pair, prompts, max_new_tokens=48))}


def _timed(path: Path, name: str, repeat: int, index: int, way: Way, prompt: Sequence[int]) -> None:
    import torch

    began = time.perf_counter()
    emitted = way(prompt)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    row = {"way": name, "repeat": repeat, "index": index, "seconds": seconds, "ids": emitted}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _tried(work: Callable[[], Any]) -> tuple[Any, str]:
    """What ``work`` returns, or None and why not."""
    try:
        return work(), ""
    except _FAILURES as error:
        return None, (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__
