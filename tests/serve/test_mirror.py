"""A service on another machine: it copies the log of the one that it follows, and searches as that does."""

import contextlib
import http.server
import json
import threading
import urllib.request

import pytest
from click.testing import CliRunner
from live import (
    Client,
    ServerProcess,
    add_items,
    do,
    judge,
    learner_of,
    running,
    served,
    vectors,
    wait_until,
)

from simstream.cli import main
from simstream.serve import mirror, upkeep
from simstream.serve.access import KeyRing, ReadOnlyError
from simstream.serve.evidence import Publishing
from simstream.serve.log import LogError, open_log
from simstream.serve.service import Limits, Service, Settings
from simstream.serve.snapshots import same_bits
from simstream.serve.writer import Ledger, NewItem


@contextlib.contextmanager
def writing(folder, port=0, **options):
    """A service over HTTP; yields it and its address."""
    service = Service(Settings(folder, publishing=Publishing("always"), **options))
    with served(service, port=port) as at:
        yield service, f"http://127.0.0.1:{at}"


def following(folder, url):
    return running(folder, log=url, follow=True, publishing=Publishing("always"))


def stored(folder):
    with contextlib.closing(open_log(folder)) as log:
        return list(log.rows(0, log.last)), log.settings()


def assert_same(reader, writer):
    last = writer.writer.last
    assert writer.engine.wait_for(last, 60)
    wait_until(lambda: reader.version.position >= last)
    assert same_bits(learner_of(reader), learner_of(writer))
    assert reader.search("i0", 5) == writer.search("i0", 5)


@pytest.fixture(autouse=True)
def _no_long_rests(monkeypatch):
    """A follower in this process asks often: a service ends only once it has answered."""
    monkeypatch.delenv(mirror.KEY_VARIABLE, raising=False)
    monkeypatch.setattr(mirror, "_LONGEST_RETRY", 0.5)
    monkeypatch.setattr(mirror, "_WAIT", 0)
    monkeypatch.setattr(mirror, "_PATIENCE", 0)


def test_a_copy_searches_as_what_it_follows(tmp_path, address):
    with writing(tmp_path / "a", log=address) as (writer, url):
        add_items(writer, vectors(20))
        judge(writer, "i0", "i1", "i2")
        with following(tmp_path / "b", url) as reader:
            assert reader.version.position == 21  # all that there was
            assert_same(reader, writer)
            for _ in range(5):
                judge(writer, "i0", "i3", "i4")
            add_items(writer, vectors(1, seed=1), ["new"])
            assert_same(reader, writer)
            assert reader.search("new", 5) == writer.search("new", 5)
            with pytest.raises(ReadOnlyError, match="send changes there"):
                judge(reader, "i0", "i1", "i2")
            # A copy can be followed, too.
            with (
                served(reader) as port,
                following(tmp_path / "c", f"http://127.0.0.1:{port}/") as c,
            ):
                judge(writer, "i0", "i3", "i4")
                assert_same(c, writer)
        for copy in ("b", "c"):
            assert stored(tmp_path / copy) == stored(tmp_path / "a")
            assert upkeep.check(tmp_path / copy).is_whole


def test_a_copy_has_snapshots_of_its_own_and_can_be_served_alone(tmp_path):
    with writing(tmp_path / "a") as (writer, url):
        add_items(writer, vectors(20))
        judge(writer, "i0", "i1", "i2")
        with following(tmp_path / "b", url) as reader:
            assert_same(reader, writer)
    assert list((tmp_path / "b" / "snapshots").glob("model-*"))
    with running(tmp_path / "b") as service:
        judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(22, 60)
        assert service.engine.snapshots.n_refused == 0


