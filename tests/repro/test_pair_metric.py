"""The protocol of halves and pairs: counts, ties, tuning per run, curves; step lengths; ranks."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from simstream import PAMetric
from simstream_repro import protocols
from simstream_repro.claims import adjusted_p_value, rank_methods
from simstream_repro.plan import load_paper, published
from simstream_repro.protocols import pair_metric
from simstream_repro.protocols.common import LabelledItems
from simstream_repro.protocols.pair_metric import PairMetricSettings
from simstream_repro.records import Cell

FIRST = ", ties to the first class"
CELL = Cell(
    "study",
    "pair_metric",
    "wine",
    "wine",
    "[0,1]",
    "PAI+",
    "PAMetric",
    {"variant": "PA-I", "projection": "every-step", "C": 0.1},
    {},
    0,
    {},
)


def tied_model():
    """A one-dimensional metric that leaves distances as they are."""
    return PAMetric(init=np.eye(1)).learn_one([0.0], [0.0], 1)


def test_pairs_and_steps_are_those_of_the_paper():
    given = pair_metric._prepare(CELL)
    assert len(given.pairs) == 40 * 3 * 2  # three classes
    assert given.n_steps == 178 * 176 // 40  # between twice and fifty times the pairs
    assert len(given.train.labels) == len(given.test.labels) == 89
    assert given.train.items.min() == pytest.approx(0)
    assert given.train.items.max() == pytest.approx(1)
    same = given.train.labels[given.pairs[:, 0]] == given.train.labels[given.pairs[:, 1]]
    assert np.array_equal(np.where(same, 1, -1), given.signs)
    assert len(np.unique(np.sort(given.pairs, axis=1), axis=0)) == len(given.pairs)


def test_the_first_class_wins_a_tie_and_the_nearest_does_not_matter():
    known = LabelledItems(np.array([[1.0], [2.0], [-9.0]]), np.array([1, 0, 0]))
    queries = LabelledItems(np.array([[0.0]]), np.array([0]))

    def errors(ties, **settings):
        settings = PairMetricSettings(k=(1, 2), **settings)
        found = pair_metric._knn_errors(tied_model(), queries, known, settings, ties)
        return found[0].tolist()

    assert errors("nearest") == [1, 1]  # the nearest is of class 1, the second of class 0
    assert errors("first") == [1, 0]
    assert errors("first", class_order="reversed") == [1, 1]


def test_the_errors_are_those_of_scikit_learn():
    """Its vote among equals goes to the first class too."""
    given = pair_metric._prepare(CELL)
    items = given.train.items
    model = PAMetric(C=0.1, preprocessor=items).fit(given.pairs, given.signs)
    settings = PairMetricSettings(k=(1, 4, 9))
    found = pair_metric._knn_errors(model, given.test, given.train, settings, "first")
    for place, k in enumerate((1, 4, 9)):
        other = KNeighborsClassifier(k).fit(model.transform(items), given.train.labels)
        wrong = other.predict(model.transform(given.test.items)) != given.test.labels
        assert found[0][place] == pytest.approx(wrong.mean())
        within = [wrong[given.test.labels == one].mean() for one in range(3)]
        assert found[1][place] == pytest.approx(np.mean(within))


def test_a_run_records_its_curves():
    cell = replace(CELL, settings={"stops": 12, "truncated": 5, "eager_steps": 50})
    found = protocols.run(cell)
    curves = found["curves"]
    assert curves["k-NN error, class-averaged"]["x"] == list(range(1, 26))
    assert curves["predictive loss"]["x"][-1] == found["n_steps"]
    assert curves["predictive loss"]["y"][-1] == pytest.approx(
        found["measures"]["mistake rate"], abs=1e-5
    )
    pairs = zip(curves["predictive loss"]["y"], curves["violation rate"]["y"], strict=True)
    assert all(error <= violation for error, violation in pairs)
    assert curves["2-NN error, truncated"]["x"][-1] == 13
    # With all dimensions, 2-NN with ties to the nearest is 1-NN.
    assert curves["2-NN error, truncated"]["y"][-1] == curves["k-NN error, class-averaged"]["y"][0]
    assert (
        curves["2-NN error, truncated" + FIRST]["y"][-1]
        == curves["k-NN error, class-averaged" + FIRST]["y"][1]
    )
    assert found["measures"]["seconds"] > 0
    assert found["measures"]["eager seconds"] > 0


def test_all_methods_of_a_run_see_the_same_pairs_and_runs_differ():
    itml = replace(CELL, method="ITML", learner="ITML", parameters={"gamma": 1.0})
    streams = [protocols.run(one)["stream"] for one in (CELL, itml, replace(CELL, seed=1))]
    assert streams[0] == streams[1] != streams[2]


def test_parameters_are_chosen_on_the_half_of_the_run():
    cell = replace(
        CELL,
        parameters={"variant": "PA-I", "projection": "end"},
        grid={"C": [0.001, 0.1]},
        settings={"tuning": "every run"},
        seed=3,
    )
    found = protocols.run(cell.tuning())
    given = pair_metric._prepare(cell)
    for parameters, error in found["tried"]:
        model = PAMetric(preprocessor=given.train.items, **cell.parameters, **parameters)
        model.fit(given.pairs, given.signs)
        # Leave-one-out, done by leaving out one.
        rows = np.arange(len(given.train.labels))
        wrong = []
        for one in rows:
            known = given.train.rows(rows != one)
            query = given.train.rows(rows == one)
            errors = pair_metric._knn_errors(model, query, known, PairMetricSettings(), "nearest")
            wrong.append(errors[0])
        within = [np.mean(np.array(wrong)[given.train.labels == c], axis=0) for c in range(3)]
        assert error == pytest.approx(np.mean(within, axis=0).min())
    best = min(found["tried"], key=lambda one: one[1])
    assert found["parameters"] == best[0]


@pytest.mark.filterwarnings("ignore:ITML has not converged")
def test_itml_chooses_gamma_itself():
    cell = replace(CELL, method="ITML", learner="ITML", parameters={}, grid={"gamma": ["auto"]})
    found = protocols.run(cell.tuning())
    scores = {one[0]["gamma"]: one[1] for one in found["tried"]}
    assert scores[found["parameters"]["gamma"]] == max(scores.values())


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        ({"variant": "PA"}, lambda p, K: max(p, 0) / K),
        ({"variant": "PA-I", "C": 0.5}, lambda p, K: min(0.5, max(p, 0) / K)),
        ({"variant": "PA-II", "C": 0.5}, lambda p, K: max(p, 0) / (K + 1)),
        ({"variant": "PALS", "C": 0.5}, lambda p, K: p / (K + 1)),
    ],
)
def test_step_lengths_are_the_formulas(parameters, rule):
    settings = {"losses": [-2.0, 4.0, 13]}
    found = protocols.run(
        replace(CELL, protocol="step_length", parameters=parameters, settings=settings)
    )
    K = 1 + found["measures"]["squared length of the pair"] ** 2
    curve = found["curves"]["step length"]
    expected = [rule(p, K) for p in curve["x"]]
    assert curve["y"] == pytest.approx(expected, abs=2e-5)


def test_ranks_of_the_printed_times_are_nearly_the_printed_ranks():
    """The print used more digits: up to 0.1 off."""
    paper = load_paper("p1")
    methods = paper.exhibits["p1-table4"].methods
    records = [
        {"dataset": name, "method": method, "seed": 0, "measures": {"seconds": float(value)}}
        for (name, method, _), (value, _) in published("p1_table3_cpu_time.csv").items()
    ]
    result, used = rank_methods(records, methods, "seconds", lower_is_better=True)
    assert len(used) == 15
    ranks = dict(zip(result.names, result.average_ranks, strict=True))
    for (_, method, _), (printed, _) in published("p1_table4_friedman_ranks.csv").items():
        assert ranks[method] == pytest.approx(float(printed), abs=0.11)
    assert adjusted_p_value(result, "PALS- vs ITML") == pytest.approx(0.0046, abs=0.002)
    assert adjusted_p_value(result, "ITML vs nobody") is None
