"""What every learner promises, whatever its mathematics.

The kinds below are one case for each engine and entry rule. All other cases differ from one of them in the
length of a step alone, which is tested against the references.
"""

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
from cases import (
    BASELINES,
    CASES,
    LAYOUTS,
    LIST_CASES,
    SHIFTED,
    cells,
    centre_of,
    dense,
    items,
    triplets,
)
from pair_cases import PAIR_CASES

EVERY = [*CASES, *LIST_CASES, *SHIFTED, *BASELINES, *PAIR_CASES]
KINDS = [case for case in EVERY if case.kind]
ONLINE = [case for case in KINDS if case not in BASELINES]


def learners(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.name)


def make(case, layout, **options):
    convert, extra = LAYOUTS[layout]
    if case.blocks:
        options = {"block_size": 1, **options}
    return case.make(preprocessor=convert(items()), **(extra if case.hashes else {}), **options)


def learn_in_parts(model, T):
    for part in np.split(T, [1, 2, 50, 51, 200]):
        model.partial_fit(part)
    return model


def learnt_matrix(model):
    if hasattr(model, "get_bilinear_matrix"):
        return dense(model.get_bilinear_matrix())
    return model.get_mahalanobis_matrix()


def frozen_similarity(model):
    """What `get_metric` returns, as a similarity: for learnt distances it returns the distance."""
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
    """Bit for bit: the counts, and everything the engines keep; on a GPU, which learns tiles, to rounding."""
    (scalars, left), (others, right) = a._engine.state(), b._engine.state()
    device = getattr(a._engine, "device", None)
    tolerance = 1e-10 if device is not None and device.type == "cuda" else 0
    assert scalars == others
    left, right = canonical(left), canonical(right)
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=0, atol=tolerance, err_msg=name)


# -- learning ----------------------------------------------------------------------------------------


@cells(ONLINE)
def test_cutting_the_stream_changes_nothing(case, layout):
    T = triplets()
    same_model(make(case, layout).fit(T), learn_in_parts(make(case, layout), T))


@learners(BASELINES)
def test_baselines_count_what_they_would_have_lost(case):
    T = triplets()
    whole, cut = make(case, "dense").fit(T), learn_in_parts(make(case, "sparse"), T)
    margins = whole.decision_function(T)
    for model in (whole, cut):
        assert model.n_rounds_ == len(T)
        assert model.n_updates_ == 0
        assert model.average_loss_ == pytest.approx(np.maximum(0, 1 - margins).mean())
        assert model.mistake_rate_ == np.mean(margins <= 0)


@learners([case for case in EVERY if case.blocks])
def test_cutting_a_blocked_stream_changes_rounding_at_most(case):
    T = triplets()
    whole = make(case, "dense", block_size=64).fit(T)
    cut = learn_in_parts(make(case, "dense", block_size=64), T)
    np.testing.assert_allclose(learnt_matrix(cut), learnt_matrix(whole), rtol=0, atol=1e-10)
    assert cut.n_updates_ == whole.n_updates_


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@learners(KINDS)
def test_learn_one_is_partial_fit(case, layout):
    T = triplets(n=60)
    whole = make(case, layout).fit(T)
    one = make(case, layout).set_params(preprocessor=None)
    X = whole.preprocessor
    for a, p, n in T:
        one.learn_one(X[a], X[p], X[n])
    if case in BASELINES:
        assert one.average_loss_ == pytest.approx(whole.average_loss_)
    else:
        same_model(whole, one)


@learners(KINDS)
def test_triplets_as_vectors_equal_triplets_as_rows(case):
    T = triplets(n=80)
    rows = make(case, "dense").fit(T)
    vectors = make(case, "dense").set_params(preprocessor=None).fit(items()[T])
    same_model(rows, vectors)
    np.testing.assert_array_equal(rows.pair_score(T[:, :2]), vectors.pair_score(items()[T[:, :2]]))


@learners(KINDS)
def test_dense_and_sparse_items_in_any_order_give_the_same_similarity(case):
    T = triplets()
    expected = make(case, "dense").fit(T).decision_function(T)
    for first, second in (
        ("sparse", "sparse"),
        ("hashed", "hashed"),
        ("dense", "sparse"),
        ("sparse", "dense"),
    ):
        model = make(case, first).fit(T[:100])
        model.set_params(preprocessor=make(case, second).preprocessor).partial_fit(T[100:])
        np.testing.assert_allclose(model.decision_function(T), expected, rtol=0, atol=1e-9)


