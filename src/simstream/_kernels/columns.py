"""The parts of a block where the columns of M are divided over several places.

What `blocked` yields is worked out from some of the columns of M and of z, and summed with what others worked
out from theirs. Two Gram matrices of B rows travel as the two triangles of one matrix and a diagonal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from .blocked import Blas, nonzero_rows, row_dots


class SharedBlas(Blas):
    """The large products of one place among several.

    Parameters
    ----------
    dtype : precision
    share : slice
        Features of x that this place works out the Gram matrix of x from.
    is_pairs : bool
        Whether z is some columns of x: both have the same Gram matrix then.
    """

    has_all_columns = False

    def __init__(self, dtype: np.dtype, share: slice, is_pairs: bool) -> None:
        super().__init__(dtype)
        self._share, self._is_pairs = share, is_pairs

    def gram_of_share(self, x: np.ndarray) -> np.ndarray:
        """Upper triangle of x x', as far as it comes from this place's share of the features."""
        if self._share.start == self._share.stop:  # more workers than features of x
            return np.zeros((len(x), len(x)), x.dtype)
        return self.gram(np.ascontiguousarray(x[:, self._share]))

    def margins(self, x: np.ndarray, m: np.ndarray, z: np.ndarray) -> np.ndarray:
        return row_dots(self.product(x, m), z)

    def is_directed(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return nonzero_rows(x, z)

    def grams(self, x: np.ndarray, z: np.ndarray) -> Any:
        if self._is_pairs:
            return np.ascontiguousarray(self.gram(z)), np.empty(0, z.dtype)
        both = np.ascontiguousarray(self.gram_of_share(x))
        diagonal = both.diagonal().copy()
        self._syrk(1.0, z.T, trans=1, lower=0, beta=0.0, c=both.T, overwrite_c=1)
        return both, diagonal

    def grams_if_many(
        self, step: Any, value: Any, sign: Any, clock: Any, x: np.ndarray, z: np.ndarray
    ) -> Any:
        return self.grams(x, z)  # nobody knows the margins yet, nor whole rows of z

    def triangles(self, grams: Any) -> tuple[np.ndarray, np.ndarray]:
        both, diagonal = grams
        if self._is_pairs:
            return both, both
        gram_z = np.array(both.T, order="C")  # a copy, also of a matrix of one row
        np.fill_diagonal(both, diagonal)
        return both, gram_z


def divided(width: int, n_parts: int) -> list[slice]:
    """As many ranges of about the same length as there are parts.

    Examples
    --------
    >>> divided(10, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    cuts = [width * part // n_parts for part in range(n_parts + 1)]
    return [slice(begin, end) for begin, end in pairwise(cuts)]


def summed(parts: list[Any]) -> Any:
    """The sum of what several places yielded: the same bits whoever was first.

    Neighbours are added to each other, then those sums, and so on; first only as many of them as leave a
    power of two. All arrays of the sum are new: others may be reading the parts.

    Examples
    --------
    >>> a, b, c, d, e = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
    >>> bool(summed([a, b, c, d, e]) == ((a + b) + c) + (d + e))
    True
    """
    if isinstance(parts[0], tuple):
        return tuple(summed(list(some)) for some in zip(*parts, strict=True))
    if len(parts) == 1:
        return np.array(parts[0], order="C")
    n_pairs = len(parts) - (1 << (len(parts).bit_length() - 1)) or len(parts) // 2
    first = parts[: 2 * n_pairs]
    pairs = [np.add(a, b, order="C") for a, b in zip(first[::2], first[1::2], strict=True)]
    return pairs[0] if len(parts) == 2 else summed(pairs + parts[2 * n_pairs :])
