"""Compiled kernels: pure functions on arrays, no Python objects, no I/O, no randomness."""