def test_answers_are_bounded_and_everything_arrives(tmp_path, monkeypatch):
    """Also from a service that answers no two requests within half a second."""
    monkeypatch.setattr(mirror, "_MOST_BYTES", 1000)
    with writing(tmp_path / "a", limits=Limits(rate=2, burst=1)) as (writer, url):
        do(writer, Ledger.put_item, NewItem("large", vectors(1)[0], {"text": "x" * 5000}))
        add_items(writer, vectors(50))
        sizes, after = [], 0
        while after < 51:
            content = mirror.encode_rows(writer.log, after, 1000)
            rows = mirror.LogPart.decoded(content).rows
            sizes.append(len(rows))
            after = rows[-1][0]
        # At least one; then each has 25 bytes of a vector and two of a body.
        assert sizes == [1, 1000 // 27, 50 - 1000 // 27]
        with following(tmp_path / "b", url) as reader:
            assert reader.version.position == 51
        assert stored(tmp_path / "b") == stored(tmp_path / "a")


def test_the_writer_goes_away_and_comes_back(tmp_path):
    with writing(tmp_path / "a") as (writer, url):
        add_items(writer, vectors(20))
        port = int(url.rsplit(":", 1)[1])
    with writing(tmp_path / "a", port):
        opened = contextlib.ExitStack()
        reader = opened.enter_context(following(tmp_path / "b", url))
    with opened:
        wait_until(lambda: reader.stopped() == "the log cannot be reached")
        assert len(reader.search("i0", 3)) == 3
        with writing(tmp_path / "a", port) as (writer, _):
            judge(writer, "i0", "i1", "i2")
            assert_same(reader, writer)
            wait_until(lambda: reader.stopped() is None)
    # It starts without the other one, too.
    with following(tmp_path / "b", url) as reader:
        assert reader.stopped() == "the log cannot be reached"
        assert len(reader.search("i0", 3)) == 3
        with writing(tmp_path / "a", port) as (writer, _):
            judge(writer, "i0", "i1", "i2")
            assert_same(reader, writer)


def test_a_first_start_waits_for_a_service_that_is_starting(tmp_path, monkeypatch, caplog):
    with writing(tmp_path / "a") as (writer, url):
        add_items(writer, vectors(20))
    monkeypatch.setattr(mirror, "_PATIENCE", 120)
    position = []

    def follow():
        with following(tmp_path / "b", url) as reader:
            position.append((reader.version.position, reader.stopped()))

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: f"will try again: {url}" in caplog.text)
    assert not (tmp_path / "b").exists()
    with writing(tmp_path / "a", int(url.rsplit(":", 1)[1])):
        thread.join(60)
        assert position == [(20, None)]
    assert caplog.text.count("will try again") == 1


def test_a_follower_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    with writing(tmp_path / "a") as (writer, url):
        add_items(writer, vectors(20))
        is_ending = threading.Event()

        def write_on():
            while not is_ending.is_set():
                judge(writer, "i0", "i1", "i2")

        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            for _ in range(2):
                server = ServerProcess(tmp_path / "b", "--follow", url)
                before = Client(server.port)("GET", "/v1/status")[1]["position"]
                wait_until(
                    lambda b=before, s=server: (
                        Client(s.port)("GET", "/v1/status")[1]["position"] > b + 5
                    )
                )
                server.kill()
        finally:
            is_ending.set()
            thread.join()
        server = ServerProcess(tmp_path / "b", "--follow", url)
        call = Client(server.port)
        wait_until(lambda: call("GET", "/readyz")[1].get("position") == writer.writer.last)
        assert writer.engine.wait_for(writer.writer.last, 60)
        status, found = call("POST", "/v1/search", {"item": "i0", "k": 5})
        assert status == 200
        hits = [(hit["id"], hit["score"]) for hit in found["results"]]
        assert hits == writer.search("i0", 5)
        assert (
            call("POST", "/v1/feedback", {"anchor": "i0", "positive": "i1", "negative": "i2"})[0]
            == 405
        )
        server.terminate()
        assert server.process.returncode == 0
    assert stored(tmp_path / "b") == stored(tmp_path / "a")


