"""A store for sparse rows: a dense block for frequent features, hash tables for the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import driver, helper, inner, prefetch
from .rules import CONFIDENT, is_dead, row_margin, row_update, row_variance, shrink

#: Bytes of a dense block that caches may hold.
_CACHED = 1 << 22

#: How many rows are asked for before they are read.
_AHEAD = 2


class HeadTail(NamedTuple):
    """A dense block for the frequent features, and a hash table for each of the others.

    Features are numbered from most to least frequent. Entries whose row and column are both in the
    head live in the dense block. The other entries of a rare row live in that row's table, keyed by
    column; those of a frequent row and a rare column in that column's table, keyed by row: a triplet
    then opens few tables and finds in each many entries side by side. Table t (rows first, then
    columns) owns the slots ``start[t] : start[t] + room[t]`` of one arena: open addressing, linear
    probing, ``key`` = -1 for a free slot. Segments are cut from the arena's end (`arena_top`); what a
    table leaves behind when it moves is reclaimed by `compact`. Where an entry lives never changes a
    result, and neither does forgetting a dead entry.

    The numbers of an entry lie side by side (u, then aux, then acc, as far as they are used): a cache
    miss, which is what an entry costs, brings all of them.
    """

    head: np.ndarray  # (frequent rows, frequent columns, numbers)
    tail: np.ndarray  # (slots, numbers)
    start: np.ndarray
    room: np.ndarray
    used: np.ndarray
    key: np.ndarray
    arena_top: np.ndarray  # one number
    n_rows: int
    has_aux: bool
    has_acc: bool


# Passing a tuple of arrays to a function, or taking an array out of it, costs atomic reference counts:
# the functions below that run once per triplet take whole stores; those inside the loops take arrays.


@inner
def _first_offset(room, column):
    """Where the search for a column in a segment of that size begins."""
    hashed = (np.uint64(column) * np.uint64(2654435769)) & np.uint64(0xFFFFFFFF)
    return np.int64((hashed * np.uint64(room)) >> np.uint64(32))


@inner
def _slot(key, first, room, column):
    """Slot of the column in a row's segment, or minus one minus the free slot where it belongs."""
    if room == 0:
        return np.int64(-1)
    offset = _first_offset(room, column)
    while True:
        found = key[first + offset]
        if found == column:
            return first + offset
        if found < 0:
            return -1 - (first + offset)
        offset += 1
        if offset == room:
            offset = 0


@inner
def _load_row(head, i, z_index, split, tail, slots, begin, n, numbers):
    """Copy row i at the n columns of z to the scratch: the first `split` are in the head.

    The others are in the slots from `begin` on; a negative slot is an absent entry.
    """
    for q in range(head.shape[2]):
        for k in range(split):
            numbers[q, k] = head[i, z_index[k], q]
        for k in range(n - split):
            slot = slots[begin + k]
            numbers[q, split + k] = tail[slot, q] if slot >= 0 else 0


@inner
def _save_row(head, i, z_index, split, tail, slots, begin, n, numbers):
    """Copy a row from the scratch back to its places."""
    for q in range(head.shape[2]):
        for k in range(split):
            head[i, z_index[k], q] = numbers[q, k]
        for k in range(n - split):
            tail[slots[begin + k], q] = numbers[q, split + k]


@inner
def _ask_for(head, x_index, p, x_head, z_index, z_head):
    """Have the p-th row of x fetched, if that is a row of the head."""
    if p >= 0 and p < x_head:
        i = np.int64(x_index[p])
        for k in range(z_head):
            prefetch(head, i, np.int64(z_index[k]))


@inner
def _find_slots(key, tail, first, room, labels, n, slots, begin, stride, waits):
    """Look the first n labels up; return how many are missing."""
    missing = 0
    for k in range(n):
        slot = _slot(key, first, room, labels[k])
        slots[begin + k * stride] = slot
        missing += slot < 0
        if waits and slot >= 0:
            prefetch(tail, slot, 0)
    return missing


