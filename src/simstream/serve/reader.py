"""A process that answers searches for another one that writes; started by `simstream.serve.workers`.

Its settings are the first line of its standard input, as JSON values:

- folder, log, limits, randomise : of the service that writes
- searching : its settings of the index
- threads : searches at the same time
- shared : folder of what all processes of the service share
- writer : socket file of the service that writes
- proxy : address that may name the callers it speaks for, or null
- socket : number of the open socket to accept connections from
"""

from __future__ import annotations

import gc
import json
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

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from .access import BusyError, KeyRing
from .app import configuration, refused, run_server
from .evidence import Publishing
from .forwarding import Forwarding
from .log import open_log
from .logs import REQUEST_ID, id_for
from .service import Limits, Service, Settings
from .state import Learning
from .workers import BACKLOG

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


def _watch(service: Service) -> None:
    """End if the service cannot follow any more: another process begins where this one stopped."""
    while service.stopped() is None:
        time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that cannot be passed on."""
    identity = id_for(Headers(scope=scope).get("x-request-id"))
    REQUEST_ID.set(identity)
    answer = refused(BusyError("the service that writes does not answer"), scope)
    answer.headers["x-request-id"] = identity
    await answer(scope, receive, send)


def main(lines: TextIO) -> None:
    """Follow and answer until SIGTERM, or until the input ends."""
    gc.disable()  # everything allocated until it is ready stays alive
    say = _Voice()
    told = json.loads(lines.readline())
    first: Future[int] = Future()
    opened: Future[Service] = Future()
    threading.Thread(
        target=_listen, args=[lines, first, opened, told["shared"]], daemon=True
    ).start()
    service = Service(settings_of(told))
    opened.set_result(service)
    service.engine.on_publish = say
    say(service.version.position)
    last = first.result()
    service.look()
    if not service.engine.published(last).result():
        raise SystemExit(1)
    threading.Thread(target=_watch, args=[service], daemon=True).start()
    config = configuration(
        service, KeyRing(service.settings.folder / "keys.json"), proxy=told["proxy"]
    )
    app: Any = config.app
    config.app = Forwarding(app, told["writer"], refuse)
    # One at a time, so that connections that come together are divided among the processes.
    config.backlog = 1
    listening = socket.socket(fileno=told["socket"])

    def on_started(_: Any) -> None:
        listening.listen(BACKLOG)
        gc.freeze()
        gc.enable()
        say("ready")

    run_server(config, on_started, [listening])


if __name__ == "__main__":
    main(sys.stdin)
