"""A learner has a similarity, which scores as the learner does and stays as it is when learning goes on."""

import inspect
import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import simstream
from cases import dense, items, triplets
from simstream import (
    OASIS,
    OGRSL,
    OMLLR,
    OMTRSL,
    OSLLRGS,
    SDCA,
    SORS,
    Bilinear,
    Dot,
    Euclidean,
    Loreta,
    LowRank,
    Mahalanobis,
    PAMetric,
    Tasks,
)
from simstream.catalogue import ALGORITHMS

X, T = items(), triplets()
P = T[:50, :2]
TASKS = np.array(["ann", "bob", "cat"])[np.arange(len(T)) % 3]

#: A learner of each kind, and the class of its similarity.
KINDS = [
    (OASIS(), Bilinear),
    (OASIS(symmetric=True), Bilinear),
    (SORS(lam=1e-3), Bilinear),
    (Dot(), Bilinear),
    (SDCA(random_state=0), Bilinear),
    (Euclidean(), Mahalanobis),
    (PAMetric(), Mahalanobis),
    (PAMetric(projection="every-step"), Mahalanobis),
    (Loreta(4), LowRank),
    (OMLLR(), LowRank),
    (OSLLRGS(output="avg_w"), LowRank),
    (OMTRSL(0.3), Tasks),
    (OGRSL(0.3), Tasks),
]
every_kind = pytest.mark.parametrize(
    ("learner", "kind"), KINDS, ids=[f"{type(a).__name__}-{i}" for i, (a, _) in enumerate(KINDS)]
)


def fitted(learner, convert=np.asarray, part=T):
    model = clone(learner).set_params(preprocessor=convert(X))
    if isinstance(model, OMTRSL):
        return model.fit(part, tasks=TASKS[: len(part)])
    return model.fit(part)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
@every_kind
def test_a_similarity_scores_as_its_learner_and_is_saved(learner, kind, convert, tmp_path):
    model = fitted(learner, convert)
    similarity = model.similarity_
    assert type(similarity) is kind
    assert similarity.shape_ == model.shape_
    assert similarity.dtype_ == model.dtype_
    similarity.save(tmp_path / "s")
    for found in (
        similarity,
        simstream.load(tmp_path / "s", preprocessor=convert(X)),
        pickle.loads(pickle.dumps(similarity)),
        clone(similarity),
    ):
        np.testing.assert_allclose(found.pair_score(P), model.pair_score(P), atol=1e-9)
        np.testing.assert_allclose(
            found.decision_function(T), model.decision_function(T), atol=1e-9
        )
        np.testing.assert_allclose(
            found.score_items(X[:3], X), model.score_items(X[:3], X), atol=1e-9
        )
        assert found.score(T) == model.score(T)
    if kind is Tasks:
        names = [*TASKS[:4], "a stranger"]
        expected = model.triplet_margin(T[:5], names)
        for found in (similarity, simstream.load(tmp_path / "s", preprocessor=convert(X))):
            np.testing.assert_allclose(found.triplet_margin(T[:5], names), expected, atol=1e-11)
            for name in names:
                got = found.transform_query(convert(X[:2]), task=name)
                want = model.transform_query(convert(X[:2]), task=name)
                np.testing.assert_allclose(dense(got), dense(want), atol=1e-11)


@pytest.mark.parametrize(
    "learner", [a for a, _ in KINDS if hasattr(a, "partial_fit")], ids=lambda a: type(a).__name__
)
def test_a_similarity_stays_as_it_is_when_learning_goes_on(learner):
    model = fitted(learner, part=T[:100])
    similarity = model.similarity_
    before = similarity.pair_score(P)
    model.partial_fit(T[100:])
    np.testing.assert_array_equal(similarity.pair_score(P), before)
    changed = not np.allclose(model.pair_score(P), before, rtol=0, atol=1e-9)
    assert changed != isinstance(model, (Dot, Euclidean))


