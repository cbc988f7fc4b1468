"""Regret and mistake bounds of the specification, as inequalities that hold for every stream."""

import numpy as np
import pytest

import simstream_repro.reference as ref
from cases import dense, items, stream, triplets
from simstream import AROMA, OASIS, OGD, SORS, AdaSORS

D = 8


def comparators(seed):
    rng = np.random.default_rng(seed)
    return [np.zeros((D, D)), np.eye(D), np.eye(D) + 0.3 * rng.normal(size=(D, D))]


def run(model, X, T):
    """The library's own iterates M_1 .. M_{T+1}."""
    path = [np.eye(D)]
    for t in T:
        path.append(dense(model.partial_fit(t[None]).get_bilinear_matrix()))
    return path


def data(seed):
    X = items(seed, d=D, density=0.8)
    T = triplets(seed, n=150)
    return X, T, stream(X, T)


def weights(lam, off_diagonal):
    """How much each entry costs."""
    return lam * (1 - np.eye(D) if off_diagonal else np.ones((D, D)))


every_seed = pytest.mark.parametrize("seed", range(3))


@every_seed
@pytest.mark.parametrize(("lam", "off_diagonal"), [(0.0, False), (0.02, False), (0.02, True)])
def test_regret_with_constant_step(seed, lam, off_diagonal):
    X, T, S = data(seed)
    eta, cost = 0.1, weights(lam, off_diagonal)
    path = run(SORS(lam=lam, eta=eta, off_diagonal=off_diagonal, preprocessor=X), X, T)

    def r(M):
        return (cost * np.abs(M)).sum()

    losses = np.array([max(0, 1 - x @ M @ z) for M, (x, z) in zip(path, S, strict=False)])
    gradients = sum((x @ x) * (z @ z) for (x, z), loss in zip(S, losses, strict=True) if loss > 0)
    total = losses.sum() + sum(r(M) for M in path[:-1])
    for U in comparators(seed):
        bound = ((path[0] - U) ** 2).sum() / (2 * eta) + eta / 2 * gradients + r(path[0])
        assert total - (ref.hinge(U, S).sum() + len(S) * r(U)) <= bound + 1e-9


@every_seed
@pytest.mark.parametrize("lam", [0.0, 0.02])
def test_regret_with_decreasing_step(seed, lam):
    X, T, S = data(seed)
    eta = 0.5
    if lam:
        model = SORS(lam=lam, eta=eta, schedule="inv-sqrt", preprocessor=X)
    else:
        model = OGD(eta=eta, schedule="inv-sqrt", preprocessor=X)
    path = run(model, X, T)
    etas = eta / np.sqrt(np.arange(1, len(S) + 1))

    def r(M):
        return lam * np.abs(M).sum()

    own, gradients = [], []
    for M, (x, z) in zip(path, S, strict=False):
        loss = max(0, 1 - x @ M @ z)
        own.append(loss + r(M))
        gradients.append((x @ x) * (z @ z) * (loss > 0))
    for U in comparators(seed):
        regret = (etas * (np.array(own) - ref.hinge(U, S) - r(U))).sum()
        bound = (
            ((path[0] - U) ** 2).sum() / 2 + (etas**2 * gradients).sum() / 2 + etas[0] * r(path[0])
        )
        assert regret <= bound + 1e-9


@every_seed
@pytest.mark.parametrize("off_diagonal", [False, True])
def test_regret_of_adasors(seed, off_diagonal):
    X, T, S = data(seed)
    lam, eta, delta = 0.01, 0.3, 0.5
    cost = weights(lam, off_diagonal)
    path = run(
        AdaSORS(lam=lam, eta=eta, delta=delta, off_diagonal=off_diagonal, preprocessor=X), X, T
    )

    def r(M):
        return (cost * np.abs(M)).sum()

    own, squared = 0.0, np.zeros((D, D))
    for M, (x, z) in zip(path, S, strict=False):
        loss = max(0, 1 - x @ M @ z)
        own += loss + r(M)
        squared += np.outer(x, z) ** 2 * (loss > 0)
    g = np.sqrt(squared).sum()
    for U in comparators(seed):
        diameter = max(np.abs(M - U).max() for M in path)
        bound = diameter**2 / (2 * eta) * (delta * D * D + g) + eta * g + r(path[0])
        assert own - ref.hinge(U, S).sum() - len(S) * r(U) <= bound + 1e-9


@every_seed
@pytest.mark.parametrize("C", [0.01, 0.1, 1.0])
def test_mistakes_of_oasis(seed, C):
    X, T, S = data(seed)
    model = OASIS(C=C, preprocessor=X).fit(T)
    mistakes = model.mistake_rate_ * model.n_rounds_
    longest = max((x @ x) * (z @ z) for x, z in S)
    for U in comparators(seed):
        bound = max(longest, 1 / C) * (((U - np.eye(D)) ** 2).sum() + 2 * C * ref.hinge(U, S).sum())
        assert mistakes <= bound + 1e-9


def test_mistakes_of_full_aroma():
    """The AROW theorem, for the reference that the diagonal and factored forms are derived from."""
    for seed in range(3):
        _, _, S = data(seed)
        small = [(x[:4], z[:4]) for x, z in S]
        r, path = 1.0, ref.aroma_full(np.zeros((4, 4)), small, 1.0)
        A, bonus, slack, mistakes = np.zeros((16, 16)), 0, 0.0, 0
        U = 0.5 * np.eye(4)
        for M, (x, z) in zip(path, small, strict=False):
            m, phi = x @ M @ z, np.outer(x, z).ravel()
            mistakes += m <= 0
            if m < 1:
                A += np.outer(phi, phi)
                bonus += m > 0
                slack += max(0, 1 - x @ U @ z)
        u = U.ravel()
        _, log_det = np.linalg.slogdet(np.eye(16) + A / r)
        bound = np.sqrt(r * u @ u + u @ A @ u) * np.sqrt(log_det + bonus) + slack - bonus
        assert mistakes <= bound + 1e-9


@pytest.mark.parametrize("covariance", ["diagonal", "diagonal-drop", "factored"])
def test_aroma_never_grows_less_certain(covariance):
    X, T, _ = data(0)
    model = AROMA(r=1.0, covariance=covariance, preprocessor=X)
    previous = None
    for t in T:
        state = model.partial_fit(t[None])._engine.state()[1]
        if covariance == "factored":
            current = state["covariance_x"].copy(), state["covariance_z"].copy()
            if previous:
                for old, new in zip(previous, current, strict=True):
                    assert np.linalg.eigvalsh(old - new).min() >= -1e-10
        else:
            current = state["aux"].copy()  # precision minus one
            assert previous is None or (current >= previous - 1e-12).all()
        previous = current


def test_aroma_precision_is_the_sum_of_squares():
    X, T, S = data(1)
    model = AROMA(r=2.0, preprocessor=X)
    expected = np.ones((D, D))
    for t, (x, z) in zip(T, S, strict=True):
        before = model.n_updates_ if model._engine is not None else 0
        model.partial_fit(t[None])
        if model.n_updates_ > before:
            expected += np.outer(x, z) ** 2 / 2.0
    np.testing.assert_allclose(model._engine.state()[1]["aux"] + 1, expected, rtol=1e-12)


def test_large_r_takes_the_step_loss_over_r():
    X, T, S = data(2)
    x, z = S[0]
    r = 1e9
    moved = AROMA(r=r, preprocessor=X).fit(T[:1]).get_bilinear_matrix() - np.eye(D)
    np.testing.assert_allclose(moved, max(0, 1 - x @ z) / r * np.outer(x, z), rtol=1e-6, atol=1e-15)
