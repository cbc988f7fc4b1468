"""A store for sparse rows: a dense part for frequent features, a hash table for the rest of each row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import driver, helper, inner, prefetch
from .rules import CONFIDENT, is_dead, row_margin, row_update, row_variance, shrink

#: Bytes of a dense part that caches may hold.
_CACHED = 1 << 22

#: How many rows are asked for before they are read.
_AHEAD = 2


class HeadTail(NamedTuple):
    """The first columns of every row as numbers side by side, and a hash table for its other columns.

    Features are numbered from most to least frequent, and the more frequent the feature of a row, the more
    columns of it are in the head: those of row i are ``head[place[i] : place[i] + width[i]]``. The table of
    row i, keyed by column, owns the slots ``start[i] : start[i] + room[i]`` of one arena: open addressing,
    linear probing, ``key`` = -1 for a free slot. Segments are cut from the arena's end (`arena_top`); what a
    table leaves behind when it moves is reclaimed by `compact`. Where an entry lives never changes a
    result, and neither does forgetting a dead entry.

    The numbers of an entry lie side by side (u, then aux, then acc, as far as they are used): a cache
    miss, which is what an entry costs, brings all of them.
    """

    head: np.ndarray  # (places, numbers)
    width: np.ndarray  # of each row
    place: np.ndarray
    tail: np.ndarray  # (slots, numbers)
    start: np.ndarray  # of each row, like the next two
    room: np.ndarray
    used: np.ndarray
    key: np.ndarray
    arena_top: np.ndarray  # one number
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
def _load_row(head, first, z_index, split, tail, slots, begin, n, numbers):
    """Copy a row at the n columns of z to the scratch: the first `split` are in the head, from `first` on.

    The others are in the slots from `begin` on; a negative slot is an absent entry.
    """
    for q in range(head.shape[1]):
        for k in range(split):
            numbers[q, k] = head[np.uint64(first + z_index[k]), q]  # no check for below zero
        for k in range(n - split):
            slot = slots[begin + k]
            numbers[q, split + k] = tail[slot, q] if slot >= 0 else 0


@inner
def _save_row(head, first, z_index, split, tail, slots, begin, n, numbers):
    """Copy a row from the scratch back to its places."""
    for q in range(head.shape[1]):
        for k in range(split):
            head[np.uint64(first + z_index[k]), q] = numbers[q, k]
        for k in range(n - split):
            tail[slots[begin + k], q] = numbers[q, split + k]


@inner
def _ask_for(head, place, x_index, p, nx, z_index, slots):
    """Have what the head has of the p-th row of x fetched, if there is such a row."""
    if p >= 0 and p < nx:
        first = place[x_index[p]]
        for k in range(slots[p]):
            prefetch(head, first + np.int64(z_index[k]), 0)


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


# Where the entries of x z' are, in one array: how many of the columns of z the head has of each row of x, how
# many of the others the table of each row lacks, and then the slots of these others, row after row.


@inner
def _split(width, i, z_index, nz):
    """How many columns of z the head has of row i."""
    if nz == 0 or z_index[nz - 1] < width[i]:
        return nz
    return _place_of(z_index, nz, width[i])


@inner
def _slots_needed(width, x_index, nx, z_index, nz):
    """Length of the array that `_look_up` fills."""
    total = 2 * nx
    for p in range(nx):
        total += nz - _split(width, x_index[p], z_index, nz)
    return total


@inner
def _look_up(width, start, room, key, tail, x_index, nx, z_index, nz, slots):
    """Find all entries: see above."""
    waits = 4 * len(key) > _CACHED
    for p in range(nx):
        i = x_index[p]
        split = _split(width, i, z_index, nz)
        slots[p] = split
        first, size = start[i], room[i]
        if waits and size > 0:
            for k in range(split, nz):
                prefetch(key, first + _first_offset(size, z_index[k]), 0)
    begin = 2 * nx
    for p in range(nx):
        i, split = x_index[p], slots[p]
        missing = 0
        for k in range(split, nz):
            slot = _slot(key, start[i], room[i], z_index[k])
            slots[begin + k - split] = slot
            missing += slot < 0
            if waits and slot >= 0:
                prefetch(tail, slot, 0)
        slots[nx + p] = missing
        begin += nz - split


@helper
def transform_in_head_tail(store, scratch, nx, nz, out):
    """out[k] = sum over x of M[:, z_index[k]], where the stored numbers are the values; returns the slots.

    The slots are those that `update_in_head_tail` takes.
    """
    head, width, place, tail = store.head, store.width, store.place, store.tail
    x_index, x, z_index, numbers = scratch.x_index, scratch.x, scratch.z_index, scratch.numbers
    slots = np.empty(_slots_needed(width, x_index, nx, z_index, nz), np.int64)
    _look_up(width, store.start, store.room, store.key, tail, x_index, nx, z_index, nz, slots)
    for k in range(nz):
        out[k] = 0
    begin = 2 * nx
    for p in range(nx):
        split = slots[p]
        _load_row(head, place[x_index[p]], z_index, split, tail, slots, begin, nz, numbers)
        begin += nz - split
        for k in range(nz):
            out[k] += x[p] * numbers[0, k]
    return slots


def margin_in_head_tail(store, rule, scratch, nx, nz, shift):
    head, width, place, tail = store.head, store.width, store.place, store.tail
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z[:nz]
    numbers = scratch.numbers
    slots = np.empty(_slots_needed(width, x_index, nx, z_index, nz), np.int64)
    _look_up(width, store.start, store.room, store.key, tail, x_index, nx, z_index, nz, slots)
    waits = head.nbytes > _CACHED
    if waits:
        for p in range(_AHEAD):
            _ask_for(head, place, x_index, p, nx, z_index, slots)

    margin = 0.0
    variance = 0.0
    begin = 2 * nx
    for p in range(nx):
        i = np.int64(x_index[p])
        if waits:
            _ask_for(head, place, x_index, p + _AHEAD, nx, z_index, slots)
        split = slots[p]
        _load_row(head, place[i], z_index, split, tail, slots, begin, nz, numbers)
        begin += nz - split
        d = _diagonal_place(rule, z_index, nz, i)
        x_i = float(x[p])
        margin += x_i * float(row_margin(rule, numbers, 0, numbers, 1, z, d, shift))
        if rule.kind == CONFIDENT:
            variance += x_i * x_i * row_variance(numbers, 1, z)
    return margin, variance, slots


@helper
def value_in_head_tail(store, rule, scratch, nx, nz, shift, rounds):
    """x'Mz with M as it is read: the average of that many rounds, if it is not 0."""
    head, width, place, tail = store.head, store.width, store.place, store.tail
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z[:nz]
    numbers, last = scratch.numbers, head.shape[1] - 1
    slots = np.empty(_slots_needed(width, x_index, nx, z_index, nz), np.int64)
    _look_up(width, store.start, store.room, store.key, tail, x_index, nx, z_index, nz, slots)
    waits = head.nbytes > _CACHED

    value = 0.0
    parts = z.dtype.type(rounds)
    begin = 2 * nx
    for p in range(nx):
        i = np.int64(x_index[p])
        if waits:
            _ask_for(head, place, x_index, p + _AHEAD, nx, z_index, slots)
        split = slots[p]
        _load_row(head, place[i], z_index, split, tail, slots, begin, nz, numbers)
        begin += nz - split
        if rounds > 0.0:
            for k in range(nz):
                numbers[0, k] -= numbers[last, k] / parts
        d = _diagonal_place(rule, z_index, nz, i)
        value += float(x[p]) * float(row_margin(rule, numbers, 0, numbers, 1, z, d, shift))
    return value


