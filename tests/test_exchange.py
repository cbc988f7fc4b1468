"""Sums over several workers, here threads that talk through sockets as processes do."""

import socket
import threading
import time

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

    found, errors = {}, []

    def met(one):
        try:
            one.meet(addresses, KEY)
            found[one._number] = do(one)
        except Exception as error:
            errors.append(error)
        finally:
            one.close()

    threads = [threading.Thread(target=met, args=(one,), daemon=True) for one in exchanges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "one waits for another for ever"
    if errors:
        raise errors[0]
    return [found[number] for number in range(n_workers)]


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
    thread = threading.Thread(target=first.meet, args=(addresses, KEY), daemon=True)
    thread.start()
    second.meet(addresses, KEY)
    thread.join(60)
    assert not thread.is_alive()
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


def test_a_worker_whose_words_come_in_pieces_is_the_one_that_it_says():
    third = Exchange(2, HOST)
    thread = threading.Thread(
        target=third.meet, args=([(HOST, 1), (HOST, 2), third.address], KEY), daemon=True
    )  # of three, worker 2 swaps sums with worker 0
    silent, unwanted, known = (socket.create_connection(third.address, 30) for _ in range(3))
    thread.start()
    unwanted.sendall(KEY + (1).to_bytes(4, "big"))
    assert unwanted.recv(1) == b""
    for piece in (KEY[:5], KEY[5:], b"\0\0", b"\0\0"):
        assert not third._others
        known.sendall(piece)
        time.sleep(0.02)  # so that it comes alone
    thread.join(60)
    assert not thread.is_alive()
    assert list(third._others) == [0]
    for one in (silent, unwanted, known, third):
        one.close()


def test_those_who_do_not_come_are_waited_for_once(monkeypatch):
    monkeypatch.setattr(exchange, "_PATIENCE", 0.2)
    lonely = Exchange(1, HOST)
    strangers = []
    is_over = threading.Event()

    def come():
        while not is_over.wait(0.05):
            try:
                strangers.append(socket.create_connection(lonely.address, 1.0))
            except OSError:
                return

    thread = threading.Thread(target=come, daemon=True)
    thread.start()
    raised = []

    def meet():
        try:
            lonely.meet([(HOST, 1), lonely.address], KEY)
        except ConnectionError as error:
            raised.append(error)

    meeting = threading.Thread(target=meet, daemon=True)
    meeting.start()
    meeting.join(30)
    is_over.set()
    thread.join(30)
    assert raised
    for one in (lonely, *strangers):
        one.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="not on this system")
def test_a_lost_machine_is_noticed_while_data_waits_for_it():
    def limit(one):
        return [
            there.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            for there in one._others.values()
        ]

    assert everyone(2, limit) == [[30_000], [30_000]]
