"""Protocols that measure times and losses: one small cell each."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import simstream
from simstream import FromLabels, TripletSampler, datasets, metrics
from simstream_repro import protocols
from simstream_repro.protocols import describe, retrieval
from simstream_repro.protocols.common import LabelledItems, dataset, teach
from simstream_repro.protocols.costs import transform_by_rows
from simstream_repro.protocols.retrieval import KEEP_DISTANCES, RetrievalSettings
from wine_cell import WINE_CELL

CELL = replace(WINE_CELL, preprocessing="standardised+unit-norm")


def test_query_time_uses_a_sparse_matrix_only_where_there_are_zeros():
    settings = CELL.settings | {"n_queries": [10, 20]}
    cell = replace(CELL, protocol="query_time", settings=settings)
    dense = protocols.run(cell)
    assert list(dense["curves"]) == ["query seconds, dense M", "query seconds"]
    assert dense["curves"]["query seconds"]["x"] == [10, 20]
    sparse = protocols.run(replace(cell, learner="SORS", parameters={"lam": 0.5, "eta": 0.1}))
    assert sparse["measures"]["sparsity"] > 0.5
    assert "query seconds, sparse M" in sparse["curves"]
    forms = [sparse["measures"][f"query seconds, {form} M"] for form in ("dense", "sparse")]
    assert sparse["measures"]["query seconds, fastest form"] == min(forms) >= 0
    assert 0 < sparse["measures"]["sparsity of used rows"] <= 1


def test_rows_of_a_sparse_matrix_are_added_up_in_dense_rows():
    rng = np.random.default_rng(0)
    queries, matrix = (
        sparse.random(*shape, 0.3, "csr", random_state=rng) for shape in ((5, 7), (7, 4))
    )
    np.testing.assert_allclose(
        transform_by_rows(queries, matrix), queries.toarray() @ matrix.toarray()
    )


def test_a_data_set_is_described():
    cell = replace(CELL, protocol="describe", learner="", parameters={}, settings={})
    found = protocols.run(cell)["measures"]
    assert [found[name] for name in ("items", "features", "classes")] == [178, 13, 3]
    assert found["pairs"] == 240  # 40 * 3 * 2, as printed for wine
    items = datasets.load("wine").items
    assert found["zeros"] == pytest.approx(np.mean(items == 0))


def test_no_more_training_pairs_than_half_of_the_items_have(monkeypatch):
    """20 classes ask for 15,200 pairs; 145 of 291 items have 10,440."""
    few = replace(datasets.load("wine"), items=np.ones((291, 2)), labels=np.arange(291) % 20)
    monkeypatch.setattr(describe, "dataset", lambda name: few)
    cell = replace(CELL, protocol="describe", learner="", parameters={}, settings={})
    assert protocols.run(cell)["measures"]["pairs"] == 10440


@pytest.mark.parametrize("learner", ["OASIS", "SDCA"])
def test_online_loss_is_a_mean_of_losses_so_far(learner):
    parameters = {"C": 0.1} if learner == "OASIS" else {"lam": 0.01, "random_state": 0}
    settings = CELL.settings | {"n_epochs": 2}
    cell = replace(CELL, protocol="online_loss", learner=learner, settings=settings)
    found = protocols.run(replace(cell, parameters=parameters))
    hinge, mistakes = (np.array(found["curves"][name]["y"]) for name in ("hinge", "mistake rate"))
    assert (hinge >= 0).all()
    assert ((mistakes >= 0) & (mistakes <= 1)).all()
    assert hinge[-1] < hinge[0]  # it learns


@pytest.mark.parametrize(
    ("learner", "parameters"),
    [
        ("OASIS", {"C": 0.1}),
        ("SORS", {"off_diagonal": True}),
        ("AdaSORS", {}),
        ("AROMA", {"covariance": "diagonal-drop"}),
    ],
)
def test_plain_numpy_times_both(learner, parameters):
    cell = replace(CELL, protocol="plain_numpy", learner=learner, parameters=parameters)
    found = protocols.run(replace(cell, settings=CELL.settings | {"eager_steps": 20}))["measures"]
    assert found["seconds"] > 0
    assert found["speed-up"] == pytest.approx(found["eager seconds"] / found["seconds"])


FROM_LABELS = {"n_triplets": 400, "k": [1], "from_labels": {}}


@pytest.mark.parametrize(
    ("learner", "n_tuples", "how"),
    [
        ("OASIS", 400, {"negatives": "near", "positives": "near"}),
        ("ListwiseSoftmax", 400, {"n_negatives": 5}),
        ("LEGO", 800, {}),  # as many pairs as 400 triplets have
        ("LEGO", 400, {"tuples": "triplets"}),
    ],
)
def test_from_labels_is_what_the_library_does_from_labels(learner, n_tuples, how):
    settings = FROM_LABELS | {"from_labels": how}
    found = protocols.run(replace(CELL, learner=learner, parameters={}, settings=settings))
    train, test = retrieval.parts(CELL, RetrievalSettings(n_triplets=1), 0)
    model = FromLabels(getattr(simstream, learner)(), n_tuples=n_tuples, random_state=0, **how)
    model.fit(train.items, train.labels)
    assert found["measures"]["mAP"] == pytest.approx(model.score(test.items, test.labels))
    assert found["stream"] == ""  # every learner has tuples of its own


def test_options_are_for_the_learners_that_have_them():
    settings = FROM_LABELS | {"options": {"normalise": True, "n_components": 2}}
    found = protocols.run(replace(CELL, learner="RCA", parameters={}, settings=settings))
    train, test = retrieval.parts(CELL, RetrievalSettings(n_triplets=1), 0)
    model = simstream.RCA(normalise=True, n_components=2).fit(train.items, train.labels)
    expected = metrics.mean_average_precision(model, test.items, test.labels)
    assert found["measures"]["mAP"] == pytest.approx(expected)
    protocols.run(replace(CELL, settings=settings))  # OASIS has no n_components


def test_from_labels_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="no stops and no tuning_triplets"):
        protocols.run(replace(CELL, settings=FROM_LABELS | {"stops": [100]}))
    cell = replace(CELL, grid={"C": [0.1, 1.0]}, settings=FROM_LABELS).tuning()
    with pytest.raises(ValueError, match="methods without a grid"):
        protocols.run(cell)


LEARN_IN_SPAN = {
    "ITML": lambda: simstream.ITML(max_iter=1),
    "LEGO": lambda: simstream.LEGO(eta=0.5),
    "LMNN": lambda: simstream.LMNN(max_iter=20),
    "PAMetric": lambda: simstream.PAMetric(C=0.1, projection="every-step"),
    "POLA": lambda: simstream.POLA(),
    "RDML": lambda: simstream.RDML(0.5),
}


@pytest.mark.filterwarnings("ignore:.* has not converged")
@pytest.mark.parametrize("name", KEEP_DISTANCES)
def test_span_and_features_give_the_same_distances_zeros_and_rank(name, monkeypatch):
    monkeypatch.setattr(retrieval, "_ROWS_AT_A_TIME", 40)
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], 10)
    items = sparse.random(30, 90, density=0.04, random_state=3, format="csr")
    items.data = rng.uniform(1, 3, items.nnz)
    train, test = LabelledItems(items[::2], labels[::2]), LabelledItems(items[1::2], labels[1::2])
    triplets = TripletSampler(train.labels, 0).draw(12)

    def learn(coordinates):
        cell = replace(CELL, learner=name)
        settings = RetrievalSettings(n_triplets=12, coordinates=coordinates)
        own_train, own_test, span = retrieval.in_coordinates(cell, settings, train, test)
        model = LEARN_IN_SPAN[name]()
        teach(model, own_train, triplets)
        return own_test, model, retrieval.span_measures(model, span)

    plain_items, plain, plain_measures = learn("features")
    span_items, spanned, span_measures = learn("span")
    assert span_items.items.shape == (15, 31)
    pairs = np.array([(i, j) for i in range(15) for j in range(i)])
    expected = plain.pair_distance(plain_items.items.toarray()[pairs])
    np.testing.assert_allclose(
        spanned.pair_distance(span_items.items[pairs]), expected, rtol=1e-5, atol=1e-7
    )
    assert 0.02 < plain_measures["sparsity"] < 0.999
    assert span_measures["sparsity"] == pytest.approx(plain_measures["sparsity"], abs=1e-9)
    assert span_measures.get("rank") == plain_measures.get("rank")


def test_span_is_taken_for_distances_where_features_are_many():
    parts = LabelledItems(np.eye(3), np.arange(3)), LabelledItems(np.eye(3), np.arange(3))
    cell = replace(CELL, learner="LEGO")
    settings = RetrievalSettings(n_triplets=1, coordinates="span")
    train, _, span = retrieval.in_coordinates(cell, settings, *parts)
    assert span is None
    assert train is parts[0]
    wide = tuple(LabelledItems(np.eye(3, 9), np.arange(3)) for _ in range(2))
    assert retrieval.in_coordinates(cell, settings, *wide)[2] is not None
    counts_on_features = replace(cell, learner="OASIS")
    assert retrieval.in_coordinates(counts_on_features, settings, *wide)[2] is None


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"coordinates": "polar"}, "coordinates: expected one of features, span, got 'polar'"),
        ({"pool": "al"}, "pool: expected one of others, all, got 'al'"),
        ({"division": "givn"}, "division: expected one of random, given, got 'givn'"),
        ({"division": "given"}, "division: wine .* is not distributed divided"),
        ({"n_triplets": "many"}, "n_triplets: expected int, got str"),
        ({"n_triplet": 3}, "unknown key 'n_triplet'; did you mean 'n_triplets'"),
    ],
)
def test_words_that_are_no_settings(setting, word):
    with pytest.raises(ValueError, match=word):
        protocols.run(replace(CELL, settings=CELL.settings | setting))


def test_the_pool_may_hold_the_query_and_the_division_may_be_given(monkeypatch):
    given = {"train": np.arange(0, 178, 2), "test": np.arange(1, 178, 2)}
    wine = replace(datasets.load("wine"), splits=given)
    monkeypatch.setattr(retrieval, "dataset", lambda name: wine)
    cell = replace(CELL, learner="Euclidean", parameters={}, preprocessing="standardised")
    found = {}
    for pool in ("others", "all"):
        settings = {"n_triplets": 10, "k": [1], "division": "given", "pool": pool}
        found[pool] = protocols.run(replace(cell, settings=settings))
    assert found["all"]["n_test"] == 89
    assert found["all"]["measures"]["P@1"] == 1.0  # itself
    items, labels = wine.items[1::2], np.asarray(wine.labels)[1::2]
    train = wine.items[::2]
    scaled = (items - train.mean(0)) / train.std(0)
    order = np.argsort(np.linalg.norm(scaled[:, None] - scaled[None], axis=2), axis=1)
    precision = np.mean(labels[order[:, 1]] == labels)
    assert found["others"]["measures"]["P@1"] == pytest.approx(precision)
    assert found["all"]["measures"]["mAP"] > found["others"]["measures"]["mAP"]


def test_a_file_that_is_not_the_listed_data_set_is_refused(tmp_path, monkeypatch):
    rows = np.c_[np.arange(8).reshape(4, 2), [0, 0, 1, 1]]
    np.savetxt(tmp_path / "vowel.csv.gz", rows, "%d", ",")
    entry = {"rows": 4, "features": 2, "classes": 2}
    (tmp_path / "index.json").write_text(json.dumps({"vowel.csv.gz": entry}))
    monkeypatch.setenv("SIMSTREAM_DATA", str(tmp_path))
    with pytest.raises(
        ValueError, match="vowel: expected the data set as it is listed, got 4 rows"
    ):
        dataset.__wrapped__("vowel")
