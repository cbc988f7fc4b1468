"""The one driver of all learners that change a bilinear matrix entry by entry, one triplet at a time.

Three kinds of components are combined at compile time (see `dispatch`):

* an **entry rule** says what a stored number means and how a step changes it
  (`Plain`, `SoftThreshold`, `AdaptiveThreshold`, `Confidence`);
* a **store** says where the numbers live (`Dense`, or `HeadTail` for sparse rows);
* a **row reader** says where items come from (`DenseRows`, `SparseRows`).

The **step** (how far) is a plain record read at run time: it is used once per triplet.

Every entry has up to three numbers: ``u`` (its encoded value), ``aux`` (AdaGrad's H, or AROMA's
precision minus one) and ``acc`` (the running sum that makes averages free, used when averaging).
All three are zero for an entry never touched, so absent and untouched mean the same.

Lazy soft-thresholding needs no time stamps. With ``shift`` = lam * (eta_1 + ... + eta_t), an entry of
value v is stored as ``u = sign(v) (|v| + shift)``, with the shift at the time of writing; its value at
any later time is ``sign(u) max(0, |u| - shift)``. AdaGrad's scaled threshold works the same way on
``v * (delta + H)``. The threshold of the round that writes the entry is included: it is written with
the shift *before* the round, and read with a later one.

Components and driver stay in one file because numba's disk cache only notices changes of the file
that holds the compiled driver.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from .dispatch import by_component

# Reordering a sum is allowed (it must vectorise); assumptions about NaN or infinity are not.
_FASTMATH = {"reassoc", "contract"}
_jit = njit(cache=True, nogil=True, fastmath=_FASTMATH)
_inline = njit(nogil=True, fastmath=_FASTMATH)

# What the driver found when it returned.
DONE, NEEDS_SPACE, NEEDS_REBASE, DIVERGED = 0, 1, 2, 3

# Fields of the clock: everything the stream has counted so far, exact in float64.
ROUNDS, UPDATES, SKIPPED, MISTAKES, LOSS, SHIFT = 0, 1, 2, 3, 4, 5
CLOCK_SIZE = 6

# Step rules.
CONSTANT, PA, PA_I, PA_II, ADAPTIVE = 0, 1, 2, 3, 4


class Step(NamedTuple):
    """How far to go: one of the rules above and its parameters."""

    rule: int
    eta: float  # CONSTANT: the step of round t is eta, or eta / sqrt(t) if `decay`
    decay: bool
    C: float  # PA_I, PA_II
    r: float  # ADAPTIVE
    lam: float  # strength of the soft threshold, 0 for none
    average_from: int  # first round of the average, 0 for none


# ---------------------------------------------------------------------------------------------
# Entry rules


class Plain(NamedTuple):
    """The stored number is the value: OASIS, OGD."""

    off_diagonal: bool  # unused; keeps the rules' fields alike


class SoftThreshold(NamedTuple):
    """l1-regularised steps: SORS. With `off_diagonal` the diagonal is not thresholded."""

    off_diagonal: bool


class AdaptiveThreshold(NamedTuple):
    """AdaGrad steps and thresholds: AdaSORS. ``aux`` is H, the root of the summed squared gradients."""

    off_diagonal: bool
    delta: float


class Confidence(NamedTuple):
    """A variance per entry: AROMA with diagonal covariance. ``aux`` is the precision minus one."""

    off_diagonal: bool
    r: float
    drop: bool  # keep the diagonal of the full update instead of the exact diagonal minimiser


@_inline
def _shrink(u, cut):
    return math.copysign(max(abs(u) - cut, cut - cut), u)


def _margin_plain(rule, u, aux, z, shift):
    s = z.dtype.type(0)
    for k in range(len(z)):
        s += u[k] * z[k]
    return s, z.dtype.type(0)


def _margin_soft(rule, u, aux, z, shift):
    cut = z.dtype.type(shift)
    zero = z.dtype.type(0)
    s = zero
    for k in range(len(z)):
        s += _shrink(u[k], cut) * z[k]
    return s, zero


def _margin_adaptive(rule, u, aux, z, shift):
    cut = z.dtype.type(shift)
    delta = z.dtype.type(rule.delta)
    zero = z.dtype.type(0)
    s = zero
    for k in range(len(z)):
        s += _shrink(u[k], cut) / (delta + aux[k]) * z[k]
    return s, zero


def _margin_confidence(rule, u, aux, z, shift):
    one = z.dtype.type(1)
    s = z.dtype.type(0)
    v = z.dtype.type(0)
    for k in range(len(z)):
        s += u[k] * z[k]
        v += z[k] * z[k] / (one + aux[k])
    return s, v


#: (rule, u, aux, z, shift) -> (sum of value * z, sum of variance * z^2) over a span of one row
_span_margin = by_component(
    {
        Plain: _margin_plain,
        SoftThreshold: _margin_soft,
        AdaptiveThreshold: _margin_adaptive,
        Confidence: _margin_confidence,
    }
)


def _update_plain(rule, u, aux, acc, z, x, tau, shift, weight):
    c = z.dtype.type(tau) * x
    for k in range(len(z)):
        u[k] += c * z[k]
    if len(acc) > 0:
        c = z.dtype.type(tau * weight) * x
        for k in range(len(z)):
            acc[k] += c * z[k]


def _update_soft(rule, u, aux, acc, z, x, tau, shift, weight):
    cut = z.dtype.type(shift)
    zero = z.dtype.type(0)
    c = z.dtype.type(tau) * x
    for k in range(len(z)):
        w = _shrink(u[k], cut) + c * z[k]
        u[k] = math.copysign(abs(w) + cut, w) if w != zero else zero


def _update_adaptive(rule, u, aux, acc, z, x, tau, shift, weight):
    cut = z.dtype.type(shift)
    eta = z.dtype.type(tau)
    delta = z.dtype.type(rule.delta)
    zero = z.dtype.type(0)
    for k in range(len(z)):
        g = x * z[k]
        v = _shrink(u[k], cut) / (delta + aux[k])
        aux[k] = math.sqrt(aux[k] * aux[k] + g * g)
        scale = delta + aux[k]
        w = v * scale + eta * g
        u[k] = math.copysign(abs(w) + cut, w) if w != zero else zero


def _update_confidence(rule, u, aux, acc, z, x, tau, shift, weight):
    one = z.dtype.type(1)
    alpha = z.dtype.type(tau)
    inverse_r = z.dtype.type(1.0 / rule.r)
    averaging = len(acc) > 0
    for k in range(len(z)):
        g = x * z[k]
        precision = one + aux[k]
        step = alpha * g / precision
        u[k] += step
        if averaging:
            acc[k] += z.dtype.type(weight) * step
        if rule.drop:
            # Sigma -= beta (Sigma g)^2; here `shift`, unused by this rule, carries beta
            beta = z.dtype.type(shift)
            aux[k] = precision * precision / (precision - beta * g * g) - one
        else:
            aux[k] += g * g * inverse_r


#: (rule, u, aux, acc, z, x, tau, shift, weight): change a span of one row in place
_span_update = by_component(
    {
        Plain: _update_plain,
        SoftThreshold: _update_soft,
        AdaptiveThreshold: _update_adaptive,
        Confidence: _update_confidence,
    }
)


def _dead_plain(rule, u, aux, acc, cut):
    return u == 0 and acc == 0


def _dead_soft(rule, u, aux, acc, cut):
    return abs(u) <= cut


def _dead_adaptive(rule, u, aux, acc, cut):
    return aux == 0 and abs(u) <= cut


def _dead_confidence(rule, u, aux, acc, cut):
    return aux == 0 and u == 0


#: (rule, u, aux, acc, cut) -> may the entry be forgotten without changing anything ever after?
_is_dead = by_component(
    {
        Plain: _dead_plain,
        SoftThreshold: _dead_soft,
        AdaptiveThreshold: _dead_adaptive,
        Confidence: _dead_confidence,
    }
)


# ---------------------------------------------------------------------------------------------
# Row readers: fill the scratch with the anchor x and the difference z = positive - negative


class DenseRows(NamedTuple):
    """Items as rows of a C-contiguous array."""

    values: np.ndarray


class SparseRows(NamedTuple):
    """Items as rows of a CSR matrix with sorted, unique column numbers."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Scratch(NamedTuple):
    """Work space of one call: the current triplet, and the current row of the matrix."""

    x_index: np.ndarray
    x: np.ndarray
    z_index: np.ndarray
    z: np.ndarray
    head_place: np.ndarray  # places in z whose column is in the dense head ...
    head_column: np.ndarray  # ... and that column's number there
    tail_place: np.ndarray
    every_place: np.ndarray  # 0, 1, 2, ...
    slots: np.ndarray  # where the current row's hashed entries are
    missing: np.ndarray  # for each row of x, how many columns of z its hashed row lacks
    sizes: np.ndarray  # how many columns of z are in the head, and how many are not
    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray


