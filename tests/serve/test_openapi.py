"""The service does what its OpenAPI description says: schemathesis makes requests from it and compares."""

import re
from collections import Counter

import pytest
from live import add_items, judge, running, vectors

from simstream.serve.access import KeyRing
from simstream.serve.app import create_app

#: Why a request may be refused with 422 although it is as described: a schema cannot say it.
REASONS = re.compile(
    "|".join(
        [
            "vector: expected .* numbers, got",  # the items have another length
            "vector: expected dense",  # or are of the other kind
            "task: this service learns one similarity",
            "k: expected at most 1000",  # a limit of this service
            "expected as many values as indices",
            "indices: expected ascending",
            "image: not base64",
            "items: expected every id at most once",
            "expected only items from shown",
            "expected at most one click or thumb",
            "randomised: expected less than",
            "feedback: expected two different items",
            "feedback: .* is compared with itself",
            "key: expected it in the header or with each judgement",
        ]
    )
)


def made_requests(app, key=None, *, n_examples, phases, parameters=(), but=None):
    """Let schemathesis ask, with all its checks; return what it asked for and which status it got."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema

    async def local(scope, receive, send):
        """As if the request came from this machine; the test closes the service itself."""
        if scope["type"] != "http":
            raise NotImplementedError
        headers = [one for one in scope["headers"] if one[0] != b"host"]
        headers.append((b"host", b"localhost"))
        await app({**scope, "client": ("127.0.0.1", 1), "headers": headers}, receive, send)

    everything = ("examples", "coverage", "fuzzing", "stateful")
    accepted = {"expected-statuses": ["2xx", "401", "403", "404", "409", "422"]}
    config = SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "headers": {} if key is None else {"Authorization": f"Bearer {key}"},
            "parameters": dict(parameters),
            "phases": {name: {"enabled": name in phases} for name in everything},
            "checks": {"positive_data_acceptance": accepted},  # 422 for one of REASONS: see below
            "generation": {
                "deterministic": True,
                "database": "none",
                "max-examples": n_examples,
                "no-shrink": True,
            },
        }
    )
    schema = schemathesis.openapi.from_asgi("/openapi.json", local, config=config)
    schema = schema if but is None else schema.exclude(path=but)
    asked, wrong = Counter(), []
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if not isinstance(event, events.ScenarioFinished):
            continue
        for identity, node in event.recorder.cases.items():
            case, response = node.value, event.recorder.interactions[identity].response
            sample = f"{case.as_curl_command()}: {response.status_code} {response.content[:300]}"
            asked[case.operation.label, response.status_code] += 1
            for check in event.recorder.checks.get(identity, ()):
                if check.failure_info is not None:
                    wrong.append(f"{check.failure_info.failure}\n{sample}")
            is_good = case.meta is not None and case.meta.generation.mode.is_positive
            is_refused = is_good and response.status_code == 422
            if is_refused and not REASONS.search(response.json()["error"]):
                wrong.append(f"refused without a known reason\n{sample}")
    assert not wrong, f"{len(wrong)}, the first:\n\n" + "\n\n".join(wrong[:10])
    return asked


@pytest.fixture(params=[False, True], ids=["without keys", "with keys"])
def target(request, tmp_path):
    """A service whose items have the ids and the length that examples have, and a key to it."""
    with running(tmp_path) as service:
        add_items(service, vectors(5, d=1), ["shoe-12", "shoe-7", "shoe-3", "0", "1"])
        service.wait_for(judge(service, "shoe-12", "shoe-7", "shoe-3"))
        keys = KeyRing(tmp_path / "keys.json")
        key = keys.add("all", ["read", "write", "admin"]) if request.param else None
        yield create_app(service, keys), key


def check_as_described(target, n_examples, phases, but=None):
    asked = made_requests(*target, n_examples=n_examples, phases=("examples", *phases), but=but)
    described = {label for label, _ in asked}
    assert len(described) == 20 - (but is not None)
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
