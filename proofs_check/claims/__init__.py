"""Checks of every claim, in folders as the derivations have them; importing a module registers its
checks."""
