"""What every learner promises, whatever its mathematics."""

import contextlib
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import simstream
from cases import BASELINES, CASES, LAYOUTS, dense, items, triplets
from pair_cases import PAIR_CASES

EVERY = [*CASES, *BASELINES, *PAIR_CASES]
every_learner = pytest.mark.parametrize("case", EVERY, ids=lambda c: c.name)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def make(case, layout, **options):
    convert, extra = LAYOUTS[layout]
    if case in BASELINES or not case.hashes:
        extra = {}
    if case not in BASELINES and case.blocks:
        options = {"block_size": 1, **options}
    return case.make(preprocessor=convert(items()), **extra, **options)


def frozen_similarity(model):
    """What `get_metric` returns, as a similarity: learnt distances are distances there."""
    metric = model.get_metric()
    return (lambda u, v: -(metric(u, v) ** 2)) if hasattr(model, "transform") else metric


def canonical(state):
    """The columns of a row may be stored in any order: sort them."""
    if "indices" in state:
        rows = np.repeat(np.arange(len(state["indptr"]) - 1), np.diff(state["indptr"]))
        order = np.lexsort([state["indices"], rows])
        state = {**state, "indices": state["indices"][order], "numbers": state["numbers"][order]}
    return state


def same_model(a, b):
    """Bit for bit: the counts, and everything the engines keep."""
    (scalars, left), (others, right) = a._engine.state(), b._engine.state()
    assert scalars == others
    left, right = canonical(left), canonical(right)
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@every_layout
@every_learner
def test_cutting_the_stream_changes_nothing(case, layout):
    T = triplets()
    whole = make(case, layout).fit(T)
    cut = make(case, layout)
    for part in np.split(T, [1, 2, 50, 51, 200]):
        cut.partial_fit(part)
    if case in BASELINES:
        assert cut.average_loss_ == pytest.approx(whole.average_loss_)
    else:
        same_model(whole, cut)


