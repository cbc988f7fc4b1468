"""serve, replay and keys on the command line; importing files."""

import importlib
import importlib.util
import json
import socket
import sqlite3
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from live import Client, ServerProcess, add_items, do, judge, learner_of, oasis_of, running, vectors

import simstream
from simstream import catalogue
from simstream.cli import main
from simstream.data import write_items
from simstream.serve.access import SCOPES
from simstream.serve.evidence import Publishing
from simstream.serve.import_export import import_file, import_items
from simstream.serve.log import Log, LogError
from simstream.serve.snapshots import adopt_learning
from simstream.serve.state import Learning, State
from simstream.serve.writer import Ledger


def run(*arguments, code=0):
    if arguments[0] == "serve" and "--port" not in arguments:
        arguments += ("--port", 0)  # any that is free
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("suffix", ["npz", "svm", "jsonl"])
def test_items_of_files_are_added_once(tmp_path, suffix):
    rows = vectors(30)
    path = tmp_path / f"items.{suffix}"
    if suffix == "jsonl":
        picture = "data:image/png;base64,iVBORw=="
        lines = [
            {"id": f"x{n}", "features": row.tolist(), "text": f"text {n}", "image": picture}
            for n, row in enumerate(rows)
        ]
        path.write_text("\n".join(map(json.dumps, lines)))
    else:
        values = sp.csr_matrix(rows) if suffix == "svm" else rows
        write_items(path, values, labels=np.zeros(30, int))
    options = {"n_features": 6} if suffix == "svm" else {}
    for expected in (30, 0):
        with running(tmp_path / "data", **options) as service:
            assert import_file(service, path).added == expected
            name = "x7" if suffix == "jsonl" else "7"
            _, vector, payload = service.item(name)
            given = vector.values if suffix == "svm" else vector
            assert np.allclose(given, rows[7], atol=1e-6)
            if suffix == "jsonl":
                assert payload == {"text": "text 7", "image": picture}


def test_items_that_do_not_fit_are_refused_in_words(tmp_path):
    rows = vectors(20)
    np.save(tmp_path / "items.npy", rows)
    np.save(tmp_path / "others.npy", vectors(20, seed=1))
    np.save(tmp_path / "wide.npy", vectors(20, d=7))
    np.save(tmp_path / "longer.npy", vectors(25))
    sparse = sp.csr_matrix(vectors(4))
    write_items(tmp_path / "sparse.svm", sparse, labels=np.zeros(4, int))
    lines = [{"id": name, "features": [1, 2, 3, 4, 5, 6]} for name in ("a", "b", "a")]
    (tmp_path / "twice.jsonl").write_text("\n".join(map(json.dumps, lines)))
    folder = tmp_path / "data"
    with running(folder) as service:
        import_file(service, tmp_path / "items.npy")
    for name, message in {
        "others.npy": "0 new ids and 20 known ids, 20 of them with another vector",
        "longer.npy": "5 new ids and 20 known ids; --add",
        "wide.npy": "expected dense 6-dimensional vectors",
        "sparse.svm": "expected dense vectors",
        "twice.jsonl": "got 'a' twice in the file",
    }.items():
        assert message in run("serve", tmp_path / name, "--data", folder, code=1)
    assert "ITEMS" in run("serve", "--add", "--data", folder, code=2)
    with running(folder) as service:
        assert service.writer.last == 20


def test_items_that_are_there_do_not_hinder_and_others_join_where_that_is_wanted(tmp_path):
    rows = vectors(25)
    rows[:20] = vectors(20)
    np.save(tmp_path / "items.npy", rows[:20])
    changed = rows.copy()
    changed[3] += 1
    np.save(tmp_path / "longer.npy", changed)
    with running(tmp_path / "data") as service:
        import_file(service, tmp_path / "items.npy")
        same = import_items(service, [str(n) for n in range(20)], rows[:20], None, "another file")
        assert same == (0, 20, 0)
        came = import_file(service, tmp_path / "longer.npy", may_add=True)
        assert came == (5, 20, 1)
        assert np.array_equal(service.item("3")[1], rows[3])
        assert np.array_equal(service.item("24")[1], rows[24])
        do(service, Ledger.delete_item, "24")
        # The same commands again: what was added once is not added again.
        assert import_file(service, tmp_path / "longer.npy").added == 0
        assert import_file(service, tmp_path / "items.npy").added == 0


