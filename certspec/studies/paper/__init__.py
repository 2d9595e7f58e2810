"""The paper's experiment: its prompts, steps and rules, and its published figures beside those of a
run. This package needs a model only to run; comparing a finished run needs none."""
