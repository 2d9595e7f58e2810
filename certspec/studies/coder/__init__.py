"""A real public pair, Qwen2.5-Coder Instruct 1.5B and 0.5B as GGUF files: the paper's claims, the
quality of relaxed rules where answers can be checked, and speed. ``python -m
certspec.studies.coder --help``."""
