"""Log lines of a service, as text or as one JSON object a line: whose they are, if that can be told.

Nothing that a request contains is ever logged: of its address the template, of its key the name.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

#: Id of the request that is being answered, also in the threads that answer it; None elsewhere.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)

#: Name of the collection that is worked for, where there are several.
_COLLECTION: ContextVar[str | None] = ContextVar("collection", default=None)

#: One line for every request, with level INFO.
_requests = logging.getLogger("simstream.serve.requests")

_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,128}")


@contextlib.contextmanager
def speaking_for(collection: str) -> Iterator[None]:
    """A block that works for a collection: lines of the log say so."""
    token = _COLLECTION.set(collection)
    try:
        yield
    finally:
        _COLLECTION.reset(token)


def spoken_for(name: str = "collection") -> dict[str, str]:
    """The collection that is worked for, by a name for it; nothing if there is only one.

    Examples
    --------
    >>> with speaking_for("shoes"):
    ...     spoken_for()
    {'collection': 'shoes'}
    """
    collection = _COLLECTION.get()
    return {} if collection is None else {name: collection}


def in_context(target: Callable[..., Any]) -> Callable[..., Any]:
    """A target for a thread that works for the same collection as the thread that starts it."""
    return functools.partial(contextvars.copy_context().run, target)


def id_for(given: str | None) -> str:
    """The id that a request was sent with, if it can be trusted to be one; a new one otherwise.

    Examples
    --------
    >>> id_for("7f3a-1")
    '7f3a-1'
    >>> len(id_for("<script>")), len(id_for(None))
    (32, 32)
    """
    return given if given is not None and _TOKEN.fullmatch(given) else secrets.token_hex(16)


def log_request(
    method: str, path: str, status: int, seconds: float, scope: Mapping[str, Any]
) -> None:
    """Log that a request was answered."""
    if not _requests.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    about = {
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 6),
        "client": client[0] if client else None,
        "key_name": scope.get("state", {}).get("key"),
    }
    _requests.info("%s %s %d", method, path, status, extra={"about": about})


class JsonLines(logging.Formatter):
    """One JSON object a line.

    Examples
    --------
    >>> record = logging.LogRecord("simstream.serve", logging.INFO, "", 0, "%d items", (3,), None)
    >>> record.created = 0.0
    >>> JsonLines().format(record)
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "request_id": null, "message": "3 items"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            **spoken_for(),
            "request_id": REQUEST_ID.get(),
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Lines of text as the command line writes them.

    Examples
    --------
    >>> record = logging.LogRecord("x", logging.WARNING, "", 0, "the disk is full", (), None)
    >>> TextLines().format(record)
    'simstream: warning: the disk is full'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, and those of its exception."""
        prefix = "warning: " if record.levelno == logging.WARNING else ""
        request = REQUEST_ID.get()
        whose = spoken_for() | ({} if request is None else {"request": request})
        suffix = f" ({', '.join(map(' '.join, whose.items()))})" if whose else ""
        text = f"simstream: {prefix}{record.getMessage()}{suffix}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


@contextlib.contextmanager
def logged(form: str, *, quiet: bool = False) -> Iterator[None]:
    """Write lines of the service, its libraries and the command line to stderr, in a form: text or json.

    As JSON there is a line for every request, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    level = logging.ERROR if quiet else logging.INFO if form == "json" else logging.WARNING
    libraries = ["uvicorn", "opentelemetry"]
    names = ["simstream.serve", *libraries] + (["simstream.cli"] if form == "json" else [])
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.handlers, one.level) for one in loggers]
    for one in loggers:
        one.handlers = [handler]
        one.setLevel(max(level, logging.WARNING) if one.name in libraries else level)
    try:
        yield
    finally:
        for one, (handlers, old) in zip(loggers, before, strict=True):
            one.handlers = handlers
            one.setLevel(old)
