"""Columns divided over real actors of Ray on this machine: real kills, and a killed driver."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from commands import fail, succeed
from simstream import OASIS, load
from simstream.distributed import Cluster, ShardedLearner, WorkerLostError

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")

D, N = 96, 400
C = 2.0


def data():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(N, D)) / np.sqrt(D)).astype("float32")
    triplets = np.stack([rng.integers(0, n, 6000) for n in (200, 100, 100)], axis=1)
    return X, triplets + np.array([0, 200, 300])


X, TRIPLETS = data()


@pytest.fixture(scope="module")
def cluster(ray_turn):
    with Cluster(2, num_cpus=4, object_store_bytes=100 * 2**20) as started:
        yield started


@pytest.fixture
def items(tmp_path):
    np.save(tmp_path / "items.npy", X)
    return tmp_path / "items.npy"


@pytest.fixture(scope="module")
def undisturbed():
    """The bits of a run of two shards that nothing happened to; Ray is not needed for them."""
    with ShardedLearner(OASIS(C=C), 2, preprocessor=X, backend="serial") as learner:
        return learner.fit(TRIPLETS).learner_.get_bilinear_matrix()


class Saboteur(threading.Thread):
    """Kills a process with -9 as soon as that many rounds were learnt."""

    def __init__(self, learner, pid, after):
        super().__init__(daemon=True)
        self.learner, self.pid, self.after = learner, pid, after
        self.killed_at = None

    def run(self):
        while not self.after <= (n_rounds := self.learner.n_rounds_) < len(TRIPLETS):
            time.sleep(0.0005)
        os.kill(self.pid, signal.SIGKILL)
        self.killed_at = n_rounds


def test_a_worker_killed_in_the_middle_of_a_run_changes_no_bit(cluster, undisturbed):
    alone = OASIS(C=C, preprocessor=X).fit(TRIPLETS)
    items, triplets = ray.put(X), ray.get(ray.put(TRIPLETS))  # nobody may write to them
    with ShardedLearner(OASIS(C=C), 2, preprocessor=items, checkpoint_seconds=0.2) as learner:
        learner.fit(triplets)
        matrix = learner.learner_.get_bilinear_matrix()
        np.testing.assert_array_equal(matrix, undisturbed)
        largest = np.abs(matrix).max()
        assert np.abs(matrix - alone.get_bilinear_matrix()).max() <= 1e-5 * largest
        assert learner.n_updates_ == alone.n_updates_

        before = learner.pids()
        assert len({*before, os.getpid()}) == 3
        saboteur = Saboteur(learner, before[1], after=2000)
        saboteur.start()
        for _ in range(200):
            learner.fit(TRIPLETS)
            if saboteur.killed_at is not None:
                break
        assert saboteur.killed_at is not None
        after = learner.pids()
        assert after[0] == before[0]
        assert after[1] != before[1]
        np.testing.assert_array_equal(learner.learner_.get_bilinear_matrix(), undisturbed)

        # A worker that dies while nothing is learnt is noticed when it is needed.
        os.kill(after[0], signal.SIGKILL)
        np.testing.assert_allclose(learner.transform_query(X[:3]), X[:3] @ undisturbed, rtol=1e-4)
        # Also when Ray has started it again by then.
        for pid in learner.pids():
            os.kill(pid, signal.SIGKILL)
            while True:
                try:
                    if pid not in ray.get([a.ping.remote() for a in learner._run.workers._actors]):
                        break
                except ray.exceptions.RayActorError:
                    time.sleep(0.05)
        assert learner.partial_fit(TRIPLETS[:10]).n_rounds_ == 6010
        # An error of a worker is raised as it was there.
        with pytest.raises(ValueError, match="mismatch"):
            learner._run.answers("transform", np.ones((2, 3), "float32"))


def test_an_error_of_one_worker_is_raised_here_and_not_taken_for_a_loss(cluster, undisturbed):
    def break_it(shard):
        def fail(*_):
            raise MemoryError("none is left")

        shard.advance = fail

    def mend_it(shard):
        del shard.advance

    with ShardedLearner(OASIS(C=C), 2, preprocessor=X) as learner:
        learner.prepare()
        pids = learner.pids()
        for number in (0, 1, 0, 1):
            actor = learner._run.workers._actors[number]
            ray.get(actor.__ray_call__.remote(break_it))
            with pytest.raises(MemoryError, match="none is left"):
                learner.fit(TRIPLETS)
            ray.get(actor.__ray_call__.remote(mend_it))
        learner.fit(TRIPLETS)
        np.testing.assert_array_equal(learner.learner_.get_bilinear_matrix(), undisturbed)
        assert learner.pids() == pids


def test_restarts_that_are_used_up_are_an_error_from_which_the_run_goes_on(
    cluster, items, undisturbed, tmp_path
):
    options = {"folder": tmp_path / "run", "checkpoint_seconds": 0.0, "max_restarts": 0}
    learner = ShardedLearner(OASIS(C=C), 2, preprocessor=items, **options)
    learner.prepare()
    Saboteur(learner, learner.pids()[0], after=1000).start()
    with pytest.raises(WorkerLostError, match=r"worker 0 of 2 was lost.*resume\('.*run'\)"):
        learner.fit(TRIPLETS)
    learner.close()
    assert ray.is_initialized()
    with ShardedLearner.resume(tmp_path / "run", backend="serial") as learner:
        assert learner.n_rounds_ == len(TRIPLETS)
        np.testing.assert_array_equal(learner.learner_.get_bilinear_matrix(), undisturbed)
    with pytest.raises(RuntimeError, match="n_workers: expected 90 CPUs"):
        ShardedLearner(OASIS(C=C), 90, preprocessor=X).prepare()


DRIVER = """
import sys
import numpy as np
from simstream import OASIS
from simstream.distributed import ShardedLearner

