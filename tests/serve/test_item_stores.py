"""Items in the user's own database: the service learns from their vectors and maps queries."""

import contextlib
import socket

import numpy as np
import pytest
from live import Client, ServerProcess, add_items, learner_of, running, served, vectors, wait_until

from postgres import PostgresServer, with_pgvector
from simstream.serve import qdrant
from simstream.serve.log import LogError
from simstream.serve.service import Limits
from simstream.serve.snapshots import compare
from simstream.serve.state import Learning

#: Qdrant in this process says that it is always exact.
pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")

N, D = 60, 6


class Shared:
    """A client that others use, too."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def close(self):
        """Leave it open."""


class QdrantItems:
    """A collection of Qdrant in this process."""

    def __init__(self, monkeypatch, distance="DOT", name=None):
        from qdrant_client import QdrantClient, models

        self._models, self._name = models, name
        self.client = QdrantClient(":memory:")
        self.close = self.client.close
        params = models.VectorParams(size=D, distance=models.Distance[distance])
        self.client.create_collection("items", params if name is None else {name: params})
        monkeypatch.setattr(qdrant, "_connect", lambda address: Shared(self.client))
        self.address = "qdrant://localhost:6333/items" + ("" if name is None else f"?vector={name}")

    def put(self, rows):
        points = [
            self._models.PointStruct(
                id=int(name),
                vector=row.tolist() if self._name is None else {self._name: row.tolist()},
            )
            for name, row in rows.items()
        ]
        self.client.upsert("items", points)

    def remove(self, name):
        self.client.delete("items", [int(name)])

    def break_off(self, store):
        """From now on nobody answers."""
        from qdrant_client import QdrantClient

        address = f"http://127.0.0.1:{closed_port()}"
        store._client = QdrantClient(address, check_compatibility=False)


class PgvectorItems:
    """A table of PostgreSQL with an index."""

    def __init__(self, url, kind="vector", id_type="bigint"):
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)
        self.close, self.kind = self._connection.close, kind
        self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        for command in (
            "DROP TABLE IF EXISTS things",
            f"CREATE TABLE things (name {id_type} PRIMARY KEY, place {kind}({D}))",
            f"CREATE INDEX ON things USING hnsw (place {kind}_ip_ops)",
        ):
            self._connection.execute(command)
        self.address = url + "&table=public.things&id=name&vector=place"

    def put(self, rows):
        command = "INSERT INTO things VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET place = excluded.place"
        for name, row in rows.items():
            self._connection.execute(command, (name, str(row.tolist())))

    def remove(self, name):
        self._connection.execute("DELETE FROM things WHERE name = %s", (name,))

    def break_off(self, store):
        store.close()
        store._conninfo = f"postgresql://127.0.0.1:{closed_port()}/postgres"


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL with pgvector."""
    server = PostgresServer(with_pgvector())
    yield server.database
    server.remove()


@pytest.fixture(params=["qdrant", "named", "cosine", "pgvector", "halfvec"])
def items(request, monkeypatch):
    """A database that holds the items 0 to 59."""
    if request.param in ("pgvector", "halfvec"):
        kind = "vector" if request.param == "pgvector" else "halfvec"
        items = PgvectorItems(request.getfixturevalue("postgres"), kind)
    else:
        pytest.importorskip("qdrant_client")
        options = {"named": {"name": "text"}, "cosine": {"distance": "COSINE"}}
        items = QdrantItems(monkeypatch, **options.get(request.param, {}))
    items.rows = {str(n): row for n, row in enumerate(vectors(N, D))}
    if request.param == "halfvec":  # exactly as they are stored
        items.rows = {n: row.astype(np.float16).astype(np.float32) for n, row in items.rows.items()}
    items.put(items.rows)
    yield items
    items.close()


@pytest.fixture
def one(monkeypatch):
    """The simplest of them."""
    pytest.importorskip("qdrant_client")
    items = QdrantItems(monkeypatch)
    items.rows = {str(n): row for n, row in enumerate(vectors(N, D))}
    items.put(items.rows)
    return items


