"""Delaying Ctrl-C until the model is in a consistent state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delay Ctrl-C until the block is done, so that a matrix and its clock always agree.

    Only the main thread is interrupted, and only it may set a handler; elsewhere there is nothing to do.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pending: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *arguments: pending.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pending:
            handler(*pending[0])
