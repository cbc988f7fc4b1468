"""Sums over several workers, here threads that talk through sockets as processes do."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simstream._kernels.columns import summed
from simstream.distributed import exchange
from simstream.distributed.exchange import Exchange, RestartedError, partners

HOST, KEY = "127.0.0.1", b"k" * 16


def parts_of(number, size, block):
    """Nested, of several types, some empty; sums depend on their order."""
    rng = np.random.default_rng([number, block])
    large = rng.normal(size=(size, size)).astype(np.float32) * np.float32(1e3) ** number
    return rng.normal(size=size), (large, np.empty((0, 0), np.float32)), np.ones(1, np.float32)


def everyone(n_workers, do):
    """Call a function with each of some workers that have met, at the same time: what it returns."""
    exchanges = [Exchange(number, HOST) for number in range(n_workers)]
    addresses = [one.address for one in exchanges]

    def met(one):
        one.meet(addresses, KEY)
        try:
            return do(one)
        finally:
            one.close()

    with ThreadPoolExecutor(n_workers) as threads:
        return list(threads.map(met, exchanges, timeout=60))


@pytest.mark.parametrize("n_workers", range(1, 10))
def test_all_have_the_bits_of_the_sum_in_one_place(n_workers):
    size = (
        700  # two megabytes: more than connections hold, so that those who only send would be stuck
    )

    def sums(one):
        return [one.sum(parts_of(one._number, size, block)) for block in range(3)]

    found = everyone(n_workers, sums)
    for block in range(3):
        expected = summed([parts_of(number, size, block) for number in range(n_workers)])
        for of_worker in found:
            value, (large, empty), one = of_worker[block]
            np.testing.assert_array_equal(value, expected[0])
            np.testing.assert_array_equal(large, expected[1][0])
            assert empty.shape == (0, 0)
            assert one.tolist() == [n_workers]
            assert large.flags.writeable


def test_messages_grow_with_the_logarithm_of_the_workers():
    for n_workers in range(1, 70):
        met = [partners(number, n_workers) for number in range(n_workers)]
        most = max(len(some) + len(more) for some, more in met)
        assert most <= n_workers.bit_length()
        for number, (some, more) in enumerate(met):
            for other in some:
                assert met[other][0] == [number]
            for place, other in enumerate(more):
                assert met[other][1][place] == number


@pytest.mark.parametrize("n_workers", [2, 3, 6])
@pytest.mark.parametrize("gone", [0, 1])
def test_whoever_leaves_is_noticed_by_all(n_workers, gone):
    def until_lost(one):
        one.sum(np.ones(5))
        if one._number == gone:
            return None
        try:
            one.sum(np.ones(5))
        except RestartedError as error:
            return str(error)

    found = everyone(n_workers, until_lost)
    assert found.pop(gone) is None
    assert all("has lost another one" in message for message in found)


def test_strangers_are_sent_away_and_those_who_do_not_come_are_an_error(monkeypatch):
    first, second = Exchange(0, HOST), Exchange(1, HOST)
    strangers = [socket.create_connection(second.address) for _ in range(3)]
    strangers[0].sendall(b"x" * 20)
    strangers[1].close()
    strangers[2].sendall(KEY[:5])
    strangers[2].shutdown(socket.SHUT_WR)
    addresses = [first.address, second.address]
    thread = threading.Thread(target=first.meet, args=(addresses, KEY))
    thread.start()
    second.meet(addresses, KEY)
    thread.join(60)
    assert list(second._others) == [0]
    assert strangers[0].recv(1) == b""
    for one in (first, second, strangers[0], strangers[2]):
        one.close()
    monkeypatch.setattr(exchange, "_PATIENCE", 0.05)
    for number in (0, 1):
        lonely, other = Exchange(number, HOST), Exchange(1 - number, HOST)
        other.close()
        addresses = [lonely.address, other.address][:: 1 - 2 * number]
        with pytest.raises(ConnectionError, match=rf"worker {number}: expected to meet workers"):
            lonely.meet(addresses, KEY)
        lonely.close()
