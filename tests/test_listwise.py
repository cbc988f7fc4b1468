"""The listwise softmax learner against its textbook version."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import simstream_repro.reference as ref
from cases import LAYOUTS, dense, items, triplets
from simstream import DivergedError, FromLabels, ListwiseSoftmax, TripletSampler, load
from simstream._kernels.listwise import implicit_step
from test_contract import same_model

TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
STEP = {"eta": 0.05, "temperature": 0.7, "n_steps": 3}


def lists(seed=0, n=200, n_items=40, k=6, n_candidates=None, n_relevant=1):
    """Lists of up to k negatives: some are padded with -1, at the end or in between."""
    rng = np.random.default_rng(seed + 2000)
    size = n_relevant + k
    found = np.array([rng.choice(n_candidates or n_items, size, replace=False) for _ in range(n)])
    padded = rng.random((n, size)) < 0.2
    padded[:, [0, -1]] = False
    found[padded] = -1
    return np.column_stack([rng.integers(0, n_items, n), found])


def stream(X, L, right=None, n_relevant=1):
    """The same lists as vectors in float64, for the references."""
    X = np.asarray(X, np.float64)
    Y = X if right is None else np.asarray(right, np.float64)
    parts = [(one[0], *np.split(one[1:], [n_relevant])) for one in L]
    return [(X[q], Y[r[r >= 0]], Y[n[n >= 0]]) for q, r, n in parts]


def make(layout, dtype=np.float64, **options):
    convert, extra = LAYOUTS[layout]
    return ListwiseSoftmax(preprocessor=convert(items(dtype=dtype)), **{**STEP, **extra, **options})


def one_list(seed=0, n_relevant=3, n_negatives=8, d=6, dtype=np.float64):
    rng = np.random.default_rng(seed)
    q, relevant, negatives = (rng.normal(size=s) for s in ((d,), (n_relevant, d), (n_negatives, d)))
    return q.astype(dtype), relevant.astype(dtype), negatives.astype(dtype)


# -- the step of the kernels ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_steps", [1, 5])
@pytest.mark.parametrize("n_relevant", [1, 3])
def test_step_equals_the_textbook(n_relevant, n_steps, dtype):
    q, relevant, negatives = one_list(n_relevant=n_relevant, dtype=dtype)
    t = 2 * q
    loss, margin = implicit_step(t, float(q @ q), relevant, negatives, 0.3, 0.7, n_steps)
    M = 2 * np.eye(len(q))
    assert loss == pytest.approx(ref.softmax_loss(M, q, relevant, negatives, 0.7), rel=1e-5)
    assert margin == pytest.approx((relevant @ q).min() * 2 - (negatives @ q).max() * 2, rel=1e-5)
    stream = [(q.astype(float), relevant.astype(float), negatives.astype(float))]
    expected = ref.listwise(M, stream, 0.3, 0.7, n_steps)[-1].T @ q
    np.testing.assert_allclose(t, expected, rtol=0, atol=10 * TOLERANCE[dtype])


def test_step_is_along_the_gradient_of_the_loss():
    """By finite differences of the loss, entry by entry of M."""
    q, relevant, negatives = one_list(d=4)
    M, h = np.random.default_rng(1).normal(size=(4, 4)), 1e-6
    gradient = np.zeros((4, 4))
    for i, j in np.ndindex(4, 4):
        change = np.zeros((4, 4))
        change[i, j] = h
        gradient[i, j] = (
            ref.softmax_loss(M + change, q, relevant, negatives, 0.8)
            - ref.softmax_loss(M - change, q, relevant, negatives, 0.8)
        ) / (2 * h)
    t = q @ M
    before = t.copy()
    implicit_step(t, float(q @ q), relevant, negatives, 0.5, 0.8, 1)
    moved = np.outer(q, t - before) / (q @ q)
    np.testing.assert_allclose(moved, -0.5 * 0.8**2 * gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e150])
def test_step_is_safe_for_scores_of_any_size(scale):
    q, relevant, negatives = one_list(n_relevant=2)
    for sign in (1.0, -1.0):
        t = sign * scale * relevant.sum(axis=0)
        loss, margin = implicit_step(t, float(q @ q), relevant, negatives, 1.0, 0.05, 5)
        assert np.isfinite([loss, margin, *t]).all()
        assert loss >= 0


def test_step_without_either_kind_of_item_does_nothing():
    q, relevant, negatives = one_list()
    for some, others in ((relevant[:0], negatives), (relevant, negatives[:0])):
        t = q.copy()
        assert implicit_step(t, float(q @ q), some, others, 1.0, 0.1, 5) == (0.0, 0.0)
        np.testing.assert_array_equal(t, q)


# -- the learner ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_equal_the_textbook(layout, dtype):
    L = lists()
    path = ref.listwise(np.eye(16), stream(items(), L), *STEP.values())
    for block_size in (1, 7, None):
        model = make(layout, dtype, block_size=block_size).fit(L)
        got = model.get_bilinear_matrix()
        assert got.dtype == dtype
        assert sp.issparse(got) == (layout != "dense")
        np.testing.assert_allclose(dense(got), path[-1], rtol=0, atol=TOLERANCE[dtype])
        averaged = make(layout, dtype, block_size=block_size, average_from=30).fit(L)
        np.testing.assert_allclose(
            dense(averaged.get_bilinear_matrix()),
            ref.average(path, 30),
            rtol=0,
            atol=TOLERANCE[dtype],
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_relevant_items(layout):
    """Up to three of them, in the same kind of list for all."""
    L = lists(n_relevant=3)
    told = stream(items(), L, n_relevant=3)
    assert {len(relevant) for _, relevant, _ in told} == {1, 2, 3}
    path = ref.listwise(np.eye(16), told, *STEP.values())
    model = make(layout, n_relevant=3).fit(L)
    got = dense(model.get_bilinear_matrix())
    np.testing.assert_allclose(got, path[-1], rtol=0, atol=1e-12)
    losses = [ref.softmax_loss(M, *s, 0.7) for M, s in zip(path, told, strict=False)]
    assert model.average_loss_ == pytest.approx(np.mean(losses))
    one = make(layout, n_relevant=3, block_size=1).set_params(preprocessor=None)
    X = LAYOUTS[layout][0](items())
    for query, *entry in L:
        relevant, negatives = (
            np.array([i for i in part if i >= 0]) for part in (entry[:3], entry[3:])
        )
        one.learn_one(X[query], X[relevant], X[negatives])
    np.testing.assert_allclose(dense(one.get_bilinear_matrix()), path[-1], rtol=0, atol=1e-12)
    with pytest.raises(
        ValueError, match="expected at least one relevant item in list 0, got only -1"
    ):
        model.partial_fit([[0, -1, -1, -1, 3]])
    with pytest.raises(ValueError, match="relevant item 5 of list 1 is also one of its negatives"):
        model.partial_fit([[0, 1, -1, -1, 3], [0, 1, 5, -1, 5]])
    with pytest.raises(ValueError, match=r"expected shape \(n, 4 \+ k\)"):
        model.partial_fit([[0, 1, 2, 3]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts(layout):
    L = lists()
    told = stream(items(), L)
    path = ref.listwise(np.eye(16), told, *STEP.values())
    losses = np.array([ref.softmax_loss(M, *s, 0.7) for M, s in zip(path, told, strict=False)])
    margins = np.array(
        [
            (r @ M.T @ q).min() - (n @ M.T @ q).max()
            for M, (q, r, n) in zip(path, told, strict=False)
        ]
    )
    model = make(layout).fit(L)
    assert model.n_rounds_ == model.n_updates_ == len(L)
    assert model.n_skipped_ == 0
    assert model.average_loss_ == pytest.approx(losses.mean())
    assert model.mistake_rate_ == np.mean(margins <= 0)
    assert model.violation_rate_ == np.mean(losses > np.log(2))  # less than half of the probability


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_of_two_item_spaces(layout):
    convert, extra = LAYOUTS[layout]
    Q, X = items(1, n=20, d=11), items(2, n=30, d=17)
    L = lists(n=100, n_items=20, n_candidates=30)
    model = ListwiseSoftmax(preprocessor=(convert(Q), convert(X)), init="zeros", **STEP, **extra)
    expected = ref.listwise(np.zeros((11, 17)), stream(Q, L, X), *STEP.values())[-1]
    got = dense(model.fit(L).get_bilinear_matrix())
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cutting_a_stream_of_lists_changes_nothing(layout):
    L = lists()
    whole, cut = (make(layout, block_size=1, average_from=30) for _ in range(2))
    whole.fit(L)
    for part in np.split(L, [1, 50, 51, 130]):
        cut.partial_fit(part)
    same_model(whole, cut)
    blocked = make(layout).partial_fit(L[:77]).partial_fit(L[77:])
    np.testing.assert_allclose(
        dense(blocked.get_bilinear_matrix()),
        dense(make(layout).fit(L).get_bilinear_matrix()),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saved_in_the_middle_of_a_stream_of_lists(layout, tmp_path):
    L = lists()
    model = make(layout, average_from=9).fit(L[:120])
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", preprocessor=model.preprocessor)
    same_model(model.partial_fit(L[120:]), again.partial_fit(L[120:]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_is_no_item(layout):
    """Wherever it is, and however long other lists of the call are."""
    L = lists(k=4)
    wide = np.full((len(L), 9), -1)
    wide[:, [0, 1, 3, 4, 6, 8]] = L[:, [0, 1, 2, 3, 4, 5]]
    same_model(make(layout, block_size=1).fit(L), make(layout, block_size=1).fit(wide))


def test_dense_models_go_on_with_sparse_lists():
    L, X = lists(), items()
    expected = make("dense").fit(L).get_bilinear_matrix()
    mixed = make("dense").fit(L[:90]).set_params(preprocessor=sp.csr_matrix(X)).partial_fit(L[90:])
    np.testing.assert_allclose(mixed.get_bilinear_matrix(), expected, rtol=0, atol=1e-12)


def test_sparse_lists_that_outgrow_their_tables():
    """Most entries are in hash tables, which are enlarged many times."""
    X = items(n=60, d=600, density=0.1)
    L = lists(n=60, n_items=60)
    model = ListwiseSoftmax(preprocessor=sp.csr_matrix(X), head_bytes=8 * 20 * 20, **STEP)
    slots = len(model.partial_fit(L[:1])._engine.arrays.key)
    model.partial_fit(L[1:])
    assert len(model._engine.arrays.key) > slots
    expected = ref.listwise(np.eye(600), stream(X, L), *STEP.values())[-1]
    np.testing.assert_allclose(model.get_bilinear_matrix().toarray(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_learn_one_list(layout):
    L = lists(n=40)
    whole = make(layout, block_size=1).fit(L)
    one = make(layout, block_size=1).set_params(preprocessor=None)
    X = whole.preprocessor
    for query, relevant, *negatives in L:
        one.learn_one(X[query], X[relevant], X[[n for n in negatives if n >= 0]])
    same_model(whole, one)
    with pytest.raises(ValueError, match="negative: expected as many features as the positive"):
        one.learn_one(X[0], X[1], np.ones((3, 5)))
    with pytest.raises(ValueError, match="negative: expected at least one item"):
        one.learn_one(X[0], X[1], np.ones((0, 16)))
    with pytest.raises(ValueError, match="positive: expected at most n_relevant=1 items, got 2"):
        one.learn_one(X[0], X[[1, 2]], X[3])
    same_model(whole, one)


def test_lists_as_vectors():
    L = lists()
    L = L[(L >= 0).all(axis=1)]
    rows = make("dense").fit(L)
    same_model(rows, make("dense").set_params(preprocessor=None).fit(items()[L]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_without_a_direction_are_skipped(layout):
    convert, _ = LAYOUTS[layout]
    X = items()
    X[[7, 8]] = X[3]
    X[9] = 0
    model = make(layout).set_params(preprocessor=convert(X)).fit(lists(n=20))
    before, skipped = dense(model.get_bilinear_matrix()), model.n_skipped_
    model.partial_fit([[0, 3, 7, 8, 7], [9, 1, 2, 4, -1], [5, 7, -1, 3, 8]])
    assert model.n_skipped_ == skipped + 3
    np.testing.assert_array_equal(dense(model.get_bilinear_matrix()), before)


def test_small_queries_and_items_move_the_matrix_too():
    """The change of M is not lost in M'q, which is far larger."""
    q, relevant, negatives = one_list(n_relevant=1)
    q = (q * 1e-9).astype(np.float32)
    rows = np.vstack([q, relevant, negatives]).astype(np.float32)
    model = ListwiseSoftmax(1.0, 0.5, 3, preprocessor=rows).fit([[0, *range(1, 10)]])
    told = [(rows[0].astype(float), rows[1:2].astype(float), rows[2:].astype(float))]
    expected = ref.listwise(np.eye(6), told, 1.0, 0.5, 3)[-1] - np.eye(6)
    moved = model.get_bilinear_matrix()
    moved[np.diag_indices(6)] = np.diag(expected)  # float32 beside a one
    np.testing.assert_allclose(moved, expected, rtol=1e-4)


