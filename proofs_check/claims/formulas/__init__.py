"""Checks of what a certificate is: pools, caps, lumped lists, drafter and reverse radii."""
