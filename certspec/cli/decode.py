"""``certspec decode``: streams a speculatively decoded answer whose tokens show what happened to
them. On a terminal certified tokens are bold green, the target's corrections underlined red."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.interrupts import interruptible
from certspec.cli.options import (
    PairOptions,
    count_option,
    draft_length_option,
    json_option,
    load_chosen_pair,
    pair_options,
    plain_prompts_option,
    say_engine,
)
from certspec.cli.waiting import compiling
from certspec.errors import InvalidArgument
from certspec.presets import parse_rule

if TYPE_CHECKING:
    from certspec.kernels.compiled import CompileClock

__all__ = ["command", "step_class"]

# What happened to a token -> (style on a terminal, what it means). Styles differ in more than
# colour.
_CLASSES = {
    "certified": ("bold green", "draft token that the certificate guaranteed"),
    "accepted": ("yellow", "draft token accepted without a guarantee"),
    "corrected": ("underline red", "the target's token in place of a rejected draft"),
    "bonus": ("italic cyan", "the target's token after a draft that was accepted whole"),
    "plain": ("", "the target's token where nothing was drafted"),
}


@click.command("decode")
@click.argument("prompt")
@pair_options
@click.option(
    "--rule",
    "rule_label",
    default=None,
    metavar="RULE",
    help="strict (default), additive:0.3, multiplicative:0.1, top:4, medusa, tree:4 ...",
)
@click.option(
    "--tree",
    type=click.IntRange(min=1),
    metavar="M",
    help="Draft a tree: M candidates at each node.",
)
@draft_length_option("Tokens (tree: depth) a round, at most.")
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draft as long as it pays by this profile (certspec calibrate --out).",
)
@click.option(
    "--kl-budget",
    type=float,
    metavar="NATS",
    help="Draft until a token is not certain for targets within this KL.",
)
@count_option("--max-new-tokens", default=128, help="Tokens at most.")
@plain_prompts_option
@json_option
def command(
    prompt: str,
    rule_label: str | None,
    tree: int | None,
    draft_length: int,
    profile_path: Path | None,
    kl_budget: float | None,
    max_new_tokens: int,
    plain_prompts: bool,
    as_json: bool,
    **models: Any,
) -> None:
    """Decode PROMPT speculatively and show, token by token, what was certified.

    On a terminal the tokens are coloured and followed by a legend and a summary; otherwise the text
    alone goes to standard output, and the summary to standard error."""
    rule = parse_rule(rule_label or "strict")
    from certspec.decoding import Adaptive, WithinBudget, generate, load_profile

    policy: Any = draft_length
    if profile_path is not None and kl_budget is not None:
        raise InvalidArgument("decode: expected --profile or --kl-budget, got both")
    if profile_path is not None:
        policy = Adaptive(load_profile(profile_path), depth=draft_length, width=tree or 1)
    elif kl_budget is not None:
        policy = WithinBudget(kl_budget, depth=draft_length, width=tree or 1)
    pair = load_chosen_pair(PairOptions(**models))
    from certspec.models.choice import chosen_engine

    engine, notes = chosen_engine(pair)
    say_engine(pair, engine, notes)
    with interruptible("stopped"), compiling() as clock:
        stream = _TokenStream(pair.tokenizer, clock, shown=not as_json)
        try:
            generation = generate(
                pair,
                prompt,
                rule,
                draft_length=policy,
                tree=tree if policy is draft_length else None,
                max_new_tokens=max_new_tokens,
                chat=False if plain_prompts else None,
                on_step=stream,
            )
        except KeyboardInterrupt:
            stream.finish()
            click.echo(f"stopped after {stream.num_tokens} tokens", err=True)
            sys.exit(130)
    if as_json:
        click.echo(json.dumps(_facts(generation, stream, rule.label), indent=2))
        return
    stream.finish()
    stream.print_legend()
    for line in _summary_lines(generation, stream, rule.label, (*pair.notes, *notes)):
        click.echo(line, err=not stream.is_terminal)


def _facts(generation: Any, stream: _TokenStream, label: str) -> dict[str, Any]:
    return {
        "rule": label,
        "text": generation.texts[0],
        "tokens": generation.sequences[0],
        "finish_reason": generation.finish_reasons[0],
        "tokens_per_second": stream.tokens_per_second,
        "compile_seconds": stream.clock.seconds,
        "engine": generation.engine,
        "notes": list(generation.notes),
        "counts": dict(stream.counts),
        "metrics": generation.metrics,
    }


def step_class(step: Any) -> str:
    """What to call a step: certified, accepted, corrected, bonus or plain."""
    return "certified" if step.kind == "accepted" and step.certified else step.kind


class _TokenStream:
    """Prints tokens as they come. Bytes of an unfinished character wait for the token that
    completes it."""

    def __init__(self, tokenizer: Any, clock: CompileClock, *, shown: bool = True) -> None:
        # a closed standard output is None
        self.is_terminal = shown and sys.stdout is not None and sys.stdout.isatty()
        self._shown = shown
        self.counts: Counter[str] = Counter()
        self.clock = clock
        self._rounds: list[tuple[int, float, int]] = []  # number, when, tokens before
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._context: list[int] = []
        self._console: Any = None
        if self.is_terminal:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False)

    @property
    def num_tokens(self) -> int:
        return self.counts.total()

    def __call__(self, step: Any) -> None:
        name = step_class(step)
        self._time(step.round)
        self.counts[name] += 1
        if not self._shown:
            return
        self._pending.append(step.token)
        piece = self._piece()
        if piece.endswith("�"):
            return
        self._context = (self._context + self._pending)[-8:]
        self._pending = []
        self._write(piece, _CLASSES[name][0])

    def _time(self, number: int) -> None:
        """Remember when round ``number`` was first heard of, compiling left out."""
        if not self._rounds or self._rounds[-1][0] != number:
            now = time.perf_counter() - self.clock.seconds
            self._rounds.append((number, now, self.num_tokens))

    @property
    def tokens_per_second(self) -> float | None:
        """Of all rounds after the first, which packs weights too; None where there are none."""
        if len(self._rounds) < 2:
            return None
        (_, began, _), (_, _, num_before) = self._rounds[:2]
        return (self.num_tokens - num_before) / (self._rounds[-1][1] - began)

    def finish(self) -> None:
        """Print what still waits, and end the line."""
        if self._pending:
            self._write(self._piece(), "")
        self._write("\n", "")

    def print_legend(self) -> None:
        if self._console is not None:
            from rich.text import Text

            self._console.print()
            for name, (style, meaning) in _CLASSES.items():
                if self.counts[name]:
                    line = Text.assemble(
                        (f"{name:>9}", style), f"  {self.counts[name]:4d}  {meaning}"
                    )
                    self._console.print(line)

    def _piece(self) -> str:
        # decoded behind a few earlier tokens, because a token's text can depend on what stands
        # before it
        before = self._tokenizer.decode(self._context, skip_special_tokens=True)
        return self._tokenizer.decode(self._context + self._pending, skip_special_tokens=True)[
            len(before) :
        ]

    def _write(self, piece: str, style: str) -> None:
        if self._console is not None:
            from rich.text import Text

            self._console.print(Text(_without_controls(piece), style), end="", soft_wrap=True)
        else:
            click.echo(piece, nl=False)


def _without_controls(text: str) -> str:
    """Control characters made visible: a model's output must not steer the terminal."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def _summary_lines(
    generation: Any, stream: _TokenStream, label: str, said: Sequence[str]
) -> list[str]:
    metrics = generation.metrics
    counts = ", ".join(f"{stream.counts[name]} {name}" for name in _CLASSES if stream.counts[name])
    lines = [
        "",
        f"rule {label}: {stream.num_tokens} tokens ({counts}) in {metrics['num_target_passes']} "
        f"target passes, {_speed(stream)}ended by {generation.finish_reasons[0]}",
        f"vLLM: mean_acceptance_length {_number(metrics['mean_acceptance_length'], 2)} (bonus in), "
        f"draft_acceptance_rate {_number(metrics['draft_acceptance_rate'], 3)}; gpt-fast mean "
        f"accepted {_number(metrics['gpt_fast_mean_accepted'], 2)} (bonus out); SGLang accept rate "
        f"{_number(metrics['sglang_accept_rate'], 3)} (of tree nodes)",
        f"certified {metrics['num_certified']} of {metrics['num_drafted_positions']} drafted "
        f"positions, {metrics['num_false_certificates']} false certificates",
        *(note for note in generation.notes if note not in said),
    ]
    if metrics["num_relaxed_tokens"]:
        lines.append(
            f"the rule gave up the target's argmax {metrics['num_relaxed_tokens']} times: p/p_max "
            f"at least {metrics['relaxed_prob_ratio_min']:.3f}, "
            f"{metrics['relaxed_prob_ratio_mean']:.3f} on average"
        )
    return lines


def _speed(stream: _TokenStream) -> str:
    """ "1102.4 tokens/s, ", and what is left out of it."""
    speed = stream.tokens_per_second
    if speed is None:
        return ""
    compiled = stream.clock.seconds
    without = f" (without {compiled:.1f} s of compiling)" if compiled else ""
    return f"{speed:.1f} tokens/s{without}, "


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}f}"