def _read_anchor_dense(rows, i, scratch):
    n = 0
    for j in range(rows.values.shape[1]):
        if rows.values[i, j] != 0:
            scratch.x_index[n] = j
            scratch.x[n] = rows.values[i, j]
            n += 1
    return n


def _read_anchor_sparse(rows, i, scratch):
    n = 0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        if rows.values[k] != 0:
            scratch.x_index[n] = rows.indices[k]
            scratch.x[n] = rows.values[k]
            n += 1
    return n


_read_anchor = by_component({DenseRows: _read_anchor_dense, SparseRows: _read_anchor_sparse})


def _read_difference_dense(rows, p, n, scratch):
    for j in range(rows.values.shape[1]):
        scratch.z[j] = rows.values[p, j] - rows.values[n, j]
    return rows.values.shape[1]


def _read_difference_sparse(rows, p, n, scratch):
    a, a_end = rows.indptr[p], rows.indptr[p + 1]
    b, b_end = rows.indptr[n], rows.indptr[n + 1]
    size = 0
    while a < a_end or b < b_end:
        if b >= b_end or (a < a_end and rows.indices[a] < rows.indices[b]):
            column, value = rows.indices[a], rows.values[a]
            a += 1
        elif a >= a_end or rows.indices[b] < rows.indices[a]:
            column, value = rows.indices[b], -rows.values[b]
            b += 1
        else:
            column, value = rows.indices[a], rows.values[a] - rows.values[b]
            a += 1
            b += 1
        if value != 0:
            scratch.z_index[size] = column
            scratch.z[size] = value
            size += 1
    return size


