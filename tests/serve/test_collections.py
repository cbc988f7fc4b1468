"""Several collections in one process: each as if it were alone, and what they have in common."""

import json
import logging
import tomllib
from contextlib import contextmanager

import numpy as np
import pytest
from browser import Page
from described import made_requests
from live import (
    Client,
    ServerProcess,
    add_items,
    judge,
    running,
    running_server,
    vectors,
    wait_until,
)
from threadpoolctl import threadpool_info, threadpool_limits

from commands import run
from simstream.serve import mirror
from simstream.serve.access import KeyRing
from simstream.serve.app import create_app, server_config
from simstream.serve.collections import create_collections_app
from simstream.serve.logs import TextLines, logged, speaking_for
from simstream.serve.service import Limits, Service, Settings
from simstream.serve.state import Learning
from simstream.serve.tracing import start_tracing


@contextmanager
def served_together(services, keys):
    """A server of several services in a thread; yields its port."""
    app = create_collections_app(services, keys)
    config = server_config(app, Limits(), host="127.0.0.1", port=0, proxy=None)
    with running_server(config) as port:
        yield port


@pytest.fixture
def two(tmp_path):
    """Shoes of six numbers, learnt by OASIS, and hats of three, learnt by tasks."""
    with threadpool_limits(2, user_api="blas"):
        shoes = Service(Settings(tmp_path / "shoes"))
        hats = Service(Settings(tmp_path / "hats", learning=Learning("omtrsl")))
        add_items(shoes, vectors(10))
        add_items(hats, vectors(5, d=3))
        yield {"shoes": shoes, "hats": hats}
        hats.close()
        shoes.close()


def test_each_collection_is_as_if_it_were_alone(two, tmp_path):
    with served_together(two, KeyRing(tmp_path / "keys.json")) as port:
        client = Client(port)
        for name, n_items in (("shoes", 10), ("hats", 5)):
            found = client("POST", f"/c/{name}/v1/search", {"item": "i0", "k": 99})[1]
            rows = vectors(n_items, d=6 if name == "shoes" else 3)
            order = [f"i{n}" for n in np.argsort(-(rows @ rows[0])) if n]
            assert [hit["id"] for hit in found["results"]] == order
        judgement = {"anchor": "i0", "positive": "i1", "negative": "i2"}
        told = client("POST", "/c/hats/v1/feedback?wait=true", {**judgement, "task": "ann"})
        assert told == (201, {"positions": [6], "repeated": False, "visible": True})
        assert client("POST", "/c/shoes/v1/feedback", {**judgement, "task": "ann"})[0] == 422
        assert client("GET", "/c/shoes/v1/status")[1]["triplets"] == 0
        assert client("GET", "/c/hats/v1/status")[1]["triplets"] == 1
        assert client("PUT", "/c/hats/v1/items/a%2Fimage", {"vector": [1, 2, 3]})[0] == 200
        assert client("GET", "/c/hats/v1/items/a%2Fimage")[1]["id"] == "a/image"
        assert "image: the item has none" in client("GET", "/c/hats/v1/items/i0/image")[1]["error"]
        assert client("GET", "/c/hats/readyz")[1]["position"] == 7
        assert client("GET", "/c/hats/openapi.json")[1]["servers"] == [{"url": "/c/hats"}]
        client.close()


def test_what_they_have_in_common(two, tmp_path):
    with served_together(two, KeyRing(tmp_path / "keys.json")) as port:
        client = Client(port)
        assert client("GET", "/healthz")[1]["status"] == "alive"
        assert client("GET", "/readyz") == (200, {"status": "ready"})
        listed = client("GET", "/v1/collections")[1]["collections"]
        assert [(one["name"], one["path"], one["items"], one["status"]) for one in listed] == [
            ("shoes", "/c/shoes/", 10, "ready"),
            ("hats", "/c/hats/", 5, "ready"),
        ]
        client("POST", "/c/hats/v1/search", {"item": "i0"})
        lines = client.raw("GET", "/metrics")[2].decode().splitlines()
        assert 'simstream_items{collection="shoes"} 10.0' in lines
        assert 'simstream_items{collection="hats"} 5.0' in lines
        counted = 'simstream_requests_total{collection="hats",route="/v1/search",status="200"} 1.0'
        assert counted in lines
        for word in ("# TYPE simstream_items gauge", "# TYPE simstream_requests_total counter"):
            assert lines.count(word) == 1
        alone = client.raw("GET", "/c/shoes/metrics")[2].decode().splitlines()
        assert "simstream_items 10.0" in alone
        assert b'href="c/hats/"' in client.raw("GET", "/")[2]
        status, headers, _ = client.raw("GET", "/c/hats")
        assert (status, headers["location"]) == (307, "hats/")
        for path in (
            "/c/socks",
            "/c/socks/",
            "/c/socks/v1/status",
            "/v1/search",
            "/c/shoes/v1/collections",
        ):
            assert client.raw("GET", path, headers={"X-Request-Id": "abc"})[0] == 404
        two["hats"].engine.failure = RuntimeError("a bug")
        status, told = client("GET", "/readyz")
        assert (status, told["status"]) == (503, "hats: learning has stopped")
        assert client("GET", "/c/shoes/readyz")[0] == 200
        assert client("GET", "/v1/collections")[1]["collections"][1]["status"] != "ready"
        two["hats"].engine.failure = None
        client.close()


