"""``certspec bench``: measurements (``certspec.studies.bench``) told line by line; the last line is
the whole result as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from certspec.cli.options import count_option, file_option, limit_option, numbers_option
from certspec.models import BUNDLED_PROMPTS
from certspec.runs.writing import write_atomically

__all__ = ["command", "decode_lines"]

_tokens_option = count_option(
    "--max-new-tokens", "tokens", default=96, least=2, help="New tokens a prompt."
)
_repeats_option = count_option("--repeats", default=3, help="Rounds of all ways.")
_out_option = file_option("Also write the JSON to this file.")


@click.group("bench")
def command() -> None:
    """Measure certspec against what one would use without it; the last line is JSON."""


@command.command("kernels")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="Where (default: cuda where there is a GPU, else cpu).",
)
@numbers_option("--rows", default="8,64,1024", help="Numbers of rows.")
@count_option("--columns", default=151936, least=2, help="Columns of a row.")
@_out_option
def kernels(device: str | None, rows: list[int], columns: int, out: Path | None) -> None:
    """Time our kernels and torch eager on the same rows; on a GPU torch.compile and Liger-Kernel
    too, on the CPU one read of the rows."""
    from certspec.models.devices import has_cuda, require_triton

    if device == "cpu" or (device is None and not has_cuda()):
        _cpu_kernels(rows, columns, out)
        return
    require_triton("cuda")
    from certspec.studies.bench import kernels as bench

    facts, bandwidth, results = bench.provenance(), bench.copy_bandwidth(), []
    for num_rows in rows:
        result = bench.measure(num_rows, columns, bandwidth)
        results.append(result)
        click.echo(f"{num_rows:>6} rows: floor {result['floor_us']:.1f} us")
        for name in ("ours", "eager_with_top", "eager", "compile", "liger_kl"):
            figures = result.get(name, {})
            if "error" in figures:
                click.echo(f"    {name:<15}error: {figures['error']}")
            elif figures:
                click.echo(
                    f"    {name:<15}{figures['median_us']:>10.1f} us ({figures['lowest_us']:.1f} "
                    f"to {figures['highest_us']:.1f}), {100 * figures['share_of_copy']:.1f} % of "
                    "the copy bandwidth"
                )
    _finish({**facts, "copy_bytes_per_second": bandwidth, "results": results}, out)


def _cpu_kernels(rows: list[int], columns: int, out: Path | None) -> None:
    from certspec.studies.bench.kernels_cpu import measure_cpu, provenance

    results = []
    for num_rows in rows:
        result = measure_cpu(num_rows, columns)
        results.append(result)
        click.echo(f"{num_rows:>6} rows x {columns} float32")
        for name in ("read", "read_one_thread", "ours", "ours_float64", "eager_with_top", "eager"):
            figures = result[f"{name}_ms"]
            click.echo(
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
            click.echo(
                f"    {name:<33}{figures['median']:>7.2f} ({figures['lowest']:.2f} to "
                f"{figures['highest']:.2f})"
            )
    _finish({**provenance(), "results": results}, out)


@command.command("decode")
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
    "--device",
    default="cpu",
    show_default=True,
    type=click.Choice(["cpu", "cuda"]),
    help="See above.",
)
@click.option(
    "--trees",
    help="On a GPU: time these beside the chain (4x3: greedy, width x depth; 16: best first; "
    "3of8: a chain of at most 8 whose draft certificates always stop it after 3).",
)
@_out_option
def decode(
    limit: int,
    tokens: int,
    repeats: int,
    chain: int,
    batch_chain: int,
    profile: Path | None,
    batch_profile: Path | None,
    device: str,
    trees: str | None,
    out: Path | None,
) -> None:
    """Time decoding: ours, transformers plain, and assisted at several settings.

    On the CPU with the bundled pair. On a GPU with random weights of the shapes of Qwen3-4B and
    0.6B, while the accept pattern of the bundled pair is replayed on both sides."""
    if trees is not None and device != "cuda":
        raise click.UsageError("--trees: expected --device cuda")
    if device == "cuda":
        from certspec.models.devices import require_triton

        policies = None if trees is None else _tree_policies(f"1x{chain},{trees}")
        require_triton("cuda")
        if policies is not None:
            _trees_on_cuda(limit, tokens, repeats, policies, out)
        else:
            _decode_on_cuda(limit, tokens, repeats, chain, out)
        return
    from certspec.decoding import Adaptive, load_profile
    from certspec.decoding.calibration import pass_costs
    from certspec.studies.bench.decode import measure_decoding

    pair, prompts = _bundled(limit)
    ours: dict[str, dict[str, Any]] = {f"chain of {chain}": {"draft_length": chain}}
    if profile is not None:
        ours["adaptive"] = {"draft_length": Adaptive(load_profile(profile), width=2)}
    costs = pass_costs(pair, prompts[0])
    shorter: dict[str, dict[str, Any]] = {f"chain of {batch_chain}": {"draft_length": batch_chain}}
    if batch_profile is not None:
        shorter["adaptive for batches"] = {"draft_length": Adaptive(load_profile(batch_profile))}
    result = measure_decoding(pair, prompts, tokens, repeats, ours, in_batches=shorter)
    result["costs"] = costs
    for line in decode_lines(result):
        click.echo(line)
    facts = {"prompts": len(prompts), "tokens": tokens, "repeats": repeats, **_machine()}
    _finish({**facts, **result}, out)


def decode_lines(result: dict[str, Any]) -> list[str]:
    """What ``bench decode`` tells of a result, which may come from its JSON."""
    lines = []
    for name, speed in result["tokens_per_second"].items():
        ratios = ", ".join(
            f"{row['median']:.2f} x {label}" for label, row in result["ratios"][name].items()
        )
        lines.append(
            f"{name:<36}{speed['median']:>8.1f} tokens/s ({speed['lowest']:.1f} to "
            f"{speed['highest']:.1f})  {ratios}"
        )
    costs = result["costs"]
    return [
        *lines,
        f"best assisted setting: {result['best_assisted']}; same output everywhere: "
        f"{result['same_output']}",
        f"draft pass {costs['draft_step_ms']:.3f} ms; target pass by positions: "
        + ", ".join(f"{count}: {ms:.2f} ms" for count, ms in costs["verify_ms"].items()),
    ]


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
    from certspec.studies.bench import decode_cuda

    facts, pair, runners, prompts = _random_on_cuda(num_prompts, tokens, repeats)
    costs = decode_cuda.measure_rounds(*runners)
    click.echo(
        f"verify {costs['positions']} positions {costs['verify_ms']:.3f} ms, draft step "
        f"{costs['draft_step_ms']:.3f} ms, round {costs['round_ms']:.3f} ms, of it certificates "
        f"{1e3 * costs['certificates_ms']:.1f} us "
        f"({100 * costs['certificates_share_of_verify']:.2f} % of the verify pass)"
    )
    result = decode_cuda.measure_ways(pair, runners, sorted({3, chain}), prompts, tokens, repeats)
    for name, speed in result["tokens_per_second"].items():
        click.echo(
            f"{name:<28}{speed['median']:>8.1f} tokens/s ({speed['lowest']:.1f} to "
            f"{speed['highest']:.1f})"
        )
    for name, against in result["ratios"].items():
        click.echo(
            f"{name}: "
            + ", ".join(f"{row['median']:.2f} x {label}" for label, row in against.items())
        )
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
    for name, row in rounds.items():
        click.echo(
            f"{name:<16}{row['nodes']:>3} nodes: round {row['round_ms']:.3f} ms (verify "
            f"{row['verify_ms']:.3f} ms), of it certificates {row['certificates_us']:.1f} us, "
            f"moves {row['moves_us']:.1f} us"
        )
    speeds = decode_trees.measure_tree_speeds(pair, runners, policies, prompts, tokens, repeats)
    for name, own in speeds.items():
        click.echo(
            f"{name:<16}{own['tokens_per_second']['median']:>7.1f} tokens/s at "
            f"{own['mean_accepted']:.2f} accepted; a round {own['round_ms']['median']:.3f} ms, in "
            f"the loop {own['loop_round_ms']['median']:.3f} ms"
        )
    _finish({**facts, "rounds": rounds, "speeds": speeds}, out)


@command.command("advise")
@limit_option("How many prompts.", default=16, least=4)
@_tokens_option
@_repeats_option
@click.option(
    "--scored",
    type=click.IntRange(min=1),
    help="Prompts that advice is taken on (default: all bundled).",
)
@numbers_option("--lengths", default="1,2,3,4,5,6,8,10", help="Draft lengths.")
@numbers_option("--widths", default="2,3,4", help="Tree widths.")
@_out_option
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
    for name, way in sorted(result["ways"].items(), key=lambda item: -item[1]["median"]):
        click.echo(
            f"{name:<36}{way['median']:>8.1f} tokens/s ({way['lowest']:.1f} to "
            f"{way['highest']:.1f}), predicted {way['predicted']:.1f}"
        )
    click.echo(
        f"advice: {result['choice']}: {100 * result['ratio']:.1f} % of the fastest, "
        f"{result['best_measured']}; same output everywhere: {result['same_output']}"
    )
    facts = {"prompts": len(prompts), "tokens": tokens, "repeats": repeats, **_machine()}
    _finish({**facts, **result}, out)


@command.command("drafting")
@count_option("--calibration", default=64, least=2, help="Prompts to choose on.")
@count_option("--held-out", default=64, least=2, help="Other prompts, measured.")
@_tokens_option
@count_option("--repeats", default=3, help="Of every way and prompt.")
@_out_option
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
    for family, row in result["held_out"].items():
        speed = row["tokens_per_second"]
        click.echo(
            f"{family + ': ' + result['chosen'][family]:<52}{speed['overall']:>8.1f} tokens/s "
            f"({speed['lowest']:.1f} to {speed['highest']:.1f}), "
            f"{row['tokens_per_target_pass']:.2f} tokens, {row['nodes_per_target_pass']:.2f} "
            f"nodes, {row['draft_passes_per_target_pass']:.2f} draft passes a pass"
        )
    for family, row in result["ratios"].items():
        click.echo(
            f"adaptive over {family}: "
            + ", ".join(
                f"{name.replace('_', ' ')} {ratio['ratio']:.3f} ({ratio['low_95']:.3f} to "
                f"{ratio['high_95']:.3f})"
                for name, ratio in row.items()
            )
        )
    for budget, found in result["at_node_budget"].items():
        click.echo(
            f"at most {budget} nodes a target pass, tokens a pass: "
            + "; ".join(
                f"{family} ({found['chosen'][family]}) {row['tokens_per_target_pass']:.3f} with "
                f"{row['nodes_per_target_pass']:.2f}"
                for family, row in found["held_out"].items()
            )
        )
        click.echo(
            "    adaptive over "
            + ", ".join(
                f"{family} {row['tokens_per_target_pass']['ratio']:.3f} "
                f"({row['tokens_per_target_pass']['low_95']:.3f} to "
                f"{row['tokens_per_target_pass']['high_95']:.3f})"
                for family, row in found["ratios"].items()
            )
        )
    click.echo("modelled at the measured costs, tokens in the time of a target pass:")
    for name, figures in result["modelled"].items():
        click.echo(f"  {name:<52}{figures['rate']:>7.3f}")
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
    if out is not None:
        write_atomically(out, text + "\n")
    click.echo(text)
