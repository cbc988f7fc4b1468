"""The HTTP interface: what it answers, whom, and how much."""

import base64
import csv
import io
import json

import numpy as np
import pytest
from live import Client, add_items, running, served, vectors

import simstream
from simstream.data import read_triplets
from simstream.serve.access import SCOPES, KeyRing, check_host, scope_needed
from simstream.serve.app import SECURITY_HEADERS, create_app
from simstream.serve.demo_digits import png
from simstream.serve.service import Limits, Service, Settings
from simstream.serve.state import Learning

PICTURE = "data:image/png;base64," + base64.b64encode(png(np.eye(3))).decode()


def test_items_come_and_go(call):
    new = {"id": "a/b ü", "vector": [1, 0, 0, 0, 0, 0.5], "text": "<b>&", "image": PICTURE}
    status, told = call("POST", "/v1/items", {"items": [new]})
    expected = {"position": 11, "events": 1, "repeated": False, "visible": True}
    assert (status, told) == (201, expected)
    path = "/v1/items/a%2Fb%20%C3%BC"
    status, item = call("GET", path)
    assert status == 200
    assert item == {**new, "position": 11}
    status, headers, content = call.raw("GET", f"{path}/image")
    assert (status, headers["content-type"]) == (200, "image/png")
    assert content == png(np.eye(3))
    assert "sandbox" in headers["content-security-policy"]
    assert call("POST", "/v1/items", {"items": [new]})[0] == 409
    assert call("PUT", path, {"vector": [2, 0, 0, 0, 0, 0]})[0] == 200
    assert call("GET", path)[1]["vector"] == [2, 0, 0, 0, 0, 0]
    assert call("GET", f"{path}/image")[0] == 404
    assert call("GET", "/v1/items?limit=3&offset=9")[1] == {
        "total": 11,
        "items": [{"id": "i9"}, {"id": "a/b ü"}],
    }
    assert call("DELETE", path)[0] == 200
    assert call("GET", path)[0] == 404
    assert call("DELETE", path)[0] == 404
    assert call("GET", "/v1/items")[1]["total"] == 10


def test_search_is_the_inner_product_before_and_the_model_after(call):
    rows = vectors(10)
    status, found = call("POST", "/v1/search", {"item": "i0", "k": 4, "baseline": True})
    assert status == 200
    order = [f"i{n}" for n in np.argsort(-(rows @ rows[0])) if n][:4]
    assert [hit["id"] for hit in found["results"]] == order
    assert found["results"] == found["baseline"]
    for _ in range(5):
        body = {"anchor": "i0", "positive": order[-1], "negative": order[0]}
        assert call("POST", "/v1/feedback?wait=true", body)[0] == 201
    found = call("POST", "/v1/search", {"item": "i0", "k": 4, "baseline": True})[1]
    assert [hit["id"] for hit in found["baseline"]] == order
    status, _, content = call.raw("GET", "/v1/model")
    path = call.service.settings.folder / "downloaded.safetensors"
    path.write_bytes(content)
    model = simstream.load(path)
    scores = model.score_items(rows[:1], rows)[0]
    expected = [n for n in np.argsort(-scores) if n][:4]
    assert [hit["id"] for hit in found["results"]] == [f"i{n}" for n in expected]
    assert [hit["score"] for hit in found["results"]] == pytest.approx(scores[expected], rel=1e-5)
    by_vector = call("POST", "/v1/search", {"vector": rows[0].tolist(), "k": 11})[1]["results"]
    assert len(by_vector) == 10
    assert found["position"] == call.service.version.position