def expected(service, rows, query, k, leave_out=None):
    """By the learner's own similarity, of these rows."""
    names = [name for name in rows if name != leave_out]
    learner = learner_of(service)
    table = np.array([rows[name] for name in names])
    scores = table @ query if learner is None else learner.score_items(query[None], table)[0]
    order = np.argsort(-scores, kind="stable")[:k]
    return [names[place] for place in order], scores[order]


def feedback(client, *triplets):
    names = ("anchor", "positive", "negative")
    bodies = [dict(zip(names, triplet, strict=True)) for triplet in triplets]
    return client("POST", "/v1/feedback?wait=true", bodies)


@pytest.mark.parametrize("params", [{}, {"normalise": True}, {"centre": "auto", "item_term": True}])
def test_queries_are_mapped_and_the_database_finds_what_the_model_ranks_first(
    tmp_path, items, params
):
    options = {"learning": Learning("oasis", {"C": 1.0, **params}), "index": items.address}
    with running(tmp_path, recall_share=1.0, **options) as service, served(service) as port:
        client = Client(port)
        for learnt in (False, True):
            if learnt:
                triplets = [(str(n), str(n + 1), str(n + 2)) for n in range(20)]
                status, answer = feedback(client, *triplets)
                assert status == 201
                assert answer["visible"]
                assert len(answer["positions"]) == 20
            for number in range(5):
                status, answer = client("POST", "/v1/search", {"item": str(number), "k": 5})
                assert status == 200
                names, scores = expected(
                    service, items.rows, items.rows[str(number)], 5, str(number)
                )
                assert [hit["id"] for hit in answer["results"]] == names
                if not params.get("centre"):  # there scores differ by a number of the query
                    got = [hit["score"] for hit in answer["results"]]
                    np.testing.assert_allclose(got, scores, rtol=2e-3, atol=2e-3)
        body = {"vector": items.rows["3"].tolist(), "k": 1, "baseline": True}
        assert client("POST", "/v1/search", body)[1]["baseline"][0]["id"] == "3"
        wait_until(lambda: service.searches.recall.n_compared >= 12)
        assert service.searches.recall.recent == 1.0
        assert (
            "6333" in client("GET", "/v1/status")[1]["index"] or "things" in service.store.address
        )
    report, _ = compare(tmp_path, lambda learning: learning)  # from the log alone
    assert report["identical"]


def test_what_is_learnt_is_what_items_were_when_they_were_judged(tmp_path, items):
    with running(tmp_path, index=items.address) as service, served(service) as port:
        client = Client(port)
        position = dict(service.engine.items.positions)
        assert len(position) == N  # the sample of the first start
        assert feedback(client, ("0", "1", "2"))[0] == 201
        assert service.engine.items.positions == position
        first = learner_of(service).get_bilinear_matrix().copy()
        moved = items.rows["1"][::-1].copy()
        items.put({"1": moved, "60": items.rows["5"]})
        assert feedback(client, ("0", "1", "60"))[0] == 201
        after = service.engine.items.positions
        assert after["1"] > position["1"]
        assert "60" in after
        np.testing.assert_allclose(client("GET", "/v1/items/1")[1]["vector"], moved, atol=1e-6)
        assert not np.array_equal(learner_of(service).get_bilinear_matrix(), first)
        # One that is gone cannot be judged, and nothing is kept of such a request.
        items.remove("2")
        last = service.writer.last
        status, answer = feedback(client, ("0", "3", "4"), ("0", "1", "2"))
        assert (status, service.writer.last) == (404, last)
        assert "'2'" in answer["error"]
        # Among those that were shown it is left out.
        clicks = {"query": "0", "shown": ["4", "3", "2"], "clicked": ["3"]}
        assert client("POST", "/v1/feedback?wait=true", clicks)[0] == 201
        event = service.log.get(service.writer.last)
        known = service.engine.items.positions
        assert "2" not in known
        assert (
            event.body["triplets"]
            == event.body["compared"]
            == [[known["0"], known["3"], known["4"]]]
        )


