"""What was acknowledged is kept, once; and nothing else is claimed."""

import json
import random
import resource
import signal
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from live import (
    Client,
    ServerProcess,
    add_items,
    assert_same_matrix,
    do,
    judge,
    learner_of,
    oasis_of,
    running,
    vectors,
    wait_until,
)

from postgres import connected
from simstream.serve import upkeep
from simstream.serve.access import BusyError, ConflictError, NotFoundError, StorageError
from simstream.serve.log import Log, LogError
from simstream.serve.service import Limits, Service, Settings
from simstream.serve.snapshots import compare, same_bits
from simstream.serve.writer import Judgement, Ledger, NewItem, Write, Writer

N_ITEMS, D = 40, 8


def kept_triplets(folder, address=None):
    """Anchor, positive, negative of all feedback in the log, in order, read with nothing but the database."""
    import sqlite3

    connection = sqlite3.connect(folder / "log.sqlite") if address is None else connected(address)
    rows = connection.execute(
        "SELECT body FROM events WHERE kind = 'feedback' ORDER BY position"
    ).fetchall()
    keys = connection.execute("SELECT key, first, count FROM requests").fetchall()
    count, last = connection.execute("SELECT count(*), max(position) FROM events").fetchone()
    connection.close()
    bodies = [json.loads(body) for (body,) in rows]
    names = [(body["anchor"], *body["pairs"][0]) for body in bodies for _ in body["triplets"]]
    assert count == last, "positions have no gaps"
    return names, {key: (first, n) for key, first, n in keys}