@inner
def _place_of(labels, n, i):
    """Number of the first n labels, which are sorted, that are below i."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if labels[middle] < i:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _diagonal_place(rule, z_index, nz, i):
    """Place of column i in z if the rule treats the diagonal apart, else -1."""
    if not rule.off_diagonal:
        return -1
    place = _place_of(z_index, nz, i)
    return place if place < nz and z_index[place] == i else -1


@inner
def _table(q, n_rows, x_index, x_head, z_index, z_head, z_tail, nz):
    """The q-th table a triplet opens: its number, how many labels it is asked for, their slots.

    First those of the rare columns of z, asked for the frequent rows of x; then those of the rare rows
    of x, asked for all columns of z. Slots are kept row by row: z_tail for each frequent row, then nz
    for each rare row.
    """
    if q < z_tail:
        return n_rows + z_index[z_head + q], x_head, q, z_tail
    return np.int64(x_index[x_head + q - z_tail]), nz, x_head * z_tail + (q - z_tail) * nz, 1


@inner
def _row_slots(p, x_head, z_head, nz):
    """How many columns of z the p-th row of x has in the head, and where its other slots begin."""
    z_tail = nz - z_head
    if p < x_head:
        return z_head, p * z_tail
    return 0, x_head * z_tail + (p - x_head) * nz


@inner
def _slots_needed(x_head, nx, z_head, nz):
    """Length of the array that `_look_up` fills."""
    x_tail, z_tail = nx - x_head, nz - z_head
    return x_head * z_tail + x_tail * nz + z_tail + x_tail


@inner
def _look_up(start, room, key, tail, n_rows, x_index, x_head, nx, z_index, z_head, nz, slots):
    """Where all entries outside the head are; behind that, how many each table lacks."""
    x_tail, z_tail = nx - x_head, nz - z_head
    n_slots = x_head * z_tail + x_tail * nz
    waits = 4 * len(key) > _CACHED
    if waits:
        for q in range(z_tail + x_tail):
            t, n, _, _ = _table(q, n_rows, x_index, x_head, z_index, z_head, z_tail, nz)
            labels = x_index if q < z_tail else z_index
            first, size = start[t], room[t]
            for k in range(n if size > 0 else 0):
                prefetch(key, first + _first_offset(size, labels[k]), 0)
    for q in range(z_tail + x_tail):
        t, n, begin, stride = _table(q, n_rows, x_index, x_head, z_index, z_head, z_tail, nz)
        labels = x_index if q < z_tail else z_index
        slots[n_slots + q] = _find_slots(
            key, tail, start[t], room[t], labels, n, slots, begin, stride, waits
        )


@helper
def transform_in_head_tail(store, scratch, nx, nz, out):
    """out[k] = sum over x of M[:, z_index[k]], where the stored numbers are the values; returns the slots.

    The slots are those that `update_in_head_tail` takes.
    """
    head, tail, start, room, key = store.head, store.tail, store.start, store.room, store.key
    x_index, x, z_index, numbers = scratch.x_index, scratch.x, scratch.z_index, scratch.numbers
    x_head, z_head = _place_of(x_index, nx, head.shape[0]), _place_of(z_index, nz, head.shape[1])
    slots = np.empty(_slots_needed(x_head, nx, z_head, nz), np.int64)
    _look_up(start, room, key, tail, store.n_rows, x_index, x_head, nx, z_index, z_head, nz, slots)
    for k in range(nz):
        out[k] = 0
    for p in range(nx):
        split, begin = _row_slots(p, x_head, z_head, nz)
        _load_row(head, np.int64(x_index[p]), z_index, split, tail, slots, begin, nz, numbers)
        for k in range(nz):
            out[k] += x[p] * numbers[0, k]
    return slots


def margin_in_head_tail(store, rule, scratch, nx, nz, shift):
    head, tail, start, room, key = store.head, store.tail, store.start, store.room, store.key
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z[:nz]
    numbers = scratch.numbers
    x_head, z_head = _place_of(x_index, nx, head.shape[0]), _place_of(z_index, nz, head.shape[1])
    slots = np.empty(_slots_needed(x_head, nx, z_head, nz), np.int64)
    waits = head.nbytes > _CACHED
    if waits:
        for p in range(_AHEAD):
            _ask_for(head, x_index, p, x_head, z_index, z_head)
    _look_up(start, room, key, tail, store.n_rows, x_index, x_head, nx, z_index, z_head, nz, slots)

    margin = 0.0
    variance = 0.0
    for p in range(nx):
        i = np.int64(x_index[p])
        if waits:
            _ask_for(head, x_index, p + _AHEAD, x_head, z_index, z_head)
        split, begin = _row_slots(p, x_head, z_head, nz)
        _load_row(head, i, z_index, split, tail, slots, begin, nz, numbers)
        d = _diagonal_place(rule, z_index, nz, i)
        x_i = float(x[p])
        margin += x_i * float(row_margin(rule, numbers, 0, numbers, 1, z, d, shift))
        if rule.kind == CONFIDENT:
            variance += x_i * x_i * row_variance(numbers, 1, z)
    return margin, variance, slots


@helper
def value_in_head_tail(store, rule, scratch, nx, nz, shift, rounds):
    """x'Mz with M as it is read: the average of that many rounds, if it is not 0."""
    head, tail, start, room, key = store.head, store.tail, store.start, store.room, store.key
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z[:nz]
    numbers, last = scratch.numbers, head.shape[2] - 1
    x_head, z_head = _place_of(x_index, nx, head.shape[0]), _place_of(z_index, nz, head.shape[1])
    slots = np.empty(_slots_needed(x_head, nx, z_head, nz), np.int64)
    _look_up(start, room, key, tail, store.n_rows, x_index, x_head, nx, z_index, z_head, nz, slots)

    value = 0.0
    parts = z.dtype.type(rounds)
    for p in range(nx):
        i = np.int64(x_index[p])
        split, begin = _row_slots(p, x_head, z_head, nz)
        _load_row(head, i, z_index, split, tail, slots, begin, nz, numbers)
        if rounds > 0.0:
            for k in range(nz):
                numbers[0, k] -= numbers[last, k] / parts
        d = _diagonal_place(rule, z_index, nz, i)
        value += float(x[p]) * float(row_margin(rule, numbers, 0, numbers, 1, z, d, shift))
    return value


