"""Step lengths, and the clock: what a stream has counted so far."""

from __future__ import annotations

import math
from typing import NamedTuple

from .dispatch import inner

# Step rules.
CONSTANT, PA, PA_I, PA_II, CONFIDENCE, PALS, ON_MISTAKE = 0, 1, 2, 3, 4, 5, 6

# A margin as large as this (or NaN) means that learning has diverged, before numbers overflow.
HOPELESS = 1e30

# So has a step whose squared norm is this large: it would overflow.
LARGEST_NORM = 1e300

# Fields of the clock: everything the stream has counted so far, exact in float64, and two numbers that
# belong to the model: the accumulated soft threshold, and the threshold between similar and dissimilar pairs.
ROUNDS, UPDATES, SKIPPED, MISTAKES, LOSS, SHIFT, THRESHOLD, VIOLATIONS = 0, 1, 2, 3, 4, 5, 6, 7
CONSIDERED, ASKED = 8, 9  # by learners that ask for some answers only
CLOCK_SIZE = 10


# Which tuples to ask an answer for: all, those with a small margin, a random share.
ASK_ALL, ASK_ACTIVE, ASK_RANDOM = 0, 1, 2


class Step(NamedTuple):
    """One of the rules above and its parameters; read once per round, so chosen at run time."""

    rule: int
    eta: float = (
        0.0  # CONSTANT, ON_MISTAKE: the step of round t is eta, or eta / sqrt(t) if `decay`
    )
    decay: bool = False
    C: float = 1.0  # PA_I, PA_II, PALS
    r: float = 1.0  # CONFIDENCE
    lam: float = 0.0  # strength of the soft threshold, 0 for none
    average_from: int = 0  # first round of the average, 0 for none
    bias: float = 0.0  # 1 where the threshold is learnt too: it is one more coordinate of the step
    margin: float = 0.0  # ON_MISTAKE: how far beyond the threshold a distance must be
    ask: int = ASK_ALL
    ask_parameter: float = 1.0  # delta of ASK_ACTIVE, the share of ASK_RANDOM
    tolerance: float = 0.0  # steps shorter than this are not taken


@inner
def current_eta(step, clock):
    return step.eta / math.sqrt(clock[ROUNDS] + 1) if step.decay else step.eta


@inner
def is_asked(step, value, coin):
    """Whether to ask for the answer of a tuple, given its x'Mz and a uniform number of its own."""
    if step.ask == ASK_ALL:
        return True
    if step.ask == ASK_ACTIVE:
        return coin * (step.ask_parameter + abs(value)) < step.ask_parameter
    return coin < step.ask_parameter


@inner
def count_asked(clock, step, asked):
    """Count a tuple that was considered, where not everything is asked for."""
    if step.ask != ASK_ALL:
        clock[CONSIDERED] += 1.0
        clock[ASKED] += asked


@inner
def signed_loss(sign, value, clock):
    """1 - margin of a tuple whose x'Mz is ``value`` and belongs above (sign 1) or below the threshold."""
    return 1.0 - sign * (value - clock[THRESHOLD])


@inner
def is_active(step, loss):
    """Whether a loss calls for a step: PALS wants equality, RDML is content with the right side."""
    if step.rule == ON_MISTAKE:
        return loss >= 1.0 - step.margin
    return loss > 0.0 or step.rule == PALS


@inner
def step_length(step, loss, squared_norm, variance, eta):
    """Length of the step along x z', given the loss and the squared norm of the step's direction."""
    if step.rule == CONSTANT or step.rule == ON_MISTAKE:
        return eta
    if step.rule == PA:
        return loss / squared_norm
    if step.rule == PA_I:
        return min(step.C, loss / squared_norm)
    if step.rule == PA_II or step.rule == PALS:
        return loss / (squared_norm + 0.5 / step.C)
    return loss / (variance + step.r)


@inner
def pair_step(step, loss, squared_norm, sign):
    """Step along v v' of a pair with this loss and ||v||^2: 0 for none, NaN where it overflows."""
    if not (is_active(step, loss) and squared_norm > 0.0):
        return 0.0
    c = step_length(step, loss, squared_norm * squared_norm + step.bias, 0.0, step.eta)
    if not abs(c) * squared_norm < HOPELESS:
        return math.nan
    return sign * c if abs(c) >= step.tolerance else 0.0


@inner
def average_weight(step, clock):
    """Sum of the average's weights up to and including this round: what this round's step counts for.

    The average of W_1 .. W_T is W_{T+1} - Q / S_T with Q the sum of S_t (W_{t+1} - W_t): no step has to
    touch more than it changes.
    """
    if step.average_from == 0:
        return 0.0
    return max(0.0, clock[ROUNDS] + 2.0 - step.average_from)


@inner
def count_round(clock, loss, updated, skipped):
    """Count a round of the hinge loss, given 1 - margin: of one or more it is on the wrong side."""
    clock[ROUNDS] += 1.0
    clock[UPDATES] += updated
    clock[SKIPPED] += skipped
    clock[MISTAKES] += loss >= 1.0
    if loss > 0.0:
        clock[LOSS] += loss
        clock[VIOLATIONS] += 1.0
