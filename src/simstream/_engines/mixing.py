"""Mixing: one state out of several that began with the same one and learnt from different tuples.

Given are the states of learners as they are saved. The mixed matrix is the average of theirs; what has
accumulated for its entries (AdaGrad's squared gradients, AROMA's precision) is averaged as well, and what was
counted is added up. A state of the same engine results, with which learning goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .._kernels.mixing import mix_dense, mix_sparse
from .._kernels.rules import Rule
from .._kernels.steps import SHIFT
from .base import State

#: Arrays of a state, by name.
Arrays = dict[str, np.ndarray]

#: Entries that are copied side by side to be mixed.
_AT_A_TIME = 1 << 22


def entries_before_rows(arrays: Arrays) -> np.ndarray:
    """How many entries of a matrix come before each row, and how many there are."""
    if "indptr" in arrays:
        return arrays["indptr"]
    rows, columns = arrays["u"].shape
    return columns * np.arange(rows + 1)


def row_ranges(entries: Sequence[np.ndarray], n_parts: int) -> list[tuple[int, int]]:
    """At most so many ranges of rows, (first, one past the last), with about as many entries each.

    Given is what `entries_before_rows` says of each matrix.
    """
    before = np.sum(entries, axis=0)
    ends = np.searchsorted(before, before[-1] * np.arange(1, n_parts) / n_parts)
    ends = np.unique([0, *ends, len(before) - 1])
    return [(int(a), int(b)) for a, b in pairwise(ends)]


def mixed_rows(
    start: State,
    states: Sequence[State],
    weights: np.ndarray,
    step: float,
    rows: tuple[int, int],
) -> Arrays:
    """These rows of the mixed matrix, a part of what `mixed_state` joins.

    Parameters
    ----------
    start : the state that all began with
    states : the states that were learnt
    weights : array of one weight for each, of sum one
    step : float
        How many times the way from the start to the average is gone: 1 is the average.
    rows : (first, one past the last)
    """
    scalars = start[0]["scalars"]
    rule = Rule.from_header(scalars["rule"])
    arrays = [start[1], *(_renumbered_like(start[1], arrays) for _, arrays in states)]
    shifts = np.array([a["clock"][SHIFT] for a in arrays])
    how = shifts, np.array(weights, np.float64), float(step)
    if "indptr" in arrays[0]:
        return _mixed_sparse(rule, arrays, scalars["shape"][1], rows, how)
    return _mixed_dense(rule, arrays, rows, how)


def mixed_state(start: State, clocks: Sequence[np.ndarray], parts: Sequence[Arrays]) -> State:
    """The mixed state, from the clocks of all states and what `mixed_rows` gave for all rows, in order."""
    header, first = start
    names = [name for name in parts[0] if name != "counts"]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
    if "counts" in parts[0]:
        counts = np.concatenate([part["counts"] for part in parts])
        joined["indptr"] = np.concatenate([[0], np.cumsum(counts)])
    clock = first["clock"] + sum(clock - first["clock"] for clock in clocks)
    clock[SHIFT] = 0.0  # entries are written as if thresholds began with the next round
    return header, {**first, **joined, "clock": clock}


def _renumbered_like(start: Arrays, arrays: Arrays) -> Arrays:
    """The same matrix with the numbering of features of the start: an engine may choose another one."""
    names = "row_rank", "column_rank"
    if names[0] not in start or all(np.array_equal(start[n], arrays[n]) for n in names):
        return arrays
    row_of, column_of = (start[name][np.argsort(arrays[name])] for name in names)
    order = np.argsort(row_of)
    counts = np.diff(arrays["indptr"])[order]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    entries = np.repeat(arrays["indptr"][order] - indptr[:-1], counts) + np.arange(indptr[-1])
    indices = column_of[arrays["indices"][entries]].astype(np.int32)
    moved = {"indptr": indptr, "indices": indices, "numbers": arrays["numbers"][entries]}
    return {**arrays, **moved, **{name: start[name] for name in names}}


def _mixed_dense(rule: Any, arrays: list[Arrays], rows: tuple[int, int], how: Any) -> Arrays:
    begin, end = rows
    names = [name for name in ("u", "aux") if arrays[0][name].shape[1]]
    numbers = np.stack([[a[name][begin:end].ravel() for name in names] for a in arrays])
    numbers = np.ascontiguousarray(numbers.transpose(0, 2, 1))
    mixed = np.empty(numbers.shape[1:], numbers.dtype)
    n_columns = arrays[0]["u"].shape[1]
    mix_dense(rule, numbers, begin, n_columns, *how, mixed)
    found = {name: mixed[:, q].reshape(-1, n_columns) for q, name in enumerate(names)}
    return {"aux": arrays[0]["aux"][begin:end], **found}


def _mixed_sparse(
    rule: Any, arrays: list[Arrays], n_columns: int, rows: tuple[int, int], how: Any
) -> Arrays:
    width, dtype = arrays[0]["numbers"].shape[1], arrays[0]["numbers"].dtype
    place = np.full(n_columns, -1, np.int64)
    aligned = np.zeros((len(arrays), n_columns, width), dtype)
    counts = np.zeros(rows[1] - rows[0], np.int64)
    entries = np.sum([a["indptr"][rows[0] : rows[1] + 1] for a in arrays], axis=0)
    columns, mixed = [np.empty(0, np.int32)], [np.empty((0, width), dtype)]
    begin = 0  # counted from the first of these rows
    while begin < len(counts):
        end = int(np.searchsorted(entries, entries[begin] + _AT_A_TIME, side="right")) - 1
        end = max(begin + 1, end)
        pieces = [slice(*a["indptr"][[rows[0] + begin, rows[0] + end]]) for a in arrays]
        sizes = [piece.stop - piece.start for piece in pieces]
        first = np.cumsum([0, *sizes[:-1]])
        pointers = np.stack(
            [
                a["indptr"][rows[0] + begin : rows[0] + end + 1] - piece.start + f
                for a, piece, f in zip(arrays, pieces, first, strict=True)
            ]
        )
        indices, numbers = (
            np.concatenate([a[name][piece] for a, piece in zip(arrays, pieces, strict=True)])
            for name in ("indices", "numbers")
        )
        # One more than can be: an entry is written before it is known not to be zero.
        new_columns, new = (
            np.empty(sum(sizes) + 1, np.int32),
            np.empty((sum(sizes) + 1, width), dtype),
        )
        n = mix_sparse(
            rule,
            pointers,
            indices,
            numbers,
            rows[0] + begin,
            *how,
            place,
            aligned,
            counts[begin:end],
            new_columns,
            new,
        )
        columns.append(new_columns[:n].copy())
        mixed.append(new[:n].copy())
        begin = end
    return {"counts": counts, "indices": np.concatenate(columns), "numbers": np.concatenate(mixed)}
