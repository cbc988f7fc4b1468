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
from typing import NamedTuple

import numpy as np

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
    average_from: int = 0  # first round of the average, 0 for none


@inner
def _scores_into(rows, t, scores, first):
    """scores[first + j] = rows[j]'t."""
    for j in range(len(rows)):
        row = rows[j]
        s = t.dtype.type(0)
        for k in range(len(t)):
            s += row[k] * t[k]
        scores[first + j] = float(s)


@inner
def _add_rows(t, rows, weights, first, length):
    """t += length * sum of weights[first + j] rows[j]."""
    for j in range(len(rows)):
        row = rows[j]
        c = t.dtype.type(length * weights[first + j])
        for k in range(len(t)):
            t[k] += c * row[k]


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
def descend(t, length, relevant, negatives, temperature, n_steps, scores, weights):
    """Steps t += length z on one list; returns its loss and margin before the first of them."""
    n_relevant = len(relevant)
    n = n_relevant + len(negatives)
    loss, margin = 0.0, 0.0
    for step in range(n_steps):
        _scores_into(relevant, t, scores, 0)
        _scores_into(negatives, t, scores, n_relevant)
        here = softmax_weights(scores, n_relevant, n, temperature, weights)
        if step == 0:
            loss, margin = here
        _add_rows(t, relevant, weights, 0, length)
        _add_rows(t, negatives, weights, n_relevant, length)
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
    scores, weights = np.empty(n), np.empty(n)
    length = eta * temperature * squared_norm
    return descend(t, length, relevant_rows, negative_rows, temperature, n_steps, scores, weights)


# -- lists one after the other ---------------------------------------------------------------------


@inner
def _gather(items, entry, rows):
    """Copy the relevant item of a list and its negatives to rows; return how many.

    A negative of -1 is no item: shorter lists are padded.
    """
    n = 0
    for j in range(1, len(entry)):
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

    Row i of t holds M'q_i by the block's first matrix, row i of `changes` gets (t_new - t_old) / ||q_i||^2,
    `weighted[i]` how often the average counts it.
    """
    n, width = t.shape
    size = lists.shape[1] - 1
    rows = np.empty((size, width), t.dtype)
    scores, weights = np.empty(size), np.empty(size)
    old = np.empty(width, t.dtype)
    largest = np.finfo(t.dtype).max
    for i in range(n):
        now, change = t[i], changes[i]
        for j in range(i):
            c = gram[j, i]
            if c != 0 and weighted[j] >= 0.0:
                earlier = changes[j]
                for k in range(width):
                    now[k] += c * earlier[k]
        found = _gather(items, lists[i], rows)
        norm = float(gram[i, i])
        length = step.eta * step.temperature * norm
        skipped = norm == 0.0 or _all_equal(rows, found)
        for k in range(width):
            old[k] = now[k]
        n_steps = 1 if skipped else step.n_steps
        loss, margin = descend(
            now, length, rows[:1], rows[1:found], step.temperature, n_steps, scores, weights
        )
        if not (abs(margin) < HOPELESS and length < largest):
            return i
        updated = False
        if not skipped:
            inverse = t.dtype.type(1.0 / norm)
            for k in range(width):
                change[k] = (now[k] - old[k]) * inverse
                if not abs(change[k]) < HOPELESS:
                    return i
                updated |= change[k] != 0
        weighted[i] = average_weight(step, clock) if updated else -1.0
        count_list(clock, loss, margin, updated, skipped)
    return n


def learn_list_block(ops, step, m, acc, queries, items, lists, clock):
    """Learn from one block of lists (query, relevant item, negatives); return how many were learnt.

    ``queries`` are the dense rows of the block's queries, ``acc`` is the average's accumulator, or has no
    columns.
    """
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
def _descend_sparse(t, length, items, entry, place, temperature, n_steps, scores, weights):
    """`descend` for the rows of a CSR matrix, where t holds the columns of the list alone."""
    indptr, indices, values = items.indptr, items.indices, items.values
    loss, margin = 0.0, 0.0
    for step in range(n_steps):
        n = 0
        for j in range(1, len(entry)):
            if entry[j] >= 0:
                s = t.dtype.type(0)
                for k in range(indptr[entry[j]], indptr[entry[j] + 1]):
                    s += values[k] * t[place[indices[k]]]
                scores[n] = float(s)
                n += 1
        here = softmax_weights(scores, 1, n, temperature, weights)
        if step == 0:
            loss, margin = here
        n = 0
        for j in range(1, len(entry)):
            if entry[j] >= 0:
                c = t.dtype.type(length * weights[n])
                for k in range(indptr[entry[j]], indptr[entry[j] + 1]):
                    t[place[indices[k]]] += c * values[k]
                n += 1
    return loss, margin


@inner
def _same_sparse_rows(items, entry):
    """Whether the items of a list are all the same row."""
    indptr, indices, values = items.indptr, items.indices, items.values
    first, size = indptr[entry[1]], indptr[entry[1] + 1] - indptr[entry[1]]
    for j in range(2, len(entry)):
        if entry[j] >= 0:
            other = indptr[entry[j]]
            if indptr[entry[j] + 1] - other != size:
                return False
            for k in range(size):
                if (
                    indices[first + k] != indices[other + k]
                    or values[first + k] != values[other + k]
                ):
                    return False
    return True


@driver
def learn_sparse_lists(rule, step, store, left, right, lists, begin, end, scratch, place, clock):
    """Learn from lists begin .. end - 1 in order; return (what happened, first list not learnt).

    Only the columns of a list's own items matter: t = M'q is worked out and changed on them alone. Nothing of
    a list is applied when the driver stops at it.
    """
    scores, weights = np.empty(lists.shape[1] - 1), np.empty(lists.shape[1] - 1)
    old, now = np.empty_like(scratch.z), np.empty_like(scratch.z)
    for i in range(begin, end):
        entry = lists[i]
        nx = read_anchor(left, entry[0], scratch)
        nz = _read_columns(right, entry, place, scratch.z_index)
        slots = transform_in_head_tail(store, scratch, nx, nz, now)
        norm = squared_norm(scratch.x, 0, nx)
        length = step.eta * step.temperature * norm
        skipped = norm == 0.0 or _same_sparse_rows(right, entry)
        old[:nz] = now[:nz]
        n_steps = 1 if skipped else step.n_steps
        loss, margin = _descend_sparse(
            now, length, right, entry, place, step.temperature, n_steps, scores, weights
        )
        _forget_columns(place, scratch.z_index, nz)
        if not (abs(margin) < HOPELESS and length < scratch.largest):
            return DIVERGED, i
        updated = False
        if not skipped:
            inverse = now.dtype.type(1.0 / norm)
            for k in range(nz):
                scratch.z[k] = (now[k] - old[k]) * inverse
                if not abs(scratch.z[k]) < HOPELESS:
                    return DIVERGED, i
                updated |= scratch.z[k] != 0
        if updated:
            weight = average_weight(step, clock)
            if not store_update(store, rule, scratch, slots, nx, nz, 1.0, 0.0, 0.0, weight):
                return NEEDS_SPACE, i
        count_list(clock, loss, margin, updated, skipped)
    return DONE, end
