"""Logs that inference servers already write, as positions with the most probable tokens of each. This package knows
file formats; what a list certifies is in ``certspec.lumped``."""