def test_items_are_changed_in_the_database_only(tmp_path, items):
    with running(tmp_path, index=items.address) as service, served(service) as port:
        client = Client(port)
        new = {"vector": items.rows["1"].tolist()}
        for request in (
            ("POST", "/v1/items", {"items": [{"id": "x", **new}]}),
            ("PUT", "/v1/items/1", new),
            ("DELETE", "/v1/items/1"),
        ):
            status, answer = client(*request)
            assert status == 405
            assert "change them there" in answer["error"]
        for unknown in ("1000", "no-number", "01"):
            assert client("POST", "/v1/search", {"item": unknown})[0] == 404
            assert client("GET", f"/v1/items/{unknown}")[0] == 404
        assert client("POST", "/v1/search", {"vector": [1.0, 2.0]})[0] == 422
        if getattr(items, "kind", None) == "vector":  # others round, or have length one
            items.put({"5": np.full(D, 1e9, np.float32)})
            status, answer = feedback(client, ("0", "1", "5"))
            assert status == 422
            assert "expected numbers up to 1e+06" in answer["error"]
        assert client("GET", "/v1/query")[0] == 200


def test_a_database_that_does_not_answer_is_503_and_the_service_lives_on(tmp_path, items):
    with running(tmp_path, index=items.address) as service, served(service) as port:
        client = Client(port)
        items.break_off(service.store)
        body = {"vector": items.rows["1"].tolist(), "k": 2}
        for request in (
            ("POST", "/v1/search", body),
            ("POST", "/v1/search", {"item": "1"}),
            ("POST", "/v1/feedback", {"anchor": "0", "positive": "1", "negative": "2"}),
        ):
            status, answer = client(*request)
            assert status == 503
            assert "does not answer" in answer["error"]
        assert client("GET", "/healthz")[0] == 200
        text = client.raw("GET", "/metrics")[2].decode()
        assert "simstream_index_failures_total 1.0" in text


def test_a_table_that_is_dropped_is_503(tmp_path, postgres):
    items = PgvectorItems(postgres)
    items.put({str(n): row for n, row in enumerate(vectors(5, D))})
    with running(tmp_path, index=items.address) as service, served(service) as port:
        client = Client(port)
        items._connection.execute("DROP TABLE things")
        items.close()
        for body in ({"item": "1"}, {"vector": [1.0] * D}):
            status, answer = client("POST", "/v1/search", body)
            assert status == 503
            assert "does not exist" in answer["error"]


def test_failures_of_all_processes_are_counted(tmp_path, postgres):
    items = PgvectorItems(postgres)
    items.put({str(n): row for n, row in enumerate(vectors(5, D))})
    server = ServerProcess(tmp_path, "--index", items.address, "--workers", 1)
    try:
        client, body = Client(server.port), {"vector": [1.0] * D, "k": 2}
        assert client("POST", "/v1/search", body)[0] == 200
        items._connection.execute("DROP TABLE things")
        assert [client("POST", "/v1/search", body)[0] for _ in range(3)] == [503] * 3
        wait_until(
            lambda: b"simstream_index_failures_total 3.0" in client.raw("GET", "/metrics")[2]
        )
    finally:
        items.close()
        server.terminate()


def test_a_follower_searches_the_database_too(tmp_path, items):
    with running(tmp_path, index=items.address) as first:
        with running(tmp_path, index=items.address, follow=True) as second:
            assert second.search(items.rows["7"], 1)[0][0] == "7"
        assert first.search("7", 1)[0][0] != "7"


def test_nobody_there_at_the_start(tmp_path):
    pytest.importorskip("qdrant_client")
    for address in ("qdrant", "http"):
        with pytest.raises(ConnectionError, match=r"index: .*does not answer"):
            running(tmp_path, index=f"{address}://127.0.0.1:{closed_port()}/items").__enter__()


def test_nobody_there_at_the_start_of_postgresql(tmp_path):
    pytest.importorskip("psycopg")
    address = f"postgresql://me:secret@127.0.0.1:{closed_port()}/db"
    with pytest.raises(ConnectionError, match=r"index: .*does not answer") as caught:
        running(tmp_path, index=address).__enter__()
    assert "secret" not in str(caught.value)