def test_loss_falls_along_the_stream():
    """One list again and again: the loss falls to nothing, whatever the step."""
    for eta in (0.01, 1.0, 100.0):
        X = items() / np.linalg.norm(items(), axis=1, keepdims=True)
        L = lists(n=1)
        model = ListwiseSoftmax(eta, 0.1, 5, preprocessor=X)
        losses = []
        for _ in range(30):
            before = model.average_loss_ * model.n_rounds_ if losses else 0.0
            model.partial_fit(L)
            losses.append(model.average_loss_ * model.n_rounds_ - before)
        assert losses[-1] < 0.9 * losses[0]


# -- refusing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            [[0, 1]],
            ValueError,
            r"expected shape \(n, 2 \+ k\).*triplets have one of each.*got \(1, 2\)",
        ),
        (np.empty((0, 4), int), ValueError, "expected at least one, got none"),
        ([[0.0, 1.0, 2.0]], TypeError, "expected integers, got dtype float64"),
        (
            [[0, 1, 2], [40, 1, 2]],
            ValueError,
            "query of list 1 must be a row number from 0 to 39, got 40",
        ),
        ([[-1, 1, 2]], ValueError, "query of list 0 must be a row number from 0 to 39, got -1"),
        (
            [[0, -1, 2]],
            ValueError,
            "relevant item of list 0 must be a row number from 0 to 39, got -1",
        ),
        ([[0, 1, 2, -2]], ValueError, r"negative of list 0 .*39 \(or -1, no item\), got -2"),
        ([[0, 1, 2, 40]], ValueError, "negative of list 0 .*got 40"),
        ([[0, 1, 2, 3], [0, 1, -1, -1]], ValueError, "expected at least one negative in list 1"),
        ([[0, 1, 2, 1]], ValueError, "relevant item 1 of list 0 is also one of its negatives"),
        (np.full((1, 3), 2**64 - 1, np.uint64), ValueError, "expected row numbers, got 18446744"),
        (np.ones((2, 2, 16)), ValueError, r"expected shape \(n, 2 \+ k, d\)"),
        (np.full((2, 4, 16), np.nan), ValueError, "lists: expected finite numbers, got nan"),
        (np.ones((0, 4, 16)), ValueError, "expected at least one, got none"),
        (np.ones((1, 4, 15)), ValueError, "expected 16 features"),
        (sp.csr_matrix(np.eye(3)), TypeError, "lists: expected an array, got a sparse matrix"),
    ],
)
def test_bad_lists_are_refused_before_anything_changes(given, error, message):
    model = make("dense").fit(lists())
    untouched = clone(model).fit(lists())
    with pytest.raises(error, match=message):
        model.partial_fit(given)
    same_model(model, untouched)


