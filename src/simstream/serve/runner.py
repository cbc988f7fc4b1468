"""Running the service until it is told to stop."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from .app import create_app
from .auth import KeyRing
from .guard import is_local_host
from .service import Service


def run(
    service: Service,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; what was acknowledged is folded and saved before it ends.

    Parameters
    ----------
    service : Service
    host, port : where to listen; port 0 takes a free one
    on_ready : called with the address when it answers
    """
    import uvicorn

    keys = KeyRing(service.settings.keys_path)
    check_host(host, keys)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                actual = self.servers[0].sockets[0].getsockname()[1]
                shown = f"[{host}]" if ":" in host else host
                on_ready(f"http://{shown}:{actual}")

    config = uvicorn.Config(
        create_app(service, keys),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # addresses of requests may name items
        server_header=False,
        timeout_graceful_shutdown=10,
        ws="none",
    )
    # A search passes through several threads: it must not wait long for each of them while others compute.
    sys.setswitchinterval(0.0005)
    # The server stops at these signals by itself and then raises them again: by then all is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Server(config).run()


def check_port(host: str, port: int) -> None:
    """Raise where nothing can listen, before anything is opened or made.

    Examples
    --------
    >>> import socket
    >>> with socket.create_server(("127.0.0.1", 0)) as other:
    ...     check_port("127.0.0.1", other.getsockname()[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    OSError: port: cannot listen at 127.0.0.1 port ... (Address already in use); ...
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind(address)
    except OSError as error:
        raise OSError(
            f"port: cannot listen at {host} port {port} ({error.strerror}); --port takes another, 0 any "
            "that is free"
        ) from error


def check_host(host: str, keys: KeyRing) -> None:
    """Refuse to listen to other machines without keys.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_host("0.0.0.0", KeyRing(Path("absent.json")))
    Traceback (most recent call last):
    ...
    ValueError: host: expected this machine (127.0.0.1), or keys (simstream keys add), got 0.0.0.0
    """
    if not len(keys) and not is_local_host(f"[{host}]" if ":" in host else host):
        raise ValueError(
            f"host: expected this machine (127.0.0.1), or keys (simstream keys add), got {host}"
        )
