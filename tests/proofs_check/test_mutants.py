"""Mutants: what is changed, who notices, and what the command says of it. The full run takes hours
(``python -m proofs_check --mutants``); here a few stand for each kind."""

import itertools
import json
import os
import threading
from collections import Counter
from dataclasses import replace

import pytest

from proofs_check import __main__ as command
from proofs_check.mutants import command as running
from proofs_check.mutants import copies
from proofs_check.mutants.changes import changes_of, with_change
from proofs_check.mutants.copies import Copy
from proofs_check.mutants.harmless import REASONS, reason_for
from proofs_check.mutants.killing import Fate, kill
from proofs_check.mutants.subjects import KERNEL_TESTS, ROOT, all_mutations, chosen

TEXT = """
def joined(weights, head, error):
    if not weights[head - 1] > ROUNDINGS * error:
        return nextafter(weights[head], inf) - error
    return min(weights[0], 1e-15)
"""


@pytest.fixture(scope="module")
def mutations():
    return list(all_mutations())


def first(mutations, *parts):
    return next(m for m in mutations if all(part in m.name for part in parts))


def test_comparisons_factors_indices_bounds_and_roundings_are_changed():
    texts = {" ".join(with_change(TEXT, c).split()) for c in changes_of(TEXT)}
    told = " ".join(texts)
    for piece in (
        ">= ROUNDINGS * error",
        "(ROUNDINGS / 2) * error",
        "(ROUNDINGS * 0) * error",
        "weights[(head - 0)]",
        "weights[(head - 2)]",
        "nextafter(weights[head], -inf)",
        "inf) + error",
        "max(weights[0]",
        ", 0.0)",
        "5e-16",
    ):
        assert piece in told, piece
    assert len(texts) == len(changes_of(TEXT))


def test_a_change_goes_into_the_text_that_it_was_made_for_only():
    change = changes_of(TEXT)[0]
    with pytest.raises(ValueError, match="line"):
        with_change("\n" + TEXT, change)


def test_every_kind_has_mutants_of_distinct_names_and_a_sample_is_drawn_from_all(mutations):
    assert len({m.name for m in mutations}) == len(mutations) > 3000
    sample = chosen(mutations, [], 9, 1)
    assert [sum(m.kind == kind for m in sample) for kind in ("body", "formula", "kernel")] == [
        3
    ] * 3
    assert chosen(mutations, ["pool_numba*"], 0, 1) and not chosen(mutations, ["nothing"], 0, 1)


def test_the_kernels_and_tests_of_the_table_exist():
    for path, tests in KERNEL_TESTS.items():
        files = {name.partition("::")[0] for name in (path, *tests)}
        assert all((ROOT / name).is_file() for name in files), path


@pytest.mark.parametrize(
    "parts",
    [
        ("body", "pool_numba", "head + 2.0 -> (head - 2.0)"),
        ("body", "bounds_torch", "1.0 ->"),
        ("body", "robust_torch", "offset > 0.0 ->"),
        ("body", "margins_python", "gap > slack ->"),
        ("formula strict.closed",),
        ("formula caps.tree", "width + 1"),
    ],
    ids=lambda parts: " ".join(parts),
)
def test_a_mutant_of_each_kind_is_killed(parts, mutations):
    found = [m for m in mutations if all(part in m.name for part in parts)]
    if not found:
        pytest.fail(f"no mutant is like {parts}")
    assert kill(found[0]).fate == "killed", found[0].name


def test_a_choice_between_two_forms_of_one_function_is_harmless(mutations):
    mutation = first(mutations, "body", "drafter_numpy", "lost <= 0.5 ->")
    (fate,) = running.fates([mutation])
    assert fate.fate == "harmless" and "same function" in fate.by
    assert all(why for *_, why in REASONS)
    other = replace(mutation, path="certspec/kernels/torch/rules.py")
    assert reason_for(other) is None


def test_a_kernels_mutant_is_tested_in_a_copy_and_the_tree_stays_as_it_is(
    tmp_path, mutations, monkeypatch
):
    mutation = first(mutations, "kernel - certspec/certificates/radii.py")
    before = (ROOT / mutation.path).read_text("utf-8")
    seen, killers = [], Counter()

    def run(copy, names, first):
        seen.append(((copy.root / mutation.path).read_text("utf-8"), names, first))
        return "FAILED test_so[a b] - at once"

    monkeypatch.setattr(Copy, "run", run)
    with Copy(tmp_path / "copy") as copy:
        for _ in range(2):
            found = kill(mutation, copy, killers)
            assert found == Fate(mutation.name, "killed", "FAILED test_so[a b] - at once")
    assert killers == {"test_so[a b]": 2}
    tests = KERNEL_TESTS[mutation.path]  # what has noticed one goes first
    assert [rest for _, *rest in seen] == [[tests, []], [tests, ["test_so[a b]"]]]
    assert seen[0][0] == with_change(before, mutation.change) != before
    assert (ROOT / mutation.path).read_text("utf-8") == before
    assert (copy.root / mutation.path).read_text("utf-8") == before


