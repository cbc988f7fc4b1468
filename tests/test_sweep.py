"""Exact ranks and nearest items over blocks: against textbook definitions, and whatever the blocks are."""

import json
import os
import subprocess
import sys
import threading
from itertools import product

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import average_precision_score, ndcg_score
from threadpoolctl import threadpool_info

from simstream import Bilinear, Dot, Euclidean, LowRank, Mahalanobis, Tasks, metrics
from simstream.data import FormatError, open_rows
from simstream.metrics import measure_ranking, sweep
from simstream.search import search_rows

rng = np.random.default_rng(0)


def integers(n, d=6, dtype=np.float64):
    """Rows whose scores are whole numbers, with many ties and duplicates."""
    return np.random.default_rng(n).integers(-2, 3, size=(n, d)).astype(dtype)


def floats(n, d=12, dtype=np.float32):
    return np.random.default_rng(n).normal(size=(n, d)).astype(dtype)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that there are many of them."""

    def use(queries, items):
        monkeypatch.setattr(sweep, "QUERIES", queries)
        monkeypatch.setattr(sweep, "ITEMS", items)

    return use


def by_hand(scores, relevant, own=False):
    """AP, reciprocal rank, P@5 and recall@5 of each query, from the whole sorted list."""
    found = []
    for i, (row, wanted) in enumerate(zip(scores, relevant, strict=True)):
        order = np.argsort(-row, kind="stable")
        if own:
            order = order[order != i]
        hits = np.flatnonzero(wanted[order]) + 1
        n = np.arange(1, len(hits) + 1)
        found.append([(n / hits).mean(), 1 / hits[0], (hits <= 5).sum() / 5, (hits <= 5).mean()])
    return np.array(found)


def told(result):
    return np.stack([result.per_query[name] for name in ("mAP", "MRR", "P@5", "recall@5")], axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize(("queries", "items"), [(1, 1), (2, 3), (4, 7), (5, 64), (100, 1000)])
def test_ranks_with_ties_are_those_of_the_whole_sorted_list(
    dtype, kind, queries, items, small_blocks
):
    X, Q = integers(61, dtype=dtype), integers(9, dtype=dtype)
    y, z = np.arange(61) % 4, np.arange(9) % 4
    M = np.diag([1, 2, 1, -1, 1, 1]).astype(dtype)
    model = Bilinear(M)
    small_blocks(queries, items)
    for n_parts in (1, 2, 5, 61):
        runner = sweep.Here(n_parts)
        got = measure_ranking(
            model, kind(Q), kind(X), query_labels=z, item_labels=y, k=5, runner=runner
        )
        exact = {"rtol": 1e-14}  # sums of the same numbers in another order
        np.testing.assert_allclose(told(got), by_hand(Q @ M @ X.T, z[:, None] == y), **exact)
        own = measure_ranking(model, kind(X), query_labels=y, k=5, neighbors=[1, 6], runner=runner)
        expected = by_hand(X @ M @ X.T, y[:, None] == y, own=True)
        np.testing.assert_allclose(told(own), expected, **exact)
        errors = metrics.knn_error_curve(
            lambda q, x: sparse.csr_matrix(q).toarray() @ M @ sparse.csr_matrix(x).toarray().T,
            *(kind(X), y, kind(X), y, [1, 6]),
            exclude_self=True,
        )
        assert list(own.knn_errors.values()) == errors.tolist()


MODELS = {
    "dot": Dot().learn_one(np.zeros(12), np.zeros(12), np.zeros(12)),
    "euclidean": Euclidean(dtype="float32").learn_one(np.zeros(12), np.zeros(12), np.zeros(12)),
    "bilinear": Bilinear(floats(12)),
    "cosine": Bilinear(floats(12), normalise=True),
    "shifted": Bilinear(floats(12), centre=floats(1)[0], item_term=floats(2)[1]),
    "distance": Mahalanobis(floats(12).T @ floats(12)),
    "low rank": LowRank(floats(12)[:, :3], floats(13)[:12, :3]),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_result_does_not_depend_on_parts_memory_or_threads(name, tmp_path, monkeypatch):
    """To the last bit: 2,500 items are two blocks of the real size, and the second one is larger."""
    model, X, Q = MODELS[name], floats(2500), floats(600)
    X[1700:] = X[:800]  # equal items in different blocks
    y, z = np.arange(2500) % 9, np.arange(600) % 9
    np.save(tmp_path / "items.npy", X)
    given = {"query_labels": z, "item_labels": y, "neighbors": [3]}
    expected = measure_ranking(model, Q, X, **given)
    for n_parts, n_threads, memory in ((2, 1, 2**29), (1, 3, 2**21), (2, 2, 2**21)):
        monkeypatch.setattr(sweep.config, "NUMBA_NUM_THREADS", n_threads)
        for items in (X, open_rows(tmp_path / "items.npy")):
            if memory == 2**21 and items is not X:
                memory = 2**24
            options = {"memory": memory, "runner": sweep.Here(n_parts)}
            again = measure_ranking(model, Q, items, **given, **options)
            assert again.knn_errors == expected.knn_errors
            for measure, values in expected.per_query.items():
                assert again.per_query[measure].tobytes() == values.tobytes(), measure
    found = search_rows(model, Q[:5], open_rows(tmp_path / "items.npy"), k=7)
    scores = model.score_items(Q[:5], X)
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :7], rtol=1e-4, atol=1e-4)
    parted = search_rows(model, Q[:5], X, k=7, runner=sweep.Here(2))
    np.testing.assert_array_equal(parted.indices, found.indices)
    assert parted.scores.tobytes() == found.scores.tobytes()


def test_judgements_with_grades_are_measured_as_scikit_learn_does(small_blocks):
    small_blocks(3, 8)
    X, Q = floats(50, dtype=np.float64), floats(11, dtype=np.float64)
    relevance = [[q, i, 1 + (q + i) % 3] for q in range(10) for i in {q, 3 * q, 49 - q}]
    relevance += [[0, 7, 3], [0, 7, 0], [1, 9, -1]]  # the last one counts; not relevant
    model = Bilinear(np.eye(12))
    got = measure_ranking(model, Q, X, relevance=relevance, k=(5, 10), runner=sweep.Here(2))
    grades = np.zeros((11, 50))
    for q, i, grade in relevance:
        grades[q, i] = max(0, grade)
    scores = Q @ X.T
    for q in range(10):
        for k in (5, 10):
            expected = ndcg_score(grades[q : q + 1], scores[q : q + 1], k=k)
            assert got.per_query[f"nDCG@{k}"][q] == pytest.approx(expected, rel=1e-12)
        expected = average_precision_score(grades[q] > 0, scores[q])
        assert got.per_query["mAP"][q] == pytest.approx(expected, rel=1e-12)
    assert np.isnan(got.per_query["mAP"][10])  # nobody judged it
    assert (got.means()["n_queries"], got.means()["n_left_out"]) == (10, 1)
    without = measure_ranking(model, Q, X, relevance=[row[:2] for row in relevance[:-3]], k=5)
    binary = measure_ranking(model, Q, X, relevance=[[*r[:2], 1.0] for r in relevance[:-3]], k=5)
    assert without.means() == binary.means()


def test_judged_items_are_no_candidates_for_themselves():
    X = integers(20)
    relevance = [[3, 3], [3, 5], [8, 3], [11, 11]]
    got = measure_ranking(Bilinear(np.eye(6)), X, relevance=relevance, k=5)
    ranks = [
        [j for j in np.argsort(-(X @ X.T)[q], kind="stable") if j != q].index(i) + 1
        for q, i in ((3, 5), (8, 3))
    ]
    assert got.per_query["MRR"][[3, 8]].tolist() == [1 / rank for rank in ranks]
    assert np.isnan(got.per_query["MRR"][11])
    with pytest.raises(ValueError, match="expected at least one with a relevant candidate"):
        measure_ranking(Bilinear(np.eye(6)), X, relevance=[[3, 3]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"relevance": [[0, 99]]}, "must be a row number from 0 to 19"),
        ({"relevance": [[0, 1, 0.0]]}, "grades: expected one above 0"),
        ({"relevance": [[0.5, 1]]}, "relevance: expected row numbers"),
        ({"relevance": [0, 1]}, "relevance: expected rows of query and item"),
        ({"relevance": [[0, 1]], "query_labels": [1]}, "relevance: expected no labels"),
        ({}, "query_labels: expected one for each of the 4 queries"),
        ({"relevance": [[0, 1]], "memory": 10}, "memory: expected an integer >="),
        ({"relevance": [[0, 1]], "k": 0}, "k: expected an integer >= 1"),
    ],
)
def test_wrong_input_is_refused(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        measure_ranking(Bilinear(np.eye(6)), integers(4), integers(20), **given)


def test_a_model_that_changes_its_mind_is_noticed(small_blocks):
    small_blocks(4, 4)

    def moody(queries, items):
        return rng.normal(size=(len(queries), len(items)))

    class Items(sweep.RowBlocks):
        shape = (400, 6)

        def blocks(self, edges, dtype):
            for begin, end in edges:
                yield integers(400)[begin:end]

    with pytest.raises(ValueError, match="expected the same for the same rows"):
        measure_ranking(moody, integers(4), Items(), relevance=[[0, 1], [1, 30]])


# -- files --------------------------------------------------------------------------------------


def write_parquet(path, X, row_group_size, **columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    table = pa.table({"features": vectors, **{k: pa.array(v) for k, v in columns.items()}})
    pq.write_table(table, path, row_group_size=row_group_size)


@pytest.mark.parametrize("kind", ["C", "F", "f8", "i4", "parquet", "columns"])
def test_blocks_of_files_are_the_rows_of_the_file(kind, tmp_path):
    X = integers(6000, 3, np.float32)
    path = tmp_path / "items.npy"
    if kind in ("C", "F"):
        np.save(path, np.asarray(X, order=kind))
    elif kind in ("f8", "i4"):
        np.save(path, X.astype(kind))
    else:
        path = tmp_path / "items.parquet"
        if kind == "parquet":
            write_parquet(path, X, 700)
        else:
            pa = pytest.importorskip("pyarrow")
            import pyarrow.parquet as pq

            pq.write_table(pa.table({name: X[:, c] for c, name in enumerate("abc")}), path)
    rows = open_rows(path)
    assert rows.shape == (6000, 3)
    edges = [(0, 1), (1, 699), (699, 705), (1000, 5200), (5999, 6000)]
    for (begin, end), got in zip(edges, rows.blocks(edges, "float32"), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, X[begin:end])
    np.testing.assert_array_equal(rows.block(4096, 6000, "float64"), X[4096:])
    scaled = open_rows(path, unit_norm=True).block(0, 50, "float64")
    lengths = np.linalg.norm(scaled, axis=1)
    np.testing.assert_allclose(lengths[X[:50].any(axis=1)], 1.0)


def test_damage_is_reported_with_its_place(tmp_path):
    X = floats(3000, 4)
    X[2222, 3] = np.nan
    np.save(tmp_path / "nan.npy", X)
    write_parquet(tmp_path / "nan.parquet", X, 500)
    for name in ("nan.npy", "nan.parquet"):
        rows = open_rows(tmp_path / name)
        with pytest.raises(FormatError, match=rf"{name}: not finite at row 2222, column 3"):
            measure_ranking(Bilinear(np.eye(4)), X[:3], rows, relevance=[[0, 1]])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "short.npy").write_bytes((tmp_path / "nan.npy").read_bytes()[:900])
    (tmp_path / "noise.npy").write_bytes(b"no array at all")
    (tmp_path / "noise.parquet").write_bytes(b"no table at all")
    np.save(tmp_path / "none.npy", np.empty((0, 3)))
    np.save(tmp_path / "flat.npy", np.arange(3.0))
    np.save(tmp_path / "texts.npy", np.array([["a"]]))
    for name, message in {
        "empty.npy": "empty file",
        "short.npy": "damaged or truncated",
        "noise.npy": "damaged or truncated",
        "noise.parquet": "damaged or truncated",
        "none.npy": "not rows of features",
        "flat.npy": "not rows of features",
        "texts.npy": "not rows of features",
        "absent.npy": "no such file",
        "items.csv": "not to be read in blocks",
    }.items():
        with pytest.raises(FormatError, match=f"{name}: {message}"):
            open_rows(tmp_path / name)
    np.save(tmp_path / "wide.npy", floats(30, 5))
    with pytest.raises(ValueError, match=r"^items: expected 4 features, as in the model, got 5$"):
        measure_ranking(
            Bilinear(np.eye(4)), X[:3], open_rows(tmp_path / "wide.npy"), relevance=[[0, 1]]
        )


def test_a_file_that_becomes_shorter_is_reported(tmp_path):
    np.save(tmp_path / "items.npy", floats(5000, 4))
    rows = open_rows(tmp_path / "items.npy")
    os.truncate(tmp_path / "items.npy", 4000)
    with pytest.raises(FormatError, match="became shorter"):
        rows.block(0, 5000, "float32")


def test_too_little_memory_for_wide_items_is_refused(tmp_path):
    np.save(tmp_path / "items.npy", floats(1100, 300))
    rows = open_rows(tmp_path / "items.npy")
    with pytest.raises(ValueError, match=r"memory: expected at least .* for items of 300 features"):
        measure_ranking(
            Bilinear(np.eye(300)), floats(2, 300), rows, relevance=[[0, 1]], memory=2**20
        )


_MEASURED = """
import json, sys
import numpy as np
from simstream import Bilinear
from simstream.data import FormatError, open_rows
from simstream.metrics import measure_ranking

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024

