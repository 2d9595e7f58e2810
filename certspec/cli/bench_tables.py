"""Results of ``certspec bench`` as tables, whether just measured or read from a JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from certspec.runs.tables import TextTable

__all__ = [
    "advice_tables",
    "batch_tables",
    "cuda_decoding_tables",
    "decoding_tables",
    "drafting_tables",
    "file_tables",
    "tree_tables",
]


def decoding_tables(result: dict[str, Any]) -> list[TextTable]:
    """``bench decode`` on a CPU."""
    costs = result["costs"]
    verify = ", ".join(f"{count}: {ms:.2f}" for count, ms in costs["verify_ms"].items())
    return _speed_tables(
        result,
        f"Best assisted setting: {result['best_assisted']}. Same output everywhere: "
        f"{result['same_output']}. A draft pass takes {costs['draft_step_ms']:.3f} ms, target "
        f"passes by positions, in ms: {verify}.",
    )


def file_tables(result: dict[str, Any]) -> list[TextTable]:
    """The same where both models are GGUF files."""
    unlike = {name: n for name, n in result["num_prompts_unlike_our_plain"].items() if n}
    told = ", ".join(f"{count} of {name}" for name, count in unlike.items()) or "none"
    peaks = ", ".join(f"{name} {peak / 1e9:.2f} GB" for name, peak in result["peak_bytes"].items())
    note = (
        f"Most memory: {peaks}. Outputs that are not our plain one, of {result['prompts']} "
        f"prompts: {told}."
    )
    if "same_bits_as_float32" in result:
        note += (
            " Our logits along it are those of the dequantised float32 model, bit for bit, in "
            f"{sum(result['same_bits_as_float32'])} prompts."
        )
    return _speed_tables(result, note)


def _speed_tables(result: dict[str, Any], note: str) -> list[TextTable]:
    ratios = result["ratios"]
    against = list(dict.fromkeys(label for row in ratios.values() for label in row))
    return [
        _table(
            "Decoding, medians of repeats",
            ("way", "tokens/s", "lowest to highest", *(f"x {label}" for label in against)),
            [
                (name, *_speed(speed), *(_median(ratios[name].get(label)) for label in against))
                for name, speed in result["tokens_per_second"].items()
            ],
            note,
        )
    ]


def cuda_decoding_tables(result: dict[str, Any]) -> list[TextTable]:
    """``bench decode --device cuda``."""
    return [
        _table(
            "Decoding, medians of repeats",
            ("way", "tokens/s", "lowest to highest"),
            [(name, *_speed(speed)) for name, speed in result["tokens_per_second"].items()],
        ),
        _table(
            "How many times as fast, medians within a repeat",
            ("way", "as", "times"),
            [
                (name, label, _median(row))
                for name, against in result["ratios"].items()
                for label, row in against.items()
            ],
        ),
    ]


def tree_tables(result: dict[str, Any]) -> list[TextTable]:
    """``bench decode --device cuda --trees``."""
    return [
        _table(
            "A round",
            ("way", "nodes", "round, ms", "verify, ms", "certificates, us", "moves, us"),
            [
                (
                    name,
                    row["nodes"],
                    f"{row['round_ms']:.3f}",
                    f"{row['verify_ms']:.3f}",
                    f"{row['certificates_us']:.1f}",
                    f"{row['moves_us']:.1f}",
                )
                for name, row in result["rounds"].items()
            ],
        ),
        _table(
            "Decoding, medians of repeats",
            ("way", "tokens/s", "accepted", "a round, ms", "in the loop, ms"),
            [
                (
                    name,
                    f"{row['tokens_per_second']['median']:.1f}",
                    f"{row['mean_accepted']:.2f}",
                    f"{row['round_ms']['median']:.3f}",
                    f"{row['loop_round_ms']['median']:.3f}",
                )
                for name, row in result["speeds"].items()
            ],
        ),
    ]


def batch_tables(result: dict[str, Any]) -> list[TextTable]:
    """``bench decode --device cuda --batches``, of the parts that there are."""
    tables: list[TextTable] = []
    if "joining" in result:
        found = result["joining"]
        captures = ", ".join(f"{name}: {count}" for name, count in found["captures"].items())
        ratios = ", ".join(
            f"{name} {_median(ratio)}" for name, ratio in found["joining_over_batches"].items()
        )
        tables.append(
            _table(
                f"{found['requests']} requests, {found['new_tokens']} new tokens, 8 at a time",
                ("way", "tokens/s", "lowest to highest"),
                [(name, *_speed(speed)) for name, speed in found["tokens_per_second"].items()],
                f"Joining over batches: {ratios}. CUDA graphs made, {captures}.",
            )
        )
    if "host" in result:
        kinds: tuple[str, ...] = ("round", "device", "host", "idle")
        tables.append(
            _table(
                "A round in a generation, milliseconds",
                ("way", *kinds),
                [
                    (name, *(f"{row[f'{kind}_ms']:.3f}" for kind in kinds))
                    for name, row in result["host"].items()
                ],
                "Idle: the device waits for the host.",
            )
        )
    if "contexts" in result:
        kinds = ("step", "round")
        tables.append(
            _table(
                "A step without a draft, and a round of a chain of 3",
                ("rows", "context", *(f"{a}{b}" for a in kinds for b in (", ms", ", x floor"))),
                [
                    (
                        row["rows"],
                        row["context"],
                        *(
                            f"{row[f'{kind}{figure}']:{digits}f}"
                            for kind in kinds
                            for figure, digits in (("_ms", ".3"), ("_over_floor", ".2"))
                        ),
                    )
                    for row in result["contexts"]
                ],
                "Floor: weights, keys and values at the speed of a copy.",
            )
        )
    return tables


def advice_tables(result: dict[str, Any]) -> list[TextTable]:
    """``bench advise``."""
    fastest_first = sorted(result["ways"].items(), key=lambda item: -item[1]["median"])
    return [
        _table(
            "Ways to draft, medians of repeats",
            ("way", "tokens/s", "lowest to highest", "predicted"),
            [(name, *_speed(way), f"{way['predicted']:.1f}") for name, way in fastest_first],
            f"Advice: {result['choice']}, {100 * result['ratio']:.1f} % of the fastest, "
            f"{result['best_measured']}. Same output everywhere: {result['same_output']}.",
        )
    ]


def drafting_tables(result: dict[str, Any]) -> list[TextTable]:
    """``bench drafting``."""
    over = list(dict.fromkeys(kind for row in result["ratios"].values() for kind in row))
    tables = [
        _table(
            "Families of drafts on held-out prompts, each at a setting chosen on others",
            (
                "family",
                "setting",
                "tokens/s",
                "lowest to highest",
                "tokens a target pass",
                "nodes a target pass",
                "draft passes a target pass",
            ),
            [
                (
                    family,
                    result["chosen"][family],
                    *_speed(row["tokens_per_second"], middle="overall"),
                    f"{row['tokens_per_target_pass']:.2f}",
                    f"{row['nodes_per_target_pass']:.2f}",
                    f"{row['draft_passes_per_target_pass']:.2f}",
                )
                for family, row in result["held_out"].items()
            ],
        ),
        _table(
            "Adaptive drafting over each family, 95 % interval",
            ("family", *(kind.replace("_", " ") for kind in over)),
            [
                (family, *(_interval(row.get(kind)) for kind in over))
                for family, row in result["ratios"].items()
            ],
        ),
    ]
    for budget, found in result["at_node_budget"].items():
        ratios = found["ratios"]
        tables.append(
            _table(
                f"At most {budget} nodes a target pass",
                ("family", "setting", "tokens a pass", "nodes a pass", "adaptive over it"),
                [
                    (
                        family,
                        found["chosen"][family],
                        f"{row['tokens_per_target_pass']:.3f}",
                        f"{row['nodes_per_target_pass']:.2f}",
                        _interval(ratios.get(family, {}).get("tokens_per_target_pass")),
                    )
                    for family, row in found["held_out"].items()
                ],
            )
        )
    modelled = [(name, f"{each['rate']:.3f}") for name, each in result["modelled"].items()]
    columns = ("way", "tokens in the time of a target pass")
    return [*tables, _table("Modelled at the measured costs", columns, modelled)]


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
) -> TextTable:
    return TextTable(title, tuple(columns), tuple(tuple(map(str, row)) for row in rows), note)


def _speed(speed: dict[str, float], middle: str = "median") -> tuple[str, str]:
    return f"{speed[middle]:.1f}", f"{speed['lowest']:.1f}-{speed['highest']:.1f}"


def _median(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:.2f}"


def _interval(ratio: dict[str, float] | None) -> str:
    return (
        "-"
        if ratio is None
        else f"{ratio['ratio']:.3f} ({ratio['low_95']:.3f}-{ratio['high_95']:.3f})"
    )
