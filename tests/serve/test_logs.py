"""Request ids, and log lines that carry them."""

import json
import logging

import pytest
from live import Client, ServerProcess, add_items, running, served, vectors, wait_until

from simstream.serve.access import KeyRing
from simstream.serve.log import LogError
from simstream.serve.logs import JsonLines, TextLines, logged


def test_every_answer_has_the_id_of_its_request(call):
    for target in ("/v1/status", "/nowhere", "/v1/items/absent", "/healthz", "/", "/docs"):
        _, headers, _ = call.raw("GET", target, headers={"X-Request-Id": "my-id_1.2"})
        assert headers["x-request-id"] == "my-id_1.2"
    seen = set()
    for odd in (None, "", "x" * 129, "a b", "<script>", "é", 'x"y'):
        headers = {} if odd is None else {"X-Request-Id": odd.encode()}
        found = call.raw("GET", "/v1/status", headers=headers)[1]["x-request-id"]
        assert found != odd
        assert len(found) == 32
        seen.add(found)
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/v1/items/absent", None, {}, 404),
        ("PATCH", "/v1/search", None, {}, 405),
        ("POST", "/v1/search", b"{}", {"Content-Type": "application/json"}, 422),
        ("POST", "/v1/search", b"\xff", {"Content-Type": "application/json"}, 400),
        ("GET", "/v1/status", None, {"Host": "evil.example"}, 403),
        ("POST", "/v1/items", b"", {"Content-Length": str(10**9)}, 413),
    ],
)
def test_every_error_names_its_request(call, method, path, body, headers, status):
    got, answered, content = call.raw(method, path, body, {**headers, "X-Request-Id": "abc"})
    told = json.loads(content)
    assert (got, set(told), told["request_id"]) == (status, {"error", "request_id"}, "abc")
    assert answered["x-request-id"] == "abc"


def test_what_fails_within_a_request_is_logged_with_its_id(call, monkeypatch):
    """In the event loop and in a thread that answers it; and what fails elsewhere belongs to no request."""
    lines = []

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append((TextLines().format(record), json.loads(JsonLines().format(record))))

    def fails(*_, **__):
        logging.getLogger("simstream.serve").warning("about to fail")
        raise RuntimeError("a bug")

    logger = logging.getLogger("simstream.serve")
    handler = Kept(level=logging.WARNING)
    logger.addHandler(handler)
    try:
        monkeypatch.setattr(call.service, "status", fails)  # in a thread
        status, _, content = call.raw("GET", "/v1/status", headers={"X-Request-Id": "first"})
        assert (status, json.loads(content)["request_id"]) == (500, "first")
        monkeypatch.setattr(call.service, "stopped", fails)  # in the event loop
        assert call.raw("GET", "/readyz", headers={"X-Request-Id": "second"})[0] == 500
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    texts, objects = zip(*lines, strict=True)
    assert [one["request_id"] for one in objects] == ["first"] * 2 + ["second"] * 2 + [None]
    assert [one["message"] for one in objects[::2]] == ["about to fail", "about to fail", "outside"]
    assert "RuntimeError: a bug" in objects[1]["exception"]
    assert texts[0] == "simstream: warning: about to fail (request first)"
    assert "RuntimeError: a bug" in texts[1]
    assert texts[-1] == "simstream: warning: outside"


def test_a_damaged_log_names_the_request_too(call, monkeypatch):
    def damaged(*_):
        raise LogError("the event at position 3 is damaged")

    monkeypatch.setattr(call.service, "item", damaged)
    status, headers, content = call.raw("GET", "/v1/items/i0")
    told = json.loads(content)
    assert (status, told["request_id"]) == (507, headers["x-request-id"])


def test_requests_are_logged_without_what_they_say(tmp_path, caplog):
    keys = KeyRing(tmp_path / "keys.json")
    key = keys.add("page", ["read"])
    with running(tmp_path) as service:
        add_items(service, vectors(4), ["secret-0", "secret-1", "secret-2", "secret-3"])
        with served(service, keys) as port, caplog.at_level("INFO", "simstream.serve.requests"):
            client = Client(port, key)
            caplog.clear()
            headers = {"X-Request-Id": "abc", "Content-Type": "application/json"}
            client.raw("GET", "/v1/items/secret-1?payload=secret", headers=headers)
            client.raw("POST", "/v1/search", b'{"item": "secret-2"}', headers)
            client.raw("HEAD", "/v1/secret", headers=headers)
            client.headers = {}
            client.raw("GET", "/v1/status", headers=headers)
            wait_until(lambda: len(caplog.records) >= 4)
            client.close()
    lines = [JsonLines().format(record) for record in caplog.records]
    assert not any("secret" in line or key in line for line in lines)
    told = [json.loads(line) for line in lines]
    assert [(one["method"], one["path"], one["status"], one["key_name"]) for one in told] == [
        ("GET", "/v1/items/{id:path}", 200, "page"),
        ("POST", "/v1/search", 200, "page"),
        ("HEAD", "other", 404, "page"),
        ("GET", "other", 401, None),
    ]
    assert all(0 < one["seconds"] < 60 and one["client"] == "127.0.0.1" for one in told)


def test_a_process_writes_json_lines_only(tmp_path):
    server = ServerProcess(tmp_path, "--log-format", "json")
    client = Client(server.port)
    for _ in range(3):
        client.raw("GET", "/healthz", headers={"X-Request-Id": "abc"})
    client.close()
    server.terminate()
    lines = [json.loads(line) for line in server.log]
    asked = [line for line in lines if line.get("path") == "/healthz"]
    assert [(line["request_id"], line["status"], line["level"]) for line in asked] == [
        ("abc", 200, "info")
    ] * 3
    assert lines[-1]["message"].startswith("stopped at log position")
    assert all(line["time"].endswith("Z") for line in lines)


def test_what_the_exporter_of_spans_warns_of_has_the_same_form(capsys):
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with logged("json"):
        exporter.info("not worth a line")
        exporter.warning("Transient error, retrying in %ds", 2)
    told = json.loads(capsys.readouterr().err)
    assert (told["level"], told["message"]) == ("warning", "Transient error, retrying in 2s")


def test_loggers_are_left_as_they_were():
    names = ("simstream.serve", "simstream.cli", "uvicorn", "opentelemetry")
    loggers = [logging.getLogger(name) for name in names]
    before = [(list(one.handlers), one.level) for one in loggers]
    for form in ("text", "json"):
        with logged(form):
            assert loggers[0].handlers == loggers[2].handlers == loggers[3].handlers
        assert [(list(one.handlers), one.level) for one in loggers] == before
