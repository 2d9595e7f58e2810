"""Advice: which rule, width and draft length are fastest for given costs, by replaying the recorded
steps of a run. This package reads run folders and needs neither torch nor a model."""