def test_lists_become_comparisons(call):
    rows = vectors(10)
    clicks = {"query": "i0", "shown": ["i1", "i2", "i3", "i4"], "clicked": ["i3", "i2"]}
    thumbs = {"query": rows[0].tolist(), "shown": ["i5", "i6", "i7"], "up": ["i6"], "down": ["i5"]}
    status, told = call("POST", "/v1/feedback?wait=true", [clicks, thumbs])
    assert (status, told["positions"]) == (201, [11, 12])
    _, headers, content = call.raw("GET", "/v1/responses")
    records = [json.loads(line) for line in content.splitlines()]
    assert headers["x-left-out"] == "1", "the query of the thumbs is no item"
    found = [(r["head_id"], r["winner_id"], r["loser_id"], r["source"]) for r in records]
    assert found == [("i0", "i2", "i1", "clicks"), ("i0", "i3", "i1", "clicks")]
    assert call.service.version.tally.triplets == 3
    call("POST", "/v1/retract", {"position": 12})
    assert call.raw("GET", "/v1/responses?format=csv")[1]["x-left-out"] == "0"


def test_questions_are_asked_answered_undone_and_exported(call, tmp_path):
    answered = []
    for n in range(6):
        status, asked = call("GET", "/v1/query")
        assert status == 200
        names = {asked["anchor"]["id"], *(c["id"] for c in asked["candidates"])}
        assert len(names) == 3
        winner = None if n == 2 else n % 2
        body = {"question": asked["question"], "winner": winner}
        status, told = call("POST", "/v1/answer", body)
        assert status == 201
        assert call("POST", "/v1/answer", body)[1]["repeated"]
        assert call("POST", "/v1/answer", {**body, "winner": 1 - (winner or 0)})[0] == 409
        answered.append((asked, winner, told["position"]))
    assert call("POST", "/v1/answer", {"question": 1, "winner": 0})[0] == 404
    asked, winner, position = answered[-1]
    status, told = call("POST", "/v1/retract", {"position": position})
    assert status == 201
    again = told["question"]
    assert (again["anchor"], again["candidates"]) == (asked["anchor"], asked["candidates"])
    assert call("POST", "/v1/retract", {"position": position})[0] == 409
    tally = call("GET", "/v1/status")[1]
    assert (tally["answers"], tally["skips"], tally["triplets"]) == (4, 1, 4)
    text = call.raw("GET", "/v1/responses?format=csv")[2].decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = [
        (int(a["anchor"]["id"][1:]), *(int(c["id"][1:]) for c in a["candidates"][:: 1 - 2 * w]))
        for a, w, _ in answered[:-1]
        if w is not None
    ]
    assert [(int(r["head"]), int(r["winner"]), int(r["loser"])) for r in rows] == expected
    for suffix in ("csv", "jsonl"):
        path = tmp_path / f"responses.{suffix}"
        path.write_bytes(call.raw("GET", f"/v1/responses?format={suffix}")[2])
        read = np.concatenate([batch.triplets for batch in read_triplets(path, n_items=10)])
        assert read.tolist() == [list(triplet) for triplet in expected]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/feedback",
            {"query": "i0", "shown": ["i1"], "clicked": 5},
            "clicked: expected a list of ids, got 5",
        ),
        (
            "/v1/feedback",
            [{"query": "i0", "shown": ["i1"], "clicked": "i1"}],
            "0.clicked: expected a list of ids, got text",
        ),
        (
            "/v1/feedback",
            [{"anchor": "i0"}],
            "0: expected anchor, positive and negative; or query, shown and clicked; or query, shown, up "
            "and down; got anchor",
        ),
        (
            "/v1/feedback",
            {"query": "i0", "shown": ["i1"], "clicked": [""]},
            "clicked.0: expected at least 1 character, got 0",
        ),
        (
            "/v1/feedback",
            {"query": "i0", "shown": [], "clicked": ["i1"]},
            "shown: expected at least 1 item, got 0",
        ),
        (
            "/v1/feedback",
            {"query": "i0", "shown": [f"i{n}" for n in range(1001)], "clicked": ["i1"]},
            "shown: expected at most 1000 items, got 1001",
        ),
        (
            "/v1/feedback",
            {"query": "i0", "shown": ["i1", "i2", "i1"], "clicked": ["i1"]},
            "shown: expected every item at most once, got 'i1' twice",
        ),
        (
            "/v1/feedback",
            [{"query": "i0", "shown": ["i1", "i2"], "clicked": ["i1", "i3"]}],
            "0.clicked: expected only items from shown, got 'i3'",
        ),
        (
            "/v1/feedback",
            {"query": "i0", "shown": ["i1", "i2"], "up": ["i1"], "down": ["i1"]},
            "body: expected at most one click or thumb per item, got two for 'i1'",
        ),
        (
            "/v1/feedback",
            {"query": "i0", "shown": ["i1"], "up": ["i1"], "down": ["i1"], "randomised": 1.5},
            "randomised: expected an integer, got 1.5",
        ),
        (
            "/v1/feedback",
            {"Foo-bar": 1},
            "body: expected only the fields anchor, positive, negative, query, shown, clicked, up, down, "
            "randomised, task, key, got 'Foo-bar'",
        ),
        (
            "/v1/search",
            {"itm": "i0"},
            "body: expected only the fields item, vector, k, task, baseline, payload, got 'itm'; did you "
            "mean 'item'?",
        ),
        (
            "/v1/search",
            {"vector": {"indices": [], "value": []}},
            "vector: expected only the fields indices, values, got 'value'; did you mean 'values'?",
        ),
        ("/v1/search", None, "body: expected JSON, got nothing"),
        ("/v1/search", 5, "body: expected an object, got 5"),
        ("/v1/search", {}, "body: expected an item or a vector, got neither"),
        (
            "/v1/search",
            {"item": "i0", "vector": [1]},
            "body: expected an item or a vector, got both",
        ),
        ("/v1/search", {"item": 0}, "item: expected text, got 0"),
        (
            "/v1/search",
            {"item": "a" * 201},
            "item: expected at most 200 characters, got 201",
        ),
        (
            "/v1/search",
            {"item": "a\tb"},
            "item: expected text without control characters, got other text",
        ),
        ("/v1/search", {"item": "i0", "k": -1}, "k: expected at least 1, got -1"),
        ("/v1/search", {"item": "i0", "k": 10**7}, "k: expected at most 1000000, got 10000000"),
        ("/v1/search", {"item": "i0", "k": "2"}, "k: expected an integer, got text"),
        (
            "/v1/search",
            {"item": "i0", "payload": 1},
            "payload: expected true or false, got 1",
        ),
        (
            "/v1/search",
            {"vector": [float("nan")]},
            "vector.0: expected a finite number, got nan",
        ),
        ("/v1/search", {"vector": [1, "x"]}, "vector.1: expected a number, got text"),
        ("/v1/search", {"vector": [1, None]}, "vector.1: expected a number, got null"),
        (
            "/v1/search",
            {"vector": {"indices": [1, 0], "values": [1, 2]}},
            "vector.indices: expected ascending numbers without repeats, got 0 after 1",
        ),
        (
            "/v1/search",
            {"vector": {"indices": [1, 1], "values": [1, 2]}},
            "vector.indices: expected ascending numbers without repeats, got 1 after 1",
        ),
        (
            "/v1/search",
            {"vector": {"indices": [-1], "values": [1]}},
            "vector.indices.0: expected at least 0, got -1",
        ),
        (
            "/v1/search",
            {"vector": {"indices": [1], "values": [1, 2]}},
            "vector: expected as many values as indices (1), got 2",
        ),
        (
            "/v1/feedback",
            {"query": {"indices": [1, 0], "values": [1, 2]}, "shown": ["i1"], "clicked": ["i1"]},
            "query.indices: expected ascending numbers without repeats, got 0 after 1",
        ),
        ("/v1/answer", {"question": 1}, "winner: expected a value, got none"),
        ("/v1/answer", {"question": 1, "winner": 2}, "winner: expected 0 or 1, got 2"),
        (
            "/v1/items",
            {"items": [{"id": "a", "vector": [1]}, {"id": "a", "vector": [1]}]},
            "items: expected every id at most once, got 'a' twice",
        ),
        (
            "/v1/items",
            {"items": [{"id": "a", "vector": [1], "image": "data:image/png;base64,abc"}]},
            "items.0.image: expected base64, got an error: Incorrect padding",
        ),
    ],
)
def test_errors_say_what_was_expected_and_what_was_sent(call, path, body, message):
    status, told = call("POST", path, body)
    assert (status, told["error"]) == (422, message)


