"""The least certificate at a given margin, and bounds in it."""
