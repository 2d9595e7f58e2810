"""``certspec decode``: speculatively decoded answers whose tokens show what happened to them; one
prompt's as it comes, several prompts' in a batch. On a terminal certified tokens are bold green,
the target's corrections underlined red."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.interrupts import interruptible
from certspec.cli.options import (
    Count,
    PairOptions,
    batch_size_option,
    count_option,
    draft_length_option,
    json_file_option,
    json_option,
    limit_option,
    load_chosen_pair,
    pair_options,
    plain_prompts_option,
    prompts_option,
    say_engine,
    tell_and_write,
)
from certspec.cli.prompts import fitting_prompts
from certspec.errors import InvalidArgument
from certspec.presets import parse_rule
from certspec.studies.waiting import compiling, waiting

if TYPE_CHECKING:
    from certspec.kernels.compiled import CompileClock
    from certspec.scoring.batches import Skip
    from certspec.scoring.prompts import PromptFile

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
@click.argument("prompts", metavar="[PROMPT]...", nargs=-1)
@prompts_option(
    'Instead of PROMPT, one a line: .jsonl with "prompt" or "messages", else plain text.'
)
@limit_option()
@batch_size_option
@pair_options
@click.option(
    "--rule",
    "rule_label",
    default=None,
    metavar="RULE",
    help="strict (default), additive:0.3, multiplicative:0.1, top:4, medusa, tree:4 ...",
)
@click.option(
    "--tree", type=Count(min=1), metavar="M", help="Draft a tree: M candidates at each node."
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
@click.option(
    "--stop",
    "stop_strings",
    multiple=True,
    metavar="TEXT",
    help="End an answer with the token that completes TEXT; may be repeated.",
)
@plain_prompts_option
@json_file_option
@json_option
def command(
    prompts: tuple[str, ...],
    prompts_path: Path | None,
    limit: int | None,
    batch_size: int,
    rule_label: str | None,
    tree: int | None,
    draft_length: int,
    profile_path: Path | None,
    kl_budget: float | None,
    max_new_tokens: int,
    stop_strings: tuple[str, ...],
    plain_prompts: bool,
    out: Path | None,
    as_json: bool,
    **models: Any,
) -> None:
    """Decode each PROMPT speculatively and show, token by token, what was certified.

    On a terminal the tokens are coloured and followed by a legend and a summary; otherwise the text
    alone goes to standard output, and the summary to standard error.

    One prompt's tokens are shown as they come. Several are decoded in a batch (--batch at a time),
    each to the same tokens as alone, and shown when all are done, each below its number. Prompts of
    a file that do not fit into the target's context are left out, and named."""
    rule = parse_rule("strict" if rule_label is None else rule_label)
    file = _prompt_file(prompts, prompts_path)
    from certspec.decoding import Adaptive, WithinBudget, generate, load_profile

    policy: Any = draft_length
    profile = None
    if profile_path is not None and kl_budget is not None:
        raise InvalidArgument("decode: expected --profile or --kl-budget, got both")
    if profile_path is not None:
        profile = load_profile(profile_path)
        policy = Adaptive(profile, depth=draft_length, width=tree or 1)
    elif kl_budget is not None:
        policy = WithinBudget(kl_budget, depth=draft_length, width=tree or 1)
    pair = load_chosen_pair(PairOptions(**models))
    from certspec.models.choice import chosen_engine

    engine, notes = chosen_engine(pair)
    say_engine(pair, engine, notes)
    if profile is not None and profile.name != pair.name:
        click.echo(f"note: the profile is of {profile.name}, not of {pair.name}", err=True)
    skipped: list[Skip] = []
    if file is None:
        asked = [_Asked(number, text, text) for number, text in enumerate(prompts[:limit], 1)]
    else:
        asked, skipped = _of_file(pair, file, limit, chat=not plain_prompts)
    given = [each.given for each in asked]
    decode = partial(
        generate,
        pair,
        rule=rule,
        draft_length=policy,
        tree=tree if policy is draft_length else None,
        batch_size=batch_size,
        chat=False if plain_prompts else None,
        stop_strings=stop_strings,
    )
    with interruptible("stopped"), compiling(before=lambda: stream.break_line()) as clock:
        stream = _TokenStream(pair.tokenizer, clock, shown=not as_json)
        try:
            if len(given) == 1:
                with stream.until_first_token as until:
                    until.enter_context(waiting("reading the prompt", at_once=False))
                    generation = decode(given, max_new_tokens=max_new_tokens, on_step=stream)
            else:
                with waiting(f"decoding {len(given)} prompts"):
                    # kernels are loaded, and weights packed, before the clock runs
                    decode([[0]] * min(len(given), batch_size), max_new_tokens=4)
                    stream.begin()
                    generation = decode(given, max_new_tokens=max_new_tokens)
                stream.show_all(generation.steps, asked)
        except KeyboardInterrupt:
            stream.finish()
            click.echo(f"stopped after {stream.num_tokens} tokens", err=True)
            sys.exit(130)
    text = json.dumps(_facts(generation, stream, rule.label, asked, skipped), indent=2)

    def tell() -> None:
        if as_json:
            click.echo(text)
            return
        stream.finish()
        stream.print_legend()
        lines = _summary_lines(generation, stream, rule.label, (*pair.notes, *notes))
        if skipped:
            count = f"{len(skipped)} of {len(asked) + len(skipped)} prompts"
            lines.append(f"{count} left out (see the note above)")
        for line in lines:
            click.echo(line, err=not stream.is_terminal)

    tell_and_write(text, out, tell)


