"""Tasks with answers that can be checked and that a very small chat model can do at all: counting,
sums, copying a sentence, a Python function."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from certspec.models.prompt_templates import CREATURES, FUNCTIONS, NAMES, OBJECTS, QUALITIES

__all__ = ["TASKS", "Task", "draw_tasks"]


@dataclass(frozen=True)
class Task:
    """``is_right(answer)`` says whether an answer to ``prompt`` is right."""

    kind: str
    prompt: str
    is_right: Callable[[str], bool]


def _copying(rng: random.Random, number: int) -> Task:
    sentence = (
        f"{rng.choice(NAMES)} and the {rng.choice(QUALITIES)} {rng.choice(CREATURES)} found a "
        f"{rng.choice(OBJECTS)} under the {rng.choice(OBJECTS)}."
    )
    return Task(
        "copying",
        f"Repeat this sentence: {sentence}",
        lambda answer: sentence.rstrip(".") in answer,
    )


def _counting(rng: random.Random, number: int) -> Task:
    first = rng.randint(1, 12)
    wanted = list(range(first, first + 8))
    prompt = f"Count from {first} to {wanted[-1]}. Write the numbers in order, separated by commas."
    return Task("counting", prompt, lambda answer: _contains(_integers(answer), wanted))


def _arithmetic(rng: random.Random, number: int) -> Task:
    one, other = rng.randint(1, 9), rng.randint(1, 9)
    found = f"{one} + {other}"
    return Task(
        "arithmetic",
        f"What is {found}?",
        lambda answer: (one + other) in _integers(answer.replace(found, " "))[:1],
    )


def _python(rng: random.Random, number: int) -> Task:
    frames = (
        "Write a Python function that {}.",
        "Show me short Python code that {}.",
        "Write only Python code that {}.",
    )
    prompt = frames[number // len(FUNCTIONS) % len(frames)].format(
        FUNCTIONS[number % len(FUNCTIONS)]
    )
    return Task("python", prompt, is_valid_python)


TASKS: dict[str, Callable[[random.Random, int], Task]] = {
    "copying": _copying,
    "counting": _counting,
    "arithmetic": _arithmetic,
    "python": _python,
}


def draw_tasks(count: int, seed: int) -> list[Task]:
    """``count`` tasks of each kind (of the code prompts there are 27 different ones)."""
    rng = random.Random(seed)
    return [make(rng, number) for make in TASKS.values() for number in range(count)]


def is_valid_python(answer: str) -> bool:
    """The first fenced block that is closed parses and defines a function."""
    blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)```", answer, flags=re.DOTALL)
    if not blocks:
        return False
    try:
        tree = ast.parse(blocks[0])
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


def _integers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,9}", text)]


def _contains(numbers: list[int], wanted: list[int]) -> bool:
    return any(
        numbers[at : at + len(wanted)] == wanted for at in range(len(numbers) - len(wanted) + 1)
    )
