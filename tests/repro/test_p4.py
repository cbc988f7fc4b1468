"""Protocols of low rank and of choosing features; the paper's file."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from simstream import OASIS, OSLLRGS, datasets, mrmr
from simstream_repro import protocols
from simstream_repro.plan import load_paper, published
from simstream_repro.protocols import features, retrieval
from simstream_repro.protocols.common import LabelledItems, make, triplet_stream
from simstream_repro.protocols.features import SelectionSettings
from simstream_repro.protocols.retrieval import RetrievalSettings
from simstream_repro.records import Cell

SELECTION = Cell(
    "study",
    "selection",
    "wine",
    "wine",
    "standardised",
    "OSLLR-GS",
    "OSLLRGS",
    {"beta": 1.0, "gamma": 1e-3},
    {},
    0,
    {"n_triplets": 500, "n_features": [2, 5], "unit_rows": True},
)
GENERATED = Cell(
    "study",
    "low_rank",
    "embedded",
    "synthetic-embedded",
    "as-is",
    "OSLLR-GS",
    "OSLLRGS",
    {"beta": 1.0, "gamma": 0.1, "output": "last"},
    {},
    3,
    {"n_triplets": 600, "cost_every": 200, "cost_triplets": 50},
)
INFORMATIVE = "informative of the first 5"
SETTINGS = SelectionSettings(n_triplets=500, n_features=(2, 5), unit_rows=True)


# -- choosing features ------------------------------------------------------------------------------------


def test_the_accuracy_is_that_of_scikit_learn():
    train, test = retrieval.parts(SELECTION, SETTINGS, 0)
    chosen = np.array([6, 12, 0])
    other = KNeighborsClassifier(1).fit(train.items[:, chosen], train.labels)
    expected = other.score(test.items[:, chosen], test.labels)
    assert features.accuracy(train, test, chosen) == pytest.approx(expected)


def test_features_are_ranked_by_rows_or_by_a_function():
    train, _ = retrieval.parts(SELECTION, SETTINGS, 0)
    triplets = triplet_stream(train.labels, 500, 0)
    ranking = features.rank_features(SELECTION, train, triplets, 5, unit_rows=True)
    unit = train.items / np.linalg.norm(train.items, axis=1, keepdims=True)
    model = OSLLRGS(beta=1.0, gamma=1e-3, preprocessor=unit).fit(triplets)
    assert ranking.weights == pytest.approx(model.feature_importances_)
    assert np.all(np.diff(ranking.weights[ranking.order]) <= 0)
    by_function = replace(SELECTION, learner="mrmr", parameters={})
    chosen = features.rank_features(by_function, train, triplets, 5).order
    assert chosen.tolist() == mrmr(train.items, train.labels, 5).tolist()


def test_a_matrix_without_a_factor_counts_by_its_own_rows():
    train, _ = retrieval.parts(SELECTION, SETTINGS, 0)
    model = OASIS(preprocessor=train.items).fit(triplet_stream(train.labels, 100, 0))
    expected = np.linalg.norm(model.get_bilinear_matrix(), axis=1)
    assert features.row_lengths(model) == pytest.approx(expected)


def test_all_features_and_random_ones():
    whole = replace(SELECTION, learner="", parameters={})
    found = protocols.run(whole)["measures"]
    train, test = retrieval.parts(SELECTION, SETTINGS, 0)
    everything = features.accuracy(train, test, np.arange(13))
    assert found["accuracy, 2 features"] == found["accuracy, 5 features"] == everything
    random = replace(whole, parameters={"order": "random"})
    first, again = (protocols.run(random)["chosen features"] for _ in range(2))
    assert first == again != protocols.run(replace(random, seed=1))["chosen features"]


def test_parameters_are_chosen_by_the_nearest_neighbour_on_training_items():
    """A penalty that makes every row zero leaves the first features, whatever they are."""
    cell = replace(SELECTION, learner="csfs", parameters={}, grid={"mu": [1e9, 1.0]}, seed=-1)
    found = protocols.run(cell)
    assert found["parameters"] == {"mu": 1.0}
    assert [one[0]["mu"] for one in found["tried"]] == [1e9, 1.0]


# -- low rank ---------------------------------------------------------------------------------------------


def test_what_is_recorded_of_generated_data():
    found = protocols.run(GENERATED)
    data = datasets.make_low_rank("embedded", 3)
    rows = data.splits["train"]
    train = LabelledItems(data.items[rows], data.labels[rows])
    triplets = triplet_stream(train.labels, 600, 3)
    model = OSLLRGS(**GENERATED.parameters, preprocessor=train.items).fit(triplets)
    first = np.argsort(-model.feature_importances_, kind="stable")[:5]
    assert found["measures"][INFORMATIVE] == len(set(first) & set(data.informative))
    assert found["measures"]["rank"] == model.rank_ == found["curves"]["rank"]["y"][-1]
    shares = np.array(found["curves"]["singular values"]["y"])
    assert len(shares) == 20
    assert shares[0] == 1
    assert np.all(np.diff(shares) <= 0)
    weights = np.array(found["curves"]["feature weights"]["y"])
    lengths = model.feature_importances_ / model.feature_importances_.max()
    assert weights[:5] == pytest.approx(np.sort(lengths[data.informative])[::-1], abs=1e-8)


def test_the_cost_is_the_mean_hinge_loss_and_the_penalty():
    found = protocols.run(GENERATED)["curves"]["cost F"]
    assert found["x"] == [200, 400, 600]
    data = datasets.make_low_rank("embedded", 3)
    rows = data.splits["train"]
    items, labels = data.items[rows], data.labels[rows]
    model = OSLLRGS(**GENERATED.parameters, preprocessor=items)
    model.fit(triplet_stream(labels, 600, 3)[:200])
    W, losses = model.get_bilinear_matrix(), []
    for x, near, far in triplet_stream(labels, 50, 10_003):
        losses.append(max(0.0, 1 - items[x] @ W @ (items[near] - items[far])))
    expected = np.mean(losses) + 0.1 * np.sqrt(np.diag(W)).sum()  # rows of X: the diagonal of X X'
    assert found["y"][0] == pytest.approx(expected, abs=1e-6)


def test_the_last_iterate_is_of_low_rank_and_its_average_is_not():
    """The paper prints rank 3 for data of rank 5; the mean over seeds is within one of it."""
    settings = {"n_triplets": 5000}
    base = replace(
        GENERATED, data="synthetic-projected", parameters={"beta": 1.0}, settings=settings
    )
    ranks = {"last": [], "avg_x": []}
    for seed in range(4):
        for output, found in ranks.items():
            cell = replace(base, seed=seed, parameters={"beta": 1.0, "output": output})
            found.append(protocols.run(cell)["measures"]["rank"])
    assert 2 <= np.mean(ranks["last"]) <= 4
    assert min(ranks["avg_x"]) > 5
    assert INFORMATIVE not in protocols.run(base)["measures"]  # all features carry the data


# -- retrieval --------------------------------------------------------------------------------------------


def test_one_group_tests_and_a_share_of_the_others_trains(monkeypatch):
    class Data:
        items = np.arange(40.0).reshape(20, 2)
        labels = np.tile([0, 1], 10)
        groups = np.repeat(["a", "b"], 10)

    monkeypatch.setattr(retrieval, "dataset", lambda name: Data)
    cell = replace(SELECTION, preprocessing="as-is")
    train, test = retrieval.parts(cell, RetrievalSettings(n_triplets=1, test_group="b"), 0)
    assert train.items.max() < 20 <= test.items.min()
    assert len(test.labels) == len(train.labels)
    smaller = RetrievalSettings(n_triplets=1, test_group="b", train_fraction=0.4)
    train, test = retrieval.parts(cell, smaller, 0)
    assert np.bincount(train.labels).tolist() == [2, 2]
    assert len(test.labels) == 10


# -- the paper --------------------------------------------------------------------------------------------


def test_every_printed_number_has_its_place():
    paper = load_paper("p4")
    for exhibit in paper.exhibits.values():
        if exhibit.kind != "table" or not exhibit.published:
            continue
        printed = published(exhibit.published)
        dataset = paper.studies[exhibit.study].datasets[0]
        for method in exhibit.methods:
            name = exhibit.printed_as.get(method, method)
            for measure in exhibit.measures:
                assert (dataset, name, measure.name) in printed


def test_quick_studies_run_on_data_that_is_always_there():
    paper = load_paper("p4")
    small = [one for study in paper.studies.values() if (one := study.quick_version())]
    bundled = {"digits", "breast_cancer", "synthetic-embedded", "synthetic-projected"}
    assert len(small) == 4
    for study in small:
        assert {paper.datasets[name].data for name in study.datasets} <= bundled


def test_the_gradient_as_printed_lacks_a_term():
    """x is 0 where z is not: only the term z (X'x)' changes the rows of z, only the other those of x."""
    x, near, far = np.array([1.0, 0, 0, 0]), np.array([0.2, 0.3, 0, 0]), np.array([0.0, 0, 0, 0.1])
    cell = replace(SELECTION, parameters={"gamma": 0.0, "eta": 0.1, "output": "last"})
    z = near - far
    for gradient, changed in (("exact", True), ("printed", False)):
        own = replace(cell, parameters=cell.parameters | {"gradient": gradient})
        W = make(own, beta=np.inf).learn_one(x, near, far).get_bilinear_matrix()
        X = np.eye(4) + 0.1 * (np.outer(z, x) + changed * np.outer(x, z))
        np.testing.assert_allclose(W, X @ X.T, atol=1e-12)
