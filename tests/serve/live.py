"""What tests of the service share: a service in this process, a server in a thread or in a process."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from simstream import OASIS
from simstream.serve.evidence import Publishing
from simstream.serve.service import Service, Settings
from simstream.serve.writer import Judgement, Ledger, NewItem, Write

SOURCE = Path(__file__).parents[2] / "src"


@contextmanager
def running(folder, **options):
    """A service without HTTP; in a new folder it serves whatever was learnt unless `publishing` is given."""
    folder = Path(folder)
    if not {"log.sqlite", "log.address"} & set(os.listdir(folder) if folder.exists() else ()):
        options.setdefault("publishing", Publishing("always"))
    service = Service(Settings(folder, **options))
    try:
        yield service
    finally:
        service.close()


def vectors(n, d=6, seed=0):
    """Rows of length one in float32."""
    rows = np.random.default_rng(seed).normal(size=(n, d))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def add_items(service, rows, names=None):
    names = [f"i{n}" for n in range(len(rows))] if names is None else names
    items = [NewItem(name, row, {}) for name, row in zip(names, rows, strict=True)]
    return do(service, Ledger.add_items, items)


def do(service, change, *args):
    """Make a change and wait until readers can see it; return its receipt."""
    (receipt,) = service.submit([Write(change, args)]).result(30)
    assert service.wait_for(receipt, 60)
    return receipt


def judge(service, anchor, positive, negative, key=None):
    write = Write(Ledger.judge, (Judgement(anchor, [(positive, negative)]),), key)
    (receipt,) = service.submit([write]).result(30)
    return receipt


def learner_of(service):
    return service.engine._state.learner


def oasis_of(triplets):
    """What OASIS learns from triplets of vectors one at a time; None from nothing."""
    if not len(triplets):
        return None
    return OASIS(block_size=1, dtype="float32").fit(np.asarray(triplets, np.float32))


def assert_same_matrix(learner, expected):
    if expected is None:
        assert learner is None
        return
    assert learner is not None
    got, want = learner.get_bilinear_matrix(), expected.get_bilinear_matrix()
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    assert learner.n_rounds_ == expected.n_rounds_


def wait_until(is_so, seconds=60):
    """Wait for something that happens elsewhere."""
    end = time.perf_counter() + seconds
    while not is_so():
        assert time.perf_counter() < end, "it did not happen"
        time.sleep(0.01)


class Client:
    """Requests to a server on this machine."""

    def __init__(self, port, key=None, timeout=60):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def raw(self, method, path, body=None, headers=()):
        """Status, headers and body of an answer."""
        try:
            self._connection.request(method, path, body, {**self.headers, **dict(headers)})
            response = self._connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        except Exception:
            self._connection.close()
            raise

    def __call__(self, method, path, body=None, **headers):
        """Status and JSON values of an answer."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if body is not None:
            fields.setdefault("Content-Type", "application/json")
            data = json.dumps(body)
        status, _, content = self.raw(method, path, data, fields)
        return status, json.loads(content)

    def close(self):
        self._connection.close()

    __del__ = close


@contextmanager
def served(service, keys=None, **options):
    """A server in a thread; yields its port. The service is closed at the end."""
    from simstream.serve.app import configuration

    with running_server(configuration(service, keys, **options)) as port:
        yield port


@contextmanager
def running_server(config):
    """A server of uvicorn in a thread; yields its port."""
    import uvicorn

    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


class ServerProcess:
    """``simstream serve`` in a process of its own; without a folder, the arguments say what to serve."""

    def __init__(self, folder, *arguments, preexec_fn=None):
        command = [sys.executable, "-m", "simstream", "serve"]
        command += [] if folder is None else ["--data", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            preexec_fn=preexec_fn,
        )
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "ready at" in line:
                self.told = "".join(lines)
                self.port = int(line.split("://")[1].split()[0].rsplit(":", 1)[1])
                break
        else:
            raise AssertionError("the service did not start: " + "".join(lines))
        # Keep reading, or a full pipe would block the process.
        self.log = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self._reader.start()

    def kill(self):
        self.process.kill()
        self._end()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        self._end()

    def _end(self):
        self.process.wait(60)
        self._reader.join(60)
        self.process.stderr.close()
