"""What a wheel would hold beside Python's own files: the bundled pair and the generated kernels'
manifest, and no results or pictures of any study; and what it asks of an environment."""

from pathlib import Path

import pytest

from tests.rooms import PACKAGES, ROOT

try:
    import tomllib
except ImportError:  # before Python 3.11; pytest brings it along
    import tomli as tomllib


def packaged(patterns: dict[str, list[str]]) -> set[str]:
    """What setuptools takes along for these patterns: plain files, ``**`` over folders."""
    return {
        path.relative_to(ROOT).as_posix()
        for package, globs in patterns.items()
        for pattern in globs
        for path in (ROOT / package).glob(pattern)
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }


def unwanted(files: set[str]) -> set[str]:
    """Evidence: whatever lies among a study's own files or results, and every picture."""
    return {
        name
        for name in files
        if {"studies", "results", "published"} & set(Path(name).parts)
        or Path(name).suffix in (".png", ".svg", ".parquet")
        or Path(name).name == "losses.json"
    }


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def patterns(project):
    settings = project["tool"]["setuptools"]
    assert settings["packages"]["find"]["include"] == [f"{name}*" for name in sorted(PACKAGES)]
    return settings["package-data"]


def test_a_wheel_holds_the_bundled_pair_and_the_manifest(patterns):
    files = packaged(patterns)
    folder = "certspec/models/bundled"
    assert {f"{folder}/{name}/model.safetensors" for name in ("target", "draft")} <= files
    assert {"certspec/py.typed", "certspec/kernels/generated/manifest.json"} <= files


def test_a_wheel_holds_every_template_of_the_page(patterns):
    templates = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "certspec/reports/templates").iterdir()
    }
    assert templates and templates <= packaged(patterns)


def test_a_wheel_holds_no_evidence(patterns):
    assert unwanted(packaged(patterns)) == set()


def test_evidence_in_a_wheel_would_be_noticed():
    found = unwanted(packaged({"certspec": ["studies/bench/results/*", "studies/smollm/**/*"]}))
    assert any(name.endswith(".json") for name in found)


def test_the_package_moves_no_newer_version_that_is_there_and_tested_holds_the_bound(project):
    assert [asked for asked in project["project"]["dependencies"] if "<" in asked] == []
    assert project["project"]["optional-dependencies"]["tested"] == ["torch<2.14"]
    assert ".[test,tested]" in (ROOT / ".ci/run").read_text("utf-8")
