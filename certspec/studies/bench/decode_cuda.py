"""Decoding speed on a GPU at the shapes of Qwen3-4B and 0.6B, random weights: our rounds against
transformers' generation, plain, compiled and assisted, one run, turns taken prompt by prompt, the
accept pattern of the bundled pair replayed on both sides. Both sides count emitted token ids.

Compiled is ``cache_implementation="static"``, transformers at its best on a GPU: it compiles the
pass and replays it as a CUDA graph. Assisted generation doesn't take a static cache."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any

import torch

from certspec.decoding.drafting import DraftPolicy, StaticPolicy
from certspec.decoding.generation import generate, inference
from certspec.decoding.prompts import bundled_prompt_ids
from certspec.decoding.records import KINDS
from certspec.kernels.rule_table import rule_table
from certspec.models.cuda.layouts import RowState
from certspec.models.cuda.rounds import TreeRounds
from certspec.models.cuda.runner import CudaRunner
from certspec.models.pairs import Pair, load_pair
from certspec.models.trees import TreeShape, chain
from certspec.rules import StrictGreedy
from certspec.studies.bench.decode import assistant_setting
from certspec.studies.bench.kernels import device_time
from certspec.studies.bench.replay import REPLAYED_LOGIT, ReplayingRunner, UncertifiedRounds
from certspec.studies.bench.spreads import (
    Item,
    Result,
    Way,
    in_turns,
    ratio_spread,
    spread,
    tokens_per_second,
    warmed_up,
)
from certspec.studies.soaks.losslessness import reference_tokens

__all__ = [
    "SHAPES",
    "bundled_accepts",
    "launch_times",
    "measure_rounds",
    "measure_ways",
    "random_pair",
    "random_runners",
    "replayed_in_transformers",
    "rounds_accepted",
    "waited",
]


def rounds_accepted(
    pair: Pair, prompts: Sequence[Sequence[int]], draft: int | DraftPolicy, num_tokens: int
) -> tuple[int, ...]:
    """Draft tokens accepted in each full round of chains of length ``draft``, or of that policy, by
    prompt (but for rounds cut short)."""
    import numpy as np

    steps = generate(
        pair, list(prompts), draft_length=draft, max_new_tokens=num_tokens, eos_token_ids=[]
    ).steps
    keys = steps.column("prompt") * (num_tokens + 1) + steps.column("round")
    rounds, index = np.unique(keys, return_inverse=True)
    accepted = np.bincount(
        index, steps.column("kind") == KINDS.index("accepted"), len(rounds)
    ).astype(int)
    last = np.searchsorted(rounds, (np.unique(steps.column("prompt")) + 1) * (num_tokens + 1)) - 1
    return tuple(np.delete(accepted, last).tolist())


def bundled_accepts(
    draft: int | DraftPolicy, num_prompts: int = 16, num_tokens: int = 64
) -> tuple[int, ...]:
    """``rounds_accepted`` of the bundled pair on the CPU, shuffled with a seed: a short replay
    takes the beginning."""
    pair = load_pair()
    accepted = list(rounds_accepted(pair, bundled_prompt_ids(pair, num_prompts), draft, num_tokens))
    random.Random(0).shuffle(accepted)
    return tuple(accepted)


@contextmanager
def replayed_in_transformers(target: Any, pattern: Sequence[int]) -> Iterator[None]:
    """Inside, assisted generation with ``target`` accepts what ``pattern`` says, round by round
    from its start."""
    counts = cycle(pattern)

    def edit(_module: Any, _arguments: Any, keywords: dict[str, Any], output: Any) -> Any:
        num_drafted = int(keywords.get("logits_to_keep", 1)) - 1
        if num_drafted < 1:  # a pass that verifies nothing
            return output
        accepted = next(counts)
        drafted = keywords["input_ids"][0, -num_drafted:]
        for node in range(min(accepted + 1, num_drafted)):
            output.logits[0, node, drafted[node]] = (
                REPLAYED_LOGIT if node < accepted else -REPLAYED_LOGIT
            )
        return output

    handle = target.register_forward_hook(edit, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


SHAPES: dict[str, dict[str, Any]] = {
    "4B": {
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 9728,
    },
    "0.6B": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
    },
}

_COLUMNS = 151_936

_WARM_UPS = 5  # turns that are not counted
_BATCH = 8


def random_pair(target: str = "4B", draft: str = "0.6B") -> Pair:
    """Two Qwen3 models of these shapes in bfloat16 on the GPU, with random weights; no tokenizer,
    nothing ends them."""
    models = [_random_model(SHAPES[name], seed) for seed, name in enumerate((target, draft))]
    return Pair(models[0], models[1], None, _COLUMNS, (), f"random {target} + random {draft}")


def random_runners() -> tuple[Pair, tuple[ReplayingRunner, CudaRunner]]:
    """``random_pair`` and its engines."""
    pair = random_pair()
    target = ReplayingRunner(pair.target, pair.num_tokens)
    return pair, (target, CudaRunner(pair.draft, pair.num_tokens))


def _random_model(shape: dict[str, Any], seed: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=_COLUMNS,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
        dtype=torch.bfloat16,
        **shape,
    )
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval().requires_grad_(False)


def launch_times(
    launches: Mapping[Way, Callable[[], Any]], restart: Callable[[], Any], repeats: int
) -> dict[Way, list[float]]:
    """Milliseconds of each launch on the device, all in turn, ``restart`` before every turn; some
    turns warm up."""
    times: dict[Way, list[float]] = {key: [] for key in launches}
    for _ in range(_WARM_UPS + repeats):
        restart()
        for key, launch in launches.items():
            times[key].append(device_time(launch) / 1e3)
    return {key: each[_WARM_UPS:] for key, each in times.items()}


def waited(way: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """The same, ended when the device has ended."""

    def run(item: Item) -> Result:
        result = way(item)
        torch.cuda.synchronize()
        return result

    return run


def measure_rounds(
    target: CudaRunner, draft: CudaRunner, num_positions: int = 8, context: int = 512
) -> dict[str, Any]:
    """Milliseconds on the GPU of a verify pass, a draft step, and a round with and without
    certificates (medians of turns), each one CUDA graph, after ``context`` tokens. The draft step
    is one as rounds run it: what a round of so many positions takes longer than one of half as
    many, but for its longer verify pass, by step."""
    prompt = list(range(1, context + 1))
    for runner in (target, draft):
        runner.prefill([prompt])
        runner.reserve(context + 4 * num_positions)
    half = num_positions // 2
    graphs: dict[str, Callable[[], Any]] = {}
    for name, count in (("verify", num_positions), ("verify half", half)):
        target.forward(torch.ones((1, count), dtype=torch.int64))
        target.commit([[]])
        graphs[name] = target.graph_of(1, count).replay
    table = rule_table((StrictGreedy(),))
    rounds = {
        name: kind(target, draft, 1, chain(count - 1), table, strict=True)
        for name, kind, count in (
            ("round", TreeRounds, num_positions),
            ("round without certificates", UncertifiedRounds, num_positions),
            ("half a round", UncertifiedRounds, half),
        )
    }
    for name, each in rounds.items():
        graphs[name] = each.begin

    def restart() -> None:  # the same place in the cache every time
        for each in rounds.values():
            each.start([RowState(prompt[-2], prompt[-1], context)], [0], [0])

    times = launch_times(graphs, restart, 35)
    found = {name: statistics.median(values) for name, values in times.items()}
    added = statistics.median(
        [
            one - other
            for one, other in zip(times["round"], times["round without certificates"], strict=True)
        ]
    )
    steps = found["round without certificates"] - found["half a round"]
    steps -= found["verify"] - found["verify half"]
    return {
        "context": context,
        "positions": num_positions,
        "verify_ms": found["verify"],
        "draft_step_ms": steps / (num_positions - half),
        "round_ms": found["round"],
        "round_without_certificates_ms": found["round without certificates"],
        "certificates_ms": added,
        "certificates_share_of_verify": added / found["verify"],
        "certificates_share_of_round": added / found["round"],
    }


def measure_ways(
    pair: Pair,
    runners: tuple[ReplayingRunner, CudaRunner],
    lengths: Sequence[int],
    tree: TreeShape,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Tokens a second of transformers plain, compiled and assisted, and of ours without a draft,
    with each draft length and with the tree, one prompt at a time and, without a draft, eight
    copies of it at once; ratios of ours to the fastest way of transformers (``peer``), to assisted
    at the same length and pattern, and to plain, within a repeat."""
    drafts: dict[str, int | DraftPolicy] = {f"chain of {length}": length for length in lengths}
    drafts[f"tree of {tree.width} x {tree.depth}"] = StaticPolicy(tree.topology)
    patterns = {name: bundled_accepts(draft) for name, draft in drafts.items()}
    peers: dict[str, Callable[[Sequence[int]], int]] = {
        "transformers plain": lambda p: len(reference_tokens(pair, p, num_tokens)),
        "transformers compiled": partial(_compiled, pair, num_tokens=num_tokens),
        f"transformers compiled, batch {_BATCH}": partial(
            _compiled, pair, num_tokens=num_tokens, batch=_BATCH
        ),
    }
    ways = dict(peers)
    undrafted = partial(_ours, pair, runners, num_tokens=num_tokens, draft=0, pattern=())
    ways["certspec, no draft"] = undrafted
    ways[f"certspec, no draft, batch {_BATCH}"] = partial(undrafted, batch=_BATCH)
    for name, draft in drafts.items():
        setting: dict[str, Any] = {"num_tokens": num_tokens, "pattern": patterns[name]}
        if isinstance(draft, int):
            ways[_same_length(draft)] = partial(_assisted, pair, length=draft, **setting)
        ways[f"certspec, {name}"] = partial(_ours, pair, runners, draft=draft, **setting)
    ways = {name: waited(way) for name, way in ways.items()}
    with inference(pair.target, pair.draft):
        warmed_up(ways, prompts[0])
        turns = list(in_turns(ways, prompts, repeats))
    speeds = tokens_per_second(turns, int)
    emitted = dict.fromkeys(ways, 0)
    for turn in turns:
        emitted[turn.way] += turn.result
    at_once = f", batch {_BATCH}"
    alone = [name for name in ways if not name.startswith("certspec") and at_once not in name]
    peer = max(alone, key=lambda name: statistics.median(speeds[name]))
    against = {"no draft": {"best peer": peer, "plain": "transformers plain"}}
    against["no draft" + at_once] = {"compiled" + at_once: "transformers compiled" + at_once}
    for name, draft in drafts.items():
        against[name] = {"best peer": peer, "plain": "transformers plain"}
        if isinstance(draft, int):
            against[name]["assisted, same length"] = _same_length(draft)
    ratios = {
        way: {
            label: ratio_spread(speeds[f"certspec, {way}"], speeds[name])
            for label, name in names.items()
        }
        for way, names in against.items()
    }
    return {
        "patterns": {
            name: {
                "rounds": len(pattern),
                "mean_accepted": statistics.fmean(pattern),
                "accepted": pattern,
            }
            for name, pattern in patterns.items()
        },
        "tokens": emitted,
        "tokens_per_second": {name: spread(values) for name, values in speeds.items()},
        "peer": peer,
        "ratios": ratios,
    }


