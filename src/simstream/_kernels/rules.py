"""Entry rules: what the numbers stored for an entry of M mean, and how a step changes them.

Every entry has up to three numbers: ``u`` (its encoded value), ``aux`` (AdaGrad's H, or AROMA's
precision minus one) and ``acc`` (the running sum that makes averages free, used when averaging).
All three are zero for an entry never touched, so absent and untouched mean the same.

Lazy soft-thresholding needs no time stamps. With ``shift`` = lam * (eta_1 + ... + eta_t), an entry of
value v is stored as ``u = sign(v) (|v| + shift)``, with the shift at the time of writing; its value at
any later time is ``sign(u) max(0, |u| - shift)``. AdaGrad's scaled threshold works the same way on
``v * (delta + H)``. The threshold of the round that writes the entry is included: it is written with
the shift *before* the round, and read with a later one.

A rule is four small functions of one entry; the loops over a row are written once, below.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .dispatch import by_component, inner


class Plain(NamedTuple):
    """The stored number is the value: OASIS, OGD."""

    off_diagonal: bool = False  # of no consequence here; all rules have the same first two fields
    parameter: float = 0.0


class SoftThreshold(NamedTuple):
    """l1-regularised steps: SORS. With `off_diagonal` the diagonal is not thresholded."""

    off_diagonal: bool
    parameter: float = 0.0


class AdaptiveThreshold(NamedTuple):
    """AdaGrad steps and thresholds: AdaSORS. ``aux`` is H, the root of the summed squared gradients."""

    off_diagonal: bool
    parameter: float  # delta


class Confidence(NamedTuple):
    """A variance per entry: AROMA with diagonal covariance. ``aux`` is the precision minus one."""

    off_diagonal: bool
    parameter: float  # 1 / r
    drop: bool  # keep the diagonal of the full update instead of the exact diagonal minimiser
    factored: bool = False  # the engine keeps two factors instead of numbers per entry


#: Name in model files -> rule.
RULES = {rule.__name__: rule for rule in (Plain, SoftThreshold, AdaptiveThreshold, Confidence)}


@inner
def shrink(u, cut):
    return math.copysign(max(abs(u) - cut, cut - cut), u)


@inner
def _lengthened(w, cut):
    """Encode the value w: the inverse of `shrink`, with zero for zero."""
    return math.copysign(abs(w) + cut, w) if w != 0 else w


# -- value of an entry: (rule, u, aux, cut, parameter) -------------------------------------------


def _value_plain(rule, u, aux, cut, parameter):
    return u


def _value_soft(rule, u, aux, cut, parameter):
    return shrink(u, cut)


def _value_adaptive(rule, u, aux, cut, parameter):
    return shrink(u, cut) / (parameter + aux)


_value = by_component(
    {
        Plain: _value_plain,
        SoftThreshold: _value_soft,
        AdaptiveThreshold: _value_adaptive,
        Confidence: _value_plain,
    }
)


# -- a step along g = x_i z_j: (rule, u, aux, g, tau, cut, parameter) -> (u, aux, change of value) --


def _step_plain(rule, u, aux, g, tau, cut, parameter):
    return u + tau * g, aux, tau * g


def _step_soft(rule, u, aux, g, tau, cut, parameter):
    return _lengthened(shrink(u, cut) + tau * g, cut), aux, g


def _step_adaptive(rule, u, aux, g, tau, cut, parameter):
    value = shrink(u, cut) / (parameter + aux)
    aux = math.sqrt(aux * aux + g * g)
    return _lengthened(value * (parameter + aux) + tau * g, cut), aux, g


def _step_confidence(rule, u, aux, g, tau, cut, parameter):
    one = g * 0 + 1
    precision = one + aux
    change = tau * g / precision
    if rule.drop:
        # Sigma -= beta (Sigma g)^2; this rule has no threshold, and `cut` carries beta
        aux = precision * precision / (precision - cut * g * g) - one
    else:
        aux += g * g * parameter
    return u + change, aux, change


_step = by_component(
    {
        Plain: _step_plain,
        SoftThreshold: _step_soft,
        AdaptiveThreshold: _step_adaptive,
        Confidence: _step_confidence,
    }
)


# -- may an entry be forgotten without changing anything ever after: (rule, values, n, cut) ----------


def _dead_plain(rule, values, n, cut):
    return values[n, 0] == 0 and values[n, -1] == 0


def _dead_soft(rule, values, n, cut):
    return abs(values[n, 0]) <= cut


def _dead_adaptive(rule, values, n, cut):
    return values[n, 1] == 0 and abs(values[n, 0]) <= cut


def _dead_confidence(rule, values, n, cut):
    return values[n, 1] == 0 and values[n, 0] == 0


is_dead = by_component(
    {
        Plain: _dead_plain,
        SoftThreshold: _dead_soft,
        AdaptiveThreshold: _dead_adaptive,
        Confidence: _dead_confidence,
    }
)


# -- aux is an array without columns where a rule has no use for it ----------------------------------


def _no_aux(rule, aux, i, k):
    return aux.dtype.type(0)


def _aux(rule, aux, i, k):
    return aux[i, k]


_read_aux = by_component(
    {Plain: _no_aux, SoftThreshold: _no_aux, AdaptiveThreshold: _aux, Confidence: _aux}
)


def _drop_aux(rule, aux, i, k, value):
    pass


def _set_aux(rule, aux, i, k, value):
    aux[i, k] = value


_write_aux = by_component(
    {Plain: _drop_aux, SoftThreshold: _drop_aux, AdaptiveThreshold: _set_aux, Confidence: _set_aux}
)


# -- one row of M against z: u[i, :n], aux[j, :n], acc[m, :n] --------------------------------------------
# Whole arrays and row numbers instead of slices: a slice costs two atomic reference counts.


@inner
def row_margin(rule, u, i, aux, j, z, d, shift):
    """Sum of value * z; place d is the diagonal where the rule treats it apart, else -1."""
    cut = z.dtype.type(shift)
    parameter = z.dtype.type(rule.parameter)
    s = z.dtype.type(0)
    for k in range(len(z)):
        s += _value(rule, u[i, k], _read_aux(rule, aux, j, k), cut, parameter) * z[k]
    if d >= 0:
        a = _read_aux(rule, aux, j, d)
        uncut = _value(rule, u[i, d], a, cut - cut, parameter)
        s += (uncut - _value(rule, u[i, d], a, cut, parameter)) * z[d]
    return s


def _no_variance(rule, aux, j, z):
    return 0.0


def _variance(rule, aux, j, z):
    v = z.dtype.type(0)
    one = z.dtype.type(1)
    for k in range(len(z)):
        v += z[k] * z[k] / (one + aux[j, k])
    return float(v)


#: (rule, aux, j, z) -> sum of variance * z^2
row_variance = by_component(
    {
        Plain: _no_variance,
        SoftThreshold: _no_variance,
        AdaptiveThreshold: _no_variance,
        Confidence: _variance,
    }
)


@inner
def row_update(rule, u, i, aux, j, acc, m, averaging, z, x, d, tau, shift, weight):
    """Step along x z' in one row; the average counts the change `weight` times."""
    cut = z.dtype.type(shift)
    parameter = z.dtype.type(rule.parameter)
    length = z.dtype.type(tau)
    place = max(d, 0)
    u_d, aux_d = u[i, place], _read_aux(rule, aux, j, place)
    if averaging:  # first, from the same numbers: the loop below stays a plain one
        w = z.dtype.type(weight)
        for k in range(len(z)):
            old = _read_aux(rule, aux, j, k)
            change = _step(rule, u[i, k], old, x * z[k], length, cut, parameter)[2]
            acc[m, k] += w * change
    for k in range(len(z)):
        old = _read_aux(rule, aux, j, k)
        new, a, change = _step(rule, u[i, k], old, x * z[k], length, cut, parameter)
        u[i, k] = new
        _write_aux(rule, aux, j, k, a)
    if d >= 0:
        new, a, change = _step(rule, u_d, aux_d, x * z[d], length, cut - cut, parameter)
        u[i, d] = new
        _write_aux(rule, aux, j, d, a)
