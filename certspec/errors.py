"""What can go wrong, as exceptions: each message says what, what was expected, what was got, where.

All derive from ``CertspecError``, so that ``except cs.CertspecError`` catches whatever certspec
itself refuses."""

from __future__ import annotations

__all__ = [
    "CertspecError",
    "IncompatiblePair",
    "InvalidArgument",
    "InvalidLogits",
    "RunMismatch",
    "UnreadableInput",
]


class CertspecError(Exception):
    """Base of every error that certspec raises deliberately."""


class InvalidArgument(CertspecError, ValueError):
    """A parameter lies outside its allowed range, or arguments contradict one another."""


class InvalidLogits(InvalidArgument):
    """A row of logits defines no distribution (NaN, +inf, all -inf), or shapes do not match."""


class IncompatiblePair(CertspecError, ValueError):
    """Target and draft do not speak about the same tokens."""


class UnreadableInput(CertspecError, ValueError):
    """An input file or one of its lines can't be read; the message names file and line."""


class RunMismatch(CertspecError, ValueError):
    """A run folder holds results made with other settings."""
