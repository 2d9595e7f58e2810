"""A whole scoring run: prompts in, finished parts in a folder out, going on where an earlier
process stopped."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from certspec.errors import InvalidArgument
from certspec.models.choice import reason_for_transformers, refuse_files_without_engine
from certspec.models.padded_runner import PaddedRunner
from certspec.models.runner import BoundedRunner, require_runners
from certspec.models.settings import find_eos_token_ids
from certspec.rules import Rule, default_rules
from certspec.runs.folder import RunFolder, RunOutcome
from certspec.runs.schema import COLUMNS, step_schema, step_table
from certspec.runs.shards import Shard
from certspec.scoring.batches import plan_batches
from certspec.scoring.greedy import GreedyLimits, score_batch
from certspec.scoring.prompts import PromptFile
from certspec.scoring.provenance import kernel_hashes, pair_facts, session_facts, spread_of

if TYPE_CHECKING:
    from certspec.models.runner import ModelRunner

__all__ = ["RunSettings", "score_run", "scoring_engine", "scoring_runners"]


@dataclass(frozen=True)
class RunSettings:
    """What a run is asked to do; every field decides its rows, and a folder is refused to a run
    that differs in one."""

    rules: tuple[Rule, ...] = ()
    steps: int = 96
    batch_size: int = 16
    limit: int | None = None
    chat: bool = True
    reach: bool = False  # also up to which error of the logits each step stays certified

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgument(f"{name}: expected an integer of at least 1, got {value!r}")
        object.__setattr__(self, "rules", tuple(self.rules) or tuple(default_rules()))


def score_run(
    pair: Any,
    prompts: PromptFile,
    folder: RunFolder,
    settings: RunSettings | None = None,
    *,
    shard: Shard | None = None,
    runners: tuple[ModelRunner, ModelRunner | None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_advance: Callable[[int], None] | None = None,
) -> RunOutcome:
    """Score ``prompts`` into ``folder``, or the batches of ``shard`` where several processes share
    the work.

    ``pair`` is a ``certspec.Pair``; its draft may be None (the target's certificates need no
    draft). ``runners``: (target's, draft's) in place of our own. ``on_start`` is told the number of
    steps at most, ``on_advance`` the steps done since it was last called (steps that an earlier
    process did, or that an early end made unnecessary, count as done). Raises RunMismatch where the
    folder holds another run. Killed at any moment, the next call redoes at most one batch."""
    settings, shard = settings or RunSettings(), shard or Shard()
    target, draft, engine = (
        scoring_runners(pair) if runners is None else _given(pair, runners, settings)
    )
    context = min(int(model.config.max_position_embeddings) for model in _models_of(pair))
    limits = GreedyLimits(settings.steps, context, find_eos_token_ids(pair.target))
    labels = [rule.label for rule in settings.rules]
    num_prompts = min(prompts.num_prompts, settings.limit or prompts.num_prompts)
    num_batches = 0
    fixed = _fixed_settings(pair, prompts, settings, limits, engine)
    notes = {
        "prompts_path": str(prompts.path),
        "notes": list(pair.notes),
        "kernels": kernel_hashes(),
    }
    with folder.working(shard, fixed, session_facts(pair.device), **notes) as finish:
        # In a team every rank must do the same batches, though parts appear while they work.
        finished = shard.agree({part.name for part in folder.parts()})
        if on_start is not None:
            on_start(num_prompts * settings.steps)
        chosen = itertools.islice(prompts, settings.limit)
        batches = plan_batches(
            chosen,
            pair.tokenizer,
            batch_size=settings.batch_size,
            context=limits.context,
            chat=settings.chat,
        )
        for batch in batches:
            counter = _Counter(on_advance)
            num_batches = batch.number + 1
            if shard.owns(batch.number) and folder.part_path(batch.number).name not in finished:
                columns = (
                    score_batch(
                        target,
                        draft,
                        batch,
                        settings.rules,
                        limits,
                        reach=settings.reach,
                        on_steps=counter,
                    )
                    if batch.prompts
                    else dict.fromkeys(COLUMNS) | {"prompt": []}  # all prompts were skipped
                )
                if shard.writes:
                    schema = step_schema(labels, [asdict(skip) for skip in batch.skipped])
                    folder.write_part(batch.number, step_table(columns, schema))
            counter.finish((len(batch.prompts) + len(batch.skipped)) * settings.steps)
        return finish(num_batches)


class _Counter:
    """Counts the steps of one batch, so that those an early end saved can be told as well."""

    def __init__(self, on_advance: Callable[[int], None] | None) -> None:
        self._on_advance = on_advance or (lambda num_steps: None)
        self._num_steps = 0

    def __call__(self, num_steps: int) -> None:
        self._num_steps += num_steps
        self._on_advance(num_steps)

    def finish(self, num_steps_at_most: int) -> None:
        self._on_advance(num_steps_at_most - self._num_steps)


def scoring_engine(pair: Any) -> tuple[str, tuple[str, ...]]:
    """What runs the pair's models, in words, and why it is transformers where it is: the compiled
    engine on a CPU for float32 models that it knows, transformers for all others, and for both
    where one of the two needs it."""
    refuse_files_without_engine(pair)
    notes = tuple(
        f"{role}: run by transformers ({reason})"
        for role, model in (("target", pair.target), ("draft", pair.draft))
        if model is not None and (reason := _reason_for_transformers(model)) is not None
    )
    return "transformers" if notes else "certspec cpu", notes


def _reason_for_transformers(model: Any) -> str | None:
    if model.device.type != "cpu":
        return f"on {model.device.type}, where scoring has no engine of its own"
    return "spread over devices" if spread_of(model) else reason_for_transformers(model)


def scoring_runners(pair: Any, *, target_alone: bool = False) -> tuple[Any, Any | None, str]:
    """Runners of target and draft (None where there is no draft, or ``target_alone``) and what they
    are."""
    engine, _ = scoring_engine(pair)
    runner: Any = PaddedRunner
    if engine != "transformers":
        from certspec.models.cpu.runner import CpuRunner

        runner = CpuRunner
    models = [pair.target] if target_alone else _models_of(pair)
    target, *draft = [runner(model, pair.num_tokens) for model in models]
    return target, draft[0] if draft else None, engine


def _given(
    pair: Any, runners: tuple[ModelRunner, ModelRunner | None], settings: RunSettings
) -> tuple[ModelRunner, ModelRunner | None, str]:
    """Runners of somebody else's engines, and their names."""
    require_runners(runners, pair.num_tokens, target_alone=True)
    if (runners[1] is None) != (pair.draft is None):
        raise InvalidArgument(
            f"runners: expected one for each model of the pair, got {runners!r} for a draft "
            f"{'there' if pair.draft is not None else 'missing'}"
        )
    for runner in runners:
        if isinstance(runner, BoundedRunner) and runner.max_batch < settings.batch_size:
            raise InvalidArgument(
                f"batch_size: expected at most {runner.max_batch}, which {type(runner).__name__} "
                f"can hold, got {settings.batch_size}"
            )
    names = (type(runner).__name__ for runner in runners if runner is not None)
    return *runners, f"given runners: {', '.join(names)}"


def _models_of(pair: Any) -> list[Any]:
    return [model for model in (pair.target, pair.draft) if model is not None]


def _fixed_settings(
    pair: Any, prompts: PromptFile, settings: RunSettings, limits: GreedyLimits, engine: str
) -> dict[str, Any]:
    """The settings that decide a run's rows, as JSON values."""
    return {
        **pair_facts(pair, engine),
        "prompts_sha256": prompts.sha256,
        "rules": [rule.label for rule in settings.rules],
        "steps": settings.steps,
        "batch_size": settings.batch_size,
        "limit": settings.limit,
        "chat": settings.chat,
        "context": limits.context,
        "eos_ids": sorted(limits.eos_ids),
        **({"reach": True} if settings.reach else {}),
    }
