"""Evidence on a real chat model: a draft distilled for SmolLM2-135M-Instruct, losses compared, the
paper's claims tested, quality and speed measured."""
