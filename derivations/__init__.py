"""Symbolic statements and derivations, and the printers that turn them into source text. Runs no kernel."""
