"""Malformed requests: never a 500, never a change. Routes come from the OpenAPI description."""

import json
import random

import pytest
from live import Client, add_items, served, vectors

from simstream.serve.app import create_app
from simstream.serve.service import Service, Settings

#: A valid body for each route that takes one (a test checks that they are accepted).
GOOD_BODIES = {
    "/v1/items": {"items": [{"id": "new", "vector": [1, 2, 3, 4, 5, 6], "text": "t"}]},
    "/v1/items/{id}": {"vector": [1, 2, 3, 4, 5, 6], "text": "t"},
    "/v1/search": {"item": "i0", "k": 3},
    "/v1/feedback": {"anchor": "i0", "positive": "i1", "negative": "i2"},
    "/v1/answer": {"question": None, "winner": 0},
    "/v1/retract": {"position": None},
    "/v1/pin": {"position": 1},
    "/v1/rollback": {"position": 1},
}

#: Invalid in any field.
GARBAGE = (
    {},
    {"x": []},
    [[]],
    [{}],
    1e400,
    -1e400,
    float("nan"),
    10**400,
    -1,
    1.5,
    2**64,
    "",
    "\x00",
    "\ud800",
    "x" * 5000,
    "\u202e\u0000",
    [None],
    ["x", 1],
    [1e39] * 6,
    [float("nan")] * 6,
    [1] * 7,
    {"indices": [0], "values": [1, 2]},
    {"indices": [3, 2], "values": [1, 2]},
    {"indices": [2**40], "values": [1]},
    "'; DROP TABLE events; --",
    "../../etc/passwd",
)

ODD_TEXT = (
    b"",
    b"{",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\xff\xfe\x00",
    b"null",
    b"NaN",
    b"true",
    b'"text"',
    b"1e999",
    b'{"item": "i0", "item": {}}',
    b"\xef\xbb\xbf{}",
    b"id=1&x=2",
    b"<xml/>",
    b"0" * 10_000,
)

ODD_NAMES = (
    "%00",
    "%FF",
    "..",
    "%2e%2e%2f",
    "%F0%9F%98%80",
    "a" * 5000,
    "%0d%0aX:%20y",
    "'",
    "%",
    "*",
)


class Mutator:
    """Turns good requests into malformed ones."""

    def __init__(self, seed, openapi):
        self.rng = random.Random(seed)
        self.operations = [
            (method.upper(), path, operation)
            for path, operations in openapi["paths"].items()
            for method, operation in operations.items()
        ]

    def request(self):
        """Method, target, body, headers of one request that must be refused (or only reads)."""
        method, path, operation = self.rng.choice(self.operations)
        headers = {"Content-Type": "application/json"}
        target = path.replace("{id}", self.rng.choice(("absent", *ODD_NAMES)))
        if "requestBody" not in operation:
            if method == "GET":
                target += self._odd_query(operation, must_fail=path == "/v1/query")
            return method, target, self.rng.choice((None, b"{}", b"\x00")), headers
        target = path.replace("{id}", self.rng.choice(("i0", *ODD_NAMES)))
        if self.rng.random() < 0.25:
            body = self.rng.choice(ODD_TEXT)
            if self.rng.random() < 0.3:
                headers["Content-Type"] = self.rng.choice(
                    ("text/plain", "x", "", "multipart/form-data")
                )
            return method, target, body, headers
        if self.rng.random() < 0.1:
            headers["Idempotency-Key"] = self.rng.choice(("", "k" * 1000, "\x01", "é"))
        good = json.loads(json.dumps(GOOD_BODIES[path]))
        bad = self._spoiled(good, path)
        return method, target, json.dumps(bad).encode(), headers

    def _odd_query(self, operation, must_fail):
        names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
        values = (
            ("%00", "") if must_fail else ("", "-1", "x", "%00", "1e9", "9" * 40, "%ff", "null")
        )
        chosen = self.rng.choice(names) if names else "unknown"
        return f"?{chosen}={self.rng.choice(values)}"

    def _spoiled(self, good, path):
        """One part of a good body replaced, dropped or added so that it cannot be accepted."""
        place = good["items"][0] if "items" in good and self.rng.random() < 0.8 else good
        name = self.rng.choice(sorted(place))
        kind = self.rng.randrange(4)
        if kind == 0:
            place["unknown"] = self.rng.choice(GARBAGE)
        elif kind == 1:
            required = [key for key in place if key not in ("text", "k")]
            del place[self.rng.choice(required)]
        elif kind == 2 and path == "/v1/feedback":
            return [good, {**good, name: self.rng.choice(GARBAGE)}] * self.rng.randint(1, 3)
        else:
            value = self.rng.choice(GARBAGE)
            if name == "text" and isinstance(value, str):
                value = ["x"]
            if name == "id" and value in GARBAGE[-2:]:  # odd, but nothing is wrong with it
                value = 7
            if name == "k" and value == 2**64:
                value = 0
            place[name] = value
        return good


def attack(folder, n_requests, seed):
    service = Service(Settings(folder))
    add_items(service, vectors(6))
    before = service.log.last
    with served(service) as port:
        mutator = Mutator(seed, create_app(service).openapi())
        client = Client(port)
        refused = 0
        for number in range(n_requests):
            method, target, body, headers = mutator.request()
            try:
                status, _, content = client.raw(method, target, body, headers)
            except UnicodeEncodeError:  # http.client will not send it
                continue
            except ValueError:
                continue
            assert status < 500, (number, method, target, body, content)
            assert status < 300 or "error" in json.loads(content), (method, target, content)
            if method in ("PUT", "DELETE") or (method == "POST" and target != "/v1/search"):
                assert status >= 400, (number, method, target, body, status)
            refused += status >= 400
        assert service.log.last == before
        assert service.writer.last == before
        assert client("GET", "/readyz")[0] == 200
        client.close()
    assert refused > n_requests / 2


def test_malformed_requests_change_nothing(tmp_path):
    attack(tmp_path, 600, seed=0)


@pytest.mark.slow
def test_ten_thousand_malformed_requests_change_nothing(tmp_path):
    attack(tmp_path, 10_000, seed=1)


def test_the_good_bodies_are_good(tmp_path):
    """Otherwise the attack would be refused for the wrong reason."""
    service = Service(Settings(tmp_path))
    add_items(service, vectors(6))
    with served(service) as port:
        client = Client(port)
        paths = create_app(service).openapi()["paths"]
        takes_body = {
            path
            for path, operations in paths.items()
            for o in operations.values()
            if "requestBody" in o
        }
        assert takes_body == set(GOOD_BODIES)
        question = client("GET", "/v1/query")[1]["question"]
        for path, body in GOOD_BODIES.items():
            if path == "/v1/answer":
                body = {**body, "question": question}
            if path == "/v1/retract":
                body = {
                    "position": client("POST", "/v1/feedback", GOOD_BODIES["/v1/feedback"])[1][
                        "positions"
                    ][0]
                }
            method = "PUT" if "{id}" in path else "POST"
            status, answer = client(method, path.replace("{id}", "i0"), body)
            assert status < 300, (path, answer)
        client.close()
