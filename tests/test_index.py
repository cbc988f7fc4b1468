"""Indexes: what they find, what a view keeps, what is refused, and what an approximate one misses."""

import json
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from simstream import (
    OASIS,
    OMLLR,
    Bilinear,
    Loreta,
    Mahalanobis,
    ModelFileError,
    TripletSampler,
)
from simstream.cli import main
from simstream.search import ExactIndex, Found, HnswIndex, item_vectors, query_vectors, recall
from simstream.search.exact import _CsrRows, _DenseRows

KINDS = {"dense": np.asarray, "csr": sp.csr_matrix}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def whole_numbers(rng, n, d):
    """Vectors whose inner products are exact and often equal."""
    return rng.integers(-2, 3, size=(n, d)).astype(np.float64)


def expected(items, queries, k):
    """Names and scores by sorting everything; items is a dict in the order of adding."""
    names = np.array(list(items), object)
    scores = queries @ np.array(list(items.values())).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return names[order], np.take_along_axis(scores, order, axis=1)


def assert_finds(index, items, queries, k):
    found = index.search(queries, k)
    names, scores = expected(items, np.asarray(queries), k)
    assert found.ids.tolist() == names.tolist()
    assert found.scores.tolist() == scores.tolist()
    assert found.scores.dtype == np.float32


@pytest.mark.parametrize("n_queries", [1, 2, 300])
@pytest.mark.parametrize("k", [1, 10, 129, 5000])
def test_exact_search_with_ties_by_the_order_of_adding(kind, rng, n_queries, k):
    values = whole_numbers(rng, 3001, 7)
    items = dict(zip([*range(1500), *map(str, range(1501))], values, strict=True))
    index = ExactIndex()
    index.add(items, kind(values))
    assert_finds(index, items, whole_numbers(rng, n_queries, 7), k)


def test_pieces_of_items_are_joined(kind, rng, monkeypatch):
    monkeypatch.setattr("simstream.search.exact._SCORE_BYTES", 1)  # 1,024 rows at a time
    values = whole_numbers(rng, 5000, 5)
    index = ExactIndex()
    index.add(range(5000), kind(values))
    index.remove(range(1000, 1100))
    items = {name: row for name, row in enumerate(values) if not 1000 <= name < 1100}
    for k in (10, 200):
        assert_finds(index, items, whole_numbers(rng, 3, 5), k)


@pytest.mark.parametrize("n", [1, 63, 65, 4099])
@pytest.mark.parametrize("n_queries", [1, 2, 3])
def test_copies_of_an_item_are_tied_wherever_they_lie(kind, rng, n, n_queries):
    index = ExactIndex()
    index.add(range(n), kind(np.tile(rng.normal(size=100), (n, 1))))
    found = index.search(rng.normal(size=(n_queries, 100)), k=10)
    assert found.ids.tolist() == [list(range(min(n, 10)))] * n_queries


def test_items_come_and_go_and_views_stay(kind, rng):
    index, items, kept = ExactIndex(), {}, []
    queries = whole_numbers(rng, 4, 6)
    for step in range(300):
        action = rng.integers(4)
        if action == 0 or len(items) < 3:
            names = [f"{step}-{place}" for place in range(rng.integers(1, 40))]
            new = dict(zip(names, whole_numbers(rng, len(names), 6), strict=True))
            index.add(names, kind(np.array(list(new.values()))))
        else:
            new = {}
            names = rng.permutation(np.array(list(items), object))[: rng.integers(1, 12)].tolist()
            if action == 1:
                new = dict(zip(names, whole_numbers(rng, len(names), 6), strict=True))
                index.put(names, kind(np.array(list(new.values()))))
            else:
                index.remove(names)
            for name in names:
                del items[name]
        items |= new
        if step % 10 == 0:
            kept.append((index.view(), dict(items)))
        assert len(index) == len(items)
    assert index._buffers.rows is not kept[0][0]._buffers.rows  # rows were copied on the way
    for view, then in [*kept, (index, items)]:
        assert len(view) == len(then)
        assert view.ids == list(then)
        assert all(name in view for name in then)
        assert not any(name in view for name in items if name not in then)
        if then:
            vectors = view.vectors(then)
            vectors = vectors.toarray() if sp.issparse(vectors) else vectors
            assert vectors.tolist() == np.array(list(then.values())).tolist()
            assert_finds(view, then, queries, 5)


