"""The log in PostgreSQL: one writer, woken readers, lost connections, and nothing written twice."""

import importlib
import logging
import select
import sys
import threading
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from live import (
    add_items,
    assert_same_matrix,
    do,
    judge,
    learner_of,
    oasis_of,
    running,
    vectors,
    wait_until,
)

from postgres import connected
from simstream.cli import main
from simstream.serve import upkeep
from simstream.serve.access import StorageError
from simstream.serve.log import Log, LogError, open_log
from simstream.serve.service import Service, Settings
from simstream.serve.store import LostError, NoLogError
from simstream.serve.writer import Ledger, NewItem

postgres_store = pytest.importorskip("simstream.serve.postgres_store")

ROWS = vectors(12)


@pytest.fixture
def place(postgres):
    return postgres.address()


def cut(place, service):
    """End the session that writes, as a server does that is stopped."""
    pid = service.log.store._connections["write"].info.backend_pid
    with connected(place) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 30000)", (pid,))


def count_feedback(place):
    with connected(place) as connection:
        return connection.execute("SELECT count(*) FROM events WHERE kind = 'feedback'").fetchone()[
            0
        ]


# -- addresses --------------------------------------------------------------------------------


def test_a_password_is_used_and_never_shown(tmp_path):
    text = "postgresql://me:hush%40hush@127.0.0.1:1/db?sslpassword=hush&schema=a"
    address = postgres_store.address_of(text)
    assert "password='hush@hush'" in address.conninfo or "password=hush@hush" in address.conninfo
    assert address.shown == "postgresql://me@127.0.0.1:1/db?schema=a"
    done = CliRunner().invoke(
        main, ["serve", "--data", str(tmp_path / "a"), "--log", text, "--port", "0"]
    )
    assert done.exit_code == 1
    assert "postgresql://me@127.0.0.1:1/db?schema=a: connection failed" in done.output
    assert "hush" not in done.output
    assert len(done.output.splitlines()) == 1, "told once"


