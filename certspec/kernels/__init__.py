"""Kernels of the certificates: emitted scalar formulas, the row passes that use them, and a plain
reference."""