@cells(KINDS)
def test_inputs_are_neither_changed_nor_kept(case, layout):
    T = triplets()
    model = make(case, layout)
    X = model.preprocessor
    before = X.copy(), T.copy()
    model.fit(T)
    model.search(X, X, k=3)
    np.testing.assert_array_equal(dense(X), dense(before[0]))
    np.testing.assert_array_equal(T, before[1])
    read = getattr(model, "get_bilinear_matrix", None) or model.get_mahalanobis_matrix
    M = read()
    values = M.data if sp.issparse(M) else M
    values += 1.0  # a copy: the model must not notice
    assert not np.array_equal(dense(read()), dense(M))


@learners(KINDS)
def test_clones_are_independent_and_fit_starts_again(case):
    T = triplets()
    model = make(case, "dense").fit(T)
    copy = clone(model)
    with pytest.raises(NotFittedError):
        copy.score(T)
    copy.fit(T)
    same_model(model, copy)
    same_model(model.fit(T), copy)


def test_fit_forgets_the_precision_of_the_last_fit():
    T = triplets(n=20)
    model = simstream.OASIS(preprocessor=items(dtype=np.float32)).fit(T)
    assert model.get_bilinear_matrix().dtype == np.float32
    assert model.set_params(preprocessor=items()).fit(T).get_bilinear_matrix().dtype == np.float64
    assert model.set_params(dtype="float32").fit(T).get_bilinear_matrix().dtype == np.float32


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@learners(
    [case for case in KINDS if case in [*CASES, *LIST_CASES]]
)  # pairs of equal rows: tests/test_pairs.py
def test_equal_rows_are_skipped_and_counted(case, layout):
    X = items()
    X[7] = X[3]
    X[9] = 0
    convert, _ = LAYOUTS[layout]
    model = make(case, layout).set_params(preprocessor=convert(X)).fit(triplets(n=20))
    before, updates = model.n_skipped_, model.n_updates_
    model.partial_fit([[0, 3, 7], [9, 1, 2], [5, 7, 3]])
    assert model.n_skipped_ == before + 3
    assert model.n_updates_ == updates
    assert model.n_rounds_ == 23


@pytest.mark.parametrize("name", ["oasis-pa1", "aroma-factored", "sors2", "listwise"])
@pytest.mark.parametrize("layout", ["dense", "hashed"])
def test_an_interrupted_fit_is_a_shorter_fit(name, layout):
    """Ctrl-C at any moment: what was learnt is exactly the first n_rounds_ triplets."""
    case = next(c for c in EVERY if c.name == name)
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


# -- saving ------------------------------------------------------------------------------------------


def check_that_a_saved_model_goes_on(case, layout, path, **options):
    T = triplets()
    never = make(case, layout, **options).fit(T[:150])
    never.save(path, extra={"position": 150})
    again = simstream.load(path, preprocessor=never.preprocessor)
    assert simstream.read_header(path)["extra"] == {"position": 150}
    assert type(again) is type(never)
    same_model(never, again)
    same_model(never.partial_fit(T[150:]), again.partial_fit(T[150:]))
    np.testing.assert_array_equal(never.decision_function(T), again.decision_function(T))


@cells(KINDS)
def test_saved_and_loaded_goes_on_as_if_never_saved(case, layout, tmp_path):
    check_that_a_saved_model_goes_on(case, layout, tmp_path / "model.safetensors")


@cells([case for case in KINDS if case.averages])
def test_a_saved_average_goes_on_as_if_never_saved(case, layout, tmp_path):
    check_that_a_saved_model_goes_on(case, layout, tmp_path / "m", average_from=100)


@cells(KINDS)
def test_pickled_goes_on_as_if_never_pickled(case, layout):
    T = triplets()
    model = make(case, layout).fit(T[:100])
    again = pickle.loads(pickle.dumps(model))
    same_model(model.partial_fit(T[100:]), again.partial_fit(T[100:]))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("oasis-pa1", {"average_from": 5, "C": 9.0}),
        ("adasors1", {"delta": 7.0, "lam": 0.5}),
        ("aroma", {"covariance": "factored", "r": 77.0}),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_set_after_learning_change_neither_what_is_read_nor_saved(
    name, changes, layout, tmp_path
):
    case = next(c for c in CASES if c.name == name)
    model = make(case, layout).fit(triplets())
    before = dense(model.get_bilinear_matrix())
    model.set_params(**changes)
    model._reads().clear()
    np.testing.assert_array_equal(dense(model.get_bilinear_matrix()), before)
    model.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m")
    np.testing.assert_array_equal(dense(again.get_bilinear_matrix()), before)


