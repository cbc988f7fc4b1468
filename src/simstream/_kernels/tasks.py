"""Triplets of many tasks: M of a task is a shared matrix S on top of a matrix D_k of its own.

Sparse rows: S and all D_k live in one store. The rows of S come first, then one that is always empty, then
the touched rows of all D_k. A hash table maps (task, row) to a row of the store; a row that is not in the
table reads as the empty one. ``key[p]`` is task * width + row, -1 where the place is free, and ``number[p]``
is the row of the store.

Dense rows: what each task learnt is a list of rank-one terms c x z' in one arena for all tasks. ``head[k]``
is the latest term of task k and ``link[j]`` the one before term j; -1 ends a list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .blocked import add_outer
from .dispatch import driver, helper, inner
from .entrywise import (
    DIVERGED,
    DONE,
    NEEDS_SPACE,
    read_anchor,
    read_difference,
    squared_norm,
    store_margin,
    store_update,
)
from .steps import (
    HOPELESS,
    LARGEST_NORM,
    count_asked,
    count_round,
    is_active,
    is_asked,
    signed_loss,
    step_length,
)

# -- sparse rows: touched rows of all tasks in one store ---------------------------------------------


class TaskTriplets(NamedTuple):
    """Triplets of sparse items by their tasks: task k scores with x'z + shared x'Sz + own x'D_k z.

    x'z counts where M starts from the identity.
    """

    items: np.ndarray
    sign: np.ndarray
    coin: np.ndarray  # uniform numbers that decide whether to ask
    tasks: np.ndarray
    key: np.ndarray  # where the rows of all D_k are
    number: np.ndarray
    width: int  # rows of one matrix, and the number of the empty row
    shared: float
    own: float
    has_identity: bool


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
def _read_task_triplet(tuples, t, left, right, scratch):
    """Read the anchor twice, for the rows of S and for those of D_k, weighted by what they count for.

    Returns the length of the anchor, which is half of that of x, and the length of z.
    """
    items, x_index, x = tuples.items, scratch.x_index, scratch.x
    key, number, width = tuples.key, tuples.number, tuples.width
    n = read_anchor(left, items[t, 0], scratch)
    first_key = tuples.tasks[t] * width
    for p in range(n):
        place = _place(key, first_key + x_index[p])
        x_index[n + p] = number[place] if place >= 0 else width
        x[n + p] = x[p] * tuples.own
        x[p] *= tuples.shared
    return n, read_difference(right, items[t, 1], right, items[t, 2], scratch)


@inner
def _identity_part(tuples, scratch, n, nz):
    """x'z; both have sorted labels."""
    if not tuples.has_identity:
        return 0.0
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z
    total = 0.0
    k = 0
    for p in range(n):
        while k < nz and z_index[k] < x_index[p]:
            k += 1
        if k < nz and z_index[k] == x_index[p]:
            total += float(x[n + p]) * float(z[k])
    return total / tuples.own


@inner
def _unweigh(tuples, scratch, n):
    """Take the weights off x: a step changes S and D_k by the same."""
    x = scratch.x
    for p in range(n):
        x[n + p] /= tuples.own
        x[p] = x[n + p]