def test_parameters_and_paths_are_told_in_the_same_words(call):
    for path, status, message in [
        ("/v1/items?limit=0", 422, "limit: expected at least 1, got 0"),
        ("/v1/items?limit=ten", 422, "limit: expected an integer, got text"),
        ("/v1/items?payload=perhaps", 422, "payload: expected true or false, got text"),
        ("/v1/nowhere", 404, "path: expected one that /docs lists, got /v1/nowhere"),
    ]:
        answer = call("GET", path)
        assert (answer[0], answer[1]["error"]) == (status, message)


def test_bodies_that_are_not_json_are_told(call):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for path in ("/v1/feedback", "/v1/search", "/v1/answer"):
        status, _, content = call.raw("POST", path, '{"item": "i0"}', form)
        expected = "Content-Type: expected application/json, got application/x-www-form-urlencoded"
        assert (status, json.loads(content)["error"]) == (422, expected)
    kind = {"Content-Type": "application/json"}
    status, _, content = call.raw("POST", "/v1/search", '{"item": ', kind)
    assert (status, json.loads(content)["error"][:19]) == (422, "body: expected JSON")


def test_versions_can_be_pinned_and_rolled_back(call):
    body = {"anchor": "i0", "positive": "i1", "negative": "i2"}
    for _ in range(3):
        call("POST", "/v1/feedback?wait=true", body)
    first = call("POST", "/v1/search", {"item": "i0"})[1]
    assert call("POST", "/v1/pin", {"position": 13})[0] == 200
    call("POST", "/v1/feedback?wait=true", {"anchor": "i0", "positive": "i2", "negative": "i3"})
    assert call("POST", "/v1/search", {"item": "i0"})[1]["results"] == first["results"]
    assert call("GET", "/v1/versions")[1]["pinned"] == 13
    call("POST", "/v1/pin", {"position": None})
    assert call("POST", "/v1/search", {"item": "i0"})[1]["results"] != first["results"]
    assert call("POST", "/v1/rollback", {"position": 13})[0] == 200
    assert call("POST", "/v1/search", {"item": "i0"})[1]["results"] == first["results"]
    assert call("POST", "/v1/rollback", {"position": 1000})[0] == 404