def test_lists_of_row_numbers_need_items():
    with pytest.raises(ValueError, match="preprocessor: expected items"):
        ListwiseSoftmax().fit([[0, 1, 2, 3]])
    with pytest.raises(ValueError, match="lists: expected row numbers of shape"):
        ListwiseSoftmax().fit([[0.5, 1.0, 2.0]])


@pytest.mark.parametrize(
    ("name", "value"),
    [("eta", 0.0), ("eta", np.inf), ("temperature", 0.0), ("temperature", np.nan), ("n_steps", 0)],
)
def test_bad_parameters_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        make("dense", **{name: value}).fit(lists())


@pytest.mark.parametrize("block_size", [1, 5, None])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_divergence_stops_before_the_list_that_overflows(layout, block_size):
    convert, _ = LAYOUTS[layout]
    X = items()
    X[20:] *= 1e200
    L = lists(n=30, n_items=20, n_candidates=20)
    bad = np.concatenate([L[:12], [[25, 26, 27, -1, -1, -1, -1, -1]], L[12:]])
    model = make(layout, block_size=block_size).set_params(preprocessor=convert(X))
    with pytest.raises(DivergedError, match="round 13"):
        model.fit(bad)
    assert model.n_rounds_ == 12
    expected = ref.listwise(np.eye(16), stream(X, L[:12]), *STEP.values())[-1]
    got = dense(model.get_bilinear_matrix())
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


