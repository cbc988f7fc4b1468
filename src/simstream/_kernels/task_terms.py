"""What each task learnt alone, as lists of rank-one terms c x z' in one arena for all tasks.

``head[k]`` is the latest term of task k and ``link[j]`` the one before term j; -1 ends a list.
"""

from __future__ import annotations

import numpy as np

from .dispatch import driver, helper


@helper
def _dot(a, i, b, j):
    """Inner product of row i of a and row j of b, in their own precision."""
    s = a.dtype.type(0)
    for k in range(a.shape[1]):
        s += a[i, k] * b[j, k]
    return s


@driver
def couple(gram, tasks, shared, own):
    """Upper triangle of a Gram matrix times what a step of row s counts for in the matrix of a later row t.

    ``shared[t]`` where their tasks differ, ``shared[t] + own`` where they do not.
    """
    n = len(tasks)
    coupled = np.empty((n, n))
    for s in range(n):
        for t in range(s, n):
            weight = shared[t] + own if tasks[s] == tasks[t] else shared[t]
            coupled[s, t] = weight * gram[s, t]
    return coupled


@driver
def mix(a, weight_a, b, weight_b, out):
    """Put weight_a a + weight_b b into `out`, in one pass; weights have the precision of the matrices."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = weight_a * a[i, j] + weight_b * b[i, j]


@driver
def term_values(head, link, c, term_x, term_z, tasks, x, z):
    """x_t' D z_t for the rows of x and z, where D is the sum of the terms of task ``tasks[t]``.

    A task beyond all lists has none.
    """
    values = np.zeros(len(tasks))
    for t in range(len(tasks)):
        j = head[tasks[t]] if tasks[t] < len(head) else -1
        while j >= 0:
            values[t] += c[j] * (float(_dot(term_x, j, x, t)) * float(_dot(term_z, j, z, t)))
            j = link[j]
    return values


@driver
def add_terms(head, link, c, term_x, term_z, used, count, tasks, x, coefficient, z, chosen):
    """Put rows of x and z into the lists of their tasks, from place `used` on; return the next place."""
    for t in chosen:
        k = tasks[t]
        c[used] = coefficient[t]
        for i in range(x.shape[1]):
            term_x[used, i] = x[t, i]
        for i in range(z.shape[1]):
            term_z[used, i] = z[t, i]
        link[used] = head[k]
        head[k] = used
        count[k] += 1
        used += 1
    return used


@driver
def places(head, link, count):
    """Places of all terms, task after task, each in the order of its list."""
    out = np.empty(count.sum(), np.int64)
    n = 0
    for k in range(len(head)):
        j = head[k]
        while j >= 0:
            out[n] = j
            n += 1
            j = link[j]
    return out
