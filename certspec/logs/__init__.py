"""Logs that inference servers already write, as positions with the most probable tokens of each. This package knows
file formats; what a list certifies is in ``certspec.lumped``."""

from certspec.logs.findings import Findings
from certspec.logs.front_door import FORMATS, read_log
from certspec.logs.position import LoggedPosition

__all__ = ["FORMATS", "Findings", "LoggedPosition", "read_log"]
