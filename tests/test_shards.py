"""Learning with the columns of M divided, without Ray: the same result as in one process, and folders."""

import copy
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import simstream
from commands import fail, run, succeed
from simstream import (
    AROMA,
    OASIS,
    OGD,
    OMTRSL,
    SDCA,
    SORS,
    DivergedError,
    ListwiseSoftmax,
    PAMetric,
)
from simstream._kernels.columns import SharedBlas, divided, summed
from simstream.batch.sdca import _Ascent
from simstream.distributed import Cluster, ShardedLearner, WorkerLostError
from simstream.distributed.exchange import RestartedError
from simstream.distributed.shard import Shard
from simstream.distributed.workers import Actor, RayWorkers, SerialWorkers

N, D = 120, 30
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


def items(seed=0, dtype="float64", d=D):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, d)) / np.sqrt(d)
    X[5], X[7] = 0, X[8]  # a tuple without a direction on either side
    return X.astype(dtype)


def tuples(n, size, seed=1):
    rng = np.random.default_rng(seed)
    found = np.argsort(rng.random((n, N)), axis=1)[:, :size]
    found[3, :3], found[4, 0] = [1, 7, 8], 5
    found[4, 1:] = np.arange(20, 20 + size - 1)
    return found


TRIPLETS = tuples(400, 3)
LISTS = tuples(150, 9)
LISTS[8, 7:] = LISTS[9, 2] = -1
PAIRS = TRIPLETS[5:, :2], np.where(np.arange(395) % 3, 1, -1)

CASES = {
    "oasis": (lambda: OASIS(C=2.0, block_size=48), (TRIPLETS,), {}),
    "average": (lambda: OASIS(C=2.0, average_from=50, block_size=48), (TRIPLETS,), {}),
    "pa2": (lambda: OASIS(C=2.0, variant="PA-II", init="zeros", block_size=48), (TRIPLETS,), {}),
    "geometry": (
        lambda: OASIS(C=2.0, centre="auto", item_term=True, init_scale="auto", block_size=48),
        (TRIPLETS,),
        {},
    ),
    "matrix": (lambda: OASIS(C=2.0, init=items(9)[:D], block_size=48), (TRIPLETS,), {}),
    "ogd": (lambda: OGD(eta=0.3, block_size=48), (TRIPLETS,), {}),
    "sors": (lambda: SORS(eta=0.3, lam=0, block_size=48), (TRIPLETS,), {}),
    "pairs": (lambda: PAMetric(C=0.5, block_size=48), PAIRS, {}),
    "pairs of triplets": (lambda: PAMetric(variant="PALS", block_size=48), (TRIPLETS[5:],), {}),
    "lists": (lambda: ListwiseSoftmax(n_relevant=2, average_from=30), (LISTS,), {}),
    "lists, geometry": (
        lambda: ListwiseSoftmax(eta=1.0, n_relevant=2, centre="auto", item_term=0.5),
        (LISTS,),
        {},
    ),
    "tasks": (
        lambda: OMTRSL(C=2.0, block_size=48),
        (TRIPLETS, np.where(np.arange(400) % 4, 1, -1)),
        {"tasks": np.arange(400) % 7},
    ),
    "two tasks": (
        lambda: OMTRSL(C=2.0, init="zeros", n_tasks=2, block_size=48),
        (TRIPLETS,),
        {"tasks": np.arange(400) % 2},
    ),
}


def state(learner):
    header, arrays = learner._get_state()
    return header, arrays


