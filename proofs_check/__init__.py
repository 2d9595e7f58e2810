"""Checks of every claim by routes that do not use its derivation."""