_read_difference = by_component(
    {DenseRows: _read_difference_dense, SparseRows: _read_difference_sparse}
)


# ---------------------------------------------------------------------------------------------
# Stores


class Dense(NamedTuple):
    """Full arrays, for dense rows. ``aux`` and ``acc`` have no columns where a rule needs none."""

    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray


class HeadTail(NamedTuple):
    """A dense block for the frequent features and one hash table per row for everything else.

    Features are ranked (`row_rank`, `column_rank`); an entry whose two ranks are inside the head lives
    in the dense block. The other entries of row i lie in the slots ``start[i] : start[i] + room[i]`` of
    one arena, open addressing with linear probing, ``key`` = column or -1. Segments are cut from the
    arena's end (`arena_top`) and never reused until a compaction, which Python starts. Where an entry
    lives never changes a result: sums run in the order of the columns of z.
    """

    row_rank: np.ndarray
    column_rank: np.ndarray
    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray
    start: np.ndarray
    room: np.ndarray
    used: np.ndarray
    key: np.ndarray
    tail_u: np.ndarray
    tail_aux: np.ndarray
    tail_acc: np.ndarray
    arena_top: np.ndarray  # one number


# Passing a tuple of arrays to a function, or taking an array out of it, costs atomic reference counts:
# the functions below that run once per triplet take whole stores; those inside the loops take arrays.


