"""What the process that others are forked from loads once, so that a short cell does not load it again.

The first kernel of a process makes numba import a hundred modules, which takes longer than many a cell.
"""

import numba

from . import protocols  # noqa: F401  the libraries that all of them need

numba.njit(lambda x: x)(1.0)
