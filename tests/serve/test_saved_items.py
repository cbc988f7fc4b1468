"""Items in files beside the log: starts that read them, and processes that share their memory."""

import os
import re

import numpy as np
import pytest
from live import add_items, do, judge, learner_of, running, vectors, wait_until

from simstream.serve import engine, saved_items, upkeep
from simstream.serve.snapshots import same_bits
from simstream.serve.writer import Ledger, NewItem, Write


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch):
    monkeypatch.setattr(engine, "_FEWEST_CHANGES", 100)
    monkeypatch.setattr(engine, "_REST", 0.0)


def files(folder):
    return sorted(path.name for path in (folder / "snapshots").glob("items-*"))


def rests_on(service, position):
    return lambda: service.engine.items.saved_at == position


def state_of(service):
    """Everything that readers see of the items."""
    items, view = service.engine.items, service.engine.items.view
    searches = [service.search(name, 7) for name in sorted(items.positions)[::5]]
    found = view.ids, view.vectors(view.ids).tolist(), items.positions.copy(), items.names.copy()
    return *found, searches


def change(service):
    """Add 150 items, then replace, delete and add again some of them."""
    add_items(service, vectors(150))
    do(service, Ledger.put_item, NewItem("i7", vectors(1, seed=1)[0], {}))
    do(service, Ledger.delete_item, "i9")
    do(service, Ledger.delete_item, "i8")
    do(service, Ledger.put_item, NewItem("i9", vectors(1, seed=2)[0], {}))
    judge(service, "i0", "i7", "i2")
    assert service.engine.wait_for(155, 60)


def read_from_the_log(folder, monkeypatch):
    """The state of a service that has no saved items."""
    with monkeypatch.context() as patch:
        patch.setattr(engine.ItemFiles, "newest", lambda *_: None)
        with running(folder, follow=True) as service:
            assert service.engine.items.saved_at == 0
            return state_of(service)


def test_a_start_takes_items_from_their_file_and_the_rest_from_the_log(tmp_path, monkeypatch):
    with running(tmp_path) as service:
        change(service)
        wait_until(lambda: service.engine.items.saved_at >= 150)
        before = state_of(service)
        at = service.engine.items.saved_at
    assert files(tmp_path) == [f"items-{at:012d}.rows", f"items-{at:012d}.safetensors"]
    for path in (tmp_path / "snapshots").glob("items-*"):
        assert path.stat().st_mode & 0o777 == 0o600  # texts and vectors are the owner's
    assert read_from_the_log(tmp_path, monkeypatch) == before
    read = []
    original = engine.Log.read_items
    monkeypatch.setattr(
        engine.Log, "read_items", lambda *given: read.append(given[1:]) or original(*given)
    )
    with running(tmp_path) as service:
        assert read[0][2] == at  # nothing before
        assert service.engine.items.saved_at == at
        assert state_of(service) == before
        # It goes on: appended rows are private, the file stays as it is.
        add_items(service, vectors(20, seed=3), [f"more-{n}" for n in range(20)])
        do(service, Ledger.delete_item, "i100")
        after = state_of(service)
    assert upkeep.check(tmp_path).is_whole
    assert read_from_the_log(tmp_path, monkeypatch) == after
    with running(tmp_path) as service:
        assert state_of(service) == after
        judge(service, "i0", "i7", "more-3")
    with running(tmp_path) as service:
        assert learner_of(service).n_rounds_ == 2


def test_files_are_renewed_as_items_change(tmp_path, monkeypatch):
    with running(tmp_path) as service:
        add_items(service, vectors(100))
        wait_until(rests_on(service, 100))
        view = service.version.view
        rows = view.vectors(view.ids)
        for n in range(0, 100, 2):
            do(service, Ledger.delete_item, f"i{n}")
        add_items(service, vectors(100, seed=1), [f"new-{n}" for n in range(100)])
        wait_until(lambda: service.engine.items.saved_at > 200)
        assert len(files(tmp_path)) == 2
        assert np.array_equal(view.vectors(view.ids), rows)  # of an earlier version, still used
        after = state_of(service)
    assert read_from_the_log(tmp_path, monkeypatch) == after


def test_a_follower_uses_what_the_other_service_saves(tmp_path):
    with running(tmp_path) as writer:
        add_items(writer, vectors(50))
        with running(tmp_path, follow=True) as reader:
            assert reader.engine.items.saved_at == 0
            add_items(writer, vectors(100, seed=1), [f"new-{n}" for n in range(100)])
            wait_until(rests_on(writer, 150))
            wait_until(rests_on(reader, 150))
            judge(writer, "i0", "i7", "i2")
            add_items(writer, vectors(5, seed=2), [f"last-{n}" for n in range(5)])
            assert reader.engine.wait_for(156, 60)
            assert state_of(reader) == state_of(writer)
            assert same_bits(learner_of(reader), learner_of(writer))
        with running(tmp_path, follow=True) as reader:
            assert reader.engine.items.saved_at == 150
            assert state_of(reader) == state_of(writer)


