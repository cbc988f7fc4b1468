"""Spans of OpenTelemetry: what they contain, and that they cost nothing unless asked for."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from live import SOURCE, Client, ServerProcess, wait_until

from simstream.serve import tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans(monkeypatch):
    """The spans that have ended, once those of some names have."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
    exporter = InMemorySpanExporter()
    stop = tracing.start_tracing(exporter)

    def ended(*names):
        """A request's own ends after its answer."""
        wait_until(lambda: set(names) <= {one.name for one in exporter.get_finished_spans()})
        return {one.name: one for one in exporter.get_finished_spans()}

    yield ended
    stop()


def test_a_request_and_what_it_causes(call, spans):
    parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    headers = {**parent, "Content-Type": "application/json", "X-Request-Id": "abc"}
    call.raw("POST", "/v1/search", b'{"item": "i0", "k": 3}', headers)
    judgement = b'{"anchor": "i0", "positive": "i1", "negative": "i2"}'
    told = json.loads(call.raw("POST", "/v1/feedback?wait=true", judgement, headers)[2])
    call.raw("GET", "/v1/items/absent", headers=headers)
    names = {
        "POST /v1/search",
        "POST /v1/feedback",
        "GET /v1/items/{id:path}",
        "search",
        "write",
        "learn",
    }
    by_name = spans(*names)
    assert set(by_name) == names
    for inner, outer in (("search", "POST /v1/search"), ("write", "POST /v1/feedback")):
        assert by_name[inner].parent.span_id == by_name[outer].context.span_id
        assert f"{by_name[inner].context.trace_id:032x}" == TRACE
    request = by_name["GET /v1/items/{id:path}"]
    assert request.attributes["http.response.status_code"] == 404
    assert request.attributes["simstream.request_id"] == "abc"
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    assert by_name["search"].attributes["simstream.k"] == 3
    (position,) = told["positions"]
    assert by_name["write"].attributes["simstream.position"] == position
    learnt = by_name["learn"]
    assert learnt.parent is None
    assert learnt.attributes["simstream.after"] < position
    assert learnt.attributes["simstream.position"] == position


def test_a_refusal_is_no_failure_and_names_nothing(call, spans):
    """Texts of errors may hold ids and keys: no span repeats them."""
    judgement = {"anchor": "i0", "positive": "i1", "negative": "private"}
    assert call("POST", "/v1/feedback", judgement, idempotency_key="a")[0] == 404
    assert call("GET", "/v1/items/private")[0] == 404
    ended = spans("POST /v1/feedback", "write", "GET /v1/items/{id:path}")
    for one in ended.values():
        assert not one.events
        assert one.status.is_unset
        assert "private" not in one.to_json()


def test_a_failure_is_marked(call, spans, monkeypatch):
    monkeypatch.setattr(call.service, "status", lambda: {}["private"])
    assert call("GET", "/v1/status")[0] == 500
    request = spans("GET /v1/status")["GET /v1/status"]
    assert "private" not in request.to_json()
    assert not request.status.is_ok
    assert request.attributes["http.response.status_code"] == 500


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("simstream.serve.tracing", "opentelemetry"),
        # FastAPI has the API of OpenTelemetry among its own requirements.
        ("simstream.serve.app, simstream.cli.serve", "opentelemetry.sdk"),
        ("simstream.serve.app, simstream.cli.serve", "opentelemetry.exporter"),
    ],
)
def test_nothing_is_imported_unless_asked_for(module, package):
    code = (
        f"import sys, {module}, simstream.serve.tracing as t; assert t.span('x') is t.span('y');"
        f"print([name for name in sys.modules if name.startswith({package!r})])"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ImportError, match=r"pip install 'simstream\[otel\]'"):
        tracing.start_tracing()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_environment_variables_ask_for_spans(monkeypatch, variables, expected):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_asked_for() is expected


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_send_their_spans(tmp_path, monkeypatch, workers):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{collector.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        server = ServerProcess(tmp_path, "--workers", workers)
        client = Client(server.port)
        assert client("GET", "/v1/status")[0] == 200
        assert client("POST", "/v1/search", {"vector": [1.0]})[0] == 200
        client.close()
        server.terminate()
        wait_until(lambda: received)
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    assert {path for path, _ in received} == {"/v1/traces"}
    for name in (b"GET /v1/status", b"POST /v1/search"):
        assert any(name in content for _, content in received)