@_inline
def _slot(key, first, room, column):
    """Slot of the column in a row's segment, or minus one minus the free slot where it belongs."""
    if room == 0:
        return np.int64(-1)
    hashed = (np.uint64(column) * np.uint64(2654435769)) & np.uint64(0xFFFFFFFF)
    offset = np.int64((hashed * np.uint64(room)) >> np.uint64(32))
    while True:
        found = key[first + offset]
        if found == column:
            return first + offset
        if found < 0:
            return -1 - (first + offset)
        offset += 1
        if offset == room:
            offset = 0


@_inline
def _gather(row, head_column, head_place, n_tail, out):
    if n_tail == 0:  # then places count up
        for k in range(len(head_column)):
            out[k] = row[head_column[k]]
    else:
        for k in range(len(head_column)):
            out[head_place[k]] = row[head_column[k]]


@_inline
def _scatter(row, head_column, head_place, values):
    for k in range(len(head_column)):
        row[head_column[k]] = values[head_place[k]]


@_inline
def _gather_hashed(slots, values, place, out):
    for k in range(len(place)):
        out[place[k]] = values[slots[k]] if slots[k] >= 0 else 0


@_inline
def _diagonal_place(z_index, i):
    """Place of column i in the sorted columns of z, or -1."""
    low, high = 0, len(z_index)
    while low < high:
        middle = (low + high) // 2
        if z_index[middle] < i:
            low = middle + 1
        else:
            high = middle
    return low if low < len(z_index) and z_index[low] == i else -1


@_inline
def _row_margin(rule, u, aux, z, d, shift):
    """Sums over one row; place d is the diagonal where the rule treats it apart, else -1."""
    if d < 0:
        return _span_margin(rule, u, aux, z, shift)
    e = d + 1
    s0, v0 = _span_margin(rule, u[:d], aux[:d], z[:d], shift)
    s1, v1 = _span_margin(rule, u[d:e], aux[d:e], z[d:e], 0.0)
    s2, v2 = _span_margin(rule, u[e:], aux[e:], z[e:], shift)
    return s0 + s1 + s2, v0 + v1 + v2


@_inline
def _row_update(rule, u, aux, acc, z, x, d, tau, shift, weight):
    if d < 0:
        _span_update(rule, u, aux, acc, z, x, tau, shift, weight)
    else:
        e = d + 1
        _span_update(rule, u[:d], aux[:d], acc[:d], z[:d], x, tau, shift, weight)
        _span_update(rule, u[d:e], aux[d:e], acc[d:e], z[d:e], x, tau, 0.0, weight)
        _span_update(rule, u[e:], aux[e:], acc[e:], z[e:], x, tau, shift, weight)


def _margin_in_dense(store, rule, scratch, nx, nz, shift):
    u, aux = store.u, store.aux
    z = scratch.z[:nz]
    margin = 0.0
    variance = 0.0
    for p in range(nx):
        i = scratch.x_index[p]
        x = float(scratch.x[p])
        s, v = _row_margin(rule, u[i], aux[i], z, i if rule.off_diagonal else -1, shift)
        margin += x * float(s)
        variance += x * x * float(v)
    return margin, variance


def _update_in_dense(store, rule, scratch, nx, nz, tau, shift, weight):
    u, aux, acc = store.u, store.aux, store.acc
    z = scratch.z[:nz]
    for p in range(nx):
        i = scratch.x_index[p]
        d = i if rule.off_diagonal else -1
        _row_update(rule, u[i], aux[i], acc[i], z, scratch.x[p], d, tau, shift, weight)
    return True


