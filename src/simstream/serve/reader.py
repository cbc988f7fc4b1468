"""A process that answers searches for another one that writes; started by `simstream.serve.workers`.

Its settings are the first line of its standard input, as JSON values:

- folder, log, limits, randomise : of the service that writes
- searching : its settings of the index
- threads : searches at the same time
- shared : folder of what all processes of the service share
- writer : socket file of the service that writes
- proxy : address that may name the callers it speaks for, or null
- log_format, quiet, otel : how it logs, and whether it sends spans
- socket : number of the open socket to accept connections from
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO

from .access import KeyRing
from .app import configuration, run_server
from .evidence import Publishing
from .forwarding import Forwarding
from .log import LogError, open_log
from .logs import logged
from .service import Limits, Service, Settings
from .state import Learning
from .tracing import start_tracing
from .workers import BACKLOG

logger = logging.getLogger("simstream.serve")

#: Longest time between two looks at whether the service still follows.
_WATCH_SECONDS = 1.0


def settings_of(told: dict[str, Any]) -> Settings:
    """The settings of a reader: how to learn stands in the log."""
    folder = Path(told["folder"])
    log = open_log(folder, told["log"])
    stored = log.setting("service")
    log.close()
    return Settings(
        folder,
        learning=Learning(**stored["learning"]),
        publishing=Publishing.stored_in(stored),
        n_features=stored["n_features"],
        limits=Limits(**told["limits"]),
        randomise=told["randomise"],
        **told["searching"],
        search_threads=told["threads"],
        log=told["log"],
        shared=Path(told["shared"]),
        follow=True,
    )


class _Voice:
    """Words to the service that writes, on what was the standard output: nothing else may get there."""

    def __init__(self) -> None:
        self._pipe = os.dup(1)
        os.dup2(2, 1)

    def __call__(self, word: str | int) -> None:
        try:
            os.write(self._pipe, f"{word}\n".encode())
        except OSError:  # nobody is left to answer for
            os._exit(1)


def _listen(lines: TextIO, first: Future[int], service: Future[Service], shared: str) -> None:
    """Hear that there are new events; end with the service that writes, however it ended."""
    for line in lines:
        if first.done():
            service.result().look()
        else:
            first.set_result(int(line))
    shutil.rmtree(shared, ignore_errors=True)  # if it was killed, nobody else does
    os._exit(1)  # nothing is lost: it only reads


def _watch(service: Service, say: _Voice, answering: Future[asyncio.AbstractEventLoop]) -> None:
    """Say that this process lives, as long as its event loop turns once it answers requests.

    End if it cannot follow any more: another begins where this one stopped. A log that cannot be reached is
    no reason: searches go on with what is in memory. If learning has stopped, the service that writes knows
    whether another process would do better.
    """
    while service.follow_failure is None:
        if answering.done():
            turned = threading.Event()
            try:
                answering.result().call_soon_threadsafe(turned.set)
            except RuntimeError:  # it has ended
                return
            turned.wait()
        say("alive" if service.engine.failure is None else "stopped")
        time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main(lines: TextIO) -> None:
    """Follow and answer until SIGTERM, or until the input ends."""
    gc.disable()  # everything allocated until it is ready stays alive
    say = _Voice()
    told = json.loads(lines.readline())
    with contextlib.ExitStack() as stack:
        stack.enter_context(logged(told["log_format"], quiet=told["quiet"]))
        try:
            if told["otel"]:
                stack.callback(start_tracing())
            _follow_and_answer(lines, say, told)
        except (OSError, LogError) as error:
            logger.error("a reader has failed: %s", error)
        except Exception:
            logger.exception("a reader has failed")
        else:
            return
    raise SystemExit(1)


def _follow_and_answer(lines: TextIO, say: _Voice, told: dict[str, Any]) -> None:
    first: Future[int] = Future()
    opened: Future[Service] = Future()
    threading.Thread(
        target=_listen, args=[lines, first, opened, told["shared"]], daemon=True
    ).start()
    service = Service(settings_of(told))
    opened.set_result(service)
    service.engine.on_publish = say
    say(service.version.position)
    answering: Future[asyncio.AbstractEventLoop] = Future()
    threading.Thread(target=_watch, args=[service, say, answering], daemon=True).start()
    last = first.result()
    service.look()
    if not service.engine.published(last).result():
        raise SystemExit(1)
    config = configuration(
        service, KeyRing(service.settings.folder / "keys.json"), proxy=told["proxy"]
    )
    app: Any = config.app
    config.app = Forwarding(app, told["writer"])
    # One at a time, so that connections that come together are divided among the processes.
    config.backlog = 1
    listening = socket.socket(fileno=told["socket"])

    def on_started(_: Any) -> None:
        listening.listen(BACKLOG)
        gc.freeze()
        gc.enable()
        answering.set_result(asyncio.get_running_loop())
        say("ready")

    run_server(config, on_started, [listening])


if __name__ == "__main__":
    main(sys.stdin)
