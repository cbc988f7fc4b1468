"""Test set-up, before anything imports numba or a BLAS."""

import os
import signal
import threading

# The suite runs one process per core: more threads would only fight each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
