"""Processes that answer searches for one that writes: starting them, and knowing what they have seen.

The process that writes starts the others and hands them the socket that clients connect to. It keeps that
socket itself until it ends, so clients can connect while a reader starts again. Numbers go over the pipes of
a reader, one in a line:

- the writer sends the position of the last event after each commit, so that readers need not wait to look;
- a reader sends each position that it has published. The first says that it has begun to follow: from then
  on "readers can see" includes this one, and it accepts connections once it has caught up with the first
  number that it is sent in return. So no reader ever shows less than what was acknowledged as visible.

A reader also says when it is "ready", and every second that it is "alive" or that its learning has
"stopped". One that says nothing for long is killed. One that has stopped is ended, too, unless the writer has
not learnt everything either: the next one would fail at the same event, and this one can still search.

A reader ends when its pipe is closed, and so when the process that writes ends, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

logger = logging.getLogger("simstream.serve")

#: Connections that may wait to be accepted.
BACKLOG = 2048

#: Seconds until a reader that ended is started again: each time twice as long, unless it had been ready.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0

#: Seconds between two looks at the readers, and how many of them one that counts may be silent.
_LOOK_SECONDS, _MOST_SILENT = 1.0, 60

#: Seconds that readers have to answer what they have accepted.
_SECONDS_TO_END = 15.0


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that waits for connections.

    Examples
    --------
    >>> with listening_socket("127.0.0.1", 0) as listening:
    ...     listening.getsockname()[0]
    '127.0.0.1'
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    listening.listen(BACKLOG)
    return listening


class Readers:
    """Processes that follow this one and answer searches; one that ends is started again.

    Parameters
    ----------
    count : number of processes
    listening : socket that they accept connections from
    told : JSON values that each of them is begun with; see `simstream.serve.reader`
    last : function that returns the position of the last durable event
    has_learnt_all : function that returns whether this process has learnt everything up to there
    """

    def __init__(
        self,
        count: int,
        listening: socket.socket,
        told: dict[str, Any],
        last: Callable[[], int],
        has_learnt_all: Callable[[], bool],
    ) -> None:
        self._listening, self._told, self._last = listening, told, last
        self._has_learnt_all = has_learnt_all
        self._condition = threading.Condition()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        #: By process: what it has published, once it counts.
        self._positions: dict[int, int] = {}
        self._ready: set[int] = set()
        #: Looks since each one was last heard: not seconds, because this process may have been paused itself.
        self._silent: dict[int, int] = {}
        self._awaited: dict[Future[bool], int] = {}
        self._is_ending = False
        #: Processes that ended, and were started again.
        self.n_restarts = 0
        self._threads = [
            threading.Thread(target=self._keep, args=[place], name=f"reader-{place}", daemon=True)
            for place in range(count)
        ]

    def start(self) -> None:
        """Start them."""
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._watch, name="watch-readers", daemon=True).start()

    # -- what they have seen ------------------------------------------------------------------

    def notify(self, last: int) -> None:
        """Events up to this position are durable."""
        with self._condition:
            for place in self._positions:
                self._send(place, last)

    def has_seen(self, position: int) -> bool:
        """Whether all readers have published a position."""
        with self._condition:
            return min(self._positions.values(), default=position) >= position

    def published(self, position: int) -> Future[bool]:
        """Done once all readers have published a position. Cancel it to stop waiting."""
        seen: Future[bool] = Future()
        with self._condition:
            self._awaited[seen] = position
        self._tell_waiting()
        return seen

    def wait_until_ready(self, timeout: float | None = None) -> bool:
        """Wait until all of them accept connections, or are being ended."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._is_ending or len(self._ready) == len(self._threads), timeout
            )
            return not self._is_ending and len(self._ready) == len(self._threads)

    def _tell_waiting(self) -> None:
        with self._condition:
            done = [one for one, p in self._awaited.items() if one.cancelled() or self.has_seen(p)]
            for seen in done:
                del self._awaited[seen]
            self._condition.notify_all()
        for seen in done:
            if seen.set_running_or_notify_cancel():
                seen.set_result(True)

    # -- their lives --------------------------------------------------------------------------

    def close(self) -> None:
        """End them: they answer what they have accepted. May be called twice."""
        with self._condition:
            self._is_ending = True
            # Readers close theirs: nobody is left to accept a connection, so clients are refused at once.
            self._listening.close()
            self._condition.notify_all()
            for process in self._running.values():
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + _SECONDS_TO_END
        for thread in self._started():
            thread.join(max(0.0, end - time.monotonic()))
        with self._condition:
            for process in self._running.values():
                process.kill()
        for thread in self._started():
            thread.join()

    def _started(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.ident is not None]

    def _keep(self, place: int) -> None:
        """Start a reader, hear what it says until it ends, and start it again."""
        pause = _FIRST_PAUSE
        while not self._is_ending:
            was_ready, process = False, None
            try:
                process = self._start(place)
            except OSError as error:  # too little memory, too many processes or open files
                told = f"a reader could not be started: {error}"
            if process is not None:
                was_ready, code = self._hear_all(place, process)
                told = f"a reader ended ({code})"
            pause = _FIRST_PAUSE if was_ready else min(2 * pause, _LONGEST_PAUSE)
            with self._condition:
                if self._is_ending:
                    return
                self.n_restarts += process is not None
                logger.warning("%s, the next starts in %.1f s", told, pause)
                self._condition.wait_for(lambda: self._is_ending, pause)

    def _watch(self) -> None:
        """Kill readers that are stopped or stuck; `_keep` starts others.

        On a machine that swaps, all may fall silent: one is killed at a time, and the last that is ready
        stays until another one is.
        """
        with self._condition:
            while not self._condition.wait_for(lambda: self._is_ending, _LOOK_SECONDS):
                for place in self._positions:
                    self._silent[place] += 1
                needed = self._ready if len(self._ready) == 1 < len(self._threads) else ()
                stuck = [
                    place
                    for place in self._positions
                    if self._silent[place] >= _MOST_SILENT and place not in needed
                ]
                for place in stuck[:1]:
                    process = self._running[place]
                    logger.warning("a reader (process %d) does not answer: killed", process.pid)
                    process.kill()
                    # It may take long to end: the next look is for another one.
                    self._silent[place] = 0
                    self._ready.discard(place)

    def _hear_all(self, place: int, process: subprocess.Popen[bytes]) -> tuple[bool, int]:
        """Hear what a reader says until it ends; return whether it was ready, and its exit code."""
        was_ready = False
        for line in process.stdout or ():
            self._hear(place, line)
            was_ready |= line == b"ready\n"
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        with self._condition:
            del self._running[place]
            self._positions.pop(place, None)
            self._ready.discard(place)
        self._tell_waiting()
        return was_ready, code

    def _start(self, place: int) -> subprocess.Popen[bytes] | None:
        package = str(Path(__file__).parents[2])
        paths = [package, os.environ.get("PYTHONPATH", "")]
        told = {**self._told, "socket": self._listening.fileno()}
        with self._condition:
            if self._is_ending:
                return None
            process = self._running[place] = subprocess.Popen(
                [sys.executable, "-m", "simstream.serve.reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._listening.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                start_new_session=True,  # who presses Ctrl-C in a terminal means this process
            )
            assert process.stdin is not None
            os.set_blocking(process.stdin.fileno(), False)
            with contextlib.suppress(OSError):  # it has ended already
                os.write(process.stdin.fileno(), json.dumps(told).encode() + b"\n")
        return process

    def _hear(self, place: int, line: bytes) -> None:
        with self._condition:
            self._silent[place] = 0
            if line == b"ready\n":
                self._ready.add(place)
            elif line == b"stopped\n":
                if self._has_learnt_all():
                    self._running[place].terminate()
            elif line != b"alive\n":
                is_first = place not in self._positions
                self._positions[place] = max(int(line), self._positions.get(place, 0))
                if is_first:
                    self._send(place, self._last())
        self._tell_waiting()

    def _send(self, place: int, position: int) -> None:
        """Send a number, unless the pipe is full: then the reader has more than enough to do."""
        pipe = self._running[place].stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            os.write(pipe.fileno(), b"%d\n" % position)
