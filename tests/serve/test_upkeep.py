"""Damage is noticed and told; what is whole can be checked, salvaged, backed up, restored and erased."""

import contextlib
import logging
import math
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from live import (
    SOURCE,
    Client,
    ServerProcess,
    add_items,
    assert_same_matrix,
    do,
    judge,
    learner_of,
    oasis_of,
    running,
    vectors,
)

from postgres import connected
from simstream.cli import main
from simstream.serve import upkeep
from simstream.serve.log import Log, LogError
from simstream.serve.snapshots import Snapshots, to_keep
from simstream.serve.store import LostError
from simstream.serve.writer import Ledger, NewItem

MODELS = Path(__file__).parents[1] / "models"


def filled(folder, n_items=12, n_judged=30, seed=0, **options):
    """A folder with items and feedback; returns the vectors, and the row numbers of the triplets."""
    rng, rows = np.random.default_rng(seed), vectors(n_items)
    triplets = np.array([rng.permutation(n_items)[:3] for _ in range(n_judged)])
    with running(folder, **options) as service:
        add_items(service, rows)
        for a, b, c in triplets:
            judge(service, f"i{a}", f"i{b}", f"i{c}")
        assert service.engine.wait_for(service.writer.last, 60)
    return rows, triplets


def changed(folder, statement, *values):
    """Change the log behind its back."""
    if (folder / "log.address").exists():
        with connected((folder / "log.address").read_text().strip()) as connection:
            done = connection.execute(statement.replace("?", "%s"), values)
            assert done.rowcount == 1
        return
    connection = sqlite3.connect(folder / "log.sqlite")
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def files_of(folder, address):
    """The files that hold the events."""
    if address is None:
        return list(folder.glob("log.sqlite*"))
    data = Path(address.split("host=")[1].split("&")[0]) / "data"
    with connected(address) as connection:
        connection.execute("CHECKPOINT")
        rows = connection.execute("SELECT pg_relation_filepath('events')").fetchall()
    return [data / path for (path,) in rows]


# -- the chain --------------------------------------------------------------------------------


def test_a_folder_that_nothing_happened_to_is_whole(tmp_path, address):
    filled(tmp_path, log=address)
    report = upkeep.check(tmp_path)
    assert report.is_whole
    assert (report.events, report.damaged, report.snapshots) == (42, [], 1)


@pytest.mark.parametrize(
    ("statement", "position", "values"),
    [
        ("UPDATE events SET body = replace(body, 'i', 'j') WHERE position = 20", 20, ()),
        ("UPDATE events SET at = at + 1 WHERE position = 17", 17, ()),
        ("UPDATE events SET subject = 'x' WHERE position = 3", 3, ()),
        ("UPDATE events SET kind = 'delete' WHERE position = 3", 3, ()),
        ("UPDATE events SET vector = ? WHERE position = 4", 4, (b"D\0",)),
    ],
)
def test_a_changed_event_is_found_by_check_and_when_it_is_read(
    tmp_path, address, statement, position, values
):
    filled(tmp_path, log=address)
    changed(tmp_path, statement, *values)
    shutil.rmtree(tmp_path / "snapshots")
    report = upkeep.check(tmp_path)
    assert report.damaged == [position]
    assert report.problems == [f"the event at position {position} is damaged"]
    with (
        pytest.raises(LogError, match=f"event at position {position} is damaged"),
        running(tmp_path),
    ):
        pass


def test_events_that_were_removed_or_exchanged_are_found(tmp_path, address):
    filled(tmp_path, log=address)
    changed(tmp_path, "DELETE FROM events WHERE position = 20")
    assert any("position 21 does not follow" in text for text in upkeep.check(tmp_path).problems)


