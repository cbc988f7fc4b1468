"""Test set-up, before anything imports numba or a BLAS."""

import os

# The suite runs one process per core: more threads would only fight each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
