"""SDCA: against its eager version, its certificate, its outputs."""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import simstream
import simstream_repro.reference as ref
from cases import LAYOUTS, dense, items, stream, triplets
from simstream import SDCA, FromLabels

LAM = 0.02


def draws_of(seed, n, n_epochs):
    """The draws of every epoch, as the generator gives them, and the two random places of each."""
    rng = np.random.default_rng(np.random.RandomState(seed).randint(np.iinfo(np.int32).max))
    draws, picked = [], []
    for _ in range(n_epochs):
        draws.append(rng.integers(0, n, n))
        picked.append((int(rng.integers(n // 2)), int(rng.integers(n - n // 2))))
    return np.concatenate(draws), picked


def eager(pairs_xz, draws, lam):
    """(M, alpha) of the reference before every draw, and after the last."""
    start, alpha = np.zeros([len(vector) for vector in pairs_xz[0]]), np.zeros(len(pairs_xz))
    steps = ref.sdca.steps(start, pairs_xz, draws, lam, alpha)
    return [(M, alpha.copy()) for M in steps]


def primal(M, pairs_xz, lam):
    hinge = np.array([max(0.0, 1 - x @ M @ z) for x, z in pairs_xz])
    return np.mean(hinge**2) + lam / 2 * (M**2).sum()


def dual(alpha, M, lam):
    return np.mean(alpha - alpha**2 / 4) - lam / 2 * (M**2).sum()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-4)])
@pytest.mark.parametrize("n_epochs", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_eager(layout, n_epochs, dtype, tolerance):
    convert, extra = LAYOUTS[layout]
    X, T = items(dtype=dtype), triplets()
    xz = stream(X, T)
    draws, _ = draws_of(0, len(T), n_epochs)
    path = eager(xz, draws, LAM)
    options = {"n_epochs": n_epochs, "random_state": 0, "preprocessor": convert(X), **extra}
    last = SDCA(LAM, output="last", **options).fit(T)
    np.testing.assert_allclose(dense(last.get_bilinear_matrix()), path[-1][0], atol=tolerance)
    np.testing.assert_allclose(last.alpha_, path[-1][1], atol=tolerance)
    half = path[len(draws) // 2 : -1]
    average = SDCA(LAM, output="average", **options).fit(T)
    np.testing.assert_allclose(
        average.alpha_, np.mean([a for _, a in half], axis=0), atol=tolerance
    )
    np.testing.assert_allclose(
        dense(average.get_bilinear_matrix()), np.mean([M for M, _ in half], axis=0), atol=tolerance
    )
    for model in (last, average):
        M = dense(model.get_bilinear_matrix()).astype(np.float64)
        assert model.primal_ == pytest.approx(primal(M, xz, LAM), rel=1e-5)
        assert model.dual_ == pytest.approx(dual(model.alpha_, M, LAM), rel=1e-4, abs=1e-6)
        assert model.gap_ >= -1e-6


@pytest.mark.parametrize("block_size", [1, 7, 64, 1000])
def test_blocks_with_repeated_draws_are_one_at_a_time(block_size):
    X, T = items(), triplets(n=20)  # every block draws triplets again
    draws, _ = draws_of(3, 20, 10)
    expected = eager(stream(X, T), draws, LAM)[-1]
    model = SDCA(
        LAM, n_epochs=10, output="last", random_state=3, block_size=block_size, preprocessor=X
    ).fit(T)
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected[0], atol=1e-11)
    np.testing.assert_allclose(model.alpha_, expected[1], atol=1e-11)


def test_the_dual_rises_at_every_step_and_stays_below_the_primal():
    X, T = items(), triplets(n=60)
    xz = stream(X, T)
    draws, _ = draws_of(0, 60, 4)
    values = [dual(a, M, LAM) for M, a in eager(xz, draws, LAM)]
    assert (np.diff(values) >= -1e-12).all()
    ends = []
    for n_epochs in (1, 2, 3, 4):
        model = SDCA(LAM, n_epochs=n_epochs, output="last", random_state=0, preprocessor=X).fit(T)
        assert model.dual_ == pytest.approx(values[60 * n_epochs])
        assert model.alpha_.min() >= 0
        assert model.primal_ >= model.dual_
        ends.append(model.dual_)
    np.testing.assert_allclose(model.history_["dual"], ends)


def test_history_counts_before_each_step():
    X, T = items(), triplets(n=50)
    xz = stream(X, T)
    draws, _ = draws_of(0, 50, 2)
    path = eager(xz, draws, LAM)
    margins = np.array([xz[i][0] @ M @ xz[i][1] for i, (M, _) in zip(draws, path, strict=False)])
    hinge = np.maximum(0, 1 - margins).reshape(2, 50)
    model = SDCA(LAM, n_epochs=2, random_state=0, preprocessor=X).fit(T)
    np.testing.assert_allclose(model.history_["hinge"], hinge.mean(axis=1))
    np.testing.assert_allclose(model.history_["squared_hinge"], (hinge**2).mean(axis=1))
    np.testing.assert_allclose(
        model.history_["mistake_rate"], (margins <= 0).reshape(2, 50).mean(axis=1)
    )
    assert model.n_iter_ == 2


def test_the_random_output_is_one_of_the_averaged_iterates_and_averages_to_them():
    X, T = items(), triplets(n=8)
    xz = stream(X, T)
    seen, means = [], []
    for seed in range(400):
        options = {"n_epochs": 2, "random_state": seed, "preprocessor": X}
        got = SDCA(LAM, output="random", **options).fit(T).alpha_
        draws, _ = draws_of(seed, 8, 2)
        half = np.array([a for _, a in eager(xz, draws, LAM)[8:-1]])
        place = np.flatnonzero(np.abs(half - got).max(axis=1) < 1e-12)
        assert len(place) > 0
        seen.append(got)
        means.append(half.mean(axis=0))
    np.testing.assert_allclose(np.mean(seen, axis=0), np.mean(means, axis=0), atol=0.03)


def test_it_stops_on_the_gap_and_the_optimum_satisfies_its_conditions():
    X, T = items(), triplets(n=60)
    model = SDCA(0.5, n_epochs=500, tol=1e-8, output="last", random_state=0, preprocessor=X).fit(T)
    assert model.converged_
    assert model.n_iter_ < 500
    assert 0 <= model.gap_ <= 1e-8
    margins = model.decision_function(T)
    np.testing.assert_allclose(model.alpha_, 2 * np.maximum(0, 1 - margins), atol=1e-3)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("output", ["last", "average", "random"])
def test_what_has_converged_is_what_is_kept(output, dtype, layout):
    convert, extra = LAYOUTS[layout]
    X, T, tol = items(dtype=dtype), triplets(n=60), 1e-5
    options = {"output": output, "random_state": 0, "preprocessor": convert(X), **extra}
    model = SDCA(0.5, n_epochs=2000, tol=tol, **options).fit(T)
    assert model.converged_
    assert model.n_iter_ < 2000
    assert 0 <= model.gap_ <= tol
    xz = stream(X.astype(np.float64), T)
    M = dense(model.get_bilinear_matrix()).astype(np.float64)
    assert model.get_bilinear_matrix().dtype == dtype
    assert model.primal_ == pytest.approx(primal(M, xz, 0.5), rel=1e-12)
    of_alpha = sum(a * np.outer(x, z) for a, (x, z) in zip(model.alpha_, xz, strict=True)) / 30
    np.testing.assert_allclose(M, of_alpha, rtol=2e-7 if dtype == np.float32 else 1e-9, atol=1e-9)
    assert model.dual_ == pytest.approx(dual(model.alpha_, of_alpha, 0.5), rel=1e-12)
    with pytest.warns(ConvergenceWarning, match=r"not reached tol = 1e-05 after 1 epochs"):
        short = SDCA(0.5, n_epochs=1, tol=tol, **options).fit(T)
    assert not short.converged_
    assert short.gap_ > tol


@pytest.mark.parametrize("output", ["average", "random"])
def test_with_tol_at_least_half_and_at_most_three_quarters_of_the_draws_are_read(output):
    X, T = items(), triplets(n=7)  # halves of an epoch are of different length
    xz = stream(X, T)
    for n_epochs, first in ((1, 3), (2, 7), (3, 7), (4, 14), (5, 14), (7, 14), (8, 28), (9, 28)):
        draws, _ = draws_of(5, 7, n_epochs)
        with pytest.warns(ConvergenceWarning):
            model = SDCA(
                LAM, n_epochs=n_epochs, tol=1e-99, output=output, random_state=5, preprocessor=X
            ).fit(T)
        read = np.array([a for _, a in eager(xz, draws, LAM)[first:-1]])
        if output == "average":
            np.testing.assert_allclose(model.alpha_, read.mean(axis=0), atol=1e-12)
        else:
            assert np.abs(read - model.alpha_).max(axis=1).min() < 1e-12


@pytest.mark.parametrize("tol", [None, 1e-99])
@pytest.mark.parametrize("output", ["last", "average", "random"])
def test_memory_does_not_grow_with_the_epochs(output, tol):
    def peak(n_epochs):
        model = SDCA(1.0, n_epochs=n_epochs, tol=tol, output=output, random_state=0, preprocessor=X)
        tracemalloc.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(T)
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return high

    X, T = items(d=2), triplets(n=4000)
    peak(1)  # compile
    few = peak(4)
    assert peak(40) <= few + 10 * len(T) * 8  # ten more arrays of dual variables, not 72


def test_the_expected_gap_obeys_the_published_rate_where_it_is_nearly_sharp():
    """E[D* - D(alpha_t)] <= (1 - lam g / (1 + lam g n))^t D*, g = 1 / (2 max ||X_i||^2).

    Triplets whose x z' are orthogonal need each be drawn once: the gap is D* (1 - 1/n)^t in the mean, and
    with 2 max ||X_i||^2 / lam = n / 5 the bound is hardly above it. Steps of half the length do not keep it.
    """
    n, lam = 40, 0.1
    anchors, others = np.eye(n) * np.sqrt(n / 10 * lam), np.array([[1.0], [0.0]])
    T = np.array([[i, 0, 1] for i in range(n)])
    xz = [(x, others[0] - others[1]) for x in anchors]
    (best,) = {round(1 / (1 + 2 * (x @ x) / (lam * n)), 12) for x, _ in xz}  # D*, each one's own
    gamma = 1 / (2 * max((x @ x) * (z @ z) for x, z in xz))
    for n_epochs in (1, 3):
        reached, halved = [], []
        for seed in range(100):
            options = {"n_epochs": n_epochs, "output": "last", "random_state": seed}
            model = SDCA(lam, **options, preprocessor=(anchors, others)).fit(T)
            draws, _ = draws_of(seed, n, n_epochs)
            assert model.dual_ == pytest.approx(best * len(np.unique(draws)) / n)
            reached.append(model.dual_)
            halved.append(best * (1 - np.mean(0.25 ** np.bincount(draws, minlength=n))))
        bound = (1 - lam * gamma / (1 + lam * gamma * n)) ** (n * n_epochs) * best
        assert bound / 2 < best - np.mean(reached) <= bound < best - np.mean(halved)


def test_two_item_spaces_and_reading():
    Q, X = items(1, n=20, d=11), items(2, n=30, d=17)
    T = triplets(n=100, n_items=20, n_candidates=30)
    model = SDCA(LAM, n_epochs=3, random_state=0, preprocessor=(Q, X)).fit(T)
    M = model.get_bilinear_matrix()
    assert M.shape == model.shape_ == (11, 17)
    np.testing.assert_allclose(model.score_items(Q, X), Q @ M @ X.T, atol=1e-12)
    np.testing.assert_allclose(model.transform_query(Q), Q @ M, atol=1e-12)
    assert model.score(T) == np.mean(model.decision_function(T) > 0)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_saved_and_loaded(layout, tmp_path):
    convert, _ = LAYOUTS[layout]
    model = SDCA(n_epochs=2, random_state=0, preprocessor=convert(items())).fit(triplets())
    model.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m")
    np.testing.assert_array_equal(
        dense(again.get_bilinear_matrix()), dense(model.get_bilinear_matrix())
    )
    assert sp.issparse(again.get_bilinear_matrix()) == (layout == "sparse")
    assert (again.gap_, again.n_iter_) == (model.gap_, model.n_iter_)
    np.testing.assert_array_equal(again.history_["gap"], model.history_["gap"])


def test_from_labels_works_over_it():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.normal(size=(60, 5)) + 3 * np.eye(5)[y]
    model = FromLabels(SDCA(n_epochs=3), n_tuples=500, random_state=0).fit(X, y)
    assert (model.predict(X) == y).mean() > 0.9
    with pytest.raises(TypeError, match="partial_fit"):
        model.partial_fit(X, y)


def test_callbacks_and_bad_parameters(capsys):
    X, T = items(), triplets(n=30)
    seen = []
    model = SDCA(
        n_epochs=3, callback=lambda e, g: seen.append((e, g)), verbose=True, preprocessor=X
    )
    model.fit(T)
    assert [e for e, _ in seen] == [1, 2, 3]
    np.testing.assert_allclose([g for _, g in seen], model.history_["gap"])
    assert capsys.readouterr().out.count("epoch") == 3
    for parameters in (
        {"lam": 0},
        {"n_epochs": 0},
        {"output": "best"},
        {"tol": 0},
        {"block_size": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(parameters))):
            SDCA(**parameters, preprocessor=X).fit(T)
    with pytest.raises(NotFittedError):
        SDCA(preprocessor=X).score(T)


def test_items_too_large_for_any_step_are_refused():
    X = np.random.default_rng(0).normal(size=(20, 3))
    triplets = [[0, 1, 2], [3, 4, 5]]
    for huge in (X * 1e80, sp.csr_matrix(X * 1e80)):
        with pytest.raises(ValueError, match="scale the items"):
            SDCA(preprocessor=huge).fit(triplets)
    assert SDCA(preprocessor=X * 1e70, random_state=0).fit(triplets).gap_ < 1
