"""Checks of what hand-written and drafter kernels compute."""
