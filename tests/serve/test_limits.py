"""What one caller may cost the others, and what a server says when it refuses or fails."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
import tracemalloc

import numpy as np
import pytest
from live import Client, ServerProcess, add_items, do, running, served, vectors, wait_until
from pydantic import ValidationError

from simstream.serve.access import (
    BadRequestError,
    BusyError,
    KeyRing,
    StorageError,
    UnauthorizedError,
    check_host,
)
from simstream.serve.app import SECURITY_HEADERS
from simstream.serve.import_export import in_chunks
from simstream.serve.log import LogError
from simstream.serve.schemas import Feedback
from simstream.serve.service import Limits, Service
from simstream.serve.state import State
from simstream.serve.writer import Judgement, Ledger, NewItem, Write


@pytest.fixture
def service(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(30))
        yield service


# -- what a request may cost ------------------------------------------------------------------


def test_lists_with_too_many_comparisons_are_refused_before_any_is_made(service):
    names = [f"n{number}" for number in range(1000)]
    clicks = {"query": "i0", "shown": names, "clicked": names[500:]}
    thumbs = {"query": "i0", "shown": names, "up": names[500:], "down": names[:500]}
    with served(service) as port:
        client = Client(port)
        for one in (clicks, thumbs):
            body = json.dumps([one] * 20)
            tracemalloc.start()
            status, _, content = client.raw(
                "POST", "/v1/feedback", body, {"content-type": "application/json"}
            )
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert status == 422
            assert "expected at most 2500 comparisons from one list, got 250000" in content.decode()
            assert peak < 100 * len(body)  # the pairs would take 20 * 250,000 * 64 bytes


@pytest.mark.parametrize("marks", ["thumbs", "clicks on top"])
def test_requests_with_too_many_pairs_are_refused_before_any_is_made(service, monkeypatch, marks):
    def made(self):
        raise AssertionError("a list has become pairs")

    monkeypatch.setattr(Feedback, "as_judgement", made)
    names = [f"i{number}" for number in range(1, 21)]
    given = {"up": names[:10], "down": names[10:]} if marks == "thumbs" else {"clicked": names[:10]}
    body = [
        {"query": "i0", "shown": names, **given}
    ] * 2001  # each is 100 pairs to learn or to measure
    with served(service) as port:
        status, answer = Client(port)("POST", "/v1/feedback", body)
    expected = "expected at most 200000 pairs to learn or to measure in one request, got 200100"
    assert (status, answer["error"]) == (422, f"feedback: {expected}")


def test_a_list_may_have_more_pairs_than_may_wait(tmp_path):
    names = [f"i{number}" for number in range(1, 21)]
    with running(tmp_path, limits=Limits(lag=99)) as service:
        add_items(service, vectors(21))
        with served(service) as port:
            body = {"query": "i0", "shown": names, "clicked": names[10:]}
            assert Client(port)("POST", "/v1/feedback", body)[0] == 201


def test_pairs_are_counted_as_they_are_made():
    generator, are_cut = np.random.default_rng(0), set()
    for _ in range(200):
        shown = [f"i{number}" for number in range(generator.integers(2, 130))]
        n_marked = int(generator.integers(1, len(shown)))
        marked = generator.permutation(shown).tolist()[:n_marked]
        n_up = int(generator.integers(0, n_marked + 1))
        for given in (
            {"clicked": marked},
            {"clicked": shown[:n_marked]},  # on top: only to measure
            {"up": marked[:n_up], "down": marked[n_up:]},
        ):
            with contextlib.suppress(ValidationError):  # more than 2,500 from one list
                feedback = Feedback(query="i0", shown=shown, **given)
                judgement = feedback.as_judgement()
                compared = judgement.compared or []
                assert feedback.n_built() == len(judgement.pairs) + len(compared)
                are_cut.add(len(compared) < len(given.get("clicked", [])) * (len(shown) - n_marked))
    assert are_cut == {False, True}
    assert Feedback(anchor="a", positive="b", negative="c").n_built() == 1


def test_lists_become_pairs_outside_of_the_event_loop(service, monkeypatch):
    made_in = []
    real = Feedback.as_judgement

    def noting(self):
        made_in.append(asyncio._get_running_loop())
        return real(self)

    monkeypatch.setattr(Feedback, "as_judgement", noting)
    with served(service) as port:
        body = [{"query": "i0", "shown": ["i1", "i2"], "clicked": ["i2"]}]
        assert Client(port)("POST", "/v1/feedback", body)[0] == 201
    assert made_in == [None]


def test_a_long_list_with_few_clicks_is_kept(service):
    names = [f"i{number}" for number in range(30)]
    with served(service) as port:
        body = {"query": names[0], "shown": names[1:], "clicked": [names[29]]}
        assert Client(port)("POST", "/v1/feedback", body)[0] == 201


def test_items_whose_matrix_would_not_fit_are_refused_before_the_first_is_kept(tmp_path):
    limits = Limits(model_bytes=3 * 4 * 100**2)
    with running(tmp_path, limits=limits) as service:
        with pytest.raises(BadRequestError, match="at most 100 numbers, got 101"):
            do(service, Ledger.add_items, [NewItem("a", np.ones(101, np.float32), {})])
        assert service.log.last == 0
        do(service, Ledger.add_items, [NewItem("a", np.ones(100, np.float32), {})])


def test_triplets_that_wait_count_not_events(tmp_path, monkeypatch):
    with running(tmp_path, limits=Limits(lag=100)) as service:
        add_items(service, vectors(30))
        real, go = State.advance, threading.Event()

        def held(self, events, until):
            assert go.wait(30)
            real(self, events, until)

        monkeypatch.setattr(State, "advance", held)
        pairs = [(f"i{a}", f"i{b}") for a in range(1, 11) for b in range(11, 26)]
        write = Write(Ledger.judge, (Judgement("i0", pairs),))
        service.submit([write]).result(30)
        with pytest.raises(BusyError, match="waiting to be learnt"):
            service.submit([write])
        assert service.engine.lag < 5
        go.set()
        wait_until(lambda: service.engine.n_triplets_waiting == 0)
        do(service, Ledger.judge, Judgement("i0", pairs))


def test_an_export_is_sent_in_few_pieces():
    lines = [f"{number}\n" for number in range(100_000)]
    pieces = list(in_chunks(lines))
    assert "".join(pieces) == "".join(lines)
    assert len(pieces) < 20


# -- slow and stalled callers -----------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: localh",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he",
    ],
)
def test_a_connection_without_complete_headers_is_closed(tmp_path, sent):
    with running(tmp_path, limits=Limits(body_seconds=0.3)) as service, served(service) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(sent)
            received = b""
            while some := connection.recv(1000):
                received += some
        assert (b"200 OK" in received) == sent.count(b"\r\n\r\n")


def test_a_body_that_does_not_arrive_is_told_and_given_up(tmp_path):
    with (
        running(tmp_path, limits=Limits(body_seconds=0.3)) as service,
        served(service) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        connection.sendall(head)
        assert b" 408 " in connection.recv(1000).split(b"\r\n")[0]


# -- answers ----------------------------------------------------------------------------------


def test_head_is_get_without_a_body(service):
    with served(service) as port:
        client = Client(port)
        for path in ("/healthz", "/v1/status", "/v1/items/i0"):
            status, headers, content = client.raw("HEAD", path)
            assert (status, content) == (200, b"")
            assert int(headers["content-length"]) > 0


def test_a_failure_is_json_with_all_headers(service, monkeypatch):
    def broken(self):
        raise RuntimeError("secret details")

    monkeypatch.setattr(Service, "status", broken)
    with served(service) as port:
        status, headers, content = Client(port).raw("GET", "/v1/status")
    assert status == 500
    assert json.loads(content)["error"] == "the service has failed; its log says why"
    for name, value in SECURITY_HEADERS.items():
        assert headers[name] == value


def test_an_id_may_end_like_the_address_of_a_picture(service):
    add_items(service, vectors(1), ["i0/image"])
    with served(service) as port:
        client = Client(port)
        assert client("GET", "/v1/items/i0%2Fimage")[1]["id"] == "i0/image"
        assert client("GET", "/v1/items/i1%2Fimage")[0] == 404
        assert "image: the item has none" in client("GET", "/v1/items/i0/image")[1]["error"]
        body = json.dumps({"vector": vectors(1)[0].tolist()})
        headers = {"Content-Type": "application/json"}
        for method in ("PUT", "DELETE", "PATCH"):
            status, answered, _ = client.raw(method, "/v1/items/i0/image", body, headers)
            assert (status, answered["allow"]) == (405, "GET, HEAD")
        assert client.raw("PUT", "/v1/items/i0%2Fimage", body, headers)[0] == 200
        assert client.raw("DELETE", "/v1/items/i0%2Fimage")[0] == 200
        status, answered, _ = client.raw("PATCH", "/v1/items/i0")
        assert (status, answered["allow"]) == (405, "DELETE, GET, HEAD, PUT")


# -- rates, addresses, keys -------------------------------------------------------------------


def test_the_rate_spares_who_watches_and_no_header_changes_the_caller(tmp_path):
    limits = Limits(rate=0.001, burst=3)
    with running(tmp_path, limits=limits) as service, served(service) as port:
        client = Client(port)
        assert [client("GET", "/healthz")[0] for _ in range(9)] == [200] * 9
        statuses = [
            client("GET", "/v1/status", X_Forwarded_For=f"10.0.0.{number}")[0]
            for number in range(6)
        ]
    assert statuses == [200] * 3 + [429] * 3


def test_a_proxy_that_is_named_speaks_for_its_callers_and_needs_keys(tmp_path):
    limits, path = Limits(rate=0.001, burst=1), tmp_path / "keys.json"
    with (
        running(tmp_path, limits=limits) as service,
        served(service, proxy="127.0.0.1") as port,
    ):
        # Without keys the machine itself may call, not whom the proxy speaks for.
        assert Client(port)("GET", "/v1/status", X_Forwarded_For="203.0.113.9")[0] == 403
    with pytest.raises(ValueError, match="proxy: expected keys"):
        check_host("127.0.0.1", KeyRing(path), "127.0.0.1")
    KeyRing(path).add("page", ["read"])
    with pytest.raises(ValueError, match="expected an IP address, got caddy"):
        check_host("127.0.0.1", KeyRing(path), "caddy")
    check_host("127.0.0.1", KeyRing(path), "127.0.0.1")
    with (
        running(tmp_path, limits=limits) as service,
        served(service, KeyRing(path), proxy="127.0.0.1") as port,
    ):
        client = Client(port)
        statuses = [
            client.raw("GET", "/", headers={"X-Forwarded-For": address})[0]
            for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")
        ]
    assert statuses == [200, 200, 429]


def test_keys_are_read_again_when_they_change(tmp_path):
    path = tmp_path / "keys.json"
    first = KeyRing(path).add("page", ["read"])
    with running(tmp_path) as service, served(service, KeyRing(path)) as port:
        client, other, nobody = Client(port, first), Client(port), Client(port)
        assert client("GET", "/v1/status")[0] == 200
        second = KeyRing(path).add("other", ["read"])
        KeyRing(path).remove(first.split("_")[1])
        wait_until(lambda: client("GET", "/v1/status")[0] == 401)
        other.headers = {"Authorization": f"Bearer {second}"}
        assert other("GET", "/v1/status")[0] == 200
        KeyRing(path).remove(second.split("_")[1])
        wait_until(lambda: other("GET", "/v1/status")[0] == 401)
        assert nobody("GET", "/v1/status")[0] == 401  # without keys now, but not open
        for one in (client, other, nobody):
            one.close()


def test_a_ring_that_was_given_a_key_lets_nobody_in_without(tmp_path):
    ring = KeyRing(tmp_path / "keys.json")
    ring.add("page", ["read"])
    with running(tmp_path) as service, served(service, ring) as port:
        assert Client(port)("GET", "/v1/status")[0] == 401


def test_the_first_key_closes_a_service_that_was_open(tmp_path):
    path = tmp_path / "keys.json"
    with running(tmp_path) as service, served(service, KeyRing(path)) as port:
        client = Client(port)
        assert client("GET", "/v1/status")[0] == 200
        key = KeyRing(path).add("page", ["read"])
        wait_until(lambda: client("GET", "/v1/status")[0] == 401)
        assert Client(port, key)("GET", "/v1/status")[0] == 200


def test_no_key_is_valid_while_the_file_cannot_be_read(tmp_path):
    path = tmp_path / "keys.json"
    key = KeyRing(path).add("page", ["read"])
    with running(tmp_path) as service, served(service, KeyRing(path)) as port:
        client = Client(port, key)
        assert client("GET", "/v1/status")[0] == 200
        good = path.read_text()
        path.write_text('{"keys": [{"name": "page"}]}')
        wait_until(lambda: client("GET", "/v1/status")[0] == 401)
        assert client("GET", "/readyz") == (503, {"status": "keys cannot be read"})
        path.write_text(good)
        wait_until(lambda: client("GET", "/v1/status")[0] == 200)
        assert client("GET", "/readyz")[0] == 200


def test_a_writer_that_dies_leaves_nobody_waiting(tmp_path, monkeypatch):
    with running(tmp_path) as service, served(service) as port:
        add_items(service, vectors(5))

        def broken(last, n_triplets):
            raise RuntimeError("out of luck")

        monkeypatch.setattr(service.writer, "_on_commit", broken)
        write = Write(Ledger.judge, (Judgement("i0", [("i1", "i2")]),))
        futures = []
        with contextlib.suppress(StorageError):
            futures += [service.submit([write]) for _ in range(5)]
        wait_until(lambda: service.writer.failure is not None)
        for (
            future
        ) in futures:  # those that were written together are durable, the others are refused
            assert future.exception(30) is None or "stopped" in str(future.exception())
        with pytest.raises(StorageError, match="writing has stopped"):
            service.submit([write])
        assert Client(port)("GET", "/readyz") == (503, {"status": "writing has stopped"})


def test_a_key_expires(tmp_path, monkeypatch):
    ring = KeyRing(tmp_path / "keys.json")
    key = ring.add("guest", ["read"], days=2)
    assert ring.name_of(key, "read") == "guest"
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 3 * 86400)
    with pytest.raises(UnauthorizedError, match="expired"):
        ring.name_of(key, "read")


# -- starting and ending ----------------------------------------------------------------------


def test_hangup_ends_a_service_in_order(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would be inherited
    server = ServerProcess(tmp_path)
    signal.signal(signal.SIGHUP, before)
    server.process.send_signal(signal.SIGHUP)
    server._end()
    assert any("stopped at log position 0" in line for line in server.log)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with (
            pytest.raises(LogError, match=r"cannot be locked \(Permission denied\)"),
            running(tmp_path),
        ):
            pass
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_locked_is_told_with_the_reason(tmp_path):
    (tmp_path / "lock").mkdir()
    message = f"{tmp_path}: cannot be locked (Is a directory)"
    with pytest.raises(LogError, match=re.escape(message)), running(tmp_path):
        pass
