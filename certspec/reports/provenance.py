"""What a run was made with, as rows of words: models, hashes, temperature, versions, files and what
was noticed in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from certspec.errors import UnreadableInput
from certspec.runs.summary import Run
from certspec.runs.tables import TextTable

__all__ = ["findings_of", "provenance_table", "temperature_of"]


def temperature_of(run: Run, folder: Path) -> str:
    """At which temperature the target's probabilities were taken, in words."""
    if not run.is_import:
        made = "stored" if "stored_logits" in run.manifest.get("settings", {}) else "computed"
        return f"1: softmax of the logits as {made}; tokens are the target's argmax"
    stated = run.manifest["settings"].get("temperature")
    seen = _import_facts(folder).get("temperature_of_the_grid")
    words = "not stated" if stated is None else f"{stated:g} as stated"
    if seen is not None:
        words += f"; the logprobs fit bfloat16 logits at {seen:g}, up to a power of two"
    return words


def findings_of(folder: Path) -> list[tuple[str, str]]:
    """(log, sentence) of everything that an import noticed."""
    facts = _import_facts(folder)
    named = (("target", facts.get("findings")), ("draft", facts.get("draft_findings")))
    return [
        (log, f"{finding['meaning']}: {finding['count']:,} (first: {finding['first']})")
        for log, findings in named
        for finding in findings or ()
    ]


def provenance_table(run: Run, folder: Path) -> TextTable:
    """Everything that a reader needs to make the run again, or to doubt it."""
    settings = run.manifest.get("settings", {})
    rows = [("temperature of the target's probabilities", temperature_of(run, folder))]
    if run.is_import:
        rows += _import_rows(settings)
    elif "stored_logits" in settings:
        rows += _stored_rows(settings)
    else:
        rows += [(role, _model(settings.get(role))) for role in ("target", "draft")]
        rows += [
            (
                "tokenizer",
                f"{settings.get('num_tokens'):,} ids, sha256 "
                f"{_short(settings.get('tokenizer_sha256'))}",
            ),
            (
                "prompts",
                f"{run.manifest.get('prompts_path')}, sha256 "
                f"{_short(settings.get('prompts_sha256'))}",
            ),
            ("steps a prompt, at most", str(settings.get("steps"))),
            (
                "prompts a batch; limit; chat template",
                "; ".join(str(settings.get(name)) for name in ("batch_size", "limit", "chat")),
            ),
            _kernels(settings),
        ]
    rows += [("note", note) for note in run.manifest.get("notes", ())]
    for session in run.manifest.get("sessions", ()):
        versions = ", ".join(
            f"{name} {version}" for name, version in session.get("versions", {}).items()
        )
        rows.append(("made on", f"{session.get('device_name')}; {versions}"))
    return TextTable("Provenance", ("what", "value"), tuple(rows))


def _import_rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    logs = settings["import"]
    size = settings.get("num_tokens")
    return [
        *(
            (f"{role}'s log", "none" if log is None else f"{log['name']}, {log['bytes']:,} bytes")
            for role, log in (("target", logs.get("target_log")), ("draft", logs.get("draft_log")))
        ),
        ("format", str(settings.get("format"))),
        ("vocabulary size", "not stated" if size is None else f"{size:,}"),
        ("certified by", str(settings.get("theory"))),
    ]


def _stored_rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    used = settings.get("num_tokens")
    return [
        *(
            (f"{role}'s logits", _stored(facts))
            for role, facts in settings["stored_logits"].items()
        ),
        ("columns used", "all" if used is None else f"the first {used:,}"),
        _kernels(settings),
    ]


def _kernels(settings: dict[str, Any]) -> tuple[str, str]:
    hashes = _short(settings.get("kernels_sha256"))
    return "certspec; kernels", f"{settings.get('certspec')}; sha256 {hashes}"


def _stored(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "none: a run of the target alone"
    return (
        f"{facts['name']}: {facts['rows']:,} rows of {facts['columns']:,} columns, "
        f"{facts['dtype']}, {facts['files']} files, sha256 of their ends "
        f"{_short(facts['sha256_of_ends'])}"
    )


def _model(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "none: a run of the target alone"
    return (
        f"{facts['id']}, {facts['num_parameters']:,} parameters, {facts['dtype']}, weights sha256 "
        f"{_short(facts['weights_sha256'])}"
    )


def _import_facts(folder: Path) -> dict[str, Any]:
    path = folder / "import.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: {error}") from error
    if not isinstance(facts, dict):
        raise UnreadableInput(f"{path}: expected an object, got a {type(facts).__name__}")
    return facts


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else digest[:16]
