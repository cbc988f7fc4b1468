"""Eigenvalues and eigenvectors of a diagonal matrix plus a rank-one matrix, in O(n^2).

The eigenvalues of diag(d) + rho z z' (rho > 0, z of length one, d ascending) are the roots of the secular
equation f(x) = 1 + rho sum_j z_j^2 / (d_j - x), one between each two neighbouring d_j and one above the last.
A root is kept as its distance from the nearest d_j, so that all differences d_j - root are accurate to the
last digit; the z that has exactly these roots (Gu and Eisenstat 1994) then gives eigenvectors that are
orthogonal to rounding, however close the roots are.
"""

from __future__ import annotations

import math

from .dispatch import exact_helper, helper

_EPS = 2.220446049250313e-16
_MAX_ITERATIONS = 60


@helper
def _secular_sums(gap, z2, x, first, end):
    """Sums of z_j^2 / (gap_j - x) and of its derivative over j = first .. end - 1."""
    value = 0.0
    slope = 0.0
    for j in range(end - first):
        inverse = 1.0 / (gap[first + j] - x)
        term = z2[first + j] * inverse
        value += term
        slope += term * inverse
    return value, slope


@exact_helper
def _root(d, z2, rho, i, n, gap, difference):
    """Root i of n: its origin (an index of d) and its distance from it; fills d_j - root into `difference`.

    Rational interpolation with the poles on both sides of the root, kept inside a shrinking bracket.
    """
    inv_rho = 1.0 / rho
    last = i == n - 1
    if last:
        origin = i
        low, high = 0.0, rho
        p, q = n - 2, n - 1  # poles of the interpolation
    else:
        width = d[i + 1] - d[i]
        for j in range(n):
            gap[j] = d[j] - d[i]
        value, _ = _secular_sums(gap, z2, 0.5 * width, 0, n)
        if inv_rho + value >= 0.0:
            origin = i
            low, high = 0.0, 0.5 * width
        else:
            origin = i + 1
            low, high = -0.5 * width, 0.0
        p, q = i, i + 1
    for j in range(n):
        gap[j] = d[j] - d[origin]
    x = 0.5 * (low + high)
    for _ in range(_MAX_ITERATIONS):
        psi, slope_psi = _secular_sums(gap, z2, x, 0, p + 1)
        phi, slope_phi = _secular_sums(gap, z2, x, p + 1, n)
        f = inv_rho + psi + phi
        if abs(f) <= _EPS * n * (inv_rho + abs(psi) + abs(phi)):
            break
        if f < 0.0:
            low = x
        else:
            high = x
        to_p, to_q = gap[p] - x, gap[q] - x
        c = f - to_p * slope_psi - to_q * slope_phi
        a = (to_p + to_q) * f - to_p * to_q * (slope_psi + slope_phi)
        b = to_p * to_q * f
        root = math.sqrt(abs(a * a - 4.0 * b * c))
        if last:
            move = (a + root) / (2.0 * c) if a >= 0.0 else 2.0 * b / (a - root)
        else:
            move = (a - root) / (2.0 * c) if a <= 0.0 else 2.0 * b / (a + root)
        if not f * move < 0.0:  # the root is the other way (or there is no number): Newton's step
            move = -f / (slope_psi + slope_phi)
        following = x + move
        if not low < following < high:
            following = 0.5 * (low + high)
        if following in (x, low, high):
            break
        x = following
    for j in range(n):
        difference[j] = gap[j] - x
    return origin, x


@exact_helper
def solve_secular(d, z2, rho, n, gap, value, vectors):
    """Eigenvalues of diag(d) + rho z z', and eigenvectors as the rows of ``vectors``.

    Parameters: d ascending and separated, z2 the squares of z (none of them negligible), n their number,
    gap work space of length n, vectors of shape (n, n). The sign of z_j belongs to coordinate j: the
    caller multiplies it in.
    """
    if n == 1:
        value[0] = d[0] + rho * z2[0]
        vectors[0, 0] = 1.0
        return
    for i in range(n):
        origin, x = _root(d, z2, rho, i, n, gap, vectors[i])
        value[i] = d[origin] + x
    # The z_j that has exactly these roots, times sqrt(rho).
    for j in range(n):
        gap[j] = -vectors[j, j]
    for i in range(n):
        for j in range(i):
            gap[j] *= vectors[i, j] / (d[j] - d[i])
        for j in range(i + 1, n):
            gap[j] *= vectors[i, j] / (d[j] - d[i])
    for j in range(n):
        gap[j] = math.sqrt(max(0.0, gap[j]))
    for i in range(n):
        squared_length = 0.0
        for j in range(n):
            component = gap[j] / vectors[i, j]
            vectors[i, j] = component
            squared_length += component * component
        scale = 1.0 / math.sqrt(squared_length)
        for j in range(n):
            vectors[i, j] *= scale