def update_in_head_tail(store, rule, scratch, slots, nx, nz, tau, beta, shift, weight):
    """False if the arena has no room for the new entries: nothing has changed then."""
    head, tail, has_acc = store.head, store.tail, store.has_acc
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z[:nz]
    numbers = scratch.numbers
    x_head, z_head = _place_of(x_index, nx, head.shape[0]), _place_of(z_index, nz, head.shape[1])
    x_tail, z_tail = nx - x_head, nz - z_head

    n_slots = x_head * z_tail + x_tail * nz
    for q in range(z_tail + x_tail):
        missing = slots[n_slots + q]
        if missing > 0:
            t, n, begin, stride = _table(
                q, store.n_rows, x_index, x_head, z_index, z_head, z_tail, nz
            )
            labels = x_index if q < z_tail else z_index
            if not _insert(store, rule, t, missing, shift, labels, n, slots, begin, stride):
                return False

    last = head.shape[2] - 1
    waits = head.nbytes > _CACHED
    # Backwards: the rows that were read last are still near.
    for p in range(nx - 1, -1, -1):
        i = np.int64(x_index[p])
        if waits:
            _ask_for(head, x_index, p - _AHEAD, x_head, z_index, z_head)
        split, begin = _row_slots(p, x_head, z_head, nz)
        _load_row(head, i, z_index, split, tail, slots, begin, nz, numbers)
        d = _diagonal_place(rule, z_index, nz, i)
        row_update(
            rule,
            numbers,
            0,
            numbers,
            1,
            numbers,
            last,
            has_acc,
            z,
            x[p],
            d,
            tau,
            beta,
            shift,
            weight,
        )
        _save_row(head, i, z_index, split, tail, slots, begin, nz, numbers)
    return True


@inner
def _insert(store, rule, t, missing, shift, labels, n, slots, begin, stride):
    """Give the first n labels a slot in table t, moving the table to the arena's end if it is too small."""
    start, room, used, key, tail = store.start, store.room, store.used, store.key, store.tail
    if 4 * (used[t] + missing) > 3 * room[t]:
        own = t if rule.off_diagonal and t < store.n_rows else -1
        old_start, old_end = start[t], start[t] + room[t]
        alive = 0
        for slot in range(old_start, old_end):
            alive += _survives(rule, own, key[slot], tail, slot, shift)
        # Dead entries are left behind, but this very triplet may want some of them.
        wanted = min(missing + used[t] - alive, n)
        new_room = 2 * (alive + wanted) + 2
        new_start = store.arena_top[0]
        if new_start + new_room > len(key):
            return False
        store.arena_top[0] = new_start + new_room
        for slot in range(new_start, new_start + new_room):
            key[slot] = -1
        for slot in range(old_start, old_end):
            if _survives(rule, own, key[slot], tail, slot, shift):
                new = -1 - _slot(key, new_start, new_room, key[slot])
                key[new] = key[slot]
                _copy(tail, slot, tail, new)
        start[t] = new_start
        room[t] = new_room
        used[t] = alive
    for k in range(n):
        slot = _slot(key, start[t], room[t], labels[k])
        if slot < 0:
            slot = -1 - slot
            key[slot] = labels[k]
            for q in range(tail.shape[1]):
                tail[slot, q] = 0
            used[t] += 1
        slots[begin + k * stride] = slot
    return True