@driver
def learn_task_triplets(rule, store, step, left, right, tuples, begin, end, scratch, clock):
    """Learn from triplets begin .. end - 1 in order; return (what happened, first triplet not learnt)."""
    signs, coins, own = tuples.sign, tuples.coin, tuples.own
    for t in range(begin, end):
        n, nz = _read_task_triplet(tuples, t, left, right, scratch)
        value, _, slots = store_margin(store, rule, scratch, 2 * n, nz, 0.0)
        value += _identity_part(tuples, scratch, n, nz)
        if not abs(value) < HOPELESS:
            return DIVERGED, t
        loss = signed_loss(signs[t], value, clock)
        # How much a step of length one changes the triplet's own x'Mz.
        xx = squared_norm(scratch.x, n, 2 * n) / (own * own)
        norm = (tuples.shared + own) * xx * squared_norm(scratch.z, 0, nz)
        if not norm < LARGEST_NORM:
            return DIVERGED, t
        updated = False
        asked = is_asked(step, value, coins[t])
        if asked and is_active(step, loss) and norm > 0.0:
            tau = step_length(step, loss, norm, 0.0, step.eta)
            if not abs(tau) < scratch.largest:
                return DIVERGED, t
            updated = tau != 0.0
            if updated:
                tau *= signs[t]
                _unweigh(tuples, scratch, n)
                if not store_update(store, rule, scratch, slots, 2 * n, nz, tau, 0.0, 0.0, 0.0):
                    return NEEDS_SPACE, t
        count_asked(clock, step, asked)
        count_round(clock, loss, updated, norm == 0.0)
    return DONE, end


@driver
def task_values(rule, store, left, right, tuples, begin, end, scratch, out):
    """Write x'Mz of triplets begin .. end - 1; nothing is learnt."""
    for t in range(begin, end):
        n, nz = _read_task_triplet(tuples, t, left, right, scratch)
        value, _, _ = store_margin(store, rule, scratch, 2 * n, nz, 0.0)
        out[t] = value + _identity_part(tuples, scratch, n, nz)


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


# -- dense rows: rank-one terms ---------------------------------------------------------------------


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


@helper
def _form(matrix, x, z):
    """x' matrix z for vectors; rows of the matrix in its own precision."""
    total = 0.0
    for i in range(len(x)):
        if x[i] != 0:
            s = matrix.dtype.type(0)
            for j in range(len(z)):
                s += matrix[i, j] * z[j]
            total += float(x[i]) * float(s)
    return total


@driver
def learn_dense_task(
    step,
    s,
    d,
    head,
    link,
    c,
    term_x,
    term_z,
    used,
    count,
    task,
    shared,
    own,
    identity,
    x,
    z,
    sign,
    clock,
):
    """Learn from one triplet of a task, whose answer was given; return what happened.

    x and z have one row. D of the task is the matrix d, or the sum of its terms if d has no rows: there is
    room for one more at place ``used[0]``. `identity` is the weight of x'z.
    """
    v, w = x[0], z[0]
    xx, zz, xz = 0.0, 0.0, 0.0
    for i in range(len(v)):
        xx += float(v[i]) * float(v[i])
    for i in range(len(w)):
        zz += float(w[i]) * float(w[i])
    if identity != 0.0:
        for i in range(len(v)):
            xz += float(v[i]) * float(w[i])
    value = identity * xz + shared * _form(s, v, w)
    if len(d) > 0:
        value += own * _form(d, v, w)
    else:
        j = head[task]
        while j >= 0:
            value += own * (c[j] * (float(_dot(term_x, j, x, 0)) * float(_dot(term_z, j, z, 0))))
            j = link[j]
    if not abs(value) < HOPELESS:
        return DIVERGED
    loss = signed_loss(sign, value, clock)
    norm = (shared + own) * xx * zz
    if not norm < LARGEST_NORM:
        return DIVERGED
    step_taken = 0.0
    if is_active(step, loss) and norm > 0.0:
        step_taken = sign * step_length(step, loss, norm, 0.0, step.eta)
        if not abs(step_taken) < np.finfo(x.dtype).max:
            return DIVERGED
    if step_taken != 0.0:
        add_outer(s, step_taken, v, w)
        if len(d) > 0:
            add_outer(d, step_taken, v, w)
        else:
            place = used[0]
            c[place] = step_taken
            for i in range(len(v)):
                term_x[place, i] = v[i]
            for i in range(len(w)):
                term_z[place, i] = w[i]
            link[place] = head[task]
            head[task] = place
            count[task] += 1
            used[0] += 1
    count_round(clock, loss, step_taken != 0.0, norm == 0.0)
    return DONE


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
