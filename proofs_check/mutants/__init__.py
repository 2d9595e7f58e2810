"""Small wrong versions of what is proved, made by the dozen, and who notices them: ``python -m
proofs_check --mutants``."""
