"""Steps of the listwise softmax loss: relevant items of a query against a list of negatives.

With t = M'q, the loss is the mean over the relevant items r of -log(e_r / (e_r + sum_n e_n)), where
e_j = exp(t'x_j / temperature). Its gradient with respect to M is -q z' / temperature: every step moves M
along the query alone, so steps can be taken in t, which costs the rows of the list and no more.

Blocks are exact, as in `blocked`: all queries of a block meet the block's first matrix in one product, what
earlier lists change for later ones comes from the Gram matrix of the queries, and one product of rank B adds
all changes to M. The items of the lists need no Gram matrix.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .blocked import Block
from .dispatch import driver, helper, inner
from .entrywise import DIVERGED, DONE, NEEDS_SPACE, read_anchor, squared_norm, store_update
from .head_tail import transform_in_head_tail
from .steps import (
    HOPELESS,
    LOSS,
    MISTAKES,
    ROUNDS,
    SKIPPED,
    UPDATES,
    VIOLATIONS,
    average_weight,
)


class ListStep(NamedTuple):
    """How far a list moves M."""

    eta: float
    temperature: float
    n_steps: int
    n_relevant: int = 1  # items of a list that are relevant; the others are negatives
    average_from: int = 0  # first round of the average, 0 for none


# Four rows at a time: a vector that stays is then read a quarter as often.


@inner
def _add_scores(rows, v, c, scores, first):
    """scores[first + j] += c rows[j]'v."""
    n, width = rows.shape
    for j in range(0, n - 3, 4):
        s0 = s1 = s2 = s3 = v.dtype.type(0)
        for k in range(width):
            s0 += rows[j, k] * v[k]
            s1 += rows[j + 1, k] * v[k]
            s2 += rows[j + 2, k] * v[k]
            s3 += rows[j + 3, k] * v[k]
        scores[first + j] += c * float(s0)
        scores[first + j + 1] += c * float(s1)
        scores[first + j + 2] += c * float(s2)
        scores[first + j + 3] += c * float(s3)
    for j in range(n - n % 4, n):
        s0 = v.dtype.type(0)
        for k in range(width):
            s0 += rows[j, k] * v[k]
        scores[first + j] += c * float(s0)


@inner
def _add_rows(v, rows, weights, first, length):
    """v += length * sum of weights[first + j] rows[j]."""
    n, width = rows.shape
    for j in range(0, n - 3, 4):
        c0 = v.dtype.type(length * weights[first + j])
        c1 = v.dtype.type(length * weights[first + j + 1])
        c2 = v.dtype.type(length * weights[first + j + 2])
        c3 = v.dtype.type(length * weights[first + j + 3])
        for k in range(width):
            v[k] += (c0 * rows[j, k] + c1 * rows[j + 1, k]) + (
                c2 * rows[j + 2, k] + c3 * rows[j + 3, k]
            )
    for j in range(n - n % 4, n):
        c0 = v.dtype.type(length * weights[first + j])
        for k in range(width):
            v[k] += c0 * rows[j, k]


@inner
def softmax_weights(scores, n_relevant, n, temperature, weights):
    """Weights w of z = sum_j w_j x_j from the scores of a list; returns its loss and its margin.

    The first `n_relevant` of the n scores are of relevant items, which do not compete with each other. The
    margin is the lowest of theirs less the highest of the others. All exponents are at most zero.
    """
    best, worst = scores[n_relevant], scores[0]
    for j in range(n_relevant, n):
        best = max(best, scores[j])
    for j in range(n_relevant):
        worst = min(worst, scores[j])
    total = 0.0
    for j in range(n_relevant, n):
        weights[j] = math.exp((scores[j] - best) / temperature)
        total += weights[j]
    loss = 0.0
    missing = 0.0  # mean probability that the relevant items lack
    for j in range(n_relevant):
        ahead = (scores[j] - best) / temperature
        if ahead > 0.0:
            others = total * math.exp(-ahead)
            loss += math.log1p(others)
            weights[j] = others / (1.0 + others)
        else:
            own = math.exp(ahead)
            loss += math.log(own + total) - ahead
            weights[j] = total / (own + total)
        weights[j] /= n_relevant
        missing += weights[j]
    for j in range(n_relevant, n):
        weights[j] *= -missing / total
    return loss / n_relevant, worst - best


