"""Mixing: one matrix out of several that began as the same one.

The numbers of an entry are read as its value (see `rules`) and what has accumulated for it: the sum of
squared gradients (AdaGrad's H squared) or the precision. Both are averaged, and the mixed entry is written
as if the accumulated threshold started from zero.
"""

from __future__ import annotations

import math

from .dispatch import driver, inner
from .rules import ADAPTIVE, CONFIDENT, THRESHOLDED, shrink


@inner
def _read(rule, u, aux, cut):
    """Value of an entry, and what has accumulated for it, from its numbers."""
    if rule.kind == THRESHOLDED:
        return shrink(u, cut), 0.0
    if rule.kind == ADAPTIVE:
        return shrink(u, cut) / (rule.delta + aux), aux * aux
    return u, aux


@inner
def _moved(start, mean, step):
    """`step` times the way from the start to the mean."""
    return mean if step == 1.0 else start + step * (mean - start)


@inner
def _mix(rule, numbers, n, on_diagonal, shifts, weights, step, mixed, m):
    """Mix entry n to place m: ``numbers[0]`` are those of the start, ``numbers[k]`` those of matrix k."""
    has_aux = rule.kind == ADAPTIVE or rule.kind == CONFIDENT
    is_cut = (rule.kind == THRESHOLDED or rule.kind == ADAPTIVE) and not on_diagonal
    start, start_sum = 0.0, 0.0
    mean, mean_sum = 0.0, 0.0
    for k in range(len(shifts)):
        aux = float(numbers[k, n, 1]) if has_aux else 0.0
        value, total = _read(rule, float(numbers[k, n, 0]), aux, shifts[k] if is_cut else 0.0)
        if k == 0:
            start, start_sum = value, total
        else:
            mean += weights[k - 1] * value
            mean_sum += weights[k - 1] * total
    value = _moved(start, mean, step)
    if is_cut and value * mean <= 0.0:
        value = 0.0  # thresholds stop at zero, and so do several of them at once
    if has_aux:
        total = max(0.0, _moved(start_sum, mean_sum, step))
        if rule.kind == ADAPTIVE:
            total = math.sqrt(total)
            value *= rule.delta + total
        mixed[m, 1] = total
    mixed[m, 0] = value


@driver
def mix_dense(rule, numbers, first_row, n_columns, shifts, weights, step, mixed):
    """Mix full rows from `first_row` on: ``numbers[k, n]`` are those of entry n of matrix k, row by row."""
    for n in range(len(mixed)):
        on_diagonal = rule.off_diagonal and first_row + n // n_columns == n % n_columns
        _mix(rule, numbers, n, on_diagonal, shifts, weights, step, mixed, n)


@driver
def mix_sparse(
    rule,
    pointers,
    indices,
    numbers,
    first_row,
    shifts,
    weights,
    step,
    place,
    aligned,
    counts,
    columns,
    mixed,
):
    """Mix sparse rows from `first_row` on; return how many entries there are.

    Row i of matrix k has the entries ``pointers[k, i] : pointers[k, i + 1]``; matrix 0 is the start. The
    mixed row has ``counts[i]`` entries, behind those of the row before, with these `columns` and `mixed`
    numbers, in the order in which their columns first occur. Entries that are zero are left out.

    Work space, left as it was: `place` for each column, filled with -1, and `aligned` for each matrix,
    column and number, filled with 0.
    """
    n_matrices, width = pointers.shape[0], numbers.shape[1]
    total = 0
    for i in range(pointers.shape[1] - 1):
        first, n = total, 0
        for k in range(n_matrices):
            for entry in range(pointers[k, i], pointers[k, i + 1]):
                at = place[indices[entry]]
                if at < 0:
                    at = n
                    place[indices[entry]] = at
                    columns[first + n] = indices[entry]
                    n += 1
                for q in range(width):
                    aligned[k, at, q] = numbers[entry, q]
        for at in range(n):
            column = columns[first + at]
            place[column] = -1
            on_diagonal = rule.off_diagonal and column == first_row + i
            _mix(rule, aligned, at, on_diagonal, shifts, weights, step, mixed, total)
            is_zero = True
            for q in range(width):
                is_zero = is_zero and mixed[total, q] == 0
                for k in range(n_matrices):
                    aligned[k, at, q] = 0
            columns[total] = column
            total += not is_zero
        counts[i] = total - first
    return total