def test_every_flipped_bit_of_what_events_say_is_found(tmp_path):
    """Flip bits of the file itself; what SQLite or the digests do not find has changed nothing."""
    filled(tmp_path / "a")
    connection = sqlite3.connect(tmp_path / "a" / "log.sqlite")
    connection.execute("PRAGMA journal_mode = DELETE")  # all of it is in one file then
    connection.close()
    good = (tmp_path / "a" / "log.sqlite").read_bytes()

    def events_of(folder):
        log = Log(folder / "log.sqlite")
        try:
            return [(row, digest) for row, digest, _ in log.rows(0, 10**6)]
        finally:
            log.close()

    expected = events_of(tmp_path / "a")
    rng, n_found, n_harmless = random.Random(0), 0, 0
    for number in range(60):
        folder = tmp_path / f"b{number}"
        folder.mkdir()
        data = bytearray(good)
        place = rng.randrange(len(good))
        data[place] ^= 1 << rng.randrange(8)
        (folder / "log.sqlite").write_bytes(data)
        try:
            is_whole = upkeep.check(folder).is_whole
        except LogError:
            is_whole = False
        if is_whole:
            n_harmless += 1
            assert events_of(folder) == expected, f"bit at byte {place}"
        n_found += not is_whole
    assert n_found > 10
    assert n_harmless > 0


def test_only_the_owner_of_the_folder_upgrades_a_log(tmp_path):
    """An old service may be running: what it writes must not become damage."""
    shutil.copytree(MODELS / "service-dense", tmp_path / "a")
    path = tmp_path / "a" / "log.sqlite"
    before = path.read_bytes()
    report = upkeep.check(tmp_path / "a")
    assert report.is_whole
    assert "earlier version" in report.notes[0]
    upkeep.back_up(tmp_path / "a", tmp_path / "b")
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    assert path.read_bytes() == before
    log = Log(path, is_owner=True)
    insert = "INSERT INTO events (position, at, kind, body) VALUES (10000, 0.0, 'pin', '{}')"
    with pytest.raises(sqlite3.IntegrityError, match="newer version"):  # as version 1 appends
        log.store.connection.execute(insert)
    log.close()
    assert upkeep.check(tmp_path / "a").is_whole
    for folder in ("a", "b"):
        report = upkeep.check(tmp_path / folder)
        assert report.is_whole
        assert bool(report.notes) == (folder == "b")


@pytest.mark.parametrize("damage", ["empty file", "root page", "far position"])
def test_a_log_that_cannot_be_read_is_told(tmp_path, damage):
    filled(tmp_path, n_judged=3)
    path = tmp_path / "log.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    page = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'events'"
    ).fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    if damage == "far position":
        connection.execute(f"UPDATE events SET position = {10**15} WHERE position = 15")
        connection.commit()
    connection.close()
    if damage == "empty file":
        path.write_bytes(b"")
    elif damage == "root page":
        data = bytearray(path.read_bytes())
        data[(page - 1) * size : page * size] = bytes(size)
        path.write_bytes(data)
    runner = CliRunner()
    found = runner.invoke(main, ["check", str(tmp_path)])
    assert found.exit_code == 1, found.output
    assert "bug" not in found.output
    salvaged = runner.invoke(main, ["check", str(tmp_path), "--salvage", str(tmp_path / "new")])
    assert "bug" not in salvaged.output
    assert salvaged.exit_code == (0 if damage == "far position" else 1)
    if damage == "far position":
        assert "kept: 14 events\ndamaged: 1 event" in salvaged.output


