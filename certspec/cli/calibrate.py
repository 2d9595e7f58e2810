"""``certspec calibrate``: measures a draft on prompts and writes the profile that adaptive drafting
takes (``certspec.decoding.calibration``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from certspec.cli.options import PairOptions, count_option, load_chosen_pair, pair_options
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS

__all__ = ["command"]


@click.command("calibrate")
@click.argument("prompts", type=click.Path(path_type=Path, dir_okay=False), required=False)
@pair_options
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The profile (JSON).",
)
@click.option(
    "--alpha", default=0.1, show_default=True, type=float, help="Miss level of the KL budget."
)
@count_option("--max-new-tokens", default=128, least=2, help="Steps a prompt.")
@count_option("--width", default=4, most=64, help="Widest node to calibrate.")
@count_option("--batch-size", default=1, help="Of the runs tuned for.")
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
def command(
    prompts: Path | None,
    output: Path,
    alpha: float,
    max_new_tokens: int,
    width: int,
    batch_size: int,
    draft_cost: float | None,
    node_cost: float | None,
    **models: Any,
) -> None:
    """Calibrate drafting on PROMPTS (a prompt file; default: the bundled prompts) and write a
    profile.

    Use it as certspec.generate(..., draft_length=certspec.Adaptive(certspec.load_profile(FILE))).
    """
    if (draft_cost is None) != (node_cost is None):
        raise InvalidArgument(
            "expected both --draft-cost and --node-cost, or neither (they are then measured)"
        )
    costs = None if draft_cost is None or node_cost is None else (draft_cost, node_cost)
    pair = load_chosen_pair(PairOptions(**models))
    from certspec.decoding.calibration import calibrate
    from certspec.decoding.prompts import prompt_token_ids
    from certspec.scoring.prompts import PromptFile

    read = PromptFile.check(prompts or BUNDLED_PROMPTS)
    texts = [str(prompt.messages[-1]["content"]) for prompt in read]
    ids = prompt_token_ids(texts, pair.tokenizer, pair.num_tokens)
    profile = calibrate(
        pair,
        ids,
        alpha=alpha,
        max_new_tokens=max_new_tokens,
        width=width,
        costs=costs,
        batch_size=batch_size,
    )
    profile.save(output)
    click.echo(f"{output}: {profile.num_steps} steps of {len(ids)} prompts, pair {profile.name}")
    click.echo(
        f"KL budget {profile.kl_budget:.4g} nats at alpha {profile.alpha:g}; a step is not "
        "exchangeable with its neighbours, so this holds on average over such prompts"
    )
    click.echo(
        f"draft pass {profile.draft_cost:.3f}, verified node {profile.node_cost:.3f} of a target "
        f"pass; simulated rate {profile.rate:.3f} tokens in its time"
    )
