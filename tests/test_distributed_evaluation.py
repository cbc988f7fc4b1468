"""Evaluation and search by several processes: the same numbers as in one, bit for bit."""

import json
import os
import signal
import warnings

import numpy as np
import pytest

from commands import fail, succeed
from simstream import Bilinear
from simstream.data import FormatError, open_rows
from simstream.metrics import measure_ranking
from simstream.search import search_rows

pytest.importorskip("ray")

from simstream.distributed import Cluster, EvaluationWorkers

# One cluster at a time: tests of other modules with this group wait for it.
pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def workers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Cluster(4, object_store_bytes=100 * 2**20), EvaluationWorkers(2) as found:
            yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("items")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12_000, 16)).astype(np.float32)
    X[9000:] = X[:3000]  # ties between the parts
    np.save(folder / "items.npy", X)
    np.save(folder / "queries.npy", rng.normal(size=(300, 16)).astype(np.float32))
    np.save(folder / "labels.npy", np.arange(12_000) % 40)
    np.save(folder / "query-labels.npy", np.arange(300) % 40)
    np.save(folder / "relevance.npy", rng.integers(300, size=(500, 2)))
    model = Bilinear(rng.normal(size=(16, 16)).astype(np.float32))
    model.save(folder / "model.safetensors")
    return folder, model


def test_a_cluster_that_nobody_answers_at_is_an_error(data):
    """First, while there is no cluster that this process is connected to."""
    folder, _ = data
    query = ["query", folder / "model.safetensors", folder / "items.npy", "--row", 7]
    assert "address" in fail(1, *query, "--address", "ray://127.0.0.1:1")


def test_two_processes_find_what_one_does(workers, data):
    folder, model = data
    X, Q = np.load(folder / "items.npy"), np.load(folder / "queries.npy")
    by_label = {"query_labels": np.arange(300) % 40, "item_labels": np.arange(12_000) % 40}
    for given in (by_label | {"neighbors": [5]}, {"relevance": np.load(folder / "relevance.npy")}):
        expected = measure_ranking(model, Q, X, **given)
        for items in (X, open_rows(folder / "items.npy")):
            again = measure_ranking(model, Q, items, **given, runner=workers)
            assert again.knn_errors == expected.knn_errors
            for name, values in expected.per_query.items():
                assert again.per_query[name].tobytes() == values.tobytes(), name
    one, two = (search_rows(model, Q, X, 9, runner=runner) for runner in (None, workers))
    np.testing.assert_array_equal(one.indices, two.indices)
    assert one.scores.tobytes() == two.scores.tobytes()


def test_an_error_of_a_worker_is_raised_as_it_is_here(workers, data, tmp_path):
    folder, model = data
    X = np.load(folder / "items.npy")
    X[10_000, 2] = np.inf
    np.save(tmp_path / "items.npy", X)
    with pytest.raises(FormatError, match="not finite at row 10000, column 2"):
        measure_ranking(
            model, X[:3], open_rows(tmp_path / "items.npy"), relevance=[[0, 1]], runner=workers
        )


def test_a_worker_that_is_killed_is_replaced(workers, data):
    import ray

    folder, model = data
    X, Q = np.load(folder / "items.npy"), np.load(folder / "queries.npy")
    relevance = np.load(folder / "relevance.npy")
    expected = measure_ranking(model, Q, X, relevance=relevance)
    killed = []

    def kill(done, total):
        if not killed:
            killed.append(ray.get(workers._workers[1].pid.remote()))
            os.kill(killed[0], signal.SIGKILL)

    again = measure_ranking(model, Q, X, relevance=relevance, runner=workers, progress=kill)
    assert killed
    assert again.means() == expected.means()


def test_commands_with_workers_print_the_same(workers, data):
    folder, _ = data
    evaluate = ["evaluate", folder / "model.safetensors", folder / "items.npy", "--json"]
    evaluate += ["--queries", folder / "queries.npy", "--labels", folder / "labels.npy"]
    evaluate += ["--query-labels", folder / "query-labels.npy"]
    one, two = (succeed(*evaluate, "--workers", n).stdout for n in (1, 2))
    assert json.loads(one)["results"]["learnt"]["mAP"] > 0
    assert one == two
    query = ["query", folder / "model.safetensors", folder / "items.npy", "--row", 7, "--csv"]
    divided = succeed(*query, "--workers", 2)
    assert divided.stdout == succeed(*query).stdout
    assert "simstream: starting 2 workers, which takes 10 s or more" in divided.stderr