def test_items_are_checked_once_for_a_learner_and_its_similarities(monkeypatch):
    from simstream.data import comparisons

    checked = []
    check = comparisons.check_items
    monkeypatch.setattr(
        comparisons, "check_items", lambda *a, **k: checked.append(a[1]) or check(*a, **k)
    )
    model = OASIS(preprocessor=X).fit(T)
    for _ in range(3):
        model.learn_one(X[0], X[1], X[2])
        model.pair_score(P)
        model.similarity_.pair_score(P)
    assert checked == ["preprocessor"]


@pytest.mark.parametrize("cls", [Bilinear, Mahalanobis])
def test_a_new_matrix_is_used_even_where_it_has_the_address_of_the_old_one(cls):
    model = cls(np.eye(2))
    pair = [[[1.0, 0.0], [0.0, 0.0]]] if cls is Mahalanobis else [[[1.0, 0.0], [1.0, 0.0]]]
    addresses = set()
    for scale in range(1, 200):
        model.set_params(matrix=None)  # let the old one go: of integers, only a copy is kept
        matrix = scale * np.eye(2, dtype=int)
        addresses.add(id(matrix))
        model.set_params(matrix=matrix)
        del matrix
        assert abs(model.pair_score(pair)[0]) == pytest.approx(scale)
    assert len(addresses) < 199  # some address was used again


def test_new_parts_of_tasks_are_used():
    model, pair = Tasks(np.eye(2), {"ann": np.eye(2)}), [[[1.0, 0.0], [1.0, 0.0]]]
    assert model.pair_score(pair, task="ann") == 2.0
    assert model.set_params(common=3 * np.eye(2)).pair_score(pair, task="ann") == 4.0
    assert model.set_params(own={"ann": 4 * np.eye(2)}).pair_score(pair, task="ann") == 7.0


@pytest.mark.parametrize("name", [algorithm.name for algorithm in ALGORITHMS])
def test_at_most_three_own_classes_are_above_an_estimator(name):
    own = [c for c in getattr(simstream, name).__mro__[1:] if c.__module__.startswith("simstream")]
    assert len(own) <= 3, own


@pytest.mark.parametrize(
    "place",
    ["similarity.base.Similarity", "similarity.learner.Learner", "online.base.OnlineLearner"],
)
def test_bases_are_abstract(place):
    module, name = place.rsplit(".", 1)
    base = getattr(__import__(f"simstream.{module}", fromlist=[name]), name)
    assert inspect.isabstract(base)
    with pytest.raises(TypeError, match="abstract"):
        base()


def test_low_rank_factors_are_checked():
    with pytest.raises(ValueError, match="as many columns in both, got 2 and 1"):
        LowRank(np.ones((3, 2)), np.ones((3, 1))).pair_score([[[1.0] * 3, [1.0] * 3]])
    with pytest.raises(ValueError, match="left: expected finite"):
        LowRank(np.full((3, 2), np.nan), np.ones((3, 2))).rank_  # noqa: B018


def test_repr_shows_the_shapes_of_arrays_not_their_numbers():
    model = OASIS(C=0.5, init=np.eye(16), preprocessor=(X, sp.csr_matrix(X)))
    assert repr(model) == (
        "OASIS(C=0.5, init=<16 x 16 ndarray of float64>, "
        "preprocessor=(<40 x 16 ndarray of float64>, <40 x 16 csr_matrix of float64>))"
    )
    assert repr(OASIS(C=0.1)) == "OASIS()"
    assert repr(OASIS(preprocessor=np.eye(20).tolist())) == "OASIS(preprocessor=<list of 20>)"
    wrapper = simstream.FromLabels(OASIS(preprocessor=X))
    assert repr(wrapper) == ("FromLabels(learner=OASIS(preprocessor=<40 x 16 ndarray of float64>))")


