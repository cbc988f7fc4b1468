"""The one driver of all learners that change a matrix entry by entry, one tuple at a time.

It is compiled for a combination of components (see `dispatch`): an entry rule (`rules`) says what a
stored number means and how a step changes it, a store says where the numbers live (`Dense` here, or
`head_tail` for sparse rows), and readers (`rows`) say where the vectors of a tuple come from. The step
(`steps`) says how far.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dispatch import by_component, driver
from .head_tail import HeadTail, margin_in_head_tail, update_in_head_tail
from .rows import coin_of, read_tuple, ready_for_step, step_norm, unstored_part
from .rules import row_margin, row_update, row_variance
from .steps import (
    CONFIDENCE,
    HOPELESS,
    LARGEST_NORM,
    SHIFT,
    THRESHOLD,
    average_weight,
    count_round,
    current_eta,
    is_active,
    is_asked,
    signed_loss,
    step_length,
)

# What the driver found when it returned.
DONE, NEEDS_SPACE, NEEDS_REBASE, DIVERGED = 0, 1, 2, 3


class Dense(NamedTuple):
    """Full arrays, for dense rows. ``aux`` and ``acc`` have no columns where a rule needs none."""

    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray


def _margin_in_dense(store, rule, scratch, nx, nz, shift):
    u, aux = store.u, store.aux
    x_index, x, z = scratch.x_index, scratch.x, scratch.z[:nz]
    margin = 0.0
    variance = 0.0
    for p in range(nx):
        i = x_index[p]
        x_i = float(x[p])
        d = i if rule.off_diagonal else -1
        margin += x_i * float(row_margin(rule, u, i, aux, i, z, d, shift))
        variance += x_i * x_i * row_variance(rule, aux, i, z)
    return margin, variance, 0


def _update_in_dense(store, rule, scratch, slots, nx, nz, tau, shift, weight):
    u, aux, acc = store.u, store.aux, store.acc
    averaging = acc.shape[1] > 0
    x_index, x, z = scratch.x_index, scratch.x, scratch.z[:nz]
    for p in range(nx):
        i = x_index[p]
        d = i if rule.off_diagonal else -1
        row_update(rule, u, i, aux, i, acc, i, averaging, z, x[p], d, tau, shift, weight)
    return True


#: (store, rule, scratch, nx, nz, shift) -> (x'Mz, variance of x'Mz, where to find its entries)
store_margin = by_component(
    {Dense: _margin_in_dense, HeadTail: margin_in_head_tail}, allocating={HeadTail}
)

#: (store, rule, scratch, slots, nx, nz, tau, shift, weight) -> whether the step could be taken
store_update = by_component(
    {Dense: _update_in_dense, HeadTail: update_in_head_tail}, allocating={HeadTail}
)


@driver
def learn_one_at_a_time(rule, store, step, left, right, tuples, begin, end, scratch, clock):
    """Learn from tuples begin .. end - 1 in order; return (what happened, first tuple not learnt).

    Nothing of a tuple is applied when the driver stops at it, so that Python can make space and call
    again. The result does not depend on where the stream is cut.
    """
    eps = np.finfo(scratch.x.dtype).eps
    largest = np.finfo(scratch.x.dtype).max  # a longer step cannot be taken in this precision
    signs = tuples.sign
    for t in range(begin, end):
        shift = clock[SHIFT]
        nx, nz = read_tuple(tuples, t, left, right, scratch)
        value, variance, slots = store_margin(store, rule, scratch, nx, nz, shift)
        value += unstored_part(tuples, scratch, nx, nz)
        if not abs(value) < HOPELESS:
            return DIVERGED, t
        eta = current_eta(step, clock)
        loss = signed_loss(signs[t], value, clock)
        norm = step_norm(tuples, scratch, nx, nz)
        if not norm < LARGEST_NORM:
            return DIVERGED, t
        updated = False
        asked = is_asked(step, value, coin_of(tuples, t), clock)
        if asked and is_active(step, loss) and norm > 0.0:
            tau = step_length(step, loss, norm + step.bias, variance, eta)
            if not abs(tau) < largest:
                return DIVERGED, t
            if step.rule == CONFIDENCE:
                shift = 1.0 / (variance + step.r)  # no threshold here; see _step_confidence
            updated = tau != 0.0 and abs(tau) >= step.tolerance
            if updated:
                tau *= signs[t]
                weight = average_weight(step, clock)
                ready_for_step(tuples, scratch, nx, nz)
                if not store_update(store, rule, scratch, slots, nx, nz, tau, shift, weight):
                    return NEEDS_SPACE, t
                clock[THRESHOLD] -= tau * step.bias
        count_round(clock, loss, updated, norm == 0.0)
        if step.lam > 0.0:
            clock[SHIFT] += step.lam * eta
            # A stored number must resolve an eighth of one round's threshold.
            if clock[SHIFT] * eps > step.lam * eta / 8.0:
                return NEEDS_REBASE, t + 1
    return DONE, end


@driver
def tuple_values(rule, store, left, right, tuples, begin, end, scratch, shift, out):
    """Write x'Mz of tuples begin .. end - 1; nothing is learnt."""
    for t in range(begin, end):
        nx, nz = read_tuple(tuples, t, left, right, scratch)
        value, _, _ = store_margin(store, rule, scratch, nx, nz, shift)
        out[t] = value + unstored_part(tuples, scratch, nx, nz)
