"""Steps of the listwise softmax loss: relevant items of a query against a list of negatives.

With t = M'q, the loss is the mean over the relevant items r of -log(e_r / (e_r + sum_n e_n)), where
e_j = exp(t'x_j / temperature). Its gradient with respect to M is -q z' / temperature: every step moves M
along the query alone, so steps can be taken in t, which costs the rows of the list and no more.
"""

from __future__ import annotations

import math

import numpy as np

from .dispatch import driver, inner


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
