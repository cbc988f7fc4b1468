"""Requests that schemathesis makes from the OpenAPI description of an application, and its checks."""

import re
from collections import Counter

import pytest

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
            "image: expected base64",
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
    refused = {
        "expected-statuses": ["4xx"]
    }  # 413 too: a list that is too long may be a body that is
    config = SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "headers": {} if key is None else {"Authorization": f"Bearer {key}"},
            "parameters": dict(parameters),
            "phases": {name: {"enabled": name in phases} for name in everything},
            "checks": {
                "positive_data_acceptance": accepted,  # 422 for one of REASONS: see below
                "negative_data_rejection": refused,
            },
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