def test_sparse_items_are_compared_too(tmp_path):
    rows = sp.csr_matrix(vectors(5) * (vectors(5) > 0))
    names = list("abcde")
    with running(tmp_path / "data", n_features=6) as service:
        assert import_items(service, names, rows, None, "1").added == 5
        assert import_items(service, names, rows, None, "2") == (0, 5, 0)
        other = rows.copy()
        other.data[0] += 1
        with pytest.raises(LogError, match="1 of them with another vector"):
            import_items(service, names, other, None, "3")


def test_serve_adds_items_and_learns_as_the_log_was_begun(tmp_path):
    np.save(tmp_path / "items.npy", vectors(20))
    folder = tmp_path / "data"
    server = ServerProcess(folder, tmp_path / "items.npy", "-a", "oasis", "-p", "C=0.5")
    client = Client(server.port)
    assert client("GET", "/v1/items")[1]["total"] == 20
    body = {"anchor": "0", "positive": "1", "negative": "2"}
    assert client("POST", "/v1/feedback", body)[0] == 201
    client.close()
    server.terminate()
    assert f"20 items added from {tmp_path / 'items.npy'}" in server.told
    again = ServerProcess(folder, tmp_path / "items.npy")
    assert f"{tmp_path / 'items.npy'}: its items were added before" in again.told
    client = Client(again.port)
    status = client("GET", "/v1/status")[1]
    assert status["algorithm"] == {"algorithm": "oasis", "params": {"C": 0.5}, "block": 1}
    assert status["triplets"] == 1
    client.close()
    again.terminate()
    text = run("serve", "--data", folder, "-a", "sors", "--promote", "always", code=1)
    changes = "--algorithm oasis, got sors; --promote safe, got always; use the same"
    assert f"was begun with -p C 0.5, got the default; {changes}" in text


@pytest.mark.parametrize("option", [("--half-life", 100), ("--propensity", 0.5)])
def test_options_of_evidence_leave_a_cosine_published_always(tmp_path, option):
    server = ServerProcess(tmp_path, "-p", "normalise=true", *option)
    server.terminate()
    with running(tmp_path, learning=Learning(params={"normalise": True})) as service:
        assert service.engine.publishing == Publishing("always")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "keys"),
        (["-a", "lmnn"], "online learner"),
        (["-a", "nothing"], "expected one of"),
        (["-p", "nothing=1"], "no parameter"),
        (["--simulate"], "--demo"),
        (["-p", "normalise=true", "--promote", "safe"], "--promote: expected 'always'"),
        (["--log", "http://127.0.0.1/x"], "expected postgresql://"),
        (["--log", "postgresql://me:hush@x:y/z"], "expected postgresql://"),
    ],
)
def test_serve_refuses_what_it_cannot_do(tmp_path, arguments, message):
    told = run("serve", "--data", tmp_path / "data", *arguments, code=2)
    assert message in told
    assert "hush" not in told
    assert not (tmp_path / "data").exists()


def test_a_learner_that_is_read_as_a_cosine_is_always_served_by_default(tmp_path):
    server = ServerProcess(tmp_path, "-p", "normalise=true")
    client = Client(server.port)
    assert client("GET", "/v1/status")[1]["published"]["promote"] == "always"
    client.close()
    server.terminate()


def test_an_unknown_learner_is_answered_with_those_that_can_serve(tmp_path):
    told = run("serve", "--data", tmp_path / "data", "-a", "nope", code=2)
    listed = told.partition("expected one of ")[2].partition(", got nope")[0].split(", ")
    assert {"oasis", "sors", "omtrsl"} <= set(listed)
    for name in listed:
        Learning(name).new_learner()
    for name in {known.name.lower() for known in catalogue.ALGORITHMS} - set(listed):
        with pytest.raises(ValueError, match="expected an online learner"):
            Learning(name).new_learner()


def test_a_full_disk_is_told_as_one(tmp_path, monkeypatch):
    path = tmp_path / "items.npy"
    np.save(path, np.eye(5))

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Log, "append", full)
    message = run("serve", path, "--data", tmp_path / "data", "--port", 0, code=1)
    assert "data: the log cannot be written: database or disk is full" in message


def test_a_port_in_use_is_told_before_anything_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = run("serve", "--demo", "--data", tmp_path / "data", "--port", port, code=1)
    assert f"127.0.0.1 port {port} (Address already in use)" in text
    assert not (tmp_path / "data").exists()