@inner
def descend(t, norm, relevant, negatives, step, scores, weights, change):
    """Steps on one list of a query with ||q||^2 = norm and M'q = t; returns its loss and margin before them.

    `change` becomes what M gains along q: t + norm * change is M'q after the steps. It is added up apart from
    t, which may be much larger.
    """
    n_relevant = len(relevant)
    n = n_relevant + len(negatives)
    loss, margin = 0.0, 0.0
    for k in range(len(change)):
        change[k] = 0
    for j in range(n):
        scores[j] = 0.0
    _add_scores(relevant, t, 1.0, scores, 0)
    _add_scores(negatives, t, 1.0, scores, n_relevant)
    first = scores[n:]
    for j in range(n):
        first[j] = scores[j]
    for taken in range(step.n_steps):
        if taken > 0:
            for j in range(n):
                scores[j] = first[j]
            _add_scores(relevant, change, norm, scores, 0)
            _add_scores(negatives, change, norm, scores, n_relevant)
        here = softmax_weights(scores, n_relevant, n, step.temperature, weights)
        if taken == 0:
            loss, margin = here
        _add_rows(change, relevant, weights, 0, step.eta * step.temperature)
        _add_rows(change, negatives, weights, n_relevant, step.eta * step.temperature)
    return loss, margin


@driver
def implicit_step(t, squared_norm, relevant_rows, negative_rows, eta, temperature, n_steps):
    """Move t = M'q by `n_steps` steps on the softmax loss of one query; return its loss and margin before.

    Each step is t += eta * temperature * ||q||^2 * z, with z the mean over the relevant items of
    x_r - sum_j p_j x_j: `eta` temperature^2 times the gradient. Afterwards M += q (t_new - t_old)' / ||q||^2
    has M'q = t_new.

    Parameters
    ----------
    t : array of shape (d,), changed in place
    squared_norm : float, ||q||^2
    relevant_rows, negative_rows : C-contiguous arrays of shapes (R, d) and (N, d) and of t's dtype
        Without any of either nothing is learnt.
    eta, temperature : float
    n_steps : int

    Returns
    -------
    loss : float
        Mean softmax loss of the relevant items.
    margin : float
        Lowest score of a relevant item less the highest of a negative one.
    """
    n = len(relevant_rows) + len(negative_rows)
    if len(relevant_rows) == 0 or len(negative_rows) == 0:
        return 0.0, 0.0
    step = ListStep(float(eta), float(temperature), int(n_steps), 1, 0)
    change = np.empty_like(t)
    loss, margin = descend(
        t, squared_norm, relevant_rows, negative_rows, step, np.empty(2 * n), np.empty(n), change
    )
    for k in range(len(t)):
        t[k] += t.dtype.type(squared_norm) * change[k]
    return loss, margin


# -- lists one after the other ---------------------------------------------------------------------


@inner
def _gather(items, entry, first, last, rows, n):
    """Copy the items at places first .. last - 1 of a list to the rows from n on; return where they end.

    -1 is no item: shorter lists are padded.
    """
    for j in range(first, last):
        if entry[j] >= 0:
            item, row = items[entry[j]], rows[n]
            for k in range(len(row)):
                row[k] = item[k]
            n += 1
    return n


@inner
def _all_equal(rows, n):
    """Whether the first n rows are the same."""
    for j in range(1, n):
        for k in range(rows.shape[1]):
            if rows[j, k] != rows[0, k]:
                return False
    return True


@inner
def _is_moderate(change, n):
    for k in range(n):  # noqa: SIM110 - compiled code has no generators
        if not abs(change[k]) < HOPELESS:
            return False
    return True


@inner
def _is_any(change, n):
    for k in range(n):  # noqa: SIM110 - compiled code has no generators
        if change[k] != 0:
            return True
    return False


@inner
def count_list(clock, loss, margin, updated, skipped):
    """Count a list, given its loss and its margin before the step."""
    clock[ROUNDS] += 1.0
    clock[UPDATES] += updated
    clock[SKIPPED] += skipped
    clock[MISTAKES] += margin <= 0.0
    clock[LOSS] += loss
    clock[VIOLATIONS] += loss > math.log(2.0)


