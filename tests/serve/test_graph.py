"""A service with usearch: the graph follows what is published, and can lose nothing but recall."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import Client, ServerProcess, add_items, do, judge, running, served, vectors, wait_until

from simstream.search import ExactIndex
from simstream.serve import graph
from simstream.serve.engine import Model, Version
from simstream.serve.graph import GraphIndex
from simstream.serve.log import Log
from simstream.serve.state import Learning, Tally
from simstream.serve.store import LostError
from simstream.serve.writer import Ledger, NewItem

pytest.importorskip("usearch")


@pytest.fixture(autouse=True, scope="module")
def _graphs_are_used_for_few_items():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_ITEMS_PER_CANDIDATE", 0)
        yield


def version_of(view, model=None):
    model = model or Model(0)
    scaled = view.scaled(model.common) if model.is_normalised else None
    return Version(0, model, False, False, view, scaled, Tally(), {}, None)


class Followed:
    """Items, and a graph that follows them."""

    def __init__(self, folder, candidates, log=None):
        self.items, self._log = ExactIndex(), log or Log(folder / "log.sqlite", is_owner=True)
        self.version = version_of(self.items.view())
        self.graph = GraphIndex(folder / "index", self._log, lambda: self.version, candidates)

    def publish(self):
        self.version = version_of(self.items.view())

    def wait(self):
        wait_until(lambda: self.graph.n_late == 0 and self.graph._covered is self.version.view)

    def close(self):
        self.graph.close()
        self._log.close()


@pytest.fixture
def followed(tmp_path):
    with contextlib.closing(Followed(tmp_path, 64)) as followed:
        yield followed


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "replace", "delete", "wait"]), st.integers(1, 12)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20, deadline=None)
@given(OPERATIONS, st.integers(0, 2**32 - 1), st.sampled_from([4, 1000]))
def test_whatever_happens_to_items_it_finds_what_is_there_and_scores_it_right(
    tmp_path_factory, operations, seed, candidates
):
    rng, number = np.random.default_rng(seed), 0
    folder = tmp_path_factory.mktemp("service")
    with contextlib.closing(Followed(folder, candidates)) as followed:
        items = followed.items
        for what, count in operations:
            known = items.ids
            some = [int(one) for one in rng.permutation(known)[:count]]
            if what in ("replace", "delete") and some:
                items.remove(some)
            if what in ("add", "replace"):
                count = count if what == "add" else len(some)
                if count:
                    # As in a service, whoever replaces an item gets another number.
                    items.add(range(number, number + count), rng.normal(size=(count, 4)))
                number += count
            followed.publish()
            if what == "wait":
                followed.wait()
            query = rng.normal(size=(1, 4)).astype(np.float32)
            found = followed.graph.search(followed.version, query, 3)[0]
            wanted = followed.version.search_many(query, 3)[0]
            assert len(found) == len(wanted)
            if candidates == 1000:
                assert [name for name, _ in found] == [name for name, _ in wanted]
            names = [name for name, _ in found]
            assert len(set(names)) == len(names)
            scores = (items.vectors(names) @ query[0]) if names else np.empty(0)
            np.testing.assert_allclose([score for _, score in found], scores, rtol=1e-5, atol=1e-6)
            assert list(scores) == sorted(scores, reverse=True)


def test_a_log_that_is_away_does_not_end_the_thread(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(graph, "_FEWEST_UNSAVED", 10)
    away = True
    hash_at = Log.hash_at

    def asked(log, position):
        if away:
            raise LostError("the log is away")
        return hash_at(log, position)

    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "usearch-000000000000-00.safetensors").write_bytes(b"")
    log = Log(tmp_path / "log.sqlite", is_owner=True)
    monkeypatch.setattr(Log, "hash_at", asked)
    with contextlib.closing(Followed(tmp_path, 64, log)) as followed:
        for begin in (0, 100, 200):
            followed.items.add(range(begin, begin + 100), vectors(100, 4, seed=begin))
            followed.publish()
            followed.wait()
            wait_until(lambda: "could not be saved: the log is away" in caplog.text)
        assert "index file refused: the log is away" in caplog.text
        assert "searches become exact" not in caplog.text
        away = False


def test_the_graph_answers_and_finds_nearly_everything(followed, monkeypatch):
    rows = vectors(3000, 16)
    followed.items.add(range(3000), rows)
    followed.publish()
    followed.wait()
    followed.items.remove(range(600))
    followed.items.add(range(3000, 3500), vectors(500, 16, seed=1))
    followed.publish()
    followed.wait()
    wait_until(lambda: len(followed.graph._graph) == len(followed.items))
    queries = vectors(50, 16, seed=2)
    version = followed.version
    wanted = version.search_many(queries, 10)
    monkeypatch.setattr(Version, "search_many", None)  # nothing is searched exactly
    found = followed.graph.search(version, queries, 10)
    hits = [len({n for n, _ in a} & {n for n, _ in b}) for a, b in zip(found, wanted, strict=True)]
    assert np.mean(hits) / 10 > 0.95


def test_an_item_is_found_before_it_is_in_the_graph_and_not_once_it_is_deleted(
    followed, monkeypatch
):
    followed.items.add(range(300), vectors(300))
    followed.publish()
    followed.wait()
    # From here on the graph does not follow any more.
    monkeypatch.setattr(followed.graph, "_follow", lambda view: None)
    query = np.array([[3.0, 0, 0, 0, 0, 0]], np.float32)
    best = followed.graph.search(followed.version, query, 1)[0][0][0]
    followed.items.add([1000], query)
    followed.publish()
    assert followed.graph.n_late == 1
    assert [n for n, _ in followed.graph.search(followed.version, query, 2)[0]] == [1000, best]
    followed.items.remove([best, 1000])
    followed.publish()
    names = [n for n, _ in followed.graph.search(followed.version, query, 10)[0]]
    assert len(names) == 10
    assert not {best, 1000} & set(names)


def test_a_product_answers_where_it_is_faster(followed, monkeypatch):
    followed.items.add(range(700), vectors(700))
    followed.publish()
    followed.wait()
    sizes, search = [], followed.graph._graph.search
    monkeypatch.setattr(
        followed.graph._graph,
        "search",
        lambda rows, k: (sizes.append(len(rows)), search(rows, k))[1],
    )
    monkeypatch.setattr(graph, "_ITEMS_PER_CANDIDATE", 5)
    for n_queries in (1, 2, 3, 64):  # 64 candidates stand for 320 items
        followed.graph.search(followed.version, vectors(n_queries), 5)
    assert sizes == [1, 2]


def test_with_many_new_items_searches_are_exact(followed, monkeypatch):
    followed.items.add(range(300), vectors(300))
    followed.publish()
    followed.wait()
    monkeypatch.setattr(followed.graph, "_follow", lambda view: None)
    monkeypatch.setattr(graph, "_MOST_LATE", 50)
    followed.items.add(range(300, 400), vectors(100, seed=1))
    followed.publish()
    queries = vectors(20, seed=2)
    assert followed.graph.search(followed.version, queries, 5) == followed.version.search_many(
        queries, 5
    )


def test_a_cosine_is_scored_again_with_the_numbers_of_the_version(tmp_path):
    rows = vectors(400) * np.linspace(0.1, 5, 400, dtype=np.float32)[:, None]
    learning = Learning("oasis", {"normalise": True})
    options = {"learning": learning, "index": "usearch", "candidates": 200}
    with running(tmp_path, **options) as service:
        add_items(service, rows)
        judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(service.writer.last, 60)
        wait_until(lambda: service.index.n_late == 0)
        for row in rows[:20]:
            found = dict(service.search(row, 10))
            exact = dict(service.named(service.version.search_many(row[None], 10)[0]))
            assert len(found.keys() & exact.keys()) >= 8
            for name in found.keys() & exact.keys():
                assert found[name] == pytest.approx(exact[name], abs=1e-5)


def test_the_service_keeps_its_graph_for_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "_OPTIONS", {"connectivity": 8})
    rows = vectors(300)
    with running(tmp_path, index="usearch", candidates=32) as service:
        add_items(service, rows)
        wait_until(lambda: service.index.n_late == 0)
        do(service, Ledger.delete_item, "i7")
        do(service, Ledger.put_item, NewItem("i8", rows[9], {}))
        wait_until(lambda: service.index.n_late == 0)
        before = [service.search(row, 5) for row in rows[:20]]
    (file,) = (tmp_path / "index").iterdir()
    added = []
    add = graph.HnswIndex.add
    monkeypatch.setattr(
        graph.HnswIndex, "add", lambda self, ids, rows: (added.extend(ids), add(self, ids, rows))
    )
    with running(tmp_path, index="usearch", candidates=32) as service:
        wait_until(lambda: service.index.n_late == 0)
        assert added == []
        assert [service.search(row, 5) for row in rows[:20]] == before
    assert list((tmp_path / "index").iterdir()) == [file]  # nothing has changed
    file.write_bytes(file.read_bytes()[:-1000])
    with running(tmp_path, index="usearch", candidates=32) as service:  # damaged: built again
        wait_until(lambda: service.index.n_late == 0)
        assert len(added) == 299


def test_a_graph_of_another_log_is_not_used(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 0), (second, 1)):
        with running(folder, index="usearch", candidates=32) as service:
            add_items(service, vectors(200, seed=seed))
            wait_until(lambda: service.index.n_late == 0)
    for old in (second / "index").iterdir():
        old.unlink()
    for file in (first / "index").iterdir():
        file.rename(second / "index" / file.name)
    with running(second, index="usearch", candidates=32) as service:
        wait_until(lambda: service.index.n_late == 0)
        found = [dict(service.search(row, 1)) for row in vectors(200, seed=1)[:50]]
        assert sum(f"i{n}" in hits for n, hits in enumerate(found)) >= 48


def test_a_follower_builds_a_graph_of_its_own_and_writes_no_file(tmp_path):
    with running(tmp_path, index="usearch", candidates=32) as first:
        add_items(first, vectors(200))
        with running(tmp_path, index="usearch", candidates=32, follow=True) as second:
            assert second.engine.wait_for(first.writer.last, 60)
            wait_until(lambda: second.index.n_late == 0)
            row = vectors(200)[5]
            assert second.search(row, 1)[0][0] == "i5"
        assert not (tmp_path / "index").exists()


def test_what_a_killed_process_left_is_removed(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    unfinished, other = folder / ".tmp-0123456789ab.safetensors", folder / ".tmp-of-the-operator"
    unfinished.touch()
    other.touch()
    with running(tmp_path, index="usearch") as service:
        assert list(folder.iterdir()) == [other]
        add_items(service, vectors(3))
        unfinished.touch()  # by the service that writes
        with running(tmp_path, index="usearch", follow=True):
            assert unfinished.exists()


def test_recall_is_measured_and_told(tmp_path):
    options = {"index": "usearch", "candidates": 20, "recall_share": 1.0}
    with running(tmp_path, **options) as service:
        add_items(service, vectors(500, 32))
        wait_until(lambda: service.index.n_late == 0)
        with served(service) as port:
            client = Client(port)
            for row in vectors(40, 32, seed=3):
                client("POST", "/v1/search", {"vector": row.tolist(), "k": 5})
            wait_until(lambda: service.searches.recall.n_compared == 40)
            text = client.raw("GET", "/metrics")[2].decode()
            client.close()
    recall = service.searches.recall
    assert recall.n_wanted == 200
    assert 100 < recall.n_found <= 200
    assert recall.recent == pytest.approx(recall.n_found / 200)
    lines = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert float(lines["simstream_recall"]) == pytest.approx(recall.recent)
    assert float(lines["simstream_recall_wanted_total"]) == 200
    assert float(lines["simstream_index_late"]) == 0


def test_the_command_serves_with_it_and_survives_kill_9(tmp_path):
    np.save(tmp_path / "items.npy", vectors(200))
    options = ("--index", "usearch", "--candidates", "2")
    server = ServerProcess(tmp_path / "data", *options, tmp_path / "items.npy")
    server.kill()
    server = ServerProcess(tmp_path / "data", *options, "--recall-share", "1")
    client = Client(server.port)
    status, answer = client("POST", "/v1/search", {"item": "7", "k": 1})
    assert (status, len(answer["results"])) == (200, 1)
    assert client("GET", "/v1/status")[1]["index"] == "usearch"
    wait_until(lambda: b"\nsimstream_index_late 0.0" in client.raw("GET", "/metrics")[2])
    client.close()
    server.terminate()
    assert len(list((tmp_path / "data" / "index").iterdir())) == 1


def test_sparse_items_are_refused(tmp_path):
    with pytest.raises(ValueError, match="index: expected exact for sparse vectors, got usearch"):
        running(tmp_path, index="usearch", n_features=5).__enter__()