def assert_same(found, expected, tolerance):
    """The same counters, and all arrays equal up to the tolerance, relative to the largest number of each."""
    (found_header, found), (header, expected) = state(found), state(expected)
    assert json.dumps(found_header) == json.dumps(header)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == array.dtype, name
        scale = np.abs(array).max(initial=0) or 1.0
        assert np.abs(found[name] - array).max(initial=0) <= tolerance * scale, name


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_shards_learns_what_one_process_learns(name, dtype):
    make, given_tuples, more = CASES[name]
    X = items(dtype=dtype)
    expected = make().set_params(preprocessor=X).fit(*given_tuples, **more)
    assert expected.n_updates_ > 20
    assert expected.n_skipped_ > 0 or "pairs" in name or name == "lists, geometry"
    for n_workers in (1, 2, 3, 5):
        with ShardedLearner(make(), n_workers, preprocessor=X, backend="serial") as divided_one:
            found = divided_one.fit(*given_tuples, **more).learner_
            assert divided_one.n_updates_ == expected.n_updates_
            assert_same(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("output", ["average", "last", "random"])
def test_sdca_has_the_same_dual_variables_and_gap(output, dtype):
    given_params = {
        "lam": 0.01,
        "n_epochs": 3,
        "output": output,
        "random_state": 3,
        "block_size": 32,
    }
    X = items(dtype=dtype)
    expected = SDCA(preprocessor=X, **given_params).fit(TRIPLETS)
    for n_workers in (1, 2, 3, 5):
        learner = SDCA(**given_params)
        with ShardedLearner(learner, n_workers, preprocessor=X, backend="serial") as divided_one:
            found = divided_one.fit(TRIPLETS).learner_
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(found.alpha_, expected.alpha_, atol=10 * tolerance)
        np.testing.assert_allclose(found.gap_, expected.gap_, rtol=10 * tolerance)
        largest = np.abs(expected.get_bilinear_matrix()).max()
        difference = found.get_bilinear_matrix() - expected.get_bilinear_matrix()
        assert np.abs(difference).max() <= tolerance * largest


@settings(max_examples=30)
@given(
    n_workers=st.integers(1, 8),
    block_size=st.integers(1, 70),
    cuts=st.lists(st.integers(0, 200), max_size=3),
    shape=st.tuples(st.integers(1, 9), st.integers(8, 12)),
    seed=st.integers(0, 3),
)
def test_two_spaces_any_block_and_any_cut_into_calls(n_workers, block_size, cuts, shape, seed):
    rng = np.random.default_rng(seed)
    queries, others = rng.normal(size=(50, shape[0])), rng.normal(size=(60, shape[1]))
    triplets = np.stack([rng.integers(0, n, 200) for n in (50, 30, 30)], axis=1)
    triplets[:, 2] += 30
    given_params = {"C": 0.7, "init": "zeros", "block_size": block_size}
    expected = OASIS(preprocessor=(queries, others), **given_params).fit(triplets)
    learner = OASIS(preprocessor=(queries, others), **given_params)
    with ShardedLearner(learner, n_workers, backend="serial") as found:
        for part in np.split(triplets, sorted(cuts)):
            if len(part):
                found.partial_fit(part)
        assert_same(found.learner_, expected, 1e-11)


def test_parts_are_summed_in_order_and_columns_cover_everything():
    parts = [(np.array([1e16, 1.0]), (np.ones(2),)), (np.array([1.0, 1.0]), (np.ones(2),))]
    parts.append((np.array([-1e16, 1.0]), (np.ones(2),)))
    sums, (ones,) = summed(parts)
    assert sums.tolist() == [(1e16 + 1.0) - 1e16, 3.0]
    assert ones.tolist() == [3.0, 3.0]
    assert parts[0][0].tolist() == [1e16, 1.0]
    for width in (1, 7, 64):
        for n in range(1, width + 1):
            cuts = divided(width, n)
            assert [c for some in cuts for c in range(width)[some]] == list(range(width))
            assert max(s.stop - s.start for s in cuts) - min(s.stop - s.start for s in cuts) <= 1


# -- reading and saving -----------------------------------------------------------------------------


def test_reading_is_that_of_the_ordinary_learner(tmp_path):
    X = items()
    for params in (
        {},
        {"average_from": 50},
        {"centre": "auto", "item_term": True},
        {"symmetric": True},
        {"normalise": True},
    ):
        alone = OASIS(C=2.0, preprocessor=X, **params).fit(TRIPLETS)
        with ShardedLearner(OASIS(C=2.0, **params), 3, preprocessor=X, backend="serial") as found:
            found.fit(TRIPLETS)
            np.testing.assert_allclose(
                found.transform_query(X[:9]), alone.transform_query(X[:9]), rtol=1e-10, atol=1e-12
            )
            wanted = alone.search(X[:9], X, 4)
            for result in (found.search(X[:9], k=4), found.search(X[:9], X, 4)):
                np.testing.assert_array_equal(result.indices, wanted.indices)
                np.testing.assert_allclose(result.scores, wanted.scores, rtol=1e-9, atol=1e-12)
            assert found.sparsity_ == pytest.approx(alone.sparsity_)
            assert found.average_loss_ == pytest.approx(alone.average_loss_)
            with pytest.raises(ValueError, match="queries: expected 30 features, got 2"):
                found.transform_query(X[:9, :2])


def test_a_saved_file_is_that_of_one_process_and_is_continued_by_either(tmp_path):
    X = items()
    first, second = TRIPLETS[:192], TRIPLETS[192:]
    alone = OASIS(C=2.0, block_size=48, preprocessor=X).fit(first)
    with ShardedLearner(OASIS(C=2.0, block_size=48), 2, preprocessor=X, backend="serial") as found:
        found.fit(first).save(tmp_path / "model.safetensors", extra={"note": 1})
    loaded = simstream.load(tmp_path / "model.safetensors", preprocessor=X)
    assert simstream.read_header(tmp_path / "model.safetensors")["extra"] == {"note": 1}
    assert_same(loaded, alone, 1e-12)
    alone.partial_fit(second)
    assert_same(loaded.partial_fit(second), alone, 1e-12)
    path = tmp_path / "model.safetensors"
    with ShardedLearner.load(path, 3, preprocessor=X, backend="serial") as found:
        assert_same(found.partial_fit(second).learner_, alone, 1e-12)
    other = simstream.load(path).set_params(centre=np.ones(D))
    with pytest.raises(ValueError, match="centre"):
        ShardedLearner(other, 2, preprocessor=X, backend="serial").prepare()


def test_tasks_go_on_with_their_names_and_coins(tmp_path):
    X, names = items(), np.array(["ann", "bob", "eve"])[np.arange(400) % 3]
    make = {"C": 2.0, "query": "active", "random_state": 0, "block_size": 48, "preprocessor": X}
    answers = np.where(np.arange(400) % 4, 1, -1)
    alone = OMTRSL(**make)
    parts = [slice(0, 192), slice(192, 400)]
    for part in parts:
        alone.partial_fit(TRIPLETS[part], tasks=names[part], oracle=answers[part])
    given_folder = {"folder": tmp_path / "run", "backend": "serial"}
    with ShardedLearner(OMTRSL(**make), 2, **given_folder) as found:
        found.partial_fit(TRIPLETS[parts[0]], tasks=names[parts[0]], oracle=answers[parts[0]])
    with ShardedLearner.resume(tmp_path / "run", 3, backend="serial") as found:
        found.partial_fit(TRIPLETS[parts[1]], tasks=names[parts[1]], oracle=answers[parts[1]])
        assert found.tasks_ == ["ann", "bob", "eve"]
        assert found.query_ratio_ == alone.query_ratio_ < 1
        assert_same(found.learner_, alone, 1e-12)


def test_shards_are_loaded_by_any_number_of_workers(tmp_path):
    X, path = items(dtype="float32"), tmp_path / "items.npy"
    np.save(path, X)
    alone = OASIS(C=2.0, preprocessor=X).fit(TRIPLETS)
    with ShardedLearner(OASIS(C=2.0), 3, preprocessor=path, backend="serial") as found:
        found.fit(TRIPLETS).save_shards(tmp_path / "shards")
        bits = found.learner_.get_bilinear_matrix()
        with pytest.raises(FileExistsError, match="shards"):
            found.save_shards(tmp_path / "shards")
    assert {p.name.split("-")[0] for p in (tmp_path / "shards").iterdir()} == {
        "learner.safetensors", "run.json", "shard",
    }  # fmt: skip
    for n_workers in (None, 1, 2, 4):
        with ShardedLearner.load(tmp_path / "shards", n_workers, backend="serial") as found:
            assert found.n_workers == (n_workers or 3)
            np.testing.assert_array_equal(found.learner_.get_bilinear_matrix(), bits)
            assert found.n_rounds_ == alone.n_rounds_


# -- interruptions ----------------------------------------------------------------------------------


class Interrupt(Exception):
    """Stands for the death of the process: nothing is cleaned up after it."""


def interrupted(monkeypatch, after, error):
    """Let the process die, or be interrupted, after that many blocks."""
    call, blocks = SerialWorkers.call, []

    def counted(self, method, *args):
        blocks.extend([method] * (method == "advance"))
        if len(blocks) == after and method == "advance":
            blocks.append("done")
            if error is not None:
                raise error
        return call(self, method, *args)

    monkeypatch.setattr(SerialWorkers, "call", counted)


def bits_of(learner):
    _, arrays = state(learner)
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("name", ["average", "pairs", "lists", "tasks"])
@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt])
def test_a_run_that_ended_in_the_middle_is_continued_to_the_same_bits(
    name, error, seconds, tmp_path, monkeypatch
):
    make, given_tuples, more = CASES[name]
    options = {"preprocessor": items(), "backend": "serial", "checkpoint_seconds": seconds}
    with ShardedLearner(make(), 3, **options) as whole:
        expected = bits_of(whole.fit(*given_tuples, **more).learner_)
    with monkeypatch.context() as patch:
        interrupted(patch, 4, error)
        found = ShardedLearner(make(), 3, folder=tmp_path / "run", **options)
        with pytest.raises(error):
            found.fit(*given_tuples, **more)
    found._run.folder.unlock()  # as the end of its process does
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    is_saved = seconds == 0 or error is KeyboardInterrupt
    assert record["block"] == (3 if is_saved else 0)
    del options["preprocessor"]
    with ShardedLearner.resume(tmp_path / "run", **options) as found:
        assert bits_of(found.learner_) == expected
    assert not list((tmp_path / "run").glob("tuples-*"))
    assert len(list((tmp_path / "run").glob("shard-*"))) == 3