def test_a_key_is_needed_and_never_told(tmp_path, monkeypatch, caplog):
    keys = KeyRing(tmp_path / "keys.json")
    right, wrong = keys.add("copy", ["follow"]), keys.add("page", ["read", "write", "admin"])
    service = Service(Settings(tmp_path / "a", publishing=Publishing("always")))
    add_items(service, vectors(5))
    with served(service, keys) as port:
        url = f"http://127.0.0.1:{port}"
        for key, status in ((None, 401), (wrong, 403)):
            if key is not None:
                monkeypatch.setenv(mirror.KEY_VARIABLE, key)
            command = ["serve", "--data", str(tmp_path / "b"), "--port", "0", "--follow", url]
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 1
            assert f"{url}: answers {status}" in done.output
            assert "give a key of the scope follow in SIMSTREAM_KEY" in done.output
            assert wrong not in done.output
            assert not (tmp_path / "b").exists()
        monkeypatch.setenv(mirror.KEY_VARIABLE, "a\nb")
        with pytest.raises(ValueError, match="SIMSTREAM_KEY: expected a key"):
            mirror.Source(url)
        monkeypatch.setenv(mirror.KEY_VARIABLE, right)
        with following(tmp_path / "b", url) as reader:
            assert reader.version.position == 5
            keys.remove(right.split("_")[1])
            wait_until(lambda: reader.stopped() == "the log cannot be reached")
    assert right not in caplog.text


def test_a_folder_of_another_log_is_refused(tmp_path):
    with running(tmp_path / "b") as other:
        add_items(other, vectors(5))
    with writing(tmp_path / "a") as (writer, url):
        add_items(writer, vectors(5))
        with (
            pytest.raises(LogError, match="has another log than http"),
            following(tmp_path / "b", url),
        ):
            pass
        with (
            pytest.raises(LogError, match="another service uses this folder"),
            following(tmp_path / "a", url),
        ):
            pass
    with running(tmp_path / "b") as other:
        judge(other, "i0", "i1", "i2")


@pytest.mark.parametrize("is_ahead", [True, False])
def test_another_past_stops_it(tmp_path, is_ahead):
    """The one that is followed was restored from an older copy, and perhaps written to since."""
    with writing(tmp_path / "a") as (writer, url):
        port = int(url.rsplit(":", 1)[1])
        add_items(writer, vectors(5))
        upkeep.back_up(tmp_path / "a", tmp_path / "old")
        judge(writer, "i0", "i1", "i2")
        opened = contextlib.ExitStack()
        reader = opened.enter_context(following(tmp_path / "b", url))
        assert_same(reader, writer)
    with opened, writing(tmp_path / "old", port) as (writer, _):
        for _ in range(3 * is_ahead):
            judge(writer, "i0", "i2", "i1")
        wait_until(lambda: reader.stopped() == "following has stopped")
        assert "in a new folder" in str(reader.follow_failure)
        assert len(reader.search("i0", 3)) == 3
    assert len(stored(tmp_path / "b")[0]) == 6
    with (
        writing(tmp_path / "old", port) as (_, url),
        pytest.raises(LogError, match="in a new folder"),
        following(tmp_path / "b", url),
    ):
        pass


def test_changed_settings_ask_for_a_restart(tmp_path):
    with writing(tmp_path / "a") as (writer, url):
        port = int(url.rsplit(":", 1)[1])
        add_items(writer, vectors(5))
        judge(writer, "i0", "i1", "i2")
        opened = contextlib.ExitStack()
        reader = opened.enter_context(following(tmp_path / "b", url))
    with opened:
        command = ["replay", "--data", str(tmp_path / "a"), "-p", "C=0.5", "--adopt"]
        assert CliRunner().invoke(main, command).exit_code == 0
        server = ServerProcess(tmp_path / "a", "--port", port)
        wait_until(lambda: reader.stopped() == "following has stopped")
        assert "start this service again" in str(reader.follow_failure)
    copy = ServerProcess(tmp_path / "b", "--follow", url)
    algorithms = [Client(one.port)("GET", "/v1/status")[1]["algorithm"] for one in (server, copy)]
    assert algorithms[0] == algorithms[1]
    assert algorithms[0]["params"] == {"C": 0.5}
    copy.terminate()
    server.terminate()