class Load:
    """Clients that send judgements with keys, again and again until they are acknowledged."""

    def __init__(self, n_clients=3):
        self.acknowledged = {}
        self.sent = {}
        self._lock = threading.Lock()
        self._number = 0
        self._n_clients = n_clients
        self._open = []  # sent, not acknowledged: to be sent again with the same key

    def run(self, port, stop):
        threads = [
            threading.Thread(target=self._work, args=(port, stop)) for _ in range(self._n_clients)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _next(self):
        with self._lock:
            if self._open:
                return self._open.pop()
            self._number += 1
            key = f"k{self._number}"
            rng = random.Random(key)
            batch = [rng.sample(range(N_ITEMS), 3) for _ in range(rng.randint(1, 5))]
            self.sent[key] = batch
            return key

    def _work(self, port, stop):
        client = Client(port, timeout=20)
        names = ("anchor", "positive", "negative")
        while not stop.is_set():
            key = self._next()
            body = [
                dict(zip(names, [f"i{n}" for n in triplet], strict=True))
                for triplet in self.sent[key]
            ]
            try:
                status, answer = client("POST", "/v1/feedback", body, Idempotency_Key=key)
            except Exception:  # the server was killed
                status = 0
            with self._lock:
                if status in (200, 201):
                    self.acknowledged[key] = answer["positions"]
                else:
                    self._open.append(key)
            if status == 0:
                return
        client.close()


def killed_and_checked(folder, address, n_kills, seed):
    rng = random.Random(seed)
    rows = vectors(N_ITEMS, D)
    load = Load()
    for kill in range(n_kills + 1):
        server = serving(folder, address)
        client = Client(server.port)
        if kill == 0:
            items = [{"id": f"i{n}", "vector": row.tolist()} for n, row in enumerate(rows)]
            assert client("POST", "/v1/items", {"items": items})[0] == 201
        client.close()
        stop = threading.Event()
        threads = load.run(server.port, stop)
        time.sleep(rng.uniform(0.02, 0.6))
        if kill < n_kills:
            server.kill()
            stop.set()
        else:
            stop.set()
            for thread in threads:
                thread.join()
            server.terminate()
            assert server.process.returncode == 0
        for thread in threads:
            thread.join()
    check_what_was_kept(folder, address, load, rows)
    assert len(load.acknowledged) > n_kills, "there was some load"


def serving(folder, address):
    place = [] if address is None else ["--log", address]
    return ServerProcess(folder, "--snapshot-every", "20", *place)


def check_what_was_kept(folder, address, load, rows):
    """All that was acknowledged is there once, and the model is what an oracle learns from it."""
    kept, keys = kept_triplets(folder, address)
    for key, positions in load.acknowledged.items():
        first, count = keys[f"feedback:{key}"]
        assert positions == list(range(first, first + count)), (
            "acknowledged, and kept where it said"
        )
    expected = []
    for key, (_, count) in sorted(keys.items(), key=lambda entry: entry[1]):
        batch = load.sent[key.removeprefix("feedback:")]
        assert count == len(batch)
        expected += [tuple(f"i{n}" for n in triplet) for triplet in batch]
    assert kept == expected, "every request is in the log once and whole"
    reference = oasis_of([[rows[int(name[1:])] for name in triplet] for triplet in kept])
    with running(folder) as service:
        assert_same_matrix(learner_of(service), reference)
    report, learner = compare(folder, lambda kept: kept)
    assert report["identical"] is True
    assert_same_matrix(learner, reference)
    assert upkeep.check(folder).is_whole


def test_kill_9_under_load_loses_nothing(tmp_path, address):
    killed_and_checked(tmp_path, address, 3, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_kill_9_fifty_times(tmp_path, address, seed):
    killed_and_checked(tmp_path, address, 10, seed=100 + seed)


@pytest.mark.parametrize("n_kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_of_postgresql_under_load_loses_nothing(tmp_path, postgres, n_kills):
    """Every other time the service is started again too; else it goes on by itself."""
    rng, rows, load = random.Random(n_kills), vectors(N_ITEMS, D), Load()
    address = postgres.address()
    server = serving(tmp_path, address)
    client = Client(server.port)
    items = [{"id": f"i{n}", "vector": row.tolist()} for n, row in enumerate(rows)]
    assert client("POST", "/v1/items", {"items": items})[0] == 201
    for kill in range(n_kills):
        stop = threading.Event()
        threads = load.run(server.port, stop)
        time.sleep(rng.uniform(0.02, 0.6))
        postgres.kill()
        time.sleep(rng.uniform(0.0, 0.2))  # requests fail meanwhile
        stop.set()
        for thread in threads:
            thread.join()
        postgres.start()
        if kill % 2:
            server.kill()
            server = serving(tmp_path, address)
        else:
            wait_until(lambda port=server.port: ready(port))
        before = len(load.acknowledged)
        stop = threading.Event()
        threads = load.run(server.port, stop)
        wait_until(lambda before=before: len(load.acknowledged) > before)
        stop.set()
        for thread in threads:
            thread.join()
    server.terminate()
    assert server.process.returncode == 0
    check_what_was_kept(tmp_path, address, load, rows)


def ready(port):
    client = Client(port)
    status = client("GET", "/readyz")[0]
    client.close()
    return status == 200


def test_a_full_disk_is_told_and_nothing_acknowledged_is_lost(tmp_path):
    """The file size limit of the process stands for the disk: SQLite gets the same kind of error."""
    rows = vectors(N_ITEMS, D)
    with running(tmp_path) as service:
        add_items(service, rows)
    size = sum(path.stat().st_size for path in tmp_path.glob("log.sqlite*"))

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60_000, size + 60_000))

    server = ServerProcess(tmp_path, preexec_fn=limit)
    client = Client(server.port)
    triplet = {"anchor": "i0", "positive": "i1", "negative": "i2"}
    acknowledged = 0
    statuses = []
    for _ in range(400):
        status, answer = client("POST", "/v1/feedback", [triplet] * 10)
        statuses.append(status)
        acknowledged += 10 * (status == 201)
        if status != 201:
            assert status == 507
            assert "log cannot be written" in answer["error"]
            break
    assert acknowledged > 0
    assert statuses[-1] == 507
    status, headers, _ = client.raw(
        "POST", "/v1/feedback", json.dumps(triplet), {"Content-Type": "application/json"}
    )
    assert status == 507
    assert int(headers["retry-after"]) > 0
    assert client("POST", "/v1/search", {"item": "i0", "k": 3})[0] == 200, "reading goes on"
    client.close()
    server.kill()
    kept, _ = kept_triplets(tmp_path)
    assert len(kept) == acknowledged
    with running(tmp_path) as service:  # and with space again, writing does
        judge(service, "i3", "i4", "i5")
        assert service.engine.wait_for(service.writer.last, 60)
        assert service.version.tally.triplets == acknowledged + 1


def three_snapshots(folder):
    """A service that was stopped three times: what it had learnt, and its snapshots."""
    for begin in (0, 10, 20):
        with running(folder) as service:
            if begin == 0:
                add_items(service, vectors(N_ITEMS, D))
            for n in range(begin, begin + 10):
                judge(service, f"i{n}", f"i{n + 1}", f"i{n + 2}")
    return learner_of(service), service.engine.snapshots


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "foreign"])
def test_a_damaged_snapshot_is_refused_and_the_log_is_enough(tmp_path, damage):
    before, snapshots = three_snapshots(tmp_path)
    positions = snapshots.positions()
    assert len(positions) == 3
    for position in positions:
        path = snapshots.path(position)
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[-5] ^= 1
        elif damage == "truncate":
            data = data[: len(data) // 2]
        elif damage == "empty":
            data = b""
        else:
            data = b"PK\x03\x04 something else"
        path.write_bytes(bytes(data))
    with running(tmp_path) as service:
        assert service.engine.snapshots.n_refused == len(positions)
        assert same_bits(learner_of(service), before)
        assert service.version.tally.triplets == 30


def test_one_damaged_snapshot_leaves_the_older_ones(tmp_path):
    before, snapshots = three_snapshots(tmp_path)
    snapshots.path(snapshots.positions()[-1]).write_bytes(b"x")
    with running(tmp_path) as service:
        assert service.engine.snapshots.n_refused == 1
        assert same_bits(learner_of(service), before)


@pytest.mark.parametrize("is_adopted", [True, False])
def test_a_snapshot_of_another_learner_is_deleted_or_refused(tmp_path, is_adopted):
    from simstream.serve.snapshots import adopt_learning
    from simstream.serve.state import Learning

    rows = vectors(N_ITEMS, D)
    with running(tmp_path) as service:
        add_items(service, rows)
        judge(service, "i0", "i1", "i2")
    other = Learning("oasis", {"C": 0.01})
    snapshots = tmp_path / "snapshots"
    kept = {path: path.read_bytes() for path in snapshots.glob("model-*")}
    assert len(kept) == 1
    adopt_learning(tmp_path, lambda kept: kept)  # no change
    assert list(snapshots.glob("model-*")) == list(kept)
    adopt_learning(tmp_path, lambda kept: other)
    assert not list(snapshots.glob("*.safetensors"))
    if not is_adopted:  # as if it had ended before they were deleted
        for path, content in kept.items():
            path.write_bytes(content)
    with running(tmp_path, learning=other) as service:
        assert service.engine.snapshots.n_refused == (not is_adopted)
        assert learner_of(service).C == 0.01


def test_a_damaged_or_foreign_log_is_refused(tmp_path):
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(LogError, match="expected a simstream log"):
        Log(path)
    import sqlite3

    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(LogError, match="another SQLite file"):
        Log(other)
    good = tmp_path / "good.sqlite"
    Log(good, is_owner=True).close()
    connection = sqlite3.connect(good)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LogError, match="upgrade"):
        Log(good)


