"""Ctrl-C and SIGTERM: a polite request to finish the piece at hand, save and leave; or an end at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interruption:
    """While active, the first SIGINT or SIGTERM is only remembered; the second acts at once.

    Examples
    --------
    >>> import signal
    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interruption.requested()
    True
    >>> interruption.signal == signal.SIGTERM
    True
    """

    _signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                # Somebody who ignores a signal (nohup, a background job) means it.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._restore()  # so that a second signal does what it always does
        self.signal = number

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)


class Stopped(KeyboardInterrupt):
    """A signal ended the work at once."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.signal = number


@contextmanager
def stopping_at_once(text: str) -> Iterator[None]:
    """While active, SIGINT and SIGTERM raise `Stopped` with this text.

    Examples
    --------
    >>> import signal
    >>> try:
    ...     with stopping_at_once("nothing was written"):
    ...         signal.raise_signal(signal.SIGTERM)
    ... except Stopped as stopped:
    ...     print(stopped, stopped.signal == signal.SIGTERM)
    nothing was written True
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number, text)

    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, stop)
        yield
    finally:
        while before:
            signal.signal(*before.popitem())
