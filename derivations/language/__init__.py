"""The vocabulary: claims, derivations made of steps, kernels before they are printed."""