def test_two_services_cannot_use_one_folder(tmp_path):
    with running(tmp_path), pytest.raises(LogError, match="another service"):
        Service(Settings(tmp_path))


def test_keys_are_done_once_and_bound_to_what_was_asked(tmp_path, address):
    with running(tmp_path, log=address) as service:
        add_items(service, vectors(5))
        first = judge(service, "i0", "i1", "i2", key="a")
        again = judge(service, "i0", "i1", "i2", key="a")
        assert (again.first, again.is_repeated) == (first.first, True)
        write = Write(Ledger.judge, (Judgement("i0", [("i2", "i1")]),), "a", "another digest")
        with pytest.raises(ConflictError, match="different request"):
            service.submit([write]).result(30)
        twice = Write(Ledger.judge, (Judgement("i0", [("i3", "i4")]),), "b")
        receipts = service.submit([twice, twice]).result(30)
        assert [receipt.is_repeated for receipt in receipts] == [False, True]
        last = service.writer.last
    assert last == 5 + 1 + 1


def test_requests_that_are_committed_together_see_each_other(tmp_path, address):
    with running(tmp_path, log=address) as service:
        add_items(service, vectors(5))
        position = judge(service, "i0", "i1", "i2").first
        n_commits, hold = service.writer.n_commits, threading.Event()
        futures = [service.submit([Write(lambda ledger: hold.wait(30) and None)])]
        wait_until(lambda: not service.writer.n_waiting)
        keyed = Write(Ledger.judge, (Judgement("i0", [("i3", "i4")]),), "k")
        for write in (keyed, keyed, *[Write(Ledger.retract, (position,))] * 2):
            futures.append(service.submit([write]))
        hold.set()
        (first,), (second,), (undone,) = (futures[number].result(30) for number in (1, 2, 3))
        assert [first.is_repeated, second.is_repeated] == [False, True]
        assert (second.first, undone.first) == (first.first, 8)
        with pytest.raises(ConflictError, match="already undone"):
            futures[4].result(30)
        assert service.writer.n_commits == n_commits + 2
        assert service.log.last == 8


