"""Eager textbook versions in float64: one dense matrix, one triplet at a time, nothing clever.

Each method is written from its published update, independently of the library. A triplet is given as
vectors (x, z) with z = positive - negative. Every function returns the list of all iterates M_1 .. M_{T+1}.
"""

import numpy as np


def soft(a, t):
    return np.sign(a) * np.maximum(np.abs(a) - t, 0)


def eta_at(t, eta, schedule="constant"):
    return eta / np.sqrt(t) if schedule == "inv-sqrt" else eta


def oasis(M, stream, C, variant="PA-I"):
    path = [M]
    for x, z in stream:
        loss, K = max(0.0, 1 - x @ M @ z), (x @ x) * (z @ z)
        if loss > 0 and K > 0:
            tau = {"PA": loss / K, "PA-I": min(C, loss / K), "PA-II": loss / (K + 1 / (2 * C))}
            M = M + tau[variant] * np.outer(x, z)
        path.append(M)
    return path


def ogd(M, stream, eta, schedule="constant"):
    path = [M]
    for t, (x, z) in enumerate(stream, 1):
        if 1 - x @ M @ z > 0:
            M = M + eta_at(t, eta, schedule) * np.outer(x, z)
        path.append(M)
    return path


def sors(M, stream, lam, eta, off_diagonal=False, schedule="constant"):
    mask, path = 1 - np.eye(len(M)) if off_diagonal else np.ones_like(M), [M]
    for t, (x, z) in enumerate(stream, 1):
        e = eta_at(t, eta, schedule)
        G = -np.outer(x, z) if 1 - x @ M @ z > 0 else np.zeros_like(M)
        M = soft(M - e * G, e * lam * mask)
        path.append(M)
    return path


def adasors(M, stream, lam, eta, delta, off_diagonal=False):
    mask, H, path = 1 - np.eye(len(M)) if off_diagonal else np.ones_like(M), np.zeros_like(M), [M]
    for x, z in stream:
        G = -np.outer(x, z) if 1 - x @ M @ z > 0 else np.zeros_like(M)
        H = np.sqrt(H**2 + G**2)
        M = soft(M - eta * G / (delta + H), lam * eta * mask / (delta + H))
        path.append(M)
    return path


def aroma_diagonal(M, stream, r, drop=False):
    S, path = np.ones_like(M), [M]
    for x, z in stream:
        P, m = np.outer(x, z), x @ M @ z
        if 1 - m > 0 and np.any(P):
            beta = 1 / ((P**2 * S).sum() + r)
            M = M + (1 - m) * beta * S * P
            S = S - beta * S**2 * P**2 if drop else 1 / (1 / S + P**2 / r)
        path.append(M)
    return path


def aroma_factored(M, stream, r):
    L, R, path = np.eye(len(M)), np.eye(M.shape[1]), [M]
    for x, z in stream:
        m, qx, qz = x @ M @ z, x @ L @ x, z @ R @ z
        if 1 - m > 0 and qx * qz > 0:
            M = M + (1 - m) / (qx * qz + r) * np.outer(L @ x, R @ z)
            L, R = (
                np.linalg.inv(np.linalg.inv(L) + qz / (r * len(z)) * np.outer(x, x)),
                np.linalg.inv(np.linalg.inv(R) + qx / (r * len(x)) * np.outer(z, z)),
            )
        path.append(M)
    return path


def aroma_full(M, stream, r):
    S, path = np.eye(M.size), [M]
    for x, z in stream:
        phi, m = np.outer(x, z).ravel(), x @ M @ z
        if 1 - m > 0:
            s = S @ phi
            beta = 1 / (phi @ s + r)
            M, S = M + (1 - m) * beta * s.reshape(M.shape), S - beta * np.outer(s, s)
        path.append(M)
    return path


def average(path, start):
    """Mean of M_start .. M_T (rounds counted from 1; the last element of the path is M_{T+1})."""
    return np.mean(path[start - 1 : -1], axis=0)


