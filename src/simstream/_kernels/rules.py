"""Entry rules: what the numbers stored for an entry of M mean, and how a step changes them.

Every entry has up to three numbers: ``u`` (its encoded value), ``aux`` (AdaGrad's H, or AROMA's precision
minus one) and ``acc`` (a running sum from which the average of M follows, where one is kept). All three are
zero for an entry never touched, so absent and untouched mean the same.

Lazy soft-thresholding needs no time stamps. With ``shift`` = lam * (eta_1 + ... + eta_t), an entry of
value v is stored as ``u = sign(v) (|v| + shift)``, with the shift at the time of writing; its value at
any later time is ``sign(u) max(0, |u| - shift)``. AdaGrad's scaled threshold works the same way on
``v * (delta + H)``. The threshold of the round that writes the entry is included: it is written with
the shift *before* the round, and read with a later one.

The rule is chosen at run time, once for each row: the loops over a row are written out for each of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .dispatch import inner

# OASIS, OGD: the stored number is the value.
# SORS: l1-regularised steps.
# AdaSORS: AdaGrad steps and thresholds; ``aux`` is H, the root of the summed squared gradients.
# AROMA with a diagonal covariance: a variance for each entry; ``aux`` is the precision minus one.
PLAIN, THRESHOLDED, ADAPTIVE, CONFIDENT = 0, 1, 2, 3

_NAMES = ("Plain", "SoftThreshold", "AdaptiveThreshold", "Confidence")


class Rule(NamedTuple):
    """One of the kinds above and its parameters."""

    kind: int
    off_diagonal: bool = False  # THRESHOLDED, ADAPTIVE: the diagonal is not thresholded
    delta: float = 0.0  # ADAPTIVE
    inverse_r: float = 0.0  # CONFIDENT
    drop: bool = False  # CONFIDENT: diagonal of the full update, not the exact diagonal minimiser
    factored: bool = False  # CONFIDENT: the engine keeps two factors, and no numbers for each entry

    def to_header(self) -> dict[str, Any]:
        """The rule as model files hold it."""
        parameter = self.delta if self.kind == ADAPTIVE else self.inverse_r
        fields = [self.off_diagonal, parameter, self.drop, self.factored]
        return {"name": _NAMES[self.kind], "fields": fields}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Rule:
        """The rule that a model file holds."""
        kind = _NAMES.index(header["name"])
        off_diagonal, parameter, *flags = header[
            "fields"
        ]  # kinds other than CONFIDENT may lack flags
        drop, factored = flags or (False, False)
        delta, inverse_r = (parameter, 0.0) if kind == ADAPTIVE else (0.0, parameter)
        return cls(
            kind, bool(off_diagonal), float(delta), float(inverse_r), bool(drop), bool(factored)
        )


@inner
def shrink(u, cut):
    """Decode a stored number: the soft threshold."""
    return math.copysign(max(abs(u) - cut, cut - cut), u)


@inner
def _lengthened(w, cut):
    """Encode the value w: the inverse of `shrink`, with zero for zero."""
    return math.copysign(abs(w) + cut, w) if w != 0 else w


@inner
def _adaptive_step(u, h, g, tau, cut, delta):
    """u and H after a step along the gradient entry g."""
    value = shrink(u, cut) / (delta + h)
    h = math.sqrt(h * h + g * g)
    return _lengthened(value * (delta + h) + tau * g, cut), h


@inner
def is_dead(rule, values, n, cut):
    """Whether the entry values[n] may be forgotten without changing anything ever after."""
    if rule.kind == PLAIN:
        return values[n, 0] == 0 and values[n, -1] == 0
    if rule.kind == THRESHOLDED:
        return abs(values[n, 0]) <= cut
    if rule.kind == ADAPTIVE:
        return values[n, 1] == 0 and abs(values[n, 0]) <= cut
    return values[n, 1] == 0 and values[n, 0] == 0


# -- one row of M against z: u[i, :n], aux[j, :n], acc[m, :n] ----------------------------------------
#
# aux and acc have no columns where nothing is kept in them. Place d is the diagonal where the rule treats it
# apart, else -1.


@inner
def row_margin(rule, u, i, aux, j, z, d, shift):
    """Sum of value * z."""
    cut = z.dtype.type(shift)
    s = z.dtype.type(0)
    if rule.kind == THRESHOLDED:
        for k in range(len(z)):
            s += shrink(u[i, k], cut) * z[k]
        if d >= 0:
            s += (u[i, d] - shrink(u[i, d], cut)) * z[d]
    elif rule.kind == ADAPTIVE:
        delta = z.dtype.type(rule.delta)
        for k in range(len(z)):
            s += shrink(u[i, k], cut) / (delta + aux[j, k]) * z[k]
        if d >= 0:
            scale = delta + aux[j, d]
            s += (u[i, d] / scale - shrink(u[i, d], cut) / scale) * z[d]
    else:
        for k in range(len(z)):
            s += u[i, k] * z[k]
    return s


@inner
def row_variance(aux, j, z):
    """CONFIDENT: sum of variance * z^2, in the precision of z."""
    v = z.dtype.type(0)
    one = z.dtype.type(1)
    for k in range(len(z)):
        v += z[k] * z[k] / (one + aux[j, k])
    return v


@inner
def row_update(rule, u, i, aux, j, acc, m, averaging, z, x, d, tau, beta, shift, weight):
    """Step of length tau along x z' in one row.

    AROMA's covariance loses beta (Sigma x z)(Sigma x z)'. The average counts the change `weight` times; it
    comes first, from the same numbers, so that each loop stays a plain one.
    """
    cut = z.dtype.type(shift)
    length = z.dtype.type(tau)
    w = z.dtype.type(weight)
    if rule.kind == PLAIN:
        if averaging:
            for k in range(len(z)):
                acc[m, k] += w * (length * (x * z[k]))
        for k in range(len(z)):
            u[i, k] += length * (x * z[k])
    elif rule.kind == THRESHOLDED:
        u_d = u[i, max(d, 0)]
        for k in range(len(z)):
            u[i, k] = _lengthened(shrink(u[i, k], cut) + length * (x * z[k]), cut)
        if d >= 0:
            u[i, d] = u_d + length * (x * z[d])
    elif rule.kind == ADAPTIVE:
        delta = z.dtype.type(rule.delta)
        u_d, h_d = u[i, max(d, 0)], aux[j, max(d, 0)]
        for k in range(len(z)):
            u[i, k], aux[j, k] = _adaptive_step(u[i, k], aux[j, k], x * z[k], length, cut, delta)
        if d >= 0:
            u[i, d], aux[j, d] = _adaptive_step(u_d, h_d, x * z[d], length, cut - cut, delta)
    else:
        one = 1.0  # the precision is worked out in float64
        if averaging:
            for k in range(len(z)):
                acc[m, k] += w * (length * (x * z[k]) / (one + aux[j, k]))
        lost = z.dtype.type(beta)
        inverse_r = z.dtype.type(rule.inverse_r)
        if rule.drop:
            for k in range(len(z)):
                g = x * z[k]
                precision = one + aux[j, k]
                u[i, k] += length * g / precision
                aux[j, k] = precision * precision / (precision - lost * g * g) - one
        else:
            for k in range(len(z)):
                g = x * z[k]
                u[i, k] += length * g / (one + aux[j, k])
                aux[j, k] += g * g * inverse_r
