"""``certspec bench``: measurements whose last line is JSON. Turns options into calls of ``certspec.bench``."""

from __future__ import annotations

import json
from pathlib import Path

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