# -- from labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_from_labels_draws_lists(convert):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.normal(size=(60, 8)) + 2 * np.eye(3, 8)[y]
    learner = ListwiseSoftmax(1.0, 0.5)
    model = FromLabels(learner, n_tuples=80, random_state=0, n_negatives=7).fit(convert(X), y)
    assert model.learner_.n_rounds_ == 80
    drawn = TripletSampler(y, _generator_of(model)).draw_lists(80, 7)
    expected = clone(learner).set_params(preprocessor=convert(X)).fit(drawn)
    same_model(model.learner_, expected)
    model.partial_fit(convert(X), y)
    assert model.learner_.n_rounds_ == 160
    assert (model.predict(convert(X)) == y).mean() > 0.8


def _generator_of(model):
    from simstream.similarity.learner import new_generator

    return new_generator(model.random_state)


def test_from_labels_draws_the_relevant_items_that_the_learner_takes():
    X, y = items(), np.arange(40) % 4
    learner = ListwiseSoftmax(0.1, 1.0, n_relevant=3)
    model = FromLabels(learner, n_tuples=50, random_state=0, n_negatives=5).fit(X, y)
    sampler = TripletSampler(y, _generator_of(model))
    drawn = sampler.draw_lists(50, 5)
    more = sampler.draw_positives(drawn[:, 0], 2)
    assert more.shape == (50, 2)
    assert (y[more] == y[drawn[:, :1]]).all()
    assert (more != drawn[:, :1]).all()
    expected = clone(learner).set_params(preprocessor=X)
    expected.fit(np.column_stack([drawn[:, :2], more, drawn[:, 2:]]))
    same_model(model.learner_, expected)


