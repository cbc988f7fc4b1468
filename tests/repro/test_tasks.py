"""The protocol of tasks: folds, pools inside tasks, questions asked at an equal rate, tuning."""

from dataclasses import replace

import numpy as np
import pytest

from simstream import OASIS, Bilinear
from simstream.metrics import ranking_report
from simstream_repro import protocols
from simstream_repro.plan import load_paper
from simstream_repro.protocols import tasks
from simstream_repro.protocols.tasks import TaskPart, TaskSettings
from simstream_repro.records import Cell

GROUPS = {"low": [0, 1, 2, 3, 4], "high": [5, 6, 7, 8]}
CELL = Cell(
    "study",
    "tasks",
    "digits",
    "digits",
    "unit-norm",
    "OMTRSL",
    "OMTRSL",
    {"C": 1.0, "coupling": 1.0},
    {},
    0,
    {"n_triplets": 400, "k": [1, 5], "class_groups": GROUPS},
)


SETTINGS = TaskSettings(**CELL.settings)


def a_part(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return TaskPart(rng.normal(size=(n, 4)), rng.integers(0, 3, n), rng.choice(["a", "b"], n))


def test_folds_partition_the_items_of_the_tasks_and_leave_out_the_rest():
    parts = [tasks._parts(CELL, SETTINGS, seed) for seed in range(5)]
    sizes = {len(train.labels) + len(test.labels) for train, test in parts}
    assert len(sizes) == 1
    assert sum(len(test.labels) for _, test in parts) == sizes.pop()
    for train, test in parts:
        assert 9 not in train.labels  # no task's class
        for task, classes in GROUPS.items():
            for part in (train, test):
                assert set(part.labels[part.tasks == task]) == set(classes)
    tested = np.concatenate([test.items for _, test in parts])
    assert len(np.unique(tested, axis=0)) == len(tested)  # nothing is tested twice


def test_seeds_beyond_the_folds_divide_anew():
    first, later = tasks._parts(CELL, SETTINGS, 0)[1], tasks._parts(CELL, SETTINGS, 5)[1]
    assert not np.array_equal(first.items[:50], later.items[:50])


def test_items_are_ranked_inside_their_task_and_tasks_count_the_same():
    part = a_part()
    own = {"a": Bilinear(np.diag([1.0, 0, 0, 0])), "b": Bilinear(np.diag([0, 1.0, 0, 0]))}

    class Model:
        def for_task(self, task):
            return own[str(task)]

    expected = []
    for task in ("a", "b"):
        rows = part.tasks == task
        report = ranking_report(own[task], part.items[rows], part.labels[rows], k=3)
        expected.append([report["P@3"], report["mAP@3"]])
    found = tasks.task_measures(Model(), part, (3,))
    np.testing.assert_allclose([found["P@3"], found["mAP@3"]], np.mean(expected, axis=0))
    assert (part.tasks == "a").sum() != (part.tasks == "b").sum()


def test_all_methods_see_the_same_stream_and_curves_are_the_measures():
    records = {
        name: protocols.run(replace(CELL, learner=name, parameters=parameters))
        for name, parameters in {
            "Euclidean": {},
            "OASIS": {"C": 1.0},
            "OGRSL": {"C": 1.0},
            "OMTRSL": {"C": 1.0},
            "MultiTaskLMNN": {"tol": 1.0},  # one iteration
        }.items()
    }
    assert len({record["stream"] for record in records.values()}) == 1
    for record in records.values():
        assert record["curves"]["mAP"] == {
            "x": [1, 5],
            "y": [record["measures"]["mAP@1"], record["measures"]["mAP@5"]],
        }
        assert record["measures"]["P@1"] == record["measures"]["mAP@1"]
    # One matrix for all tasks is OASIS on the whole stream.
    for measure in ("mAP", "P@5", "updates"):
        assert records["OGRSL"]["measures"][measure] == pytest.approx(
            records["OASIS"]["measures"][measure], abs=1e-9
        )


def test_a_triplet_says_the_same_to_those_who_know_no_tasks():
    train, _ = tasks._parts(CELL, SETTINGS, 0)
    stream = tasks.task_stream(train, 200, 0)
    cell = replace(CELL, learner="OASIS", parameters={"C": 1.0})
    model, _ = tasks._learn(cell, train, stream)
    anchor, first, second = stream.triplets.T
    nearer = np.where(stream.y == 1, first, second)
    farther = np.where(stream.y == 1, second, first)
    assert (train.labels[anchor] == train.labels[nearer]).all()
    expected = OASIS(C=1.0, preprocessor=train.items).fit(
        np.column_stack([anchor, nearer, farther])
    )
    np.testing.assert_array_equal(model.get_bilinear_matrix(), expected.get_bilinear_matrix())


def test_random_asks_as_often_as_active_on_the_same_stream():
    records = {
        query: protocols.run(
            replace(
                CELL,
                parameters=CELL.parameters | {"query": query, "ask_delta": 0.05},
                settings=CELL.settings | {"n_triplets": 4000},
            )
        )
        for query in ("active", "random")
    }
    ratios = {query: record["measures"]["query ratio"] for query, record in records.items()}
    assert 0.05 < ratios["active"] < 0.9
    # Binomial: four standard deviations of a share of 4,000.
    assert abs(ratios["random"] - ratios["active"]) < 4 * np.sqrt(0.25 / 4000)
    assert records["active"]["stream"] == records["random"]["stream"]
    assert records["active"]["measures"]["mAP"] != records["random"]["measures"]["mAP"]


def test_tuning_looks_at_the_training_part_of_the_first_fold_only(monkeypatch):
    cell = replace(CELL, parameters={"coupling": 1.0}, grid={"C": [1e-9, 1.0]}, seed=-1)
    found = protocols.run(cell)
    assert found["parameters"] == max(found["tried"], key=lambda one: one[1])[0]
    assert len({value for _, value in found["tried"]}) == 2
    train, test = tasks._parts(cell, SETTINGS, 0)
    parts = {0: (train, test._replace(items=np.full_like(test.items, np.nan)))}
    monkeypatch.setattr(tasks, "_parts", lambda cell, settings, seed: parts[seed])
    assert protocols.run(cell)["tried"] == found["tried"]


def test_data_without_tasks_is_refused():
    settings = {"n_triplets": 10, "k": [1]}
    with pytest.raises(ValueError, match="digits: expected a data set with tasks"):
        protocols.run(replace(CELL, settings=settings))


def test_the_paper_compares_equal_deltas_and_has_quick_versions():
    paper = load_paper("p2")
    cells = list(paper.cells(paper.studies["p2-active"], seeds=1))
    deltas = {
        method: [cell.parameters["ask_delta"] for cell in cells if cell.method == method]
        for method in ("Active", "Random")
    }
    assert deltas["Active"] == deltas["Random"]
    without_delta = [
        {k: v for k, v in cell.parameters.items() if k not in ("ask_delta", "query")}
        for cell in cells
    ]
    assert all("C" in one and "coupling" in one for one in without_delta)
    small = [study.quick_version() for study in paper.studies.values()]
    assert sum(one is not None for one in small) == 3
