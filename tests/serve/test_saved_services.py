"""Folders of an earlier release: they open, and serve and go on with what they had learnt."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from live import Client, ServerProcess, running, served

from simstream.asking import Asking
from simstream.serve.log import Log
from simstream.serve.service import Service, Settings
from simstream.serve.snapshots import compare
from simstream.serve.state import Learning, State

MODELS = Path(__file__).parents[1] / "models"
KINDS = (
    "service-dense",
    "service-tasks",
    "service-sparse",
    "service-sors",
    "service-osllrgs",  # with the removed parameter gradient="printed"
)


@pytest.fixture(params=KINDS)
def saved(request, tmp_path):
    """A copy of a folder, and what its service answered when it was made."""
    folder = tmp_path / "data"
    shutil.copytree(MODELS / request.param, folder)
    expected = json.loads((folder / "expected.json").read_text())
    return folder, expected


def settings_of(folder):
    log = Log(folder / "log.sqlite")
    kept = log.setting("service")
    log.close()
    learning = Learning(**kept["learning"])
    return Settings(folder, learning, Asking(seed=0), n_features=kept["n_features"])


def close_to(expected):
    """JSON values with numbers to single precision: machines may round differently."""
    if isinstance(expected, dict):
        return {key: close_to(value) for key, value in expected.items()}
    if isinstance(expected, list):
        return [close_to(value) for value in expected]
    return pytest.approx(expected, rel=1e-4, abs=1e-5) if isinstance(expected, float) else expected


def test_it_answers_as_it_did(saved):
    folder, expected = saved
    service = Service(settings_of(folder))
    assert service.engine.snapshots.n_refused == 0
    with served(service) as port:
        client = Client(port)
        for body, answer in expected["searches"]:
            assert client("POST", "/v1/search", body) == (200, close_to(answer))
        status = client("GET", "/v1/status")[1]
        assert {name: status[name] for name in expected["status"]} == close_to(expected["status"])
        lines = client.raw("GET", "/v1/responses")[2].decode().splitlines()
        assert len(lines) == expected["responses"]
        assert json.loads(lines[-1]) == expected["last_response"]
        client.close()


def test_its_log_gives_the_model_that_was_saved(saved):
    folder, _ = saved
    settings = settings_of(folder)
    with running(folder, learning=settings.learning, n_features=settings.n_features) as service:
        last = service.writer.last
        state = State(settings.learning, service.engine.items, service.log).read_on(last)
        kept = service.engine.snapshots.load(service.engine.items, service.log, last).learner
        assert (state.tally.triplets, state.tally.answers) == (
            service.version.tally.triplets,
            service.version.tally.answers,
        )
        for task in (None, "ann", "bob") if service.has_tasks else (None,):
            one, other = (
                learner.get_bilinear_matrix(*([task] if service.has_tasks else []))
                for learner in (state.learner, kept)
            )
            one, other = (m.toarray() if sp.issparse(m) else m for m in (one, other))
            assert np.allclose(one, other, atol=1e-5)
            assert np.abs(one - np.eye(len(one))).max() > 0.1, "something was learnt"


def test_it_goes_on(saved):
    """A key that was used is known, what was learnt can be undone, and more can be learnt."""
    folder, expected = saved
    server = ServerProcess(folder)
    client = Client(server.port)
    first = json.loads(client.raw("GET", "/v1/responses")[2].splitlines()[0])
    names = {"anchor": "head_id", "positive": "winner_id", "negative": "loser_id"}
    body = {name: first[column] for name, column in names.items()} | {"key": "j0-0"}
    if "task" in first:
        body["task"] = first["task"]
    status, told = client("POST", "/v1/feedback", body)
    assert (status, told["repeated"], told["positions"]) == (200, True, [first["position"]])
    body |= {"positive": body["negative"], "negative": body["positive"]}
    assert client("POST", "/v1/feedback", body)[0] == 409
    del body["key"]
    assert client("POST", "/v1/feedback", body)[0] == 201
    assert client("POST", "/v1/retract", {"position": first["position"]})[0] == 201
    assert client("POST", "/v1/pin", {"position": None})[0] == 200
    position = client("GET", "/v1/status")[1]["position"]
    assert position == expected["status"]["position"] + 3
    client.close()
    server.terminate()
    report, _ = compare(folder, lambda kept: kept)
    assert report["position"] == position
    # Amid a block nothing can be saved, and the snapshots from before have what was undone.
    is_saved = settings_of(folder).learning.block == 1
    assert report["identical"] is (True if is_saved else None)


@pytest.mark.parametrize("kind", ["service-sors", "service-sors-blocks"])
def test_replay_finds_the_saved_model_in_the_log(kind, tmp_path):
    """Their numbers are sums of few powers of two: no machine rounds them."""
    folder = tmp_path / "data"
    shutil.copytree(MODELS / kind, folder)
    report, _ = compare(folder, lambda kept: kept)
    assert report["identical"]


def test_a_gradient_in_the_stored_settings_is_the_one_that_is_learnt_with():
    with_gradient = (Learning("osllrgs", {"gradient": name}) for name in ("exact", "printed"))
    exact, printed = (learning.new_learner() for learning in with_gradient)
    triplets = np.random.default_rng(0).normal(size=(9, 3, 4)).astype(np.float32)
    plain = Learning("osllrgs").new_learner()
    matrices = [one.partial_fit(triplets).get_bilinear_matrix() for one in (plain, exact, printed)]
    np.testing.assert_array_equal(matrices[0], matrices[1])
    assert not np.allclose(matrices[0], matrices[2])
    with pytest.raises(TypeError, match="gradient"):
        Learning("osllrgs", {"gradient": "none"}).new_learner()
