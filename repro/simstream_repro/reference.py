"""The textbook version of every method: dense float64 NumPy, one step at a time, nothing clever.

Each is written from its published update, independently of the library. The tests compare every learner
with them; timing studies and benchmarks measure what an algorithm costs when it is written as in its paper.

A stream of triplets has vectors (x, z) with z = positive - negative; a stream of pairs has (v, y) with v the
difference of two items and y = +1 (similar) or -1; a stream of lists has (q, relevant, negatives), a query
and two arrays of rows. A method gives the list of all iterates, the start first;
``method.steps(...)`` gives them lazily, and ``method.last(...)`` only the last, for large matrices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import update_wrapper
from itertools import pairwise
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
Iterate = TypeVar("Iterate")
Matrix = np.ndarray
Matrices = Iterator[np.ndarray]
Stream = Iterable[tuple[np.ndarray, np.ndarray]]
PairStream = Iterable[tuple[np.ndarray, float]]
ListStream = Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]


class Method(Generic[P, Iterate]):
    """A generator of iterates, called for the whole list.

    Examples
    --------
    >>> stream = [(np.array([1.0, 0.0]), np.array([0.5, 0.0]))] * 3
    >>> [float(M[0, 0].round(2)) for M in oasis(np.eye(2), stream, C=0.1)]
    [1.0, 1.05, 1.1, 1.15]
    >>> float(oasis.last(np.eye(2), stream, C=0.1)[0, 0].round(2))
    1.15
    """

    def __init__(self, steps: Callable[P, Iterator[Iterate]]) -> None:
        update_wrapper(self, steps)
        self.steps = steps

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> list[Iterate]:
        """All iterates."""
        return list(self.steps(*arguments, **options))

    def last(self, *arguments: P.args, **options: P.kwargs) -> Iterate:
        """The last iterate; earlier ones are not kept."""
        return deque(self.steps(*arguments, **options), maxlen=1)[0]


# -- shared parts -----------------------------------------------------------------------------------------


def soft(a: np.ndarray, t: Any) -> Matrix:
    """Soft thresholding."""
    return np.sign(a) * np.maximum(np.abs(a) - t, 0)


def positive_part(M: Matrix) -> Matrix:
    """The nearest positive semi-definite matrix."""
    w, Q = np.linalg.eigh((M + M.T) / 2)
    return (Q * np.maximum(w, 0)) @ Q.T


def prox_rows(F: Matrix, t: float, beta: float) -> Matrix:
    """Every row keeps its direction; its length becomes clip(length - t, 0, beta)."""
    n = np.linalg.norm(F, axis=1)
    return F * (np.clip(n - t, 0, beta) / np.where(n > 0, n, 1))[:, None]


def svt(A: Matrix, t: float) -> Matrix:
    """Soft thresholding of the singular values."""
    U, s, V = np.linalg.svd(A, full_matrices=False)
    return (U * np.maximum(s - t, 0)) @ V


def eta_at(t: int, eta: float, schedule: str = "constant") -> float:
    """The step size of round t."""
    return float(eta / np.sqrt(t)) if schedule == "inv-sqrt" else eta


def average(path: Sequence[np.ndarray], start: int) -> Matrix:
    """Mean of M_start .. M_T (rounds counted from 1; the last element of the path is M_{T+1})."""
    return np.mean(path[start - 1 : -1], axis=0)


def weighted_average(path: Iterable[np.ndarray], eta: float) -> Matrix:
    """Mean of M_1 .. M_T with weights eta / sqrt(t)."""
    total, weight = np.zeros(()), 0.0
    for t, (M, _) in enumerate(pairwise(path), 1):
        total, weight = total + eta_at(t, eta, "inv-sqrt") * M, weight + eta_at(t, eta, "inv-sqrt")
    return np.asarray(total / weight)


def hinge(M: Matrix, stream: Stream) -> Matrix:
    """The hinge loss of every triplet."""
    return np.array([max(0.0, 1 - x @ M @ z) for x, z in stream])


def rows(items: Any, numbers: Iterable[Any]) -> list[np.ndarray]:
    """Some rows of an array or a sparse matrix, dense and in float64."""
    found = (items[number] for number in numbers)
    return [np.asarray(r.toarray()[0] if hasattr(r, "toarray") else r, np.float64) for r in found]


def triplet_vectors(items: Any, triplets: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The stream (x, z) of triplets of row numbers."""
    for triplet in triplets:
        anchor, positive, negative = rows(items, triplet)
        yield anchor, positive - negative


