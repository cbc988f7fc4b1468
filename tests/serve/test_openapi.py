"""The service does what its OpenAPI description says: schemathesis makes requests from it and compares."""

import pytest
from described import made_requests
from live import add_items, judge, running, vectors

from simstream.serve.access import SCOPES, KeyRing
from simstream.serve.app import create_app


@pytest.fixture(params=[False, True], ids=["without keys", "with keys"])
def target(request, tmp_path):
    """A service whose items have the ids and the length that examples have, and a key to it."""
    with running(tmp_path) as service:
        add_items(service, vectors(5, d=1), ["shoe-12", "shoe-7", "shoe-3", "0", "1"])
        service.wait_for(judge(service, "shoe-12", "shoe-7", "shoe-3"))
        keys = KeyRing(tmp_path / "keys.json")
        key = keys.add("all", SCOPES) if request.param else None
        yield create_app(service, keys), key


def check_as_described(target, n_examples, phases, but=None):
    asked = made_requests(*target, n_examples=n_examples, phases=("examples", *phases), but=but)
    described = {label for label, _ in asked}
    assert len(described) == 21 - (but is not None)
    if "coverage" in phases:
        served = {label for label, status in asked if status < 300}
        # A picture and something to undo or to answer cannot be guessed; a model may be rolled back.
        hidden = {"GET /v1/items/{id}/image", "POST /v1/answer", "POST /v1/retract"}
        assert described - served <= hidden | {"GET /v1/model"}
    if target[1] is not None:
        assert sum(count for (_, status), count in asked.items() if status == 401) >= 15


def check_in_sequence(target, n_examples):
    """What was added is there, what was deleted is not: once readers can see it."""
    parameters = {"wait": True}  # without, an answer may come before readers can see the change
    asked = made_requests(
        *target, n_examples=n_examples, phases=("stateful",), parameters=parameters
    )
    assert asked["GET /v1/items/{id}", 200]
    assert asked["DELETE /v1/items/{id}", 200]


def test_the_service_is_as_it_is_described(target):
    """In short: every variant of a field with keys, random requests without.

    Half of all variants are of feedback, which has many fields: they are for the long test.
    """
    if target[1] is None:
        check_as_described(target, 8, ["fuzzing"])
    else:
        check_as_described(target, 8, ["coverage"], but="/v1/feedback")


def test_items_follow_their_links(target):
    check_in_sequence(target, 10)


@pytest.mark.slow
def test_the_service_is_as_it_is_described_in_thousands_of_requests(target):
    check_as_described(target, 300, ["coverage", "fuzzing"])


@pytest.mark.slow
def test_items_follow_their_links_for_long(target):
    check_in_sequence(target, 300)


def test_what_the_description_says_of_keys(tmp_path):
    with running(tmp_path) as service:
        keys = KeyRing(tmp_path / "keys.json")
        app = create_app(service, keys)
        assert app.openapi()["paths"]["/v1/pin"]["post"]["security"] == [{"key": ["admin"]}, {}]
        keys.add("all", ["read"])
        paths = app.openapi()["paths"]
        assert paths["/v1/pin"]["post"]["security"] == [{"key": ["admin"]}]
        assert paths["/v1/search"]["post"]["security"] == [{"key": ["read"]}]
        assert "security" not in paths["/healthz"]["get"]
        assert app.openapi()["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