@pytest.mark.parametrize("case", [c for c in CASES if c.blocks], ids=lambda c: c.name)
def test_cutting_a_blocked_stream_changes_rounding_at_most(case):
    T = triplets()
    whole = make(case, "dense", block_size=64).fit(T)
    cut = make(case, "dense", block_size=64)
    for part in np.split(T, [1, 2, 50, 51, 200]):
        cut.partial_fit(part)
    np.testing.assert_allclose(
        cut.get_bilinear_matrix(), whole.get_bilinear_matrix(), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@every_learner
def test_learn_one_is_partial_fit(case, layout):
    T = triplets(n=60)
    whole = make(case, layout).fit(T)
    one = make(case, layout).set_params(preprocessor=None)
    X = whole.preprocessor
    for a, p, n in T:
        vectors = [X[i] for i in (a, p, n)]
        one.learn_one(*vectors)
    if case in BASELINES:
        assert one.average_loss_ == pytest.approx(whole.average_loss_)
    else:
        same_model(whole, one)


@pytest.mark.parametrize("average", [False, True])
@every_layout
@every_learner
def test_saved_and_loaded_goes_on_as_if_never_saved(case, layout, average, tmp_path):
    if average and not case.averages:
        pytest.skip("no average")
    options = {"average_from": 100} if average else {}
    T = triplets()
    never = make(case, layout, **options).fit(T[:150])
    never.save(tmp_path / "model.safetensors", extra={"position": 150})
    again = simstream.load(tmp_path / "model.safetensors", preprocessor=never.preprocessor)
    assert simstream.read_header(tmp_path / "model.safetensors")["extra"] == {"position": 150}
    assert type(again) is type(never)
    same_model(never, again)
    same_model(never.partial_fit(T[150:]), again.partial_fit(T[150:]))
    np.testing.assert_array_equal(never.decision_function(T), again.decision_function(T))


@every_learner
def test_triplets_as_vectors_equal_triplets_as_rows(case):
    T = triplets(n=80)
    rows = make(case, "dense").fit(T)
    vectors = make(case, "dense").set_params(preprocessor=None).fit(items()[T])
    same_model(rows, vectors)
    np.testing.assert_array_equal(rows.pair_score(T[:, :2]), vectors.pair_score(items()[T[:, :2]]))


@every_learner
def test_dense_and_sparse_items_give_the_same_similarity(case):
    T = triplets()
    models = [make(case, layout).fit(T) for layout in LAYOUTS]
    for other in models[1:]:
        np.testing.assert_allclose(
            models[0].decision_function(T), other.decision_function(T), rtol=0, atol=1e-9
        )


@every_learner
def test_mixing_dense_and_sparse_input(case):
    T = triplets()
    for first, second in (("dense", "sparse"), ("sparse", "dense")):
        model = make(case, first).fit(T[:100])
        model.set_params(preprocessor=make(case, second).preprocessor).partial_fit(T[100:])
        expected = make(case, "dense").fit(T).decision_function(T)
        np.testing.assert_allclose(model.decision_function(T), expected, rtol=0, atol=1e-9)


@every_layout
@every_learner
def test_inputs_are_neither_changed_nor_kept(case, layout):
    T = triplets()
    model = make(case, layout)
    X = model.preprocessor
    before = X.copy(), T.copy()
    model.fit(T)
    model.search(X, X, k=3)
    np.testing.assert_array_equal(dense(X), dense(before[0]))
    np.testing.assert_array_equal(T, before[1])
    if hasattr(model, "get_bilinear_matrix"):
        M = model.get_bilinear_matrix()
        values = M.data if sp.issparse(M) else M
        values += 1.0  # a copy: the model must not notice
        assert not np.array_equal(dense(model.get_bilinear_matrix()), dense(M))


@every_layout
@every_learner
def test_scoring_changes_nothing(case, layout):
    T = triplets()
    model = make(case, layout).fit(T[:100])
    untouched = make(case, layout).fit(T[:100])
    X = model.preprocessor
    model.pair_score(T[:, :2])
    model.score(T)
    model.search(X[:3], X, k=4)
    model.get_metric()
    assert 0 <= model.sparsity_ <= 1
    assert model.score_items(X, X).shape == (40, 40)
    same_model(model.partial_fit(T[100:]), untouched.partial_fit(T[100:]))


@every_learner
def test_methods_agree_with_each_other(case):
    T = triplets()
    model = make(case, "dense").fit(T)
    X = model.preprocessor
    scores = model.score_items(X, X)
    np.testing.assert_allclose(model.pair_score(T[:, :2]), scores[T[:, 0], T[:, 1]], atol=1e-9)
    margins = scores[T[:, 0], T[:, 1]] - scores[T[:, 0], T[:, 2]]
    np.testing.assert_allclose(model.decision_function(T), margins, atol=1e-9)
    np.testing.assert_array_equal(model.predict(T), np.where(model.decision_function(T) > 0, 1, -1))
    assert model.score(T) == np.mean(model.predict(T) == 1)
    assert frozen_similarity(model)(X[3], X[5]) == pytest.approx(scores[3, 5], abs=1e-9)
    found = model.search(X, X, k=7)
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :7], atol=1e-9)
    np.testing.assert_allclose(
        np.take_along_axis(scores, found.indices, 1), found.scores, atol=1e-9
    )
    if hasattr(model, "transform_query"):
        np.testing.assert_allclose(model.transform_query(X) @ X.T, scores, atol=1e-9)
        np.testing.assert_allclose(X @ model.get_bilinear_matrix() @ X.T, scores, atol=1e-9)


@every_learner
def test_clones_are_independent_and_fit_starts_again(case):
    T = triplets()
    model = make(case, "dense").fit(T)
    copy = clone(model)
    with pytest.raises(NotFittedError):
        copy.score(T)
    copy.fit(T)
    same_model(model, copy)
    same_model(model.fit(T), copy)


@every_layout
@every_learner
def test_pickle(case, layout):
    T = triplets()
    model = make(case, layout).fit(T[:100])
    again = pickle.loads(pickle.dumps(model))
    same_model(model.partial_fit(T[100:]), again.partial_fit(T[100:]))


