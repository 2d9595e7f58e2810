"""Options that several commands share, written once, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from certspec.errors import InvalidArgument
from certspec.runs.writing import require_writable, write_atomically
from certspec.studies.waiting import waiting

__all__ = [
    "Count",
    "PairOptions",
    "batch_size_option",
    "count_option",
    "draft_length_option",
    "file_option",
    "json_file_option",
    "json_option",
    "limit_option",
    "load_chosen_pair",
    "numbers_option",
    "out_option",
    "pair_options",
    "pair_options_of",
    "plain_prompts_option",
    "prompts_option",
    "rules_option",
    "say_engine",
    "spread_options",
    "tell_and_write",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Count(click.IntRange):
    """Whole numbers that Python's and numpy's own counters hold too, many times over."""

    _LARGEST = 10**12

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if number > self._LARGEST:
            self.fail(f"{value} is more than {self._LARGEST:,}", param, ctx)
        return number


def count_option(
    *names: str, default: int | None, help: str, least: int = 1, most: int | None = None
) -> Decorator:
    """An option that takes a whole number from ``least`` to ``most``."""
    return click.option(
        *names,
        default=default,
        show_default=default is not None,
        type=Count(least, most),
        help=help,
    )


class _Numbers(click.ParamType):
    """Whole numbers of at least 1, "2,4,8", as a list."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        try:
            numbers = [int(part) for part in str(value).replace(" ", ",").split(",") if part]
        except ValueError:
            numbers = []
        if not numbers or min(numbers) < 1:
            self.fail(f"expected numbers of at least 1 like 2,4,8, got {value!r}", param, ctx)
        if max(numbers) > 2**31:
            self.fail(f"expected numbers of at most 2^31, got {max(numbers)}", param, ctx)
        return numbers


def numbers_option(name: str, *, default: str, help: str) -> Decorator:
    """An option that takes whole numbers of at least 1, separated by commas."""
    return click.option(
        name, default=default, show_default=True, type=_Numbers(), metavar="N,...", help=help
    )


def out_option(default: str, help: str) -> Decorator:
    """--out, the folder of a run."""
    return click.option(
        "--out",
        default=Path(default),
        show_default=True,
        type=click.Path(path_type=Path, file_okay=False),
        help=help,
    )


def _writable(_ctx: Any, _param: Any, path: Path | None) -> Path | None:
    require_writable(path)  # before the minutes that make what goes there
    return path


def file_option(help: str, *name: str) -> Decorator:
    """--out, or another ``name``: a file that the command writes."""
    return click.option(
        *(name or ("--out",)),
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_writable,
        help=help,
    )


def prompts_option(help: str) -> Decorator:
    """--prompts, a file of prompts."""
    return click.option(
        "--prompts",
        "prompts_path",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=help,
    )


def limit_option(
    help: str = "Use only the first prompts.", *, default: int | None = None, least: int = 1
) -> Decorator:
    """--limit, how many prompts."""
    return count_option("--limit", default=default, least=least, help=help)


def draft_length_option(help: str = "Draft length of the observed accepted lengths.") -> Decorator:
    """--draft-length, 4 by default."""
    return count_option("--draft-length", default=4, help=help)


batch_size_option = count_option(
    "--batch-size", "--batch", default=16, help="Prompts a forward pass."
)
plain_prompts_option = click.option(
    "--plain-prompts", is_flag=True, help="Feed the prompts as they are, without the chat template."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead, and nothing else."
)
json_file_option = file_option("Also write the JSON to this file.")


def tell_and_write(text: str, path: Path | None, tell: Callable[[], None]) -> None:
    """Write ``text`` (JSON) to the file of ``json_file_option``, and ``tell`` it to a person. What
    one can't be told the other still is."""
    try:
        if path is not None:
            write_atomically(path, text + "\n")
    finally:
        tell()


