"""A tiny random pair on disk and in memory, and prompts, for the scoring tests."""

import json

import pytest

import certspec as cs
from certspec.scoring.prompts import PromptFile
from tests.support.tiny_pair import write_tiny_pair


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """Target and draft directories with padded vocabularies of different widths."""
    folder = tmp_path_factory.mktemp("tiny")
    return write_tiny_pair(folder, target_pad=3, draft_pad=11, context=48, noise=0.03)


@pytest.fixture(scope="session")
def tiny(tiny_folders):
    return cs.load_pair(*tiny_folders)


@pytest.fixture(scope="session")
def prompt_path(tmp_path_factory):
    """Eleven prompts of different lengths; number 4 is too long for the context of 48 tokens."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    texts = [f"the river {'old ' * (index % 4)}sea {index}" for index in range(11)]
    texts[4] = "a story about the sea " * 20
    path.write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="session")
def prompts(prompt_path):
    return PromptFile.check(prompt_path)
