"""Scale of the first matrix, centring, and a term of the items alone."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import simstream
import simstream_repro.reference as ref
from cases import (
    CONSTANT,
    LAYOUTS,
    SCALE,
    SHIFTED,
    cells,
    centre_of,
    dense,
    items,
    stream,
    triplets,
)
from simstream import AROMA, OASIS, OGD, SORS, AdaSORS, Bilinear, FromLabels
from simstream.search import ExactIndex

TOLERANCE = {np.float64: 1e-11, np.float32: 5e-5}


def start(d=16):
    """The first matrix, with a row for the constant feature."""
    return np.vstack([SCALE * np.eye(d), np.zeros((1, d))])


def expected_path(case, X, T, right=None):
    return case.reference(
        start(), list(ref.shifted(stream(X, T, right), centre_of(case), CONSTANT))
    )


# -- the mathematics ---------------------------------------------------------------------------------


@cells(SHIFTED, dtypes=[np.float64, np.float32])
def test_equals_eager(case, layout, dtype):
    convert, extra = LAYOUTS[layout]
    X, T = items(dtype=dtype), triplets()
    model = case.make(preprocessor=convert(X), **extra).fit(T)
    path, m = expected_path(case, X, T), centre_of(case)
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(dense(model.get_bilinear_matrix()), path[-1][:-1], **close)
    np.testing.assert_allclose(model.similarity_.item_term, CONSTANT * path[-1][-1], **close)
    scores = ref.shifted_scores(path[-1], X, X, m, CONSTANT)
    loose = {"rtol": 0, "atol": 20 * TOLERANCE[dtype]}
    for rows in (X, sp.csr_matrix(X)):
        np.testing.assert_allclose(model.score_items(rows, rows), scores, **loose)
        np.testing.assert_allclose(model.similarity_.score_items(rows, rows), scores, **loose)
    assert model.dtype_ == dtype
    assert model.shape_ == (16, 16)
    assert model.n_features_in_ == 16
    moved = ref.shifted(stream(X, T), m, CONSTANT)
    margins = np.array([x @ M @ z for M, (x, z) in zip(path, moved, strict=False)])
    assert model.n_updates_ == sum(margins < 1)
    assert model.average_loss_ == pytest.approx(np.mean(np.maximum(0, 1 - margins)), rel=1e-4)
    assert model.sparsity_ == pytest.approx(np.mean(np.abs(path[-1][:-1]) <= 1e-12), abs=1e-6)


@pytest.mark.parametrize("block_size", [2, 64])
@pytest.mark.parametrize("case", [c for c in SHIFTED if c.blocks], ids=lambda c: c.name)
def test_blocks_equal_eager(case, block_size):
    X, T = items(), triplets()
    model = case.make(preprocessor=X, block_size=block_size).fit(T)
    expected = expected_path(case, X, T)[-1]
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected[:-1], rtol=0, atol=1e-10)


@cells([case for case in SHIFTED if case.averages])
def test_averages_equal_eager(case, layout):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets()
    model = case.make(preprocessor=convert(X), average_from=100, **extra).fit(T)
    expected = ref.average(expected_path(case, X, T), 100)
    scores = ref.shifted_scores(expected, X, X, centre_of(case), CONSTANT)
    np.testing.assert_allclose(model.score_items(X, X), scores, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_matrix_as_the_start_is_centred_too(layout):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets(n=100)
    first = np.random.default_rng(5).normal(size=(16, 16)) * 0.3
    m = X.mean(axis=0)
    for init in (first, sp.csr_matrix(first), "zeros"):
        given = np.zeros((16, 16)) if isinstance(init, str) else first
        model = OASIS(init=init, centre=m, preprocessor=convert(X), **extra).fit(T)
        expected = ref.oasis.last(given, [(x - m, z) for x, z in stream(X, T)], 0.1)
        np.testing.assert_allclose(model.get_bilinear_matrix(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_and_items_of_two_spaces_have_a_mean_each(layout):
    convert, extra = LAYOUTS[layout]
    Q, X, T = items(seed=1, d=9), items(), triplets()
    options = {"init": "zeros", "centre": "auto", "item_term": CONSTANT}
    model = OGD(eta=0.2, preprocessor=(convert(Q), convert(X)), **options, **extra).fit(T)
    m = Q.mean(axis=0)
    moved = ref.shifted(stream(Q, T, X), m, CONSTANT)
    expected = ref.ogd.last(np.zeros((10, 16)), moved, 0.2)
    rows = np.column_stack([Q - m, np.full(40, CONSTANT)])
    for centre, mean in zip(model.centre_, (m, X.mean(axis=0)), strict=True):
        np.testing.assert_allclose(centre, mean, atol=1e-12)
    scores = rows @ expected @ (X - X.mean(axis=0)).T
    np.testing.assert_allclose(model.score_items(Q, X), scores, atol=1e-10)
    assert model.shape_ == (9, 16)


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda c: OASIS(0.3, init_scale=c), lambda loss, K, g: min(0.3, loss / K) * g),
        (lambda c: OASIS(variant="PA", init_scale=c), lambda loss, K, g: loss / K * g),
        (
            lambda c: OASIS(0.3, variant="PA-II", init_scale=c),
            lambda loss, K, g: loss / (K + 1 / 0.6) * g,
        ),
        (lambda c: OGD(0.2, init_scale=c), lambda loss, K, g: 0.2 * g),
    ],
    ids=["PA-I", "PA", "PA-II", "OGD"],
)
def test_a_scale_is_a_smaller_margin(make, step):
    """From c I with the margin 1: c times what is learnt from I with the margin 1/c and the same steps."""
    X, T, c = items(), triplets(), 8.0
    M = np.eye(16)
    for x, z in stream(X, T):
        loss, K = 1 / c - x @ M @ z, (x @ x) * (z @ z)
        if loss > 0 and K > 0:
            M = M + step(loss, K, np.outer(x, z))
    model = make(c).set_params(preprocessor=X).fit(T)
    assert model.init_scale_ == c
    np.testing.assert_allclose(model.get_bilinear_matrix(), c * M, rtol=0, atol=1e-10)


# -- ranking -----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([False, True, 0.5, 3.0])
)
def test_plain_inner_products_rank_like_the_similarity(seed, as_sparse, is_centred, item_term):
    X, T = items(seed=seed % 50), triplets(seed=seed % 7, n=60)
    rows = sp.csr_matrix(X) if as_sparse else X
    centre = "auto" if is_centred else None
    model = OASIS(centre=centre, item_term=item_term, init_scale="auto", preprocessor=rows).fit(T)
    scores = model.score_items(rows, rows)
    products = dense(model.transform_query(rows)) @ X.T
    between = products - scores
    np.testing.assert_allclose(between - between[:, :1], 0, atol=1e-8 * np.abs(scores).max())
    found = model.search(rows, rows, k=40)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, found.indices, 1))
    assert (np.diff(found.scores, axis=1) <= 0).all()
    np.testing.assert_allclose(
        model.pair_score(T[:, :2]), scores[T[:, 0], T[:, 1]], atol=1e-9 * np.abs(scores).max()
    )


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_an_index_of_plain_items_finds_what_search_finds(convert):
    X, T = items().astype(np.float32), triplets()
    rows = convert(X)
    model = OASIS(centre="auto", item_term=True, preprocessor=rows).fit(T)
    index = ExactIndex()
    index.add(range(40), rows)
    found = index.search(model.transform_query(rows), k=5).ids.astype(int)
    np.testing.assert_array_equal(found, model.search(rows, rows, k=5).indices)


# -- what the first call fixes -----------------------------------------------------------------------


def test_auto_is_the_mean_the_spread_and_the_length_of_the_items():
    X = items(n=200) + np.linspace(0, 2, 16)
    T = triplets(n_items=200)
    m = X.mean(axis=0)
    spread = np.sqrt(np.mean(((X - m) @ X.T).var(axis=1)))
    constant = 0.3 * np.sqrt(np.mean(((X - m) ** 2).sum(axis=1)))
    auto = {"centre": "auto", "init_scale": "auto", "item_term": True}
    given = {"centre": m, "init_scale": 1 / spread, "item_term": constant}
    for convert in (np.asarray, sp.csr_matrix):
        model = OASIS(**auto, preprocessor=convert(X)).fit(T)
        other = OASIS(**given, preprocessor=convert(X)).fit(T)
        np.testing.assert_allclose(model.centre_, m, atol=1e-12)
        assert model.init_scale_ == pytest.approx(1 / spread)
        np.testing.assert_allclose(
            model.score_items(X, X), other.score_items(X, X), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_auto_does_not_depend_on_where_a_stream_of_rows_is_cut(layout, tmp_path):
    convert, extra = LAYOUTS[layout]
    auto = {"centre": "auto", "init_scale": "auto", "item_term": True, "block_size": 1}
    T, X, others = triplets(), convert(items()), convert(items(seed=3) + 1.0)
    whole = OASIS(**auto, preprocessor=X, **extra).fit(T[:200])
    # Later items have another mean, which does not matter any more.
    whole.set_params(preprocessor=others).partial_fit(T[200:])
    cut = OASIS(**auto, preprocessor=X, **extra)
    assert cut.prepare() == 1
    cut.partial_fit(T[:1]).partial_fit(T[1:200]).save(tmp_path / "m")
    again = simstream.load(tmp_path / "m", preprocessor=others)
    for part in np.split(T[200:], [1, 30]):
        again.partial_fit(part)
    assert again.init_scale_ == whole.init_scale_
    np.testing.assert_array_equal(again.centre_, whole.centre_)
    np.testing.assert_array_equal(
        dense(again.get_bilinear_matrix()), dense(whole.get_bilinear_matrix())
    )
    np.testing.assert_array_equal(again.similarity_.item_term, whole.similarity_.item_term)


def test_fit_works_it_out_anew():
    T = triplets()
    model = OASIS(centre="auto", init_scale="auto", preprocessor=items()).fit(T)
    first = model.init_scale_, model.centre_
    model.set_params(preprocessor=3 * items() + 1).fit(T)
    assert model.init_scale_ < first[0] / 2
    np.testing.assert_allclose(model.centre_, 3 * first[1] + 1)
    with pytest.raises(NotFittedError):
        clone(model).centre_  # noqa: B018


def test_items_without_differences_leave_the_scale_at_one():
    X = np.ones((20, 3))
    model = OASIS(init_scale="auto", item_term=True, preprocessor=X).fit([[0, 1, 2]])
    assert model.init_scale_ == 1.0
    zeros = OASIS(init_scale="auto", item_term=True, preprocessor=0 * X).fit([[0, 1, 2]])
    assert zeros.n_skipped_ == 1


def test_a_query_at_the_mean_is_skipped():
    X = np.vstack([np.eye(4), -np.eye(4), np.zeros((4, 4))]) + 0.5
    m = X.mean(axis=0)
    for convert in (np.asarray, sp.csr_matrix):
        for dtype in (np.float32, np.float64):
            rows = convert(np.vstack([X, m]).astype(dtype))
            model = OASIS(variant="PA", centre=m, preprocessor=rows).fit([[12, 0, 5], [1, 2, 3]])
            assert model.n_skipped_ == 1


# -- learners and tools around it ----------------------------------------------------------------------


@pytest.mark.parametrize("learner", [OASIS(), OGD(), SORS(lam=1e-4), AdaSORS(), AROMA()])
def test_from_labels_takes_every_learner(learner):
    X, y = items(n=60) + 1.0, np.arange(60) % 3
    learner.set_params(centre="auto", item_term=True, init_scale="auto")
    model = FromLabels(learner, n_tuples=200, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.learner_.centre_, X.mean(axis=0))
    assert model.predict(X).shape == (60,)


def test_a_symmetric_part_keeps_the_centre_and_the_item_term():
    X, T = items() + 1.0, triplets()
    raw = OASIS(centre="auto", item_term=True, preprocessor=X).fit(T)
    M, w, m = raw.get_bilinear_matrix(), raw.similarity_.item_term, X.mean(axis=0)
    for option, expected in (
        ({"symmetric": True}, (M + M.T) / 2),
        ({"projection": "end"}, ref.positive_part(M)),
    ):
        model = OASIS(centre="auto", item_term=True, preprocessor=X, **option).fit(T)
        scores = (X - m) @ expected @ (X - m).T + (X - m) @ w
        np.testing.assert_allclose(model.score_items(X, X), scores, atol=1e-9)


# -- the similarity ----------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("kind", ["one", "pair", "folded", "term"])
def test_a_similarity_is_what_it_says(kind, convert, tmp_path):
    rng = np.random.default_rng(0)
    Q, X, M = items(seed=1, d=9), items(), items(seed=2, n=9)
    m_q, m_x, w, u = rng.normal(size=9), rng.normal(size=16), rng.normal(size=16), items(n=1)[0]
    if kind == "one":
        Q, M, m_q = X, items(seed=2, n=16), m_x
    options = {
        "one": {"centre": m_x, "item_term": w},
        "pair": {"centre": (m_q, m_x), "item_term": w},
        "folded": {"centre": (m_q, m_x), "item_term": w, "folded": u},
        "term": {"item_term": w},
    }[kind]
    if kind == "term":
        m_q, m_x = 0 * m_q, 0 * m_x
    full = M - np.outer(m_q, u) if kind == "folded" else M
    expected = (Q - m_q) @ full @ (X - m_x).T + (X - m_x) @ w
    model = Bilinear(convert(M), **options)
    model.save(tmp_path / "m")
    for read in (model, simstream.load(tmp_path / "m"), clone(model), model._frozen()):
        for rows, others in ((Q, X), (sp.csr_matrix(Q), sp.csr_matrix(X)), (sp.csr_matrix(Q), X)):
            np.testing.assert_allclose(read.score_items(rows, others), expected, atol=1e-12)
        transformed = read.transform_query(sp.csr_matrix(Q))
        np.testing.assert_allclose(transformed, (Q - m_q) @ full + w, atol=1e-12)
        np.testing.assert_allclose(dense(read.get_bilinear_matrix()), full, atol=1e-12)
        assert read.sparsity_ == pytest.approx(np.mean(full == 0))
        assert read.get_metric()(Q[2], X[3]) == pytest.approx(expected[2, 3])


# -- refusing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"init_scale": 0}, "init_scale: expected a number > 0, got 0"),
        ({"init_scale": "large"}, "init_scale: expected a number > 0 or 'auto', got 'large'"),
        ({"init_scale": True}, "init_scale: expected a number, got True"),
        ({"init_scale": np.inf}, "init_scale: expected a number > 0, got inf"),
        (
            {"init_scale": 2.0, "init": "zeros"},
            "expected 1.0 where the first matrix is not the ide",
        ),
        ({"init_scale": "auto", "init": np.eye(16)}, "expected 1.0 where the first matrix is not"),
        ({"centre": "mean"}, "centre: expected None, 'auto' or a vector, got 'mean'"),
        ({"centre": np.zeros(15)}, r"centre: expected 16 numbers, got float64 of shape \(15,\)"),
        ({"centre": np.full(16, np.nan)}, "centre: expected finite numbers, got nan"),
        ({"centre": (np.zeros(16),)}, r"centre: expected a pair \(queries, items\), got 1 parts"),
        ({"centre": ["a"] * 16}, "centre: expected 16 numbers, got <U1"),
        ({"item_term": -1.0}, "item_term: expected a number > 0, got -1.0"),
        ({"item_term": "yes"}, "item_term: expected a number, got 'yes'"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_changed(options, complaint):
    model = OASIS(preprocessor=items()).fit(triplets(n=5))
    before = model.get_bilinear_matrix()
    model.set_params(**options)
    for call in (model.fit, model.partial_fit):
        with pytest.raises((ValueError, TypeError), match=complaint if call == model.fit else None):
            call(triplets(n=5))
    np.testing.assert_array_equal(model.get_bilinear_matrix(), before)


def test_a_first_call_with_few_items_is_refused():
    X = items()
    for options in ({"centre": "auto"}, {"init_scale": "auto"}):
        name = next(iter(options))
        with pytest.raises(ValueError, match=f"{name}='auto': expected at least 10 items"):
            OASIS(**options).learn_one(*X[:3])
    model = OASIS(centre="auto", init_scale="auto").fit(X[triplets()])
    model.learn_one(*X[:3])
    assert model.n_rounds_ == 301


def test_one_vector_does_not_centre_two_spaces():
    model = OASIS(init="zeros", centre=np.zeros(9), preprocessor=(items(d=9), items()))
    with pytest.raises(ValueError, match="centre: expected a pair of vectors for 9 features"):
        model.fit(triplets(n=5))


@pytest.mark.parametrize("learner", [SORS(), AdaSORS(), AROMA(), AROMA(covariance="diagonal-drop")])
def test_rules_for_single_entries_do_not_centre_sparse_items(learner):
    learner.set_params(centre="auto", preprocessor=sp.csr_matrix(items()))
    with pytest.raises(ValueError, match="centre: expected None for sparse items, got 'auto'"):
        learner.fit(triplets(n=5))
    learner.set_params(preprocessor=items()).fit(triplets(n=5))


def test_sparse_centred_models_are_not_read_as_symmetric():
    X = sp.csr_matrix(items())
    for option in ({"symmetric": True}, {"projection": "end"}):
        with pytest.raises(ValueError, match="where sparse items are centred"):
            OASIS(centre="auto", preprocessor=X, **option).fit(triplets(n=5))
        model = OASIS(centre="auto", preprocessor=X).fit(triplets(n=5)).set_params(**option)
        with pytest.raises(ValueError, match="where sparse items are centred"):
            model.get_bilinear_matrix()


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"init_scale": 2.0}, {"init_scale": 3.0}),
        ({}, {"centre": "auto"}),
        ({"centre": "auto"}, {"centre": None}),
        ({"centre": np.zeros(16)}, {"centre": np.ones(16)}),
        ({}, {"item_term": True}),
        ({"item_term": 0.5}, {"item_term": 0.6}),
        ({"item_term": True}, {"item_term": False}),
    ],
)
def test_the_geometry_cannot_change_in_the_middle_of_a_stream(options, changes):
    model = OASIS(preprocessor=items(), **options).fit(triplets(n=5)).set_params(**changes)
    with pytest.raises(ValueError, match=f"{next(iter(changes))}: cannot change in the middle"):
        model.partial_fit(triplets(n=5))
    assert model.n_rounds_ == 5


def test_damaged_files_are_refused():
    model = OASIS(centre="auto", item_term=True, preprocessor=items()).fit(triplets(n=5))
    header, arrays = model._get_state()
    for damage in (
        {"geometry": {**header["geometry"], "scale": 0.0}},
        {"geometry": {**header["geometry"], "constant": -1.0}},
        {"geometry": {**header["geometry"], "folded": True}},
        {"geometry": {**header["geometry"], "folded": 1}},
    ):
        with pytest.raises((ValueError, TypeError)):
            OASIS()._set_state({**header, **damage}, arrays)
    for name in ("query_mean", "item_mean"):
        damaged = {**arrays, f"geometry.{name}": arrays[f"geometry.{name}"][:-1]}
        with pytest.raises(ValueError, match="centre: expected 16 numbers"):
            OASIS()._set_state(header, damaged)