def test_keys_are_made_listed_and_removed(tmp_path):
    key = run("keys", "add", "page", "--scope", "read", "--data", tmp_path).strip()
    listed = run("keys", "list", "--data", tmp_path)
    assert "page\tread" in listed
    assert key not in listed
    identity = listed.split("\t")[0]
    run("keys", "remove", identity, "--data", tmp_path)
    assert "has no keys: only this machine" in run("keys", "list", "--data", tmp_path)
    assert json.loads(run("keys", "list", "--json", "--data", tmp_path)) == {"keys": []}


def test_keys_have_names_which_may_be_shared(tmp_path):
    for name in ("", " "):
        text = run("keys", "add", name, "--scope", "read", "--data", tmp_path / "new", code=2)
        assert "NAME" in text
    assert not (tmp_path / "new").exists()
    add = ["keys", "add", "ann", "--scope", "read", "--data", str(tmp_path)]
    first, second = (CliRunner().invoke(main, add) for _ in range(2))
    assert first.stderr == ""
    assert second.stderr == "another key is named ann: both are one caller (serve --rate)\n"
    assert len({first.stdout, second.stdout}) == 2
    assert "no key has the id 'ann' (simstream keys list shows ids)" in run(
        *("keys", "remove", "ann", "--data", tmp_path), code=1
    )