def test_removing_one_by_one_copies_each_row_a_few_times_only(kind, rng, monkeypatch):
    copied = []
    for rows in (_DenseRows, _CsrRows):
        take = rows.take
        monkeypatch.setattr(
            rows,
            "take",
            lambda self, places, take=take: copied.append(len(places)) or take(self, places),
        )
    index = ExactIndex()
    index.add(range(2000), kind(np.eye(3)[rng.integers(3, size=2000)]))
    for name in range(2000):
        index.remove([name])
    assert len(index) == 0
    assert copied
    assert sum(copied) <= 4 * 2000


def test_adding_one_by_one_grows_in_steps(kind, monkeypatch):
    index = ExactIndex()
    arrays = set()
    for name in range(1000):
        index.add([name], kind([[1.0, float(name)]]))
        arrays.add(id(index._buffers.rows._data))
        index._kept = [*getattr(index, "_kept", []), index._buffers.rows._data]  # no id twice
    assert len(arrays) < 25
    assert index.search([[0.0, 1.0]], k=2).ids.tolist() == [[999, 998]]


@pytest.fixture
def eager_threads():
    """Threads take turns so often that a half-made change is seen."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_readers_see_whole_changes_while_one_thread_writes():
    """Every change replaces all items at once: a view has one version of them, never an older one later."""
    n = 50
    index = ExactIndex()
    index.add(range(n), np.zeros((n, 3)))
    done, failures, news = threading.Event(), [], []

    def versions_of(view):
        found = view.search([[1.0, 0.0, 0.0]], k=n)
        assert sorted(found.ids[0]) == list(range(n))
        return set(found.scores[0].tolist()) | set(view.vectors(range(n))[:, 0].tolist())

    def read():
        last = -1.0
        try:
            while not done.is_set():
                (version,) = versions_of(index.view())
                assert version >= last
                if version > last:
                    news.append(version)
                last = version
        except Exception as error:
            failures.append(error)

    versions_of(index.view())  # compiled now, not while the others write
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for version in range(1, 100_000):
            index.put(range(n), np.full((n, 3), float(version)))
            if version % 7 == 0:  # growth, too
                index.add([f"more-{version}"], [[-1.0, 0.0, 0.0]])
            if failures or (version >= 100 and len(news) >= 100):
                break
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not failures
    assert len(news) >= 100  # reading and writing did go on at the same time


def test_a_search_copies_nothing_of_the_items(kind, rng):
    values = rng.normal(size=(20_000, 64)).astype(np.float32)
    index = ExactIndex()
    index.add(range(len(values)), kind(values))
    index.remove(range(100))
    query = rng.normal(size=(1, 64))
    index.search(query)  # compiled
    tracemalloc.start()
    try:
        index.search(query)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 10


def test_sparse_queries_and_items_of_either_kind(kind, rng):
    values = sp.csr_matrix(rng.normal(size=(200, 30)) * (rng.random((200, 30)) < 0.2))
    queries = sp.csr_matrix(rng.normal(size=(5, 30)) * (rng.random((5, 30)) < 0.3))
    index = ExactIndex()
    index.add(range(100), kind(values[:100].toarray()))
    index.add(range(100, 200), values[100:])  # of the other kind, perhaps
    found = index.search(queries, k=7)
    scores = (queries @ values.T).toarray()
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :7], rtol=1e-5)


def test_an_empty_index_finds_nothing():
    index = ExactIndex()
    assert (len(index), index.ids, "a" in index, index.n_features) == (0, [], False, None)
    assert index.search([[1.0]], k=3).ids.shape == (1, 0)
    index.add(["a"], [[1.0, 2.0]])
    index.remove(["a"])
    assert index.view().search([[1.0, 2.0]], k=3).scores.shape == (1, 0)
    with pytest.raises(ValueError, match="expected 2 features, got 1"):
        index.add(["a"], [[1.0]])
    with pytest.raises(KeyError, match="'a'"):
        index.vectors(["a"])


@pytest.mark.parametrize("kind_of_index", [ExactIndex, HnswIndex])
def test_bad_input_changes_nothing(kind_of_index):
    if kind_of_index is HnswIndex:
        pytest.importorskip("usearch", reason="usearch is not installed: HnswIndex is not tried")
    index = kind_of_index()
    index.add(["a", 2], np.eye(2))
    for error, message, call in [
        (ValueError, "'a', which is already in the index", lambda i: i.add(["b", "a"], np.eye(2))),
        (ValueError, "got 'b' twice", lambda i: i.add(["b", "b"], np.eye(2))),
        (TypeError, "got 1.5 at position 1", lambda i: i.add(["b", 1.5], np.eye(2))),
        (TypeError, "got True", lambda i: i.add([True], [[1.0, 1.0]])),
        (TypeError, "list of integers or strings", lambda i: i.add("b", [[1.0, 1.0]])),
        (ValueError, "each of 1 ids, got 2", lambda i: i.add(["b"], np.eye(2))),
        (ValueError, "expected 2 features, got 3", lambda i: i.add(["b"], [[1.0, 2.0, 3.0]])),
        (ValueError, "finite", lambda i: i.add(["b"], [[1.0, np.nan]])),
        (ValueError, "finite", lambda i: i.add(["b"], [[1.0, 1e300]])),
        (KeyError, "got 'c'", lambda i: i.remove(["a", "c"])),
        (ValueError, "k: expected", lambda i: i.search([[1.0, 1.0]], k=0)),
        (ValueError, "queries: expected 2 features", lambda i: i.search([[1.0]])),
    ]:
        with pytest.raises(error, match=message):
            call(index)
    assert len(index) == 2
    assert "b" not in index
    assert index.search([[2.0, 1.0]]).ids.tolist() == [["a", 2]]


@pytest.mark.parametrize("k", [1, 200])
def test_scores_beyond_float32_are_an_error(k):
    index = ExactIndex()
    index.add(range(300), np.full((300, 2), 3e38))
    with pytest.raises(ValueError, match="overflow"):
        index.search([[1e10, 1e10]], k)


def test_saved_and_loaded(kind, rng, tmp_path):
    path = tmp_path / "items.safetensors"
    index = ExactIndex()
    index.save(path)
    assert len(ExactIndex.load(path)) == 0
    values = whole_numbers(rng, 40, 5)
    names = [*range(20), *(f"{n} \N{SNOWMAN}" for n in range(20))]
    index.add(names, kind(values))
    index.remove([3, 4])
    index.save(path)
    loaded = ExactIndex.load(path)
    items = {name: row for name, row in zip(names, values, strict=True) if name not in (3, 4)}
    assert loaded.ids == list(items)
    assert_finds(loaded, items, whole_numbers(rng, 3, 5), 20)
    loaded.add([3], kind(values[:1]))
    loaded.remove(loaded.ids)
    loaded.save(path)
    assert ExactIndex.load(path).n_features == 5


@pytest.mark.parametrize("name", ["exact-dense", "exact-csr", "hnsw"])
def test_files_of_the_first_release_load(name):
    """Written by version 0.1.0: twelve items, one of which was removed."""
    if name == "hnsw":
        pytest.importorskip("usearch", reason="usearch is not installed: HnswIndex is not tried")
    kind_of_index = HnswIndex if name == "hnsw" else ExactIndex
    index = kind_of_index.load(Path(__file__).parent / "models" / "index" / f"{name}.safetensors")
    values = np.arange(60).reshape(12, 5) ** 2 % 11 - 5.0
    ids = [*range(6), *(f"item-{n} \N{SNOWMAN}" for n in range(6))]
    items = {i: row for i, row in zip(ids, values, strict=True) if i != 3}
    assert len(index) == 11
    assert all(i in index for i in items)
    assert 3 not in index
    queries = np.array([[1.0, 2.0, -3.0, 5.0, 0.5], [-2.0, 1.0, 1.0, 0.0, 7.0]])
    if name == "hnsw":  # ties come in any order
        found = index.search(queries, 4)
        for query, scores, row in zip(queries, found.scores, found.ids, strict=True):
            best = sorted((float(query @ value) for value in items.values()), reverse=True)[:4]
            assert scores.tolist() == pytest.approx(best, rel=1e-6)
            assert [float(query @ items[i]) for i in row] == pytest.approx(best)
    else:
        assert index.ids == list(items)
        assert_finds(index, items, queries, 4)
        assert sp.issparse(index.vectors(ids[:2])) == (name == "exact-csr")
    index.add([3], values[3:4])
    assert len(index) == 12


def test_damaged_and_foreign_files(tmp_path):
    path, model = tmp_path / "items.safetensors", tmp_path / "model.safetensors"
    index = ExactIndex()
    index.add(range(100), np.ones((100, 4)))
    index.save(path)
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged index"):
        ExactIndex.load(path)
    path.write_bytes(content[:100])
    with pytest.raises(ModelFileError, match="expected a simstream index"):
        ExactIndex.load(path)
    OASIS().fit(np.eye(3)[None]).save(model)
    with pytest.raises(ModelFileError, match="expected a simstream index, got model"):
        ExactIndex.load(model)
    index.save(path)
    with pytest.raises(ModelFileError, match="expected an index of kind 'hnsw', got 'exact'"):
        HnswIndex.load(path)
    with pytest.raises(FileNotFoundError, match="no such index file"):
        ExactIndex.load(tmp_path / "none")


@pytest.mark.parametrize("learner", [OASIS(), Loreta(n_components=3), OMLLR(init="zeros")])
def test_the_learnt_similarity_is_that_of_the_model(rng, learner):
    items = rng.normal(size=(300, 8))
    model = learner.set_params(preprocessor=items).fit(
        rng.permuted(np.tile(np.arange(300), (50, 1)), axis=1)[:, :3]
    )
    index = ExactIndex()
    index.add(range(300), item_vectors(model, items))
    found = index.search(query_vectors(model, items[:20]), k=5)
    wanted = model.search(items[:20], items, k=5)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)
    assert found.ids.tolist() == wanted.indices.tolist()


def test_a_distance_is_an_inner_product_with_one_number_more(rng):
    items = rng.normal(size=(300, 6))
    root = rng.normal(size=(6, 6))
    model = Mahalanobis(root @ root.T)
    index = ExactIndex()
    index.add(range(300), item_vectors(model, items))
    queries = items[:20] + 0.1
    found = index.search(query_vectors(model, queries), k=5)
    wanted = model.search(queries, items, k=5)
    assert found.ids.tolist() == wanted.indices.tolist()
    lengths = np.einsum("ij,jk,ik->i", queries, root @ root.T, queries)
    np.testing.assert_allclose(found.scores, (lengths[:, None] + wanted.scores) / 2, rtol=1e-3)


class _Forgetful:
    """Exact, but for the items of some names."""

    def __init__(self, exact, *forgotten):
        self.exact, self.forgotten = exact, forgotten

    def __len__(self):
        return len(self.exact)

    def search(self, queries, k):
        found = self.exact.search(queries, k + len(self.forgotten))
        rows = [[name for name in names if name not in self.forgotten][:k] for names in found.ids]
        padded = [row + [None] * (found.ids.shape[1] - len(row)) for row in rows]
        return Found(np.array(padded, object)[:, :k], found.scores[:, :k])


def test_recall_counts_what_is_found(kind):
    exact = ExactIndex()
    exact.add(["a", "b", "c", "d"], kind([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]]))
    model = Bilinear(np.diag([1.0, 0.0]))
    queries = np.array([[1.0, 5.0], [-1.0, 0.0]])  # a b c d, and the other way round
    assert recall(model, exact, exact, queries, k=2) == 1.0
    assert recall(model, _Forgetful(exact, "a"), exact, queries, k=2) == 0.75
    assert recall(model, _Forgetful(exact, "a", "b", "c"), exact.view(), queries, k=4) == 0.25
    exact.add(["e"], kind([[4.0, 7.0]]))  # as good as a
    assert recall(model, _Forgetful(exact, "a"), exact, queries, k=1) == 1.0
    other = ExactIndex()
    with pytest.raises(ValueError, match="same 5 items as in the exact index, got 0"):
        recall(model, other, exact, queries)
    with pytest.raises(ValueError, match="at least one item"):
        recall(model, other, other, queries)


class TestHnsw:
    @pytest.fixture(autouse=True)
    def _usearch(self):
        pytest.importorskip("usearch", reason="usearch is not installed: HnswIndex is not tried")

    def test_finds_nearly_all_and_scores_are_inner_products(self, rng):
        items, queries = rng.normal(size=(2000, 16)), rng.normal(size=(100, 16))
        exact, index = ExactIndex(), HnswIndex(threads=1)
        for one in (exact, index):
            one.add(range(2000), items)
        model = Bilinear(rng.normal(size=(16, 16)) * 1e-6)  # 1 - q'x keeps nothing of such a q'x
        asked = model.transform_query(queries)
        found = index.search(asked, k=10)
        assert recall(model, index, exact, queries, k=10) > 0.9
        scores = np.einsum("ij,ikj->ik", asked, items[found.ids.astype(int)])
        np.testing.assert_allclose(found.scores, scores, atol=1e-6 * np.abs(scores).max())
        one = index.search(asked[:1], k=10)
        assert one.ids.tolist() == found.ids[:1].tolist()

    def test_items_come_and_go(self, rng, tmp_path):
        items = rng.normal(size=(500, 8))
        index = HnswIndex(threads=1, expansion_search=300)
        assert index.search([[1.0]], k=2).ids.shape == (1, 0)
        index.add([f"old-{n}" for n in range(500)], items)
        index.remove([f"old-{n}" for n in range(0, 500, 2)])
        index.add([f"new-{n}" for n in range(0, 500, 4)], items[::4])
        assert len(index) == 250 + 125
        assert "old-0" not in index
        assert "new-0" in index
        exact = ExactIndex()
        exact.add([f"old-{n}" for n in range(1, 500, 2)], items[1::2])
        exact.add([f"new-{n}" for n in range(0, 500, 4)], items[::4])
        found = index.search(items[:50], k=10)
        assert set(found.ids.ravel()) <= set(exact.ids)
        assert recall(Bilinear(np.eye(8)), index, exact, items[:50], k=10) > 0.95
        index.save(tmp_path / "graph")
        loaded = HnswIndex.load(tmp_path / "graph")
        assert loaded.search(items[:50], k=10).ids.tolist() == found.ids.tolist()
        loaded.remove(["new-0"])
        loaded.add(["new-0", "again"], items[:2])
        assert len(loaded) == 376

    def test_fewer_items_than_asked_for(self):
        index = HnswIndex(threads=1)
        index.add(["a", "b"], np.eye(2))
        assert index.search([[1.0, 2.0]], k=5).ids.tolist() == [["b", "a"]]
        assert index.search(np.zeros((2, 2)), k=5).scores.tolist() == [[0.0, 0.0]] * 2

    def test_sparse_items_are_refused(self):
        with pytest.raises(TypeError, match="use ExactIndex"):
            HnswIndex().add(["a"], sp.csr_matrix([[1.0]]))


@pytest.fixture
def files(rng, tmp_path):
    items = rng.normal(size=(400, 6))
    np.save(tmp_path / "items.npy", items)
    labels = rng.integers(3, size=400)
    model = OASIS(preprocessor=items).fit(TripletSampler(labels, random_state=0).draw(300))
    model.save(tmp_path / "model.safetensors")
    return [str(tmp_path / "model.safetensors"), str(tmp_path / "items.npy")]


def test_recall_command(files):
    pytest.importorskip("usearch", reason="usearch is not installed: the command is not tried")
    done = CliRunner().invoke(main, ["recall", *files, "-k", "5", "-n", "50", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["n_items"], facts["n_queries"], facts["k"]) == (400, 50, 5)
    assert 0.5 < facts["recall"] <= 1.0
    for times in (facts["build"], facts["query"]):
        assert times["ratio"] == pytest.approx(times["approximate_s"] / times["exact_s"])
    more = ["--queries", files[1], "--expansion-search", "400"]
    shown = CliRunner().invoke(main, ["recall", *files, *more])
    assert shown.exit_code == 0, shown.output
    assert "recall@10" in shown.stdout
    assert "times exact" in shown.stdout


def test_without_usearch_the_message_says_what_to_install(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(ImportError, match=r"simstream\[index\]"):
        HnswIndex().add(["a"], [[1.0]])
    done = CliRunner().invoke(main, ["recall", *files])
    assert done.exit_code == 2
    assert "simstream[index]" in done.stderr


@pytest.mark.parametrize("is_sparse", [False, True])
def test_reserved_space_changes_nothing(is_sparse):
    rows = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    values = sp.csr_matrix(rows) if is_sparse else rows
    whole, bit_by_bit = ExactIndex(), ExactIndex()
    bit_by_bit.reserve(300)
    whole.add(range(300), values)
    for begin in range(0, 300, 7):
        end = min(300, begin + 7)
        bit_by_bit.add(range(begin, end), values[begin:end])
        bit_by_bit.reserve(200)
        if begin == 0:
            view = bit_by_bit.view()
    found, expected = bit_by_bit.search(values[:9], 20), whole.search(values[:9], 20)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.scores, expected.scores)
    assert len(view) == 7
    assert set(view.search(values[:1], 20).ids[0]) == set(range(7))
