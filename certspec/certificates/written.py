"""How exact probabilities and their logarithms are that somebody wrote down, as a server's are.

    written_errors(np.array([[0.712, 0.205]]), "float64")  # half a thousandth each

No number is taken for more exact than a float32 log-softmax leaves it. Beyond that a row is as
exact as the number that shows the most of it: half a unit of its last decimal or significant digit,
or a unit in the last place of the 16-bit floats that hold the whole row. Without that, 1 minus the
sum of a row would be taken for the rest of its mass, and of two numbers of three decimals it may be
off by a thousandth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certspec.errors import InvalidArgument
from certspec.kernels.loading import load_kernels
from certspec.rules import as_real

__all__ = ["FLOAT32_ERROR", "read_abs_error", "written_errors", "written_log_errors"]

_constants = load_kernels("constants")

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# a float32 log-softmax of values down to -30 nats: half an ulp of the value, and of the normaliser
FLOAT32_ERROR = 2e-6
_SMALLEST_FLOAT32 = float(np.finfo(np.float32).smallest_subnormal)
# one unit in the last place of 16 bits: relative, and of the smallest numbers
_HALVES = {
    "bfloat16": (_constants.LAST_PLACE_BFLOAT16, 2.0**16 * _SMALLEST_FLOAT32),
    "float16": (_constants.LAST_PLACE_FLOAT16, float(np.finfo(np.float16).smallest_subnormal)),
}
_MOST_DIGITS = 9  # more are finer than what float32 leaves of any
_SMALLEST_SCALE = -300.0  # a smaller number's digits are read as if it were of this size
# of a decimal number, which float64 rounds and divides
_SLACK = 4.0 * _constants.LAST_PLACE_FLOAT64


def read_abs_error(name: str, abs_error: Any) -> float | None:
    """The number of at least 0 and below 1, or None; InvalidArgument, which names ``name``, for
    anything else."""
    if abs_error is None:
        return None
    number = as_real(abs_error)
    if not 0.0 <= number < 1.0:
        raise InvalidArgument(
            f"{name}: expected abs_error a number of at least 0 and below 1, or None (which reads "
            f"it off the digits), got {abs_error!r}"
        )
    return number


def written_errors(probs: Floats, kind: str) -> Floats:
    """How far each of the probabilities, (rows, K), may be from the one that was meant; ``kind``:
    the dtype that they came in."""
    exact = np.maximum(FLOAT32_ERROR * probs, _SMALLEST_FLOAT32)
    return np.maximum(_shown_errors(probs, kind), exact)


def written_log_errors(logprobs: Floats, kind: str) -> Floats:
    """(rows,) the same of log-probabilities, (rows, K) nats: no value of a row is further off."""
    sizes = np.where(np.isfinite(logprobs), np.abs(logprobs), 0.0)
    found: Floats = FLOAT32_ERROR + _shown_errors(sizes, kind).max(axis=1)
    return found


def _shown_errors(values: Floats, kind: str) -> Floats:
    """What few digits or floats of 16 bits leave; 0 in rows that show neither."""
    errors, single = _digit_errors(values), values.astype(np.float32)
    with np.errstate(over="ignore"):
        held = {
            "bfloat16": (single == values) & ((single.view(np.uint32) & 0xFFFF) == 0),
            "float16": values.astype(np.float16) == values,
        }
    for name, (relative, smallest) in _HALVES.items():
        of_row = held[name].all(axis=1, keepdims=True) | (kind == name)
        half = np.maximum(relative * values, smallest)
        errors = np.where(of_row, np.maximum(errors, half), errors)
    return errors


def _digit_errors(values: Floats) -> Floats:
    """Half a unit of the last decimal or significant digit, whichever is more, of rows that have
    few; 0 of others."""
    orders = np.floor(np.log10(np.where(values > 0.0, values, 1.0))).clip(_SMALLEST_SCALE)
    scales = (np.ones_like(values), 10.0**orders)
    errors = np.zeros_like(values)
    for scale in scales:
        if not _is_rounded(values, scale, _MOST_DIGITS).any():
            continue
        for digits in range(_MOST_DIGITS, -1, -1):
            held = _is_rounded(values, scale, digits)
            errors = np.where(held, np.maximum(errors, 0.5 * 10.0**-digits * scale), errors)
    return errors


def _is_rounded(values: Floats, scale: Floats, decimals: int) -> Flags:
    """(rows, 1) whether each number, in units of its scale, has so few decimals or is the float32
    one nearest to such a number."""
    rounded = np.round(values / scale, decimals) * scale
    near = np.abs(rounded - values) <= _SLACK * values
    single = values.astype(np.float32)
    near |= (rounded.astype(np.float32) == single) & (single == values)
    return np.asarray(near.all(axis=1, keepdims=True))
