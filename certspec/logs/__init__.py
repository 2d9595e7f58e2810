"""Logs that inference servers already write, as positions with the most probable tokens of each
(``reading.read_log``), and the run that is made of them (``import_run.import_logs``).

Example, a line of an OpenAI chat log: ``{"choices": [{"logprobs": {"content": [{"token": " the",
"logprob": -0.2, "top_logprobs": [...]}]}}]}`` becomes one position, whose list says which rules
accept which tokens there."""
