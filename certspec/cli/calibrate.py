"""``certspec calibrate``: measures a draft on prompts and writes the profile that adaptive drafting
takes (``certspec.decoding.calibration``)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.interrupts import ended_by_interrupts
from certspec.cli.options import (
    PairOptions,
    count_option,
    file_option,
    json_option,
    limit_option,
    load_chosen_pair,
    pair_options,
    prompts_option,
)
from certspec.cli.progress import ProgressBar
from certspec.cli.prompts import fitting_prompts
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.runs.writing import write_atomically
from certspec.studies.waiting import compiling, waiting

if TYPE_CHECKING:
    from certspec.decoding.calibration import GreedySteps
    from certspec.runs.kept_steps import KeptSteps

__all__ = ["command"]


@click.command("calibrate")
@pair_options
@prompts_option("Prompts to measure on (default: the bundled ones).")
@limit_option()
@file_option("The profile (JSON).")
@file_option(
    "Milliseconds of a draft pass and of target passes by positions, for certspec advise (JSON).",
    "--costs",
    "costs_path",
)
@click.option(
    "--alpha",
    default=0.1,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    help="Miss level of the KL budget.",
)
@count_option("--max-new-tokens", default=128, least=2, help="Steps a prompt.")
@count_option("--width", default=4, most=64, help="Widest node to calibrate.")
@count_option("--batch-size", "--batch", default=1, help="Of the runs tuned for.")
@click.option(
    "--draft-cost",
    type=float,
    help="A draft pass in one-token target passes (default: measured here).",
)
@click.option(
    "--node-cost",
    type=float,
    help="One more verified node, in the same unit (default: measured here).",
)
@json_option
def command(
    prompts_path: Path | None,
    limit: int | None,
    out: Path | None,
    costs_path: Path | None,
    alpha: float,
    max_new_tokens: int,
    width: int,
    batch_size: int,
    draft_cost: float | None,
    node_cost: float | None,
    as_json: bool,
    **models: Any,
) -> None:
    """Measure a draft on prompts: a profile that adaptive drafting takes (--out), the costs of
    passes that certspec advise takes (--costs), or both.

    Use the profile as certspec decode --profile FILE, or certspec.generate(...,
    draft_length=certspec.Adaptive(certspec.load_profile(FILE)))."""
    if out is None and costs_path is None:
        raise InvalidArgument("calibrate: expected --out FILE, --costs FILE or both, got neither")
    if (draft_cost is None) != (node_cost is None):
        raise InvalidArgument(
            "expected both --draft-cost and --node-cost, or neither (they are then measured)"
        )
    if out is not None and costs_path is not None and out.resolve() == costs_path.resolve():
        raise InvalidArgument(f"calibrate: expected two files, got {out} for --out and --costs")
    costs = None if draft_cost is None or node_cost is None else (draft_cost, node_cost)
    from certspec.scoring.prompts import PromptFile

    prompts = PromptFile.check(prompts_path or BUNDLED_PROMPTS)
    pair = load_chosen_pair(PairOptions(**models))
    from certspec.decoding.calibration import measure_costs, profile_from_steps, require_calibration
    from certspec.decoding.profiles import profile_json

    require_calibration(pair, alpha, width, costs)
    kept, _ = fitting_prompts(pair, prompts, limit)
    ids = [list(prompt.token_ids) for _, prompt in kept]
    if out is None:
        if costs_path is not None:
            _write_costs(pair, ids[0], costs_path, as_json=as_json, alone=True)
        return
    with _kept_steps(pair, ids, out, max_new_tokens=max_new_tokens, width=width) as folder:
        # what can be gone on with comes first, what is timed in one go last
        steps = _measured_steps(pair, ids, max_new_tokens, width, folder)
        with ended_by_interrupts(_stopped(folder)):
            if costs_path is not None:
                _write_costs(pair, ids[0], costs_path, as_json=as_json)
            if costs is None:
                with waiting("timing rounds"), compiling():
                    costs = measure_costs(pair, ids, batch_size)
            profile = profile_from_steps(steps, pair.name, alpha, costs)
            profile.save(out)
        if folder is not None:
            folder.remove()
    if as_json:
        click.echo(profile_json(profile))
        return
    click.echo(f"{out}: {profile.num_steps} steps of {len(ids)} prompts, pair {profile.name}")
    if math.isinf(profile.kl_budget):
        least = math.ceil(1.0 / profile.alpha - 1.0)
        click.echo(f"no KL budget: at alpha {profile.alpha:g} it takes at least {least} steps")
    else:
        click.echo(
            f"KL budget {profile.kl_budget:.4g} nats at alpha {profile.alpha:g}; a step is not "
            "exchangeable with its neighbours, so this holds on average over such prompts"
        )
    click.echo(
        f"draft pass {profile.draft_cost:.3f}, verified node {profile.node_cost:.3f} of a target "
        f"pass; simulated rate {profile.rate:.3f} tokens in its time"
    )


@contextmanager
def _kept_steps(
    pair: Any, ids: list[list[int]], out: Path, **settings: int
) -> Iterator[KeptSteps | None]:
    """The folder beside ``out`` that holds the steps until the profile is there, held for this
    process. It is gone on with where all that its steps depend on is the same."""
    from certspec.models.choice import chosen_engine
    from certspec.runs.kept_steps import KeptSteps
    from certspec.runs.shards import Shard
    from certspec.scoring.provenance import pair_facts, session_facts

    kept = KeptSteps.beside(out)
    if kept is None:
        yield None
        return
    with waiting("hashing the weights", at_once=False):
        facts = pair_facts(pair, chosen_engine(pair)[0])
    facts["generation_config"] = json.loads(pair.target.generation_config.to_json_string())
    facts["prompts_sha256"] = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    facts |= {"num_prompts": len(ids), **settings}
    with kept.working(Shard(), facts, session_facts(pair.device)):
        if kept.parts():
            click.echo(f"going on with the steps in {kept.path}", err=True)
        yield kept


def _measured_steps(
    pair: Any, ids: list[list[int]], max_new_tokens: int, width: int, kept: KeptSteps | None
) -> GreedySteps:
    from certspec.decoding.calibration import greedy_steps

    with (
        ended_by_interrupts(_stopped(kept)),
        ProgressBar("calibrat", "prompts") as bar,
        compiling(),
    ):
        bar.start(len(ids))
        return greedy_steps(pair, ids, max_new_tokens, width, bar.advance, kept)


def _stopped(kept: KeptSteps | None) -> str:
    if kept is None:
        return "stopped"
    return f"stopped; finished steps are kept in {kept.path}. The same command goes on from there."


def _write_costs(
    pair: Any, prompt: list[int], path: Path, *, as_json: bool, alone: bool = False
) -> None:
    """Time passes into the file ``path``; ``alone``: they are all that was asked for."""
    from certspec.decoding.calibration import pass_costs

    with waiting("timing passes"), compiling():
        passes = pass_costs(pair, prompt)
    text = json.dumps(passes, indent=1)
    write_atomically(path, text + "\n")
    if alone and as_json:
        click.echo(text)
    verify = ", ".join(f"{count}: {ms:.2f}" for count, ms in passes["verify_ms"].items())
    click.echo(
        f"{path}: a draft pass {passes['draft_step_ms']:.2f} ms; target passes by "
        f"positions, ms: {verify} ({passes['engine']})",
        err=as_json,
    )