def test_lines_of_the_log_say_whose_they_are(tmp_path, capsys, monkeypatch):
    """Those of requests and those of the threads of a service."""
    services = {}
    for name in ("shoes", "hats"):
        with speaking_for(name):
            services[name] = Service(Settings(tmp_path / name))
    add_items(services["hats"], vectors(5))
    monkeypatch.setattr(services["shoes"], "status", lambda: 1 / 0)
    monkeypatch.setattr(services["hats"].engine, "_step", lambda: 1 / 0)
    with logged("json"), served_together(services, KeyRing(tmp_path / "keys.json")) as port:
        client = Client(port)
        assert client("GET", "/c/shoes/v1/status")[0] == 500
        judge(services["hats"], "i0", "i1", "i2")
        assert client("GET", "/healthz")[0] == 200
        client.close()
        wait_until(lambda: services["hats"].engine.failure is not None)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = {line["message"]: line.get("collection") for line in lines}
    assert said == {
        "GET /c/shoes/v1/status failed": "shoes",
        "GET /c/shoes/v1/status 500": "shoes",
        "the engine stopped": "hats",
        "GET /healthz 200": None,
    }
    record = logging.LogRecord("x", logging.WARNING, "", 0, "the disk is full", (), None)
    with speaking_for("hats"):
        assert TextLines().format(record).endswith("the disk is full (collection hats)")


def test_spans_name_the_collection(tmp_path, monkeypatch):
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
    exporter = InMemorySpanExporter()
    stop = start_tracing(exporter)
    with speaking_for("hats"):
        service = Service(Settings(tmp_path / "hats"))
    with served_together({"hats": service}, KeyRing(tmp_path / "keys.json")) as port:
        add_items(service, vectors(5))
        client = Client(port)
        client("GET", "/c/hats/v1/status")
        client("GET", "/healthz")
        client.close()
    stop()
    told = {
        one.name: one.attributes.get("simstream.collection")
        for one in exporter.get_finished_spans()
    }
    assert told == {"GET /c/hats/v1/status": "hats", "GET /healthz": None, "learn": "hats"}


def test_keys_of_one_collection_open_no_other(two, tmp_path):
    """Also not by another spelling of an address: what needs which scope is decided below the prefix."""
    scopes = ["read", "write"]
    by_name = {name: KeyRing(tmp_path / name / "keys.json").add("x", scopes) for name in two}
    whole = KeyRing(tmp_path / "keys.json")
    by_name[None] = whole.add("prometheus", ["read"])
    with served_together(two, whole) as port:
        targets = {name: f"/c/{name}/v1/status" for name in two} | {None: "/v1/collections"}
        for owner, key in by_name.items():
            client = Client(port, key)
            for name, target in targets.items():
                assert client("GET", target)[0] == (200 if name == owner else 401), (owner, name)
            assert client.raw("GET", "/metrics")[0] == (200 if owner is None else 401)
            client.close()
        client, json_type = Client(port, by_name["shoes"]), {"Content-Type": "application/json"}
        assert client("POST", "/c/shoes/v1/pin", {"position": 1})[0] == 403, "needs admin"
        assert client("POST", "/c/shoes/v1/rollback", {"position": 1})[0] == 403
        assert client("POST", "/c/shoes/v1/search", {"item": "i0"})[0] == 200
        for odd in (
            "/c/shoes//v1/pin",
            "/c/shoes/v1/pin/",
            "/c//shoes/v1/pin",
            "/c/%73hoes/v1/pin",
        ):
            status = client.raw("POST", odd, '{"position": 1}', json_type)[0]
            assert status in (307, 401, 403, 404), odd  # 307: to the address without the last slash
        client.headers = {}
        for path in ("/healthz", "/readyz", "/c/hats/healthz", "/c/hats/", "/"):
            assert client.raw("GET", path)[0] == 200
        assert b"hats" not in client.raw("GET", "/")[2]
        client.headers = {"Authorization": f"Bearer {by_name[None]}"}
        counted = client.raw("GET", "/metrics")[2].decode()
        client.close()
        assert two["shoes"].version.is_pinned is False
        refused = 'simstream_requests_total{collection="shoes",route="other",status="403"}'
        assert refused in counted, "refused before it had a route"
        assert 'route="/c/' not in counted