def test_no_counter_falls_when_something_is_taken_back(call):
    def metrics():
        lines = call.raw("GET", "/metrics")[2].decode().splitlines()
        kinds = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
        return kinds, dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    call("POST", "/v1/feedback?wait=true", {"anchor": "i0", "positive": "i1", "negative": "i2"})
    question = call("GET", "/v1/query")[1]["question"]
    call("POST", "/v1/answer", {"question": question, "winner": 0})
    kinds, before = metrics()
    assert before["simstream_triplets"] == "2.0"
    call("POST", "/v1/rollback", {"position": 10})
    _, after = metrics()
    assert after["simstream_triplets"] == "0.0"
    fallen = {name for name in before if float(after[name]) < float(before[name])}
    assert {"simstream_triplets", "simstream_answers"} <= fallen
    assert {kinds[name] for name in fallen} == {"gauge"}


def test_metrics_keep_their_names(call):
    names = {
        "answers",
        "commits_total",
        "diverged",
        "items",
        "lag_events",
        "log_position",
        "published_position",
        "questions",
        "random_answers",
        "random_answers_right",
        "random_answers_right_baseline",
        "request_seconds_bucket",
        "request_seconds_count",
        "request_seconds_sum",
        "requests_total",
        "restart_seconds",
        "snapshots_refused_total",
        "triplets",
        "uptime_seconds",
        "waiting_requests",
    }
    call("GET", "/v1/status")
    lines = call.raw("GET", "/metrics")[2].decode().splitlines()
    found = {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}
    assert {f"simstream_{name}" for name in names} <= found