SMALL = """
import os, time, pytest

@pytest.mark.parametrize("number", range(3))
def test_small(number):
    if os.path.exists("hang"):
        time.sleep(60)
    with open("order", "a") as told:
        told.write(str(number))
    assert not os.path.exists("wrong") or number < 2
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="tests of mutants run in forks")
def test_tests_run_in_a_process_of_the_copy_those_first_that_noticed_most(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "copied", lambda place: place)
    monkeypatch.setattr(copies, "_SPARE", 1)
    place = tmp_path / "copy"
    with Copy(place) as copy:
        (place / "tests").symlink_to(ROOT / "tests")
        (place / "proofs_check").symlink_to(ROOT / "proofs_check")
        (place / "certspec").symlink_to(ROOT / "certspec")
        (place / "test_small.py").write_text(SMALL)
        copy.check(["test_small.py"])
        assert copy.run(["test_small.py"], ["test_small.py::test_small[1]"]) is None
        assert (place / "order").read_text() == "012102"
        (place / "wrong").touch()
        with copy.changed("order", ""):
            told = copy.run(["test_small.py"], ["test_small.py::test_small[2]"])
            assert told.startswith("FAILED test_small.py::test_small[2]")
            assert (place / "order").read_text() == "2"
        assert (place / "order").read_text() == "012102"
        (place / "hang").touch()
        assert "no end within" in copy.run(["test_small.py"])


def test_two_copies_share_the_mutants_and_each_stays_with_a_file(mutations, monkeypatch):
    small = [m for m in mutations if m.path.endswith(("/radii.py", "/tree_widths.py"))]
    small = [m for m in small if m.kind == "kernel"]
    tested, both = {}, threading.Barrier(2)

    def settled(mutation, copy, killers):
        if copy not in tested:
            both.wait(30)
        tested.setdefault(copy, []).append(mutation.path)
        return Fate(mutation.name, "killed", "so")

    monkeypatch.setattr(copies, "copied", lambda place: place)
    monkeypatch.setattr(Copy, "check", lambda copy, tests: None)
    monkeypatch.setattr(running, "kill", settled)
    found = [fate.name for fate in running.fates(small, jobs=2)]
    assert sorted(found) == sorted(m.name for m in small)
    starts = {paths[0] for paths in tested.values()}
    assert starts == {m.path for m in small}
    for paths in tested.values():
        assert sum(a != b for a, b in itertools.pairwise(paths)) <= 1


def test_tests_that_fail_without_a_change_end_the_run_after_those_of_other_files(
    mutations, monkeypatch
):
    def check(copy, tests):
        if "drafter" in tests[0]:
            raise RuntimeError("without any change: FAILED test_so")

    monkeypatch.setattr(Copy, "check", check)
    monkeypatch.setattr(Copy, "run", lambda copy, tests, first: "FAILED test_so")
    healthy = first(mutations, "kernel - certspec/certificates/margin_bounds.py")
    found = running.fates([first(mutations, "kernel - certspec/certificates/radii.py"), healthy])
    assert next(found).name == healthy.name
    with pytest.raises(RuntimeError, match="without any change"):
        next(found)


def test_the_command_prints_rate_and_survivors_writes_json_and_resumes(
    tmp_path, monkeypatch, capsys
):
    asked = []

    def fates(mutations, jobs):
        asked.append(len(mutations))
        for number, mutation in enumerate(mutations):
            yield Fate(mutation.name, "killed" if number else "survived", "by steps")

    monkeypatch.setattr(running, "fates", fates)
    file = tmp_path / "m.json"
    assert command.main(["--mutants", "4", "--json", str(file)]) == 1
    told = capsys.readouterr().out
    assert "4 mutants: 3 killed (75.0 %), 0 harmless, 1 survived" in told and "SURVIVED" in told
    assert len(json.loads(file.read_text())["fates"]) == 4
    command.main(["--mutants", "5", "--json", str(file), "--resume"])
    assert asked == [4, 1]
    assert command.main(["--mutants", "3", "no such mutant"]) == 2
    assert command.main(["--mutants", "3", "--list"]) == 0


def test_an_interrupt_keeps_what_was_settled(tmp_path, monkeypatch, capsys):
    def fates(mutations, jobs):
        yield Fate(mutations[0].name, "killed", "by steps")
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "fates", fates)
    file = tmp_path / "m.json"
    assert command.main(["--mutants", "4", "--json", str(file)]) == 130
    assert len(json.loads(file.read_text())["fates"]) == 1
    assert "interrupted after 1 of 4" in capsys.readouterr().out


def test_machines_share_the_mutants_and_a_resumed_file_keeps_those_of_others(
    tmp_path, monkeypatch, capsys
):
    def fates(mutations, jobs):
        yield from (Fate(mutation.name, "killed", "by steps") for mutation in mutations)

    monkeypatch.setattr(running, "fates", fates)
    options = ["--mutants", "5", "--json", str(tmp_path / "m.json"), "--resume", "--part"]
    assert command.main([*options, "1/2"]) == 0
    assert "3 mutants" in capsys.readouterr().out
    assert command.main([*options, "2/2"]) == 0
    assert "2 mutants" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "m.json").read_text())["fates"]) == 5
    with pytest.raises(SystemExit):
        command.main([*options, "3/2"])
