"""A cluster of Ray on this machine, and mixing in its processes: the same result, also after a kill."""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from commands import succeed
from simstream import SORS, AdaSORS, TripletSampler, load
from simstream.distributed import Cluster, MixedLearner, WorkerLostError
from simstream.distributed.cluster import numba_cache_dir

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

STORE_BYTES = 100 * 2**20


@pytest.fixture(scope="module")
def cluster(ray_turn):
    with Cluster(2, address="local", object_store_bytes=STORE_BYTES, patience=60.0) as started:
        yield started


def learner(n_features=2000):
    X = sp.random(300, n_features, density=0.02, format="csr", random_state=0, dtype=np.float32)
    return AdaSORS(lam=1e-4, eta=0.5, preprocessor=X)


def stream(n):
    return TripletSampler(np.arange(300) % 4, 0).draw(n)


def states(mixed):
    return mixed.learner_._get_state()[1]


def assert_same(mixed, other):
    assert states(mixed).keys() == states(other).keys()
    for name, array in states(other).items():
        np.testing.assert_array_equal(states(mixed)[name], array)


@pytest.fixture(scope="module")
def Probe():
    """An actor that looks at its process; local, since workers cannot import this module."""

    class Probe:
        def environment(self):
            return dict(os.environ)

        def sleeps(self, seconds):
            time.sleep(seconds)

        def fails(self):
            raise ValueError("probe: expected nothing, got this")

        def ends(self):
            os._exit(1)

    return Probe


def test_workers_have_their_environment_and_raise_their_own_errors(cluster, Probe):
    worker = cluster.start(Probe)
    found = cluster.get(worker.environment.remote())
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "NUMBA")} == {"1"}
    with pytest.raises(ValueError, match=r"^probe: expected nothing, got this$"):
        cluster.get(worker.fails.remote())
    cluster.stop([worker])


def test_an_error_of_a_worker_does_not_wait_for_the_others(cluster, Probe):
    slow, failing = workers = [cluster.start(Probe) for _ in range(2)]
    cluster.get([worker.sleeps.remote(0) for worker in workers])
    begun = time.monotonic()
    with pytest.raises(ValueError, match="probe: expected nothing"):
        cluster.get([slow.sleeps.remote(30), failing.fails.remote()])
    assert time.monotonic() - begun < 15
    cluster.stop(workers)


def test_a_worker_that_is_lost_for_good_is_an_error_that_says_what_to_do(cluster, Probe):
    worker = cluster.start(Probe, max_restarts=0, max_task_retries=0)
    with pytest.raises(WorkerLostError, match="see that the machines of the cluster are up"):
        cluster.get(worker.ends.remote())


def test_more_workers_than_processors_is_an_error_and_not_a_hang(cluster, Probe):
    triplets = stream(60)
    with pytest.raises(
        RuntimeError, match="expected 3 CPUs for 3 workers of 1, got 2; ask for fewer"
    ):
        MixedLearner(learner(), n_shards=3, n_workers=3).fit(triplets)
    busy = cluster.start(Probe)
    cluster.get(busy.environment.remote())
    with (
        pytest.raises(RuntimeError, match=r"got 1 free of 2; ask for fewer .*wait for the others"),
        Cluster(2, patience=0.5),
    ):
        pass
    cluster.stop([busy])


def test_processes_of_ray_give_what_this_one_gives(cluster):
    options = {"n_shards": 3, "n_rounds": 2, "step": "sqrt", "weights": "updates"}
    here = MixedLearner(learner(), **options).fit(stream(700))
    there = MixedLearner(learner(), n_workers=2, **options).fit(stream(700))
    assert_same(there, here)
    rest = stream(50)
    np.testing.assert_array_equal(
        there.learner_.partial_fit(rest).get_bilinear_matrix().toarray(),
        here.learner_.partial_fit(rest).get_bilinear_matrix().toarray(),
    )


def test_the_command_with_one_worker_and_dense_items(cluster, tmp_path):
    X = learner(30).preprocessor.toarray()
    np.save(tmp_path / "items.npy", X)
    np.savetxt(tmp_path / "labels.txt", np.arange(300) % 4, "%d")
    output = tmp_path / "model.safetensors"
    given = ("--labels", tmp_path / "labels.txt", "-a", "sors", "-n", 200, "-o", output)
    succeed("train", tmp_path / "items.npy", *given, "--mix", 1, "--workers", 1)
    triplets = TripletSampler((np.arange(300) % 4).astype(str), 0).draw(200)
    np.testing.assert_array_equal(
        load(output).get_bilinear_matrix(), SORS(preprocessor=X).fit(triplets).get_bilinear_matrix()
    )


def kill_a_worker_that_learns(killed, until):
    """Kill -9 the first process of this session's Ray that is in the middle of learning a shard."""
    while not killed and not until.is_set():
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if b"ShardWorker.learn" not in (folder / "cmdline").read_bytes():
                    continue
                raylet = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                starter = Path(f"/proc/{raylet}/stat").read_text().rpartition(")")[2].split()[1]
                if int(starter) != os.getpid():
                    continue
                os.kill(int(folder.name), signal.SIGKILL)
            except (OSError, IndexError):
                continue
            killed.append(int(folder.name))
            return
        time.sleep(0.002)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_worker_killed_in_the_middle_of_a_round_changes_nothing(cluster):
    triplets = stream(20_000)
    options = {"n_shards": 2, "n_rounds": 2}
    here = MixedLearner(learner(), **options).fit(triplets)
    killed, done = [], threading.Event()
    hunter = threading.Thread(target=kill_a_worker_that_learns, args=(killed, done))
    hunter.start()
    try:
        there = MixedLearner(learner(), n_workers=2, **options).fit(triplets)
    finally:
        done.set()
        hunter.join()
    assert len(killed) == 1
    assert_same(there, here)


# -- without a cluster --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        (
            "127.0.0.1:9",
            ConnectionError,
            "address: expected a running Ray, got '127.0.0.1:9' .*refused",
        ),
        ("ray://127.0.0.1:9", ConnectionError, "start one with ray start --head"),
        ("somewhere", ValueError, "expected 'auto', 'local', 'host:port' or 'ray://host:port'"),
    ],
)
def test_addresses_where_there_is_no_ray(address, error, message, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(error, match=message):
        MixedLearner(learner(), n_shards=2, n_workers=1, address=address).fit(stream(20))


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'simstream\[distributed\]'"):
        MixedLearner(learner(), n_shards=2, n_workers=2).fit(stream(20))


def test_sizes_of_a_cluster():
    with pytest.raises(ValueError, match="n_workers: expected an integer >= 1, got 0"):
        Cluster(0)
    with pytest.raises(ValueError, match="object_store_bytes: expected an integer >= "):
        Cluster(1, object_store_bytes=1)
    with pytest.raises(ValueError, match=r"patience: expected .* got 0"):
        Cluster(1, patience=0)


def test_compiled_code_goes_where_it_may_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert numba_cache_dir(is_local=True) == str(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert numba_cache_dir(is_local=False).startswith(tempfile.gettempdir())
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert numba_cache_dir(is_local=True).startswith(tempfile.gettempdir())