@pytest.mark.parametrize(
    "text",
    [
        "mysql://me:hush@host/db",
        "postgresql://me:hu@hush@host/db",
        "postgresql://me:hu/hush@host/db",
        "postgresql://me:1#hush@host/db",
        "postgresql://me:1?hush@host/db",
        "postgresql://host/db?hush=1",
        "hush",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(text):
    with pytest.raises(LogError, match=r"expected postgresql://\[user@\]host") as caught:
        postgres_store.address_of(text)
    assert "hush" not in str(caught.value)


def test_a_missing_driver_is_told_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "simstream.serve.postgres_store")
    with pytest.raises(ImportError, match=r"pip install 'simstream\[postgres\]'"):
        open_log(tmp_path, "postgresql://host/db")


def test_the_command_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("simstream.cli.options.find_spec", lambda name: None)
    words = ["serve", "--data", str(tmp_path / "a"), "--log", "postgresql://host/db"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "simstream[postgres]" in done.output) == (2, True)


# -- opening ----------------------------------------------------------------------------------


def test_there_is_one_writer(tmp_path, place, monkeypatch):
    monkeypatch.setattr(postgres_store, "_LOCK_MILLISECONDS", 100)
    with running(tmp_path / "a", log=place) as service:
        add_items(service, ROWS)
        with pytest.raises(LogError, match="another service writes to this log"):
            Service(Settings(tmp_path / "b", log=place))
        judge(service, "i0", "i1", "i2")
    with running(tmp_path / "b", log=place) as service:  # another folder, the same log
        assert service.writer.last == 13


def test_the_folder_knows_its_log(tmp_path, place):
    with running(tmp_path / "a", log=place) as service:
        add_items(service, ROWS)
        assert service.log.store._connections.keys() == {"write", "read"}
    with running(tmp_path / "a") as service:
        assert service.writer.last == 12
    assert not (tmp_path / "a" / "log.sqlite").exists()
    with running(tmp_path / "b") as service:
        add_items(service, ROWS)
    with pytest.raises(LogError, match="has a log of its own"):
        Service(Settings(tmp_path / "b", log=place))


def test_an_empty_log_of_a_start_that_failed_is_no_hindrance(tmp_path, place):
    with running(tmp_path):
        pass
    for _ in range(2):
        with running(tmp_path, log=place) as service:
            assert service.log.name.startswith("postgresql://")
    upkeep.back_up(tmp_path, tmp_path / "copy")


def test_services_share_a_database(tmp_path, postgres):
    with (
        running(tmp_path / "a", log=postgres.address()) as first,
        running(tmp_path / "b", log=postgres.address()) as second,
    ):
        add_items(first, ROWS)
        add_items(second, ROWS[:3])
        assert (first.log.last, second.log.last) == (12, 3)
        assert first.log.setting("identity") != second.log.setting("identity")


def test_what_is_not_a_log_is_refused(tmp_path, place):
    with pytest.raises(NoLogError, match="no such log"):
        Log(place, folder=tmp_path)
    with (
        pytest.raises(LogError, match="service to follow"),
        running(tmp_path / "f", log=place, follow=True),
    ):
        pass
    Log(place, folder=tmp_path, is_owner=True).close()
    with connected(place) as connection:
        connection.execute("UPDATE settings SET value = '99' WHERE name = 'format'")
    with pytest.raises(LogError, match="upgrade"):
        Log(place, folder=tmp_path, is_owner=True)
    with connected(place) as connection:
        connection.execute("DROP TABLE settings; CREATE TABLE settings (x TEXT)")
    with pytest.raises(LogError, match="got other tables"):
        Log(place, folder=tmp_path, is_owner=True)


def test_commits_are_durable_whatever_the_role_prefers(tmp_path, place):
    loose = place.replace("&schema", "&options=-csynchronous_commit%3Doff&schema")
    with running(tmp_path, log=loose) as service:
        (shown,) = service.log.store._connections["write"].execute("SHOW synchronous_commit")
        assert shown == ("on",)


# -- following --------------------------------------------------------------------------------


def test_a_follower_is_woken(tmp_path, place, monkeypatch):
    """It looks by itself only every ten minutes here."""
    with running(tmp_path / "a", log=place) as writer:
        add_items(writer, ROWS)
        monkeypatch.setattr(postgres_store, "_POLL_SECONDS", 600)
        with running(tmp_path / "b", log=place, follow=True) as reader:
            wait_until(lambda: "listen" in reader.log.store._connections)
            for _ in range(3):
                last = judge(writer, "i0", "i1", "i2").last
                assert reader.engine.wait_for(last, 60)
            assert_same_matrix(learner_of(reader), oasis_of(ROWS[[[0, 1, 2]] * 3]))
            monkeypatch.setattr(postgres_store, "_POLL_SECONDS", 0.1)
            judge(writer, "i0", "i1", "i2")  # so that it notices the end soon


def test_a_follower_that_is_not_woken_looks_by_itself(tmp_path, place):
    with running(tmp_path / "a", log=place) as writer:
        writer.log.store._channel = "nobody_listens"
        add_items(writer, ROWS)
        with running(tmp_path / "b", log=place, follow=True) as reader:
            assert reader.engine.wait_for(judge(writer, "i0", "i1", "i2").last, 60)


def test_a_follower_of_a_standby(tmp_path, postgres):
    """A standby cannot notify: it is looked at now and then, also after it has become the server."""
    place, signal = postgres.address(), postgres.folder / "data" / "standby.signal"
    with running(tmp_path / "a", log=place) as writer:
        add_items(writer, ROWS)
    postgres.stop()
    signal.touch()
    postgres.start()
    try:
        with running(tmp_path / "b", log=place, follow=True) as reader:
            wait_until(lambda: "listen" in reader.log.store._connections)
            looks, look = [], reader.log.look
            reader.log.look = lambda: (looks.append(1), look())[1]
            wait_until(lambda: len(looks) > 2)
            assert reader.stopped() is None
            postgres.stop()
            signal.unlink()
            postgres.start()
            with running(tmp_path / "a") as writer:
                assert reader.engine.wait_for(judge(writer, "i0", "i1", "i2").last, 60)
    finally:
        if signal.exists():
            postgres.stop()
            signal.unlink()
            postgres.start()


def test_following_ends_if_waiting_fails(tmp_path, place, monkeypatch):
    with running(tmp_path / "a", log=place) as writer:
        add_items(writer, ROWS)
        with running(tmp_path / "b", log=place, follow=True) as reader:
            monkeypatch.setattr(reader.log.store, "wait", refuse)
            wait_until(lambda: reader.stopped() == "following has stopped")


def refuse(*_):
    raise LogError("not here")


def test_a_follower_tells_that_the_log_was_replaced(tmp_path, place):
    with running(tmp_path / "a", log=place) as writer:
        add_items(writer, ROWS)
    with running(tmp_path / "b", log=place, follow=True) as reader:
        assert reader.stopped() is None
        with connected(place) as connection:
            connection.execute("DELETE FROM events WHERE position > 3")
        wait_until(lambda: reader.stopped() == "following has stopped")
        assert len(reader.search("i0", 3)) == 3


# -- lost connections -------------------------------------------------------------------------


def test_a_connection_that_ends_between_two_requests_is_made_anew(tmp_path, place):
    with running(tmp_path, log=place) as service:
        add_items(service, ROWS)
        for _ in range(3):
            cut(place, service)
            judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(15, 60)
        assert_same_matrix(learner_of(service), oasis_of(ROWS[[[0, 1, 2]] * 3]))
    assert upkeep.check(tmp_path).is_whole


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_commit_without_an_answer_is_written_once(tmp_path, place, is_kept):
    with running(tmp_path, log=place) as service:
        store, commit = service.log.store, service.log.store.commit

        def lose():
            store.commit = commit
            if is_kept:
                commit()
            cut(place, service)
            raise LostError("no answer; whether the last changes were kept is not known")

        add_items(service, ROWS)
        store.commit = lose
        with pytest.raises(StorageError, match=r"cannot be written: .* not known"):
            judge(service, "i0", "i1", "i2", key="a")
        assert count_feedback(place) == is_kept
        assert service.engine.wait_for(12 + is_kept, 60)  # nobody has to write for that
        assert service.version.tally.triplets == is_kept
        receipt = judge(service, "i0", "i1", "i2", key="a")
        assert (receipt.first, receipt.is_repeated) == (13, is_kept)
        # The same for items: the ledger knows those that were kept.
        store.commit = lose
        with pytest.raises(StorageError, match="not known"):
            do(service, Ledger.add_items, [NewItem("new", ROWS[0], {})])
        receipt = do(service, Ledger.add_missing, [NewItem("new", ROWS[0], {})])
        assert receipt.events == (not is_kept)
        judge(service, "new", "i1", "i2")
        assert service.engine.wait_for(15, 60)
        assert service.writer.last == service.log.last == 15
        assert_same_matrix(learner_of(service), oasis_of(ROWS[[[0, 1, 2]] * 2]))
    assert count_feedback(place) == 2
    assert upkeep.check(tmp_path).is_whole


def test_a_service_that_was_overtaken_never_writes_again(tmp_path, place):
    with running(tmp_path / "a", log=place) as first:
        add_items(first, ROWS)
        store, connect = first.log.store, first.log.store._connect
        away = threading.Event()
        away.set()

        def refused(role):
            if away.is_set() and role == "write":
                raise LostError("the network is down")
            return connect(role)

        store._connect = refused
        cut(place, first)
        with pytest.raises(StorageError, match="network is down"):
            judge(first, "i0", "i1", "i2")
        assert first.stopped() == "the log cannot be reached"
        with running(tmp_path / "b", log=place) as second:
            judge(second, "i3", "i4", "i5")
        away.clear()
        wait_until(lambda: first.stopped() == "writing has stopped")
        with pytest.raises(StorageError, match="got another end at 13; start the service again"):
            judge(first, "i0", "i1", "i2")
    assert count_feedback(place) == 1
    assert upkeep.check(tmp_path / "b").is_whole


def test_a_server_that_is_stopped_for_a_while(tmp_path, postgres, caplog):
    """Nothing is acknowledged meanwhile, searches go on, and so does the service once it is back."""
    place = postgres.address()
    with (
        running(tmp_path / "a", log=place) as service,
        running(tmp_path / "b", log=place, follow=True) as reader,
    ):
        add_items(service, ROWS)
        assert reader.engine.wait_for(12, 60)
        postgres.stop()
        try:
            with pytest.raises(
                StorageError, match=r"cannot be written: its database cannot be"
            ) as told:
                judge(service, "i0", "i1", "i2")
            assert "postgresql" not in str(told.value)
            assert service.stopped() == "the log cannot be reached"
            wait_until(lambda: reader.stopped() == "the log cannot be reached")
            assert len(service.search("i0", 3)) == len(reader.search("i0", 3)) == 3
            with pytest.raises(LogError, match="connection"):
                service.item("i0")
        finally:
            postgres.start()
        wait_until(lambda: service.stopped() is None and reader.stopped() is None)
        last = judge(service, "i0", "i1", "i2").last
        assert last == 13
        for one in (service, reader):
            assert one.engine.wait_for(last, 60)
            assert_same_matrix(learner_of(one), oasis_of(ROWS[[[0, 1, 2]]]))
        assert service.item("i0")[0] == 1
    for told in ("the log cannot be reached to ", "the log can be reached again"):
        assert caplog.text.count(told) == 2, "each of the two says it once"


def test_who_only_reads_is_told_when_the_server_is_back(tmp_path, postgres):
    with running(tmp_path, log=postgres.address()) as service:
        add_items(service, ROWS)
        postgres.stop()
        try:
            with pytest.raises(LostError):
                service.item("i0")
            assert service.stopped() == "the log cannot be reached"
        finally:
            postgres.start()
        wait_until(lambda: service.stopped() is None)


def test_a_service_that_does_nothing_notices_that_the_server_is_away(tmp_path, postgres):
    with running(tmp_path, log=postgres.address()) as service:
        add_items(service, ROWS)
        postgres.stop()
        try:
            wait_until(lambda: service.stopped() == "the log cannot be reached")
        finally:
            postgres.start()
        wait_until(lambda: service.stopped() is None)


def test_where_connections_cannot_be_polled_they_are_not_lost_before_they_are_needed(monkeypatch):
    for name in ("poll", "POLLHUP", "POLLRDHUP"):  # which Windows lacks
        monkeypatch.delattr(select, name, raising=False)
    name = "simstream.serve.postgres_store"
    monkeypatch.delitem(sys.modules, name)
    store = object.__new__(importlib.import_module(name).PostgresStore)
    store._lost, store._connections = set(), {"write": SimpleNamespace(fileno=lambda: 0)}
    assert not store.is_lost


def test_a_follower_never_takes_the_lock_of_the_writer(tmp_path, postgres, monkeypatch):
    place, roles = postgres.address(), []
    with running(tmp_path / "a", log=place) as service:
        add_items(service, ROWS)
    with running(tmp_path / "b", log=place, follow=True) as reader:
        connect = reader.log.store._connect
        monkeypatch.setattr(
            reader.log.store, "_connect", lambda r: (roles.append(r), connect(r))[1]
        )
        postgres.stop()
        try:
            wait_until(lambda: reader.stopped() == "the log cannot be reached")
            reader.writer._write([])
            reader.close()
        finally:
            postgres.start()
    assert {"read", "listen"} >= set(roles) >= {"read"}


def test_learning_waits_for_a_server_that_is_away(tmp_path, postgres, monkeypatch):
    """The engine has been told of events that it cannot read yet."""
    with running(tmp_path, log=postgres.address()) as service:
        add_items(service, ROWS)
        told, waiting = [], threading.Event()
        notify, sleep = service.engine.notify, postgres_store.time.sleep
        service.writer._on_commit = lambda *args: told.append(args)
        judge(service, "i0", "i1", "i2")
        postgres.stop()
        try:
            monkeypatch.setattr(postgres_store.time, "sleep", lambda s: (waiting.set(), sleep(s)))
            notify(*told[0])
            assert waiting.wait(60)
        finally:
            postgres.start()
        assert service.engine.wait_for(13, 60)
        assert service.engine.failure is None
        assert_same_matrix(learner_of(service), oasis_of(ROWS[[[0, 1, 2]]]))


# -- what was lost, and moving ----------------------------------------------------------------


def test_a_database_that_lost_acknowledged_events_is_noticed(tmp_path, place, caplog):
    with running(tmp_path, log=place) as service:
        add_items(service, ROWS)
        judge(service, "i0", "i1", "i2")
    with connected(place) as connection:
        connection.execute("DELETE FROM events WHERE position = 13")
    assert "events up to 13 were acknowledged" in upkeep.check(tmp_path).problems[0]
    with caplog.at_level(logging.WARNING), running(tmp_path) as service:
        assert "ends at position 12, but events up to position 13 were acknowledged" in caplog.text
        assert service.engine.has_lost


def test_a_folder_does_not_go_on_with_a_log_that_lacks_its_events(tmp_path, postgres):
    place, other = postgres.address(), postgres.address()
    with running(tmp_path / "a", log=place) as service:
        add_items(service, ROWS)
    with pytest.raises(LogError, match=r"its log is at .*choose another folder"):
        Service(Settings(tmp_path / "a", log=other))
    with pytest.raises(NoLogError):  # nothing was begun there
        Log(other, folder=tmp_path)
    with running(tmp_path / "b", log=other) as service:
        add_items(service, ROWS[:3])
    with pytest.raises(LogError, match=r"its log is at .*choose another folder"):
        Service(Settings(tmp_path / "a", log=other))
    moved = postgres.address()
    upkeep.restore(tmp_path / "a", tmp_path / "c", moved)
    with running(tmp_path / "a", log=moved) as service:
        assert service.writer.last == 12
    with running(tmp_path / "a") as service:
        assert service.log.name == moved


def test_the_commands(tmp_path, place):
    with running(tmp_path / "a") as service:
        add_items(service, ROWS)
        judge(service, "i0", "i1", "i2")
        do(service, Ledger.put_item, NewItem("i3", ROWS[3], {"text": "secret"}))
        do(service, Ledger.delete_item, "i3")

    def run(*words):
        found = CliRunner().invoke(main, [str(word) for word in words])
        return found.exit_code, found.output

    new = tmp_path / "b"
    assert run("restore", tmp_path / "a", new, "--log", place)[0] == 0
    whole = "everything is whole\n"
    assert run("check", new) == (0, f"15 events and 0 snapshots verified\n{whole}")
    assert run("erase", new, "i3")[0] == 0
    assert run("check", new)[1].endswith(f"erased by the operator: 1 event\n{whole}")
    assert run("backup", new, tmp_path / "c")[0] == 0
    code, text = run("check", tmp_path / "c")
    assert (code, "erased by the operator: 1 event" in text) == (0, True)
    assert run("replay", "--data", new)[0] == 0
    code, text = run("restore", tmp_path / "a", tmp_path / "d", "--log", place)
    assert (code, "expected an empty log" in text) == (1, True)


def test_a_log_moves_to_postgresql_and_back(tmp_path, postgres):
    """It is the same log everywhere: identity, hashes, requests; the model and its snapshots fit."""
    place = postgres.address()
    with running(tmp_path / "a") as service:
        add_items(service, ROWS)
        judge(service, "i0", "i1", "i2", key="k")
        judge(service, "i3", "i4", "i5")
        hashes = [service.log.hash_at(position) for position in range(15)]
    assert upkeep.restore(tmp_path / "a", tmp_path / "b", place) == 14
    with pytest.raises(LogError, match="expected an empty log, got one with events up to 14"):
        upkeep.restore(tmp_path / "a", tmp_path / "c", place)
    assert not (tmp_path / "c").exists()
    (tmp_path / "a" / "snapshots").rename(tmp_path / "b" / "snapshots")
    with running(tmp_path / "b") as service:
        assert service.log.name == place
        assert [service.log.hash_at(position) for position in range(15)] == hashes
        assert (service.engine.snapshots.n_refused, service.engine.has_lost) == (0, False)
        assert judge(service, "i0", "i1", "i2", key="k").is_repeated
        judge(service, "i6", "i7", "i8")
        assert upkeep.back_up(tmp_path / "b", tmp_path / "d") == 15
    assert upkeep.check(tmp_path / "d").is_whole
    with running(tmp_path / "d") as service:
        assert judge(service, "i0", "i1", "i2", key="k").is_repeated
        assert service.log.hash_at(14) == hashes[14]
        triplets = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert_same_matrix(learner_of(service), oasis_of(ROWS[triplets]))
