"""Checks of evaluation forms and rounding bounds."""