# -- triplets ---------------------------------------------------------------------------------------------


@Method
def oasis(M: Matrix, stream: Stream, C: float, variant: str = "PA-I") -> Matrices:
    """Passive-aggressive steps."""
    yield M
    for x, z in stream:
        loss, K = max(0.0, 1 - x @ M @ z), (x @ x) * (z @ z)
        if loss > 0 and K > 0:
            tau = {"PA": loss / K, "PA-I": min(C, loss / K), "PA-II": loss / (K + 1 / (2 * C))}
            M = M + tau[variant] * np.outer(x, z)
        yield M


@Method
def ogd(M: Matrix, stream: Stream, eta: float, schedule: str = "constant") -> Matrices:
    """Online gradient descent."""
    yield M
    for t, (x, z) in enumerate(stream, 1):
        if 1 - x @ M @ z > 0:
            M = M + eta_at(t, eta, schedule) * np.outer(x, z)
        yield M


@Method
def sors(
    M: Matrix,
    stream: Stream,
    lam: float,
    eta: float,
    off_diagonal: bool = False,
    schedule: str = "constant",
) -> Matrices:
    """Gradient steps with soft thresholding, SORS-I (or -II: of all but the diagonal)."""
    mask = 1 - np.eye(len(M)) if off_diagonal else np.ones_like(M)
    yield M
    for t, (x, z) in enumerate(stream, 1):
        e = eta_at(t, eta, schedule)
        G = -np.outer(x, z) if 1 - x @ M @ z > 0 else np.zeros_like(M)
        M = soft(M - e * G, e * lam * mask)
        yield M


@Method
def adasors(
    M: Matrix, stream: Stream, lam: float, eta: float, delta: float, off_diagonal: bool = False
) -> Matrices:
    """The same with AdaGrad's step sizes."""
    mask, H = 1 - np.eye(len(M)) if off_diagonal else np.ones_like(M), np.zeros_like(M)
    yield M
    for x, z in stream:
        G = -np.outer(x, z) if 1 - x @ M @ z > 0 else np.zeros_like(M)
        H = np.sqrt(H**2 + G**2)
        M = soft(M - eta * G / (delta + H), lam * eta * mask / (delta + H))
        yield M


@Method
def aroma_diagonal(M: Matrix, stream: Stream, r: float, drop: bool = False) -> Matrices:
    """AROMA with a diagonal covariance: the exact minimiser, or the diagonal of the full update."""
    S = np.ones_like(M)
    yield M
    for x, z in stream:
        P, m = np.outer(x, z), x @ M @ z
        if 1 - m > 0 and np.any(P):
            beta = 1 / ((P**2 * S).sum() + r)
            M = M + (1 - m) * beta * S * P
            S = S - beta * S**2 * P**2 if drop else 1 / (1 / S + P**2 / r)
        yield M


@Method
def aroma_factored(M: Matrix, stream: Stream, r: float) -> Matrices:
    """AROMA with the covariance L (x) R."""
    L, R = np.eye(len(M)), np.eye(M.shape[1])
    yield M
    for x, z in stream:
        m, qx, qz = x @ M @ z, x @ L @ x, z @ R @ z
        if 1 - m > 0 and qx * qz > 0:
            M = M + (1 - m) / (qx * qz + r) * np.outer(L @ x, R @ z)
            L, R = (
                np.linalg.inv(np.linalg.inv(L) + qz / (r * len(z)) * np.outer(x, x)),
                np.linalg.inv(np.linalg.inv(R) + qx / (r * len(x)) * np.outer(z, z)),
            )
        yield M


@Method
def aroma_full(M: Matrix, stream: Stream, r: float) -> Matrices:
    """AROMA with a full covariance."""
    S = np.eye(M.size)
    yield M
    for x, z in stream:
        phi, m = np.outer(x, z).ravel(), x @ M @ z
        if 1 - m > 0:
            s = S @ phi
            beta = 1 / (phi @ s + r)
            M, S = M + (1 - m) * beta * s.reshape(M.shape), S - beta * np.outer(s, s)
        yield M