def test_what_people_and_machines_ask_about_it(call):
    assert call("GET", "/healthz")[0] == 200
    assert call("GET", "/readyz")[1]["status"] == "ready"
    status, headers, text = call.raw("GET", "/metrics")
    assert status == 200
    lines = text.decode().splitlines()
    assert "simstream_items 10.0" in lines
    assert any(
        line.startswith('simstream_requests_total{route="/readyz",status="200"}') for line in lines
    )
    assert "/v1/search" in call("GET", "/openapi.json")[1]["paths"]
    status, headers, text = call.raw("GET", "/docs")
    assert status == 200
    assert b"POST /v1/feedback" in text
    for name, value in SECURITY_HEADERS.items():
        assert headers[name] == value
    assert call("GET", "/nowhere")[0] == 404
    assert call("PATCH", "/v1/search")[0] == 405


def test_every_route_needs_the_right_scope(tmp_path):
    """By the OpenAPI description, so that a new route cannot be forgotten."""
    keys = KeyRing(tmp_path / "keys.json")
    by_scope = {scope: keys.add(scope, [scope]) for scope in SCOPES}
    text = (tmp_path / "keys.json").read_text()
    assert not any(key.split("_", 2)[2] in text for key in by_scope.values())
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0
    service = Service(Settings(tmp_path))
    add_items(service, vectors(5))
    last, json_type = service.writer.last, {"Content-Type": "application/json"}
    with served(service, KeyRing(tmp_path / "keys.json")) as port:
        clients = {None: Client(port)} | {s: Client(port, key) for s, key in by_scope.items()}
        wrong = Client(port, by_scope["read"][:-1] + "#")
        for path, operations in create_app(service).openapi()["paths"].items():
            for method in operations:
                method, target = method.upper(), path.replace("{id}", "absent")
                needed = scope_needed(method, target)
                for scope, client in clients.items():
                    status = client.raw(
                        method, target, None if method == "GET" else "{}", json_type
                    )[0]
                    if needed is None or scope == needed:
                        assert status not in (401, 403), (method, path, scope)
                    else:
                        assert status == (401 if scope is None else 403), (method, path, scope)
                assert needed is None or wrong.raw(method, target)[0] == 401
        for path in ("/v1/items", "/v1/feedback", "/v1/pin", "/v1/rollback", "/v1/retract"):
            assert scope_needed("POST", path) in ("write", "admin")
        for client in (*clients.values(), wrong):
            client.close()
        asked = [e.kind for e in service.log.read(last)]
    assert asked == ["question"], "only the question that may be asked"


def test_other_machines_and_other_sites_are_refused(call, tmp_path):
    assert call("GET", "/v1/status", Host="evil.example")[0] == 403
    assert call("GET", "/v1/status", Origin="http://evil.example")[0] == 403
    assert call("GET", "/v1/status", Host="localhost", Origin="http://localhost")[0] == 200
    for odd in ("[", "[::1", "]", "127.0.0.1.", ":", "http://["):
        assert call("GET", "/v1/status", Host=odd)[0] == 403
        assert call("GET", "/v1/status", Origin=odd)[0] == 403
        assert call("GET", "/v1/status", Origin=f"http://{odd}")[0] == 403
    body = json.dumps({"anchor": "i0", "positive": "i1", "negative": "i2"})
    last = call.service.log.last
    assert call.raw("POST", "/v1/feedback", body, {"Content-Type": "text/plain"})[0] == 422
    assert call.service.log.last == last
    absent, present = KeyRing(tmp_path / "absent.json"), KeyRing(tmp_path / "present.json")
    present.add("x", ["read"])
    check_host("::1", absent)
    check_host("0.0.0.0", present)
    with pytest.raises(ValueError, match="keys"):
        check_host("192.168.0.1", absent)


