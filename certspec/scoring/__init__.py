"""Scoring: greedy runs of a target, every step of the draft judged by certificates, kept in a
folder that survives kills."""