def test_from_labels_takes_as_many_negatives_as_there_are():
    X, y = items(n=6), np.array([0, 0, 0, 0, 1, 1])
    model = FromLabels(ListwiseSoftmax(0.1, 1.0), n_tuples=20, random_state=0).fit(X, y)
    assert model.learner_.n_rounds_ == 20
    with pytest.raises(ValueError, match="n_negatives: expected an integer >= 1"):
        FromLabels(ListwiseSoftmax(), n_negatives=0).fit(X, y)


def test_from_labels_draws_triplets_where_asked_to():
    X, y = items(), np.arange(40) % 4
    model = FromLabels(ListwiseSoftmax(0.1, 1.0), n_tuples=50, random_state=0, tuples="triplets")
    drawn = TripletSampler(y, _generator_of(model)).draw(50)
    expected = ListwiseSoftmax(0.1, 1.0, preprocessor=X).fit(drawn)
    same_model(model.fit(X, y).learner_, expected)


def test_triplets_are_lists_with_one_negative():
    """Their loss is the logistic one, log(1 + exp(-margin / temperature))."""
    T = triplets(n=50)
    model = make("dense").fit(T)
    path = ref.listwise(np.eye(16), stream(items(), T), *STEP.values())
    margins = [
        q @ M @ (r[0] - n[0]) for M, (q, r, n) in zip(path, stream(items(), T), strict=False)
    ]
    assert model.average_loss_ == pytest.approx(np.logaddexp(0, -np.array(margins) / 0.7).mean())
