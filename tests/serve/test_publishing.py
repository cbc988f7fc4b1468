"""When readers see what was learnt, and what share of the time that takes."""

import threading
import time

import numpy as np
import pytest
from live import add_items, assert_same_matrix, do, judge, learner_of, oasis_of, running, vectors

from simstream.serve import engine
from simstream.serve.access import NotFoundError, ReadOnlyError
from simstream.serve.engine import Pace
from simstream.serve.log import LogError
from simstream.serve.snapshots import same_bits
from simstream.serve.state import Learning
from simstream.serve.writer import Judgement, Ledger, NewItem, Write


def compute(seconds):
    """Use the CPU for this long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture
def reading_is_slow(monkeypatch):
    """Reading a model takes 30 ms of CPU time; returns the wall times of the readings."""
    times = []
    plain = engine.model_of

    def model_of(position, learner, has_tasks):
        if learner is not None:
            compute(0.03)
            times.append(time.perf_counter())
        return plain(position, learner, has_tasks)

    monkeypatch.setattr(engine, "model_of", model_of)
    return times


def test_publishing_takes_a_bounded_share_of_the_time(tmp_path, reading_is_slow):
    """Events that come one by one: each could be published alone."""
    rows = vectors(20)
    with running(tmp_path) as service:
        reading_is_slow.clear()  # a model was read to compile it
        add_items(service, rows)
        end = time.perf_counter() + 60
        triplets = []
        while len(reading_is_slow) < 6 and time.perf_counter() < end:
            n = len(triplets) % 17
            judge(service, f"i{n}", f"i{n + 1}", f"i{n + 2}")
            triplets.append(rows[n : n + 3])
            time.sleep(0.005)
        seen = list(reading_is_slow)
        assert len(triplets) > 2 * len(seen), "several events in one version"
        assert min(np.diff(seen)) > 10 * 0.03
        end = time.perf_counter() + 10
        while service.engine.lag and time.perf_counter() < end:
            time.sleep(0.01)  # nobody waits, and nothing more happens
        assert service.engine.lag == 0
        assert service.version.tally.triplets == len(triplets)
        assert_same_matrix(learner_of(service), oasis_of(triplets))


def test_who_waits_to_see_it_does_not_wait_for_the_rest(tmp_path, reading_is_slow):
    with running(tmp_path) as service:
        add_items(service, vectors(20))
        for n in range(4):
            judge(service, f"i{n}", f"i{n + 1}", f"i{n + 2}")
            time.sleep(0.05)
        service.engine._publishing_pace._last.extend([60.0, 60.0])  # a rest of ten minutes
        receipt = judge(service, "i5", "i6", "i7")
        time.sleep(0.2)
        assert service.version.position < receipt.first
        service.engine._publishing_pace._last.extend([2.0, 2.0])  # of twenty seconds, or of two
        started = time.perf_counter()
        assert service.wait_for(receipt, 30)
        assert service.version.position >= receipt.first
        assert time.perf_counter() - started < 15
        service.engine._publishing_pace._last.extend([60.0, 60.0])
        judge(service, "i5", "i6", "i7")
        started = time.perf_counter()
    assert time.perf_counter() - started < 20, "closing does not wait for it either"
    assert service.version.position == service.writer.last


def test_items_are_published_without_reading_the_model_again(tmp_path, reading_is_slow):
    with running(tmp_path) as service:
        add_items(service, vectors(5))
        assert service.wait_for(judge(service, "i0", "i1", "i2"))
        before = len(reading_is_slow)
        do(service, Ledger.add_items, [NewItem("new", vectors(1)[0], {})])
        assert "new" in [name for name, _ in service.search("i0", 6)]
        assert len(reading_is_slow) == before
        assert service.version.model.position == service.version.position


def test_an_item_is_found_by_its_id_until_its_successor_is_published(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(5))
        version = service.version
        before = service.position_of("i0", version)
        do(service, Ledger.put_item, NewItem("i0", vectors(1, seed=7)[0], {}))
        do(service, Ledger.put_item, NewItem("i0", vectors(1, seed=8)[0], {}))
        do(service, Ledger.add_items, [NewItem("new", vectors(1)[0], {})])
        assert service.position_of("i0", version) == before
        assert service.position_of("i0", service.version) == 7
        with pytest.raises(NotFoundError, match="'new'"):
            service.position_of("new", version)


def test_versions_of_many_tasks_do_not_change_while_others_are_learnt(tmp_path):
    rows, rng = vectors(30, d=8), np.random.default_rng(0)
    with running(tmp_path, learning=Learning("omtrsl", {"C": 0.5})) as service:
        add_items(service, rows)
        seen = []
        for n in range(120):
            names = [f"i{i}" for i in rng.permutation(30)[:3]]
            write = Write(
                Ledger.judge, (Judgement(names[0], [(names[1], names[2])], f"u{n % 40}"),)
            )
            (receipt,) = service.submit([write]).result(30)
            if n % 20 == 19:
                assert service.wait_for(receipt, 30)
                version = service.version
                tasks = [*version.model.task_names, "a stranger"]
                found = {task: version.search_many(rows[:1], 5, task)[0] for task in tasks}
                seen.append((version, found))
        assert len(seen[-1][1]) == 41
        for version, found in seen:
            assert {task: version.search_many(rows[:1], 5, task)[0] for task in found} == found
        for task in ("u0", "u39", "a stranger"):
            expected = learner_of(service).get_bilinear_matrix(task)
            assert np.allclose(service.version.model.similarity(task).matrix, expected, atol=1e-6)


def test_readers_do_not_wait_while_a_version_is_made(tmp_path, monkeypatch):
    plain, may_go_on, is_reading = engine.model_of, threading.Event(), threading.Event()

    def model_of(*args):
        is_reading.set()
        assert may_go_on.wait(30)
        return plain(*args)

    with running(tmp_path) as service:
        add_items(service, vectors(5))
        monkeypatch.setattr(engine, "model_of", model_of)
        receipt = judge(service, "i0", "i1", "i2")
        assert is_reading.wait(30)
        assert len(service.search("i0", 3)) == 3
        assert service.version.position < receipt.first
        may_go_on.set()
        assert service.wait_for(receipt, 30)


def test_a_snapshot_is_saved_when_folding_again_would_take_long(tmp_path, monkeypatch):
    """However few events there are: here a thousand of them are far from the next regular snapshot."""
    monkeypatch.setattr(engine, "_LONGEST_REPLAY", 0.02)
    monkeypatch.setattr(engine, "_REST", 0.0)
    rows = vectors(20)
    with running(tmp_path, snapshot_every=10**6) as service:
        add_items(service, rows)
        for n in range(1000):
            judge(service, f"i{n % 17}", f"i{n % 17 + 1}", f"i{n % 17 + 2}")
        assert service.engine.wait_for(service.writer.last, 60)
        positions = service.engine.snapshots.positions()
        assert positions
        assert service.engine._state.seconds < 1.0
    triplets = [rows[n % 17 : n % 17 + 3] for n in range(1000)]
    with running(tmp_path) as service:
        assert_same_matrix(learner_of(service), oasis_of(triplets))


def test_a_long_restart_is_not_as_long_the_next_time(tmp_path, monkeypatch):
    """Without snapshots everything is learnt again; then one is saved, even if nothing else happens."""
    with running(tmp_path, snapshot_every=10**6) as service:
        add_items(service, vectors(20))
        for n in range(200):
            judge(service, f"i{n % 17}", f"i{n % 17 + 1}", f"i{n % 17 + 2}")
    for path in (tmp_path / "snapshots").iterdir():
        path.unlink()
    monkeypatch.setattr(engine, "_LONGEST_REPLAY", 1e-4)
    with running(tmp_path, snapshot_every=10**6) as service:
        end = time.perf_counter() + 30
        while not service.engine.snapshots.positions() and time.perf_counter() < end:
            time.sleep(0.01)
        assert service.engine.snapshots.positions() == [220]


def test_a_pace_forgets_what_was_slow_once():
    now = [0.0]
    pace = Pace(lambda: now[0], lambda: now[0])
    assert pace.rest(10) == 0
    for seconds, rest in ((5.0, 50.0), (1.0, 10.0), (1.0, 10.0), (7.0, 10.0), (7.0, 70.0)):
        with pace.measured():
            now[0] += seconds
        assert pace.rest(10) == rest


def test_a_follower_reads_what_another_service_writes(tmp_path, address):
    with running(tmp_path, log=address) as writer:
        add_items(writer, vectors(20))
        judge(writer, "i0", "i1", "i2")
        assert writer.engine.wait_for(21, 60)
        with running(tmp_path, follow=True) as reader:
            assert reader.search("i0", 5) == writer.search("i0", 5)
            for _ in range(5):
                judge(writer, "i0", "i3", "i4")
            add_items(writer, vectors(1, seed=1), ["new"])
            assert writer.engine.wait_for(27, 60)
            assert reader.engine.wait_for(27, 60)
            assert same_bits(learner_of(reader), learner_of(writer))
            assert reader.search("new", 5) == writer.search("new", 5)
            before = sorted(path.name for path in tmp_path.rglob("*"))
            with pytest.raises(ReadOnlyError, match="send changes there"):
                judge(reader, "i0", "i1", "i2")
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        judge(writer, "i0", "i1", "i2")


def test_there_must_be_something_to_follow(tmp_path):
    with pytest.raises(LogError, match="service to follow"), running(tmp_path / "a", follow=True):
        pass
    assert not (tmp_path / "a").exists()


def test_a_follower_tells_when_it_cannot_follow_any_more(tmp_path):
    with running(tmp_path / "a") as writer:
        add_items(writer, vectors(5))
    with running(tmp_path / "a", follow=True) as reader:
        assert reader.stopped() is None
        (tmp_path / "a" / "log.sqlite").rename(tmp_path / "moved")
        end = time.monotonic() + 30
        while reader.stopped() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert reader.stopped() == "following has stopped"
        assert len(reader.search("i0", 3)) == 3
