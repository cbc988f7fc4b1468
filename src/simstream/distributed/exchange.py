"""Sums over all workers of what each of them has a part of, in about log2 W messages from each.

Ray starts the workers and tells them of each other; their parts then go through sockets, from worker to
worker. Every block has such a sum, and calls of actors would take several times as long.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from .._kernels.columns import summed

#: Seconds in which workers must have met.
_PATIENCE = 15.0

#: Seconds until a machine that falls silent is noticed: it closes no connection.
SILENT_SECONDS = 30

#: For that: seconds until it is asked, between two questions, and how many. Nobody is asked while sent data
#: waits for an answer: milliseconds that it may wait.
_LIMITS = {
    "TCP_KEEPIDLE": SILENT_SECONDS - 4 * 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 1000 * SILENT_SECONDS,
}


class RestartedError(Exception):
    """A worker has died and was started again: it has forgotten everything."""


class Exchange:
    """One worker's place among those who sum their parts.

    When another one is gone, `sum` raises `RestartedError`; `close` lets it be raised by the others.

    Parameters
    ----------
    number : int
        Which of the workers.
    host : str
        The name of this machine among those of the others.
    """

    def __init__(self, number: int, host: str) -> None:
        self._number = number
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        #: Where others find this worker: host and port.
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._others: dict[int, socket.socket] = {}
        # Two that both send, and wait for the other one to read, would wait forever.
        self._sender = ThreadPoolExecutor(1)

    def meet(self, addresses: list[tuple[str, int]], key: bytes) -> None:
        """Connect to the others: all are given the addresses of all, and a key that nobody else knows."""
        self._neighbours, self._partners = partners(self._number, len(addresses))
        wanted = sorted(self._neighbours + self._partners)
        end = time.monotonic() + _PATIENCE
        try:
            for other in wanted:
                if other > self._number:
                    there = socket.create_connection(addresses[other], _left(end))
                    self._others[other] = there
                    there.sendall(key + self._number.to_bytes(4, "big"))
            self._accept({other for other in wanted if other < self._number}, key, end)
        except OSError as error:
            raise ConnectionError(
                f"worker {self._number}: expected to meet workers {wanted}, got {error}; their machines must "
                "be able to connect to each other, at any port"
            ) from error
        finally:
            self._server.close()
        for there in self._others.values():
            _prepare(there)

    def _accept(self, wanted: set[int], key: bytes, end: float) -> None:
        """Wait for other workers; whoever does not know the key, or is not wanted, is sent away."""
        told: dict[Any, bytes] = {}
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ)
                while wanted:
                    ready: list[Any] = [event.fileobj for event, _ in selector.select(_left(end))]
                    for there in ready:
                        if there is self._server:
                            new, _ = self._server.accept()
                            told[new] = b""
                            selector.register(new, selectors.EVENT_READ)
                            continue
                        text = _more(there, told[there], len(key) + 4)
                        if text is not None and len(text) < len(key) + 4:
                            told[there] = text
                            continue
                        selector.unregister(there)
                        del told[there]
                        number = _number_in(text, key)
                        if number in wanted:
                            wanted.remove(number)
                            self._others[number] = there
                        else:
                            there.close()
        finally:
            for there in told:
                there.close()

    def sum(self, parts: Any) -> Any:
        """The sum of the parts of all workers, in the order of `summed`: the same bits everywhere.

        With one worker it is the parts themselves.
        """
        pair = [self._others[neighbour] for neighbour in self._neighbours]
        try:
            for there in pair:
                if not self._partners:
                    return self._swapped(there, parts)
                parts = summed([parts, _received(there, parts)])
            for other in self._partners:
                parts = summed([parts, self._swapped(self._others[other], parts)])  # a + b is b + a
            for there in pair:
                _send(there, parts)
        except OSError as error:
            raise RestartedError(f"worker {self._number} has lost another one: {error}") from error
        return parts

    def _swapped(self, there: socket.socket, parts: Any) -> Any:
        """What another worker sends, for parts that it is sent at the same time."""
        sending = self._sender.submit(_send, there, parts)
        received = _received(there, parts)
        sending.result()
        return received

    def close(self) -> None:
        """Leave the others."""
        self._server.close()
        for there in self._others.values():
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)
            there.close()
        self._sender.shutdown(wait=False)


def partners(number: int, n_workers: int) -> tuple[list[int], list[int]]:
    """The neighbour of a worker, if it has one, and those with whom it swaps sums, in order.

    The first workers are pairs of neighbours, as many as it takes for a power of two to remain when one of
    each pair sums for both. Those swap sums with the next one, the one two places away, four, and so on.

    Examples
    --------
    >>> [partners(number, 3) for number in range(3)]
    [([1], [2]), ([0], []), ([], [0])]
    >>> partners(5, 8)
    ([], [4, 7, 1])
    """
    n_left = 1 << (n_workers.bit_length() - 1)
    n_pairs = n_workers - n_left
    neighbours = [number ^ 1] if number < 2 * n_pairs else []
    if neighbours and number % 2:
        return neighbours, []
    place = number // 2 if neighbours else number - n_pairs
    others = [place ^ (1 << bit) for bit in range(n_left.bit_length() - 1)]
    return neighbours, [2 * other if other < n_pairs else other + n_pairs for other in others]


def _left(end: float) -> float:
    """Seconds until then; `TimeoutError` if there are none."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _more(there: socket.socket, text: bytes, size: int) -> bytes | None:
    """What was read, and what has come since, up to a size; None if the other one is gone."""
    with suppress(OSError):
        found = there.recv(size - len(text))
        return text + found if found else None
    return None


def _number_in(text: bytes | None, key: bytes) -> int:
    """The number of a worker that told the key and its number; -1 for all other texts."""
    if text is None or not hmac.compare_digest(text[: len(key)], key):
        return -1
    return int.from_bytes(text[len(key) :], "big")


def _prepare(there: socket.socket) -> None:
    """Let a connection send at once, wait for any time, and notice a machine that is gone."""
    there.settimeout(None)
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LIMITS.items():
        if hasattr(socket, name):
            there.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _arrays(parts: Any) -> Iterator[np.ndarray]:
    if isinstance(parts, tuple):
        for some in parts:
            yield from _arrays(some)
    else:
        yield parts


def _send(there: socket.socket, parts: Any) -> None:
    for array in _arrays(parts):
        there.sendall(np.ascontiguousarray(array))


def _received(there: socket.socket, like: Any) -> Any:
    """Parts of another worker, which have the shapes of one's own."""
    if isinstance(like, tuple):
        return tuple(_received(there, some) for some in like)
    found = np.empty(like.shape, like.dtype)
    room = found.reshape(-1).view(np.uint8)
    while len(room):
        n_bytes = there.recv_into(room)
        if not n_bytes:
            raise ConnectionError("it has closed its connection")
        room = room[n_bytes:]
    return found
