"""A cluster of two machines, both on this one, as far as Ray knows: what is said when one of them is lost."""

import numpy as np
import pytest

from simstream import OASIS
from simstream.distributed import Cluster, ShardedLearner, WorkerLostError

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def machines(ray_turn, monkeypatch):
    """The cluster, and a function that adds a machine of one CPU to it."""
    from ray.cluster_utils import Cluster as Machines

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    found = Machines(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        yield found, lambda: found.add_node(**size)
    finally:
        found.shutdown()


def waits_for(event_file):
    """Local, since workers cannot import this module."""

    class Waiting:
        def until_there(self):
            import time
            from pathlib import Path

            while not Path(event_file).exists():
                time.sleep(0.05)
            return "there"

    return Waiting


@pytest.mark.slow
def test_a_lost_machine_is_an_error_that_says_what_to_do(machines, tmp_path):
    cluster, add = machines
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    triplets = np.stack([rng.integers(20 * k, 20 * k + 20, 300) for k in range(3)], axis=1)
    expected = OASIS(preprocessor=X).fit(triplets).get_bilinear_matrix()
    second = add()

    # Columns that are divided: another machine takes the place of the lost one, or the run waits in a folder.
    folder, options = tmp_path / "run", {"address": cluster.address, "restart_seconds": 20.0}
    learner = ShardedLearner(OASIS(), 2, preprocessor=X, folder=folder, **options)
    with pytest.raises(ValueError, match="folder: expected one that all machines"):
        ShardedLearner(OASIS(), 2, preprocessor=X, **options).prepare()
    learner.partial_fit(triplets[:200])
    cluster.remove_node(second, allow_graceful=False)
    second = add()
    learner.partial_fit(triplets[200:250])
    cluster.remove_node(second, allow_graceful=False)
    learner._run.workers._restart_seconds = 3.0
    with pytest.raises(
        WorkerLostError, match=r"worker \d of 2 .* within 3 s .*ShardedLearner.resume\("
    ):
        learner.partial_fit(triplets[250:])
    learner._run.workers.close()
    learner._run.folder.unlock()
    with ShardedLearner.resume(folder, 1, **options) as found:
        np.testing.assert_allclose(found.learner_.get_bilinear_matrix(), expected, atol=1e-12)

    # Calls that are repeated: as long as there are fewer CPUs than workers, they would wait for ever.
    second = add()
    with Cluster(2, address=cluster.address, patience=2.0) as workers:
        Waiting = waits_for(str(tmp_path / "event"))
        calls = [workers.start(Waiting).until_there.remote() for _ in range(2)]
        cluster.remove_node(second, allow_graceful=False)
        with pytest.raises(
            WorkerLostError, match=r"machine .* was lost \(expected 2 CPUs .*, got 1\)"
        ):
            workers.get(calls)
        add()
        (tmp_path / "event").touch()
        assert workers.get(calls) == ["there", "there"]
