"""Sampling: scalar kernels for numpy. Generated; do not edit.

command:     python -m derivations
derivation:  derivations.kernels.sampling_kernels (sampling.dual)
claims:      sampling.dual
domain:      acceptance_at: kl >= 0, tilt > 0
printer:     NumpyPrinter (no fast math, float64)
sympy:       1.14.0
expression:  sha256 46b01b693585bd36bbfeb74d95df24fb6ffc64d5c01da61e3cea79e652b79a07
body:        sha256 5b12aef3ba0565ebe0930dcb277e12c64e6604ec76c93353c24f5e479049edc6
"""
# --- body ---
import numpy as np


# claims: sampling.dual
def acceptance_at(kl, tilt):
    """A number below 1 - TV of every pair at KL, for any tilt; the best one is where log(v) - m (v - 1) is KL."""
    high = -tilt/np.expm1(-tilt)
    low = high*np.exp(-tilt)
    return (1.0 + np.log(high) - kl - low)/tilt