@Method
def sdca(
    M: Matrix,
    stream: Sequence[tuple[np.ndarray, np.ndarray]],
    draws: Iterable[int],
    lam: float,
    alpha: np.ndarray | None = None,
) -> Matrices:
    """Dual coordinate ascent on the squared hinge; `alpha`, if given, is changed in place."""
    n = len(stream)
    alpha = np.zeros(n) if alpha is None else alpha
    yield M
    for i in draws:
        x, z = stream[i]
        K = (x @ x) * (z @ z)
        delta = max((1 - x @ M @ z - alpha[i] / 2) / (0.5 + K / (lam * n)), -alpha[i])
        alpha[i] += delta
        M = M + delta / (lam * n) * np.outer(x, z)
        yield M


# -- lists ------------------------------------------------------------------------------------------------


def softmax_loss(
    M: Matrix, q: np.ndarray, relevant: Matrix, negatives: Matrix, temperature: float
) -> float:
    """Mean cross-entropy of the relevant items, each against all negatives."""
    losses = []
    for x in relevant:
        scores = np.vstack([x[None], negatives]) @ (M.T @ q) / temperature
        losses.append(np.logaddexp.reduce(scores) - scores[0])
    return float(np.mean(losses))


@Method
def listwise(
    M: Matrix, stream: ListStream, eta: float, temperature: float, n_steps: int = 1
) -> Matrices:
    """Gradient steps of eta temperature^2 on the softmax loss, n_steps of them on every list."""
    yield M
    for q, relevant, negatives in stream:
        for _ in range(n_steps):
            z = np.zeros(M.shape[1])
            for x in relevant:
                X = np.vstack([x[None], negatives])
                scores = X @ (M.T @ q) / temperature
                p = np.exp(scores - np.logaddexp.reduce(scores))
                z += (x - p @ X) / len(relevant)
            M = M + eta * temperature * np.outer(q, z)
        yield M


# -- triplets of tasks, low rank --------------------------------------------------------------------------


@Method
def omtrsl(
    Ms: list[Matrix],
    stream: Iterable[tuple[np.ndarray, np.ndarray, float, int]],
    C: float,
    coupling: float,
) -> Iterator[list[Matrix]]:
    """OMTRSL with one matrix a task, from (x, z, answer, number of the task); coupling 0 is OSTRSL."""
    n = len(Ms)
    A = (coupling * np.ones((n, n)) + n * np.eye(n)) / ((1 + coupling) * n)
    yield Ms
    for x, z, y, k in stream:
        loss, K = max(0.0, 1 - y * (x @ Ms[k] @ z)), A[k, k] * (x @ x) * (z @ z)
        if loss > 0 and K > 0:
            step = y * min(C, loss / K) * np.outer(x, z)
            Ms = [M + a * step if a else M for M, a in zip(Ms, A[:, k], strict=True)]
        yield Ms


@Method
def osllr_gs(
    F: Matrix, stream: Stream, beta: float, gamma: float, eta: float, gradient: str = "exact"
) -> Matrices:
    """OSLLR-GS for W = F F'; the gradient with both terms, or with the one that the paper prints."""
    yield F
    for t, (x, z) in enumerate(stream, 1):
        e, u, w = eta_at(t, eta, "inv-sqrt"), F.T @ x, F.T @ z
        if 1 - u @ w > 0:
            F = F + e * (np.outer(z, u) + (np.outer(x, w) if gradient == "exact" else 0))
        F = prox_rows(F, e * gamma, beta)
        yield F


@Method
def omllr(W: Matrix, stream: Stream, lam: float, eta: float, psd: bool = False) -> Matrices:
    """OMLLR: gradient steps with thresholded singular values (eigenvalues where W stays symmetric)."""
    yield W
    for t, (x, z) in enumerate(stream, 1):
        e, G = eta_at(t, eta, "inv-sqrt"), -np.outer(x, z) * (1 - x @ W @ z > 0)
        if psd:
            w, Q = np.linalg.eigh(W - e * (G + G.T) / 2)
            W = (Q * np.maximum(w - e * lam, 0)) @ Q.T
        else:
            W = svt(W - e * G, e * lam)
        yield W


