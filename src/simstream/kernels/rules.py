"""Entry rules: what the numbers stored for an entry of M mean, and how a step changes them.

Every entry has up to three numbers: ``u`` (its encoded value), ``aux`` (AdaGrad's H, or AROMA's
precision minus one) and ``acc`` (the running sum that makes averages free, used when averaging).
All three are zero for an entry never touched, so absent and untouched mean the same.

Lazy soft-thresholding needs no time stamps. With ``shift`` = lam * (eta_1 + ... + eta_t), an entry of
value v is stored as ``u = sign(v) (|v| + shift)``, with the shift at the time of writing; its value at
any later time is ``sign(u) max(0, |u| - shift)``. AdaGrad's scaled threshold works the same way on
``v * (delta + H)``. The threshold of the round that writes the entry is included: it is written with
the shift *before* the round, and read with a later one.

The functions work on a span of one row: contiguous arrays u, aux, acc at the columns of z.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .dispatch import by_component, helper


class Plain(NamedTuple):
    """The stored number is the value: OASIS, OGD."""

    off_diagonal: bool  # unused; keeps the rules' fields alike


class SoftThreshold(NamedTuple):
    """l1-regularised steps: SORS. With `off_diagonal` the diagonal is not thresholded."""

    off_diagonal: bool


class AdaptiveThreshold(NamedTuple):
    """AdaGrad steps and thresholds: AdaSORS. ``aux`` is H, the root of the summed squared gradients."""

    off_diagonal: bool
    delta: float


class Confidence(NamedTuple):
    """A variance per entry: AROMA with diagonal covariance. ``aux`` is the precision minus one."""

    off_diagonal: bool
    r: float
    drop: bool  # keep the diagonal of the full update instead of the exact diagonal minimiser


@helper
def shrink(u, cut):
    return math.copysign(max(abs(u) - cut, cut - cut), u)


def _margin_plain(rule, u, aux, z, shift):
    s = z.dtype.type(0)
    for k in range(len(z)):
        s += u[k] * z[k]
    return s, z.dtype.type(0)


def _margin_soft(rule, u, aux, z, shift):
    cut = z.dtype.type(shift)
    zero = z.dtype.type(0)
    s = zero
    for k in range(len(z)):
        s += shrink(u[k], cut) * z[k]
    return s, zero


def _margin_adaptive(rule, u, aux, z, shift):
    cut = z.dtype.type(shift)
    delta = z.dtype.type(rule.delta)
    zero = z.dtype.type(0)
    s = zero
    for k in range(len(z)):
        s += shrink(u[k], cut) / (delta + aux[k]) * z[k]
    return s, zero


def _margin_confidence(rule, u, aux, z, shift):
    one = z.dtype.type(1)
    s = z.dtype.type(0)
    v = z.dtype.type(0)
    for k in range(len(z)):
        s += u[k] * z[k]
        v += z[k] * z[k] / (one + aux[k])
    return s, v


#: (rule, u, aux, z, shift) -> (sum of value * z, sum of variance * z^2) over a span of one row
span_margin = by_component(
    {
        Plain: _margin_plain,
        SoftThreshold: _margin_soft,
        AdaptiveThreshold: _margin_adaptive,
        Confidence: _margin_confidence,
    }
)


def _update_plain(rule, u, aux, acc, z, x, tau, shift, weight):
    c = z.dtype.type(tau) * x
    for k in range(len(z)):
        u[k] += c * z[k]
    if len(acc) > 0:
        c = z.dtype.type(tau * weight) * x
        for k in range(len(z)):
            acc[k] += c * z[k]


def _update_soft(rule, u, aux, acc, z, x, tau, shift, weight):
    cut = z.dtype.type(shift)
    zero = z.dtype.type(0)
    c = z.dtype.type(tau) * x
    for k in range(len(z)):
        w = shrink(u[k], cut) + c * z[k]
        u[k] = math.copysign(abs(w) + cut, w) if w != zero else zero


def _update_adaptive(rule, u, aux, acc, z, x, tau, shift, weight):
    cut = z.dtype.type(shift)
    eta = z.dtype.type(tau)
    delta = z.dtype.type(rule.delta)
    zero = z.dtype.type(0)
    for k in range(len(z)):
        g = x * z[k]
        v = shrink(u[k], cut) / (delta + aux[k])
        aux[k] = math.sqrt(aux[k] * aux[k] + g * g)
        scale = delta + aux[k]
        w = v * scale + eta * g
        u[k] = math.copysign(abs(w) + cut, w) if w != zero else zero


def _update_confidence(rule, u, aux, acc, z, x, tau, shift, weight):
    one = z.dtype.type(1)
    alpha = z.dtype.type(tau)
    inverse_r = z.dtype.type(1.0 / rule.r)
    averaging = len(acc) > 0
    for k in range(len(z)):
        g = x * z[k]
        precision = one + aux[k]
        step = alpha * g / precision
        u[k] += step
        if averaging:
            acc[k] += z.dtype.type(weight) * step
        if rule.drop:
            # Sigma -= beta (Sigma g)^2; here `shift`, unused by this rule, carries beta
            beta = z.dtype.type(shift)
            aux[k] = precision * precision / (precision - beta * g * g) - one
        else:
            aux[k] += g * g * inverse_r


#: (rule, u, aux, acc, z, x, tau, shift, weight): change a span of one row in place
span_update = by_component(
    {
        Plain: _update_plain,
        SoftThreshold: _update_soft,
        AdaptiveThreshold: _update_adaptive,
        Confidence: _update_confidence,
    }
)


def _dead_plain(rule, values, n, cut):
    return values[n, 0] == 0 and values[n, -1] == 0


def _dead_soft(rule, values, n, cut):
    return abs(values[n, 0]) <= cut


def _dead_adaptive(rule, values, n, cut):
    return values[n, 1] == 0 and abs(values[n, 0]) <= cut


def _dead_confidence(rule, values, n, cut):
    return values[n, 1] == 0 and values[n, 0] == 0


#: (rule, values, n, cut) -> may the entry be forgotten without changing anything ever after?
is_dead = by_component(
    {
        Plain: _dead_plain,
        SoftThreshold: _dead_soft,
        AdaptiveThreshold: _dead_adaptive,
        Confidence: _dead_confidence,
    }
)


@helper
def row_margin(rule, u, aux, z, d, shift):
    """Sums over one row; place d is the diagonal where the rule treats it apart, else -1."""
    if d < 0:
        return span_margin(rule, u, aux, z, shift)
    e = d + 1
    s0, v0 = span_margin(rule, u[:d], aux[:d], z[:d], shift)
    s1, v1 = span_margin(rule, u[d:e], aux[d:e], z[d:e], 0.0)
    s2, v2 = span_margin(rule, u[e:], aux[e:], z[e:], shift)
    return s0 + s1 + s2, v0 + v1 + v2


@helper
def row_update(rule, u, aux, acc, z, x, d, tau, shift, weight):
    if d < 0:
        span_update(rule, u, aux, acc, z, x, tau, shift, weight)
    else:
        e = d + 1
        span_update(rule, u[:d], aux[:d], acc[:d], z[:d], x, tau, shift, weight)
        span_update(rule, u[d:e], aux[d:e], acc[d:e], z[d:e], x, tau, 0.0, weight)
        span_update(rule, u[e:], aux[e:], acc[e:], z[e:], x, tau, shift, weight)