@driver
def list_recursion(step, t, gram, items, lists, changes, weighted, clock):
    """Steps of a block of lists; returns how many of them had finite values.

    Row i of t holds M'q_i by the block's first matrix, row i of `changes` gets what M gains along q_i,
    `weighted[i]` how often the average counts it, -1 for a list that changes nothing.
    """
    n, width = t.shape
    size = lists.shape[1] - 1
    rows = np.empty((size, width), t.dtype)
    scores, weights = np.empty(2 * size), np.empty(size)
    for i in range(n):
        now, change = t[i], changes[i]
        for j in range(i):
            c = gram[j, i]
            if c != 0 and weighted[j] >= 0.0:
                earlier = changes[j]
                for k in range(width):
                    now[k] += c * earlier[k]
        relevant = _gather(items, lists[i], 1, 1 + step.n_relevant, rows, 0)
        found = _gather(items, lists[i], 1 + step.n_relevant, 1 + size, rows, relevant)
        norm = float(gram[i, i])
        loss, margin = descend(
            now, norm, rows[:relevant], rows[relevant:found], step, scores, weights, change
        )
        if not (abs(margin) < HOPELESS and _is_moderate(change, width)):
            return i
        skipped = norm == 0.0 or _all_equal(rows, found)
        updated = not skipped and _is_any(change, width)
        weighted[i] = average_weight(step, clock) if updated else -1.0
        count_list(clock, loss, margin, updated, skipped)
    return n


def learn_list_block(
    ops: Any,
    step: Any,
    m: np.ndarray,
    acc: np.ndarray,
    queries: np.ndarray,
    items: np.ndarray,
    lists: np.ndarray,
    clock: np.ndarray,
) -> Block:
    """Learn from one block of lists (query, relevant items, negatives); return how many were learnt.

    ``queries`` are the dense rows of the block's queries, ``acc`` is the average's accumulator, or has no
    columns.
    """
    if not ops.has_all_columns:
        return (yield from _learn_by_scores(ops, step, m, acc, queries, items, lists, clock))
    t = np.ascontiguousarray(ops.product(queries, m))
    changes, weighted = np.zeros_like(t), np.zeros(len(t))
    gram = np.ascontiguousarray(ops.gram(queries))
    learnt = list_recursion(step, t, gram, items, lists, changes, weighted, clock)
    active = np.flatnonzero(weighted[:learnt] >= 0)
    if len(active):
        q, d = queries[active], changes[active]
        ops.add_product(m, q, np.ones(len(active)), d)
        if acc.shape[1]:
            ops.add_product(acc, q, weighted[active], d)
    return learnt


# -- where columns are divided: only scores and Gram matrices are known of the items ------------------


@driver
def _lists_differ(rows, place):
    """1 for lists whose items are not all the same row, 0 for others; `place` has -1 for no item."""
    out = np.zeros(len(place), np.float32)
    for i in range(len(place)):
        first = -1
        for j in place[i]:
            if j >= 0 and first < 0:
                first = j
            elif j >= 0 and j != first:
                for k in range(rows.shape[1]):
                    if rows[j, k] != rows[first, k]:
                        out[i] = 1
                        break
    return out


@driver
def _score_recursion(step, scores, differs, gram_q, gram, place, coefficients, weighted, clock):
    """The steps of `list_recursion` in the space of scores; returns how many lists had finite values.

    ``scores[i, j]`` is of item ``place[i, j]`` by the block's first matrix, ``gram`` has the products of all
    items (upper triangle). ``coefficients[i, u]`` becomes how much of item u M gains along query i.
    """
    n, size = place.shape
    now, first, weights, taken = np.empty((4, size))
    items = np.empty(size, np.int64)
    own = np.empty((size, size))
    for i in range(n):
        found = relevant = 0
        for j in range(size):
            if place[i, j] >= 0:
                items[found] = place[i, j]
                first[found] = scores[i, j]
                found += 1
            if j < step.n_relevant:
                relevant = found
        for s in range(i):
            c = float(gram_q[s, i])
            if c != 0.0 and weighted[s] >= 0.0:
                for j in range(found):
                    total = 0.0
                    for k in range(size):
                        u = place[s, k]
                        if u >= 0 and _is_first(place[s], k):
                            total += coefficients[s, u] * _between(gram, u, items[j])
                    first[j] += c * total
        norm = float(gram_q[i, i])
        for j in range(found):
            taken[j] = 0.0
            now[j] = first[j]
            for k in range(found):
                own[j, k] = norm * _between(gram, items[j], items[k])
        loss, margin = 0.0, 0.0
        for number in range(step.n_steps):
            if number > 0:
                for j in range(found):
                    now[j] = first[j]
                    for k in range(found):
                        now[j] += own[j, k] * taken[k]
            here = softmax_weights(now, relevant, found, step.temperature, weights)
            if number == 0:
                loss, margin = here
            for j in range(found):
                taken[j] += step.eta * step.temperature * weights[j]
        if not (abs(margin) < HOPELESS and _is_moderate(taken, found)):
            return i
        skipped = norm == 0.0 or differs[i] == 0
        updated = not skipped and _is_any(taken, found)
        for j in range(found):
            coefficients[i, items[j]] += taken[j]
        weighted[i] = average_weight(step, clock) if updated else -1.0
        count_list(clock, loss, margin, updated, skipped)
    return n