@_inline
def _split_columns(column_rank, head, z_index, head_place, head_column, tail_place):
    """Split the columns of z: how many are in the head, how many are not."""
    n_head = 0
    n_tail = 0
    for k in range(len(z_index)):
        rank = column_rank[z_index[k]]
        if rank < head:
            head_place[n_head] = k
            head_column[n_head] = rank
            n_head += 1
        else:
            tail_place[n_tail] = k
            n_tail += 1
    return n_head, n_tail


@_inline
def _find_slots(key, first, room, z_index, place, slots):
    missing = 0
    for k in range(len(place)):
        slot = _slot(key, first, room, z_index[place[k]])
        slots[k] = slot
        missing += slot < 0
    return missing


def _margin_in_head_tail(store, rule, scratch, nx, nz, shift):
    row_rank, start, room, key = store.row_rank, store.start, store.room, store.key
    head_u, head_aux, tail_u, tail_aux = store.u, store.aux, store.tail_u, store.tail_aux
    has_aux = head_aux.shape[1] > 0
    z, z_index = scratch.z[:nz], scratch.z_index[:nz]
    n_head, n_tail = _split_columns(
        store.column_rank,
        head_u.shape[1],
        z_index,
        scratch.head_place,
        scratch.head_column,
        scratch.tail_place,
    )
    head_place, head_column = scratch.head_place[:n_head], scratch.head_column[:n_head]
    tail_place, every_place = scratch.tail_place[:n_tail], scratch.every_place[:nz]
    slots, missing = scratch.slots, scratch.missing
    u, aux = scratch.u[:nz], scratch.aux[: nz if has_aux else 0]
    margin = 0.0
    variance = 0.0
    for p in range(nx):
        i = scratch.x_index[p]
        rank = row_rank[i]
        place = every_place
        if rank < head_u.shape[0]:
            _gather(head_u[rank], head_column, head_place, n_tail, u)
            if has_aux:
                _gather(head_aux[rank], head_column, head_place, n_tail, aux)
            place = tail_place
        if len(place) > 0:
            missing[p] = _find_slots(key, start[i], room[i], z_index, place, slots)
            _gather_hashed(slots, tail_u, place, u)
            if has_aux:
                _gather_hashed(slots, tail_aux, place, aux)
        d = _diagonal_place(z_index, i) if rule.off_diagonal else -1
        s, v = _row_margin(rule, u, aux, z, d, shift)
        x = float(scratch.x[p])
        margin += x * float(s)
        variance += x * x * float(v)
    scratch.sizes[0] = n_head
    scratch.sizes[1] = n_tail
    return margin, variance