def test_closing_leaves_one_thread_for_products_until_the_last(two, tmp_path, monkeypatch):
    """Each service restores the number that it found, so the first one opened must be closed last."""
    seen, close = [], Service.close

    def noted(service):
        if not service.writer.is_closed:
            blas = [one for one in threadpool_info() if one["user_api"] == "blas"]
            seen.append((service.settings.folder.name, {one["num_threads"] for one in blas}))
        close(service)

    monkeypatch.setattr(Service, "close", noted)
    with served_together(two, KeyRing(tmp_path / "keys.json")):
        judge(two["shoes"], "i0", "i1", "i2")
        judge(two["hats"], "i0", "i1", "i2")
    assert seen == [("hats", {1}), ("shoes", {1})]
    for name in two:
        with running(tmp_path / name, learning=two[name].settings.learning) as again:
            assert again.version.tally.triplets == 1


def test_collections_are_as_they_are_described(two, tmp_path):
    app = create_collections_app(two, KeyRing(tmp_path / "keys.json"))
    asked = made_requests(app, n_examples=5, phases=("coverage", "fuzzing"))
    assert {label for label, status in asked if status == 200} == {
        "GET /healthz",
        "GET /metrics",
        "GET /readyz",
        "GET /v1/collections",
    }


# -- the command ------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    np.save(tmp_path / "shoes.npy", vectors(8))
    path = tmp_path / "all.toml"
    path.write_text(
        """
        [shoes]
        items = "shoes.npy"
        params = {C = 0.5}
        snapshot-every = 7

        [hats]
        data = "other/hats"
        algorithm = "omtrsl"
        """
    )
    return path


def test_a_file_of_collections_is_served(tmp_path, file):
    server = ServerProcess(None, "--collections", file)
    assert "(/c/shoes/, /c/hats/)" in server.told
    client = Client(server.port)
    status = client("GET", "/c/shoes/v1/status")[1]
    assert (status["items"], status["algorithm"]["params"]) == (8, {"C": 0.5})
    assert client("GET", "/c/hats/v1/status")[1]["has_tasks"]
    client.close()
    server.terminate()
    assert server.process.returncode == 0
    assert server.log[-1].endswith("stopped\n")
    assert (tmp_path / "shoes" / "log.sqlite").exists()
    assert (tmp_path / "other" / "hats" / "log.sqlite").exists()


