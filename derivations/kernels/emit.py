"""Turns KernelSpecs and constants into the source files under certspec/kernels/generated and their
manifest, byte for byte the same on every machine.

A file's header names the claims it rests on and a hash of its body; certspec compares the body with
the manifest when it loads the file, and a test compares the files with what is emitted here."""

from __future__ import annotations

import hashlib
import importlib
import json
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from textwrap import fill

import sympy

from derivations.kernels.constants import CONSTANTS
from derivations.kernels.evaluation import TOPICS as EVALUATION_TOPICS
from derivations.kernels.loop_templates import LOOPS, LoopTemplate
from derivations.kernels.printers import SourcePrinter, printer_for
from derivations.language.importing import importing
from derivations.language.kernel_spec import KernelSpec

__all__ = [
    "COMMAND",
    "GENERATED",
    "Change",
    "changes",
    "drift",
    "emit_files",
    "is_checkout",
    "kernel_topics",
    "write_files",
]

COMMAND = "python -m derivations"
GENERATED = Path(__file__).resolve().parents[2] / "certspec" / "kernels" / "generated"
BODY_MARK = "# --- body ---\n"
# Modules that add topics of their own: each holds TOPICS, a dict of topic -> KernelSpecs.
TOPIC_MODULES: tuple[str, ...] = (
    "derivations.kernels.margin_kernels",
    "derivations.kernels.drafter_kernels",
    "derivations.kernels.reverse_margin_kernels",
    "derivations.kernels.drafter_margin_kernels",
    "derivations.kernels.robust_kernels",
    "derivations.kernels.sampling_kernels",
    "derivations.kernels.divergence_kernels",
)


def kernel_topics() -> dict[str, tuple[KernelSpec, ...]]:
    """All KernelSpecs by topic (the stem of the generated files)."""
    topics = dict(EVALUATION_TOPICS)
    with importing():
        found = [importlib.import_module(module).TOPICS for module in TOPIC_MODULES]
    for of_module in found:
        for topic, specs in of_module.items():
            topics[topic] = (*topics.get(topic, ()), *specs)
    return topics


def emit_files() -> dict[str, str]:
    """Every generated file by name, the manifest included."""
    files: dict[str, str] = {}
    manifest: dict[str, dict] = {}
    for topic, specs in kernel_topics().items():
        for printer_name in dict.fromkeys(name for spec in specs for name in spec.printers):
            printer = printer_for(printer_name)
            chosen = tuple(spec for spec in specs if printer_name in spec.printers)
            loops = LOOPS.get((topic, printer_name), ())
            file_name = f"{topic}_{printer_name}.py"
            files[file_name], manifest[file_name] = _emit_file(topic, printer, chosen, loops)
    files["constants.py"], manifest["constants.py"] = _emit_constants()
    files["__init__.py"] = (
        '"""Emitted by ``python -m derivations``; edit the derivations, never these files."""\n'
    )
    entry = {"command": COMMAND, "sympy": sympy.__version__, "files": manifest}
    files["manifest.json"] = json.dumps(entry, indent=1, sort_keys=True) + "\n"
    return files


def _emit_file(
    topic: str,
    printer: SourcePrinter,
    specs: tuple[KernelSpec, ...],
    loops: tuple[LoopTemplate, ...],
) -> tuple[str, dict]:
    own = {spec.name for spec in specs}
    elsewhere = sorted({name for loop in loops for name in loop.calls if name not in own})
    imports = [
        f"from certspec.kernels.generated.{_home_of(name)}_{printer.name} import {name}"
        for name in elsewhere
    ]
    body = "\n".join([printer.preamble, *imports]) + "\n"
    for spec in specs:
        body += "\n\n" + emit_function(spec, printer)
    for loop in loops:
        stated = f"# claims: {', '.join(loop.claims)}\n"
        body += (
            "\n\n" + stated + (printer.decorator + "\n" if printer.decorator else "") + loop.text
        )
    items: tuple[KernelSpec | LoopTemplate, ...] = (*specs, *loops)
    return _with_header(
        body,
        title=f"{topic.capitalize()}: scalar kernels for {printer.name}.",
        derivation=", ".join(dict.fromkeys(spec.derivation for spec in specs)),
        claims={claim for item in items for claim in item.claims},
        domains=[f"{spec.name}: {spec.domain}" for spec in specs],
        printer=f"{type(printer).__name__} ({printer.flags})",
        formulas=[
            f"{spec.name}{spec.arguments} = {sympy.srepr(spec.expression)}" for spec in specs
        ],
        kernels=[item.name for item in items],
    )