def test_what_is_erased_is_erased_in_the_copy(tmp_path):
    secret = "a text that must go"
    with writing(tmp_path / "a") as (writer, url):
        port = int(url.rsplit(":", 1)[1])
        add_items(writer, vectors(5))
        do(writer, Ledger.put_item, NewItem("x", vectors(1)[0], {"text": secret}))
        do(writer, Ledger.delete_item, "x")
        opened = contextlib.ExitStack()
        reader = opened.enter_context(following(tmp_path / "b", url))
        assert reader.version.position == 7
    with opened:
        assert any(secret in row[5] for row, _, _ in stored(tmp_path / "b")[0])
        assert upkeep.erase(tmp_path / "a", ["x"]) == 1
        with writing(tmp_path / "a", port):
            wait_until(lambda: reader.version.position == 8)
    assert stored(tmp_path / "b") == stored(tmp_path / "a")
    assert upkeep.check(tmp_path / "b").is_whole
    for path in (tmp_path / "b").rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


class _Flipping(http.server.BaseHTTPRequestHandler):
    """Passes requests on; the answers are changed by a function."""

    def do_GET(self):
        with urllib.request.urlopen(self.server.url + self.path) as answer:
            content = self.server.change(answer.read())
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def between(url):
    """A proxy between a follower and what it follows."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Flipping)
    server.daemon_threads = True
    server.url, server.change = url, lambda content: content
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def flipped(column):
    """A change of answers: another value in a column of the last event."""

    def change(content):
        *lines, last = content.split(b"\n")
        if not lines:
            return content
        row = json.loads(last)
        value = row[column]
        row[column] = value[:-2] + ("00" if value[-2:] != "00" else "11")
        return b"\n".join([*lines, json.dumps(row).encode()])

    return change


@pytest.mark.parametrize(
    "column", [3, 4, 5, 6, 7], ids=["subject", "vector", "body", "digest", "hash"]
)
def test_a_flipped_bit_is_refused(tmp_path, column):
    with writing(tmp_path / "a") as (writer, url), between(url) as (proxy, address):
        add_items(writer, vectors(5))
        with following(tmp_path / "b", address) as reader:
            proxy.change = flipped(column)
            add_items(writer, vectors(2, seed=1), ["x", "y"])
            wait_until(lambda: reader.stopped() == "the log cannot be reached")
            assert reader.log.last == 5
            assert reader.stopped() == "the log cannot be reached"
            proxy.change = lambda content: content
            wait_until(lambda: reader.version.position == 7)
        assert stored(tmp_path / "b") == stored(tmp_path / "a")


def without_one(content):
    head, _, *others = content.split(b"\n")
    return b"\n".join([head, *others])


def test_a_lost_event_and_other_answers_are_refused(tmp_path):
    with writing(tmp_path / "a") as (writer, url), between(url) as (proxy, address):
        add_items(writer, vectors(5))
        for change in (without_one, lambda content: b"<html>", lambda content: content[:-5]):
            proxy.change = change
            with pytest.raises(ConnectionError, match=address), following(tmp_path / "b", address):
                pass
        proxy.change = lambda content: content
        with following(tmp_path / "b", address) as reader:
            assert reader.version.position == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--follow", "items.npz"], "expected http(s)://HOST:PORT, or nothing to follow"),
        (["--follow", "http://127.0.0.1:1"], "http://127.0.0.1:1: "),
        (["--follow", "http://"], "expected http(s)://host"),
        (["--follow", "http://a:b@c"], "the key in SIMSTREAM_KEY"),
        (["--follow", "http://c", "--workers", "2"], "not with --follow"),
        (["--follow", "http://c", "--log", "postgresql://c/d"], "--log"),
        (["--follow"], "service to follow"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, arguments, message):
    done = CliRunner().invoke(
        main, ["serve", "--data", str(tmp_path / "b"), "--port", "0", *arguments]
    )
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "b").exists()


def test_collections_may_follow(tmp_path):
    with writing(tmp_path / "a") as (writer, url):
        add_items(writer, vectors(5))
        file = tmp_path / "all.toml"
        file.write_text(f'[shoes]\nfollow = "{url}"\n[same]\ndata = "shoes"\nfollow = true\n')
        server = ServerProcess(None, "--collections", file)
        for name in ("shoes", "same"):
            status, found = Client(server.port)(
                "POST", f"/c/{name}/v1/search", {"item": "i0", "k": 3}
            )
            assert status == 200
            assert [hit["id"] for hit in found["results"]] == [
                name for name, _ in writer.search("i0", 3)
            ]
        server.terminate()