def _update_in_head_tail(store, rule, scratch, nx, nz, tau, shift, weight):
    """False if the arena has no room for the new entries: nothing has changed then."""
    row_rank, start, room, key, used = store.row_rank, store.start, store.room, store.key, store.used
    head_u, head_aux, head_acc = store.u, store.aux, store.acc
    tail_u, tail_aux, tail_acc = store.tail_u, store.tail_aux, store.tail_acc
    has_aux, has_acc = head_aux.shape[1] > 0, head_acc.shape[1] > 0
    n_head, n_tail = scratch.sizes[0], scratch.sizes[1]
    x_index, missing, slots = scratch.x_index, scratch.missing, scratch.slots
    if n_tail > 0 or len(key) > 0:
        for p in range(nx):
            i = x_index[p]
            if n_tail == 0 and row_rank[i] < head_u.shape[0]:
                continue
            if 4 * (used[i] + missing[p]) > 3 * room[i] and not _move_row(
                rule, i, missing[p], shift, start, room, used, key, tail_u, tail_aux, tail_acc,
                store.arena_top,
            ):
                return False
    z, z_index = scratch.z[:nz], scratch.z_index[:nz]
    head_place, head_column = scratch.head_place[:n_head], scratch.head_column[:n_head]
    tail_place, every_place = scratch.tail_place[:n_tail], scratch.every_place[:nz]
    u = scratch.u[:nz]
    aux, acc = scratch.aux[: nz if has_aux else 0], scratch.acc[: nz if has_acc else 0]
    for p in range(nx):
        i = x_index[p]
        rank = row_rank[i]
        place = every_place
        if rank < head_u.shape[0]:
            _gather(head_u[rank], head_column, head_place, n_tail, u)
            if has_aux:
                _gather(head_aux[rank], head_column, head_place, n_tail, aux)
            if has_acc:
                _gather(head_acc[rank], head_column, head_place, n_tail, acc)
            place = tail_place
        if len(place) > 0:
            _find_slots(key, start[i], room[i], z_index, place, slots)
            _gather_hashed(slots, tail_u, place, u)
            if has_aux:
                _gather_hashed(slots, tail_aux, place, aux)
            if has_acc:
                _gather_hashed(slots, tail_acc, place, acc)
        d = _diagonal_place(z_index, i) if rule.off_diagonal else -1
        _row_update(rule, u, aux, acc, z, scratch.x[p], d, tau, shift, weight)
        if rank < head_u.shape[0]:
            _scatter(head_u[rank], head_column, head_place, u)
            if has_aux:
                _scatter(head_aux[rank], head_column, head_place, aux)
            if has_acc:
                _scatter(head_acc[rank], head_column, head_place, acc)
        for k in range(len(place)):
            slot = slots[k]
            if slot < 0:
                # Columns put in before may have taken the free slot found above: look again.
                slot = -1 - _slot(key, start[i], room[i], z_index[place[k]])
                key[slot] = z_index[place[k]]
                used[i] += 1
            tail_u[slot] = u[place[k]]
            if has_aux:
                tail_aux[slot] = aux[place[k]]
            if has_acc:
                tail_acc[slot] = acc[place[k]]
    return True


#: (store, rule, scratch, nx, nz, shift) -> (x'Mz, variance of x'Mz)
_margin = by_component({Dense: _margin_in_dense, HeadTail: _margin_in_head_tail})

#: (store, rule, scratch, nx, nz, tau, shift, weight) -> whether the step could be taken
_update = by_component({Dense: _update_in_dense, HeadTail: _update_in_head_tail})


@_inline
def _survives(rule, i, slot, shift, key, tail_u, tail_aux, tail_acc):
    if key[slot] < 0:
        return False
    zero = tail_u[slot] * 0
    cut = zero if rule.off_diagonal and key[slot] == i else tail_u.dtype.type(shift)
    aux = tail_aux[slot] if len(tail_aux) > 0 else zero
    acc = tail_acc[slot] if len(tail_acc) > 0 else zero
    return not _is_dead(rule, tail_u[slot], aux, acc, cut)


@_inline
def _move_row(
    rule, i, extra, shift, start, room, used, key, tail_u, tail_aux, tail_acc, arena_top
):
    """Rewrite row i at the arena's end, with room for `extra` more entries and without dead ones."""
    old_start = start[i]
    old_end = old_start + room[i]
    alive = 0
    for slot in range(old_start, old_end):
        if _survives(rule, i, slot, shift, key, tail_u, tail_aux, tail_acc):
            alive += 1
    new_room = 2 * (alive + extra) + 2
    new_start = arena_top[0]
    if new_start + new_room > len(key):
        return False
    arena_top[0] = new_start + new_room
    key[new_start : new_start + new_room] = -1
    start[i] = new_start
    room[i] = new_room
    used[i] = alive
    for slot in range(old_start, old_end):
        if _survives(rule, i, slot, shift, key, tail_u, tail_aux, tail_acc):
            new = -1 - _slot(key, new_start, new_room, key[slot])
            key[new] = key[slot]
            tail_u[new] = tail_u[slot]
            if len(tail_aux) > 0:
                tail_aux[new] = tail_aux[slot]
            if len(tail_acc) > 0:
                tail_acc[new] = tail_acc[slot]
    return True


