"""Emitted by ``python -m derivations``; edit the derivations, never these files."""