@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        (1, "", "expected a table for each collection, got none"),
        (1, "x = ", "all.toml: expected TOML, got"),
        (1, "x = 1", "expected only tables, got x = 1"),
        (1, '["a/b"]', "expected a name of letters, digits, _ and -, at most 64, got 'a/b'"),
        (1, "[a]\n[b]\nitems = 'absent.npy'", "collection b: "),
        (1, "[a]\n[b]\nfollow = true", "collection b: "),
        (1, "[a]\nfollow = 'http://127.0.0.1:1'", "collection a: http://127.0.0.1:1: "),
        (2, "[a]\ncolour = 1", "a: expected some of add, algorithm, block"),
        (2, "[a]\nfolder = 'x'", "a: expected some of add, algorithm, block"),
        (2, "[a]\nport = 1", "a: expected some of add, algorithm, block"),
        (2, "[a]\nhalf_life = 3", "got half_life (did you mean half-life?)"),
        (2, "[a]\nnear = -1", "all.toml: a: Invalid value for '--near'"),
        (2, "[a]\nnear = '9'", "all.toml: a: near: expected a number, got '9'"),
        (2, "[a]\nhalf-life = '500'", "a: half-life: expected a number, got '500'"),
        (2, "[a]\nparams = 1", "a: params: expected a table, got 1"),
        (2, "[a]\nfollow = 'yes'", "a: Invalid value for '--follow': expected http"),
        (2, "[a]\nlog = 'http://x'", "a: Invalid value for '--log': expected"),
        (2, "[a]\n[b]\nalgorithm = 'none'", "collection b: "),
        (2, "[a]\n[b]\nparams = {C = -1}", "collection b: "),
        (2, "[a]\n[b]\nparams = {normalise = true}\npromote = 'safe'", "b: --promote: expected"),
        (2, "[a]\n[b]\ndata = './x/../a'", "for both a and b"),
        (2, "[a]\n[b]\ndata = './a/c/d'", "got that of b inside that of a"),
        (2, "[a]\n[b]\ndata = '.'", "got that of a inside that of b"),
        (2, "[a]\nadd = 'yes'", "a: add: expected true or false, got 'yes'"),
        (2, "[a]\n[b]\ndata = 'a'\nfollow = true\nitems = 'shoes.npy'", "b: --follow only reads"),
        (2, "[a]\n[b]\nadd = true", "collection b: --add requires ITEMS"),
        (2, "[a]\n[b]\nn-features = 9", "collection b: --n-features requires ITEMS"),
        (2, "[a]\n[b]\nmove-index = true", "collection b: --move-index requires a database"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(tmp_path, monkeypatch, code, text, message):
    monkeypatch.setattr(mirror, "_PATIENCE", 0)
    path = tmp_path / "all.toml"
    path.write_text(text)
    np.save(tmp_path / "shoes.npy", vectors(3))
    done = run("serve", "--collections", path, "--port", "0")
    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [one.name for one in tmp_path.iterdir() if one.is_dir()] == []


def test_a_damaged_collection_is_named(tmp_path, file):
    tables = tomllib.loads(file.read_text())
    (tmp_path / tables["hats"]["data"]).mkdir(parents=True)
    (tmp_path / tables["hats"]["data"] / "log.sqlite").write_bytes(b"not a database" * 100)
    done = run("serve", "--collections", file, "--port", "0")
    assert done.exit_code != 0
    assert "collection hats: " in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--data", "x"], ["--algorithm", "oasis"], ["--demo"], ["--rate", "3"]]
)
def test_options_of_a_collection_belong_into_the_file(file, arguments):
    done = run("serve", "--collections", file, *arguments)
    assert done.exit_code == 2
    assert f"--collections: not with {arguments[0]}; say it in the file" in done.stderr


def test_every_collection_needs_keys_for_other_machines(tmp_path, file):
    done = run("serve", "--collections", file, "--host", "0.0.0.0", "--port", "0")
    assert "--host" in done.stderr
    KeyRing(tmp_path / "keys.json").add("all", ["read"])
    (tmp_path / "shoes").mkdir()
    KeyRing(tmp_path / "shoes" / "keys.json").add("all", ["read"])
    done = run("serve", "--collections", file, "--host", "0.0.0.0", "--port", "0")
    assert done.exit_code == 2
    assert "collection hats: host: expected this machine" in done.stderr
    assert not (tmp_path / "shoes" / "log.sqlite").exists()


# -- the page ---------------------------------------------------------------------------------


def test_the_page_works_below_a_prefix(window, two, tmp_path):
    """Questions, neighbours and status of one collection; its key is not that of another."""
    keys = {name: KeyRing(tmp_path / name / "keys.json") for name in two}
    key = keys["shoes"].add("page", ["read", "write"])
    with served_together(two, KeyRing(tmp_path / "keys.json")) as port:
        page = Page(window, port)
        window.get(f"http://127.0.0.1:{port}/c/hats/#/label")
        page.until_ready()
        before = two["hats"].version.tally.answers
        page.act(page.keys.ARROW_LEFT)
        page.until(lambda: two["hats"].version.tally.answers == before + 1, "the answer")
        window.get(f"http://127.0.0.1:{port}/c/shoes/#/label")
        page.until(lambda: page.element("key-form").is_displayed(), "a form for the key")
        page.element("key").send_keys(key, page.keys.ENTER)
        page.until_ready()
        assert page.script("return Object.keys(sessionStorage)") == ["simstream-key/c/shoes"]
        assert page.script("return document.querySelector('footer a').href").endswith(
            "/c/shoes/docs"
        )
        assert two["shoes"].version.tally.answers == 0
        page.script("sessionStorage.clear()")


def test_the_app_of_one_service_has_no_prefix(two):
    assert "servers" not in create_app(two["shoes"]).openapi()
