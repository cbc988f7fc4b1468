"""What a restart reads, in which order, and what it does not load."""

import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from live import SOURCE, add_items, do, judge, learner_of, running, vectors

from simstream.serve import state
from simstream.serve.events import SparseVector
from simstream.serve.log import Log
from simstream.serve.snapshots import same_bits
from simstream.serve.sqlite_store import SqliteStore
from simstream.serve.writer import Ledger, NewItem


def sparse_vectors(n, d=6, seed=0):
    rows = sp.random(n, d, 0.5, "csr", np.float32, random_state=seed)
    rows = sp.csr_matrix(rows + sp.csr_matrix((np.ones(n), (range(n), [0] * n)), (n, d)))
    return [SparseVector(row.indices, row.data) for row in (rows[i] for i in range(n))]


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_items_that_came_and_went_are_there_again(tmp_path, monkeypatch, batch, is_sparse):
    """However many are read at a time: replaced, deleted, added again, replaced in the same batch."""
    monkeypatch.setattr(state, "_ITEM_BATCH", batch)
    make = sparse_vectors if is_sparse else vectors
    options = {"n_features": 6 if is_sparse else None}
    first, second = make(12), make(12, seed=1)
    with running(tmp_path, **options) as service:
        add_items(service, first)
        for n in (0, 1, 2, 2, 11):
            do(service, Ledger.put_item, NewItem(f"i{n}", second[n], {}))
        for n in (1, 5, 6, 7):
            do(service, Ledger.delete_item, f"i{n}")
        do(service, Ledger.add_items, [NewItem("i5", second[5], {})])
        judge(service, "i0", "i2", "i3")
        assert service.engine.wait_for(service.writer.last, 60)
        before = service.engine.items
        found = {name: service.search(name, 20) for name in before.positions}
        learner = learner_of(service)
    with running(tmp_path, **options) as service:
        after = service.engine.items
        assert list(after.positions.items()) == list(before.positions.items())
        assert after.names == before.names
        assert after.view.ids == before.view.ids == sorted(after.positions.values())
        assert same_bits(learner_of(service), learner)
        for name, hits in found.items():
            again = service.search(name, 20)
            assert [hit[0] for hit in again] == [hit[0] for hit in hits]
            assert np.allclose([hit[1] for hit in again], [hit[1] for hit in hits], atol=1e-6)


def plan(connection, query, *values):
    rows = connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
    return " ".join(row[-1] for row in rows)


def test_a_log_of_an_earlier_version_gets_the_index_of_items(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(5))
        judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(6, 60)
        learner = learner_of(service)
    connection = sqlite3.connect(tmp_path / "log.sqlite")
    connection.execute("DROP INDEX item_events")
    connection.close()
    with running(tmp_path) as service:
        assert same_bits(learner_of(service), learner)
        assert len(service.engine.items) == 5
        query = "SELECT count(*) FROM events WHERE position > 0 AND kind IN ('item', 'delete')"
        assert "item_events" in plan(service.log.store.connection, query)


def test_a_log_that_cannot_be_written_to_is_read_without_the_index(tmp_path, monkeypatch):
    """If the index cannot be created (a full disk), everything works without it."""
    with running(tmp_path) as service:
        add_items(service, vectors(5))
    path = tmp_path / "log.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX item_events")
    connection.close()

    class Full(SqliteStore):
        @property
        def connection(self):
            found = super().connection
            found.execute("PRAGMA query_only = 1")  # whatever changes the file is refused
            return found

    monkeypatch.setattr("simstream.serve.log.SqliteStore", Full)
    log = Log(path, is_owner=True)
    query = "SELECT count(*) FROM events WHERE position > 0 AND kind IN ('item', 'delete')"
    assert "item_events" not in plan(log.store.connection, query)
    assert log.count_items(5) == 5
    assert [len(some) for some in log.read_items(5, 2)] == [2, 2, 1]
    log.close()


def test_starting_loads_nothing_that_is_not_needed():
    code = (
        "import sys, sklearn.base; "
        "needed = set(sys.modules); "  # pandas too, where it is installed
        "import simstream.cli.serve, simstream.serve.app, simstream.serve.service, uvicorn; "
        "heavy = {'sklearn.datasets', 'sklearn.preprocessing', 'pandas', 'matplotlib', 'rich', 'PIL'}; "
        "print(sorted(heavy & set(sys.modules) - needed))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