@pytest.mark.parametrize(
    "model",
    [
        Bilinear(np.eye(3)),
        LowRank(np.eye(3), np.eye(3)),
        Tasks(np.eye(3), {}),
        Mahalanobis(np.eye(3)),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize(("u", "v"), [((1.0, 2.0), (1.0, 2.0)), ((1.0, 2.0, 3.0), (1.0, 2.0))])
def test_metrics_check_the_number_of_features(model, u, v):
    with pytest.raises(ValueError, match=rf"expected 3 features.* got ({len(u)} and )?2$"):
        model.get_metric()(u, v)


def test_reading_margins_while_another_thread_learns_does_not_disturb_it(monkeypatch):
    from simstream._engines import tasks as engines

    def learner():
        return OMTRSL(block_size=128, preprocessor=X).fit(T, tasks=TASKS)

    undisturbed, model = learner().partial_fit(T, tasks=TASKS), learner()
    mix, depth = engines.mix, []

    def mix_then_read(*args):
        mix(*args)
        if not depth:  # at the moment when another thread would do the most harm
            depth.append(True)
            model.triplet_margin(T[:60], ["bob"] * 60)
            depth.pop()

    monkeypatch.setattr(engines, "mix", mix_then_read)
    model.partial_fit(T, tasks=TASKS)
    for task in ("ann", "bob", "cat"):
        np.testing.assert_array_equal(
            model.get_bilinear_matrix(task), undisturbed.get_bilinear_matrix(task)
        )


PAIR = [[[1.5, 1.0], [1.5, 1.0]]]
ONE = np.eye(2)


@pytest.mark.parametrize(
    ("common", "own", "dtype", "expected"),
    [
        (ONE.astype(int), {"ann": ONE.astype(int)}, None, "float64"),
        ([[1, 0], [0, 1]], {"ann": [[1, 0], [0, 1]]}, None, "float64"),
        (ONE, {"ann": ONE.astype("float32")}, None, "float64"),
        (ONE.astype("float32"), {"ann": ONE}, None, "float64"),
        (ONE.astype("float32"), {"ann": ONE.astype("float32")}, None, "float32"),
        (ONE, {"ann": ONE}, "float32", "float32"),
        (sp.csr_matrix(ONE), {"ann": ONE}, None, "float64"),
        (ONE, {"ann": sp.csr_matrix(ONE)}, None, "float64"),
    ],
)
def test_all_parts_of_tasks_have_one_precision_and_format(common, own, dtype, expected, tmp_path):
    model = Tasks(common, own, dtype=dtype)
    model.save(tmp_path / "tasks")
    for found in (model, simstream.load(tmp_path / "tasks"), pickle.loads(pickle.dumps(model))):
        assert found.dtype_ == expected
        for task in ("ann", "bob"):
            assert type(found.matrix(task)) is np.ndarray
            assert found.matrix(task).dtype == expected
        np.testing.assert_array_equal(found.pair_score(PAIR), [3.25])
        np.testing.assert_array_equal(found.pair_score(PAIR, task="ann"), [6.5])
        np.testing.assert_array_equal(found.transform_query([[1.5, 1.0]], "ann"), [[3.0, 2.0]])


def test_tasks_of_csr_matrices_only_are_csr():
    model = Tasks(sp.csr_matrix(ONE), {"ann": sp.csr_matrix(ONE)})
    assert sp.issparse(model.matrix("ann"))
    np.testing.assert_array_equal(model.matrix("ann").toarray(), 2 * ONE)


@pytest.mark.parametrize(
    ("common", "own", "dtype", "error", "problem"),
    [
        (np.full((2, 2), np.nan), {}, None, ValueError, "common: expected finite"),
        (ONE, {"ann": np.inf * np.ones((2, 2))}, None, ValueError, r"own\['ann'\]: expected fin"),
        (ONE, {}, "int8", ValueError, "dtype: expected"),
        (
            ONE,
            {3: np.eye(3)},
            None,
            ValueError,
            r"own\[3\]: expected shape \(2, 2\), as common has, got \(3, 3\)",
        ),
        (np.ones(2), {}, None, ValueError, "common: expected 2 dimensions"),
        (ONE, [ONE], None, TypeError, "own: expected a mapping of tasks to matrices, got list"),
    ],
)
def test_tasks_are_checked(common, own, dtype, error, problem):
    model = Tasks(common, own, dtype=dtype)
    for use in (
        lambda: model.pair_score(PAIR),
        lambda: model.transform_query([[1.0, 1.0]]),
        lambda: model.matrix(),
        lambda: model.triplet_margin([[[1.0, 1.0]] * 3]),
    ):
        with pytest.raises(error, match=problem):
            use()


def test_matrices_of_tasks_are_checked_once_and_those_of_a_learner_never(monkeypatch):
    from simstream.similarity import tasks as module

    checked, check = [], module.check_items
    monkeypatch.setattr(
        module, "check_items", lambda *a, **k: checked.append(a[1]) or check(*a, **k)
    )
    model = Tasks(ONE, {"ann": ONE})
    for task in ("ann", "bob", "ann"):
        model.pair_score(PAIR, task=task)
        model.transform_query([[1.0, 1.0]], task=task)
    assert checked == ["common", "own['ann']"]
    del checked[:]
    frozen = fitted(OMTRSL(0.3)).similarity_
    frozen.pair_score(P, task="ann")
    frozen.transform_query(X[:2], task="bob")
    assert checked == []
    for copied in (clone(frozen), pickle.loads(pickle.dumps(frozen))):
        copied.pair_score(P, task="ann")
    assert checked == ["common", "common"]  # what tasks learnt on their own is not multiplied out
    copied.set_params(dtype="float32")
    assert copied.matrix("ann").dtype == np.float32
    with pytest.raises(ValueError, match="expected shape"):
        copied.set_params(common=np.eye(3)).matrix()


@every_kind
def test_repr_of_a_similarity_is_short(learner, kind):
    model = fitted(learner)
    assert len(repr(model._similarity())) < 200
    assert repr(model.similarity_).startswith(f"{kind.__name__}(")
    assert len(repr(model.similarity_)) < 200


def test_repr_of_tasks_does_not_show_their_matrices():
    model = Tasks(np.eye(16), {"ann": np.eye(16), "bob": np.eye(16)})
    assert repr(model) == "Tasks(common=<16 x 16 ndarray of float64>, own=<dict of 2>)"


def test_the_similarity_of_a_distance_on_sparse_items_builds_no_matrix_until_it_is_asked_for():
    d = 1500
    wide = sp.random(60, d, density=0.003, format="csr", random_state=0)
    pairs, y = simstream.PairSampler(np.arange(60) % 3, random_state=0).draw(20)
    model = PAMetric(preprocessor=wide).fit(pairs, y)
    expected = model.pair_distance(pairs)
    tracemalloc.start()
    similarity = model.similarity_
    similarity.predict_pairs(pairs)
    found = similarity.pair_distance(pairs)
    repr(similarity)
    pickled = pickle.dumps(similarity)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < d * d * 8 / 4
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(pickle.loads(pickled).pair_distance(pairs), expected)
    np.testing.assert_array_equal(similarity.matrix, model.get_mahalanobis_matrix())


def test_a_distance_of_a_learner_takes_new_parameters():
    model = fitted(PAMetric())
    matrix = model.get_mahalanobis_matrix()
    similarity = model.similarity_
    for q in (2, 3):
        np.testing.assert_allclose(
            similarity.set_params(n_components=q).pair_score(P),
            Mahalanobis(matrix, n_components=q, preprocessor=X).pair_score(P),
            atol=1e-9,
        )
    similarity.set_params(n_components=None, dtype="float32")
    assert similarity.get_mahalanobis_matrix().dtype == np.float32
    np.testing.assert_allclose(similarity.pair_score(P), model.pair_score(P), rtol=1e-4)
    similarity.set_params(matrix=2 * matrix, dtype=None)
    assert similarity.matrix is similarity.get_params()["matrix"]
    np.testing.assert_allclose(similarity.pair_score(P), 2 * model.pair_score(P), atol=1e-9)
    assert "ndarray" in repr(similarity)
