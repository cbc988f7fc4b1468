"""One service that writes and several processes that answer searches behind the same port."""

import asyncio
import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from live import Client, ServerProcess, vectors, wait_until

from simstream.cli import main
from simstream.serve import reader
from simstream.serve import workers as readers_of
from simstream.serve.access import KeyRing, TokenBuckets
from simstream.serve.app import Guard
from simstream.serve.forwarding import Forwarding
from simstream.serve.log import LogError
from simstream.serve.service import Limits

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="processes are looked for in /proc"
)


def children(pid):
    """Process ids of the running children of a process."""
    found = set()
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(entry))
    return found


def is_running(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def items(n, d=6, seed=0):
    rows = vectors(n, d, seed).tolist()
    return {"items": [{"id": f"i{number}", "vector": row} for number, row in enumerate(rows)]}


@contextlib.contextmanager
def started(folder, *arguments, workers=2):
    server = ServerProcess(folder, "--workers", workers, *arguments)
    server.readers = children(server.process.pid)
    assert len(server.readers) == workers
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.terminate()
    wait_until(lambda: not any(map(is_running, server.readers)))


def test_clients_see_one_service(tmp_path):
    with started(tmp_path, "--promote", "always") as server:
        call = Client(server.port)
        status, told = call("POST", "/v1/items", items(20))
        assert (status, told["visible"]) == (201, True)
        # Each connection may lead to another reader: every one sees what was acknowledged as visible.
        for number in range(20):
            name = f"new-{number}"
            body = {"items": [{"id": name, "vector": vectors(1, seed=number + 1)[0].tolist()}]}
            assert call("POST", "/v1/items", body)[1]["visible"]
            other = Client(server.port)
            status, found = other("POST", "/v1/search", {"item": name, "k": 3})
            assert (status, len(found["results"])) == (200, 3)
            told = call("POST", "/v1/feedback?wait=true", triplet("i0", "i1", "i2"))[1]
            assert told["visible"]
            found = other("POST", "/v1/search", {"item": "i0"})[1]
            assert found["position"] >= told["positions"][-1]
        assert call("POST", "/v1/search", {"item": "absent"})[0] == 404
        assert call("POST", "/v1/search", {"item": 3})[0] == 422
        assert call("GET", "/v1/search")[0] == 405
        assert call("GET", "/v1/items/new-3")[1]["id"] == "new-3"
        assert call("DELETE", "/v1/items/new-3")[0] == 200
        assert Client(server.port)("POST", "/v1/search", {"item": "new-3"})[0] == 404
        question = call("GET", "/v1/query")[1]
        assert call("POST", "/v1/answer", {"question": question["question"], "winner": 1})[0] == 201
        status, headers, content = call.raw("GET", "/")
        assert (status, b"<html" in content) == (200, True)
        assert headers["x-content-type-options"] == "nosniff"
        status, headers, content = call.raw("HEAD", "/v1/items")
        assert (status, content) == (200, b"")
        text = call.raw("GET", "/metrics")[2].decode()
        metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        assert float(metrics["simstream_searches_total"]) == 40
        assert float(metrics["simstream_reader_restarts_total"]) == 0
        assert metrics['simstream_requests_total{route="/v1/search",status="200"}'] == "40.0"
        assert metrics['simstream_requests_total{route="/v1/search",status="422"}'] == "1.0"


def triplet(anchor, positive, negative):
    return {"anchor": anchor, "positive": positive, "negative": negative}


def test_a_large_body_is_passed_on_and_refused_where_it_is_too_large(tmp_path):
    with started(tmp_path, workers=1) as server:
        call = Client(server.port)
        assert call("POST", "/v1/items", items(2000, 100))[0] == 201
        assert len(call("GET", "/v1/items?limit=1000")[1]["items"]) == 1000
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as large:
            # None of the body is sent: what is not read could break the connection before the answer came.
            size = b"Content-Length: %d\r\n" % (9 * 2**20)
            large.sendall(b"POST /v1/items HTTP/1.1\r\nHost: localhost\r\n" + size + b"\r\n")
            assert large.makefile("rb").readline().split()[1] == b"413"
        chunks = iter([b'{"items": [{"id": "c", ', b'"vector": [%s]}]}' % b",".join([b"1"] * 100)])
        fields = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/items", chunks, fields, encode_chunked=True)
            with connection.getresponse() as answer:
                assert answer.status == 201
        # A caller that goes away in the middle leaves the service as it was.
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(
                b"POST /v1/items HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
            )
        assert call("GET", "/v1/status")[1]["items"] == 2001


def test_a_writer_that_is_not_there_is_busy(tmp_path):
    status, headers, told = passed_on(tmp_path / "absent.sock", "POST", "/v1/items")
    assert status == 503
    assert headers[b"retry-after"] == b"1"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert told["error"] == "the service that writes does not answer"
    assert told["request_id"].encode() == headers[b"x-request-id"]
    assert passed_on(tmp_path / "absent.sock", "POST", "/v1/search") == "a search"


def passed_on(writer, method, path):
    """What a reader answers to a request with a body: status, headers and JSON values, or "a search"."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        sent.append(message)

    async def search(scope, receive, send):
        sent.append("a search")

    app = Forwarding(search, str(writer))
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    headers = [(b"host", b"localhost"), (b"content-length", b"2")]
    asyncio.run(app({**scope, "query_string": b"", "headers": headers}, receive, send))
    if sent == ["a search"]:
        return sent[0]
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def test_what_a_writer_kept_that_ended_before_it_answered_is_not_known(tmp_path):
    """503 would say that nothing was kept, and who sends it again without a key might do it twice."""
    path, received = tmp_path / "writer.sock", []

    def vanish(listening):
        for _ in range(2):
            connection = listening.accept()[0]
            with connection:
                content = b""
                while not content.endswith(b"{}"):
                    content += connection.recv(2**16)
                received.append(content)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=vanish, args=[listening])
        thread.start()
        status, _, told = passed_on(path, "POST", "/v1/feedback")
        assert status == 507
        assert "whether the changes were kept is not known: send them again" in told["error"]
        assert "idempotency key" in told["error"]
        assert passed_on(path, "GET", "/v1/status")[0] == 503  # which changes nothing
        thread.join(60)
    assert len(received) == 2


def test_a_service_that_ends_answers_whose_body_has_not_arrived(tmp_path):
    """Where it is written, and where it is passed on: it is cancelled, which is no failure."""

    async def ended(app):
        sent, is_asked = [], asyncio.Event()

        async def receive():
            is_asked.set()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/items", "raw_path": b"/v1/items"}
        headers = [(b"host", b"localhost"), (b"content-length", b"9")]
        call = app({**scope, "query_string": b"", "headers": headers, "app": None}, receive, send)
        task = asyncio.create_task(call)
        await is_asked.wait()
        task.cancel()
        await task
        return sent[0]["status"], json.loads(sent[1]["body"])["error"]

    keys, path = KeyRing(tmp_path / "keys.json"), tmp_path / "writer.sock"
    guard = Guard(None, keys=keys, limits=Limits(), on_done=lambda *_: None)
    ending = (503, "the service is ending")
    assert asyncio.run(ended(guard)) == ending
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert asyncio.run(ended(Forwarding(None, str(path)))) == ending


# -- readers that cannot start or learn -------------------------------------------------------


@contextlib.contextmanager
def kept(monkeypatch, program, *, count=1, n_refused=0, has_learnt_all=lambda: True):
    """Readers that are another program; the system first refuses to start it some times."""
    refusals, popen = [], subprocess.Popen

    def start(command, **options):
        if len(refusals) < n_refused:
            refusals.append(command)
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return popen([sys.executable, "-c", program], **options)

    monkeypatch.setattr(readers_of.subprocess, "Popen", start)
    with readers_of.listening_socket("127.0.0.1", 0) as listening:
        readers = readers_of.Readers(count, listening, {}, lambda: 7, has_learnt_all)
        readers.start()
        try:
            yield readers
        finally:
            readers.close()


READY = "import sys; print(7, 'ready', *{}, sep='\\n', flush=True); sys.stdin.read()"


def test_a_reader_is_started_once_the_system_can(monkeypatch):
    with kept(monkeypatch, READY.format([]), n_refused=2) as readers:
        assert readers.wait_until_ready(60)
        assert readers.n_restarts == 0


def test_a_reader_that_cannot_learn_is_replaced_if_that_may_help(monkeypatch):
    asked, has_learnt_all = [], []

    def ask():
        asked.append(bool(has_learnt_all))
        return bool(has_learnt_all)

    program = READY.format(["stopped"])
    with kept(monkeypatch, program, has_learnt_all=ask) as readers:
        wait_until(lambda: asked == [False])
        assert readers.wait_until_ready(60)
        (process,) = readers._running.values()
        assert process.poll() is None
        has_learnt_all.append(True)
        process.kill()  # the next one is replaced
        wait_until(lambda: readers.n_restarts >= 3)


def test_a_reader_that_is_stopped_is_replaced(monkeypatch, caplog):
    monkeypatch.setattr(readers_of, "_LOOK_SECONDS", 0.1)
    program = READY.format([]).replace(
        "sys.stdin.read()", "import time\nwhile True: print('alive', flush=True); time.sleep(0.3)"
    )
    with kept(monkeypatch, program) as readers:
        assert readers.wait_until_ready(60)
        (process,) = readers._running.values()
        wait_until(lambda: readers._silent[0] > 0)
        wait_until(lambda: readers._silent[0] == 0)  # it was heard again
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: readers.n_restarts == 1)
        assert f"a reader (process {process.pid}) does not answer: killed" in caplog.text
        assert readers.wait_until_ready(60)


def test_a_reader_that_is_stopped_before_it_is_ready_is_replaced(monkeypatch):
    monkeypatch.setattr(readers_of, "_LOOK_SECONDS", 0.02)
    program = "import os, signal; print(7, flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    with kept(monkeypatch, program) as readers:
        wait_until(lambda: readers.n_restarts >= 1)


def test_the_last_reader_that_is_ready_stays_until_another_is(monkeypatch, tmp_path):
    monkeypatch.setattr(readers_of, "_LOOK_SECONDS", 0.02)
    may_start = tmp_path / "may_start"
    may_start.touch()
    program = f"""
import os, sys, time
def is_late(): print("alive", flush=True); time.sleep(0.1); return not os.path.exists({str(may_start)!r})
print(7, flush=True)
was_late = False
while is_late(): was_late = True
print("ready", flush=True)
while was_late: is_late()
sys.stdin.read()
"""
    with kept(monkeypatch, program, count=2) as readers:
        assert readers.wait_until_ready(60)
        may_start.unlink()  # both fall silent, and who follows is not ready
        longest = 3 * readers_of._MOST_SILENT
        wait_until(lambda: max(readers._silent.values()) > longest)
        (last,) = readers._ready
        process = readers._running[last]
        assert readers._silent[last] > longest
        assert process.poll() is None
        may_start.touch()
        wait_until(lambda: process.poll() is not None)
        assert readers.n_restarts >= 1


def test_workers_are_of_the_service_that_writes(tmp_path):
    done = CliRunner().invoke(
        main, ["serve", "--data", str(tmp_path), "--follow", "--workers", "2"]
    )
    assert done.exit_code == 2
    assert "not with --follow" in done.output


def test_keys_origins_and_addresses_count_as_in_one_process(tmp_path):
    key = KeyRing(tmp_path / "keys.json").add("page", ["read"])
    with started(tmp_path, workers=1) as server:
        assert Client(server.port)("POST", "/v1/search", {"item": "a"})[0] == 401
        assert Client(server.port)("GET", "/v1/status")[0] == 401
        assert Client(server.port, key)("POST", "/v1/search", {"item": "a"})[0] == 404
        assert Client(server.port, key)("POST", "/v1/items", items(2))[0] == 403
        assert Client(server.port, key)("GET", "/v1/status")[0] == 200


def test_without_keys_only_this_machine_is_answered(tmp_path):
    with started(tmp_path, workers=1) as server:
        call = Client(server.port)
        for path in ("/v1/search", "/v1/items"):
            assert call("POST", path, {}, Host="evil.example")[0] == 403
            assert call("POST", path, {}, Origin="http://evil.example")[0] == 403
        # Nobody can claim to be somebody else, nor that somebody else asks.
        assert call("GET", "/v1/status", X_Forwarded_For="10.0.0.1")[0] == 200


def test_the_rate_of_a_caller_is_counted_once_for_all_processes(tmp_path):
    with started(tmp_path, "--rate", "0.001") as server:
        said = []
        for number in range(120):
            call = Client(server.port)
            path = "/v1/status" if number % 2 else "/v1/search"
            said.append(call("GET" if number % 2 else "POST", path, {"item": "a"})[0])
            call.close()
        assert said.index(429) == 100  # the burst
        assert set(said[100:]) == {429}


def test_levels_are_shared_and_bounded(tmp_path):
    now = [0.0]
    one, other = (TokenBuckets(1.0, 2.0, lambda: now[0], tmp_path / "rates") for _ in range(2))
    assert [one.wait("ann"), other.wait("ann"), one.wait("ann")] == [0.0, 0.0, 1.0]
    assert other.wait("bob") == 0
    now[0] = 1.0
    assert [other.wait("ann"), one.wait("ann")] == [0.0, 1.0]
    for number in range(50_000):
        one.wait(f"caller {number}")
    assert other.wait("ann") == 0  # forgotten


def test_a_killed_reader_comes_back_and_no_request_is_lost(tmp_path):
    with started(tmp_path) as server:
        call = Client(server.port)
        assert call("POST", "/v1/items", items(50))[1]["visible"]
        stop, answers, written, retries = threading.Event(), [], [], []

        def retried(client, *request):
            """The answer to a request, sent again until there is one."""
            while True:
                try:
                    answer = client(*request)
                    if answer[0] not in (503, 507):  # on a busy machine: send it again
                        return answer
                except (OSError, http.client.HTTPException):
                    retries.append(request)

        def search():
            client = Client(server.port)
            while not stop.is_set():
                status, found = retried(client, "POST", "/v1/search", {"item": "i0", "k": 5})
                answers.append((status, len(found.get("results", ()))))

        def write(number):
            client, count = Client(server.port), 0
            while not stop.is_set():
                body = {**triplet("i1", "i2", "i3"), "key": f"{number}-{count}"}
                assert retried(client, "POST", "/v1/feedback", body)[0] in (200, 201)
                written.append(body["key"])
                count += 1

        threads = [threading.Thread(target=search) for _ in range(3)]
        threads += [threading.Thread(target=write, args=[number]) for number in range(2)]
        for thread in threads:
            thread.start()
        before = server.readers
        for _ in range(3):
            n_answers, n_written = len(answers), len(written)
            victim = min(children(server.process.pid))
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: not is_running(victim))  # noqa: B023
            wait_until(lambda: len(children(server.process.pid)) == 2, 120)
            wait_until(lambda: len(answers) > n_answers + 20)  # noqa: B023
            wait_until(lambda: len(written) > n_written + 20)  # noqa: B023
        stop.set()
        for thread in threads:
            thread.join(60)
        server.readers = children(server.process.pid)
        assert server.readers != before
        assert set(answers) == {(200, 5)}
        assert len(set(written)) == len(written)
        # Every acknowledged judgement is there once, however often it was sent.
        call = Client(server.port)
        wait_until(lambda: call("GET", "/readyz")[1]["lag"] == 0)
        assert call("GET", "/v1/status")[1]["feedback"] == len(written)
        text = call.raw("GET", "/metrics")[2].decode()
        assert "simstream_reader_restarts_total 3.0" in text
        # The new readers, too, see what is acknowledged as visible.
        assert call("DELETE", "/v1/items/i9")[1]["visible"]
        for _ in range(10):
            assert Client(server.port)("POST", "/v1/search", {"item": "i9"})[0] == 404


def test_sigterm_ends_all_processes(tmp_path):
    with started(tmp_path) as server:
        call = Client(server.port)
        call("POST", "/v1/items", items(5))
        server.terminate()
        assert server.process.returncode == 0
        assert any("stopped at log position 5" in line for line in server.log)
        assert not any("Traceback" in line for line in server.log)


def test_clients_are_refused_while_what_was_accepted_is_answered(tmp_path):
    def is_refused():
        with socket.socket() as other:
            return other.connect_ex(("127.0.0.1", server.port)) == errno.ECONNREFUSED

    body = json.dumps(items(5)).encode()
    head = "POST /v1/items HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    with started(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.settimeout(60)
        slow.sendall(head.encode())
        assert slow.recv(1000).startswith(b"HTTP/1.1 100")  # it waits for the body
        assert not is_refused()
        server.process.send_signal(signal.SIGTERM)
        wait_until(is_refused)
        slow.sendall(body)
        assert slow.recv(1000).startswith(b"HTTP/1.1 201")


def test_no_reader_outlives_a_killed_service(tmp_path):
    with started(tmp_path) as server:
        assert Client(server.port)("POST", "/v1/items", items(5))[0] == 201
        environment = Path(f"/proc/{min(server.readers)}/environ").read_text().split("\0")
        shared = Path(
            dict(one.split("=", 1) for one in environment if one)["PROMETHEUS_MULTIPROC_DIR"]
        )
        assert shared.stat().st_mode & 0o777 == 0o700
        server.kill()
        wait_until(lambda: not any(map(is_running, server.readers)))
        assert not shared.exists()
    with started(tmp_path) as server:  # the port, the lock and the log are free
        assert Client(server.port)("GET", "/v1/status")[1]["items"] == 5


# -- with other options -----------------------------------------------------------------------


def test_searches_go_on_while_a_log_in_postgresql_is_away(tmp_path, postgres):
    address = postgres.address()
    with started(tmp_path, "--log", address, "--promote", "always") as server:
        call = Client(server.port)
        assert call("POST", "/v1/items", items(20))[1]["visible"]

        def search():
            """By each of the readers, most likely."""
            query = {"item": "i0", "k": 3}
            found = [Client(server.port)("POST", "/v1/search", query) for _ in range(8)]
            assert {status for status, _ in found} == {200}
            return [answer["results"] for _, answer in found]

        before = search()
        postgres.stop()
        try:
            assert call("POST", "/v1/feedback", triplet("i0", "i1", "i2"))[0] == 507
            wait_until(lambda: call("GET", "/readyz")[0] == 503)
            # The readers have noticed it, too.
            wait_until(lambda: sum("cannot be reached to" in line for line in server.log) >= 3)
            assert search() == before
            assert children(server.process.pid) == server.readers
            # One that ends meanwhile cannot start again before the database does.
            gone = min(server.readers)
            os.kill(gone, signal.SIGKILL)
            wait_until(lambda: any("a reader has failed: " in line for line in server.log))
            assert search() == before
        finally:
            postgres.start()
        call = Client(
            server.port
        )  # the other connection may have been one to the reader that ended
        wait_until(lambda: call("GET", "/readyz")[0] == 200)
        status, told = call("POST", "/v1/feedback?wait=true", triplet("i0", "i1", "i2"))
        assert (status, told["visible"]) == (201, True)
        (stayed,) = server.readers - {gone}
        assert stayed in children(server.process.pid)
        os.kill(stayed, signal.SIGKILL)
        wait_until(lambda: not is_running(stayed))
        search()  # by readers that have started since


def test_a_reader_ends_only_if_it_cannot_follow(monkeypatch):
    """Not because the log is away; and that learning has stopped it only tells."""
    service = SimpleNamespace(
        stopped=lambda: "the log cannot be reached",
        follow_failure=None,
        engine=SimpleNamespace(failure=None),
    )
    looks, said, ended = [], [], []

    def pause(seconds):
        looks.append(seconds)
        service.engine.failure = MemoryError() if len(looks) == 3 else None
        service.follow_failure = LogError("another log") if len(looks) == 5 else None

    monkeypatch.setattr(reader.time, "sleep", pause)
    monkeypatch.setattr(reader.os, "kill", lambda *args: ended.append((len(looks), *args)))
    reader._watch(service, said.append, Future())
    assert said == ["alive"] * 3 + ["stopped", "alive"]
    assert ended == [(5, os.getpid(), signal.SIGTERM)]


def test_a_reader_whose_event_loop_is_stuck_is_silent(monkeypatch):
    service = SimpleNamespace(follow_failure=None, engine=SimpleNamespace(failure=None))
    asked, said, answering = [], [], Future()
    monkeypatch.setattr(reader.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(reader.os, "kill", lambda *args: said.append("ended"))
    answering.set_result(SimpleNamespace(call_soon_threadsafe=asked.append))
    thread = threading.Thread(target=reader._watch, args=[service, said.append, answering])
    thread.start()
    for n_turns in range(3):
        wait_until(lambda n=n_turns: len(asked) == n + 1)
        assert said == ["alive"] * n_turns
        if n_turns == 2:
            service.follow_failure = LogError("another log")
        asked[-1]()
    thread.join(60)
    assert said == ["alive"] * 3 + ["ended"]


def test_readers_have_graphs_of_their_own(tmp_path):
    pytest.importorskip("usearch")
    options = ["--index", "usearch", "--candidates", "8", "--recall-share", "1"]
    with started(tmp_path, *options, "--promote", "always") as server:
        call, rows = Client(server.port), vectors(600)
        assert call("POST", "/v1/items", items(600))[1]["visible"]
        new = {"id": "new", "vector": (3 * rows[5]).tolist()}
        assert call("POST", "/v1/items", {"items": [new]})[1]["visible"]
        assert call("DELETE", "/v1/items/i7")[1]["visible"]
        for number in range(20):
            query = {"vector": rows[number].tolist(), "k": 3}
            found = Client(server.port)("POST", "/v1/search", query)[1]["results"]
            assert len(found) == 3
            for one in found:
                row = 3 * rows[5] if one["id"] == "new" else rows[int(one["id"][1:])]
                assert one["score"] == pytest.approx(float(row @ rows[number]), abs=1e-5)
                assert one["id"] != "i7"
            if number == 5:
                assert found[0]["id"] == "new"

        def metrics():
            text = call.raw("GET", "/metrics")[2].decode()
            return dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")

        def compared():
            """Searches so far: a reader counts what it compared when it is asked the next time."""
            Client(server.port)("POST", "/v1/search", {"item": "i0", "k": 3})
            return float(metrics()["simstream_recall_searches_total"])

        wait_until(lambda: compared() >= 20)
        told = {name: float(value) for name, value in metrics().items() if "recall" in name}
        searches, wanted = (told[f"simstream_recall_{n}_total"] for n in ("searches", "wanted"))
        assert wanted >= 3 * searches
        assert told["simstream_recall_found_total"] >= 0.8 * wanted


def test_all_processes_write_json_lines(tmp_path):
    with started(tmp_path, "--log-format", "json", workers=1) as server:
        call = Client(server.port)
        assert call("POST", "/v1/items", items(5), X_Request_Id="of-items")[0] == 201
        assert call("POST", "/v1/search", {"item": "i0"}, X_Request_Id="of-search")[0] == 200
        wait_until(lambda: any("of-search" in line for line in server.log))  # after the answer
        os.kill(min(server.readers), signal.SIGKILL)
        wait_until(lambda: any("a reader ended" in line for line in server.log))
        wait_until(lambda: len(children(server.process.pid)) == 1)
        server.readers = children(server.process.pid)
        server.terminate()
        lines = [json.loads(line) for line in server.log]
    told = {line["request_id"]: line["path"] for line in lines if line.get("status")}
    assert told == {"of-items": "/v1/items", "of-search": "/v1/search"}
    assert lines[-1]["message"].startswith("stopped at log position")
