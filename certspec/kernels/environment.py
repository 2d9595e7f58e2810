"""Variables of the environment that libraries read when they are imported, and fail on in words of
their own, or crash: refused by name before that."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache

from certspec.errors import InvalidArgument

__all__ = ["refuse_variables"]


def _is_count(value: str) -> bool:
    return value.strip().isdecimal() and int(value) > 0


def _is_folder(value: str) -> bool:
    try:
        os.makedirs(value, exist_ok=True)
    except OSError:
        return False
    return True


# Variable -> what it may be, in words and as a test.
_RULES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "NUMBA_NUM_THREADS": ("a number of at least 1", _is_count),
    # without its compiler numba runs kernels as Python, which most are not
    "NUMBA_DISABLE_JIT": ("0: kernels are compiled", lambda value: value.strip() in ("", "0")),
    # LLVM aborts the process
    "NUMBA_CPU_FEATURES": (
        "features with a sign, like +avx2,-avx512f",
        lambda value: all(each.strip()[:1] in ("", "+", "-") for each in value.split(",")),
    ),
    # torch itself sets it for the processes that it starts: no reason to load torch in each
    "TORCHINDUCTOR_CACHE_DIR": ("a folder that is there or can be made", _is_folder),
}
# Variables by how they begin -> the module that reads them while it is imported.
_READERS = {
    ("HF_HUB_",): "huggingface_hub.constants",
    ("TORCH_LOGS", "TORCH_COMPILE_DEBUG", "TORCHDYNAMO_", "TORCHINDUCTOR_"): "torch._dynamo",
}


@cache
def refuse_variables() -> None:
    """Raise InvalidArgument where a variable holds what its library can't use. A library is only
    imported where one that it reads is set."""
    for name, (expected, is_right) in _RULES.items():
        value = os.environ.get(name, "")
        if value and not is_right(value):
            raise InvalidArgument(f"{name} in the environment: expected {expected}, got {value!r}")
    for beginnings, module in _READERS.items():
        given = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(beginnings) and name not in _RULES
        }
        if given:
            _refuse_where_it_fails(module, given)


def _refuse_where_it_fails(module: str, given: dict[str, str]) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        pass  # not installed, or not whole: said where it is needed
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        named = {name: value for name, value in given.items() if value in str(error)} or given
        told = ", ".join(f"{name}={value!r}" for name, value in named.items())
        library = module.partition(".")[0]
        raise InvalidArgument(
            f"{told} in the environment: expected what {library} can use, got an error ({first})"
        ) from error