def test_a_folder_and_a_database_belong_together(tmp_path, one):
    with running(tmp_path, index=one.address):
        pass
    with pytest.raises(LogError, match="its items are in qdrant://localhost:6333/items"):
        running(tmp_path).__enter__()
    one.client.delete_collection("items")
    with pytest.raises(ValueError, match="there is no such collection"):
        running(tmp_path, index=one.address).__enter__()
    params = one._models.VectorParams(size=D + 1, distance=one._models.Distance.DOT)
    one.client.create_collection("items", params)
    with pytest.raises(LogError, match=r"expected vectors of 6 numbers, .* got 7"):
        running(tmp_path, index=one.address).__enter__()
    own = tmp_path / "own"
    with running(own) as service:
        add_items(service, vectors(3, D + 1))
    with pytest.raises(LogError, match="has items of its own"):
        running(own, index=one.address).__enter__()


def test_a_folder_changes_its_database_only_on_purpose(tmp_path, one):
    with running(tmp_path, index=one.address) as service:
        first = service.store.address
    other = one.address.replace("localhost", "elsewhere")  # the same items
    with pytest.raises(LogError, match=r"its items are in qdrant://localhost.*--move-index"):
        running(tmp_path, index=other).__enter__()
    with running(tmp_path, index=other, follow=True) as service:
        assert service.log.setting("index") == first
    with running(tmp_path, index=other, move_index=True):
        pass
    with running(tmp_path, index=other) as service:
        assert service.log.setting("index") == other


def test_an_address_has_all_that_chooses_the_vectors(tmp_path, items):
    with running(tmp_path, index=items.address) as service:
        kept = service.log.setting("index")
        wanted = items.address.partition("?")[2].partition("&table")[2]
        assert kept.endswith(wanted or items.address)
    with running(tmp_path, index=items.address):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "mysql://me:hush@host/items",
        "qdrnat://me:hush@host",
        "qdrant://me:hush@host",
        "qdrant://me:hush@host/a/b",
        "qdrant://me:hu/hush@host/items",
        "qdrant://me:hush",
        "qdrant://host:hush/items",
        "qdrant://[hush/items",
        "postgresql://me:hu/hush@host/db",
        "postgresql://me:hu:hush/db",
        "me:hush@host",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(tmp_path, text):
    from commands import run

    pytest.importorskip("qdrant_client")
    pytest.importorskip("psycopg")
    done = run("serve", "--data", tmp_path / "data", "--port", 0, "--index", text)
    assert done.exit_code in (1, 2)
    assert "expected" in done.output
    assert "hush" not in done.output


def test_an_address_of_a_table_is_read_as_that_of_a_log():
    pytest.importorskip("psycopg")
    from psycopg.conninfo import conninfo_to_dict

    from simstream.serve.postgres_address import Address

    text = "postgres://me:hush@/shop?host=/run/postgresql&options=-c%20geqo%3Doff&id=name"
    address = Address.parsed(text, {"table": "items", "id": "id"}, what="index")
    known = conninfo_to_dict(address.conninfo)
    expected = {"host": "/run/postgresql", "dbname": "shop", "options": "-c geqo=off"}
    assert expected.items() <= known.items()
    assert address.place == "postgresql:///shop?host=/run/postgresql&table=items&id=name"


def test_too_many_items_are_refused_before_they_are_read(tmp_path, one):
    limits = Limits(vectors=4)
    with running(tmp_path, index=one.address, limits=limits) as service, served(service) as port:
        client, asked = Client(port), []
        read = service.store.vectors
        service.store.vectors = lambda names: asked.append(len(names)) or read(names)
        status, answer = feedback(client, ("0", "1", "2"), ("0", "3", "4"))
        assert (status, asked) == (422, [])
        assert "expected at most 4 different items, got 5" in answer["error"]
        assert feedback(client, ("0", "1", "2"), ("0", "3", "2"))[0] == 201
        assert asked == [4]


def test_known_items_are_compared_at_once(tmp_path, one):
    with running(tmp_path, index=one.address) as service, served(service) as port:
        asked, fetch = [], service.log.store.fetch
        service.log.store.fetch = lambda *given: asked.append(given[0]) or fetch(*given)
        triplets = [(str(n), str(n + 1), str(n + 2)) for n in range(50)]
        assert feedback(Client(port), *triplets)[0] == 201
        assert sum("position IN" in query for query in asked) == 1


