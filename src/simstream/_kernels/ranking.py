"""Ranks of the relevant candidates of a query, nearest items, and votes of neighbours.

Every ranking measure is a function of the ranks of the *relevant* candidates alone. So nothing here sorts
all candidates: the relevant ones are sorted, and every other one is counted at its place among them, which
adds up over parts of the candidates, in any order and anywhere.
"""

from __future__ import annotations

import numpy as np

from .dispatch import driver, inner

#: Candidates that are counted together.
_LANES = 32


@inner
def _behind_ties(ordered, items, first, score, item):
    """The first place from `first` on that has another score, or an item that is not lower."""
    low, high = first, ordered.size
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] == score and items[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low


@driver
def count_above(scores, first_item, offsets, ordered, items, counts):
    """Count candidates at their places among the relevant ones.

    Row i of `scores` belongs to the items ``first_item, first_item + 1, ...``; NaN is no candidate. The
    relevant ones of row i are at ``offsets[i]:offsets[i + 1]`` of `ordered`, by descending score, and of
    `items`, ascending where scores are equal: of two equal scores the lower item ranks first. ``counts[p]``
    is increased for each candidate that is the relevant one at p, or ranks between it and the one before.

    Returns the number of candidates that are relevant ones.
    """
    n_relevant = 0
    last = scores.shape[1] - 1
    place = np.empty(_LANES, np.int32)
    value = np.empty(_LANES, scores.dtype)
    column = np.empty(_LANES, np.int64)
    for i in range(scores.shape[0]):
        begin, end = offsets[i], offsets[i + 1]
        if begin == end:
            continue
        own_scores, own_items, own_counts = ordered[begin:end], items[begin:end], counts[begin:end]
        lowest = own_scores[end - begin - 1]
        used = 0
        for j in range(last + 1):
            if scores[i, j] >= lowest:
                value[used] = scores[i, j]
                column[used] = j
                used += 1
            if used == _LANES or (j == last and used > 0):
                # Where those above a value end, for several values at a time and without a branch that nobody
                # could predict: the place is among the n from place[k] on.
                place[:] = 0
                n = np.int32(end - begin)
                while n > 1:
                    half = n >> 1
                    for k in range(_LANES):
                        place[k] += half * (own_scores[place[k] + half - 1] > value[k])
                    n -= half
                for k in range(used):
                    at = np.int64(place[k])
                    if own_scores[at] == value[k]:
                        item = first_item + column[k]
                        at = _behind_ties(own_scores, own_items, at, value[k], item)
                        if at == end - begin:
                            continue
                        n_relevant += own_items[at] == item
                    own_counts[at] += 1
                used = 0
    return n_relevant


@driver
def take_scores(scores, first_item, offsets, items, out):
    """Write the scores of the items ``items[offsets[i]:offsets[i + 1]]``, which ascend, of every row i.

    Only items that `scores`, as in `count_above`, has columns for.
    """
    end_item = first_item + scores.shape[1]
    for i in range(scores.shape[0]):
        low, high = offsets[i], offsets[i + 1]
        while low < high:
            middle = (low + high) // 2
            if items[middle] < first_item:
                low = middle + 1
            else:
                high = middle
        p = low
        while p < offsets[i + 1] and items[p] < end_item:
            out[p] = scores[i, items[p] - first_item]
            p += 1


@driver
def sort_lists(offsets, scores, items, grades):
    """Sort each list ``offsets[i]:offsets[i + 1]`` by descending score, in place; ties stay as they are.

    `items` and `grades`, unless it is empty, are sorted with the scores.
    """
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        if end - begin < 2:
            continue
        order = np.argsort(-scores[begin:end], kind="mergesort")
        scores[begin:end] = scores[begin:end][order]
        items[begin:end] = items[begin:end][order]
        if grades.size > 0:
            grades[begin:end] = grades[begin:end][order]


@driver
def ranks_of_counts(offsets, counts, ranks):
    """Write the ranks (from 1) of the relevant candidates, which have been counted by `count_above`."""
    for i in range(len(offsets) - 1):
        before = 0
        for p in range(offsets[i], offsets[i + 1]):
            before += counts[p]
            ranks[p] = before


@driver
def sum_at_cutoffs(offsets, ranks, gains, cutoffs, sums):
    """Sum over the relevant candidates of each row ranked k or better, for every cutoff k.

    `ranks` ascend within a row, `gains` belong to them. ``sums[i]``, shape (3, n_cutoffs), is written: the
    number of such candidates, the sum of the precisions at their ranks, and that of their gains.
    """
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        column = 0
        precisions = 0.0
        gain = 0.0
        for p in range(begin, end):
            while ranks[p] > cutoffs[column]:
                sums[i, 0, column] = p - begin
                sums[i, 1, column] = precisions
                sums[i, 2, column] = gain
                column += 1
            precisions += (p - begin + 1) / ranks[p]
            gain += gains[p]
        sums[i, 0, column:] = end - begin
        sums[i, 1, column:] = precisions
        sums[i, 2, column:] = gain


@driver
def _insert(best, rows, place, score, row):
    """Put a score into a descending list whose entry at `place` may go; ties stay in front of it."""
    while place > 0 and best[place - 1] < score:
        best[place] = best[place - 1]
        rows[place] = rows[place - 1]
        place -= 1
    best[place] = score
    rows[place] = row


@driver
def offer(scores, first_row, best, rows):
    """Merge scores of the items ``first_row, first_row + 1, ...`` into every query's list of the best.

    `best` (descending) and `rows` have shape (n_queries, k) and start with -inf and -1. Offered in the
    order of the rows, of two equal scores the lower row is better. NaN and -inf never enter.
    """
    last = best.shape[1] - 1
    for i in range(scores.shape[0]):
        worst = best[i, last]
        for j in range(scores.shape[1]):
            score = scores[i, j]
            if score > worst:
                _insert(best[i], rows[i], last, score, first_row + j)
                worst = best[i, last]


@driver
def offer_nearest(scores, first_item, skip, best, items, sizes):
    """Merge scores of the items ``first_item, first_item + 1, ...`` into every row's list of the nearest.

    ``best[i, :sizes[i]]`` (descending) and `items` are the list of row i; of two equal scores the item that
    is offered first is nearer. ``skip[i]`` is no candidate for row i (-1: all are). There must be no NaN.
    """
    length = best.shape[1]
    for i in range(scores.shape[0]):
        size = sizes[i]
        for j in range(scores.shape[1]):
            score = scores[i, j]
            if (size == length and score <= best[i, length - 1]) or first_item + j == skip[i]:
                continue
            place = min(size, length - 1)
            size = place + 1
            _insert(best[i], items[i], place, score, first_item + j)
        sizes[i] = size


def nearest(scores, skip, n_neighbors):
    """Return the indices of every row's highest scores, best first, shape (n, n_neighbors).

    Of two equal scores the one with the lower index is nearer. ``skip[i]`` is no candidate for row
    i (-1: all are). There must be enough candidates, and no NaN.
    """
    best = np.empty((len(scores), n_neighbors), scores.dtype)
    items = np.empty((len(scores), n_neighbors), np.int64)
    offer_nearest(scores, 0, skip, best, items, np.zeros(len(scores), np.int64))
    return items


@driver
def majority(classes, n_classes):
    """Return the most frequent class of every row; of equally frequent ones the first in it."""
    counts = np.zeros(n_classes, np.int64)
    winners = np.empty(classes.shape[0], np.int64)
    for i in range(classes.shape[0]):
        counts[:] = 0
        for c in classes[i]:
            counts[c] += 1
        winner = classes[i, 0]
        for c in classes[i]:
            if counts[c] > counts[winner]:
                winner = c
        winners[i] = winner
    return winners


@driver
def csr_scores(data, columns, starts, first, queries, out):
    """Write ``out[i, j]``, the inner product of row ``first + j`` with column i of `queries`.

    `queries` has shape (n_features, n_queries): what one entry of a row meets lies side by side.
    """
    n_queries = queries.shape[1]
    sums = np.empty(n_queries, out.dtype)
    for j in range(out.shape[1]):
        begin, end = starts[first + j], starts[first + j + 1]
        if n_queries == 1:
            total = out.dtype.type(0)
            for p in range(begin, end):
                total += data[p] * queries[columns[p], 0]
            out[0, j] = total
            continue
        sums[:] = 0
        for p in range(begin, end):
            value, column = data[p], columns[p]
            for i in range(n_queries):
                sums[i] += value * queries[column, i]
        for i in range(n_queries):
            out[i, j] = sums[i]


@driver
def blended_ranks(base, changes, trust, rows, relevant, left_out, ranks):
    """Ranks (from 1) of the relevant items by base + a change, for every change and every trust a.

    `base` has a score for each ranked item, `changes` a row of them for each option, `relevant` are places in
    both. Ties go to the lower of the numbers `rows`. Items that are `left_out` are not ranked against.
    `ranks`, shape (n_changes, n_trust, n_relevant), is written.
    """
    n_items = base.size
    score = np.empty(n_items, base.dtype)
    for k in range(changes.shape[0]):
        for a in range(trust.size):
            share = base.dtype.type(trust[a])
            for j in range(n_items):
                score[j] = base[j] + share * changes[k, j]
            for i in range(relevant.size):
                own = relevant[i]
                value, number = score[own], rows[own]
                before = 0
                for j in range(n_items):
                    is_before = score[j] > value or (score[j] == value and rows[j] < number)
                    before += is_before and not left_out[j]
                ranks[k, a, i] = before + 1