def test_limits(tmp_path):
    limits = Limits(body_bytes=2000, vectors=3, k=5, batch=2, rate=0.001, burst=9)
    service = Service(Settings(tmp_path, limits=limits))
    add_items(service, vectors(5, d=2))
    with served(service) as port:
        client = Client(port)
        items = [{"id": f"x{n}", "vector": [1, 2]} for n in range(4)]
        assert client("POST", "/v1/items", {"items": items})[0] == 422
        assert client("POST", "/v1/search", {"item": "i0", "k": 6})[0] == 422
        one = {"anchor": "i0", "positive": "i1", "negative": "i2"}
        assert client("POST", "/v1/feedback", [one] * 3)[0] == 422
        assert client("POST", "/v1/search", {"item": "i0", "task": "x" * 3000})[0] == 413

        def pieces():
            yield b"[" + b" " * 1500
            yield b" " * 1500

        json_type = {"Content-Type": "application/json"}  # sent in chunks: no length is told
        assert client.raw("POST", "/v1/feedback", pieces(), json_type)[0] == 413
        assert client("POST", "/v1/search", {"item": "i0", "k": 5})[0] == 200
        assert client("POST", "/v1/feedback", [one, one])[0] == 201
        statuses = [client.raw("GET", "/v1/status") for _ in range(5)]
        assert [status for status, _, _ in statuses][-1] == 429
        assert int(statuses[-1][1]["retry-after"]) >= 1
        client.close()


def test_an_empty_service_answers(tmp_path):
    service = Service(Settings(tmp_path))
    with served(service) as port:
        client = Client(port)
        assert client("POST", "/v1/search", {"vector": [1.0]})[1]["results"] == []
        assert client("POST", "/v1/search", {"item": "x"})[0] == 404
        assert client("GET", "/v1/query")[0] == 404
        assert client("GET", "/v1/model")[0] == 404
        assert client("GET", "/v1/status")[1]["items"] == 0
        assert client("GET", "/v1/items")[1] == {"total": 0, "items": []}
        one = {"id": "a", "vector": [1, 0]}
        two = {"id": "b", "vector": [1, 0, 0]}
        assert client("POST", "/v1/items", {"items": [one, two]})[0] == 422
        assert client("POST", "/v1/items", {"items": [two]})[0] == 201
        assert client("DELETE", "/v1/items/b")[0] == 200
        assert client("POST", "/v1/search", {"vector": [1.0, 0, 0]})[1]["results"] == []
        client.close()


def test_a_write_that_was_acknowledged_can_be_built_on_at_once(tmp_path):
    """Not yet published, already known: items added without waiting can be compared."""
    with running(tmp_path) as service:
        pass
    service = Service(Settings(tmp_path))
    with served(service) as port:
        client = Client(port)
        for n in range(20):
            body = {"items": [{"id": f"i{n}{x}", "vector": [n, 1]} for x in "abc"]}
            assert client("POST", "/v1/items?wait=false", body)[0] == 201
            body = {"anchor": f"i{n}a", "positive": f"i{n}b", "negative": f"i{n}c"}
            assert client("POST", "/v1/feedback", body)[0] == 201
        client.close()


def test_tasks_over_http(tmp_path):
    service = Service(Settings(tmp_path, learning=Learning("omtrsl")))
    add_items(service, vectors(5))
    with served(service) as port:
        client = Client(port)
        body = {"anchor": "i0", "positive": "i1", "negative": "i2", "task": "ann"}
        assert client("POST", "/v1/feedback?wait=true", body)[0] == 201
        for task in (None, "ann", "bob"):
            assert client("POST", "/v1/search", {"item": "i0", "task": task})[0] == 200
        assert client("GET", "/v1/query?task=ann")[1]["task"] == "ann"
        assert client("GET", "/v1/status")[1]["tasks"] == ["ann"]
        assert client.raw("GET", "/v1/model?task=ann")[0] == 200
        client.close()


def test_without_tasks_a_task_is_refused(call):
    body = {"anchor": "i0", "positive": "i1", "negative": "i2", "task": "ann"}
    assert call("POST", "/v1/feedback", body)[0] == 422
    assert call("POST", "/v1/search", {"item": "i0", "task": "ann"})[0] == 422
    assert call("GET", "/v1/query?task=ann")[0] == 422