@pytest.mark.parametrize(("id_type", "n_asked"), [("bigint", 1), ("uuid", 0), ("numeric", 16)])
def test_one_name_that_is_no_id_costs_few_questions(postgres, id_type, n_asked):
    from simstream.serve.pgvector import PgvectorStore

    items = PgvectorItems(postgres, id_type=id_type)
    if id_type != "uuid":
        items.put({str(n): row for n, row in enumerate(vectors(100, D))})
    items.close()
    with contextlib.closing(PgvectorStore(items.address)) as store:
        asked, rows = [], store._rows
        store._rows = lambda *given: asked.append(given) or rows(*given)
        found = store.vectors([*map(str, range(100)), "shoe"])
    assert len(found) == (0 if id_type == "uuid" else 100)
    assert len(asked) <= n_asked


def test_distances_that_do_not_rank_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("qdrant_client")
    items = QdrantItems(monkeypatch, "EUCLID")
    with pytest.raises(ValueError, match="expected single vectors with the distance Dot or Cosine"):
        running(tmp_path, index=items.address).__enter__()
    items = QdrantItems(monkeypatch, name="text")
    with pytest.raises(ValueError, match=r"expected \?vector= with one of text"):
        running(tmp_path, index="qdrant://localhost/items").__enter__()
    with pytest.raises(ValueError, match="expected qdrant://HOST:PORT/COLLECTION"):
        running(tmp_path, index="qdrant://localhost").__enter__()
    with pytest.raises(ValueError, match="expected qdrant://HOST:PORT/COLLECTION"):
        running(tmp_path, index="qdrant://localhost/a%2Fb").__enter__()
    with pytest.raises(ValueError, match="not in the address"):
        running(tmp_path, index="qdrant://:key@localhost/items").__enter__()


def test_texts_are_ids_of_a_table_too(tmp_path, postgres):
    items = PgvectorItems(postgres, id_type="text")
    rows = {f"shoe {n}": row for n, row in enumerate(vectors(10, D))}
    items.put(rows)
    with running(tmp_path, index=items.address) as service:
        assert (
            service.search("shoe 3", 10)[0][0]
            == expected(service, rows, rows["shoe 3"], 1, "shoe 3")[0][0]
        )
    items.close()
    for address, message in (
        (postgres + "&table=nothing", "there is no such table"),
        (postgres + "&table=things&id=name", "expected a column 'embedding', got name, place"),
        (postgres + "&table=things&id=name&vector=name", "to be a vector or halfvec, got text"),
    ):
        with pytest.raises(ValueError, match=message):
            running(tmp_path, index=address).__enter__()


def test_exact_searches_do_without_the_index_of_the_table(postgres):
    from simstream.serve.pgvector import PgvectorStore

    items, rows = PgvectorItems(postgres), vectors(2000, D)
    items.put({str(n): row for n, row in enumerate(rows)})
    items.close()
    with contextlib.closing(PgvectorStore(items.address)) as store:
        queries = vectors(20, D, seed=1)
        best = np.argsort(-(queries @ rows.T), axis=1)[:, :20]
        few, all_of_them = (
            np.mean(
                [
                    len({int(name) for name, _ in hits} & set(wanted))
                    for (hits, _), wanted in zip(
                        store.search(queries, 20, effort=1, exact=exact, with_vectors=False),
                        best.tolist(),
                        strict=True,
                    )
                ]
            )
            for exact in (False, True)
        )
    assert few < 15  # the index was used
    assert all_of_them == 20


def test_the_command_refuses_what_does_not_fit(tmp_path):
    from commands import run

    np.save(tmp_path / "items.npy", vectors(3))
    cases = (
        (["--index", "faiss"], "expected exact, usearch, qdrant://HOST:PORT/COLLECTION"),
        (["--candidates", "5"], "--candidates requires --index"),
        (["--index", "qdrant://h/c"], "ITEMS not with items in a database"),
    )
    for arguments, message in cases:
        result = run("serve", tmp_path / "items.npy", "--data", tmp_path / "data", *arguments)
        assert result.exit_code == 2
        assert message in result.output
