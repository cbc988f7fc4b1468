"""Callers that wait until readers can see what they wrote."""

import time
from concurrent.futures import ThreadPoolExecutor

from live import Client, wait_until

from simstream.serve import routes


def let_nothing_be_published(engine):
    """Until `let_be_published`."""
    engine._publishing_pace._last.extend([1e6, 1e6])


def let_be_published(engine):
    engine._publishing_pace._last.extend([0.0, 0.0])
    engine.notify(0)


def new_item(n):
    return {"items": [{"id": f"n{n}", "vector": [n, 0, 0, 0, 0, 1]}]}


def test_searches_do_not_wait_for_those_who_wait_to_see_what_they_wrote(call, monkeypatch):
    """More callers wait than there are threads that searches run in."""
    monkeypatch.setattr(routes, "_LONGEST_WAIT", 40.0)
    engine, port, n_callers = call.service.engine, call.port, 60
    let_nothing_be_published(engine)

    def add(n):
        client = Client(port)
        try:
            return client("POST", "/v1/items?wait=true", new_item(n))
        finally:
            client.close()

    with ThreadPoolExecutor(n_callers) as callers:
        answers = callers.map(add, range(n_callers))
        try:
            wait_until(lambda: call.service.writer.last == 10 + n_callers)
            wait_until(lambda: len(engine._awaited) >= 40)  # the threads that Starlette has
            started = time.perf_counter()
            assert call("POST", "/v1/search", {"item": "i0"})[0] == 200
            assert time.perf_counter() - started < 5
            assert call.service.version.position == 10, "they still wait"
        finally:
            let_be_published(engine)
        told = list(answers)
    assert all(status == 201 and answer["visible"] for status, answer in told)
    assert engine._awaited == {}


def test_what_cannot_be_seen_yet_is_told(call, monkeypatch):
    monkeypatch.setattr(routes, "_LONGEST_WAIT", 0.2)
    question = call("GET", "/v1/query")[1]
    asked = question["question"]
    about = {question["anchor"]["id"], *(one["id"] for one in question["candidates"])}
    other = next(
        name for name in ("i4", "i5", "i6", "i7") if name not in about
    )  # or it cannot be asked again
    let_nothing_be_published(call.service.engine)
    feedback = {"anchor": "i0", "positive": "i1", "negative": "i2"}
    requests = (
        ("POST", "/v1/items", new_item(0)),
        ("PUT", "/v1/items/i3", {"vector": [0, 0, 0, 0, 0, 1]}),
        ("DELETE", f"/v1/items/{other}", None),
        ("POST", "/v1/feedback?wait=true", feedback),
        ("POST", "/v1/feedback", [feedback, feedback]),
        ("POST", "/v1/answer", {"question": asked, "winner": 0}),
    )
    for method, path, body in requests:
        status, told = call(method, path, body)
        assert (status // 100, told["visible"]) == (2, False), path
    assert call.service.engine._awaited == {}
    let_be_published(call.service.engine)
    monkeypatch.setattr(routes, "_LONGEST_WAIT", 40.0)
    status, told = call("POST", "/v1/answer", {"question": asked, "winner": 0})
    assert (status, told["repeated"], told["visible"]) == (200, True, True)
    assert call("POST", "/v1/feedback?wait=true", feedback)[1]["visible"]
    position = told["position"]
    for path, body in (("retract", {"position": position}), ("pin", {"position": 10})):
        told = call("POST", f"/v1/{path}", body)[1]
        assert told["visible"]
        assert ("question" in told) == (path == "retract")


def test_answers_of_routes_that_write_are_described(call):
    paths = call("GET", "/openapi.json")[1]
    schemas, found = paths["components"]["schemas"], 0
    for operations in paths["paths"].values():
        for operation in operations.values():
            waits = [p for p in operation.get("parameters", []) if p["name"] == "wait"]
            if any(p["schema"]["type"] == "boolean" for p in waits):
                answer = operation["responses"].get("201") or operation["responses"]["200"]
                name = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                assert schemas[name]["properties"]["visible"]["type"] == "boolean"
                found += 1
    assert found == 8
