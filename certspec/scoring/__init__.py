"""Scoring: greedy runs of a target, every step of the draft judged by certificates, kept in a
folder that survives kills, and the tables and plots made from it. This package knows nothing about
how certificates are computed."""
