"""Numbers of the rows that tasks have touched: a hash table from (task, row) to a row of one store.

``key[p]`` is task * width + row, -1 where the place is free, and ``number[p]`` the row of the store.
"""

from __future__ import annotations

import numpy as np

from .dispatch import driver, inner


@inner
def _place(key, wanted):
    """Place of a key, or minus one minus the free place where it belongs."""
    folded = np.uint64((wanted ^ (wanted >> 32)) & 0xFFFFFFFF)
    hashed = (folded * np.uint64(2654435769)) & np.uint64(0xFFFFFFFF)
    p = np.int64((hashed * np.uint64(len(key))) >> np.uint64(32))
    while key[p] != wanted:
        if key[p] < 0:
            return -1 - p
        p += 1
        if p == len(key):
            p = 0
    return p


@inner
def row_number(key, number, wanted, absent):
    """The number of a row, or `absent` if it has none."""
    p = _place(key, wanted)
    return np.int64(number[p]) if p >= 0 else np.int64(absent)


@driver
def number_rows(key, number, used, most, first, width, rows, anchors, tasks, begin):
    """Number the rows of the anchors from tuple `begin` on, from `first` on and in their order.

    Return the first tuple with a row for which there is no number: there are `most` of them.
    """
    indptr, indices = rows.indptr, rows.indices
    for t in range(begin, len(tasks)):
        for k in range(indptr[anchors[t]], indptr[anchors[t] + 1]):
            wanted = tasks[t] * width + indices[k]
            p = _place(key, wanted)
            if p < 0:
                if used[0] == most:
                    return t
                key[-1 - p] = wanted
                number[-1 - p] = first + used[0]
                used[0] += 1
    return len(tasks)


@driver
def add_numbers(key, number, more_keys, more_numbers):
    """Put keys that are not in the table yet into it; what is negative is no key."""
    for k in range(len(more_keys)):
        if more_keys[k] >= 0:
            p = -1 - _place(key, more_keys[k])
            key[p] = more_keys[k]
            number[p] = more_numbers[k]
