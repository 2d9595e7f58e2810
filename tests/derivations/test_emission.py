"""Emission: the committed kernels are what the derivations give, every rewriting is an identity,
and an edited kernel is refused with its remedy."""

import importlib
import math
import os
import shutil
import subprocess
import sys

import mpmath
import pytest
import sympy
from sympy.codegen.cfunctions import expm1

from certspec.kernels.loading import AlteredKernel, check_body, kernel_hashes, load_kernels
from derivations.__main__ import main
from derivations.kernels.emit import (
    GENERATED,
    Change,
    changes,
    drift,
    emit_files,
    kernel_topics,
    write_files,
)
from derivations.kernels.loop_templates import LOOPS
from derivations.kernels.printers import REWRITES
from derivations.language.kernel_spec import KernelSpec

SPECS = [spec for specs in kernel_topics().values() for spec in specs]


def test_the_committed_kernels_are_what_the_derivations_give():
    assert drift() == []
    assert emit_files() == emit_files()


def test_an_edited_missing_or_foreign_file_is_drift(tmp_path):
    write_files(tmp_path)
    assert drift(tmp_path) == []
    edited = tmp_path / "pool_numba.py"
    edited.write_text(edited.read_text().replace("1.0 + excess", "1.0 - excess", 1))
    (tmp_path / "bounds_torch.py").unlink()
    (tmp_path / "stranger.py").write_text("")
    assert drift(tmp_path) == ["bounds_torch.py", "pool_numba.py", "stranger.py"]


def test_the_check_fails_on_drift_and_names_the_remedy(capsys, monkeypatch):
    command = importlib.import_module("derivations.__main__")
    change = Change("pool_numba.py", ("-1.0 + excess", "+1.0 - excess"), ("eval.pool",))
    monkeypatch.setattr(command, "changes", lambda: [change])
    assert command.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert "run `python -m derivations` and commit the result" in told
    assert "\n  -1.0 + excess\n  +1.0 - excess\n" in told


def test_writing_names_the_claims_of_what_changed_and_no_others(tmp_path, capsys, monkeypatch):
    command = importlib.import_module("derivations.__main__")
    write_files(tmp_path)
    edited = tmp_path / "pool_numba.py"
    edited.write_text(edited.read_text().replace("1.0 + excess", "1.0 - excess", 1))
    [change] = changes(tmp_path)
    assert change.claims == ("eval.pool", "single.pool", "tree.pool")
    assert any("1.0 - excess" in line for line in change.lines)
    monkeypatch.setattr(command, "changes", lambda: [change])
    monkeypatch.setattr(command, "write_files", lambda: None)
    monkeypatch.setattr(command, "PAGE", tmp_path / "THEOREMS.md")
    assert command.main([]) == 0
    told = capsys.readouterr().out
    assert "pool_numba.py, THEOREMS.md changed" in told
    assert "prove now: python -m proofs_check eval.pool single.pool tree.pool" in told


def test_the_command_passes_on_the_committed_files(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_an_installed_copy_writes_nothing_and_says_that_it_wants_a_checkout(tmp_path):
    root = GENERATED.parents[2]
    for package in ("derivations", "certspec"):
        shutil.copytree(root / package, tmp_path / package, ignore=_sources_alone)
    copy = tmp_path / "certspec" / "kernels" / "generated" / "constants.py"
    copy.write_text(copy.read_text() + "# edited\n")
    done = subprocess.run(
        [sys.executable, "-m", "derivations"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and copy.read_text().endswith("# edited\n")
    assert "not part of a checkout" in done.stderr and "in a clone of the repository" in done.stderr


def _sources_alone(folder, names):
    """Data that a copy of the packages does without."""
    return {"studies", "bundled", "__pycache__"} & set(names)


def test_a_kernel_with_one_character_changed_is_refused_at_load(tmp_path):
    name = "pool_numba.py"
    copy = tmp_path / name
    shutil.copy(GENERATED / name, copy)
    check_body(copy, kernel_hashes()[name])
    copy.write_text(copy.read_text().replace("1.0 + excess", "1.0 - excess", 1))
    with pytest.raises(AlteredKernel, match=r"run `python -m derivations` to emit it again"):
        check_body(copy, kernel_hashes()[name])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_an_evaluation_form_equals_its_textbook_form(spec):
    assert spec.difference() == 0


@pytest.mark.parametrize("function", REWRITES)
def test_a_rewriting_has_the_derivative_and_origin_of_what_it_stands_for(function):
    x = sympy.Symbol("x")
    meant = REWRITES[function](x)
    assert sympy.diff(function(x), x).equals(sympy.diff(meant, x))
    assert (
        sympy.simplify(function(x).rewrite(sympy.exp if function is expm1 else sympy.log) - meant)
        == 0
    )
    assert meant.subs(x, 0) == 0


def test_a_wrong_rewriting_is_seen():
    p, d = sympy.symbols("p d", real=True)
    textbook = p * d + p * sympy.exp(-d) - p
    wrong = KernelSpec(
        "wrong", ("p", "d"), p * (d + expm1(d)), ("eval.bregman",), "", "", "", textbook=textbook
    )
    assert wrong.difference() != 0


def test_every_kernel_names_a_claim_and_an_unknown_argument_is_refused():
    for item in (*SPECS, *(loop for loops in LOOPS.values() for loop in loops)):
        assert item.claims
    with pytest.raises(ValueError, match=r"uses \['y'\], which is no argument"):
        KernelSpec("k", ("x",), sympy.Symbol("y", real=True), ("c",), "", "", "")
    with pytest.raises(ValueError, match="names no claim"):
        KernelSpec("k", ("x",), sympy.Symbol("x", real=True), (), "", "", "")


def test_headers_name_the_command_the_claims_and_both_hashes():
    parts = (
        "python -m derivations",
        "claims: ",
        "domain: ",
        "printer: ",
        "expression:  sha256",
        "body:        sha256",
    )
    for name, text in emit_files().items():
        if name.endswith(".py") and name != "__init__.py":
            header = text.partition("# --- body ---")[0]
            assert all(part in header for part in parts), name


def test_the_emitted_upper_bound_solves_its_inequality_at_50_digits():
    bounds = load_kernels("bounds", "numba")
    with mpmath.workdps(50):
        for kl, relative, eta in (
            (0.0, 1e-14, 1e-14),
            (1e-12, 3e-14, 2e-13),
            (0.3, 1e-13, 1e-13),
            (5.0, 1e-12, 1e-12),
        ):
            upper = mpmath.mpf(bounds.kl_upper(kl, relative, eta))
            a, b = mpmath.mpf(relative), mpmath.mpf(eta) + 28 * mpmath.mpf(2) ** -53
            assert upper - a * upper - b * mpmath.sqrt(2 * upper) - mpmath.mpf(
                eta
            ) ** 2 >= mpmath.mpf(kl)
    assert math.isinf(bounds.kl_upper(math.inf, 1e-14, 1e-14))
