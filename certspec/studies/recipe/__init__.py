"""How the bundled pair was made: data, tokenizer, target, distilled draft, prompts and
measurements. Read ``__main__.py`` from top to bottom; every step is one small file."""
