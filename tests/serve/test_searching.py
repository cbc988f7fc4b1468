"""Searches that wait together are answered together, each as if it were alone."""

import functools
import threading
from concurrent.futures import wait

import numpy as np
import pytest
from live import add_items, judge, running, vectors

from simstream.serve.access import BusyError
from simstream.serve.searching import Searches


@pytest.fixture
def service(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(50))
        for _ in range(5):
            judge(service, "i0", "i1", "i2")
        assert service.engine.wait_for(service.writer.last, 60)
        yield service


class Slow:
    """A version whose first search waits until it is let go."""

    def __init__(self, version):
        self._version, self.go, self.sizes = version, threading.Event(), []

    def search_many(self, rows, k, task, *, learnt):
        self.sizes.append(rows.shape[0])
        assert self.go.wait(30)
        return self._version.search_many(rows, k, task, learnt=learnt)


def test_what_waits_is_one_product_and_everybody_gets_the_own_answer(service):
    searches, slow = Searches(n_threads=1), Slow(service.version)
    rows, names = vectors(50), service.engine.items.positions
    asked = [
        searches.submit(slow, rows[n : n + 1], 3 + n % 4, None, True, names[f"i{n}"])
        for n in range(30)
    ]
    slow.go.set()
    wait(asked, 30)
    assert len(slow.sizes) <= 3
    assert sum(slow.sizes) == searches.n_searches == 30
    for n, future in enumerate(asked):
        alone = service.version.search_many(rows[n : n + 1], 4 + n % 4)[0]
        expected = [hit for hit in alone if hit[0] != names[f"i{n}"]][: 3 + n % 4]
        found = future.result()
        assert [position for position, _ in found] == [position for position, _ in expected]
        assert np.allclose([score for _, score in found], [score for _, score in expected])
    searches.close()


def test_searches_of_other_versions_tasks_and_similarities_are_not_mixed(service):
    searches = Searches(n_threads=1)
    first, second = Slow(service.version), Slow(service.version)
    row = vectors(50)[:1]
    asked = [searches.submit(first, row, 3, None, True, 0)]
    for version, learnt in ((first, False), (second, True), (first, True), (first, False)):
        asked.append(searches.submit(version, row, 3, None, learnt, 0))
    first.go.set()
    second.go.set()
    answers = [future.result(30) for future in asked]
    plain = service.version.search_many(row, 3, learnt=False)[0]
    assert [answer == plain for answer in answers] == [False, True, False, False, True]
    assert second.sizes == [1]
    searches.close()


def test_one_bad_query_does_not_spoil_the_others(service):
    searches, slow = Searches(n_threads=1), Slow(service.version)
    good = vectors(50)[:1]
    bad = np.full((1, 6), np.nan, np.float32)
    asked = [searches.submit(slow, row, 3, None, True, 0) for row in (good, good, bad, good)]
    slow.go.set()
    wait(asked, 30)
    assert [future.exception() is None for future in asked] == [True, True, False, True]
    searches.close()


def test_too_many_that_wait_are_refused_and_closing_answers_the_rest(service):
    searches, slow = Searches(n_threads=1, capacity=2), Slow(service.version)
    row, asked = vectors(50)[:1], []
    submit = functools.partial(searches.submit, slow, row, 3, None, True, 0)
    with pytest.raises(BusyError, match="too many searches"):
        asked.extend(submit() for _ in range(9))
    slow.go.set()
    searches.close()
    assert all(len(future.result(0)) == 3 for future in asked)
    with pytest.raises(BusyError, match="shutting down"):
        searches.submit(slow, row, 3, None, True, 0)