@pytest.mark.filterwarnings("ignore:SDCA has not reached tol")
@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt])
@pytest.mark.parametrize("output", ["average", "last", "random"])
def test_sdca_goes_on_from_any_block_to_the_same_bits(output, error, tmp_path, monkeypatch):
    """From draws of either half of an epoch, from its certificate, and from that of what is kept."""
    params = {"lam": 0.01, "n_epochs": 2, "output": output, "tol": 1e-9, "block_size": 64}
    options = {"backend": "serial", "checkpoint_seconds": 0.0}
    advance, blocks = Shard.advance, []

    def counted(self, *parts):
        blocks.extend([1] * (self._number == 0))
        return advance(self, *parts)

    monkeypatch.setattr(Shard, "advance", counted)
    learner, X = SDCA(random_state=3, **params), items()
    with ShardedLearner(learner, 3, preprocessor=X, **options) as found:
        expected = found.fit(TRIPLETS).learner_
    n_blocks = len(blocks)
    assert n_blocks > 2 * len(TRIPLETS) / 64
    for after in range(2, n_blocks + 1):
        folder = tmp_path / str(after)
        with monkeypatch.context() as patch:
            interrupted(patch, after, error)
            found = ShardedLearner(learner, 3, preprocessor=X, folder=folder, **options)
            with pytest.raises(error):
                found.fit(TRIPLETS)
        found._run.folder.unlock()  # as the end of its process does
        assert json.loads((folder / "run.json").read_text())["block"] == after - 1
        blocks.clear()
        with ShardedLearner.resume(folder, **options) as found:
            assert bits_of(found.learner_) == bits_of(expected)
        assert len(blocks) == n_blocks - after + 1  # no block is learnt again
    with ShardedLearner.resume(tmp_path / "4", **options) as found:  # it has finished before
        record = (tmp_path / "4" / "run.json").read_text()
        found.checkpoint()
        assert (tmp_path / "4" / "run.json").read_text() == record
        assert bits_of(found.learner_) == bits_of(expected)
    with ShardedLearner.resume(tmp_path / "5", 2, **options) as found:  # two have what three had
        np.testing.assert_allclose(found.learner_.alpha_, expected.alpha_, atol=1e-11)
        matrix = found.learner_.get_bilinear_matrix()
        np.testing.assert_allclose(matrix, expected.get_bilinear_matrix(), atol=1e-12)


def test_a_solver_that_was_restored_has_the_state_that_it_was_given():
    learner = SDCA(random_state=0, n_epochs=2, block_size=64, preprocessor=items())
    read = learner._read_tuples(TRIPLETS, 3, None)
    one, other = (
        learner._solver(read, SharedBlas(np.dtype("float64"), slice(0, D), False)) for _ in range(2)
    )
    run = one.run()
    parts = next(run)
    while one.state()[0]["epoch"] < 2:
        parts = run.send(summed([parts]))
    other.restore(*one.state())
    assert other.state()[0] == one.state()[0]


@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("name", ["average", "lists", "tasks", "sdca"])
def test_workers_that_are_lost_now_and_then_change_no_bit(name, seconds, monkeypatch):
    """As actors of Ray are: the call raises an error when they are back, and have forgotten everything."""
    make, given_tuples, more = CASES.get(
        name, (lambda: SDCA(lam=0.01, n_epochs=2, random_state=0, block_size=16), (TRIPLETS,), {})
    )
    options = {"preprocessor": items(), "backend": "serial", "checkpoint_seconds": seconds}
    with ShardedLearner(make(), 3, **options) as whole:
        expected = bits_of(whole.fit(*given_tuples, **more).learner_)
    call, losses = SerialWorkers.call, iter([9, 12, 14, 23, 31])
    made = [0, next(losses)]

    def lossy(self, method, *args):
        made[0] += 1
        if made[0] == made[1]:
            made[1] = next(losses, None)
            self.start(folder[0])
            raise RestartedError
        return call(self, method, *args)

    with ShardedLearner(make(), 3, **options) as found:
        found.prepare()
        folder = [str(found.folder)]
        monkeypatch.setattr(SerialWorkers, "call", lossy)
        assert bits_of(found.fit(*given_tuples, **more).learner_) == expected
    assert made[1] is None


@pytest.mark.parametrize("name", ["average", "sdca"])
def test_a_worker_that_came_back_while_idle_is_noticed_when_it_is_needed(name):
    make = CASES["average"][0] if name == "average" else lambda: SDCA(random_state=0)
    with ShardedLearner(make(), 3, preprocessor=items(), backend="serial") as found:
        expected = bits_of(found.fit(TRIPLETS).learner_)
        for method in ("state", "n_zeros", "save", "solution", "progress", "begin", "advance"):
            found._run.workers.start(str(found.folder))  # as Ray does: nothing is restored
            with pytest.raises(RestartedError, match="worker 0 was started again"):
                found._run.workers.call(method)
        found._gathered = None
        assert bits_of(found.learner_) == expected


def test_an_actor_that_came_back_meets_nobody(tmp_path):
    actor = Actor(str(tmp_path), 1, 2)
    for arguments in (("listen", "127.0.0.1"), ("meet", [], b"")):
        with pytest.raises(RestartedError, match="worker 1 was started again"):
            getattr(actor, arguments[0])(*arguments[1:])


def test_an_error_of_a_property_is_seen_as_it_is(monkeypatch):
    with ShardedLearner(OASIS(), 2, preprocessor=items(), backend="serial") as found:
        found.fit(TRIPLETS)
        with pytest.raises(AttributeError, match="'OASIS' object has no attribute 'tasks_'"):
            _ = found.tasks_
        with monkeypatch.context() as patch:
            patch.setattr(SerialWorkers, "call", lambda self, method: None.dtype)
            with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
                _ = found.learner_


