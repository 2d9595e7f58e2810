"""Whether advice is good: every way of drafting measured in real runs beside the one that
``advise`` names from recorded steps and measured costs. All ways are lossless; both sides count
emitted token ids."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from certspec.decoding.calibration import pass_costs
from certspec.decoding.generation import generate
from certspec.decoding.policies import WithinBudget
from certspec.models.pairs import Pair
from certspec.models.trees import TreeShape
from certspec.reports.advising.advice import Candidate, advise
from certspec.reports.advising.costs import Costs
from certspec.rules import Rule, StrictGreedy, Tree
from certspec.runs.folder import RunFolder
from certspec.runs.stream import open_run
from certspec.scoring.prompts import PromptFile
from certspec.scoring.run import RunSettings, score_run
from certspec.studies.bench.spreads import in_turns, spread, tokens_per_second, warmed_up
from certspec.studies.waiting import advancing, doing

__all__ = ["measure_advice"]

_POSITIONS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
_BUDGETS = (0.01, 0.1, 0.3)  # of the ways that are measured; advice may choose among these alone


def measure_advice(
    pair: Pair,
    prompt_path: Path,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    repeats: int,
    lengths: Sequence[int],
    widths: Sequence[int],
    num_scored: int | None = None,
) -> dict[str, Any]:
    """Score ``prompt_path`` (its first ``num_scored`` prompts), take advice, then measure every
    candidate on ``prompts`` (token ids), in turns.

    ``ratio``: the choice's median speed over that of the fastest way measured; 1 where advice names
    it."""
    with doing("measuring costs"):
        costs, facts = _measured_costs(pair, prompts, num_tokens)
    rules: tuple[Rule, ...] = (StrictGreedy(), *(Tree(width) for width in widths))
    with tempfile.TemporaryDirectory() as folder, advancing("scoring", "steps") as told:
        run = RunFolder(Path(folder) / "run")
        score_run(
            pair,
            PromptFile.check(prompt_path),
            run,
            RunSettings(rules, num_tokens, limit=num_scored),
            **told,
        )
        advice = advise(
            open_run(run.path),
            costs,
            lengths=lengths,
            widths=(),
            max_nats_lost=0.0,
            budgets=_BUDGETS,
        )
    ways = {_name(each): _way(pair, each, num_tokens) for each in advice.candidates}
    warmed_up(ways, prompts[:1])
    turns = list(in_turns(ways, [prompts], repeats))
    speeds = tokens_per_second(turns, lambda sequences: sum(map(len, sequences)))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    choice, best = _name(advice.candidates[0]), max(medians, key=lambda name: medians[name])
    return {
        "costs": facts,
        "choice": choice,
        "best_measured": best,
        "ratio": medians[choice] / medians[best],
        "same_output": all(turn.result == turns[0].result for turn in turns),
        "ways": {
            _name(each): {"predicted": each.tokens_per_second, **spread(speeds[_name(each)])}
            for each in advice.candidates
        },
    }


def _measured_costs(
    pair: Pair, prompts: Sequence[Sequence[int]], num_tokens: int
) -> tuple[Costs, dict[str, Any]]:
    """Costs of passes, and of what decoding does around them: the rest of a round's time, from real
    runs of short and of long chains, which is a part for each round and a part for each drafted
    token."""
    passes = pass_costs(pair, prompts[0], _POSITIONS)
    verify = tuple((int(count), ms) for count, ms in passes["verify_ms"].items())
    bare = Costs(passes["draft_step_ms"], verify)
    rest = []
    for length in (1, 8):
        times = []
        for repeat in range(4):
            began = time.perf_counter()
            metrics = generate(
                pair, list(prompts[:4]), draft_length=length, max_new_tokens=num_tokens
            ).metrics
            if repeat:  # the first compiles
                rounds = metrics["num_spec_steps"] + metrics["num_plain_steps"]
                times.append(1e3 * (time.perf_counter() - began) / rounds)
        rest.append(statistics.median(times) - bare.round_ms(length, length))
    per_token = max((rest[1] - rest[0]) / 7.0, 0.0)
    overhead = max(rest[0] - per_token, 0.0)
    facts = {
        "draft_step_ms": passes["draft_step_ms"] + per_token,
        "verify_ms": passes["verify_ms"],
        "overhead_ms": overhead,
    }
    return Costs(facts["draft_step_ms"], verify, overhead), facts


def _way(
    pair: Pair, each: Candidate, num_tokens: int
) -> Callable[[Sequence[Sequence[int]]], list[list[int]]]:
    options: dict[str, Any] = {"draft_length": each.draft_length}
    if each.kl_budget is not None:
        options = {"draft_length": WithinBudget(each.kl_budget, depth=each.draft_length, width=1)}
    elif each.rule.tree_width:
        options = {"tree": TreeShape(each.rule.tree_width, each.draft_length)}
    return lambda prompts: (
        generate(pair, list(prompts), max_new_tokens=num_tokens, **options).sequences
    )


def _name(each: Candidate) -> str:
    return f"{each.name}, length {each.draft_length}"
