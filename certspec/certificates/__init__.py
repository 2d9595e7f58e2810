"""What users call: arrays in, certificates out. ``README.md`` says what is where, and how to add a
rule."""
