"""Lemmas that derivations cite: convexity, transport, infima."""
