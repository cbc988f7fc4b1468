"""Test set-up: one numba cache per state of the kernel sources.

Numba's disk cache notices a change of a driver's own file only, not of the helpers it calls. Kernels are
compiled with one thread-safe cache per fingerprint of all kernel sources instead, so that a stale kernel is
never tested. The variable is set before anything imports numba.
"""

import hashlib
import os
import tempfile
from pathlib import Path

_KERNELS = Path(__file__).parent.parent / "src" / "simstream" / "kernels"


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for source in sorted(_KERNELS.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


os.environ.setdefault(
    "NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"simstream-numba-{_fingerprint()}")
)
# The suite runs one process per core: more BLAS threads would only fight each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