def _some_rules(_ctx: Any, _param: Any, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        if not text.replace(";", " ").strip():  # as parse_rules separates them
            raise click.BadParameter(f"expected at least one rule, got {text!r}")
    return given


rules_option = click.option(
    "--rules",
    multiple=True,
    callback=_some_rules,
    metavar="RULES",
    help='E.g. "strict additive:0.3 tree:4"; may be repeated (default: eight rules and widths).',
)


def _all_of(*options: Decorator) -> Decorator:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorate in reversed(options):
            command = decorate(command)
        return command

    return add


def pair_options_of(default: str) -> Decorator:
    """The fields of ``PairOptions``, where ``default`` is the target unless one is named."""
    return _all_of(
        click.option(
            "--target",
            metavar="MODEL",
            help=f"The target: a hub id, a directory or a .gguf file (default: {default}).",
        ),
        click.option(
            "--draft", metavar="MODEL", help="The draft: a hub id, a directory or a .gguf file."
        ),
        click.option(
            "--tokenizer",
            metavar="MODEL",
            help="Whose tokenizer is used, for models that come without one.",
        ),
        click.option("--device", metavar="NAME", help="cpu, cuda, cuda:1 ... (default: cpu)."),
        click.option(
            "--dtype", metavar="NAME", help="float32 (default on the CPU), bfloat16 (CUDA) ..."
        ),
    )


pair_options = pair_options_of("bundled pair")
# For targets too large for one device.
spread_options = _all_of(
    click.option(
        "--device-map",
        metavar="NAME",
        help='Spread the target over the devices ("auto"; needs accelerate).',
    ),
    click.option(
        "--tp-plan", metavar="auto", help="Spread the target over torchrun's processes instead."
    ),
)


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What ``pair_options`` and ``spread_options`` were given: the models, and where they run."""

    target: str | None
    draft: str | None
    tokenizer: str | None
    device: str | None
    dtype: str | None
    device_map: str | None = None
    tp_plan: str | None = None


def load_chosen_pair(chosen: PairOptions, *, target_alone: bool = False, shown: bool = True) -> Any:
    """The pair that the options name; both models or neither, or (``target_alone``: the command
    needs no draft) the target without one. ``shown``: says that it loads, and the pair's notes.
    Raises InvalidArgument, UnreadableInput or IncompatiblePair."""
    target, draft = chosen.target, chosen.draft
    if (target is None) != (draft is None) and not (target_alone and draft is None):
        given, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise InvalidArgument(
            f"expected both --target and --draft, or neither for the bundled pair; got {given} "
            f"without {missing}"
        )
    if target is None and chosen.tokenizer is not None:
        raise InvalidArgument("--tokenizer: the bundled pair has its own; name a --target")
    with waiting("loading the pair", shown=shown):
        from certspec.models.pairs import load_pair, load_target

        where: dict[str, Any] = {
            "tokenizer": chosen.tokenizer,
            "device": chosen.device,
            "dtype": _torch_dtype(chosen.dtype),
            "device_map": chosen.device_map,
            "tp_plan": chosen.tp_plan,
        }
        if target is not None and draft is None:
            pair = load_target(target, **where)
        else:
            pair = load_pair(target, draft, **where)
    for note in pair.notes if shown else ():
        click.echo(f"note: {note}", err=True)
    return pair


def say_engine(pair: Any, engine: str, notes: Sequence[str]) -> None:
    """Say what runs the pair's models, and why it is transformers where it is."""
    from certspec.models.devices import has_cuda

    dtype = str(pair.dtype).removeprefix("torch.")
    click.echo(f"models run by: {engine} ({pair.device}, {dtype})", err=True)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if pair.device.type == "cpu" and has_cuda():
        click.echo("note: there is a GPU here; --device cuda uses it", err=True)


def _torch_dtype(name: str | None) -> Any:
    if name is None:
        return None
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidArgument(
            f"--dtype: expected float32, bfloat16, float16 or float64, got {name!r}"
        )
    return dtype
