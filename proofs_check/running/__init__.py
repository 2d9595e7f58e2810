"""Runs checks and shows what came out: lines, explanations, a page with plots."""