def _emit_constants() -> tuple[str, dict]:
    """``constants.py``: plain numbers, each below its sentence and claims."""
    body = "".join(
        f"\n{fill(item.sentence, 99, initial_indent='# ', subsequent_indent='# ')}\n"
        f"# claims: {', '.join(item.claims) or 'none'}\n{item.name} = {item.literal}\n"
        for item in CONSTANTS
    )
    return _with_header(
        body,
        title="Constants: safety factors of the kernels, as plain numbers.",
        derivation="derivations.kernels.constants",
        claims={claim for item in CONSTANTS for claim in item.claims},
        domains=["stated with each constant"],
        printer="repr of the nearest float64",
        formulas=[f"{item.name} = {item.value}" for item in CONSTANTS],
        kernels=[item.name for item in CONSTANTS],
    )


def _with_header(
    body: str,
    *,
    title: str,
    derivation: str,
    claims: set[str],
    domains: list[str],
    printer: str,
    formulas: list[str],
    kernels: list[str],
) -> tuple[str, dict]:
    """A file's text, and what the manifest says of it."""
    entry = {
        "body": _sha256(body),
        "expression": _sha256("\n".join(formulas)),
        "claims": sorted(claims),
        "kernels": kernels,
    }
    header = [
        f'"""{title} Generated; do not edit.',
        "",
        f"command:     {COMMAND}",
        f"derivation:  {derivation}",
        f"claims:      {', '.join(entry['claims'])}",
        *(f"domain:      {domain}" for domain in domains),
        f"printer:     {printer}",
        f"sympy:       {sympy.__version__}",
        f"expression:  sha256 {entry['expression']}",
        f"body:        sha256 {entry['body']}",
        '"""',
        "",
    ]
    return "\n".join(header) + BODY_MARK + body, entry


def _home_of(kernel: str) -> str:
    return next(
        topic for topic, specs in kernel_topics().items() if kernel in {spec.name for spec in specs}
    )


def emit_function(spec: KernelSpec, printer: SourcePrinter) -> str:
    """The source text of one scalar kernel."""
    lines = [f"# claims: {', '.join(spec.claims)}"]
    lines += [printer.decorator] if printer.decorator else []
    lines += [f"def {spec.name}({', '.join(spec.arguments)}):", f'    """{spec.doc}"""']
    lines += [f"    {name} = {printer.doprint(value)}" for name, value in spec.lets.items()]
    lines += [f"    return {printer.doprint(spec.form)}"]
    return "\n".join(lines) + "\n"


def write_files(folder: Path = GENERATED) -> list[str]:
    """Write every generated file, remove those that no derivation makes any more; the names that
    changed."""
    folder.mkdir(exist_ok=True)
    changed = drift(folder)
    files = emit_files()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for path in folder.iterdir():
        if path.is_file() and path.name not in files:
            path.unlink()
    return changed


def drift(folder: Path = GENERATED) -> list[str]:
    """Names of files that differ from what the derivations give, are missing, or are not theirs.

    Lines that record the version of SymPy are left out of the comparison.
    """
    files = emit_files()
    present = (
        {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()
    )
    differing = [
        name
        for name, text in files.items()
        if name not in present
        or _without_version(text) != _without_version((folder / name).read_text("utf-8"))
    ]
    return sorted({*differing, *(present - set(files))})


@dataclass(frozen=True)
class Change:
    """A generated file that isn't what the derivations give: what differs, line by line, and the
    claims of the functions and constants that do."""

    name: str
    lines: tuple[str, ...]
    claims: tuple[str, ...]


def changes(folder: Path = GENERATED) -> list[Change]:
    """Every file that ``drift`` names, with its difference."""
    files, found = emit_files(), []
    for name in drift(folder):
        path = folder / name
        old = path.read_text("utf-8") if path.is_file() else ""
        new = files.get(name, "")
        lines = unified_diff(
            old.splitlines(), new.splitlines(), "as it is", "as derived", n=0, lineterm=""
        )
        claims = {
            claim
            for part in _parts(old) ^ _parts(new)
            for claim in part.partition("\n")[0].split(", ")
        }
        found.append(Change(name, tuple(lines), tuple(sorted(claims - {"none"}))))
    return found


def _parts(text: str) -> set[str]:
    """What stands under each line of claims, the line first."""
    return set(text.split("\n# claims: ")[1:]) if BODY_MARK in text else set()


def is_checkout(folder: Path = GENERATED) -> bool:
    """Whether the generated files lie in a clone of the repository, pyproject.toml beside
    certspec."""
    return (folder.parents[2] / "pyproject.toml").is_file()


def _without_version(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip(' "').startswith("sympy"))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
