"""Whether an answer is right: HumanEval's own tests, run on the function that the answer gives, and
GSM8K's number."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from certspec.studies.coder.sandbox import Limits, run_program

__all__ = ["final_number", "is_right_number", "program_of", "verdict_on_code"]

_BLOCK = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def final_number(text: str) -> Decimal | None:
    """The number that an answer ends with: after the last ``####`` if there is one, else in the
    last ``\\boxed{}`` that holds one, else the last number of the text. Commas between digits and
    what stands around a number ($, %, a full stop) are left out."""
    after = text.rpartition("####")
    boxed = [found for found in re.findall(r"\\boxed\{([^{}]*)\}", text) if _NUMBER.search(found)]
    if after[1]:
        numbers = _NUMBER.findall(after[2])[:1]
    else:
        numbers = _NUMBER.findall(boxed[-1] if boxed else text)[-1:]
    try:
        return Decimal(numbers[0].replace(",", "")) if numbers else None
    except InvalidOperation:
        return None


def is_right_number(text: str, answer: str) -> bool:
    """Whether the text's final number is the ``answer`` ("18", "1,000")."""
    return final_number(text) == Decimal(answer.replace(",", ""))


def program_of(text: str, test: dict[str, Any]) -> str:
    """The program that decides: the task's own beginning (imports and helpers), the answer's code,
    the tests.

    The code is the first block that defines the wanted function (one that was cut off counts as
    far as it goes), else the first block of all, else the whole text; what defines no such function
    is taken to go on where the task breaks off."""
    blocks = _BLOCK.findall(text) or [text]
    wanted = re.compile(rf"^\s*(?:async\s+)?def\s+{re.escape(test['entry_point'])}\b", re.MULTILINE)
    defining = [block for block in blocks if wanted.search(block)]
    code = f"\n\n{defining[0]}" if defining else blocks[0]
    return f"{test['prompt']}{code}\n\n{test['test']}\n\ncheck({test['entry_point']})\n"


def verdict_on_code(text: str, test: dict[str, Any], limits: Limits | None = None) -> str:
    """ "passed", or what went wrong, see ``run_program``."""
    return run_program(program_of(text, test), limits)
