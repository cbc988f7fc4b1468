"""Loreta: W = A B' of a fixed rank; a step follows the gradient within the matrices of that rank.

A step needs the pseudo-inverses of A and B times a vector. They come from the inverses of A'A and B'B, which
every step updates. An update loses as many digits as the matrix is badly conditioned, so that is looked at
before every step: near a singular factor the driver asks for both products instead of working them out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .blocked import product_into
from .dispatch import driver, helper
from .entrywise import DIVERGED, DONE, NEEDS_REBASE
from .steps import HOPELESS, LARGEST_NORM, UPDATES, count_round

#: Steps after which the inverses are recomputed: errors of their updates add up.
FRESH_EVERY = 1000

#: Largest condition of A'A and B'B with which inverses are updated: both traces multiplied, over k^2.
#: It is 1 at the start and seldom above 5 where k is well below d.
WORST_CONDITION = 30.0

#: Why the driver returned, besides the reasons of `entrywise`: the next step needs exact products.
NEEDS_PRODUCTS = 4


class Factors(NamedTuple):
    """A and B with the inverses of A'A and B'B."""

    a: np.ndarray  # (d, k)
    b: np.ndarray  # (d', k)
    inverse_a: np.ndarray  # (k, k)
    inverse_b: np.ndarray


@helper
def _coordinates(factor, v, out):
    """out = factor' v."""
    for j in range(len(out)):
        out[j] = 0.0
    for i in range(len(v)):
        if v[i] != 0:
            v_i = float(v[i])
            for j in range(len(out)):
                out[j] += v_i * factor[i, j]


@helper
def _change_factor(factor, own, other, v, scale, on_own, on_v, products):
    """factor += c other' with c = on_own (factor own) + on_v scale v; returns c'c and factor'c (before)."""
    k = len(own)
    squared = 0.0
    for j in range(k):
        products[j] = 0.0
    for i in range(len(v)):
        along = 0.0
        for j in range(k):
            along += factor[i, j] * own[j]
        c = on_own * along + on_v * scale * float(v[i])
        squared += c * c
        for j in range(k):
            old = factor[i, j]
            products[j] += c * old
            factor[i, j] = old + c * other[j]
    return squared


@helper
def _change_inverse(inverse, w, d, cc, first, second):
    """The inverse of G + w d' + d (w + cc d)' from that of G (Woodbury, rank two); symmetric again.

    G gains U V' with U = (w, d) and V = (d, w + cc d).
    """
    k = len(w)
    product_into(inverse, w, first)
    product_into(inverse, d, second)
    ww, wd, dd = 0.0, 0.0, 0.0
    for j in range(k):
        ww += w[j] * first[j]
        wd += w[j] * second[j]
        dd += d[j] * second[j]
    # I + V' G^-1 U, and its inverse times V' G^-1
    c00, c01 = 1.0 + wd, dd
    c10, c11 = ww + cc * wd, 1.0 + wd + cc * dd
    determinant = c00 * c11 - c01 * c10
    for i in range(k):
        for j in range(i + 1):
            d_j, v_j = second[j], first[j] + cc * second[j]
            change = first[i] * (c11 * d_j - c01 * v_j) + second[i] * (c00 * v_j - c10 * d_j)
            inverse[i, j] -= change / determinant
            inverse[j, i] = inverse[i, j]


@helper
def _is_sound(size, inverse):
    """Whether the condition of factor' factor, of this trace, allows to update its inverse."""
    trace = 0.0
    for j in range(len(inverse)):
        trace += inverse[j, j]
    return 0.0 < size * trace < WORST_CONDITION * len(inverse) ** 2


@helper
def _growth(products, other, squared):
    """How much the squared norm of a factor grows when c other' is added, products = factor'c."""
    along, length = 0.0, 0.0
    for j in range(len(other)):
        along += products[j] * other[j]
        length += other[j] * other[j]
    return 2.0 * along + squared * length


@driver
def learn_retracted(eta, factors, sizes, work, has_products, x, z, begin, end, clock):
    """Learn from rows begin .. end - 1 of x and z; return (what happened, first row not learnt).

    `sizes` are the squared norms of both factors. With `has_products` the first two rows of `work` are
    pinv(A) x and pinv(B) z of the only row to learn from; the inverses are left as they are.
    """
    a, b, inverse_a, inverse_b = factors.a, factors.b, factors.inverse_a, factors.inverse_b
    on_a, on_b, p, q = work[0], work[1], work[2], work[3]
    products_a, products_b, first, second = work[4], work[5], work[6], work[7]
    k = a.shape[1]
    for t in range(begin, end):
        _coordinates(a, x[t], p)
        _coordinates(b, z[t], q)
        margin = 0.0
        for j in range(k):
            margin += p[j] * q[j]
        xx = 0.0
        for i in range(x.shape[1]):
            xx += float(x[t, i]) * float(x[t, i])
        zz = 0.0
        for i in range(z.shape[1]):
            zz += float(z[t, i]) * float(z[t, i])
        if not (abs(margin) < HOPELESS and xx * zz < LARGEST_NORM):
            return DIVERGED, t
        violated = margin < 1.0 and xx * zz > 0.0
        if violated:
            if not has_products:
                if not (_is_sound(sizes[0], inverse_a) and _is_sound(sizes[1], inverse_b)):
                    return NEEDS_PRODUCTS, t
                product_into(inverse_a, p, on_a)
                product_into(inverse_b, q, on_b)
            s = 0.0
            length = 0.0
            for j in range(k):
                on_b[j] *= eta
                s += on_a[j] * on_b[j]
                length += on_a[j] * on_a[j] * eta * eta * zz + on_b[j] * on_b[j] * xx
            if not (abs(s) < HOPELESS and length * (1.0 + s * s) < LARGEST_NORM):
                return DIVERGED, t
            on_own, on_new = -0.5 + 0.375 * s, 1.0 - 0.5 * s
            cc_a = _change_factor(a, on_a, on_b, x[t], 1.0, on_own, on_new, products_a)
            cc_b = _change_factor(b, on_b, on_a, z[t], eta, on_own, on_new, products_b)
            sizes[0] += _growth(products_a, on_b, cc_a)
            sizes[1] += _growth(products_b, on_a, cc_b)
            if not has_products:
                _change_inverse(inverse_a, products_a, on_b, cc_a, first, second)
                _change_inverse(inverse_b, products_b, on_a, cc_b, first, second)
        count_round(clock, 1.0 - margin, violated, xx * zz == 0.0)
        if violated and clock[UPDATES] % FRESH_EVERY == 0:
            return NEEDS_REBASE, t + 1
    return DONE, end