folder, memory = sys.argv[1], int(sys.argv[2])
model = Bilinear(np.eye(64, dtype=np.float32))
queries = np.load(f"{folder}/items.npy", mmap_mode="r")[:100].copy()
labels = np.arange(200_000) % 10

def run(n):
    items = open_rows(f"{folder}/{n}.npy")
    measure_ranking(model, queries, items, query_labels=labels[:100], item_labels=labels[: len(items)],
                    neighbors=[1, 10], memory=memory)

run("few")  # compiles, and starts threads
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is counted from here on
before = status("VmRSS")
run("items")
print(json.dumps(status("VmHWM") - before))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
def test_memory_stays_below_the_bound(tmp_path):
    """200,000 items of 51 MB, 20,000 of them relevant to each of 100 queries, in 32 MB."""
    items = np.random.default_rng(0).normal(size=(200_000, 64)).astype(np.float32)
    np.save(tmp_path / "items.npy", items)
    np.save(tmp_path / "few.npy", items[:20_000])
    memory = 32 * 10**6
    arguments = [sys.executable, "-c", _MEASURED, str(tmp_path), str(memory)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    # Labels as numbers, sorted and unsorted, are not part of the bound: 200,000 of a few bytes.
    assert json.loads(done.stdout) < memory + 40 * 200_000


# -- threads ------------------------------------------------------------------------------------


def blas_threads():
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


def test_blas_has_its_threads_again_whatever_happens():
    before = blas_threads()
    X, y = floats(3000), np.arange(3000) % 3

    def interrupt(done, total):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measure_ranking(MODELS["bilinear"], X, query_labels=y, progress=interrupt)
        assert blas_threads() == before
    results = []

    def work():
        results.append(measure_ranking(MODELS["bilinear"], X, query_labels=y).means())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blas_threads() == before
    assert len(results) == 4
    assert all(one == results[0] for one in results)


def test_progress_ends_with_all(small_blocks):
    small_blocks(4, 16)
    for given, n_parts in product(
        ({"relevance": [[0, 1], [9, 99]]}, {"query_labels": [0, 1] * 50}), (1, 3)
    ):
        seen = []
        measure_ranking(
            Bilinear(np.eye(6)),
            integers(100),
            **given,
            memory=2**20,
            runner=sweep.Here(n_parts),
            progress=lambda done, total, seen=seen: seen.append((done, total)),
        )
        assert seen[-1][0] == seen[-1][1]
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_search_finds_all_if_there_are_fewer(small_blocks):
    small_blocks(2, 3)
    X = integers(10)
    found = search_rows(Bilinear(np.eye(6)), X[:4], X, k=99, runner=sweep.Here(4))
    expected = np.argsort(-(X[:4] @ X.T), axis=1, kind="stable")
    np.testing.assert_array_equal(found.indices, expected)
    with pytest.raises(ValueError, match="k: expected an integer >= 1"):
        search_rows(Bilinear(np.eye(6)), X[:4], X, k=0)


def test_a_subclass_with_scores_of_its_own_is_asked_for_them():
    class Backwards(Bilinear):
        def score_items(self, queries, items):
            return -super().score_items(queries, items)

    X, y = floats(40), np.arange(40) % 4
    expected = metrics.ranking_report(lambda q, x: -(q @ x.T), X, y)
    assert metrics.ranking_report(Backwards(np.eye(12, dtype=np.float32)), X, y) == expected
    assert metrics.ranking_report(Bilinear(np.eye(12, dtype=np.float32)), X, y) != expected


def test_models_of_tasks_are_measured_by_what_all_tasks_share():
    X, y = integers(40), np.arange(40) % 4
    model = Tasks(np.eye(6), {"ann": 5 * np.eye(6)[::-1]})
    expected = metrics.ranking_report(lambda q, x: q @ x.T, X, y)
    assert sweep.has_sides(model)
    assert metrics.ranking_report(model, X, y) == expected
    by_ann = metrics.ranking_report(model.for_task("ann"), X, y)
    assert by_ann == metrics.ranking_report(lambda q, x: q @ model.matrix("ann") @ x.T, X, y)