def _same_length(length: int) -> str:
    return f"assisted, {length} tokens"


def _ours(
    pair: Pair,
    runners: tuple[ReplayingRunner, CudaRunner],
    prompt: Sequence[int],
    num_tokens: int,
    draft: int | DraftPolicy,
    pattern: tuple[int, ...],
    batch: int = 1,
) -> int:
    with runners[0].replaying(pattern):
        generation = generate(
            pair,
            [list(prompt)] * batch,
            draft_length=draft,
            max_new_tokens=num_tokens,
            batch_size=batch,
            runners=runners,
            eos_token_ids=[],
        )
    return sum(map(len, generation.sequences))


def _compiled(pair: Pair, prompt: Sequence[int], num_tokens: int, batch: int = 1) -> int:
    ids = torch.tensor([list(prompt)] * batch, device=pair.target.device)
    output = pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        cache_implementation="static",
    )
    return int(output[:, ids.shape[1] :].numel())


def _assisted(
    pair: Pair, prompt: Sequence[int], num_tokens: int, length: int, pattern: Sequence[int]
) -> int:
    with (
        assistant_setting(pair.draft, (length, "constant", 0.0)),
        replayed_in_transformers(pair.target, pattern),
    ):
        return len(reference_tokens(pair, prompt, num_tokens, pair.draft))