# -- scoring -----------------------------------------------------------------------------------------


@cells(KINDS)
def test_scoring_changes_nothing(case, layout):
    T = triplets()
    model, untouched = (make(case, layout).fit(T[:100]) for _ in range(2))
    X = model.preprocessor
    model.pair_score(T[:, :2])
    model.score(T)
    model.search(X[:3], X, k=4)
    model.get_metric()
    assert 0 <= model.sparsity_ <= 1
    assert model.score_items(X, X).shape == (40, 40)
    same_model(model.partial_fit(T[100:]), untouched.partial_fit(T[100:]))


@learners(KINDS)
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
    for rows in (X, sp.csr_matrix(X)):
        similarity = frozen_similarity(model)(rows[3], rows[5])
        assert similarity == pytest.approx(scores[3, 5], abs=1e-9)
    found = model.search(X, X, k=7)
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :7], atol=1e-9)
    np.testing.assert_allclose(
        np.take_along_axis(scores, found.indices, 1), found.scores, atol=1e-9
    )
    if case in [*CASES, *LIST_CASES] or case.name == "dot":
        np.testing.assert_allclose(model.transform_query(X) @ X.T, scores, atol=1e-9)
        np.testing.assert_allclose(X @ model.get_bilinear_matrix() @ X.T, scores, atol=1e-9)
    elif case in SHIFTED:  # inner products with plain items differ by a number for each query
        rows = model.transform_query(X)
        m = centre_of(case)
        np.testing.assert_allclose(rows @ (X - m).T, scores, atol=1e-9)
        np.testing.assert_allclose(rows - rows[:1], (X - X[:1]) @ model.get_bilinear_matrix())
    else:
        M = model.get_mahalanobis_matrix()
        D = X[:, None] - X[None]
        np.testing.assert_allclose(-np.einsum("ijk,kl,ijl->ij", D, M, D), scores, atol=1e-8)


def test_ties_go_to_the_lower_row_number():
    X = np.tile(items(n=8), (5, 1))
    found = simstream.OASIS(preprocessor=X).fit(triplets(n=50)).search(X[:8], X, k=12)
    same = found.scores[:, 1:] == found.scores[:, :-1]
    assert same.sum() >= 8 * 4
    assert (found.indices[:, 1:] > found.indices[:, :-1])[same].all()


def test_euclidean_is_exact_far_from_the_origin():
    X = (items(density=1.0) + 1000).astype(np.float32)
    model = simstream.Euclidean(preprocessor=X).fit(triplets(n=5))
    exact = -((X[:, None].astype(float) - X[None].astype(float)) ** 2).sum(axis=2)
    np.testing.assert_allclose(model.score_items(X, X), exact, rtol=1e-6, atol=1e-6)
    assert (model.score_items(X, X).argmax(axis=1) == np.arange(40)).all()


# -- refusing ----------------------------------------------------------------------------------------


@learners(KINDS)
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


@learners([case for case in EVERY if not case.averages])
def test_an_average_is_refused_by_learners_without_one(case):
    with pytest.raises(TypeError, match="average_from"):
        case.make(average_from=7)


@learners([case for case in CASES if not case.blocks])
def test_blocks_are_refused_by_learners_of_one_triplet_at_a_time(case):
    with pytest.raises(ValueError, match="block_size: expected None or 1, got 7"):
        case.make(block_size=7, preprocessor=items()).fit(triplets(n=20))


@pytest.mark.parametrize("learner", [simstream.OASIS(symmetric=True), simstream.OMTRSL()])
def test_what_is_read_during_learning_is_not_kept_for_later(learner, monkeypatch):
    """Another thread may read in the middle of a call: what it saw must not be served afterwards."""
    T, X = triplets(), items()
    model = learner.set_params(preprocessor=X).fit(T[:50])
    learn = type(model._engine).learn

    def learn_and_be_read(engine, step, tuples, block_size):
        learn(engine, step, tuples.part(0, 20), block_size)
        model.score_items(X[:2], X)
        learn(engine, step, tuples.part(20, len(tuples)), block_size)

    with monkeypatch.context() as patch:
        patch.setattr(type(model._engine), "learn", learn_and_be_read)
        model.partial_fit(T[50:])
    expected = clone(learner).set_params(preprocessor=X).fit(T)
    np.testing.assert_allclose(
        model.score_items(X[:5], X), expected.score_items(X[:5], X), rtol=1e-9
    )