def test_a_request_is_kept_whole_or_not_at_all(tmp_path, address):
    with running(tmp_path, log=address) as service:
        add_items(service, vectors(5))
        good = Write(Ledger.judge, (Judgement("i0", [("i1", "i2")]),))
        bad = Write(Ledger.judge, (Judgement("i0", [("i1", "absent")]),))
        with pytest.raises(NotFoundError, match="absent"):
            service.submit([good, bad]).result(30)
        assert service.log.last == 5
        item = NewItem("new", vectors(1)[0], {})
        with pytest.raises(NotFoundError):
            service.submit([Write(Ledger.add_items, ([item],)), bad]).result(30)
        with pytest.raises(NotFoundError, match="'new'"):  # the item was not kept either
            judge(service, "new", "i1", "i2")


def test_too_many_waiting_requests_are_told_so(tmp_path):
    """With the writer held up, the queue fills and the next request is refused at once."""
    log, hold = Log(tmp_path / "log.sqlite", is_owner=True), threading.Event()
    writer = Writer(log, Ledger(log), lambda last, n_triplets: None, capacity=2)
    futures: list[Future] = []
    try:
        futures.append(writer.submit([Write(lambda ledger: hold.wait(30) and None)]))
        while writer.n_waiting:
            time.sleep(0.001)
        futures += [writer.submit([Write(lambda ledger: None)]) for _ in range(2)]
        with pytest.raises(BusyError, match="too many"):
            writer.submit([Write(lambda ledger: None)])
    finally:
        hold.set()
        writer.close()
    assert all(future.result(30)[0].events == 0 for future in futures)
    with pytest.raises(BusyError, match="shutting down"):
        writer.submit([Write(lambda ledger: None)])
    log.close()


def test_a_failed_commit_takes_the_ledger_back(tmp_path, address):
    with running(tmp_path, log=address) as service:
        add_items(service, vectors(3))
        append = service.log.append

        def fail(events):
            append(events)
            import sqlite3

            raise sqlite3.OperationalError("database or disk is full")

        service.log.append = fail
        item = NewItem("new", vectors(1)[0], {})
        with pytest.raises(StorageError, match="disk is full"):
            do(service, Ledger.add_items, [item])
        del service.log.append
        assert service.log.last == 3
        assert do(service, Ledger.add_items, [item]).first == 4, "not a conflict with itself"


def test_too_much_to_learn_is_told_so(tmp_path):
    with (
        running(tmp_path, limits=Limits(lag=-1)) as service,
        pytest.raises(BusyError, match="learnt"),
    ):
        add_items(service, vectors(3))


def test_sigterm_ends_gracefully_with_a_snapshot(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(5))
    server = ServerProcess(tmp_path)
    client = Client(server.port)
    body = {"anchor": "i0", "positive": "i1", "negative": "i2"}
    assert client("POST", "/v1/feedback", body)[0] == 201
    client.close()
    server.terminate()
    assert server.process.returncode == 0
    assert any("stopped at log position 6" in line for line in server.log)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [
        "model-000000000006.safetensors"
    ]


def test_vectors_come_back_as_they_were_given(tmp_path):
    rows = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    with running(tmp_path) as service:
        add_items(service, rows)
    with running(tmp_path) as service:
        for n, row in enumerate(rows):
            assert np.array_equal(service.item(f"i{n}")[1], row)
