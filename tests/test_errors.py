"""Bad input: one clear error that says what, expected and got, before anything has changed."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import simstream_repro.reference as ref
from cases import CASES, dense, items, stream, triplets
from simstream import (
    AROMA,
    LDA,
    OASIS,
    OGD,
    OMTRSL,
    SORS,
    AdaSORS,
    DivergedError,
    Dot,
    Euclidean,
    FromLabels,
)
from simstream._engines import DenseEngine
from test_contract import same_model

X, T = items(), triplets(n=30)


def broken_items(value, sparse):
    bad = X.copy()
    bad[2, 3] = value
    return sp.csr_matrix(bad) if sparse else bad


BAD_ITEMS = {
    "nan": (broken_items(np.nan, False), ValueError, r"finite numbers, got nan at row 2, column 3"),
    "inf": (broken_items(np.inf, False), ValueError, r"finite numbers, got inf at row 2, column 3"),
    "sparse-nan": (broken_items(np.nan, True), ValueError, "finite numbers, got nan"),
    "one-dimensional": (X[0], ValueError, r"expected 2 dimensions .* got shape \(16,\)"),
    "empty": (np.empty((0, 16)), ValueError, "at least one item and one feature"),
    "no-features": (np.empty((40, 0)), ValueError, "at least one item and one feature"),
    "text": (np.array([["a", "b"]]), TypeError, "expected real numbers"),
    "complex": (X * 1j, TypeError, "expected real numbers, got dtype complex128"),
    "ragged": ([[1.0, 2.0], [3.0]], ValueError, "rectangular"),
    "none": (None, ValueError, "preprocessor: expected items"),
    "three": ((X, X, X), ValueError, "expected a pair"),
}

BAD_TRIPLETS = {
    "too-large": (
        [[0, 1, 40]],
        ValueError,
        "negative of tuple 0 must be a row number from 0 to 39, got 40",
    ),
    "negative": ([[0, 1, 2], [-1, 1, 2]], ValueError, r"anchor of tuple 1 .* got -1"),
    "same": (
        [[0, 1, 2], [3, 4, 4]],
        ValueError,
        "positive and negative of triplet 1 are the same item",
    ),
    "floats": ([[0.0, 1.0, 2.0]], TypeError, "expected integers, got dtype float64"),
    "pairs": ([[0, 1]], ValueError, r"expected shape \(n, 3\), got \(1, 2\)"),
    "none": (np.empty((0, 3), int), ValueError, "expected at least one, got none"),
    "flat": ([0, 1, 2], ValueError, r"expected shape \(n, 3\)"),
    "vectors-of-other-width": (np.ones((2, 3, 5)), ValueError, "expected 16 features"),
    "pair-vectors": (np.ones((2, 2, 16)), ValueError, r"expected shape \(n, 3, d\)"),
    "nan-vectors": (np.full((2, 3, 16), np.nan), ValueError, "finite"),
    "sparse": (sp.csr_matrix(X), TypeError, "sparse"),
}


@pytest.mark.parametrize("bad", BAD_ITEMS)
@pytest.mark.parametrize("case", CASES[:1] + CASES[5:6] + CASES[-1:], ids=lambda c: c.name)
def test_bad_items(case, bad):
    values, error, message = BAD_ITEMS[bad]
    model = case.make(preprocessor=X).fit(T)
    untouched = case.make(preprocessor=X).fit(T)
    model.set_params(preprocessor=values)
    for method in (model.fit, model.partial_fit, model.score):
        with pytest.raises(error, match=message):
            method(T)
    same_model(model, untouched)


@pytest.mark.parametrize("bad", BAD_TRIPLETS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_bad_triplets(case, bad):
    values, error, message = BAD_TRIPLETS[bad]
    model = case.make(preprocessor=X).fit(T)
    untouched = case.make(preprocessor=X).fit(T)
    with pytest.raises(error, match=message):
        model.partial_fit(values)
    with pytest.raises(error, match=message):
        model.decision_function(values)
    same_model(model, untouched)


def test_items_of_another_dimension():
    model = OASIS(preprocessor=X).fit(T)
    for method in (model.set_params(preprocessor=X[:, :9]).partial_fit, model.score):
        with pytest.raises(ValueError, match=r"expected 16 features, .* got 9"):
            method(T)
    with pytest.raises(ValueError, match="queries: expected 16 features, got 9"):
        model.transform_query(X[:, :9])
    with pytest.raises(ValueError, match="expected 16 features"):
        model.search(X, X[:, :9])
    assert model.n_rounds_ == 30


def test_learn_one_checks_its_vectors():
    model = OASIS().learn_one(*X[:3])
    for vectors, message in (
        ((X[0], X[1], X[2, :5]), "negative: expected as many features as the positive"),
        ((X[:2], X[1], X[2]), "expected one dimension"),
        ((X[0] * np.nan, X[1], X[2]), "x: expected finite"),
        ((X[0], X[1], np.full(16, np.inf)), "finite"),
        ((X[0, :4], X[1, :4], X[2, :4]), "expected 16 features"),
        ((sp.csr_matrix(X[:2]), X[1], X[2]), "one row"),
    ):
        with pytest.raises(ValueError, match=message):
            model.learn_one(*vectors)
    assert model.n_rounds_ == 1


BAD_PARAMETERS = [
    (OASIS, "C", 0),
    (OASIS, "C", -1.0),
    (OASIS, "C", np.nan),
    (OASIS, "C", "much"),
    (OASIS, "variant", "PA-III"),
    (OASIS, "projection", "always"),
    (OASIS, "average_from", 0),
    (OASIS, "average_from", 2.5),
    (OASIS, "init", "ones"),
    (OASIS, "init", np.eye(3)),
    (OASIS, "init", np.full((16, 16), np.nan)),
    (OASIS, "block_size", 0),
    (SORS, "block_size", 64),
    (AdaSORS, "block_size", 2),
    (AROMA, "block_size", 64),
    (OASIS, "head_bytes", 0),
    (OASIS, "dtype", "int32"),
    (OGD, "eta", 0.0),
    (OGD, "eta", np.inf),
    (OGD, "schedule", "linear"),
    (SORS, "lam", -1e-9),
    (SORS, "eta", -0.1),
    (AdaSORS, "delta", 0.0),
    (AdaSORS, "lam", np.inf),
    (AdaSORS, "eta", True),
    (AROMA, "r", 0),
    (AROMA, "covariance", "full"),
]


@pytest.mark.parametrize(("cls", "name", "value"), BAD_PARAMETERS)
def test_bad_parameters(cls, name, value):
    model = cls(preprocessor=X, **{name: value})
    with pytest.raises((ValueError, TypeError), match=f"{name}: expected"):
        model.fit(T)
    assert not model.__sklearn_is_fitted__()
    good = cls(preprocessor=X).fit(T)
    untouched = cls(preprocessor=X).fit(T)
    if name != "init":  # the start is only read when a stream begins
        with pytest.raises((ValueError, TypeError), match=f"{name}: expected"):
            good.set_params(**{name: value}).partial_fit(T)
        same_model(good, untouched)


@pytest.mark.parametrize(
    "model",
    [
        OASIS(),
        OASIS(init="zeros", symmetric=True),
        OASIS(init="zeros", projection="end"),
        SORS(init="zeros", off_diagonal=True),
        AdaSORS(init="zeros", off_diagonal=True),
        Dot(),
        Euclidean(),
    ],
    ids=str,
)
def test_two_spaces_have_no_diagonal(model):
    model.set_params(preprocessor=(X, X[:, :7]))
    with pytest.raises(ValueError, match=r"expected one feature space, got 16 .* and 7"):
        model.fit(T)
    assert not model.__sklearn_is_fitted__()


def test_two_spaces_of_one_dimension_share_their_features():
    model = OASIS(preprocessor=(X[:10], X)).fit([[9, 39, 1]])
    assert model.get_bilinear_matrix().shape == (16, 16)
    with pytest.raises(ValueError, match="anchor of tuple 0 must be a row number from 0 to 9"):
        model.partial_fit([[10, 39, 1]])


@pytest.mark.parametrize("block_size", [1, 16])
def test_divergence_is_noticed_before_it_does_harm(block_size):
    big = (items(density=1.0) * 1e25).astype(np.float32)
    for values in (big, sp.csr_matrix(big)):
        model = OGD(eta=1e25, preprocessor=values, block_size=block_size)
        with pytest.raises(DivergedError, match="diverged"):
            model.fit(T)
        # A step so long that float32 cannot hold it.
        model = OASIS(variant="PA", preprocessor=values * np.float32(1e-37), block_size=block_size)
        with pytest.raises(DivergedError, match="diverged"):
            model.fit(T)
        assert np.isfinite(dense(model.get_bilinear_matrix())).all()
        assert model.n_updates_ == 0


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (OASIS(), {"average_from": 3}),
        (OASIS(average_from=3), {"average_from": 4}),
        (SORS(lam=0.0), {"lam": 0.1}),
        (SORS(), {"off_diagonal": True}),
        (AdaSORS(), {"delta": 5.0}),
        (AROMA(), {"covariance": "diagonal-drop"}),
        (AROMA(), {"covariance": "factored"}),
        (AROMA(covariance="factored"), {"covariance": "diagonal"}),
    ],
    ids=str,
)
def test_what_is_stored_cannot_change_its_meaning_in_the_middle_of_a_stream(model, change):
    model.set_params(preprocessor=X).fit(T)
    before = model.decision_function(T)
    with pytest.raises(ValueError, match="cannot change in the middle of a stream"):
        model.set_params(**change).partial_fit(T)
    assert model.n_rounds_ == len(T)
    np.testing.assert_array_equal(model.decision_function(T), before)
    assert np.isfinite(before).all()


def test_steps_and_thresholds_may_change_on_the_way():
    model = SORS(lam=1e-3, eta=0.1, preprocessor=sp.csr_matrix(X)).fit(T)
    model.set_params(lam=1e-2, eta=0.05).partial_fit(T)
    expected = ref.sors(
        ref.sors(np.eye(16), stream(X, T), 1e-3, 0.1)[-1], stream(X, T), 1e-2, 0.05
    )[-1]
    np.testing.assert_allclose(model.get_bilinear_matrix().toarray(), expected, rtol=0, atol=1e-12)


def test_euclidean_is_not_bilinear():
    model = Euclidean(preprocessor=X).fit(T)
    assert not hasattr(model, "transform_query")
    assert not hasattr(model, "get_bilinear_matrix")


def test_k_must_be_positive_and_may_be_large():
    model = OASIS(preprocessor=X).fit(T)
    with pytest.raises(ValueError, match="k: expected an integer >= 1, got 0"):
        model.search(X, X, k=0)
    with pytest.raises(TypeError, match="k: expected an integer"):
        model.search(X, X, k=2.5)
    assert model.search(X, X, k=1000).indices.shape == (40, 40)


def test_from_labels():
    y = np.arange(40) % 2
    for labels, message in (
        (np.zeros(10), "two classes"),
        (np.arange(10), "at least two items"),
        (y[:5], "inconsistent"),
    ):
        with pytest.raises(ValueError, match=message):
            FromLabels(OASIS()).fit(X[:10], labels)
    with pytest.raises(ValueError, match="n_tuples: expected an integer >= 1"):
        FromLabels(OASIS(), n_tuples=0).fit(X, y)
    with pytest.raises(ValueError, match="C: expected"):
        FromLabels(OASIS(C=-1)).fit(X, y)


def test_numbers_must_be_finite_in_the_precision_asked_for():
    big = X.copy()
    big[1, 2] = 1e300
    with pytest.raises(ValueError, match="expected finite numbers, got inf at row 1, column 2"):
        OASIS(dtype="float32", preprocessor=sp.csr_matrix(big)).fit(T)


@pytest.mark.parametrize("learner", [OASIS(init="zeros"), OMTRSL(init="zeros")], ids=repr)
def test_a_fit_that_is_refused_forgets_nothing(learner):
    model = clone(learner).set_params(preprocessor=X).fit(T)
    expected = clone(learner).set_params(preprocessor=X).fit(T)
    model.set_params(normalise=True, preprocessor=(X, X[:, :3]))
    with pytest.raises(ValueError, match="normalise=True: expected one feature space"):
        model.fit(T)
    same_model(expected, model.set_params(normalise=False, preprocessor=X))
    same_model(expected.partial_fit(T), model.partial_fit(T))


def test_a_fit_that_finds_no_room_forgets_nothing(monkeypatch):
    def full(self, device, precision):
        raise MemoryError("the device is full")

    model = OASIS(preprocessor=X).fit(T)
    expected = OASIS(preprocessor=X).fit(T)
    with monkeypatch.context() as patch:
        patch.setattr(DenseEngine, "place", full)
        with pytest.raises(MemoryError, match="full"):
            model.fit(T[:5])
    same_model(expected, model)


@pytest.mark.parametrize("learner", [OASIS(), LDA(), FromLabels(OASIS())])
def test_masked_cells_are_refused(learner):
    """NumPy would go on with the numbers below the mask."""
    items = np.random.default_rng(0).normal(size=(20, 3))
    hidden, whole = (np.ma.masked_array(items, items > limit) for limit in (1, 99))
    labels = np.arange(20) % 2
    with pytest.raises(ValueError, match=r"expected no masked cells, got [1-9]"):
        fitted(learner, hidden, labels)
    fitted(learner, whole, labels)


def fitted(learner, items, labels):
    if isinstance(learner, OASIS):
        return clone(learner).set_params(preprocessor=items).fit([[0, 2, 1]])
    return clone(learner).fit(items, labels)


def test_the_side_with_another_number_of_features_is_named():
    model = OASIS(preprocessor=np.eye(4)).fit([[0, 1, 2]])
    with pytest.raises(ValueError, match=r"^queries: expected 4 features, as in the model, got 5$"):
        model.search(np.ones((1, 5)), np.eye(4))
