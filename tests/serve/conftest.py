"""A service over HTTP; a browser and the demo for the tests of the page."""

import pytest
from browser import chromium
from live import Client, ServerProcess, add_items, served, vectors

from postgres import PostgresServer
from simstream.serve.evidence import Publishing
from simstream.serve.service import Service, Settings


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture(scope="module")
def demo(tmp_path_factory, window):
    """The demo without the simulated user; half of its questions are random."""
    server = ServerProcess(
        tmp_path_factory.mktemp("data"), "--demo", "digits", "--random-share", "0.5"
    )
    yield server.port
    server.terminate()


@pytest.fixture(scope="module")
def safe_demo(tmp_path_factory, window):
    """The demo, serving only what can be trusted."""
    server = ServerProcess(tmp_path_factory.mktemp("data"), "--demo", "digits", "--promote", "safe")
    yield server.port
    server.terminate()


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server; skips where none is installed."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request):
    """Where a log is kept: None for the file in its folder, or a new place in PostgreSQL."""
    if request.param == "sqlite":
        return None
    return request.getfixturevalue("postgres").address()


@pytest.fixture
def call(tmp_path):
    """A client of a service with items i0 to i9."""
    service = Service(Settings(tmp_path, publishing=Publishing("always")))
    add_items(service, vectors(10))
    with served(service) as port:
        client = Client(port)
        client.service, client.port = service, port
        yield client
        client.close()


@pytest.fixture(autouse=True)
def _nothing_is_complained_about(request):
    """No script fails, and nothing is refused by the content security policy."""
    yield
    if "window" in request.fixturenames:
        lines = request.getfixturevalue("window").get_log("browser")
        # Chromium logs every refused request, and some tests expect refusals.
        bad = [
            line["message"] for line in lines if "Failed to load resource" not in line["message"]
        ]
        assert bad == []