@inner
def _between(gram, u, v):
    """The product of items u and v, from the upper triangle of their products."""
    return float(gram[u, v]) if u <= v else float(gram[v, u])


@inner
def _is_first(places, k):
    """Whether the item at place k of a list is not at an earlier one too: its coefficient counts once."""
    for j in range(k):  # noqa: SIM110 - compiled code has no generators
        if places[j] == places[k]:
            return False
    return True


def _learn_by_scores(
    ops: Any,
    step: Any,
    m: np.ndarray,
    acc: np.ndarray,
    queries: np.ndarray,
    items: np.ndarray,
    lists: np.ndarray,
    clock: np.ndarray,
) -> Block:
    """`learn_list_block` where others have columns too: what is summed are scores and Gram matrices."""
    used, place = np.unique(lists[:, 1:], return_inverse=True)
    padding = int(used[0] < 0)
    rows, place = (
        np.ascontiguousarray(items[used[padding:]]),
        place.reshape(len(lists), -1) - padding,
    )
    of_all = ops.product_transposed(np.ascontiguousarray(ops.product(queries, m)), rows)
    own = of_all[np.arange(len(lists))[:, None], np.maximum(place, 0)].astype(np.float64)
    grams = ops.gram_of_share(queries), ops.gram(rows)
    scores, differs, (gram_q, gram) = yield own, _lists_differ(rows, place), grams
    coefficients, weighted = np.zeros((len(lists), len(rows))), np.zeros(len(lists))
    learnt = _score_recursion(
        step, scores, differs, gram_q, gram, place, coefficients, weighted, clock
    )
    active = np.flatnonzero(weighted[:learnt] >= 0)
    if len(active):
        q = queries[active]
        d = np.ascontiguousarray(ops.product(coefficients[active].astype(rows.dtype), rows))
        ops.add_product(m, q, np.ones(len(active)), d)
        if acc.shape[1]:
            ops.add_product(acc, q, weighted[active], d)
    return learnt


# -- sparse items: one list at a time --------------------------------------------------------------


@helper  # sorting is no function for loops
def _read_columns(items, entry, place, z_index):
    """The columns of a list's items, sorted, as z_index, and where each is in it; returns their number.

    `place` holds -1 for all columns, and must be emptied by `_forget_columns` afterwards.
    """
    indptr, indices = items.indptr, items.indices
    n = 0
    for j in range(1, len(entry)):
        if entry[j] >= 0:
            for k in range(indptr[entry[j]], indptr[entry[j] + 1]):
                if place[indices[k]] < 0:
                    place[indices[k]] = 0
                    z_index[n] = indices[k]
                    n += 1
    z_index[:n].sort()
    for k in range(n):
        place[z_index[k]] = k
    return n


@inner
def _forget_columns(place, z_index, n):
    for k in range(n):
        place[z_index[k]] = -1


@inner
def _add_sparse_scores(items, entry, place, v, c, scores):
    """`_add_scores` for a list's rows, where v holds their columns alone; returns how many there are."""
    indptr, indices, values = items.indptr, items.indices, items.values
    n = 0
    for j in range(1, len(entry)):
        if entry[j] >= 0:
            s = v.dtype.type(0)
            for k in range(indptr[entry[j]], indptr[entry[j] + 1]):
                s += values[k] * v[place[indices[k]]]
            scores[n] += c * float(s)
            n += 1
    return n


