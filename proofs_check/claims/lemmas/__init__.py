"""Checks of the lemmas that derivations cite."""