# ---------------------------------------------------------------------------------------------
# The driver


@_inline
def _step_length(step, loss, squared_norm, variance, eta_t):
    if step.rule == CONSTANT:
        return eta_t
    if step.rule == PA:
        return loss / squared_norm
    if step.rule == PA_I:
        return min(step.C, loss / squared_norm)
    if step.rule == PA_II:
        return loss / (squared_norm + 0.5 / step.C)
    return loss / (variance + step.r)


@_jit
def learn_one_at_a_time(rule, store, step, left, right, triplets, begin, scratch, clock):
    """Learn from triplets[begin:] in order; return (what happened, first triplet not learnt).

    Nothing of a triplet is applied when the driver stops at it, so that Python can make space and call
    again. The result does not depend on where the stream is cut.
    """
    eps = np.finfo(scratch.u.dtype).eps
    for t in range(begin, len(triplets)):
        shift = clock[SHIFT]
        nx = _read_anchor(left, triplets[t, 0], scratch)
        nz = _read_difference(right, triplets[t, 1], triplets[t, 2], scratch)
        margin, variance = _margin(store, rule, scratch, nx, nz, shift)
        if not math.isfinite(margin):
            return DIVERGED, t

        round_number = clock[ROUNDS] + 1
        eta_t = step.eta / math.sqrt(round_number) if step.decay else step.eta
        loss = 1.0 - margin
        squared_norm = _squared_norm(scratch.x, nx) * _squared_norm(scratch.z, nz)
        if squared_norm == 0.0:
            clock[SKIPPED] += 1
        elif loss > 0.0:
            tau = _step_length(step, loss, squared_norm, variance, eta_t)
            if step.rule == ADAPTIVE:
                shift = 1.0 / (variance + step.r)  # Confidence has no threshold; see its update
            weight = 0.0
            if step.average_from > 0:
                weight = max(0.0, round_number - step.average_from + 1)
            if not _update(store, rule, scratch, nx, nz, tau, shift, weight):
                return NEEDS_SPACE, t
            clock[UPDATES] += 1

        clock[ROUNDS] = round_number
        clock[LOSS] += max(0.0, loss)
        clock[MISTAKES] += margin <= 0.0
        if step.lam > 0.0:
            clock[SHIFT] += step.lam * eta_t
            # A stored number must resolve an eighth of one round's threshold.
            if clock[SHIFT] * eps > step.lam * eta_t / 8.0:
                return NEEDS_REBASE, t + 1
    return DONE, len(triplets)


@_inline
def _squared_norm(values, n):
    total = 0.0
    for k in range(n):
        total += float(values[k]) * float(values[k])
    return total


@_jit
def compact(rule, store, order, spare_key, spare_u, spare_aux, spare_acc, shift):
    """Slide the rows' segments together in the order of their position, without dead entries.

    The spare arrays hold one row at a time; a row's new segment never reaches past its old one.
    """
    start, room, used, key = store.start, store.room, store.used, store.key
    tail_u, tail_aux, tail_acc = store.tail_u, store.tail_aux, store.tail_acc
    top = 0
    for o in range(len(order)):
        i = order[o]
        alive = 0
        for slot in range(start[i], start[i] + room[i]):
            if _survives(rule, i, slot, shift, key, tail_u, tail_aux, tail_acc):
                spare_key[alive] = key[slot]
                spare_u[alive] = tail_u[slot]
                if len(tail_aux) > 0:
                    spare_aux[alive] = tail_aux[slot]
                if len(tail_acc) > 0:
                    spare_acc[alive] = tail_acc[slot]
                alive += 1
        new_room = min(room[i], 2 * alive)
        start[i] = top
        room[i] = new_room
        used[i] = alive
        key[top : top + new_room] = -1
        for k in range(alive):
            slot = -1 - _slot(key, top, new_room, spare_key[k])
            key[slot] = spare_key[k]
            tail_u[slot] = spare_u[k]
            if len(tail_aux) > 0:
                tail_aux[slot] = spare_aux[k]
            if len(tail_acc) > 0:
                tail_acc[slot] = spare_acc[k]
        top += new_room
    store.arena_top[0] = top


