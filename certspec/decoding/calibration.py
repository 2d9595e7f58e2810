"""Calibration of adaptive drafting: scores a draft on prompts, fits coverage and a KL budget, times
passes, and finds the rate at which stopping pays. Its results are a ``DraftingProfile``."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from certspec.certificates.coverage import coverage_certificates
from certspec.decoding.block_cache import BlockCache
from certspec.decoding.candidates import top_probs
from certspec.decoding.drafting import StaticPolicy, draft_blocks
from certspec.decoding.generation import (
    callables,
    generate,
    inference,
    positive_count,
    prompt_stopping,
)
from certspec.decoding.profiles import DraftingProfile, conformal_quantile, fit_monotone
from certspec.decoding.prompts import prompt_token_ids
from certspec.errors import InvalidArgument
from certspec.models.choice import chosen_runners, require_models
from certspec.models.runner import BoundedRunner, CompiledRunner
from certspec.models.settings import context_limit
from certspec.models.trees import chain
from certspec.rules import as_real

if TYPE_CHECKING:
    from certspec.models.pairs import Pair
    from certspec.models.runner import ModelRunner
    from certspec.runs.kept_steps import KeptSteps

__all__ = [
    "GreedySteps",
    "calibrate",
    "draft_timer",
    "greedy_steps",
    "measure_costs",
    "pass_costs",
    "profile_from_steps",
    "require_calibration",
    "simulate_chain",
    "tuned_rate",
]

_TIMED_CHAIN = 8  # draft passes timed together
_TIMED_PROMPTS, _TIMED_TOKENS, _TIMED_LENGTH = 4, 33, 4  # of the runs that tell what rounds cost
_TRIED = 6  # draft timings a repeat, the first of which warms the caches
_ENOUGH = 15.0  # seconds of timing after which a few repeats do: long passes vary less
_CHUNK = 8  # prompts answered together


@dataclass(frozen=True)
class GreedySteps:
    """The draft along the target's greedy answers: at each step the draft's largest probabilities
    ``top`` (n, K), the ``rank`` (n,) of the target's token among them (K: not there), KL(target ||
    draft) [nats], and the prompt."""

    prompt: np.ndarray
    top: np.ndarray
    rank: np.ndarray
    kl: np.ndarray

    def __len__(self) -> int:
        return len(self.rank)


def greedy_steps(
    pair: Pair,
    prompts: Any,
    max_new_tokens: int = 128,
    width: int = 4,
    on_advance: Callable[[int], Any] | None = None,
    kept: KeptSteps | None = None,
) -> GreedySteps:
    """Run the target greedily over ``prompts`` and read the draft's rows along its answers, one
    pass a prompt. Steps that ``kept`` holds are not measured again, and it holds those that are."""
    ids = prompt_token_ids(prompts, pair.tokenizer, pair.num_tokens)
    # all of them before the first is answered
    prompt_stopping(ids, max_new_tokens, context_limit(pair.target), frozenset())
    with chosen_runners(pair) as (target, _, _, _):
        # rows of a batch share a pass, so that drafts would only make it longer; transformers runs
        # one row at a time
        draft_length = 4 if isinstance(target, BoundedRunner) and target.max_batch == 1 else 0
    parts: list[dict[str, np.ndarray]] = []
    for number, start in enumerate(range(0, len(ids), _CHUNK)):
        chunk = ids[start : start + _CHUNK]
        columns = None if kept is None else kept.read(number)
        if columns is None:
            answers = generate(
                pair,
                chunk,
                draft_length=draft_length,
                max_new_tokens=max_new_tokens,
                batch_size=_CHUNK,
            ).sequences
            columns = _columns_along(pair, chunk, answers, start, width, on_advance)
            if kept is not None:
                kept.write(number, columns)
        elif on_advance is not None:
            on_advance(len(chunk))
        parts.append(columns)
    if not parts:
        raise InvalidArgument("prompts: expected at least one, got none")
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    top = np.column_stack([joined[f"top_{place}"] for place in range(width + 1)])
    return GreedySteps(joined["prompt"], top, joined["rank"], joined["kl"])


def _columns_along(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    first: int,
    width: int,
    on_advance: Callable[[int], Any] | None,
) -> dict[str, np.ndarray]:
    """The fields of ``GreedySteps``, of ``top`` a column each, for prompts ``first`` and following
    ones."""
    import torch

    from certspec.certificates.certify import certify

    prompt_of, top, rank, kl = [], [], [], []
    with chosen_runners(pair) as (target, draft, _, _), torch.inference_mode():
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True), first):
            rows = [_rows_along(runner, prompt, answer) for runner in (target, draft)]
            for row, token in zip(rows[1], answer, strict=True):
                best, probs = top_probs(row, width + 1)
                top.append(np.minimum(probs, 1.0))
                rank.append(best.index(token) if token in best[:width] else width + 1)
            kl += certify(rows[0], rows[1], ()).kl.tolist()
            prompt_of += [index] * len(answer)
            if on_advance is not None:
                on_advance(1)
    by_place = np.array(top).T
    return {"prompt": np.array(prompt_of), "rank": np.array(rank), "kl": np.array(kl)} | {
        f"top_{place}": column for place, column in enumerate(by_place)
    }


def _rows_along(runner: ModelRunner, prompt: Sequence[int], answer: Sequence[int]) -> Any:
    """(len(answer), vocab) logits that predict each token of the answer."""
    import torch

    rows = [runner.prefill([prompt])]
    if len(answer) > 1:
        rows.append(runner.forward(torch.tensor([list(answer[:-1])], dtype=torch.int64))[0])
    return torch.cat(rows)


def measure_costs(
    pair: Pair, prompts: Sequence[Sequence[int]], batch_size: int = 1, repeats: int = 5
) -> tuple[float, float]:
    """(draft pass, one more node to verify) as shares of a target pass of one token, all for one
    row of a batch of ``batch_size``; medians of interleaved repeats, at least two where they take
    long.

    Where the draft loop is compiled, a target pass stands for a whole round without a draft, and a
    node for what a round with one more takes: what the host does is in both. Elsewhere the passes
    alone are timed, for one row."""
    with chosen_runners(pair) as (target, draft, _, _):
        if not isinstance(draft, CompiledRunner):
            return _pass_shares(target, draft, prompts[0], 3 * repeats)
    chosen = [prompts[index % len(prompts)] for index in range(max(batch_size, _TIMED_PROMPTS))]
    ways = [(length, tokens) for length in (0, _TIMED_LENGTH) for tokens in (1, _TIMED_TOKENS)]
    seconds: dict[tuple[int, int], list[float]] = {way: [] for way in ways}
    metrics: dict[tuple[int, int], dict[str, Any]] = {}
    draft_passes: list[float] = []
    for repeat in _repeated(repeats + 1, least=3):
        for length, tokens in ways:
            began = time.perf_counter()
            run = generate(
                pair,
                chosen if repeat else chosen[:batch_size],
                draft_length=length,
                max_new_tokens=tokens if repeat else min(tokens, 2 * _TIMED_LENGTH),
                eos_token_ids=[],
                batch_size=batch_size,
            )
            if repeat:  # the first runs may compile
                seconds[length, tokens].append(time.perf_counter() - began)
            metrics[length, tokens] = run.metrics
        with chosen_runners(pair) as (_, draft, _, _), inference(pair.target, pair.draft):
            timer = draft_timer(draft, chosen[:batch_size])
            draft_passes += [timer() for _ in range(_TRIED)][1:]

    def of_rounds(length: int) -> tuple[float, float]:
        """Seconds and nodes a round of one row, prefill taken off."""
        first, whole = metrics[length, 1], metrics[length, _TIMED_TOKENS]
        rounds = max(whole["num_rounds"] - first["num_rounds"], 1)
        all_of_it, prefill = (
            float(np.median(seconds[length, tokens])) for tokens in (_TIMED_TOKENS, 1)
        )
        # one token takes as long as many where the machine was busy then: so prefill stays in
        took = all_of_it - prefill if prefill < 0.95 * all_of_it else all_of_it
        return took / rounds, max(whole["num_draft_nodes"] / rounds, 1e-9)

    plain, (drafted, nodes) = max(of_rounds(0)[0], 1e-9), of_rounds(_TIMED_LENGTH)
    draft_pass = float(np.median(draft_passes)) / batch_size
    return draft_pass / plain, max(((drafted - plain) / nodes - draft_pass) / plain, 1e-4)


def _repeated(most: int, least: int) -> Iterator[int]:
    """0, 1, ... up to ``most`` numbers, but no more than ``least`` once they took long enough."""
    began = time.perf_counter()
    for repeat in range(most):
        if repeat >= least and time.perf_counter() - began > _ENOUGH:
            return
        yield repeat


def _pass_shares(
    target: ModelRunner, draft: ModelRunner, prompt: Sequence[int], repeats: int
) -> tuple[float, float]:
    import torch

    times: dict[str, list[float]] = {"one": [], "eight": [], "draft": []}
    with torch.inference_mode():
        target.prefill([prompt])
        draft_time = draft_timer(draft, [prompt])
        for repeat in _repeated(repeats + 2, least=5):
            took = {"draft": draft_time()}
            for name, count in (("one", 1), ("eight", 8)):
                began = time.perf_counter()
                rows = target.forward(torch.full((1, count), int(prompt[0]), dtype=torch.int64))
                if rows.is_cuda:
                    torch.cuda.synchronize(rows.device)
                took[name] = time.perf_counter() - began
                target.commit([[]])
            if repeat >= 2:  # the first passes may compile
                for name, spent in took.items():
                    times[name].append(spent)
    one, eight, draft_pass = (float(np.median(times[name])) for name in ("one", "eight", "draft"))
    return draft_pass / one, max((eight - one) / 7.0 / one, 1e-4)


def draft_timer(draft: ModelRunner, prompts: Sequence[Sequence[int]]) -> Callable[[], float]:
    """What a draft pass of one token a prompt takes [s] each time it is called: a part of a chain
    where the runner drafts chains in compiled code, for there a pass costs no return to Python;
    else a pass on its own."""
    import torch

    tokens = [[int(prompt[0])] for prompt in prompts]
    nothing: list[list[int]] = [[] for _ in prompts]
    if isinstance(draft, CompiledRunner):
        cache, policy = BlockCache(draft, prompts), StaticPolicy(chain(_TIMED_CHAIN))

        def part_of_chain() -> float:
            began = time.perf_counter()
            draft_blocks(
                cache, policy, [_TIMED_CHAIN] * len(prompts), tokens, [None] * len(prompts)
            )
            took = (time.perf_counter() - began) / _TIMED_CHAIN
            cache.runner.commit(nothing)
            cache.num_staged = 0
            return took

        return part_of_chain
    draft.prefill(prompts)

    def one_pass() -> float:
        began = time.perf_counter()
        rows = draft.forward(torch.tensor(tokens, dtype=torch.int64))
        if rows.is_cuda:
            torch.cuda.synchronize(rows.device)
        took = time.perf_counter() - began
        draft.commit(nothing)
        return took

    return one_pass


# chance: the probability, given that its path is right, that a chain's next token is accepted; (n,)
# by step
StopRule = Callable[
    [float, float, int], tuple[bool, bool]
]  # (path chance, own chance, depth) -> (verify it, run it)


def pass_costs(
    pair: Pair, prompt: Sequence[int], positions: Sequence[int] = (1, 2, 4, 6, 8, 12, 16)
) -> dict[str, Any]:
    """Milliseconds of a draft pass, as drafting a chain spends them, and of target passes by number
    of positions: medians of 15, or of 5 at least where they take long, in the form that ``certspec
    advise`` reads."""
    import torch

    def timed(runner: Any, count: int) -> float:
        began = time.perf_counter()
        rows = runner.forward(torch.full((1, count), int(prompt[0]), dtype=torch.int64))
        if rows.is_cuda:
            torch.cuda.synchronize(rows.device)
        took = time.perf_counter() - began
        runner.commit([[]])
        return took

    with inference(pair.target, pair.draft), chosen_runners(pair) as (target, draft, engine, _):
        target.prefill([prompt])
        draft_time = draft_timer(draft, [prompt])
        rounds = [
            (draft_time(), *(timed(target, count) for count in positions))
            for _ in _repeated(8 + 15, least=8 + 5)
        ][8:]  # the first ones may compile, and try how many threads to use
    medians = [1e3 * statistics.median(column) for column in zip(*rounds, strict=True)]
    verify = {str(count): ms for count, ms in zip(positions, medians[1:], strict=True)}
    return {"engine": engine, "draft_step_ms": medians[0], "verify_ms": verify}


def simulate_chain(
    steps: GreedySteps,
    chances: np.ndarray,
    stop: StopRule,
    draft_cost: float,
    node_cost: float,
    depth: int = 16,
) -> dict[str, float]:
    """Replay chains on recorded steps: tokens a target pass, draft passes a target pass, and the
    rate (tokens in the time of a one-token target pass). Past a wrong token the recorded rows stand
    in for the draft's own, which are not known; they change what is spent there and never what is
    accepted."""
    num_rounds = num_tokens = num_drafts = num_nodes = 0
    ends = np.searchsorted(steps.prompt, steps.prompt, side="right")
    hit = steps.rank == 0
    at = 0
    while at < len(steps):
        end, path, length = int(ends[at]), 1.0, 0
        drafts = 1
        while length < min(depth, end - at - 1):
            own = float(chances[at + length])
            verify, run = stop(path, own, length)
            if not verify:
                break
            path, length = path * own, length + 1
            if not run:
                break
            drafts += 1
        accepted = 0
        while accepted < length and hit[at + accepted]:
            accepted += 1
        drafts = min(drafts, max(length, 1))
        num_rounds, num_drafts, num_nodes = num_rounds + 1, num_drafts + drafts, num_nodes + length
        num_tokens += min(accepted + 1, end - at)
        at += accepted + 1
    spent = num_rounds + draft_cost * num_drafts + node_cost * num_nodes
    return {
        "tokens_per_target_pass": num_tokens / num_rounds,
        "draft_passes_per_target_pass": num_drafts / num_rounds,
        "nodes_per_target_pass": num_nodes / num_rounds,
        "rate": num_tokens / spent,
    }


def chain_stop(rate: float, draft_cost: float, node_cost: float) -> StopRule:
    """The stopping of ``Adaptive`` with width 1."""

    def stop(path: float, own: float, _depth: int) -> tuple[bool, bool]:
        chance = path * own
        return chance >= rate * node_cost, chance >= rate * (draft_cost + node_cost)

    return stop


def tuned_rate(
    steps: GreedySteps, chances: np.ndarray, draft_cost: float, node_cost: float
) -> float:
    """The rate at which a token gained pays for its cost: the fixed point of the simulated rate
    (Dinkelbach)."""
    rate = 1.0
    for _ in range(12):
        found = simulate_chain(
            steps, chances, chain_stop(rate, draft_cost, node_cost), draft_cost, node_cost
        )["rate"]
        if abs(found - rate) < 1e-3:
            break
        rate = found
    return rate


def calibrate(
    pair: Pair,
    prompts: Any,
    *,
    alpha: float = 0.1,
    max_new_tokens: int = 128,
    width: int = 4,
    costs: tuple[float, float] | None = None,
    batch_size: int = 1,
    on_advance: Callable[[int], Any] | None = None,
) -> DraftingProfile:
    """Measure a draft on ``prompts`` and return the profile that adaptive drafting takes.

    Args:
        pair: what ``load_pair`` returned.
        prompts: texts, messages or token ids, as ``generate`` takes them.
        alpha: miss level of the KL budget.
        max_new_tokens: how far each prompt is followed.
        width: the widest tree whose coverage is measured.
        costs: (draft pass, one more node) as shares of a target pass; None measures them here.
        batch_size: of the batches whose costs are measured: a batch fills the cores, so that a node
            costs more of a pass there.
        on_advance: hears how many more prompts are done; the costs are measured after the last.

    Raises InvalidArgument where there is no step.

    Example:
        >>> import certspec as cs
        >>> pair = cs.load_pair()
        >>> profile = cs.calibrate(pair, ["A fox."], max_new_tokens=16, costs=(0.1, 0.05))
        >>> profile.num_steps, profile.width
        (16, 4)
        >>> fox = cs.generate(pair, "A fox.", draft_length=cs.Adaptive(profile), max_new_tokens=8)
    """
    require_calibration(pair, alpha, width, costs)
    size = positive_count("batch_size", batch_size)
    callables("on_advance", on_advance, many=False)
    ids = prompt_token_ids(prompts, pair.tokenizer, pair.num_tokens)
    steps = greedy_steps(pair, ids, max_new_tokens, width, on_advance)
    return profile_from_steps(steps, pair.name, alpha, costs or measure_costs(pair, ids, size))


def require_calibration(
    pair: Pair, alpha: float, width: int, costs: tuple[float, float] | None
) -> None:
    """InvalidArgument, before anything is measured, for what ``calibrate`` does not take."""
    require_models(pair)
    if not 0.0 < as_real(alpha) < 1.0:
        raise InvalidArgument(f"alpha: expected a number between 0 and 1, got {alpha!r}")
    if positive_count("width", width) >= pair.num_tokens:
        raise InvalidArgument(
            f"width: expected less than {pair.num_tokens}, the pair's tokens, got {width}"
        )
    if costs is not None and not (
        isinstance(costs, (tuple, list))
        and len(costs) == 2
        and all(0.0 <= as_real(cost) < math.inf for cost in costs)
    ):
        raise InvalidArgument(f"costs: expected None or two numbers of at least 0, got {costs!r}")


def profile_from_steps(
    steps: GreedySteps, name: str, alpha: float, costs: tuple[float, float]
) -> DraftingProfile:
    """The profile of recorded steps."""
    width = steps.top.shape[1] - 1
    certificates = coverage_certificates(steps.top, width)
    coverage = tuple(fit_monotone(certificates[m], steps.rank <= m) for m in range(width))
    profile = DraftingProfile(
        name,
        len(steps),
        alpha,
        conformal_quantile(steps.kl, alpha),
        coverage,
        *costs,
        rate=1.0,
        notes=(
            "kl_budget: split-conformal, valid for exchangeable steps; the steps of one answer "
            "are not exchangeable, "
            "so the coverage holds on average over such prompts and not step by step",
            "coverage: isotonic regression on the same steps",
        ),
    )
    return replace(profile, rate=tuned_rate(steps, coverage[0](certificates[0]), *costs))
