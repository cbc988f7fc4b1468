"""Ranks of the relevant candidates of a query, and k-nearest-neighbour votes, row by row.

Every ranking measure is a function of the ranks of the *relevant* candidates alone, so nothing here
sorts pairs of (score, index). NumPy sorts bare values, with AVX-512 some 10 to 20 times faster than
a stable argsort; the kernel merges the sorted row with the sorted scores of the relevant candidates
and looks at indices only where a relevant and another candidate have the same score.

Rows are independent, and NumPy's sort and the kernels release the GIL, so blocks of rows go to
plain threads: unlike ``parallel=True`` that is safe to call from several threads and after a fork.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import config

from .dispatch import driver

_BLOCK = 2**17  # scores one thread works on at a time: 1 MB, about a core's own cache


@driver
def _fill_ranks(scores, grades, ordered, found, ranks):
    """Write the ranks (from 1, ascending) of one query's relevant candidates.

    `ordered` is the sorted row, with -inf for what is no candidate; `found` the sorted scores of
    the relevant ones; `scores` and `grades` are in index order (see `rank_rows`).
    """
    n_items = ordered.size
    top = n_items  # ordered[top:] is ranked already
    left = found.size  # found[left:] is ranked already
    done = 0
    n_mixed = 0  # tied groups that hold relevant and other items
    mixed_score = np.empty(found.size, found.dtype)  # descending
    mixed_rank = np.empty(found.size, np.int64)  # rank of the group's next member
    mixed_slot = np.empty(found.size, np.int64)  # where the rank of its next relevant member goes
    while left > 0:
        score = found[left - 1]
        while ordered[top - 1] > score:
            top -= 1
        above = n_items - top
        while top > 0 and ordered[top - 1] == score:
            top -= 1
        first = done
        while left > 0 and found[left - 1] == score:
            ranks[done] = above + 1 + done - first
            done += 1
            left -= 1
        if n_items - top - above > done - first:
            mixed_score[n_mixed] = score
            mixed_rank[n_mixed] = above + 1
            mixed_slot[n_mixed] = first
            n_mixed += 1
    if n_mixed == 0:
        return
    for j in range(n_items):  # the index breaks ties
        if grades[j] < 0:
            continue
        low, high = 0, n_mixed
        while low < high:
            middle = (low + high) // 2
            if mixed_score[middle] > scores[j]:
                low = middle + 1
            else:
                high = middle
        if low < n_mixed and mixed_score[low] == scores[j]:
            if grades[j] > 0:
                ranks[mixed_slot[low]] = mixed_rank[low]
                mixed_slot[low] += 1
            mixed_rank[low] += 1


@driver
def _sum_at_cutoffs(scores, grades, ordered, found, offsets, cutoffs, discounts, first_rank, sums):
    """Do the work of `rank_rows`.

    `ordered` is as in `_fill_ranks`, for every row; the relevant scores of row i are
    ``found[offsets[i]:offsets[i + 1]]``. `first_rank` and `sums` are written.
    """
    for i in range(scores.shape[0]):
        n_found = offsets[i + 1] - offsets[i]
        if n_found == 0:
            continue
        ranks = np.empty(n_found, np.int64)
        row_found = found[offsets[i] : offsets[i + 1]]
        _fill_ranks(scores[i], grades[i], ordered[i], row_found, ranks)
        first_rank[i] = ranks[0]
        column = 0
        precisions = 0.0
        gain = 0.0
        for h in range(n_found):
            while ranks[h] > cutoffs[column]:
                sums[i, 0, column] = h
                sums[i, 1, column] = precisions
                sums[i, 2, column] = gain
                column += 1
            precisions += (h + 1) / ranks[h]
            gain += discounts[ranks[h]]
        sums[i, 0, column:] = n_found
        sums[i, 1, column:] = precisions
        sums[i, 2, column:] = gain


def rank_rows(scores, grades, cutoffs, discounts):
    """Rank the candidates of every row by decreasing score, and sum over the relevant ones.

    Parameters
    ----------
    scores : (n, m) array
        Contiguous, free of NaN. Of two equal scores the one with the lower index ranks first.
    grades : (n, m) array of int8
        1 is relevant, 0 is not, -1 is no candidate.
    cutoffs : (c,) array
        Lengths of the list, ascending; the last one is at least m.
    discounts : (m + 1,) array
        Gain of a relevant candidate by its rank.

    Returns
    -------
    n_relevant, n_candidates : (n,) arrays
    first_rank : (n,) array
        Rank of the best relevant candidate, 0 where there is none.
    sums : (n, 3, c) array
        Over the relevant candidates ranked k or better, for every cutoff k: their number, the sum
        of the precisions at their ranks, the sum of their discounts.
    """
    ordered = scores.copy()
    excluded, n_excluded = _places(grades < 0)
    ordered.ravel()[excluded] = -np.inf
    ordered.sort(axis=1)
    relevant, n_relevant = _places(grades > 0)
    found = scores.ravel()[relevant]
    offsets = np.append(0, np.cumsum(n_relevant))
    for i in range(len(scores)):
        found[offsets[i] : offsets[i + 1]].sort()
    first_rank = np.zeros(len(scores), np.int64)
    sums = np.zeros((len(scores), 3, len(cutoffs)))
    _sum_at_cutoffs(scores, grades, ordered, found, offsets, cutoffs, discounts, first_rank, sums)
    return n_relevant, scores.shape[1] - n_excluded, first_rank, sums


def _places(mask):
    """Positions in the flattened mask and how many of them are in each row.

    Several times faster than indexing with the mask and `numpy.count_nonzero` along an axis.
    """
    places = np.flatnonzero(mask)
    row_starts = np.arange(len(mask) + 1) * mask.shape[1]
    return places, np.diff(np.searchsorted(places, row_starts))


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
def nearest(scores, skip, n_neighbors):
    """Return the indices of every row's highest scores, best first, shape (n, n_neighbors).

    Of two equal scores the one with the lower index is nearer. ``skip[i]`` is no candidate for row
    i (-1: all are). There must be enough candidates, and no NaN.
    """
    out = np.empty((scores.shape[0], n_neighbors), np.int64)
    best = np.empty(n_neighbors, scores.dtype)  # the scores of out[i], descending
    for i in range(scores.shape[0]):
        size = 0
        for j in range(scores.shape[1]):
            score = scores[i, j]
            if j == skip[i] or (size == n_neighbors and score <= best[size - 1]):
                continue
            place = min(size, n_neighbors - 1)
            size = place + 1
            _insert(best, out[i], place, score, j)
    return out


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


def map_rows(work, chunk, n_rows, n_items, chunk_size):
    """Return the list of ``work(*block)`` for all blocks of rows of the arrays ``chunk(rows)``.

    Chunks of `chunk_size` rows are made one after the other, and only one is held; its blocks go to
    as many threads as numba would use (NUMBA_NUM_THREADS, or the cores of this process).
    """
    with ThreadPoolExecutor(config.NUMBA_NUM_THREADS) as threads:

        def results(rows):
            arrays = chunk(rows)
            blocks = _slices(rows.stop - rows.start, max(1, _BLOCK // n_items))
            return threads.map(lambda block: work(*(a[block] for a in arrays)), blocks)

        return [one for rows in _slices(n_rows, chunk_size) for one in results(rows)]


def _slices(n, size):
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


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