@_jit
def copy_entries(rule, store, shift, head_feature, indptr, indices, u, aux, acc):
    """Write the live entries as CSR, columns in no particular order; count them if `indices` is empty."""
    start, room, key = store.start, store.room, store.key
    head_u, head_aux, head_acc = store.u, store.aux, store.acc
    tail_u, tail_aux, tail_acc = store.tail_u, store.tail_aux, store.tail_acc
    counting = len(indices) == 0
    zero = head_u.dtype.type(0)
    n = 0
    for i in range(len(store.row_rank)):
        rank = store.row_rank[i]
        if rank < head_u.shape[0]:
            own = store.column_rank[i] if rule.off_diagonal else -1
            for c in range(head_u.shape[1]):
                cut = zero if c == own else head_u.dtype.type(shift)
                a = head_aux[rank, c] if head_aux.shape[1] > 0 else zero
                b = head_acc[rank, c] if head_acc.shape[1] > 0 else zero
                if not _is_dead(rule, head_u[rank, c], a, b, cut):
                    if not counting:
                        indices[n] = head_feature[c]
                        u[n] = head_u[rank, c]
                        if len(aux) > 0:
                            aux[n] = a
                        if len(acc) > 0:
                            acc[n] = b
                    n += 1
        for slot in range(start[i], start[i] + room[i]):
            if _survives(rule, i, slot, shift, key, tail_u, tail_aux, tail_acc):
                if not counting:
                    indices[n] = key[slot]
                    u[n] = tail_u[slot]
                    if len(aux) > 0:
                        aux[n] = tail_aux[slot]
                    if len(acc) > 0:
                        acc[n] = tail_acc[slot]
                n += 1
        indptr[i + 1] = n


@_jit
def fill_entries(store, indptr, indices, u, aux, acc):
    """Put entries into an empty store whose rows already have room for them."""
    start, room, key = store.start, store.room, store.key
    head_u, head_aux, head_acc = store.u, store.aux, store.acc
    for i in range(len(indptr) - 1):
        rank = store.row_rank[i]
        for k in range(indptr[i], indptr[i + 1]):
            c = store.column_rank[indices[k]]
            if rank < head_u.shape[0] and c < head_u.shape[1]:
                head_u[rank, c] = u[k]
                if len(aux) > 0:
                    head_aux[rank, c] = aux[k]
                if len(acc) > 0:
                    head_acc[rank, c] = acc[k]
            else:
                slot = -1 - _slot(key, start[i], room[i], indices[k])
                key[slot] = indices[k]
                store.used[i] += 1
                store.tail_u[slot] = u[k]
                if len(aux) > 0:
                    store.tail_aux[slot] = aux[k]
                if len(acc) > 0:
                    store.tail_acc[slot] = acc[k]


@_jit
def rebase(rule, store, shift):
    """Write every entry as if the accumulated threshold started from zero now."""
    start, room, key, head_u, tail_u = store.start, store.room, store.key, store.u, store.tail_u
    cut = head_u.dtype.type(shift)
    for i in range(len(store.row_rank)):
        rank = store.row_rank[i]
        if rank < head_u.shape[0]:
            own_rank = store.column_rank[i] if rule.off_diagonal else -1
            for c in range(head_u.shape[1]):
                if c != own_rank:
                    head_u[rank, c] = _shrink(head_u[rank, c], cut)
        own = i if rule.off_diagonal else -1
        for slot in range(start[i], start[i] + room[i]):
            if key[slot] >= 0 and key[slot] != own:
                tail_u[slot] = _shrink(tail_u[slot], cut)
