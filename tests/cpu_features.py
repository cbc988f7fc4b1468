"""Print the CPU features that NumPy dispatches on and finds on this machine, for NPY_DISABLE_CPU_FEATURES."""

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

print(*(name for name in __cpu_dispatch__ if __cpu_features__.get(name)))  # noqa: T201