@inner
def _add_sparse_rows(v, items, entry, place, weights, length):
    """`_add_rows` for the rows of a list."""
    indptr, indices, values = items.indptr, items.indices, items.values
    n = 0
    for j in range(1, len(entry)):
        if entry[j] >= 0:
            c = v.dtype.type(length * weights[n])
            for k in range(indptr[entry[j]], indptr[entry[j] + 1]):
                v[place[indices[k]]] += c * values[k]
            n += 1


@inner
def _descend_sparse(t, norm, items, entry, place, step, scores, weights, change, nz):
    """`descend` for the rows of a CSR matrix, where t and change hold the columns of the list alone."""
    loss, margin = 0.0, 0.0
    first = scores[len(weights) :]
    n_relevant = 0
    for j in range(1, 1 + step.n_relevant):
        n_relevant += entry[j] >= 0
    change[:nz] = 0
    scores[:] = 0.0
    n = _add_sparse_scores(items, entry, place, t, 1.0, scores)
    for j in range(n):
        first[j] = scores[j]
    for taken in range(step.n_steps):
        if taken > 0:
            for j in range(n):
                scores[j] = first[j]
            _add_sparse_scores(items, entry, place, change, norm, scores)
        here = softmax_weights(scores, n_relevant, n, step.temperature, weights)
        if taken == 0:
            loss, margin = here
        _add_sparse_rows(change, items, entry, place, weights, step.eta * step.temperature)
    return loss, margin


@inner
def _same_sparse_rows(items, entry):
    """Whether the items of a list are all the same row."""
    indptr, indices, values = items.indptr, items.indices, items.values
    first, size = -1, 0
    for j in range(1, len(entry)):
        if entry[j] >= 0:
            begin, length = indptr[entry[j]], indptr[entry[j] + 1] - indptr[entry[j]]
            if first < 0:
                first, size = begin, length
            if length != size:
                return False
            for k in range(size):
                if (
                    indices[begin + k] != indices[first + k]
                    or values[begin + k] != values[first + k]
                ):
                    return False
    return True


@driver
def learn_sparse_lists(rule, step, store, left, right, lists, begin, end, scratch, place, clock):
    """Learn from lists begin .. end - 1 in order; return (what happened, first list not learnt).

    Only the columns of a list's own items matter: t = M'q is worked out and changed on them alone. Nothing of
    a list is applied when the driver stops at it.
    """
    size = lists.shape[1] - 1
    scores, weights = np.empty(2 * size), np.empty(size)
    now, change = np.empty_like(scratch.z), scratch.z
    for i in range(begin, end):
        entry = lists[i]
        nx = read_anchor(left, entry[0], scratch)
        nz = _read_columns(right, entry, place, scratch.z_index)
        slots = transform_in_head_tail(store, scratch, nx, nz, now)
        norm = squared_norm(scratch.x, 0, nx)
        loss, margin = _descend_sparse(
            now, norm, right, entry, place, step, scores, weights, change, nz
        )
        _forget_columns(place, scratch.z_index, nz)
        if not (abs(margin) < HOPELESS and _is_moderate(change, nz)):
            return DIVERGED, i
        skipped = norm == 0.0 or _same_sparse_rows(right, entry)
        updated = not skipped and _is_any(change, nz)
        if updated:
            weight = average_weight(step, clock)
            if not store_update(store, rule, scratch, slots, nx, nz, 1.0, 0.0, 0.0, weight):
                return NEEDS_SPACE, i
        count_list(clock, loss, margin, updated, skipped)
    return DONE, end


@driver
def descend_by_gram(scores, gram, n_relevant, length, temperature, n_steps, coefficients):
    """The steps of `descend` where only scores are known: `gram` has the products of the list's items.

    Adds to the coefficients c what moves t by sum_j c_j x_j; `scores` follow t.
    """
    n = len(scores)
    weights = np.empty(n)
    for _ in range(n_steps):
        softmax_weights(scores, n_relevant, n, temperature, weights)
        for j in range(n):
            c = length * weights[j]
            coefficients[j] += c
            for k in range(n):
                scores[k] += c * gram[j, k]