def hinge(M, stream):
    return np.array([max(0.0, 1 - x @ M @ z) for x, z in stream])


# -- pairs: a stream of (v, y) with v the difference of two items, y = +1 (similar) or -1 ------------


def positive_part(M):
    w, Q = np.linalg.eigh((M + M.T) / 2)
    return (Q * np.maximum(w, 0)) @ Q.T


def pa_metric(M, stream, C, variant="PA-I", every_step=False, tolerance=0.0):
    """All iterates (M, b), before the constraints of the - version are applied."""
    b, path = 0.0, [(M, 0.0)]
    for v, y in stream:
        p, K = 1 - y * (b - v @ M @ v), 1 + (v @ v) ** 2
        loss = max(0.0, p)
        tau = {
            "PA": loss / K,
            "PA-I": min(C, loss / K),
            "PA-II": loss / (K + 1 / (2 * C)),
            "PALS": p / (K + 1 / (2 * C)),
        }[variant]
        if tau != 0 and abs(tau) >= tolerance and v @ v > 0:
            M, b = M - tau * y * np.outer(v, v), b + tau * y
            if every_step:
                M, b = positive_part(M), max(1.0, b)
        path.append((M, b))
    return path


def rdml(A, stream, lam, exact=False, margin=0.0):
    path = [A]
    for v, y in stream:
        if y * (1 - v @ A @ v) <= margin and v @ v > 0:
            if y < 0:
                A = A + lam * np.outer(v, v)
            elif exact:
                A = positive_part(A - lam * np.outer(v, v))
            else:
                u = np.linalg.pinv(A, rcond=1e-11, hermitian=True) @ v
                if np.linalg.norm(A @ u - v) <= 1e-8 * np.linalg.norm(v):  # v in range(A)
                    A = A - min(lam, 1 / (v @ u)) * np.outer(v, v)
        path.append(A)
    return path


def violated(y, distance, targets):
    return distance > targets[0] if y > 0 else distance < targets[1]


def lego(A, stream, eta, targets, always=False):
    path = [A]
    for v, y in stream:
        target, yhat = targets[0 if y > 0 else 1], v @ A @ v
        if (always or violated(y, yhat, targets)) and v @ v > 0:
            b = eta * target * yhat - 1
            ybar = (b + np.sqrt(b * b + 4 * eta * yhat**2)) / (2 * eta * yhat)
            a = A @ v
            A = A - eta * (ybar - target) / (1 + eta * (ybar - target) * yhat) * np.outer(a, a)
        path.append(A)
    return path


def online_itml(A, stream, eta, targets, always=False):
    path = [A]
    for v, y in stream:
        target, yhat = targets[0 if y > 0 else 1], v @ A @ v
        if (always or violated(y, yhat, targets)) and v @ v > 0:
            e = eta
            if yhat < target:
                inner = v @ np.linalg.solve(np.eye(len(A)) - A, v)
                e = min(eta, 1 / (2 * (target - yhat) * inner))
            c, a = 2 * e * (yhat - target), A @ v
            A = A - c / (1 + c * yhat) * np.outer(a, a)
        path.append(A)
    return path


def itml(A, V, s, u, ell, gamma, sweeps):
    lam, g = np.zeros(len(V)), gamma / (gamma + 1) if np.isfinite(gamma) else 1.0
    xi = np.where(s > 0, u, ell)
    for _ in range(sweeps):
        for i, v in enumerate(V):
            p = v @ A @ v
            alpha = min(lam[i], g * s[i] * (1 / p - 1 / xi[i]))
            lam[i] -= alpha
            beta = s[i] * alpha / (1 - s[i] * alpha * p)
            xi[i] = 1 / (1 / xi[i] + s[i] * alpha / gamma)
            A = A + beta * np.outer(A @ v, A @ v)
    return A, lam, xi