if __name__ == "__main__":
    folder, items, triplets = sys.argv[1:]
    options = {"checkpoint_seconds": 0.0, "object_store_bytes": 100 * 2**20}
    learner = ShardedLearner(OASIS(C=2.0), 2, preprocessor=items, folder=folder, **options)
    learner.prepare()
    print("learning", flush=True)
    learner.fit(triplets)
    print("done", flush=True)
"""


def test_a_killed_driver_is_continued_to_the_same_bits(ray_turn, items, undisturbed, tmp_path):
    np.save(tmp_path / "triplets.npy", TRIPLETS)
    (tmp_path / "driver.py").write_text(DRIVER)
    arguments = ["driver.py", "run", "items.npy", "triplets.npy"]
    shards = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout.readline() == "learning\n"
        while not list(shards.glob("shard-0003-*")) and driver.poll() is None:
            time.sleep(0.001)
        driver.kill()
        assert "done" not in driver.stdout.read()
    with ShardedLearner.resume(shards, backend="serial") as learner:
        assert learner.n_rounds_ == len(TRIPLETS)
        np.testing.assert_array_equal(learner.learner_.get_bilinear_matrix(), undisturbed)
        learner.save(tmp_path / "model.safetensors")
    model = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(model.get_bilinear_matrix(), undisturbed)


def test_train_with_workers_and_its_folder(cluster, items, tmp_path):
    (tmp_path / "labels.txt").write_text("\n".join(map(str, np.arange(N) % 5)))
    command = ["train", items, "--labels", tmp_path / "labels.txt", "-p", "C=2", "-q"]
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    succeed(*command, "-n", 3000, "-o", one)
    more = ["--workers", 2, "--checkpoint", tmp_path / "run"]
    succeed(*command, "-n", 2000, "-o", two, *more)
    assert load(two).n_rounds_ == 2000
    text = fail(2, *command, "-n", 3000, "-o", two, *more)
    assert "has a run already; continue it with --resume" in text
    del command[4:6]
    succeed(*command, "-n", 3000, "--resume", tmp_path / "run", "--workers", 1, "-o", two)
    expected, found = load(one), load(two)
    assert found.n_rounds_ == expected.n_rounds_ == 3000
    largest = np.abs(expected.get_bilinear_matrix()).max()
    difference = found.get_bilinear_matrix() - expected.get_bilinear_matrix()
    assert np.abs(difference).max() <= 1e-5 * largest