@every_learner
def test_an_unfitted_model_says_so(case):
    model = make(case, "dense")
    X = model.preprocessor
    calls = [
        lambda: model.score(triplets()),
        lambda: model.pair_score([[0, 1]]),
        lambda: model.search(X, X),
        lambda: model.score_items(X, X),
        lambda: model.get_metric(),
        lambda: model.n_rounds_,
        lambda: model.save("never-written"),
    ]
    for call in calls:
        with pytest.raises(NotFittedError, match="has not learnt anything yet"):
            call()


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@every_learner
def test_equal_rows_are_skipped_and_counted(case, layout):
    X = items()
    X[7] = X[3]
    X[9] = 0
    convert, _ = LAYOUTS[layout]
    model = make(case, layout).set_params(preprocessor=convert(X))
    model.fit(triplets(n=20))
    if case in BASELINES or case in PAIR_CASES:  # pairs of equal rows: tests/test_pairs.py
        return
    before, updates = model.n_skipped_, model.n_updates_
    model.partial_fit([[0, 3, 7], [9, 1, 2], [5, 7, 3]])
    assert model.n_skipped_ == before + 3
    assert model.n_updates_ == updates
    assert model.n_rounds_ == 23


def test_fit_forgets_the_precision_of_the_last_fit():
    T = triplets(n=20)
    model = simstream.OASIS(preprocessor=items(dtype=np.float32)).fit(T)
    assert model.get_bilinear_matrix().dtype == np.float32
    assert model.set_params(preprocessor=items()).fit(T).get_bilinear_matrix().dtype == np.float64
    assert model.set_params(dtype="float32").fit(T).get_bilinear_matrix().dtype == np.float32


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (CASES[0], {"average_from": 5, "C": 9.0}),
        (next(c for c in CASES if c.name == "adasors1"), {"delta": 7.0, "lam": 0.5}),
        (next(c for c in CASES if c.name == "aroma"), {"covariance": "factored", "r": 77.0}),
    ],
    ids=lambda v: getattr(v, "name", None),
)
@every_layout
def test_parameters_set_after_learning_change_neither_what_is_read_nor_saved(
    case, changes, layout, tmp_path
):
    T = triplets()
    model = make(case, layout).fit(T)
    before = dense(model.get_bilinear_matrix())
    model.set_params(**changes)
    model._read_cache = None
    np.testing.assert_array_equal(dense(model.get_bilinear_matrix()), before)
    model.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m")
    np.testing.assert_array_equal(dense(again.get_bilinear_matrix()), before)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
@every_learner
def test_metric_is_the_similarity_of_two_vectors(case, convert):
    T = triplets(n=50)
    model = make(case, "dense").fit(T)
    X = convert(items())
    expected = model.pair_score([[3, 5]])[0]
    assert frozen_similarity(model)(X[3], X[5]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["oasis-pa1", "aroma-factored", "sors2"])
@pytest.mark.parametrize("layout", ["dense", "hashed"])
def test_an_interrupted_fit_is_a_shorter_fit(name, layout):
    """Ctrl-C at any moment: what was learnt is exactly the first n_rounds_ triplets."""
    case = next(c for c in CASES if c.name == name)
    T = np.tile(triplets(), (400, 1))
    options = {"average_from": 3} if case.averages else {}
    if layout == "dense" and case.blocks:
        options["block_size"] = 16
    make(case, layout, **options).fit(T[:40])
    for delay in (0.02, 0.05, 0.11):
        model = make(case, layout, **options)
        timer = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        with contextlib.suppress(KeyboardInterrupt):
            timer.start()
            model.fit(T)
            timer.join()
            time.sleep(0.1)  # the signal comes for certain before the block ends
        n = model.n_rounds_
        expected = make(case, layout, **options).fit(T[:n])
        same_model(model, expected)


def test_euclidean_is_exact_far_from_the_origin():
    X = (items(density=1.0) + 1000).astype(np.float32)
    model = simstream.Euclidean(preprocessor=X).fit(triplets(n=5))
    exact = -((X[:, None].astype(float) - X[None].astype(float)) ** 2).sum(axis=2)
    np.testing.assert_allclose(model.score_items(X, X), exact, rtol=1e-6, atol=1e-6)
    assert (model.score_items(X, X).argmax(axis=1) == np.arange(40)).all()
