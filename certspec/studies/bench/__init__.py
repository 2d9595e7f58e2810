"""Benchmarks: ours and the baselines on the same inputs in one run."""