@dataclass(frozen=True)
class _Asked:
    """A prompt: its number, what ``generate`` takes, what is told of it, and its line in a file."""

    number: int
    given: Any
    told: str
    line: int | None = None


def _prompt_file(texts: Sequence[str], path: Path | None) -> PromptFile | None:
    """The file of prompts, None where they are given as they are."""
    if (path is None) == (not texts):
        got = "both" if texts else "neither"
        raise InvalidArgument(f"decode: expected PROMPT or --prompts FILE, got {got}")
    if path is None:
        return None
    from certspec.scoring.prompts import PromptFile

    return PromptFile.check(path)


def _of_file(
    pair: Any, file: PromptFile, limit: int | None, *, chat: bool
) -> tuple[list[_Asked], list[Skip]]:
    """Prompts of a file as the token ids that ``certspec score`` makes of them, and those that it
    would skip."""
    kept, skipped = fitting_prompts(pair, file, limit, chat=chat)
    asked = [
        _Asked(prompt.index + 1, ids.token_ids, str(prompt.messages[-1]["content"]), prompt.line)
        for prompt, ids in kept
    ]
    return asked, skipped


def _facts(
    generation: Any,
    stream: _TokenStream,
    label: str,
    asked: Sequence[_Asked],
    skipped: Sequence[Skip],
) -> dict[str, Any]:
    answers = [
        {"text": text, "tokens": tokens, "finish_reason": reason}
        for text, tokens, reason in zip(
            generation.texts, generation.sequences, generation.finish_reasons, strict=True
        )
    ]
    several = len(asked) + len(skipped) > 1
    if several:
        answers = [
            {"prompt": each.told} | ({} if each.line is None else {"line": each.line}) | answer
            for each, answer in zip(asked, answers, strict=True)
        ]
    left_out = [{"line": skip.line, "reason": skip.reason} for skip in skipped]
    return {
        "rule": label,
        **({"answers": answers} if several else answers[0]),
        **({"left_out": left_out} if skipped else {}),
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
        self.until_first_token = ExitStack()
        self._rounds: list[tuple[int, float, int]] = []  # number, when, tokens before
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._context: list[int] = []
        self._console: Any = None
        self._began = 0.0
        self._seconds: float | None = None  # of a whole batch, compiling left out
        if self.is_terminal:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False)

    @property
    def num_tokens(self) -> int:
        return self.counts.total()

    def __call__(self, step: Any) -> None:
        self.until_first_token.close()
        self._time(step.round)
        self._show(step)

    def begin(self) -> None:
        """A batch begins now."""
        self._began = time.perf_counter() - self.clock.seconds

    def show_all(self, steps: Iterable[Any], asked: Sequence[_Asked]) -> None:
        """Print what a batch made of prompts: each answer below its number and prompt."""
        self._seconds = time.perf_counter() - self.clock.seconds - self._began
        by_prompt: list[list[Any]] = [[] for _ in asked]
        for step in steps:
            by_prompt[step.prompt].append(step)
        for index, (prompt, own) in enumerate(zip(asked, by_prompt, strict=True)):
            self._context = []
            if self._shown:
                head = textwrap.shorten(prompt.told, 72, placeholder=" ...")
                self._write(f"{chr(10) if index else ''}[{prompt.number}] {head}\n", "dim")
            for step in own:
                self._show(step)
            if index < len(asked) - 1:
                self.finish()

    def _show(self, step: Any) -> None:
        name = step_class(step)
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
        """Of all rounds after the first, which packs weights too; None where there are none. Of a
        batch: of the whole."""
        if self._seconds is not None:
            return self.num_tokens / self._seconds
        if len(self._rounds) < 2:
            return None
        (_, began, _), (_, _, num_before) = self._rounds[:2]
        return (self.num_tokens - num_before) / (self._rounds[-1][1] - began)

    def break_line(self) -> None:
        """End the line on the terminal, where a message is about to be written."""
        if self.is_terminal and self.num_tokens:
            click.echo(err=True)

    def finish(self) -> None:
        """Print what still waits, and end the line."""
        if not self._shown:
            return
        if self._pending:
            self._write(self._piece(), "")
            self._pending = []
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
    reasons = Counter(generation.finish_reasons)
    ends = ", ".join(
        reason if len(generation.finish_reasons) == 1 else f"{reason} ({count})"
        for reason, count in reasons.items()
    )
    lines = [
        "",
        f"rule {label}: {stream.num_tokens} tokens ({counts}) in {metrics['num_target_passes']} "
        f"target passes, {_speed(stream)}ended by {ends}",
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
