"""Items as they come: arrays, tensors, tables, files; with ids and names of features."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import simstream
from simstream import (
    LEGO,
    OASIS,
    OMTRSL,
    OSLLRGS,
    RCA,
    SDCA,
    SORS,
    Adapter,
    Dot,
    Items,
    ListwiseSoftmax,
    PAMetric,
    RelevanceSampler,
    TripletSampler,
    metrics,
    triplets_from_clicks,
)
from simstream.data import open_rows
from simstream.search import search_rows
from simstream.validation import check_items, check_pair_labels

N, D = 40, 6
rng = np.random.default_rng(0)
Y = np.arange(N) % 4
X = (rng.normal(size=(N, D)) + 2 * np.eye(4, D)[Y]).astype(np.float32)
IDS = [f"doc-{row}" for row in rng.permutation(N)]
TRIPLETS = TripletSampler(Y, 0).draw(300)
NAMES = [f"feature {n}" for n in range(D)]


def named(tuples, ids=IDS):
    return np.array(ids, object)[np.asarray(tuples)]


def frame(library):
    module = pytest.importorskip(library)
    columns = {"id": IDS} | {name: X[:, n] for n, name in enumerate(NAMES)}
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)


def vector_column(library, kind=list):
    module = pytest.importorskip(library)
    columns = {"id": IDS, "embedding": kind(X)}
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)


# -- ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "tuples", "y"),
    [
        (OASIS(), TRIPLETS, None),
        (SORS(lam=1e-3), TRIPLETS, None),
        (OMTRSL(), TRIPLETS, None),
        (SDCA(n_epochs=2, random_state=0), TRIPLETS, None),
        (OSLLRGS(n_components=2, random_state=0), TRIPLETS, None),
        (ListwiseSoftmax(), TRIPLETS, None),
        (LEGO(), TRIPLETS, None),
        (PAMetric(), TRIPLETS[:, :2], np.resize([1, -1], len(TRIPLETS))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_learning_by_id_is_learning_by_row(learner, tuples, y):
    by_row = clone(learner).set_params(preprocessor=X).fit(tuples, y)
    by_id = clone(learner).set_params(preprocessor=Items(X, IDS)).fit(named(tuples).tolist(), y)
    pairs = tuples[:20, :2]
    np.testing.assert_array_equal(by_id.pair_score(named(pairs)), by_row.pair_score(pairs))
    found = by_id.search(X[:3], Items(X, IDS), k=4)
    expected = by_row.search(X[:3], X, k=4)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.ids, named(expected.indices))
    indices, scores = found  # a pair, as without ids
    assert expected.ids is None
    assert indices.shape == scores.shape == (3, 4)


def test_batch_learners_take_pairs_by_id():
    pairs, y = TRIPLETS[:, :2], np.ones(len(TRIPLETS), int)
    by_row = RCA(preprocessor=X).fit_pairs(pairs, y)
    by_id = RCA(preprocessor=Items(X, IDS)).fit_pairs(named(pairs), y)
    np.testing.assert_array_equal(by_id.get_mahalanobis_matrix(), by_row.get_mahalanobis_matrix())


def test_two_sets_of_items_with_ids_of_their_own():
    queries, numbers = X[:10], list(range(100, 110))  # integers on one side, texts on the other
    tuples = np.column_stack([TRIPLETS[:, 0] % 10, TRIPLETS[:, 1:]])
    by_row = OASIS(preprocessor=(queries, X)).fit(tuples)
    mixed = [(numbers[q], IDS[a], IDS[b]) for q, a, b in tuples.tolist()]
    for sides in [(Items(queries, numbers), Items(X, IDS))]:
        by_id = OASIS(preprocessor=sides).fit(mixed)
        np.testing.assert_array_equal(by_id.get_bilinear_matrix(), by_row.get_bilinear_matrix())
    only_items = [(q, IDS[a], IDS[b]) for q, a, b in tuples.tolist()]
    by_id = OASIS(preprocessor=(queries, Items(X, IDS))).fit(only_items)
    np.testing.assert_array_equal(by_id.get_bilinear_matrix(), by_row.get_bilinear_matrix())


def test_lists_by_id_may_have_no_item():
    lists = np.array([[0, 4, 1, 2], [1, 5, 2, -1]])
    by_row = ListwiseSoftmax(preprocessor=X).fit(lists)
    given = [[*named(lists[0])], [*named(lists[1, :3]), None]]
    by_id = ListwiseSoftmax(preprocessor=Items(X, IDS)).fit(given)
    np.testing.assert_array_equal(by_id.get_bilinear_matrix(), by_row.get_bilinear_matrix())


def test_unknown_ids_are_one_error_that_changes_nothing():
    model = OASIS(preprocessor=Items(X, IDS)).fit(named(TRIPLETS))
    before = model.get_bilinear_matrix()
    bad = [[IDS[0], "x", "y"], ["x", IDS[1], "z"], [IDS[0], IDS[1], "last"]]
    message = r"triplets: expected ids of the items, got 4 unknown ids: 'x', 'y', 'z', \.\.\.$"
    with pytest.raises(ValueError, match=message):
        model.partial_fit(bad)
    with pytest.raises(ValueError, match=r"pairs: expected ids of the items, got 1 unknown id: 0$"):
        model.pair_score([[IDS[0], 0]])
    np.testing.assert_array_equal(model.get_bilinear_matrix(), before)
    with pytest.raises(TypeError, match=r"expected integers.*for ids give Items"):
        OASIS(preprocessor=X).fit(named(TRIPLETS))


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (["a", *IDS[1:-1], "a"], ValueError, "ids: expected different ids, got 'a' twice"),
        (IDS[1:], ValueError, "ids: expected one for each of 40 rows, got 39"),
        ([None, *IDS[1:]], TypeError, "ids: expected strings or integers, got None at position 0"),
        ([True, *IDS[1:]], TypeError, "ids: expected strings or integers, got True"),
        ("id", ValueError, "ids: expected the name of a column of the table, got 'id'"),
    ],
)
def test_bad_ids(ids, error, message):
    with pytest.raises(error, match=message):
        Items(X, ids)


def test_items_are_copied_by_nobody():
    items = Items(X, IDS)
    model = OASIS(preprocessor=items).fit(named(TRIPLETS))
    assert clone(model).preprocessor is items
    assert copy.deepcopy(items) is items
    assert np.shares_memory(items.values, X)
    again = pickle.loads(pickle.dumps(items))
    assert again.ids == IDS
    np.testing.assert_array_equal(again.values, X)
    assert repr(model) == "OASIS(preprocessor=<40 x 6 Items of float32>)"


def test_rows_of_ids():
    items = Items(X, IDS)
    assert items.rows_of([IDS[3], IDS[0]]).tolist() == [3, 0]
    with pytest.raises(ValueError, match="ids: expected ids of the items, got 1 unknown id: 'x'"):
        items.rows_of(["x"])


NUMBERS = [(7 * row) % N for row in range(N)]  # integers that are not the row numbers
LISTS = np.column_stack([TRIPLETS, (TRIPLETS[:, 2] + 4) % N])  # negatives of one class
PADDED = np.where(np.arange(4) + np.arange(len(LISTS))[:, None] % 2 == 4, -1, LISTS)
BY_ID = {
    "texts": (IDS, IDS),
    "integers": (NUMBERS, NUMBERS),
    "two spaces": (NUMBERS, IDS),
    "ids of one space": (None, IDS),
}


def by_id(tuples, ids):
    """Tuples as plain lists of ids, None for no item."""
    left, right = (list(range(N)) if side is None else side for side in ids)
    return [
        [left[first], *(None if row < 0 else right[row] for row in others)]
        for first, *others in np.asarray(tuples).tolist()
    ]


def sides_with(ids):
    rows = X.astype(np.float64)  # so that divided learners differ by little
    left, right = (rows if side is None else Items(rows, side) for side in ids)
    return right if ids[0] is ids[1] else (left, right)


@pytest.mark.parametrize(
    ("learner", "tuples"),
    [
        (OASIS(), TRIPLETS),
        (OMTRSL(), TRIPLETS),
        (SDCA(n_epochs=1, random_state=0), TRIPLETS),
        (ListwiseSoftmax(), LISTS),
        (ListwiseSoftmax(), PADDED),
    ],
    ids=["triplets", "tasks", "a set", "lists of four", "padded lists"],
)
@pytest.mark.parametrize("ids", BY_ID)
def test_divided_learners_take_ids(tmp_path, ids, learner, tuples):
    from simstream.distributed import ShardedLearner

    ids = BY_ID[ids]
    given, sides = by_id(tuples, ids), sides_with(ids)
    alone = clone(learner).set_params(preprocessor=sides).fit(given)
    expected = alone.search(X[:4], sides[1] if isinstance(sides, tuple) else sides, k=3)
    with ShardedLearner(learner, 2, preprocessor=sides, backend="serial") as divided:
        divided.fit(given)
        together = divided.learner_
        pairs = by_id(TRIPLETS[:20, :2], ids)
        expected_scores = alone.pair_score(pairs)
        np.testing.assert_allclose(together.pair_score(pairs), expected_scores, rtol=1e-9)
        found = divided.search(X[:4], k=3)
        np.testing.assert_array_equal(found.ids, expected.ids)
        unknown = [[*given[0][:-1], "x"]]
        with pytest.raises(ValueError, match=r"expected ids of the items, got 1 unknown id: 'x'"):
            divided.fit(unknown)


@pytest.mark.parametrize("tuples", [TRIPLETS, LISTS, PADDED], ids=["triplets", "lists", "padded"])
@pytest.mark.parametrize("ids", BY_ID)
def test_mixed_learners_take_ids(ids, tuples):
    from simstream.distributed import MixedLearner

    learner, ids = SORS() if tuples is TRIPLETS else ListwiseSoftmax(), BY_ID[ids]
    sides = sides_with(ids)
    rows = X.astype(np.float64)
    rows = (rows, rows) if isinstance(sides, tuple) else rows
    by_row = MixedLearner(clone(learner).set_params(preprocessor=rows), n_shards=2, n_rounds=2)
    by_name = MixedLearner(clone(learner).set_params(preprocessor=sides), n_shards=2, n_rounds=2)
    expected = by_row.fit(tuples).partial_fit(tuples).get_bilinear_matrix()
    found = by_name.fit(by_id(tuples, ids)).partial_fit(by_id(tuples, ids)).get_bilinear_matrix()
    np.testing.assert_array_equal(found, expected)
    vectors = MixedLearner(learner, n_shards=2).fit(X[TRIPLETS])
    assert vectors.learner_.n_rounds_ == len(TRIPLETS)


@pytest.mark.parametrize("ids", ["texts", "integers", "two spaces", "ids of one space"])
@pytest.mark.parametrize("given", ["nothing", "the same", "no ids"])
def test_a_run_keeps_ids_and_names_of_features(tmp_path, ids, given):
    from simstream.distributed import ShardedLearner

    ids = BY_ID[ids]
    sides, tuples = sides_with(ids), by_id(TRIPLETS, ids)
    parts = sides if isinstance(sides, tuple) else (sides,)
    named_sides = []
    for part in parts:
        items = Items(part)
        items.feature_names = np.array(NAMES, object)
        named_sides.append(items)
    sides = named_sides[0] if len(parts) == 1 else tuple(named_sides)
    alone = OASIS(preprocessor=sides).fit(tuples)
    again = {
        "nothing": None,
        "the same": sides,
        "no ids": X if len(parts) == 1 else (X, X),
    }[given]
    options = {"folder": tmp_path / "run", "backend": "serial"}
    with ShardedLearner(OASIS(), 2, preprocessor=sides, **options) as divided:
        divided.fit(tuples[:100])
        divided.save_shards(tmp_path / "saved")
    for folder in ("run", "saved"):
        divided = ShardedLearner.resume(tmp_path / folder, preprocessor=again, backend="serial")
        with divided:
            divided.partial_fit(tuples[100:])
            together = divided.learner_
            np.testing.assert_allclose(
                together.get_bilinear_matrix(), alone.get_bilinear_matrix(), atol=1e-12
            )
            np.testing.assert_allclose(
                together.triplet_margin(tuples[:9]), alone.triplet_margin(tuples[:9]), atol=1e-12
            )
            assert together.feature_names_in_.tolist() == NAMES
            found = divided.search(X[:2], k=3).ids
            np.testing.assert_array_equal(found, alone.search(X[:2], named_sides[-1], k=3).ids)
            swapped = Items.with_feature_names(X, NAMES[::-1])
            for rows in ((swapped, X), (X, swapped)):
                with pytest.raises(ValueError, match="the same names in another order"):
                    divided.search(*rows)


def test_a_run_refuses_other_ids_and_ids_that_are_gone(tmp_path):
    from simstream.distributed import ShardedLearner

    folder, items = tmp_path / "run", Items(X, NUMBERS)
    with ShardedLearner(OASIS(), 2, preprocessor=items, folder=folder, backend="serial") as divided:
        divided.fit(TRIPLETS)
    other = Items(X, [0, *IDS[1:]])
    with pytest.raises(ValueError, match=r"expected the ids .* began with, 7 at row 1, got 'doc-"):
        ShardedLearner.resume(folder, preprocessor=other, backend="serial")
    (folder / "items-ids.json").write_text("[1, 2")
    with pytest.raises(simstream.ModelFileError, match=r"items-ids.json: damaged"):
        ShardedLearner.resume(folder, backend="serial")
    (folder / "items-ids.json").unlink()
    with pytest.raises(ValueError, match=r"items-ids.json: no such file"):
        ShardedLearner.resume(folder, backend="serial")


@pytest.mark.parametrize("ids", [IDS, list(range(N - 1, -1, -1))], ids=["texts", "integers"])
def test_a_one_dimensional_x_names_ids(ids):
    from simstream import FromLabels

    items, some = Items(X, ids), [3, 0, 7]
    names = [ids[row] for row in some]
    pairs, y = TRIPLETS[:, :2], np.resize([1, -1], len(TRIPLETS))
    metric = PAMetric(preprocessor=items).fit(named(pairs, ids), y)
    np.testing.assert_array_equal(metric.transform(names), metric.transform(X[some]))
    np.testing.assert_array_equal(metric.transform(np.array(names)), metric.transform(X[some]))
    with pytest.raises(ValueError, match="X: expected ids of the items, got 1 unknown id: 'x'"):
        metric.transform([*names, "x"])
    batch = RCA(preprocessor=items).fit(ids, Y)
    np.testing.assert_array_equal(batch.components_, RCA().fit(X, Y).components_)
    np.testing.assert_array_equal(batch.transform(names), batch.transform(X[some]))
    classes = FromLabels(OASIS(preprocessor=items), n_tuples=100, random_state=0).fit(ids, Y)
    np.testing.assert_array_equal(classes.predict(names), classes.predict(X[some]))


def test_items_are_arrays_to_other_libraries():
    from simstream import FromLabels

    items = Items(X, IDS)
    np.testing.assert_array_equal(np.asarray(items), X)
    assert FromLabels(OASIS(), n_tuples=100, random_state=0).fit(items, Y).predict(items).shape == (
        N,
    )
    np.testing.assert_array_equal(
        RCA().fit(items, Y).transform(items), RCA().fit(X, Y).transform(X)
    )
    with pytest.raises(TypeError, match="got a sparse matrix"):
        np.asarray(Items(sp.csr_matrix(X), IDS))


# -- feedback by id ---------------------------------------------------------------------------------


def judgements():
    queries = np.roll(X, 2, axis=1)[:20]
    asked = [f"how to {row}" for row in range(20)]
    rows = [(row, row) for row in range(20)] + [(3, 7)]
    return queries, asked, rows, [(asked[q], IDS[i]) for q, i in rows]


def test_an_adapter_takes_items_with_ids():
    queries, asked, rows, by_name = judgements()
    by_row = Adapter(random_state=0).fit(queries, X, rows)
    by_id = Adapter(random_state=0).fit(Items(queries, asked), Items(X, IDS), by_name)
    np.testing.assert_array_equal(by_id.transform_query(queries), by_row.transform_query(queries))
    by_id.learn_one(queries[0], shown=IDS[:3], clicked=[IDS[1]])
    by_row.learn_one(queries[0], shown=[0, 1, 2], clicked=[1])
    np.testing.assert_array_equal(by_id.transform_query(queries), by_row.transform_query(queries))
    wrong = [(asked[0], "x"), (asked[1], "y"), ("?", IDS[0]), (asked[2], "z"), (asked[2], "w")]
    with pytest.raises(ValueError, match=r"expected known query ids, got 1 unknown id: '\?'"):
        by_id.partial_fit(Items(queries, asked), wrong)
    with pytest.raises(ValueError, match=r"known item ids, got 4 unknown ids: 'x', 'y', 'z', ..."):
        by_id.partial_fit(Items(queries, asked), wrong[:2] + wrong[3:])


def test_measures_and_samplers_take_judgements_by_id():
    queries, asked, rows, by_name = judgements()
    model = Dot().fit(X[TRIPLETS])
    expected = metrics.measure_ranking(model, queries, X, relevance=rows).means()
    sides = Items(queries, asked), Items(X, IDS)
    assert metrics.measure_ranking(model, *sides, relevance=by_name).means() == expected
    graded = [(q, i, 2.0) for q, i in by_name]
    assert metrics.measure_ranking(model, *sides, relevance=graded).means() == expected
    drawn = RelevanceSampler(rows, random_state=0, queries=queries, items=X).draw(50)
    named_too = RelevanceSampler(by_name, random_state=0, queries=sides[0], items=sides[1])
    np.testing.assert_array_equal(named_too.draw(50), drawn)
    with pytest.raises(ValueError, match=r"relevance: expected ids .* 1 unknown id: 'x'"):
        metrics.measure_ranking(model, *sides, relevance=[(asked[0], "x")])


def test_clicks_by_id():
    _, asked, _, _ = judgements()
    sides = Items(X[:20], asked), Items(X, IDS)
    log = [(asked[2], [IDS[4], IDS[7], IDS[1]], [IDS[1]])]
    assert triplets_from_clicks(log, *sides).tolist() == [[2, 1, 4], [2, 1, 7]]
    with pytest.raises(ValueError, match="log: expected ids of the items, got 1 unknown id: 'x'"):
        triplets_from_clicks([(asked[0], ["x", IDS[0]], [IDS[0]])], *sides)


# -- what items may be ------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_table_is_its_numbers_and_names(library):
    items = Items(frame(library), ids="id")
    assert (items.ids, items.dtype) == (IDS, np.float32)
    assert items.feature_names.tolist() == NAMES
    np.testing.assert_array_equal(items.values, X)
    by_id = OASIS(preprocessor=items).fit(named(TRIPLETS))
    by_row = OASIS(preprocessor=X).fit(TRIPLETS)
    np.testing.assert_array_equal(by_id.get_bilinear_matrix(), by_row.get_bilinear_matrix())
    with pytest.raises(TypeError, match="expected numbers in every column, got text in 'id'"):
        check_items(frame(library))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_column_of_vectors(library):
    items = Items(vector_column(library), ids="id")
    assert items.ids == IDS
    assert items.feature_names is None
    np.testing.assert_array_equal(items.values, X)
    column = vector_column(library)["embedding"]
    np.testing.assert_array_equal(check_items(column).values, X)


def test_polars_arrays_and_ragged_vectors():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"id": IDS, "embedding": X})
    np.testing.assert_array_equal(Items(table, ids="id").values, X)
    with pytest.raises(TypeError, match="expected real numbers"):
        check_items(polars.Series([[1.0, 2.0], [3.0]]))


def test_the_index_of_pandas_is_ids_unless_it_counts():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=NAMES)
    assert Items(table).ids is None
    assert Items(table.set_axis(IDS)).ids == IDS
    assert Items(table.iloc[5:8]).ids == [5, 6, 7]
    assert Items(pandas.Series(list(X), index=IDS)).ids == IDS
    times = pandas.date_range("2026-01-01", periods=N)
    for index in (np.arange(N) * 0.5, np.zeros(N, int), [None, *IDS[1:]], times, np.arange(N) > 3):
        assert Items(table.set_axis(index)).ids is None
    assert Items(table.set_axis(IDS), ids=False).ids is None
    # A plain table is called by row numbers, whatever its index is.
    model = OASIS(preprocessor=table.set_axis(IDS)).fit(TRIPLETS)
    assert model.feature_names_in_.tolist() == NAMES


class Table:
    """As much of a table of pandas as items need."""

    def __init__(self, index):
        self.columns, self.index, self.shape = NAMES, index, X.shape

    def __array__(self, dtype=None, copy=None):
        return X

    def __getitem__(self, name):
        return X[:, NAMES.index(name)]


@pytest.mark.parametrize(
    "index", [np.arange(N) * 0.5, np.zeros(N, int), np.array([*IDS[1:], None])], ids=repr
)
def test_an_index_that_cannot_be_ids_is_none(index):
    items = Items(Table(index))
    assert items.ids is None
    np.testing.assert_array_equal(
        OASIS(preprocessor=items).fit(TRIPLETS).get_bilinear_matrix(),
        OASIS(preprocessor=X).fit(TRIPLETS).get_bilinear_matrix(),
    )


def test_ids_may_be_left_out():
    table = Table(np.array(IDS))
    assert Items(table).ids == IDS
    assert Items(table, ids=False).ids is None
    with pytest.raises(TypeError, match="ids: expected a list of integers or strings, got True"):
        Items(table, ids=True)


def test_a_tensor_shares_its_memory():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(X, requires_grad=True)
    assert np.shares_memory(check_items(tensor).values, tensor.detach().numpy())
    for short in (tensor.half(), tensor.bfloat16()):
        checked = check_items(short)
        assert checked.dtype == np.float32
        np.testing.assert_allclose(checked.values, X, atol=0.05)


@pytest.mark.parametrize("kind", [sp.csc_matrix, sp.coo_array, sp.lil_matrix, sp.csr_array])
def test_every_sparse_format_is_taken(kind):
    by_csr = OASIS(preprocessor=sp.csr_matrix(X)).fit(TRIPLETS)
    other = OASIS(preprocessor=kind(X)).fit(TRIPLETS)
    np.testing.assert_array_equal(
        other.get_bilinear_matrix().toarray(), by_csr.get_bilinear_matrix().toarray()
    )


def test_float16_lists_and_memory_maps(tmp_path):
    half = X.astype(np.float16)
    assert check_items(half).dtype == np.float32
    assert check_items(X.tolist()).dtype == np.float64
    np.save(tmp_path / "half.npy", half)
    mapped = np.load(tmp_path / "half.npy", mmap_mode="r")
    expected = OASIS(preprocessor=half.astype(np.float32)).fit(TRIPLETS).get_bilinear_matrix()
    for items in (half, mapped, open_rows(tmp_path / "half.npy")):
        found = OASIS(preprocessor=items).fit(TRIPLETS).get_bilinear_matrix()
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    np.save(tmp_path / "single.npy", X)
    again = np.load(tmp_path / "single.npy", mmap_mode="r")
    assert np.shares_memory(check_items(again).values, again)


@pytest.mark.parametrize("y", [[1, -1, 1], [1, 0, 1], [True, False, True], [1.0, 0.0, 1.0]])
def test_labels_of_pairs(y):
    assert check_pair_labels(y, 3).tolist() == [1.0, -1.0, 1.0]
    with pytest.raises(ValueError, match=r"expected .* got 0"):
        check_pair_labels([1, 0, -1], 3)
    model = PAMetric(preprocessor=X).fit(TRIPLETS[:3, :2], y)
    assert model.score(TRIPLETS[:3, :2], y) == model.score(TRIPLETS[:3, :2], [1, -1, 1])


# -- rows of a file ---------------------------------------------------------------------------------


@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("learner", "tuples"),
    [
        (OASIS(), TRIPLETS),
        (OASIS(init_scale="auto", centre="auto", item_term=True), TRIPLETS),
        (PAMetric(), TRIPLETS),
        (LEGO(), TRIPLETS),
        (OMTRSL(), TRIPLETS),
        (OSLLRGS(n_components=2, random_state=0), TRIPLETS),
        (ListwiseSoftmax(), np.column_stack([TRIPLETS, np.full(len(TRIPLETS), -1)])),
        (SDCA(n_epochs=2, random_state=0), TRIPLETS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_of_a_file_are_learnt_from_like_arrays(tmp_path, learner, tuples, order, unit_norm):
    np.save(tmp_path / "items.npy", np.asarray(X, order=order))
    rows = open_rows(tmp_path / "items.npy", unit_norm=unit_norm)
    values = rows.block(0, N, None)
    stored = clone(learner).set_params(preprocessor=rows).fit(tuples)
    expected = clone(learner).set_params(preprocessor=values).fit(tuples)
    pairs = tuples[:20, :2]
    np.testing.assert_array_equal(stored.pair_score(pairs), expected.pair_score(pairs))


def test_only_the_rows_of_the_tuples_are_read(tmp_path, monkeypatch):
    np.save(tmp_path / "items.npy", X)
    rows = open_rows(tmp_path / "items.npy")
    taken = []
    take = type(rows).take
    monkeypatch.setattr(
        type(rows),
        "take",
        lambda self, numbers, dtype: taken.append(numbers) or take(self, numbers, dtype),
    )
    model = OASIS(preprocessor=(rows, rows)).fit([[0, 1, 2], [0, 5, 2]])
    assert sorted(np.concatenate(taken).tolist()) == [0, 1, 2, 5]
    block = type(rows).block

    def one_row(self, begin, end, dtype):
        assert end - begin == 1  # whose type is looked at
        return block(self, begin, end, dtype)

    monkeypatch.setattr(type(rows), "block", one_row)
    model.pair_score([[3, 4]])
    model.partial_fit([[7, 8, 9]])
    assert sorted(np.concatenate(taken).tolist()) == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_a_bad_row_of_a_file_is_named_when_it_is_read(tmp_path):
    broken = X.copy()
    broken[7, 2] = np.nan
    np.save(tmp_path / "items.npy", broken)
    model = OASIS(preprocessor=open_rows(tmp_path / "items.npy")).fit([[0, 1, 2]])
    with pytest.raises(ValueError, match=r"items.npy: not finite at row 7, column 2"):
        model.partial_fit([[0, 3, 7]])
    assert model.n_rounds_ == 1


def test_a_file_with_ids_is_searched_in_blocks(tmp_path, monkeypatch):
    np.save(tmp_path / "items.npy", X)
    items = Items(open_rows(tmp_path / "items.npy"), ids=IDS)
    model = OASIS(preprocessor=items).fit(named(TRIPLETS))
    expected = OASIS(preprocessor=X).fit(TRIPLETS).search(X[:3], X, k=4)
    found = search_rows(model, X[:3], items, k=4)
    np.testing.assert_array_equal(found.ids, named(expected.indices))
    assert items.is_stored  # nobody has asked for all of it
    np.testing.assert_array_equal(items.values, X)


def test_a_parquet_file_has_the_names_of_its_columns(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    path, other = tmp_path / "items.parquet", tmp_path / "other.parquet"
    table = frame("pyarrow").drop_columns("id")
    pq.write_table(table, path)
    pq.write_table(table.select(NAMES[::-1]), other)
    model = OASIS(preprocessor=open_rows(path)).fit(TRIPLETS)
    assert model.feature_names_in_.tolist() == NAMES
    assert Items(open_rows(path), ids=IDS).with_dtype("float64").feature_names.tolist() == NAMES
    model.set_params(preprocessor=open_rows(other))
    with pytest.raises(ValueError, match="the same names in another order"):
        model.partial_fit(TRIPLETS)
    assert metrics.mean_average_precision(model, open_rows(path), Y) > 0
    for rows in (open_rows(other), Items(open_rows(other), ids=IDS)):
        with pytest.raises(ValueError, match="the same names in another order"):
            metrics.mean_average_precision(model, rows, Y)
        with pytest.raises(ValueError, match="the same names in another order"):
            search_rows(model, X[:3], rows, k=2)


# -- names of features ------------------------------------------------------------------------------


LEARNERS = [
    (OASIS(), "search"),
    (PAMetric(), "transform"),
    (LEGO(), "transform"),
    (OSLLRGS(n_components=2, random_state=0), "transform_items"),
    (SDCA(n_epochs=1, random_state=0), "search"),
    (OMTRSL(), "search"),
    (Dot(), "transform_query"),
]


@pytest.mark.parametrize(
    ("learner", "method"), LEARNERS, ids=[type(one).__name__ for one, _ in LEARNERS]
)
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_every_learner_refuses_other_columns(tmp_path, library, learner, method):
    table = frame(library)
    items = Items(table, ids="id")
    model = clone(learner).set_params(preprocessor=items).fit(named(TRIPLETS))
    assert model.feature_names_in_.tolist() == NAMES

    def columns(names, renamed=None):
        module = pytest.importorskip(library)
        found = {
            new: X[:, NAMES.index(old)] for old, new in zip(names, renamed or names, strict=True)
        }
        return module.table(found) if library == "pyarrow" else module.DataFrame(found)

    right = columns(NAMES)
    swapped = columns([NAMES[1], NAMES[0], *NAMES[2:]])
    renamed = columns(NAMES, [*NAMES[:-1], "other"])
    model.save(tmp_path / "model.safetensors")
    for one in (model, model.similarity_, simstream.load(tmp_path / "model.safetensors")):

        def use(rows, one=one):
            call = getattr(one, method)
            return call(rows, rows) if method == "search" else call(rows)

        use(right)
        use(X)  # without names, nothing is known of the order
        with pytest.raises(ValueError, match=r"'feature 0' at place 0, got 'feature 1' .the same"):
            use(swapped)
        with pytest.raises(ValueError, match=r"'feature 5' at place 5, got 'other'$"):
            use(renamed)
        with pytest.raises(ValueError, match="expected the features of the items learnt from"):
            metrics.mean_average_precision(one, swapped, Y)
    model.set_params(preprocessor=swapped)
    if hasattr(model, "partial_fit"):
        with pytest.raises(ValueError, match="expected the features of the items learnt from"):
            model.partial_fit(TRIPLETS)
    model.fit(TRIPLETS)  # forgets the names too
    assert model.feature_names_in_.tolist() == [NAMES[1], NAMES[0], *NAMES[2:]]
    model.set_params(preprocessor=X).fit(TRIPLETS)
    assert not hasattr(model, "feature_names_in_")


def test_an_adapter_refuses_other_columns():
    pandas = pytest.importorskip("pandas")
    queries, _, rows, _ = judgements()
    table = pandas.DataFrame(X, columns=NAMES)
    asked = pandas.DataFrame(queries, columns=NAMES)
    adapter = Adapter(random_state=0).fit(asked, table, rows)
    assert adapter.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="the same names in another order"):
        adapter.transform_query(asked[NAMES[::-1]])
    with pytest.raises(ValueError, match="the same names in another order"):
        adapter.set_items(table[NAMES[::-1]])
    adapter.fit(queries, X, rows)
    assert not hasattr(adapter, "feature_names_in_")
