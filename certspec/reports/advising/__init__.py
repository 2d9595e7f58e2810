"""Advice: which rule, width and draft length are fastest for given costs, by replaying the recorded
steps of a run."""