@Method
def loreta(
    A: Matrix, B: Matrix, stream: Stream, eta: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Loreta for W = A B': steps along the matrices of one rank, retracted to second order."""
    yield A, B
    for x, z in stream:
        if 1 - (x @ A) @ (B.T @ z) > 0:
            q = eta * z
            a1, b1 = np.linalg.pinv(A) @ x, np.linalg.pinv(B) @ q
            s = a1 @ b1
            cA = (A @ a1) * (-1 / 2 + 3 / 8 * s) + x * (1 - s / 2)
            cB = (B @ b1) * (-1 / 2 + 3 / 8 * s) + q * (1 - s / 2)
            A, B = A + np.outer(cA, b1), B + np.outer(cB, a1)
        yield A, B


# -- pairs ------------------------------------------------------------------------------------------------


@Method
def pa_metric(
    M: Matrix,
    stream: PairStream,
    C: float,
    variant: str = "PA-I",
    every_step: bool = False,
    tolerance: float = 0.0,
    b: float = 0.0,
    only_down: bool = False,
) -> Iterator[tuple[Matrix, float]]:
    """All iterates (M, b), without the projection at the end of the - version.

    `only_down`: project only after steps that take v v' away, since adding it keeps M positive semi-definite.
    """
    yield M, b
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
                M, b = M if only_down and tau * y < 0 else positive_part(M), max(1.0, b)
        yield M, b


@Method
def rdml(
    A: Matrix, stream: PairStream, lam: float, exact: bool = False, margin: float = 0.0
) -> Matrices:
    """RDML: steps shortened so that A stays positive semi-definite, or (exact) whole and projected."""
    yield A
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
        yield A


def violated(y: float, distance: float, targets: Any) -> bool:
    """Whether a pair is on the wrong side of its target."""
    return bool(distance > targets[0] if y > 0 else distance < targets[1])


@Method
def lego(A: Matrix, stream: PairStream, eta: float, targets: Any, always: bool = False) -> Matrices:
    """LEGO: exact LogDet steps."""
    yield A
    for v, y in stream:
        target, yhat = targets[0 if y > 0 else 1], v @ A @ v
        if (always or violated(y, yhat, targets)) and v @ v > 0:
            b = eta * target * yhat - 1
            ybar = (b + np.sqrt(b * b + 4 * eta * yhat**2)) / (2 * eta * yhat)
            a = A @ v
            A = A - eta * (ybar - target) / (1 + eta * (ybar - target) * yhat) * np.outer(a, a)
        yield A


@Method
def online_itml(
    A: Matrix, stream: PairStream, eta: float, targets: Any, always: bool = False
) -> Matrices:
    """Online ITML: approximate LogDet steps, short enough for A to stay positive definite."""
    yield A
    for v, y in stream:
        target, yhat = targets[0 if y > 0 else 1], v @ A @ v
        if (always or violated(y, yhat, targets)) and v @ v > 0:
            e = eta
            if yhat < target:
                inner = v @ np.linalg.solve(np.eye(len(A)) - A, v)
                e = min(eta, 1 / (2 * (target - yhat) * inner))
            c, a = 2 * e * (yhat - target), A @ v
            A = A - c / (1 + c * yhat) * np.outer(a, a)
        yield A


# -- batches ----------------------------------------------------------------------------------------------


def itml(
    A: Matrix, V: Matrix, s: np.ndarray, u: float, ell: float, gamma: float, sweeps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ITML's Bregman projections: A, dual variables and slacks after so many sweeps."""
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


def mcml(A: Matrix, X: Matrix, y: np.ndarray) -> tuple[float, np.ndarray]:
    """MCML's objective and its gradient, with whole (n x n) matrices."""
    same = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
    XA = X @ A
    squares = np.einsum("ij,ij->i", XA, X)
    D = squares[:, None] + squares - 2 * XA @ X.T
    E = np.exp(-D) * ~np.eye(len(y), dtype=bool)
    total = E.sum(axis=1)
    P, P0 = E / total[:, None], same / same.sum(axis=1)[:, None]
    objective = np.sum(np.log(total) + (P0 * D).sum(axis=1) - np.log(same.sum(axis=1)))
    S = P0 - P + (P0 - P).T
    return float(objective), X.T @ (np.diag(S.sum(axis=1)) - S) @ X
