"""Searches for counterexamples among millions of rows, each a command of its own."""
