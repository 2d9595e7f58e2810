"""Evaluation forms and what rounding can do to them."""
