"""Logs that inference servers already write, as positions with the most probable tokens of each.
This package knows file formats; what a list certifies is in ``certspec.certificates.lumped``."""

from certspec.logs.findings import Findings
from certspec.logs.position import LoggedPosition
from certspec.logs.reading import FORMATS, read_log

__all__ = ["FORMATS", "Findings", "LoggedPosition", "read_log"]
