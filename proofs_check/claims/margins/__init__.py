"""Checks of the least certificate at a given margin."""