def test_keys_are_of_a_service_that_is_there_or_will_be(tmp_path):
    add = ["add", "page", "--scope", "follow"]
    for name, file in {"photos": "cat.png", "project": "pyproject.toml"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    (tmp_path / "empty").mkdir()
    for name, message, commands in [
        ("photos", "expected the folder of", [["list"], add, ["remove", "00"]]),
        ("project", "expected the folder of", [["list"], add, ["remove", "00"]]),
        ("empty", "expected the folder of", [["list"], ["remove", "00"]]),
        ("typo", "typo: no such folder", [["list"], ["remove", "00"]]),
        ("typo/data", "typo: no such folder", [["list"], add, ["remove", "00"]]),
    ]:
        for command in commands:
            text = run("keys", *command, "--data", tmp_path / name, code=2)
            assert "--data" in text
            assert message in text.replace("typo/data", "typo")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {
        *("photos", "photos/cat.png", "project", "project/pyproject.toml", "empty")
    }
    with running(tmp_path / "served"):
        pass
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    (tmp_path / "all.toml").touch()
    for name in ("served", "volume", ".", "empty", "new"):
        folder = tmp_path / name
        assert ("made the folder" in run("keys", *add, "--data", folder)) == (name == "new")
        assert "page\tfollow" in run("keys", "list", "--data", folder)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_every_scope_can_be_given():
    (scope,) = (one for one in main.commands["keys"].commands["add"].params if one.name == "scopes")
    assert tuple(scope.type.choices) == SCOPES


def test_keys_that_have_expired_are_marked(tmp_path, monkeypatch):
    now = datetime.now(UTC)
    run("keys", "add", "old", "--scope", "read", "--days", 1, "--data", tmp_path)
    run("keys", "add", "new", "--scope", "read", "--days", 3, "--data", tmp_path)
    run("keys", "add", "open", "--scope", "read", "--data", tmp_path)
    monkeypatch.setattr(time, "time", lambda: (now + timedelta(days=2)).timestamp())
    listed = json.loads(run("keys", "list", "--json", "--data", tmp_path))["keys"]
    assert [(key["name"], key["is_expired"]) for key in listed] == [
        ("old", True),
        ("new", False),
        ("open", False),
    ]
    ends = [datetime.fromisoformat(key["expires"]) for key in listed[:2]]  # with its time zone
    assert [round((end - now) / timedelta(days=1)) for end in ends] == [1, 3]
    assert listed[2]["expires"] is None
    lines = run("keys", "list", "--data", tmp_path).splitlines()
    assert [line.split("\t")[3:] for line in lines] == [
        [f"expired {listed[0]['expires']}"],
        [f"until {listed[1]['expires']}"],
        [],
    ]


def test_replay_compares_and_changes_the_learner(tmp_path):
    rows = vectors(30)
    rng = np.random.default_rng(0)
    triplets = [rng.permutation(30)[:3] for _ in range(40)]
    folder = tmp_path / "data"
    with running(folder) as service:
        add_items(service, rows)
        for triplet in triplets:
            judge(service, *(f"i{n}" for n in triplet))
    report = json.loads(run("replay", "--data", folder, "--json"))
    assert (report["identical"], report["kept_model_matches_log"]) == (True, True)
    assert "the rebuilt model is the kept one, bit for bit" in run("replay", "--data", folder)
    other = json.loads(run("replay", "--data", folder, "-a", "oasis", "-p", "C=5", "--json"))
    assert (other["identical"], other["kept_model_matches_log"]) == (None, True)
    output = tmp_path / "sors.safetensors"
    text = run(
        *("replay", "--data", folder, "-a", "sors", "-p", "lam=0.001", "-o", output, "--adopt")
    )
    assert "the kept model is what the log says, bit for bit" in text
    assert "the rebuilt model is" not in text
    expected = simstream.SORS(lam=0.001, dtype="float32", preprocessor=rows).fit(np.array(triplets))
    got = simstream.load(output)
    assert np.array_equal(got.get_bilinear_matrix(), expected.get_bilinear_matrix())
    with running(folder, learning=Learning("sors", {"lam": 0.001})) as service:
        got = learner_of(service).get_bilinear_matrix()
        assert np.array_equal(got, expected.get_bilinear_matrix())
    half = json.loads(run("replay", "--data", folder, "--until", 50, "--json"))
    assert half["models"]["kept: sors lam=0.001"]["triplets"] == 20
    assert "expected one of oasis" in run("replay", "--data", folder, "-a", "nothing", code=2)
    run("replay", "--data", tmp_path / "absent", code=2)


def test_the_learner_is_not_changed_while_the_service_runs(tmp_path):
    folder, output = tmp_path / "data", tmp_path / "sors.safetensors"
    arguments = ("replay", "--data", folder, "-a", "sors", "-o", output, "--adopt")
    with running(folder) as service:
        add_items(service, vectors(10))
        judge(service, "i0", "i1", "i2")
        assert "another service uses this folder" in run(*arguments, code=1)
        with pytest.raises(LogError, match="another service uses this folder"):
            adopt_learning(folder, lambda kept: Learning("sors"))
        assert not output.exists()
        assert service.log.setting("service")["learning"]["algorithm"] == "oasis"
        run("replay", "--data", folder)  # only reads
    run(*arguments)
    with running(folder, learning=Learning("sors")):
        pass


def test_a_lying_snapshot_is_found_by_replay(tmp_path):
    """A snapshot that is well-formed but not what the log says."""
    rows = vectors(10)
    with running(tmp_path) as service:
        add_items(service, rows)
        judge(service, "i0", "i1", "i2")
        judge(service, "i3", "i4", "i5")
    snapshots = service.engine.snapshots
    wrong = oasis_of(rows[[[0, 2, 1], [3, 4, 5]]])
    state = State(Learning(), service.engine.items, service.log, wrong, service.version.tally, 12)
    snapshots.save(state, service.log)
    report = json.loads(run("replay", "--data", tmp_path, "--json"))
    assert report["identical"] is False
    assert "DIFFERS from the kept one" in run("replay", "--data", tmp_path)
    assert "kept model DIFFERS from what" in run("replay", "--data", tmp_path, "-a", "sors")


@pytest.mark.parametrize("where", ["schema", "events"])
def test_a_damaged_log_is_told(tmp_path, where):
    with running(tmp_path) as service:
        add_items(service, vectors(2000))
        judge(service, "i0", "i1", "i2")
    path = tmp_path / "log.sqlite"
    data = bytearray(path.read_bytes())
    begin = 100 if where == "schema" else len(data) // 2
    data[begin : begin + 20_000] = b"\xff" * 20_000
    path.write_bytes(data)
    for command in ("serve", "replay"):
        text = run(command, "--data", tmp_path, code=1)
        assert f"{path}: the log is damaged" in text
        assert "backup" in text


def test_the_files_of_a_folder_keep_their_names(tmp_path):
    with running(tmp_path):
        pass
    run("keys", "add", "page", "--scope", "read", "--data", tmp_path)
    found = {path.name for path in tmp_path.iterdir()}
    assert found >= {"log.sqlite", "keys.json", "snapshots", "lock"}


@pytest.mark.parametrize(
    ("index", "extra"),
    [("usearch", "index"), ("qdrant://h:1/c", "qdrant"), ("postgresql://h/d", "postgres")],
)
def test_an_index_whose_package_is_missing_is_told(tmp_path, monkeypatch, index, extra):
    installed = importlib.util.find_spec
    missing = {"usearch", "qdrant_client", "psycopg"}
    command = importlib.import_module("simstream.cli.serve")
    monkeypatch.setattr(
        command, "find_spec", lambda name: None if name in missing else installed(name)
    )
    options = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--index", index]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"simstream: error: --index {index} needs ")
    assert done.stderr.endswith(f"; install with: pip install 'simstream[{extra}]'\n")
    assert not (tmp_path / "data").exists()
