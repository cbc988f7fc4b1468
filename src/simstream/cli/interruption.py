"""Ctrl-C and SIGTERM: finish the work at hand, save and leave; or stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def _install(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle both signals; return the handlers they had, for `_restore`."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # A signal that is ignored (nohup, a background job) is ignored on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    return before


def _restore(before: dict[int, Any]) -> None:
    while before:
        signal.signal(*before.popitem())


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

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    def __enter__(self) -> Interruption:
        self._before = _install(self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        _restore(self._before)  # a second signal does what it would do without us
        self.signal = number


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

    before = _install(stop)
    try:
        yield
    finally:
        _restore(before)
