"""``certspec bench``: measurements whose last line is JSON. Turns options into calls of ``certspec.bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

__all__ = ["command"]


@click.group("bench")
def command() -> None:
    """Measure certspec against what one would use without it; the last line is JSON."""


@command.command("kernels")
@click.option("--rows", default="8,64,1024", show_default=True, help="Numbers of rows, separated by commas.")
@click.option("--columns", default=151936, show_default=True, help="Columns of a row.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write the JSON to this file.")
def kernels(rows: str, columns: int, output: Path | None) -> None:
    """Time the GPU kernels, torch eager, torch.compile and Liger-Kernel on the same rows."""
    from certspec.bench import kernels as bench

    facts, bandwidth, results = bench.provenance(), bench.copy_bandwidth(), []
    for num_rows in (int(part) for part in rows.split(",")):
        result = bench.measure(num_rows, columns, bandwidth)
        results.append(result)
        click.echo(f"{num_rows:>6} rows: floor {result['floor_us']:.1f} us")
        for name in ("ours", "eager_with_top", "eager", "compile", "liger_kl"):
            figures = result.get(name, {})
            if "error" in figures:
                click.echo(f"    {name:<15}error: {figures['error']}")
            elif figures:
                click.echo(
                    f"    {name:<15}{figures['median_us']:>10.1f} us ({figures['lowest_us']:.1f} to "
                    f"{figures['highest_us']:.1f}), {100 * figures['share_of_copy']:.1f} % of the copy bandwidth"
                )
    text = json.dumps({**facts, "copy_bytes_per_second": bandwidth, "results": results})
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    click.echo(text)


@command.command("decode")
@click.option("--prompts", "num_prompts", default=16, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(min=2), help="New tokens a prompt.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Rounds of all ways.")
@click.option("--chain", default=5, show_default=True, type=click.IntRange(min=1), help="Our fixed draft length.")
@click.option(
    "--profile", type=click.Path(path_type=Path, dir_okay=False), help='Adaptive drafting too ("certspec calibrate").'
)
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]), help="See above.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write the JSON to this file.")
def decode(
    num_prompts: int, tokens: int, repeats: int, chain: int, profile: Path | None, device: str, output: Path | None
) -> None:
    """Time decoding: ours, transformers plain, and assisted at several settings.

    On the CPU with the bundled pair. On a GPU with random weights of the shapes of Qwen3-4B and 0.6B, while the accept
    pattern of the bundled pair is replayed on both sides.
    """
    if device == "cuda":
        _decode_on_cuda(num_prompts, tokens, repeats, chain, output)
        return
    import os

    import torch

    from certspec.bench.decode import measure_decoding, pass_costs
    from certspec.decoding import Adaptive, load_profile
    from certspec.decoding.losslessness import bundled_prompt_ids
    from certspec.pairs import load_pair

    pair = load_pair()
    ids = bundled_prompt_ids(pair)
    prompts = ids[:: max(1, len(ids) // num_prompts)][:num_prompts]
    ours: dict[str, dict[str, Any]] = {f"chain of {chain}": {"draft_length": chain}}
    if profile is not None:
        ours["adaptive"] = {"draft_length": Adaptive(load_profile(profile), width=2)}
    costs = pass_costs(pair, prompts[0])
    result = measure_decoding(pair, prompts, tokens, repeats, ours)
    for name, speed in result["tokens_per_second"].items():
        ratios = ", ".join(f"{row['median']:.2f} x {label}" for label, row in result["ratios"][name].items())
        click.echo(
            f"{name:<36}{speed['median']:>8.1f} tokens/s ({speed['lowest']:.1f} to {speed['highest']:.1f})  {ratios}"
        )
    click.echo(f"best assisted setting: {result['best_assisted']}; same output everywhere: {result['same_output']}")
    click.echo(f"draft pass {costs['draft_step_ms']:.3f} ms; target pass by positions: " + ", ".join(
        f"{count}: {ms:.2f} ms" for count, ms in costs["verify_ms"].items()))  # fmt: skip
    facts = {
        "prompts": len(prompts), "tokens": tokens, "repeats": repeats, "torch": torch.__version__,
        "threads": torch.get_num_threads(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0],
    }  # fmt: skip
    text = json.dumps({**facts, "costs": costs, **result})
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    click.echo(text)


def _decode_on_cuda(num_prompts: int, tokens: int, repeats: int, chain: int, output: Path | None) -> None:
    import random

    from certspec.bench import decode_cuda
    from certspec.bench.kernels import provenance
    from certspec.engine.cuda_runner import CudaRunner

    facts = provenance()
    del facts["inputs"]
    pair = decode_cuda.random_pair()
    runners = (CudaRunner(pair.target, pair.num_tokens), CudaRunner(pair.draft, pair.num_tokens))
    costs = decode_cuda.measure_rounds(*runners)
    click.echo(
        f"verify {costs['positions']} positions {costs['verify_ms']:.3f} ms, "
        f"draft step {costs['draft_step_ms']:.3f} ms, "
        f"round {costs['round_ms']:.3f} ms, of it certificates {1e3 * costs['certificates_ms']:.1f} us "
        f"({100 * costs['certificates_share_of_verify']:.2f} % of the verify pass)"
    )
    prompts = [random.Random(seed).choices(range(pair.num_tokens), k=64) for seed in range(num_prompts)]
    result = decode_cuda.measure_ways(pair, runners, sorted({3, chain}), prompts, tokens, repeats)
    for name, speed in result["tokens_per_second"].items():
        click.echo(f"{name:<28}{speed['median']:>8.1f} tokens/s ({speed['lowest']:.1f} to {speed['highest']:.1f})")
    for name, against in result["ratios"].items():
        click.echo(f"{name}: " + ", ".join(f"{row['median']:.2f} x {label}" for label, row in against.items()))
    facts_of_run = {"models": pair.name, "prompts": num_prompts, "tokens": tokens, "repeats": repeats}
    text = json.dumps({**facts, **facts_of_run, "costs": costs, **result})
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    click.echo(text)
