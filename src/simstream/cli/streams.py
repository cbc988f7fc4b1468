"""Reading a pipe so that lines are passed on at once and a request to stop is heard."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

#: Little is read at a time, because all that was read is learnt before stopping: about 200 records.
_READ_BYTES = 8192
_POLL_SECONDS = 0.2


class StoppableInput:
    """The whole lines of a pipe, a terminal or a socket; ends early when asked to stop.

    It has what `simstream.data.read_triplets` wants of a stream: ``read1`` and a name.

    Parameters
    ----------
    descriptor : int
        File descriptor to read from.
    name : str
        How errors call it.
    stop : function without arguments
        Returns True once reading shall end.
    """

    def __init__(self, descriptor: int, name: str, stop: Callable[[], bool]) -> None:
        self.name = name
        self._descriptor = descriptor
        self._stop = stop
        self._pieces: list[bytes] = []  # of a line that has not ended yet

    def read1(self, size: int = -1) -> bytes:
        """Some whole lines as soon as there are any; nothing at the end, or when asked to stop."""
        while not self._stop():
            if not select.select([self._descriptor], [], [], _POLL_SECONDS)[0]:
                continue
            try:
                chunk = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                if self._stop():  # Ctrl-C ends the writer as well, perhaps in the middle of a line
                    break
                return self._joined(b"")
            end = chunk.rfind(b"\n") + 1
            if not end:
                self._pieces.append(chunk)
                continue
            lines = self._joined(chunk[:end])
            if end < len(chunk):
                self._pieces.append(chunk[end:])
            return lines
        # A line cut short is dropped: its last number might have had more digits.
        return b""

    def _joined(self, last: bytes) -> bytes:
        lines = b"".join([*self._pieces, last])
        self._pieces.clear()
        return lines