def update_in_head_tail(store, rule, scratch, slots, nx, nz, tau, beta, shift, weight):
    """False if the arena has no room for the new entries: nothing has changed then."""
    head, place, tail, has_acc = store.head, store.place, store.tail, store.has_acc
    x_index, x, z_index, z = scratch.x_index, scratch.x, scratch.z_index, scratch.z[:nz]
    numbers = scratch.numbers

    begin = 2 * nx
    for p in range(nx):
        split, missing = slots[p], slots[nx + p]
        if missing > 0:
            i = np.int64(x_index[p])
            if not _insert(store, rule, i, missing, shift, z_index, split, nz, slots, begin):
                return False
        begin += nz - split

    last = head.shape[1] - 1
    waits = head.nbytes > _CACHED
    # Backwards: the rows that were read last are still near.
    for p in range(nx - 1, -1, -1):
        i = np.int64(x_index[p])
        if waits:
            _ask_for(head, place, x_index, p - _AHEAD, nx, z_index, slots)
        split = slots[p]
        begin -= nz - split
        _load_row(head, place[i], z_index, split, tail, slots, begin, nz, numbers)
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
        _save_row(head, place[i], z_index, split, tail, slots, begin, nz, numbers)
    return True


@inner
def _insert(store, rule, t, missing, shift, labels, split, n, slots, begin):
    """Give labels split .. n - 1 slots in table t; a table that is too small moves to the arena's end."""
    start, room, used, key, tail = store.start, store.room, store.used, store.key, store.tail
    if 4 * (used[t] + missing) > 3 * room[t]:
        own = t if rule.off_diagonal else -1
        old_start, old_end = start[t], start[t] + room[t]
        alive = 0
        for slot in range(old_start, old_end):
            alive += _survives(rule, own, key[slot], tail, slot, shift)
        # Dead entries are left behind, but this very triplet may want some of them.
        wanted = min(missing + used[t] - alive, n - split)
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
    for k in range(split, n):
        slot = _slot(key, start[t], room[t], labels[k])
        if slot < 0:
            slot = -1 - slot
            key[slot] = labels[k]
            for q in range(tail.shape[1]):
                tail[slot, q] = 0
            used[t] += 1
        slots[begin + k - split] = slot
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
        own = t if rule.off_diagonal else -1
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
    head, width, place, tail = store.head, store.width, store.place, store.tail
    start, room, key = store.start, store.room, store.key
    writing = len(indices) > 0
    for i in range(len(width)):
        own = i if rule.off_diagonal else -1
        for c in range(width[i] - 1, -1, -1):
            if _survives(rule, own, c, head, place[i] + c, shift):
                end[i] -= 1
                if writing:
                    indices[end[i]] = c
                    _copy(head, place[i] + c, numbers, end[i])
        for slot in range(start[i], start[i] + room[i]):
            if _survives(rule, own, key[slot], tail, slot, shift):
                end[i] -= 1
                if writing:
                    indices[end[i]] = key[slot]
                    _copy(tail, slot, numbers, end[i])


@driver
def fill_entries(store, indptr, indices, numbers):
    """Put entries into an empty store whose tables already have room for them."""
    head, width, place = store.head, store.width, store.place
    start, room, key = store.start, store.room, store.key
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            c = indices[k]
            if c < width[i]:
                _copy(numbers, k, head, place[i] + c)
            else:
                slot = _slot(key, start[i], room[i], c)
                if slot < 0:
                    slot = -1 - slot
                    store.used[i] += 1
                    key[slot] = c
                _copy(numbers, k, store.tail, slot)


@driver
def rebase(rule, store, shift):
    """Write every entry as if the accumulated threshold started from zero now."""
    head, width, place, tail = store.head, store.width, store.place, store.tail
    start, room, key = store.start, store.room, store.key
    cut = head.dtype.type(shift)
    for i in range(len(width)):
        own = i if rule.off_diagonal else -1
        for c in range(width[i]):
            if c != own:
                head[place[i] + c, 0] = shrink(head[place[i] + c, 0], cut)
        for slot in range(start[i], start[i] + room[i]):
            if key[slot] >= 0 and key[slot] != own:
                tail[slot, 0] = shrink(tail[slot, 0], cut)
