"""The HTTP interface: routes that check, hand over, and tell what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from .. import __version__
from .auth import KeyRing
from .docs_page import docs_page
from .errors import NotFoundError, ServiceError
from .guard import Guard, error_body
from .metrics import RequestMetrics
from .refusals import refusal
from .routes_feedback import add_feedback_routes
from .routes_items import add_item_routes, add_search_routes
from .routes_operation import add_operation_routes, add_version_routes
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
        401: "No key, or an unknown one.",
        403: "The key may not do this, or the request comes from another site.",
        404: "There is no such thing.",
        409: "It contradicts what is there.",
        413: "Too many bytes.",
        422: "It cannot be understood, or does not fit the items.",
        429: "Too many requests; see Retry-After.",
        503: "Not now; see Retry-After.",
        507: "The log cannot be written; nothing was kept.",
    }.items()
}


def create_app(service: Service, keys: KeyRing | None = None) -> FastAPI:
    """The application of a service. The service is closed when the application ends.

    Parameters
    ----------
    service : Service
    keys : who may do what; without any, only this machine may call, and may do everything
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    metrics = RequestMetrics()
    app = FastAPI(
        title="simstream",
        version=__version__,
        description="Search that learns from feedback.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_ERRORS,
    )
    limits = service.settings.limits
    app.add_middleware(
        Guard, keys=keys or KeyRing(Path("/nonexistent")), limits=limits, metrics=metrics
    )
    _add_error_handlers(app)
    add_item_routes(app, service)
    add_search_routes(app, service)
    add_feedback_routes(app, service)
    add_version_routes(app, service)
    add_operation_routes(app, service, metrics)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ServiceError)
    async def refused(_: Request, error: ServiceError) -> Response:
        status, headers, body = error_body(error)
        return Response(body, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # What was sent is not sent back: it may hold anything.
        if isinstance(error.body, bytes):  # nobody said that it is JSON, so it was not read
            got = request.headers.get("content-type", "none")
            text = f"Content-Type: expected application/json, got {got}"
        else:
            text = refusal(error.errors())
        return JSONResponse({"error": text[:500]}, 422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


def _add_page(app: FastAPI) -> None:
    """The page and its files, read once."""
    folder = resources.files(__package__) / "page"
    files: dict[str, tuple[str, bytes]] = {}
    if folder.is_dir():
        for file in folder.iterdir():
            media_type = _MEDIA_TYPES.get(Path(file.name).suffix)
            if media_type is not None:
                files[file.name] = (media_type, file.read_bytes())

    def serve(name: str) -> Response:
        if name not in files:
            raise NotFoundError("page: there is no such file")
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
