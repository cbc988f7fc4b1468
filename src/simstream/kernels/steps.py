"""How far to go in a round, and what a stream has counted so far."""

from __future__ import annotations

import math
from typing import NamedTuple

from .dispatch import helper

# Step rules.
CONSTANT, PA, PA_I, PA_II, CONFIDENCE = 0, 1, 2, 3, 4

# A margin as large as this (or NaN) means that learning has diverged, before numbers overflow.
HOPELESS = 1e30

# Fields of the clock: everything the stream has counted so far, exact in float64.
ROUNDS, UPDATES, SKIPPED, MISTAKES, LOSS, SHIFT = 0, 1, 2, 3, 4, 5
CLOCK_SIZE = 6


class Step(NamedTuple):
    """One of the rules above and its parameters; read once per round, so chosen at run time."""

    rule: int
    eta: float = 0.0  # CONSTANT: the step of round t is eta, or eta / sqrt(t) if `decay`
    decay: bool = False
    C: float = 1.0  # PA_I, PA_II
    r: float = 1.0  # CONFIDENCE
    lam: float = 0.0  # strength of the soft threshold, 0 for none
    average_from: int = 0  # first round of the average, 0 for none


@helper
def current_eta(step, clock):
    return step.eta / math.sqrt(clock[ROUNDS] + 1) if step.decay else step.eta


@helper
def step_length(step, loss, squared_norm, variance, eta):
    """Length of the step along x z', given the loss and the squared norm of x z'."""
    if step.rule == CONSTANT:
        return eta
    if step.rule == PA:
        return loss / squared_norm
    if step.rule == PA_I:
        return min(step.C, loss / squared_norm)
    if step.rule == PA_II:
        return loss / (squared_norm + 0.5 / step.C)
    return loss / (variance + step.r)


@helper
def average_weight(step, clock):
    """Sum of the average's weights up to and including this round: what this round's step counts for.

    The average of W_1 .. W_T is W_{T+1} - Q / S_T with Q the sum of S_t (W_{t+1} - W_t): no step has to
    touch more than it changes.
    """
    if step.average_from == 0:
        return 0.0
    return max(0.0, clock[ROUNDS] + 2.0 - step.average_from)


@helper
def count_round(clock, margin, updated, skipped):
    clock[ROUNDS] += 1.0
    clock[UPDATES] += updated
    clock[SKIPPED] += skipped
    clock[LOSS] += max(0.0, 1.0 - margin)
    clock[MISTAKES] += margin <= 0.0