def test_a_backup_that_fails_leaves_nothing(tmp_path, monkeypatch):
    filled(tmp_path / "a", n_judged=3)

    def full(folder, new):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(upkeep, "_copy_keys", full)
    with pytest.raises(OSError, match="cannot be written"):
        upkeep.back_up(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# -- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_of_another_past_is_refused(tmp_path, caplog):
    """An older copy of the log goes on past the position of a snapshot that was made meanwhile."""
    rows, first = filled(tmp_path, n_judged=5)
    upkeep.back_up(tmp_path, tmp_path / "old")
    with running(tmp_path) as service:
        for _ in range(5):
            judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(service.writer.last, 60)
    for name in ("log.sqlite", "log.sqlite-wal", "log.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "old" / "log.sqlite", tmp_path / "log.sqlite")
    with caplog.at_level(logging.WARNING), running(tmp_path, snapshot_every=10**6) as service:
        assert "ends at position 17, but events up to position 22 were acknowledged" in caplog.text
        assert "snapshot at position 22 refused" in caplog.text
        assert service.engine.snapshots.n_refused == 1
        for _ in range(9):
            judge(service, "i3", "i4", "i5")
        assert service.engine.wait_for(service.writer.last, 60)
    # The head is overwritten by now, but it is not forgotten.
    assert "position 22 were acknowledged earlier" in upkeep.check(tmp_path).problems[0]
    triplets = [*first, *[(3, 4, 5)] * 9]
    with running(tmp_path) as service:
        assert_same_matrix(learner_of(service), oasis_of(rows[np.array(triplets)]))


def test_the_same_position_of_another_log_is_refused(tmp_path, caplog):
    rows, _ = filled(tmp_path / "a", n_judged=5)
    filled(tmp_path / "b", n_judged=5, seed=1)
    name = "model-000000000017.safetensors"
    shutil.copy(tmp_path / "b" / "snapshots" / name, tmp_path / "a" / "snapshots" / name)
    assert "another log" in upkeep.check(tmp_path / "a").problems[0]
    expected = np.random.default_rng(0)
    triplets = np.array([expected.permutation(12)[:3] for _ in range(5)])
    with caplog.at_level(logging.WARNING), running(tmp_path / "a") as service:
        assert "made from another log" in caplog.text
        assert_same_matrix(learner_of(service), oasis_of(rows[triplets]))


def test_a_snapshot_that_cannot_be_written_does_not_stop_learning(tmp_path, caplog, monkeypatch):
    from safetensors import SafetensorError

    real, calls = Snapshots.save, []

    def full(self, state, log):
        calls.append(state.position)
        if len(calls) < 3:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        real(self, state, log)

    monkeypatch.setattr(Snapshots, "save", full)
    monkeypatch.setattr("simstream.serve.engine._FIRST_RETRY", 0.01)
    with caplog.at_level(logging.WARNING):
        filled(tmp_path, snapshot_every=1)
    assert "No space left on device" in caplog.text
    with running(tmp_path) as service:
        assert service.engine.failure is None
        assert service.engine.snapshots.positions()[-1] == 42


def test_failing_snapshots_are_tried_again_ever_more_rarely(tmp_path, monkeypatch):
    def full(self, state, log):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Snapshots, "save", full)
    with running(tmp_path, snapshot_every=1) as service:
        add_items(service, vectors(6))
        for _ in range(40):
            judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(service.writer.last, 60)
        assert service.engine.failure is None
        assert 1 <= service.engine.n_unsaved <= 6


def test_snapshots_stay_a_geometric_series_however_often_they_are_thinned():
    positions = []
    for newest in range(1, 3000):
        positions = sorted(to_keep([*positions, newest]))
    assert positions[0] == 1
    assert len(positions) <= 2 * math.log2(3000) + 4
    for wanted in range(1, 3000):
        nearest = max(position for position in positions if position <= wanted)
        assert wanted - nearest <= max(3, positions[-1] - wanted)


def test_others_that_read_the_folder_do_not_disturb_the_service(tmp_path):
    """The last process that closes a log deletes its WAL: a reader must never take itself for the last."""
    rows = vectors(12)
    server = ServerProcess(tmp_path)
    client = Client(server.port)
    items = [{"id": f"i{n}", "vector": row.tolist()} for n, row in enumerate(rows)]
    assert client("POST", "/v1/items", {"items": items})[0] == 201
    one = {"anchor": "i0", "positive": "i1", "negative": "i2"}
    command = [sys.executable, "-m", "simstream"]
    plain = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM events').fetchall()"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    for number, words in enumerate((["check", tmp_path], ["backup", tmp_path, tmp_path / "b"])):
        assert client("POST", "/v1/feedback", one)[0] == 201
        for _ in range(3):  # in threads with connections of their own
            assert client.raw("GET", "/v1/responses")[0] == 200
        done = subprocess.run([*command, *map(str, words)], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        subprocess.run([sys.executable, "-c", plain, tmp_path / "log.sqlite"], check=True)
        assert (tmp_path / "log.sqlite-wal").exists()
        client.close()  # the server has done so, if all this took long
        assert client("POST", "/v1/feedback", one)[0] == 201
        assert upkeep.check(tmp_path).events == 12 + 2 * (number + 1)
    with contextlib.closing(Log(tmp_path / "b" / "log.sqlite")) as copy:
        assert copy.last == 15
    server.kill()
    assert upkeep.check(tmp_path).is_whole
    with running(tmp_path) as service:
        assert service.writer.last == 16
        assert_same_matrix(learner_of(service), oasis_of(rows[[[0, 1, 2]] * 4]))


# -- salvaging --------------------------------------------------------------------------------


def test_salvage_keeps_what_is_whole_and_goes_on(tmp_path, address):
    rows, triplets = filled(tmp_path / "a", log=address)
    changed(tmp_path / "a", "UPDATE events SET body = '{' WHERE position = 20")
    changed(tmp_path / "a", "UPDATE events SET subject = 'x' WHERE position = 12")
    done = upkeep.salvage(tmp_path / "a", tmp_path / "b")
    left = [t for n, t in enumerate(triplets, 13) if n != 20 and 11 not in t]
    n_about = sum(11 in t for n, t in enumerate(triplets, 13) if n != 20)
    assert (done.kept, done.about_damaged, done.missing) == (11 + len(left), n_about, 0)
    assert done.damaged == [(12, "item"), (20, "feedback")]
    assert not done.undoes
    assert n_about
    assert upkeep.check(tmp_path / "b").is_whole
    with running(tmp_path / "b") as service:
        assert_same_matrix(learner_of(service), oasis_of(rows[np.array(left)]))
        judge(service, "i0", "i1", "i2")
        add_items(service, rows[11:], ["i11"])
    assert upkeep.check(tmp_path / "b").is_whole


def test_salvage_keeps_settings_but_is_a_log_of_its_own(tmp_path):
    filled(tmp_path / "a", n_judged=1)
    with contextlib.closing(Log(tmp_path / "a" / "log.sqlite", is_owner=True)) as log:
        log.set_setting("index", "qdrant://localhost/items")
        before = {name: log.setting(name) for name in ("service", "index", "format", "identity")}
    upkeep.salvage(tmp_path / "a", tmp_path / "b")
    with contextlib.closing(Log(tmp_path / "b" / "log.sqlite")) as log:
        after = {name: log.setting(name) for name in before}
    assert after.pop("identity") != before.pop("identity")
    assert after == before


def test_events_are_not_damaged_because_the_database_goes_away(tmp_path, monkeypatch):
    filled(tmp_path / "a", n_judged=1)
    rows = Log.rows

    def lost(log, after, until=None):
        if until is None:
            raise LogError("a page that cannot be read")
        if after >= 5:
            raise LostError("the database is away")
        return rows(log, after, until)

    monkeypatch.setattr(Log, "rows", lost)
    with pytest.raises(LostError):
        upkeep.salvage(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_callers_are_not_told_where_a_damaged_log_is(tmp_path):
    filled(tmp_path, n_judged=1)
    with running(tmp_path) as service:
        changed(tmp_path, "UPDATE events SET body = '{' WHERE position = 2")
        with pytest.raises(LogError, match="--salvage") as caught:
            service.item("i1")
    assert caught.value.public == "the event at position 2 is damaged"


def test_salvage_needs_a_new_folder(tmp_path):
    filled(tmp_path / "a", n_judged=1)
    with pytest.raises(FileExistsError, match="expected a new or empty folder"):
        upkeep.salvage(tmp_path / "a", tmp_path / "a")


# -- backups ----------------------------------------------------------------------------------


def test_a_backup_beside_a_running_service_can_be_served(tmp_path, address):
    rows = vectors(12)
    with running(tmp_path / "a", log=address) as service:
        add_items(service, rows)
        judge(service, "i0", "i1", "i2")
        assert upkeep.back_up(tmp_path / "a", tmp_path / "b") == 13
        judge(service, "i3", "i4", "i5")
    assert upkeep.restore(tmp_path / "b", tmp_path / "c") == 13
    with running(tmp_path / "c") as service:
        assert_same_matrix(learner_of(service), oasis_of(rows[[[0, 1, 2]]]))
    changed(tmp_path / "b", "UPDATE events SET body = '{' WHERE position = 13")
    with pytest.raises(LogError, match="backup is damaged"):
        upkeep.restore(tmp_path / "b", tmp_path / "d")
    assert not (tmp_path / "d").exists()


# -- erasing ----------------------------------------------------------------------------------


def test_erased_texts_are_gone_and_the_chain_still_holds(tmp_path, address):
    rows = vectors(4)
    with running(tmp_path, log=address) as service:
        items = [NewItem(f"i{n}", row, {"text": f"my secret {n}"}) for n, row in enumerate(rows)]
        do(service, Ledger.add_items, items)
        judge(service, "i0", "i1", "i2")
        do(service, Ledger.delete_item, "i2")
    with pytest.raises(ValueError, match="got 'i1'; delete it first"):
        upkeep.erase(tmp_path, ["i1"])
    with pytest.raises(ValueError, match="unknown id 'nobody'"):
        upkeep.erase(tmp_path, ["nobody"])
    assert upkeep.erase(tmp_path, ["i2"]) == 1
    assert upkeep.erase(tmp_path, ["i2"]) == 0
    stored = b"".join(path.read_bytes() for path in files_of(tmp_path, address))
    assert b"my secret 2" not in stored
    assert b"my secret 1" in stored
    report = upkeep.check(tmp_path)
    assert (report.is_whole, report.erased) == (True, 1)
    shutil.rmtree(tmp_path / "snapshots")
    with running(tmp_path) as service:  # learnt again from the vectors
        assert_same_matrix(learner_of(service), oasis_of(rows[[[0, 1, 2]]]))
    changed(tmp_path, "UPDATE events SET body = '{\"erased\":true}' WHERE position = 1")
    assert "no event says that it was erased" in upkeep.check(tmp_path).problems[0]


# -- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_snapshots", [False, True])
def test_only_the_owner_may_read_the_log_and_the_models_of_a_folder_that_was_there(
    tmp_path, has_snapshots
):
    before = os.umask(0o022)
    try:
        if has_snapshots:  # as services before 0.2.0 left it
            (tmp_path / "snapshots").mkdir(mode=0o755)
        filled(tmp_path, n_judged=1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log.sqlite").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "snapshots").stat().st_mode) == 0o700


def test_the_commands(tmp_path):
    filled(tmp_path / "a", n_judged=3)
    runner = CliRunner()

    def run(*words):
        found = runner.invoke(main, [str(word) for word in words])
        return found.exit_code, found.output

    assert run("check", tmp_path / "a") == (
        0,
        "15 events and 1 snapshot verified\neverything is whole\n",
    )
    assert run("backup", tmp_path / "a", tmp_path / "b")[0] == 0
    code, text = run("backup", tmp_path / "a", tmp_path / "b")
    assert (code, "a new or empty folder, got one that is not empty" in text) == (1, True)
    changed(tmp_path / "a", "UPDATE events SET body = '{' WHERE position = 14")
    code, text = run("check", tmp_path / "a")
    assert (code, "the event at position 14 is damaged" in text) == (1, True)
    code, text = run("check", tmp_path / "a", "--salvage", tmp_path / "c")
    assert (code, "damaged: 1 event" in text) == (0, True)
    assert run("restore", tmp_path / "b", tmp_path / "d")[0] == 0
    assert run("check", tmp_path)[0] == 1
    code, text = run("erase", tmp_path / "b", "i1")
    assert (code, "delete it first" in text) == (1, True)