def test_a_learner_goes_on_after_an_interruption(monkeypatch):
    X = items()
    alone = OASIS(C=2.0, block_size=48, preprocessor=X)
    alone.partial_fit(TRIPLETS[: 3 * 48]).partial_fit(TRIPLETS[200:])
    with ShardedLearner(OASIS(C=2.0, block_size=48), 2, preprocessor=X, backend="serial") as found:
        with monkeypatch.context() as patch:
            interrupted(patch, 4, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                found.partial_fit(TRIPLETS)
        assert found.n_rounds_ == 3 * 48
        found.partial_fit(TRIPLETS[200:])
        assert_same(found.learner_, alone, 1e-12)


DIVERGING = items()
DIVERGING[40] = 1e200
TAME = TRIPLETS[5:] % 39
TAME = TAME[TAME[:, 1] != TAME[:, 2]]


def stopped(found, how, monkeypatch):
    """A learner that was interrupted, or diverged, in the middle of a call of 60 tuples and more."""
    if how == "diverged":
        with pytest.raises(DivergedError):
            found.partial_fit(np.concatenate([TAME[:60], [[40, 1, 2]], TAME[:50]]))
    else:
        with monkeypatch.context() as patch:
            interrupted(patch, 3, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                found.partial_fit(TAME[:90])
    return found


@pytest.mark.parametrize("how", ["interrupted", "diverged"])
@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("has_folder", [False, True])
@pytest.mark.parametrize("then", ["learn", "read", "save"])
def test_a_loss_after_learning_stopped_neither_skips_nor_learns_tuples(
    then, has_folder, seconds, how, tmp_path, monkeypatch
):
    options = {"preprocessor": DIVERGING, "backend": "serial", "checkpoint_seconds": seconds}
    learner, more = OASIS(C=2.0, block_size=16), TAME[100:170]
    with ShardedLearner(learner, 2, **options) as found:
        stopped(found.partial_fit(more[:20]), how, monkeypatch)
        n_rounds = found.n_rounds_
        assert 20 < n_rounds < 90
        expected = bits_of(found.learner_), bits_of(found.partial_fit(more).learner_)
    if has_folder:
        options["folder"] = tmp_path / "run"
    with ShardedLearner(learner, 2, **options) as found:
        stopped(found.partial_fit(more[:20]), how, monkeypatch)
        found._run.workers.start(str(found.folder))  # all were lost, and are back
        if then == "read":
            assert bits_of(found.learner_) == expected[0]
        elif then == "save":
            found.checkpoint()
            assert bits_of(found.learner_) == expected[0]
        assert found.n_rounds_ == n_rounds
        assert bits_of(found.partial_fit(more).learner_) == expected[1]
        assert found.n_rounds_ == n_rounds + 70


@pytest.mark.parametrize("how", ["interrupted", "diverged"])
@pytest.mark.parametrize("has_folder", [False, True])
def test_shards_saved_after_learning_stopped_are_loaded(how, has_folder, tmp_path, monkeypatch):
    options = {"preprocessor": DIVERGING, "folder": tmp_path / "run" if has_folder else None}
    with ShardedLearner(OASIS(C=2.0, block_size=16), 2, backend="serial", **options) as found:
        stopped(found, how, monkeypatch).save_shards(tmp_path / "shards")
        expected, n_rounds = bits_of(found.learner_), found.n_rounds_
    with ShardedLearner.load(tmp_path / "shards", backend="serial") as found:
        assert found.n_rounds_ == n_rounds
        assert bits_of(found.learner_) == expected
    if has_folder and how == "diverged":  # which is not tried again
        with ShardedLearner.resume(tmp_path / "run", backend="serial") as found:
            assert bits_of(found.learner_) == expected


def test_divergence_is_reported_as_in_one_process():
    X = items()
    X[40] = 1e200
    bad = np.concatenate([TRIPLETS[:60] % 39, [[40, 1, 2]]])
    bad = bad[(bad[:, 1] != bad[:, 2])]
    alone = OASIS(C=2.0, block_size=16, preprocessor=X)
    with pytest.raises(DivergedError) as expected:
        alone.fit(bad)
    with ShardedLearner(OASIS(C=2.0, block_size=16), 2, preprocessor=X, backend="serial") as found:
        with pytest.raises(DivergedError) as raised:
            found.fit(bad)
        assert str(raised.value) == str(expected.value)
        assert found.n_rounds_ == alone.n_rounds_ > 0
        found.partial_fit(TRIPLETS[:20] % 39 + [[0, 39 + 3, 39 + 5]])
        assert found.n_rounds_ == alone.n_rounds_ + 20


# -- bad input --------------------------------------------------------------------------------------


def test_a_model_that_began_from_lda_goes_on():
    X = items()
    begun = OASIS(init="lda", preprocessor=X).fit(TRIPLETS)
    expected = copy.deepcopy(begun).partial_fit(TRIPLETS).get_bilinear_matrix()
    with pytest.raises(ValueError, match=r"goes on here after set_params\(init='zeros'\)"):
        ShardedLearner(begun, backend="serial").partial_fit(TRIPLETS)
    divided = ShardedLearner(begun.set_params(init="zeros"), backend="serial")
    found = divided.partial_fit(TRIPLETS).learner_.get_bilinear_matrix()
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_errors_say_what_was_expected(tmp_path):
    X = items()

    def divide(learner, **options):
        return ShardedLearner(learner, **{"preprocessor": X, "backend": "serial"} | options)

    for learner in (SORS(lam=1e-3), AROMA(), AROMA(covariance="factored"), simstream.AdaSORS()):
        with pytest.raises(TypeError, match=r"cannot be divided.*mix"):
            divide(learner).fit(TRIPLETS)
    with pytest.raises(ValueError, match="projection: expected 'end'"):
        divide(PAMetric(projection="every-step")).fit(*PAIRS)
    with pytest.raises(ValueError, match=r"init: expected .* to divide the columns, got 'lda'"):
        divide(OASIS(init="lda")).fit(TRIPLETS)
    with pytest.raises(ValueError, match="expected pairs or triplets to divide the columns"):
        divide(OASIS()).fit(TRIPLETS[:, [0, 1, 0, 2]])
    with pytest.raises(TypeError, match="expected an online learner or SDCA, got ITML"):
        divide(simstream.ITML())
    with pytest.raises(TypeError, match="expected dense items, got sparse"):
        divide(OASIS(), preprocessor=sp.csr_matrix(X)).fit(TRIPLETS)
    with pytest.raises(ValueError, match=r"expected items .* got None"):
        divide(OASIS(), preprocessor=None).fit(TRIPLETS)
    with pytest.raises(FileNotFoundError, match="no such file"):
        divide(OASIS(), preprocessor=tmp_path / "items.npy").fit(TRIPLETS)
    with pytest.raises(ValueError, match="n_workers: expected at most one for each of 30 columns"):
        divide(OASIS(), n_workers=31).fit(TRIPLETS)
    with pytest.raises(ValueError, match="row numbers"):
        divide(OASIS()).fit(X[TRIPLETS])
    with pytest.raises(ValueError, match="must be a row number from 0 to 119"):
        divide(OASIS()).fit(TRIPLETS + 100)
    with pytest.raises(TypeError, match="partial_fit: expected fit for SDCA"):
        divide(SDCA()).partial_fit(TRIPLETS)
    with pytest.raises(ValueError, match="finite"):
        divide(OASIS(), preprocessor=np.full((N, 3), np.nan)).fit(TRIPLETS)
    with pytest.raises(ValueError, match="folder: expected one that all machines"):
        divide(OASIS(), address="ray://somewhere:10001").prepare()


def test_folders_are_not_mixed_up(tmp_path):
    X, path = items(), tmp_path / "items.npy"
    np.save(path, X)
    folder = tmp_path / "run"
    with pytest.raises(simstream.ModelFileError, match="expected the folder of a run"):
        ShardedLearner.resume(folder, backend="serial")
    given_options = {"preprocessor": path, "folder": folder, "backend": "serial"}
    with ShardedLearner(OASIS(C=2.0), 2, **given_options) as found:
        found.fit(TRIPLETS)
    with pytest.raises(FileExistsError, match=r"has a run already; continue it with"):
        ShardedLearner(OASIS(C=2.0), 2, **given_options).fit(TRIPLETS)
    np.save(path, X + 1)
    with pytest.raises(ValueError, match="expected the items that the run began with"):
        ShardedLearner.resume(folder, backend="serial")
    path.unlink()
    with pytest.raises(ValueError, match="got no file"):
        ShardedLearner.resume(folder, backend="serial")
    with ShardedLearner.resume(folder, preprocessor=X, backend="serial") as found:
        assert found.n_rounds_ == 400
    shard = next(folder.glob("shard-*-0.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(simstream.ModelFileError, match="shard"):
        ShardedLearner.resume(folder, backend="serial")
    (folder / "run.json").write_text("{")
    with pytest.raises(simstream.ModelFileError, match="damaged"):
        ShardedLearner.resume(folder, backend="serial")


def test_files_of_others_are_neither_replaced_nor_deleted(tmp_path):
    path = tmp_path / "items.npy"
    np.save(path, items())
    before = path.read_bytes()
    options = {"preprocessor": path, "backend": "serial"}
    with pytest.raises(FileExistsError, match=r"new or empty one, got .*, which has items\.npy"):
        ShardedLearner(OASIS(dtype="float32"), 2, folder=tmp_path, **options).fit(TRIPLETS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

    folder, other = tmp_path / "run", tmp_path / "other"
    with ShardedLearner(OASIS(), 2, folder=folder, checkpoint_seconds=0, **options) as found:
        found.prepare()
        mine = [folder / name for name in ("tuples-mine.csv", "shard-1-2.txt", "tuples-1.csv")]
        for file in mine:
            file.write_text("mine")
        found.fit(TRIPLETS)
        assert all(file.read_text() == "mine" for file in mine)
        other.mkdir()
        (other / "notes.txt").write_text("mine")
        with pytest.raises(FileExistsError, match=r"which has notes\.txt"):
            found.save_shards(other)
        assert len(list(other.iterdir())) == 1


def test_a_run_that_could_not_begin_leaves_its_folder_empty(tmp_path):
    options = {"preprocessor": items(), "folder": tmp_path / "run", "backend": "serial"}
    with pytest.raises(TypeError, match="cannot be divided"):
        ShardedLearner(AROMA(), 2, **options).fit(TRIPLETS)
    assert {file.name for file in (tmp_path / "run").iterdir()} <= {"run.lock"}
    with ShardedLearner(OASIS(), 2, **options) as found:
        assert found.fit(TRIPLETS).n_rounds_ == 400


DRIVER = """
import sys
import numpy as np
from simstream import OASIS
from simstream.distributed import ShardedLearner

options = {"preprocessor": np.eye(6), "folder": sys.argv[1], "backend": "serial"}
learner = ShardedLearner(OASIS(), 2, **options).fit(np.array([[0, 1, 2], [3, 4, 5]]))
learner.checkpoint()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_run_is_open_once_and_a_killed_process_keeps_nobody_out(tmp_path):
    folder = tmp_path / "run"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], **options)
    with driver:
        assert driver.stdout.readline() == "open\n"
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        with pytest.raises(BlockingIOError, match=r"got .*run, which is open in this or another"):
            ShardedLearner.resume(folder, preprocessor=np.eye(6), backend="serial")
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
        driver.kill()
    with ShardedLearner.resume(folder, backend="serial") as found:
        assert found.n_rounds_ == 2
        with pytest.raises(BlockingIOError, match="close it there first"):
            ShardedLearner.resume(folder, backend="serial")
    with pytest.raises(ValueError, match="n_workers"):
        ShardedLearner.resume(folder, 7, backend="serial")
    ShardedLearner.resume(folder, backend="serial").close()


def test_a_run_is_continued_with_its_own_items_alone(tmp_path):
    X = items(dtype="float32")
    folder, path = tmp_path / "run", tmp_path / "items.npy"
    np.save(path, X)
    with ShardedLearner(OASIS(), 2, preprocessor=path, folder=folder, backend="serial") as found:
        expected = bits_of(found.fit(TRIPLETS).learner_)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    other = X.copy()
    other[-1, -1] += 1
    for wrong in (X[:, :20], X[1:], other, np.ones((N, D + 5)), items(seed=3)):
        with pytest.raises(ValueError, match="preprocessor: expected the items that the run began"):
            ShardedLearner.resume(folder, preprocessor=wrong, backend="serial")
    with pytest.raises(ValueError, match=r"expected items alone, .* got a pair"):
        ShardedLearner.resume(folder, preprocessor=(X, X), backend="serial")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    # The same in another precision, and under another name, while a file of that name is there.
    mine = folder / "items.npy"
    mine.write_text("mine")
    path.unlink()
    with ShardedLearner.resume(folder, preprocessor=X.astype(float), backend="serial") as found:
        assert found.dtype_ == np.float32
        assert bits_of(found.learner_) == expected
    assert mine.read_text() == "mine"
    with ShardedLearner.resume(folder, backend="serial") as found:
        assert bits_of(found.learner_) == expected


def test_items_of_other_types_are_converted_once_and_read_only_ones_are_fine(tmp_path):
    X = items(dtype="float32")
    X.setflags(write=False)
    alone = OASIS(C=2.0, preprocessor=X).fit(TRIPLETS)
    simstream.data.write_items(tmp_path / "items.csv", X)
    np.save(tmp_path / "items.npy", np.asfortranarray(X.astype("float64")))
    for source in (X, tmp_path / "items.csv", str(tmp_path / "items.npy")):
        learner = OASIS(C=2.0, dtype="float32")
        with ShardedLearner(learner, 2, preprocessor=source, backend="serial") as found:
            frozen = TRIPLETS.copy()
            frozen.setflags(write=False)
            assert_same(found.fit(frozen).learner_.set_params(dtype=None), alone, 1e-5)
    np.save(tmp_path / "triplets.npy", TRIPLETS)
    with ShardedLearner(OASIS(C=2.0), 2, preprocessor=X, backend="serial") as found:
        assert_same(found.fit(tmp_path / "triplets.npy").learner_, alone, 1e-5)


def test_workers_that_round_differently_are_noticed(monkeypatch):
    from simstream._kernels.steps import UPDATES
    from simstream.distributed.shard import Shard

    progress = Shard.progress

    def other(self):
        found = progress(self)
        found.clock[UPDATES] += self._number * found.clock[0]
        return found

    monkeypatch.setattr(Shard, "progress", other)
    with ShardedLearner(OASIS(), 2, preprocessor=items(), backend="serial") as found:  # noqa: SIM117
        with pytest.raises(RuntimeError, match="worker 1 has taken other steps"):
            found.fit(TRIPLETS)


def test_train_refuses_what_cannot_be_divided(tmp_path):
    dense, labels, output = (tmp_path / name for name in ("x.npy", "y.txt", "m.safetensors"))
    np.save(dense, items())
    simstream.data.write_items(tmp_path / "x.svm", sp.csr_matrix(items()), np.arange(N) % 3)
    labels.write_text("\n".join(map(str, np.arange(N) % 3)))
    command = ["train", dense, "--labels", labels, "-o", output]
    two = ["--workers", 2]
    assert "cannot be divided" in fail(2, *command, *two, "-a", "sors", "-p", "lam=1e-4")
    sparse = run("train", tmp_path / "x.svm", "-o", output, *two)
    assert (sparse.exit_code, "starting" in sparse.stderr) == (2, False)
    assert sparse.stderr.endswith(
        "Error: --workers: expected dense items, got sparse ones, which are not learnt in blocks; "
        "use --mix N instead\n"
    )
    assert "whole matrix" in fail(2, *command, *two, "--negatives", "near")
    assert "is for online learners" in fail(2, *command, *two, "-a", "lmnn")
    assert "--address requires --workers" in fail(2, *command, "--address", "auto")
    assert "--checkpoint requires --workers" in fail(2, *command, "--checkpoint", tmp_path / "run")
    folder = tmp_path / "run"
    with ShardedLearner(OASIS(), 2, preprocessor=dense, folder=folder, backend="serial") as found:
        found.fit(TRIPLETS)
    resumed = ["train", dense, "--labels", labels, "--resume", folder]
    assert "expected --output" in fail(2, *resumed)
    assert "--param is that of the run" in fail(2, *resumed, "-o", output, "-p", "C=2")
    other = tmp_path / "other.npy"
    np.save(other, items(seed=5))
    resumed += ["-o", output]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    text = fail(2, "train", other, *resumed[2:])
    assert "expected the items that the run began with (120 rows of 30 features in float64" in text
    np.save(tmp_path / "triplets.npy", TRIPLETS)
    paired = ["--queries", other, "--triplets", tmp_path / "triplets.npy", *resumed[4:]]
    assert "expected items alone" in fail(2, "train", dense, *paired)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert not output.exists()


@pytest.fixture
def workers_of_ray_are_serial(monkeypatch):
    """Let commands use shards of this process where they would start Ray."""
    monkeypatch.setattr(
        "simstream.distributed.sharded.RayWorkers",
        lambda cluster, *_, **__: SerialWorkers(cluster.n_workers),
    )


@pytest.fixture
def command(tmp_path):
    """A command that trains from a file of 120 items and their labels."""
    np.save(tmp_path / "x.npy", items())
    (tmp_path / "y.txt").write_text("\n".join(map(str, np.arange(N) % 3)))
    output = ["--labels", tmp_path / "y.txt", "-o", tmp_path / "m.safetensors"]
    return ["train", tmp_path / "x.npy", *output]


@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("queries", [False, True])
def test_train_goes_on_with_the_same_items_in_any_file(
    unit_norm, queries, command, tmp_path, workers_of_ray_are_serial
):
    if queries:
        np.save(tmp_path / "q.npy", items(seed=4))
        np.save(tmp_path / "triplets.npy", TRIPLETS)
        command = ["train", tmp_path / "x.npy", "--queries", tmp_path / "q.npy", *command[4:]]
        command += ["--triplets", tmp_path / "triplets.npy"]
    else:
        command += ["-n", 200]
    more = ["--workers", 2, "--checkpoint", tmp_path / "run"] + ["--unit-norm"] * unit_norm
    succeed(*command, *more)
    n_rounds = simstream.load(tmp_path / "m.safetensors").n_rounds_
    if queries:
        command[1] = tmp_path / "x.csv"
        simstream.data.write_items(command[1], items())
    else:
        command[1] = (tmp_path / "x.npy").rename(tmp_path / "run" / "x.npy")
        np.save(tmp_path / "x.npy", items())
        command[-1] = 300
    succeed(*command, "--resume", tmp_path / "run")
    assert n_rounds == (400 if queries else 200)
    assert simstream.load(tmp_path / "m.safetensors").n_rounds_ == (400 if queries else 300)
    if queries:
        np.save(tmp_path / "q.npy", items(seed=5))
        text = fail(2, *command, "--resume", tmp_path / "run")
        assert "expected the queries that the run began with" in text


def test_train_reports_workers_that_cannot_be_had_or_are_lost(
    command, tmp_path, monkeypatch, workers_of_ray_are_serial
):
    folder = tmp_path / "run"
    command += ["-n", 200, "--workers", 2]

    def lost(*_):
        raise WorkerLostError("worker 1 of 2 was lost")

    with monkeypatch.context() as patch:
        patch.setattr(SerialWorkers, "learn", lost)
        text = fail(1, *command, "--checkpoint", folder)
        assert "worker 1 of 2 was lost" in text
        assert f"then repeat the command with --resume {folder} in place of --checkpoint" in text
        assert "ShardedLearner" not in text  # advice for the command line alone
    assert not (tmp_path / "m.safetensors").exists()
    with monkeypatch.context() as patch:
        patch.setattr(SerialWorkers, "learn", lost)
        assert "worker 1 of 2 was lost" in fail(1, *command, "--resume", folder)
    succeed(*command, "--resume", folder)
    assert simstream.load(tmp_path / "m.safetensors").n_rounds_ == 200


@pytest.mark.parametrize("more", [[], ["--mix", 2]])
def test_train_without_ray_names_the_extra(more, command, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run(*command, "-n", 200, "--workers", 2, *more)
    assert (result.exit_code, "starting" in result.stderr) == (2, False)
    message = "more than one worker needs Ray; install with: pip install 'simstream[distributed]'"
    assert f"simstream: error: {message}\n" in result.stderr
    if not more:
        folder, dense = tmp_path / "run", tmp_path / "x.npy"
        with ShardedLearner(OASIS(), 2, preprocessor=dense, folder=folder, backend="serial") as one:
            one.fit(TRIPLETS)
        assert "simstream[distributed]" in fail(2, *command, "--resume", folder)


def test_a_worker_that_finds_no_items_says_so(tmp_path):
    path, folder = tmp_path / "items.npy", tmp_path / "run"
    np.save(path, items())
    with ShardedLearner(OASIS(), 2, preprocessor=path, folder=folder, backend="serial") as found:
        found.fit(TRIPLETS)
    path.unlink()
    shard = Shard(str(folder), 0, 2)  # nothing that may fail: Ray keeps no errors of constructors
    with pytest.raises(FileNotFoundError, match="every worker must find it under this name"):
        shard.restore(None)


@pytest.mark.parametrize("is_lost", [False, True])
def test_workers_that_did_not_meet_were_lost_or_cannot_reach_each_other(is_lost, monkeypatch):
    workers = RayWorkers(Cluster(2), 0, 1.0)

    def call(method, *args):
        if method == "meet":
            raise ConnectionError("timed out")
        if method == "progress" and is_lost:
            raise RestartedError
        return [("127.0.0.1", 1)] * 2

    monkeypatch.setattr(workers, "call", call)
    with pytest.raises(RestartedError if is_lost else ConnectionError):
        workers.begin()


def test_losses_without_end_are_an_error(monkeypatch):
    options = {"preprocessor": items(), "backend": "serial", "max_restarts": 2}
    options["checkpoint_seconds"] = 0.0
    with ShardedLearner(OASIS(), 2, **options) as learner:
        learner.prepare()
        learn, losses = SerialWorkers.learn, []

        def lose(self, n_blocks):
            losses.append(n_blocks)
            raise RestartedError

        with monkeypatch.context() as patched:
            patched.setattr(SerialWorkers, "learn", lose)
            with pytest.raises(WorkerLostError, match="lost 5 times before block 1 of a call"):
                learner.fit(TRIPLETS)
        assert len(losses) == 5

        def lose_others(self, n_blocks):  # every second time: learning gets further in between
            losses.append(n_blocks)
            if len(losses) % 2 == 0:
                raise RestartedError
            return learn(self, 1)

        monkeypatch.setattr(SerialWorkers, "learn", lose_others)
        assert learner.fit(TRIPLETS).n_rounds_ == len(TRIPLETS)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_losses_without_end_in_a_certificate_are_an_error(seconds, monkeypatch):
    """Blocks of a certificate bring learning further too: a checkpoint must not begin it anew."""
    monkeypatch.setattr("simstream.batch.sdca._PART", len(TRIPLETS) // 8)
    margins, losses = _Ascent._margins, []

    def lose(self, index, *others):
        if index is self._parts[5][0]:
            losses.append(1)
            if len(losses) > 20:
                pytest.fail("lost for ever")
            raise RestartedError
        return margins(self, index, *others)

    monkeypatch.setattr(_Ascent, "_margins", lose)
    options = {"preprocessor": items(), "backend": "serial", "max_restarts": 3}
    learner = SDCA(lam=0.01, random_state=0, block_size=64)
    found = ShardedLearner(learner, 2, checkpoint_seconds=seconds, **options)
    with found, pytest.raises(WorkerLostError, match="lost 7 times before block 13 of a call"):
        found.fit(TRIPLETS)


def test_after_an_error_of_one_worker_all_are_where_they_were(monkeypatch):
    make = CASES["average"][0]
    with ShardedLearner(make(), 2, preprocessor=items(), backend="serial") as learner:
        expected = bits_of(learner.fit(TRIPLETS).learner_)
    with ShardedLearner(make(), 2, preprocessor=items(), backend="serial") as learner:
        learner.prepare()
        advance = Shard.advance

        def fail_in_one(self, *parts):
            if self._number:
                raise MemoryError
            return advance(self, *parts)

        with monkeypatch.context() as patched:
            patched.setattr(Shard, "advance", fail_in_one)
            with pytest.raises(MemoryError):
                learner.fit(TRIPLETS)
        assert bits_of(learner.partial_fit(TRIPLETS).learner_) == expected


class FakeRay:
    """Answers that are there already; `get` of several raises the first error of a given order."""

    def __init__(self, ray, order):
        self.exceptions, self.order = ray.exceptions, order

    def get(self, references, timeout=None):
        several = references if isinstance(references, list) else [references]
        for place in self.order if len(several) > 1 else [0]:
            if isinstance(several[place], Exception):
                raise several[place]
        return several

    def wait(self, references, num_returns, timeout):
        return references, []


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
@pytest.mark.parametrize("is_error", [False, True])
def test_the_error_of_a_worker_comes_before_what_it_seems_to_the_others(
    order, is_error, monkeypatch
):
    ray = pytest.importorskip("ray")

    def raised(cause):
        return ray.exceptions.RayTaskError("learn", "traceback", cause)

    first = raised(MemoryError("no memory")) if is_error else ray.exceptions.RayActorError()
    lost = [raised(RestartedError("worker 1 has lost another one")) for _ in range(2)]
    monkeypatch.setitem(sys.modules, "ray", FakeRay(ray, order))
    with pytest.raises(MemoryError if is_error else RestartedError):
        RayWorkers(Cluster(3), 0, 1.0)._get([first, *lost])


class SlowRay:
    """Worker 2 dies, and is back after some seconds; the others wait for it a while before they notice.

    Time passes only in calls. A reference is the number of a worker: of its call, or, negative, of a ping.
    """

    def __init__(self, ray, back_after):
        self.exceptions, self.now = ray.exceptions, 0.0
        self.answers_at = [28.0, 28.0, back_after]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def get(self, reference, timeout=None):
        if reference in ([0, 1, 2], 2):
            raise self.exceptions.RayActorError
        at = self.answers_at[~reference]
        if at > self.now + timeout:
            self.now += timeout
            raise self.exceptions.GetTimeoutError
        self.now = max(self.now, at)

    def wait(self, references, num_returns, timeout):
        self.now += timeout
        return [2], [0, 1]

    def actor(self, number):
        return SimpleNamespace(ping=SimpleNamespace(remote=lambda: ~number))


@pytest.mark.parametrize("back_after", [4.0, 1e9])
def test_a_worker_that_waits_for_a_lost_one_is_not_lost(back_after, monkeypatch):
    slow = SlowRay(pytest.importorskip("ray"), back_after)
    monkeypatch.setitem(sys.modules, "ray", slow)
    monkeypatch.setattr("simstream.distributed.workers.time", slow)
    workers = RayWorkers(Cluster(3), 1, 5.0)
    workers._actors = [slow.actor(number) for number in range(3)]
    if back_after < 5:
        with pytest.raises(RestartedError):
            workers._get([0, 1, 2])
    else:
        with pytest.raises(WorkerLostError, match=r"worker 2 of 3 was lost .* within 5 s"):
            workers._get([0, 1, 2])
        assert slow.now < 10


class ConnectedRay:
    """Stands for a Ray that this process is connected to: machines of these addresses, the first the head."""

    def __init__(self, *hosts, n_dead=0):
        self.hosts, self.n_dead = hosts, n_dead

    def nodes(self):
        alive = [{"Alive": True, "NodeManagerAddress": host} for host in self.hosts]
        return alive + [{"Alive": False, "NodeManagerAddress": "10.0.0.9"}] * self.n_dead

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=f"{self.hosts[0]}:6379")


@pytest.mark.parametrize(
    ("address", "hosts", "is_client", "is_same"),
    [
        ("auto", ["10.0.0.1", "10.0.0.2"], False, True),
        ("10.0.0.1:6379", ["10.0.0.1", "10.0.0.2"], False, True),
        ("10.0.0.3:6379", ["10.0.0.1", "10.0.0.2"], False, False),
        ("local", ["10.0.0.1", "10.0.0.2"], False, False),
        ("local", ["10.0.0.1"], False, True),
        ("local", ["10.0.0.1"], True, False),
        ("ray://10.0.0.2:10001", ["10.0.0.1", "10.0.0.2"], False, True),
        ("ray://127.0.0.1:10001", ["10.0.0.1"], False, True),
        ("ray://10.0.0.3:10001", ["10.0.0.1", "10.0.0.2"], False, False),
        ("ray://10.0.0.3:10001", ["10.0.0.1", "10.0.0.2"], True, True),
    ],
)
def test_another_ray_than_the_connected_one_is_refused(
    address, hosts, is_client, is_same, monkeypatch
):
    monkeypatch.setattr("simstream.distributed.cluster._is_client", lambda: is_client)
    cluster = Cluster(2, address=address)
    cluster._ray = ConnectedRay(*hosts)
    if is_same:
        cluster._check_same(cluster._ray)
    else:
        with pytest.raises(
            ValueError, match=r"address: expected 10\.0\.0\.1:6379, which this process"
        ):
            cluster._check_same(cluster._ray)


@pytest.mark.parametrize(
    ("connected", "is_client"),
    [(ConnectedRay("10.0.0.1", "10.0.0.2"), False), (ConnectedRay("10.0.0.1"), True)],
)
def test_several_machines_need_a_folder_however_they_are_found(connected, is_client, monkeypatch):
    class Joined(Cluster):
        def __enter__(self):
            self._ray = connected
            return self

        def stop(self, workers):
            assert not workers

    monkeypatch.setattr("simstream.distributed.cluster._is_client", lambda: is_client)
    monkeypatch.setattr("simstream.distributed.sharded.Cluster", Joined)
    for address in (None, "auto"):
        learner = ShardedLearner(OASIS(), 2, preprocessor=items(), address=address)
        with pytest.raises(ValueError, match="folder: expected one that all machines"):
            learner.prepare()
    one = Cluster(2)
    one._ray = ConnectedRay("10.0.0.1", n_dead=2)
    assert one.is_one_machine() != is_client


# -- the command line, without Ray ------------------------------------------------------------------


@pytest.fixture
def divided_command(tmp_path, monkeypatch):
    """A command that trains with workers in this process."""
    monkeypatch.setitem(ShardedLearner.__init__.__kwdefaults__, "backend", "serial")
    np.save(tmp_path / "items.npy", items())
    (tmp_path / "labels.txt").write_text("\n".join(map(str, np.arange(N) % 5)))
    labels = ["--labels", tmp_path / "labels.txt"]
    return ["train", tmp_path / "items.npy", *labels, "-o", tmp_path / "model.safetensors"]


def test_items_that_were_moved_are_found_where_the_command_says(tmp_path, divided_command):
    folder = tmp_path / "run"
    succeed(*divided_command, "-n", 500, "--workers", 2, "--checkpoint", folder)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "items.npy").rename(tmp_path / "elsewhere" / "items.npy")
    divided_command[1] = tmp_path / "elsewhere" / "items.npy"
    succeed(*divided_command, "-n", 900, "--resume", folder)
    assert simstream.load(tmp_path / "model.safetensors").n_rounds_ == 900
    # From then on the run knows where they are.
    with ShardedLearner.resume(folder, backend="serial") as found:
        assert found.n_rounds_ == 900


def test_tuples_that_wait_are_learnt_from_items_that_were_moved(tmp_path, monkeypatch):
    path, folder = tmp_path / "items.npy", tmp_path / "run"
    np.save(path, items())
    with ShardedLearner(OASIS(), 2, preprocessor=path, backend="serial") as found:
        expected = bits_of(found.fit(TRIPLETS).learner_)
    with monkeypatch.context() as patched:
        patched.setattr("simstream.distributed.run.Run.finish", lambda self: None)
        learner = ShardedLearner(OASIS(), 2, preprocessor=path, folder=folder, backend="serial")
        learner.fit(TRIPLETS)
        learner.close()
    path.rename(tmp_path / "moved.npy")
    moved = {"preprocessor": tmp_path / "moved.npy", "backend": "serial"}
    with ShardedLearner.resume(folder, **moved) as found:
        assert found.n_rounds_ == len(TRIPLETS)
        assert bits_of(found.learner_) == expected


def test_the_loss_of_a_worker_is_told_and_a_final_one_with_the_command_that_continues(
    tmp_path, divided_command, monkeypatch
):
    folder = tmp_path / "run"
    original, calls = SerialWorkers.learn, []

    def lose_one(self, n_blocks):
        calls.append(n_blocks)
        if len(calls) == 2:
            raise RestartedError
        return original(self, n_blocks)

    with monkeypatch.context() as patched:
        patched.setattr(SerialWorkers, "learn", lose_one)
        result = succeed(*divided_command, "-n", 500, "--workers", 2)
    assert result.stderr.count("simstream: warning: a worker was lost, or its connection") == 1

    def lose(*_):
        raise WorkerLostError("worker 0 of 2 was lost")

    with monkeypatch.context() as patched:
        patched.setattr(SerialWorkers, "learn", lose)
        message = fail(1, *divided_command, "--workers", 2)
        assert "was lost, then begin again, with --checkpoint FOLDER" in message
        message = fail(1, *divided_command, "--workers", 2, "--checkpoint", folder)
        assert f"repeat the command with --resume {folder} in place of --checkpoint" in message
        assert "ShardedLearner" not in message
        message = fail(1, *divided_command, "--resume", folder)
        assert f"repeat the command with the same --resume {folder}" in message
        with pytest.raises(WorkerLostError, match=r"was lost; continue .* ShardedLearner\.resume"):
            ShardedLearner.resume(folder, backend="serial")
    succeed(*divided_command, "--resume", folder, "-n", 500)


def test_an_interrupted_run_is_continued_from_its_folder(tmp_path, divided_command, monkeypatch):
    folder, begun = tmp_path / "run", ["--workers", 2, "--checkpoint", tmp_path / "run"]
    original, calls = SerialWorkers.begin, []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == 2:
            calls.clear()
            signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    monkeypatch.setattr(SerialWorkers, "begin", interrupted)
    for options, hint in ((begun, " in place of --checkpoint"), (["--resume", folder], "")):
        result = run(*divided_command, "-n", 10_000, *options)
        assert result.exit_code == 130, result.stderr
        expected = (
            f"checkpoint saved to {folder}. To continue, repeat the command with --resume {folder}"
        )
        assert result.stderr.endswith(f"{expected}{hint}\n")
    n_rounds = simstream.load(tmp_path / "model.safetensors").n_rounds_
    assert 0 < n_rounds < 10_000
    monkeypatch.undo()
    monkeypatch.setitem(ShardedLearner.__init__.__kwdefaults__, "backend", "serial")
    succeed(*divided_command, "-n", 10_000, "--resume", folder)
    assert simstream.load(tmp_path / "model.safetensors").n_rounds_ == 10_000


def test_options_of_workers_that_make_no_sense_are_wrong_usage(tmp_path, divided_command):
    def refusal(*options):
        return fail(2, *divided_command, *options)

    assert "expected --mix or --device torch" in refusal("--mix", 2, "--device", "torch")
    assert "--workers: expected at most" in refusal("--workers", 2000)
    assert "--checkpoint: expected one that all" in refusal("--workers", 2, "--address", "h:1")
    assert "--n-tuples: expected at least" in refusal("--mix", 20, "-n", 5)
    wide = tmp_path / "narrow.npy"
    np.save(wide, items()[:, :2])
    divided_command[1] = wide
    assert "--workers: expected at most one for each of 2 columns" in refusal("--workers", 3)


def test_errors_about_files_name_them(tmp_path):
    X, path = items(), tmp_path / "wrong.npy"
    given = {"n_workers": 2, "backend": "serial"}
    for content, problem in ((b"", "empty|No data"), (b"1,2\n3,4\n", "not an array")):
        path.write_bytes(content)
        with pytest.raises(simstream.data.FormatError, match=rf"wrong\.npy: .*({problem})"):
            ShardedLearner(OASIS(), preprocessor=path, **given).prepare()
        with ShardedLearner(OASIS(), preprocessor=X, **given) as found:
            with pytest.raises(simstream.data.FormatError, match=r"wrong\.npy: "):
                found.fit(path)
            found.fit(TRIPLETS)
            with pytest.raises(simstream.data.FormatError, match=r"wrong\.npy: "):
                found.search(X, path)
    with pytest.raises(NotADirectoryError, match=r"expected a folder, got the file .*wrong\.npy"):
        ShardedLearner(OASIS(), preprocessor=X, folder=path, **given).prepare()
    with pytest.raises(NotADirectoryError, match=r"expected a folder, got the file .*wrong\.npy"):
        ShardedLearner.resume(path, backend="serial")