@pytest.mark.parametrize("suffix", [".rows", ".safetensors"])
def test_damaged_files_are_refused_and_the_log_is_read(tmp_path, caplog, suffix):
    with running(tmp_path) as service:
        change(service)
        wait_until(lambda: service.engine.items.saved_at >= 150)
        before = state_of(service)
    (path,) = (tmp_path / "snapshots").glob(f"items-*{suffix}")
    content = bytearray(path.read_bytes())
    content[-200 if suffix == ".safetensors" else 1001] ^= 4
    path.write_bytes(content)
    assert any("saved items" in text for text in upkeep.check(tmp_path).problems)
    with running(tmp_path, follow=True) as service:
        assert re.search("saved items refused.*checksum", caplog.text)
        assert state_of(service) == before
    with running(tmp_path) as service:  # and new ones take their place
        wait_until(lambda: service.engine.items.saved_at > 0)
        assert state_of(service) == before
    assert upkeep.check(tmp_path).is_whole


def test_items_of_another_log_are_refused(tmp_path, caplog):
    for name in "ab":
        with running(tmp_path / name) as service:
            add_items(service, vectors(120, seed=ord(name)))
            wait_until(rests_on(service, 120))
    for path in (tmp_path / "a" / "snapshots").glob("items-*"):
        path.replace(tmp_path / "b" / "snapshots" / path.name)
    with running(tmp_path / "b", follow=True) as service:
        assert "from another log" in caplog.text
        kept = service.engine.items.vectors([1])
        assert np.array_equal(kept, vectors(1, seed=ord("b")))


def test_items_that_cannot_be_saved_stay_in_memory(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine.ItemFiles, "save", full)
    with running(tmp_path) as service:
        add_items(service, vectors(120))
        wait_until(lambda: "No space left" in caplog.text)
        judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(121, 60)
        assert len(service.search("i0", 5)) == 5
    assert files(tmp_path) == []


def test_nothing_is_left_of_items_that_could_not_be_saved(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_items, "write_file", full)
    with running(tmp_path) as service:
        add_items(service, vectors(120))
        wait_until(lambda: "No space left" in caplog.text)
        service.engine._renewing.join(60)
        assert files(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_the_owner(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(120))
        wait_until(rests_on(service, 120))
    kept = files(tmp_path)
    remains = [".tmp-0123456789ab.rows", ".tmp-0123456789ab.safetensors", "items-000000000007.rows"]
    for name in remains:
        (tmp_path / "snapshots" / name).write_bytes(b"x")
    with running(tmp_path, follow=True):
        assert set(remains) <= set(os.listdir(tmp_path / "snapshots"))
    with running(tmp_path) as service:
        assert files(tmp_path) == kept
        assert not set(remains) & set(os.listdir(tmp_path / "snapshots"))
        assert service.engine.items.saved_at == 120


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="memory is looked at in /proc")
def test_processes_share_the_memory_of_saved_items(tmp_path, monkeypatch):
    """Rows that were saved are pages of the file, in every process; only what is appended is private."""
    monkeypatch.setattr(engine, "_FEWEST_CHANGES", 1)  # the last of them, however few they are
    monkeypatch.setattr(engine, "_CHANGED", 0)
    with running(tmp_path) as service:
        add_items(service, vectors(4000, 256))
        wait_until(rests_on(service, 4000))
    with running(tmp_path, follow=True) as reader:
        assert len(reader.search("i0", 5)) == 5
        with open("/proc/self/smaps") as file:
            parts = file.read().split("items-000000004000.rows")[1:]
        assert parts
        private = sum(
            int(re.search(r"Private_Dirty: +(\d+)", part)[1])
            + int(re.search(r"Anonymous: +(\d+)", part)[1])
            for part in parts
        )
        assert private == 0
        assert sum(int(re.search(r"Rss: +(\d+)", part)[1]) for part in parts) > 2000


def test_all_items_may_be_deleted(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(120))
        wait_until(rests_on(service, 120))
        service.submit([Write(Ledger.delete_item, (f"i{n}",)) for n in range(120)]).result(30)
        wait_until(rests_on(service, 240))
        assert service.version.view.ids == []
        add_items(service, vectors(2))
        assert len(service.search("i0", 5)) == 1
    with running(tmp_path) as service:
        assert len(service.engine.items) == 2