@inner
def _survives(rule, own, key, values, n, shift):
    """Whether values[n] is an entry worth keeping; `own` is the key of a diagonal kept apart."""
    cut = values.dtype.type(0.0 if key == own else shift)
    return key >= 0 and not is_dead(rule, values, n, cut)


@inner
def _copy(source, n, target, m):
    for q in range(source.shape[1]):
        target[m, q] = source[n, q]


@driver
def compact(rule, store, order, spare_key, spare, shift):
    """Slide the tables' segments together in the order of their position, without dead entries.

    The spare arrays hold one table at a time; a new segment never reaches past the old one.
    """
    start, room, used, key, tail = store.start, store.room, store.used, store.key, store.tail
    top = 0
    for o in range(len(order)):
        t = order[o]
        own = t if rule.off_diagonal and t < store.n_rows else -1
        first, size = start[t], room[t]
        alive = 0
        for slot in range(first, first + size):
            if _survives(rule, own, key[slot], tail, slot, shift):
                spare_key[alive] = key[slot]
                _copy(tail, slot, spare, alive)
                alive += 1
        if alive == used[t]:  # nothing to forget: the segment moves as it is
            for k in range(size):
                key[top + k] = key[first + k]
                _copy(tail, first + k, tail, top + k)
        else:
            size = min(size, 2 * alive)
            for slot in range(top, top + size):
                key[slot] = -1
            for k in range(alive):
                slot = -1 - _slot(key, top, size, spare_key[k])
                key[slot] = spare_key[k]
                _copy(spare, k, tail, slot)
        start[t] = top
        room[t] = size
        used[t] = alive
        top += size
    store.arena_top[0] = top


@driver
def copy_entries(rule, store, shift, end, indices, numbers):
    """Write the live entries as CSR: those of row i go before ``end[i]``, from the last to the first.

    With empty `indices` nothing is written, and ``end`` counts them (downwards).
    """
    head, tail, start, room, key = store.head, store.tail, store.start, store.room, store.key
    writing = len(indices) > 0
    for i in range(head.shape[0]):
        row = head[i]
        own = i if rule.off_diagonal else -1
        for c in range(head.shape[1] - 1, -1, -1):
            if _survives(rule, own, c, row, c, shift):
                end[i] -= 1
                if writing:
                    indices[end[i]] = c
                    _copy(row, c, numbers, end[i])
    for t in range(len(start)):
        own = t if rule.off_diagonal and t < store.n_rows else -1
        for slot in range(start[t], start[t] + room[t]):
            if _survives(rule, own, key[slot], tail, slot, shift):
                i = t if t < store.n_rows else key[slot]
                end[i] -= 1
                if writing:
                    indices[end[i]] = key[slot] if t < store.n_rows else t - store.n_rows
                    _copy(tail, slot, numbers, end[i])


@driver
def fill_entries(store, indptr, indices, numbers):
    """Put entries into an empty store whose tables already have room for them."""
    head, start, room, key = store.head, store.start, store.room, store.key
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            c = indices[k]
            if i < head.shape[0] and c < head.shape[1]:
                _copy(numbers, k, head[i], c)
            else:
                t, label = (i, c) if i >= head.shape[0] else (store.n_rows + c, np.int32(i))
                slot = _slot(key, start[t], room[t], label)
                if slot < 0:
                    slot = -1 - slot
                    store.used[t] += 1
                    key[slot] = label
                _copy(numbers, k, store.tail, slot)


@driver
def rebase(rule, store, shift):
    """Write every entry as if the accumulated threshold started from zero now."""
    head, tail, start, room, key = store.head, store.tail, store.start, store.room, store.key
    cut = head.dtype.type(shift)
    for i in range(head.shape[0]):
        for c in range(head.shape[1]):
            if not (rule.off_diagonal and c == i):
                head[i, c, 0] = shrink(head[i, c, 0], cut)
    for t in range(len(start)):
        own = t if rule.off_diagonal and t < store.n_rows else -1
        for slot in range(start[t], start[t] + room[t]):
            if key[slot] >= 0 and key[slot] != own:
                tail[slot, 0] = shrink(tail[slot, 0], cut)
