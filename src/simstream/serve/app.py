"""The HTTP application: routes, error answers, the page and its API reference; and running it."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from .. import __version__
from .access import Guard, check_host, refused
from .errors import NotFoundError, ServiceError
from .keys import KeyRing
from .routes import Metrics, add_routes
from .schemas import refusal
from .service import Service

_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"description": text}
    for code, text in {
        401: "The key is missing or unknown.",
        403: "The key does not allow this, or the request comes from another site.",
        404: "Not found.",
        409: "The request contradicts what is already there.",
        413: "The body is too large.",
        422: "The request is malformed, or does not fit the items.",
        429: "Too many requests; see Retry-After.",
        503: "Not possible now; see Retry-After.",
        507: "The log cannot be written; nothing was kept.",
    }.items()
}


def create_app(service: Service, keys: KeyRing | None = None) -> FastAPI:
    """The application of a service. It closes the service when it ends.

    Parameters
    ----------
    service : Service
    keys : who may do what; without any, only this machine may call, and may do everything
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="simstream",
        version=__version__,
        description="Search that learns from feedback.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_ERRORS,
    )
    metrics = Metrics(service)
    app.add_middleware(
        Guard,
        keys=keys or KeyRing(Path("/nonexistent")),
        limits=service.settings.limits,
        on_done=metrics.count,
    )
    _add_error_handlers(app)
    add_routes(app, service, metrics)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ServiceError)
    async def not_allowed(_: Request, error: ServiceError) -> Response:
        return refused(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # What was sent is not sent back: it may contain anything.
        if isinstance(error.body, bytes):  # not read, because it was not declared to be JSON
            got = request.headers.get("content-type", "none")
            text = f"Content-Type: expected application/json, got {got}"
        else:
            text = refusal(error.errors())
        return JSONResponse({"error": text[:500]}, 422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


def _add_page(app: FastAPI) -> None:
    """Add the page and its files, read once."""
    files: dict[str, tuple[str, bytes]] = {}
    for file in (resources.files(__package__) / "page").iterdir():
        media_type = _MEDIA_TYPES.get(Path(file.name).suffix)
        if media_type is not None:
            files[file.name] = (media_type, file.read_bytes())

    def serve(name: str) -> Response:
        if name not in files:
            raise NotFoundError("page: no such file")
        media_type, content = files[name]
        return Response(content, media_type=media_type)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return serve("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return serve(name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))


def docs_page(openapi: dict[str, Any]) -> str:
    """The API reference as HTML, from the OpenAPI description: no script, nothing from other sites.

    Examples
    --------
    >>> page = docs_page({"info": {"title": "<x>", "version": "1"}, "paths": {}})
    >>> "<x>" in page, "&lt;x&gt;" in page
    (False, True)
    """
    rows = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            takes = [f"{one['name']} ({one['in']})" for one in operation.get("parameters", [])]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for schema in (body.get("schema", {}), *body.get("schema", {}).get("anyOf", [])):
                if "$ref" in schema:
                    takes.append(f"{schema['$ref'].rpartition('/')[2]} (body)")
            about = operation.get("description") or operation.get("summary", "")
            cells = (f"{method.upper()} {path}", about, ", ".join(takes))
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>")
    title = f"{escape(openapi['info']['title'])} {escape(openapi['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><h1>{title}</h1>"
        '<p>The complete description: <a href="/openapi.json">openapi.json</a></p>'
        f"<table><tr><th>Route<th>What it does<th>Takes</tr>{''.join(rows)}</table></html>"
    )


# -- running it -------------------------------------------------------------------------------


def run(
    service: Service,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; everything acknowledged is learnt and saved before it returns.

    Parameters
    ----------
    service : Service
    host, port : where to listen; port 0 takes a free one
    on_ready : called with the address once the service answers
    """
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
        access_log=False,  # request addresses may name items
        server_header=False,
        timeout_graceful_shutdown=10,
        ws="none",
    )
    # A search passes through several threads and must not wait long for each of them while others compute.
    sys.setswitchinterval(0.0005)
    # The server handles these signals itself and raises them again once everything is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Server(config).run()


def check_port(host: str, port: int) -> None:
    """Raise if it is impossible to listen there, before anything is opened or created.

    Examples
    --------
    >>> with socket.create_server(("127.0.0.1", 0)) as other:
    ...     check_port("127.0.0.1", other.getsockname()[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    OSError: port: cannot listen on 127.0.0.1 port ... (Address already in use); ...
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind(address)
    except OSError as error:
        raise OSError(
            f"port: cannot listen on {host} port {port} ({error.strerror}); choose another with --port, "
            "or 0 for any free one"
        ) from error
