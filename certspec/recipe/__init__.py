"""How the bundled pair was made: tokenizer, target, distilled draft, prompts and their measurements, in the order they are run.

Read `__main__.py` from top to bottom; every step is one small file. Nothing else in certspec imports this package.
"""
