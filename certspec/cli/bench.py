"""``certspec bench``: measurements (``certspec.studies.bench``) told line by line; the last line is
the whole result as JSON, with ``--json`` the only one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certspec.cli.bench_tables import (
    advice_tables,
    batch_tables,
    cuda_decoding_tables,
    decoding_tables,
    drafting_tables,
    file_tables,
    tree_tables,
)
from certspec.cli.options import (
    PairOptions,
    count_option,
    json_file_option,
    limit_option,
    load_chosen_pair,
    numbers_option,
    pair_options,
    prompts_option,
    tell_and_write,
)
from certspec.cli.terminal import print_tables
from certspec.errors import InvalidArgument
from certspec.models import BUNDLED_PROMPTS
from certspec.models.gguf.header import is_gguf
from certspec.studies.waiting import compiling, counted, waiting

if TYPE_CHECKING:
    from certspec.runs.tables import TextTable

__all__ = ["command"]

_ALONE = f"{__name__}.alone"  # in click's context: whether the JSON is all that is printed

_tokens_option = count_option(
    "--max-new-tokens", "tokens", default=96, least=2, help="New tokens a prompt."
)
_repeats_option = count_option("--repeats", default=3, help="Rounds of all ways.")
_json_alone = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, chosen: context.meta.update({_ALONE: chosen}),
    help="Print the JSON alone.",
)


def _result_options(function: Callable[..., None]) -> Any:
    """--out and --json. What is measured is said on standard error while it lasts."""

    @wraps(function)
    def told(**given: Any) -> None:
        name = f"bench {click.get_current_context().info_name}"
        with waiting(name, at_once=False), compiling():
            function(**given)

    return json_file_option(_json_alone(told))


@click.group("bench")
def command() -> None:
    """Measure certspec against what one would use without it; the last line is JSON."""


def _say(line: str) -> None:
    """A line for people."""
    if not click.get_current_context().meta[_ALONE]:
        click.echo(line)


def _show(tables: Sequence[TextTable]) -> None:
    """Tables for people."""
    if not click.get_current_context().meta[_ALONE]:
        print_tables(tables)


@command.command("kernels")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="Where (default: cuda where there is a GPU, else cpu).",
)
@numbers_option("--rows", default="8,64,1024", help="Numbers of rows.")
@count_option("--columns", default=151936, least=2, help="Columns of a row.")
@_result_options
def kernels(device: str | None, rows: list[int], columns: int, out: Path | None) -> None:
    """Time our kernels and torch eager on the same rows; on a GPU torch.compile and Liger-Kernel
    too, on the CPU one read of the rows."""
    from certspec.models.devices import has_cuda, require_triton

    device = device or ("cuda" if has_cuda() else "cpu")
    if device == "cuda":
        require_triton("cuda")
    _require_room(device, max(rows), columns)
    if device == "cpu":
        _cpu_kernels(rows, columns, out)
        return
    from certspec.studies.bench import kernels as bench

    facts, bandwidth, results = bench.provenance(), bench.copy_bandwidth(), []
    for num_rows in counted(rows, "size"):
        result = bench.measure(num_rows, columns, bandwidth)
        results.append(result)
        _say(f"{num_rows:>6} rows: floor {result['floor_us']:.1f} us")
        for name in ("ours", "eager_with_top", "eager", "compile", "liger_kl"):
            figures = result.get(name, {})
            if "error" in figures:
                _say(f"    {name:<15}error: {figures['error']}")
            elif figures:
                _say(
                    f"    {name:<15}{figures['median_us']:>10.1f} us ({figures['lowest_us']:.1f} "
                    f"to {figures['highest_us']:.1f}), {100 * figures['share_of_copy']:.1f} % of "
                    "the copy bandwidth"
                )
    _finish({**facts, "copy_bytes_per_second": bandwidth, "results": results}, out)


# Of a pair of rows: logits in float32 while they are drawn, and noise, for target and draft.
_BYTES_A_COLUMN = 16


def _require_room(device: str, num_rows: int, columns: int) -> None:
    """Refuse rows that the device's memory can't hold, before anything is drawn."""
    from certspec.models.devices import memory_bytes

    needed, there = _BYTES_A_COLUMN * num_rows * columns, memory_bytes(device)
    if needed > there:
        got = f"{num_rows} rows of {columns} columns"[:80]
        raise InvalidArgument(
            f"--rows, --columns: expected sizes that fit {there / 1e9:.0f} GB ({device}), got {got}"
        )


def _cpu_kernels(rows: list[int], columns: int, out: Path | None) -> None:
    from certspec.studies.bench.kernels_cpu import measure_cpu, provenance

    results = []
    for num_rows in counted(rows, "size"):
        result = measure_cpu(num_rows, columns)
        results.append(result)
        _say(f"{num_rows:>6} rows x {columns} float32")
        for name in ("read", "read_one_thread", "ours", "ours_float64", "eager_with_top", "eager"):
            figures = result[f"{name}_ms"]
            _say(
                f"    {name:<18}{figures['median']:>9.2f} ms ({figures['lowest']:.2f} to "
                f"{figures['highest']:.2f})"
            )
        for name in (
            "ours_over_read",
            "ours_over_read_one_thread",
            "eager_with_top_over_ours",
            "eager_over_ours",
            "ours_float64_over_read",
            "eager_with_top_over_ours_float64",
            "float64_over_ours",
        ):
            figures = result[name]
            _say(
                f"    {name:<33}{figures['median']:>7.2f} ({figures['lowest']:.2f} to "
                f"{figures['highest']:.2f})"
            )
    _finish({**provenance(), "results": results}, out)


@dataclass(frozen=True, kw_only=True)
class _Decode(PairOptions):
    """What the command was given; an option a field."""

    prompts_path: Path | None
    limit: int
    tokens: int
    repeats: int
    chain: int
    batch_chain: int
    profile: Path | None
    batch_profile: Path | None
    trees: str | None
    batches: str | None
    peers: str | None
    exact: bool
    out: Path | None


@command.command("decode")
@pair_options
@prompts_option("With --target: prompts (default: the bundled ones).")
@limit_option("How many prompts.", default=16)
@_tokens_option
@_repeats_option
@count_option("--chain", default=5, help="Our fixed draft length.")
@count_option("--batch-chain", default=2, least=0, help="Another one in batches.")
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help='Adaptive drafting too ("certspec calibrate").',
)
@click.option(
    "--batch-profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help='The same in batches ("certspec calibrate --batch-size 8").',
)
@click.option(
    "--trees",
    help="On a GPU: time these beside the chain (4x3: greedy, width x depth; 16: best first; "
    "3of8: a chain of at most 8 whose draft certificates always stop it after 3).",
)
@click.option(
    "--batches",
    type=click.Choice(["all", "joining", "host", "contexts"]),
    help="On a GPU: time prompts that join as rows end, the host's share of a round, and long "
    "contexts, instead.",
)
@click.option(
    "--peers",
    type=click.Choice(["llama.cpp"]),
    help="GGUF files: beside this engine, plain and with the same draft.",
)
@click.option(
    "--exact/--no-exact",
    default=True,
    help="GGUF files: compare logits with the dequantised float32 model (4 bytes a weight).",
)
@_result_options
def decode(**given: Any) -> None:
    """Time decoding: ours, transformers plain, and assisted at several settings.

    On the CPU with the bundled pair, or with --target and --draft. GGUF files, which transformers
    does not run as they are: ours plain, chains, a tree and adaptive drafts, --peers beside them.
    On a GPU without a --target: random weights of the shapes of Qwen3-4B and 0.6B, while the accept
    pattern of the bundled pair is replayed on both sides."""
    options = _Decode(**given)
    on_cuda = (options.device or "cpu").startswith("cuda")
    for name, given_one in (("--trees", options.trees), ("--batches", options.batches)):
        if given_one is not None and (not on_cuda or options.target is not None):
            raise click.UsageError(f"{name}: expected --device cuda, without a --target")
    if options.peers is not None and options.target is None:
        raise click.UsageError("--peers: expected --target and --draft, GGUF files")
    if on_cuda and options.target is None:
        from certspec.models.devices import require_triton

        policies = None
        if options.trees is not None:
            policies = _tree_policies(f"1x{options.chain},{options.trees}")
        require_triton("cuda")
        if options.batches is not None:
            _batches_on_cuda(options.batches, options.out)
            return
        shared = (options.limit, options.tokens, options.repeats)
        if policies is not None:
            _trees_on_cuda(*shared, policies, options.out)
        else:
            _decode_on_cuda(*shared, options.chain, options.out)
        return
    if options.target is None and options.draft is None:
        pair, prompts = _bundled(options.limit)
    else:
        pair, prompts = _chosen(options)
    if options.peers is not None or is_gguf(options.target or ""):
        _decode_files(pair, prompts, options)
    else:
        _decode_pair(pair, prompts, options)


def _chosen(options: _Decode) -> tuple[Any, Any]:
    """The pair that was asked for, and token ids of so many of the prompts, evenly spread."""
    from certspec.decoding.prompts import prompt_token_ids
    from certspec.scoring.prompts import PromptFile
    from certspec.studies.bench.spreads import every_so_many

    read = list(PromptFile.check(options.prompts_path or BUNDLED_PROMPTS))
    pair = load_chosen_pair(options)
    chosen = [list(each.messages) for each in every_so_many(read, options.limit)]
    return pair, prompt_token_ids(chosen, pair.tokenizer, pair.num_tokens)


def _decode_pair(pair: Any, prompts: Any, options: _Decode) -> None:
    from certspec.decoding import Adaptive, load_profile
    from certspec.decoding.calibration import pass_costs
    from certspec.studies.bench.decode import measure_decoding

    ours: dict[str, dict[str, Any]] = {f"chain of {options.chain}": {"draft_length": options.chain}}
    if options.profile is not None:
        ours["adaptive"] = {"draft_length": Adaptive(load_profile(options.profile), width=2)}
    costs = pass_costs(pair, prompts[0])
    shorter: dict[str, dict[str, Any]] = {
        f"chain of {options.batch_chain}": {"draft_length": options.batch_chain}
    }
    if options.batch_profile is not None:
        profile = load_profile(options.batch_profile)
        shorter["adaptive for batches"] = {"draft_length": Adaptive(profile)}
    result = measure_decoding(
        pair, prompts, options.tokens, options.repeats, ours, in_batches=shorter
    )
    result["costs"] = costs
    _show(decoding_tables(result))
    _finish({**_decode_facts(pair, prompts, options), **result}, options.out)


def _decode_files(pair: Any, prompts: Any, options: _Decode) -> None:
    from certspec.decoding import Adaptive, TreeShape, WithinBudget, load_profile
    from certspec.studies.bench.peers import LLAMA_CPP_WAYS, measure_peers

    ours: dict[str, dict[str, Any]] = {
        "plain": {"draft_length": 0},
        **{f"chain of {n}": {"draft_length": n} for n in sorted({2, 3, options.chain})},
        "tree 2 x 3": {"tree": TreeShape(2, 3)},
    }
    if options.profile is None:
        ours["adaptive, within .3 nats"] = {"draft_length": WithinBudget(0.3, depth=8, width=1)}
    else:
        ours["adaptive"] = {"draft_length": Adaptive(load_profile(options.profile))}
    theirs = LLAMA_CPP_WAYS if options.peers == "llama.cpp" else None
    result = measure_peers(
        pair, prompts, options.tokens, options.repeats, ours, llama_cpp=theirs, exact=options.exact
    )
    result = {**_decode_facts(pair, prompts, options), **result}
    _show(file_tables(result))
    _finish(result, options.out)


def _decode_facts(pair: Any, prompts: Any, options: _Decode) -> dict[str, Any]:
    facts = {"prompts": len(prompts), "tokens": options.tokens, "repeats": options.repeats}
    return {"pair": pair.name, **facts, **_machine()}


def _random_on_cuda(
    num_prompts: int, tokens: int, repeats: int
) -> tuple[dict[str, Any], Any, tuple[Any, Any], list[list[int]]]:
    """What a run on a GPU depends on, a pair of random weights, its runners, and random prompts."""
    import random

    from certspec.studies.bench import decode_cuda
    from certspec.studies.bench.kernels import provenance

    facts: dict[str, Any] = provenance()
    del facts["inputs"]
    pair, runners = decode_cuda.random_runners()
    prompts = [
        random.Random(seed).choices(range(pair.num_tokens), k=64) for seed in range(num_prompts)
    ]
    facts |= {"models": pair.name, "prompts": num_prompts, "tokens": tokens, "repeats": repeats}
    return facts, pair, runners, prompts


def _decode_on_cuda(
    num_prompts: int, tokens: int, repeats: int, chain: int, out: Path | None
) -> None:
    from certspec.decoding import TreeShape
    from certspec.studies.bench import decode_cuda

    facts, pair, runners, prompts = _random_on_cuda(num_prompts, tokens, repeats)
    costs = decode_cuda.measure_rounds(*runners)
    _say(
        f"verify {costs['positions']} positions {costs['verify_ms']:.3f} ms, draft step "
        f"{costs['draft_step_ms']:.3f} ms, round {costs['round_ms']:.3f} ms, of it certificates "
        f"{1e3 * costs['certificates_ms']:.1f} us "
        f"({100 * costs['certificates_share_of_verify']:.2f} % of the verify pass)"
    )
    lengths, tree = sorted({3, chain}), TreeShape(4, 3)
    result = decode_cuda.measure_ways(pair, runners, lengths, tree, prompts, tokens, repeats)
    _show(cuda_decoding_tables(result))
    _finish({**facts, "costs": costs, **result}, out)


def _tree_policies(trees: str) -> dict[str, Any]:
    """Draft policies by name, from what --trees says."""
    from certspec.decoding import BestFirst, TreeShape
    from certspec.decoding.drafting import StaticPolicy
    from certspec.studies.bench.decode_trees import stopped_chain

    policies: dict[str, Any] = {}
    for each in map(str.strip, trees.split(",")):
        width, is_greedy, depth = each.partition("x")
        drafted, is_stopped, most = each.partition("of")
        try:
            if is_stopped:
                policies[f"stopped {each}"] = stopped_chain(int(drafted), int(most))
            elif is_greedy:
                policies[f"greedy {each}"] = StaticPolicy(
                    TreeShape(int(width), int(depth)).topology
                )
            else:
                policies[f"best first {each}"] = BestFirst(int(each))
        except ValueError as error:
            raise click.UsageError(
                "--trees: expected widths and depths like 4x3, nodes, or lengths like 3of8, got "
                f"{each!r}"
            ) from error
    return policies


def _trees_on_cuda(
    num_prompts: int, tokens: int, repeats: int, policies: dict[str, Any], out: Path | None
) -> None:
    from certspec.studies.bench import decode_trees

    facts, pair, runners, prompts = _random_on_cuda(num_prompts, tokens, repeats)
    rounds = decode_trees.measure_tree_rounds(*runners, policies)
    speeds = decode_trees.measure_tree_speeds(pair, runners, policies, prompts, tokens, repeats)
    result = {"rounds": rounds, "speeds": speeds}
    _show(tree_tables(result))
    _finish({**facts, **result}, out)


def _batches_on_cuda(part: str, out: Path | None) -> None:
    from certspec.studies.bench import decode_batches, decode_cuda
    from certspec.studies.bench.kernels import copy_bandwidth, provenance

    facts: dict[str, Any] = provenance()
    bandwidth = copy_bandwidth()
    del facts["inputs"]
    pair, runners = decode_cuda.random_runners()
    measures = {
        "joining": lambda: decode_batches.measure_joining(runners),
        "host": lambda: decode_batches.measure_host(runners),
        "contexts": lambda: decode_batches.measure_contexts(runners, bandwidth),
    }
    result: dict[str, Any] = {}
    for name, measure in measures.items():
        if part in (name, "all"):
            result[name] = measure()
            _show(batch_tables({name: result[name]}))
    facts |= {"models": pair.name, "copy_bytes_per_second": bandwidth}
    _finish({**facts, **result}, out)


@command.command("advise")
@limit_option("How many prompts.", default=16, least=4)
@_tokens_option
@_repeats_option
@count_option(
    "--scored", default=None, help="Prompts that advice is taken on (default: all bundled)."
)
@numbers_option("--lengths", default="1,2,3,4,5,6,8,10", help="Draft lengths.")
@numbers_option("--widths", default="2,3,4", help="Tree widths.")
@_result_options
def advise(
    limit: int,
    tokens: int,
    repeats: int,
    scored: int | None,
    lengths: list[int],
    widths: list[int],
    out: Path | None,
) -> None:
    """Measure every way of drafting the bundled pair, and how near the one that advice names comes
    to the fastest."""

    from certspec.studies.bench.advice import measure_advice

    pair, prompts = _bundled(limit)
    result = measure_advice(
        pair,
        BUNDLED_PROMPTS,
        prompts,
        num_tokens=tokens,
        repeats=repeats,
        lengths=lengths,
        widths=widths,
        num_scored=scored,
    )
    _show(advice_tables(result))
    facts = {"prompts": len(prompts), "tokens": tokens, "repeats": repeats, **_machine()}
    _finish({**facts, **result}, out)


@command.command("drafting")
@count_option("--calibration", default=64, least=2, help="Prompts to choose on.")
@count_option("--held-out", default=64, least=2, help="Other prompts, measured.")
@_tokens_option
@count_option("--repeats", default=3, help="Of every way and prompt.")
@_result_options
def drafting(calibration: int, held_out: int, tokens: int, repeats: int, out: Path | None) -> None:
    """Time adaptive drafting against the best fixed chain, the best trees and a confidence
    threshold.

    Bundled pair, batch 1. Every family's setting is chosen on even bundled prompts and measured on
    odd ones, once for tokens a second and, at several budgets of nodes, once for tokens a target
    pass."""
    from certspec.decoding.prompts import bundled_prompt_ids
    from certspec.models.pairs import load_pair
    from certspec.studies.bench.drafting import measure_drafting
    from certspec.studies.bench.spreads import every_so_many

    pair = load_pair()
    prompts = bundled_prompt_ids(pair)
    result = measure_drafting(
        pair,
        every_so_many(prompts[::2], calibration),
        every_so_many(prompts[1::2], held_out),
        num_tokens=tokens,
        repeats=repeats,
    )
    _show(drafting_tables(result))
    _finish({**_machine(), **result}, out)


def _bundled(num_prompts: int) -> tuple[Any, Any]:
    """The bundled pair, and token ids of so many of its prompts."""
    from certspec.decoding.prompts import bundled_prompt_ids
    from certspec.models.pairs import load_pair
    from certspec.studies.bench.spreads import every_so_many

    pair = load_pair()
    return pair, every_so_many(bundled_prompt_ids(pair), num_prompts)


def _machine() -> dict[str, Any]:
    import os

    import torch

    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def _finish(result: dict[str, Any], out: Path | None) -> None:
    """The last line is the result as JSON; the file ``out`` gets it too."""
    text = json.dumps(result)
    tell_and_write(text, out, lambda: click.echo(text))
