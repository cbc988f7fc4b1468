"""Several services in one process: each is a collection with an address of its own, ``/c/NAME/``.

A collection is the whole application of its service, with its own folder, keys, learner and threads. What
they have in common is their process: whether it is alive and ready, its metrics, and the list of them. These
routes have keys of their own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from . import schemas
from .access import KeyRing, NotFoundError, check_host
from .app import address_of, bare_app, create_app, run_server, server_config
from .logs import speaking_for
from .reference import docs_page
from .routes import Metrics, add_liveness_route, answers, not_ready, sends
from .service import Limits, Service

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_name(name: str) -> None:
    """Raise unless a name can be part of an address.

    Examples
    --------
    >>> check_name("shoes/new")
    Traceback (most recent call last):
    ...
    ValueError: collection: expected a name of letters, digits, _ and -, at most 64, got 'shoes/new'
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"collection: expected a name of letters, digits, _ and -, at most 64, got {name!r}"
        )


def create_collections_app(services: Mapping[str, Service], keys: KeyRing) -> Starlette:
    """The application of several services by name. It closes them when it ends.

    `keys` are those of the routes that concern all of them; each service has those in its own folder.
    """
    rings = {name: KeyRing(one.settings.folder / "keys.json") for name, one in services.items()}
    apps = {}
    for name, service in services.items():
        check_name(name)
        apps[name] = create_app(service, rings[name])

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        # The last one first: each restores the number of BLAS threads that it found.
        for name, service in reversed(list(services.items())):
            with speaking_for(name):
                await run_in_threadpool(service.close)

    metrics = {name: app.state.metrics for name, app in apps.items()}
    whole = _whole(services, rings, keys, metrics)
    mounts = [Mount(f"/c/{name}", _named(name, app)) for name, app in apps.items()]
    return Starlette(routes=[*mounts, Mount("/", whole)], lifespan=lifespan)


def _named(name: str, app: ASGIApp) -> ASGIApp:
    """The application of a collection; what it logs names the collection."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with speaking_for(name):
            await app(scope, receive, send)

    return answer


def check_hosts(host: str, folders: Mapping[str, Path], proxy: str | None) -> None:
    """Refuse to listen for other machines unless every collection has keys in its folder."""
    for name, folder in folders.items():
        try:
            check_host(host, KeyRing(folder / "keys.json"), proxy)
        except ValueError as error:
            raise ValueError(f"collection {name}: {error}") from None


def _whole(
    services: Mapping[str, Service],
    rings: Mapping[str, KeyRing],
    keys: KeyRing,
    metrics: Mapping[str, Metrics],
) -> FastAPI:
    """The routes that concern all collections."""
    app = bare_app(keys, Limits(), lambda route, status, seconds: None, redirect_slashes=False)

    @app.get("/v1/collections", responses=answers(schemas.Collections), tags=["collections"])
    def list_collections() -> Any:
        """The collections, and how each of them is."""
        listed = []
        for name, service in services.items():
            problem = not_ready(service, rings[name])
            listed.append(
                {
                    "name": name,
                    "path": f"/c/{name}/",
                    "items": len(service.engine.items),
                    "position": service.version.position,
                    "status": "ready" if problem is None else problem,
                }
            )
        return {"collections": listed}

    add_liveness_route(app)

    @app.get(
        "/readyz",
        responses={**answers(schemas.Health), 503: {"model": schemas.Health}},
        tags=["operation"],
    )
    async def is_ready() -> Any:
        """Whether all collections work; 503 names those that do not."""
        problems = {name: not_ready(service, rings[name]) for name, service in services.items()}
        stopped = [f"{name}: {problem}" for name, problem in problems.items() if problem]
        if keys.problem is not None:
            stopped.append("keys cannot be read")
        if stopped:
            return JSONResponse({"status": "; ".join(stopped)}, 503, {"retry-after": "10"})
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response, responses=sends("text/plain"), tags=["operation"])
    def get_metrics() -> Response:
        """Metrics of all collections, with the label `collection`."""
        content = generate_latest(_Labelled(metrics))  # type: ignore[arg-type]
        return Response(content, media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if keys.is_used:  # who has no key need not know their names
            return HTMLResponse("<!doctype html><title>simstream</title><p>See /c/NAME/")
        links = "".join(f'<li><a href="c/{escape(name)}/">{escape(name)}</a>' for name in services)
        return HTMLResponse(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>simstream</title>'
            f"<h1>Collections</h1><ul>{links}</ul>"
        )

    @app.get("/c/{name}", include_in_schema=False)
    async def with_slash(name: str) -> Response:
        if name not in services:
            raise NotFoundError(f"collection: no collection has the name {name!r}")
        return RedirectResponse(f"{name}/")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))

    return app


class _Labelled:
    """The metrics of several services: each family once, with a label that says whose a sample is."""

    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """All families now."""
        families: dict[str, Metric] = {}
        for name, metrics in self._metrics.items():
            for one in metrics.registry.collect():
                family = families.setdefault(
                    one.name, Metric(one.name, one.documentation, one.type)
                )
                family.samples += [
                    sample._replace(labels={"collection": name, **sample.labels})
                    for sample in one.samples
                ]
        return families.values()


def run_collections(
    services: Mapping[str, Service],
    keys: KeyRing,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    proxy: str | None = None,
) -> None:
    """Serve several services until a signal; as `simstream.serve.app.run` serves one."""
    check_host(host, keys, proxy)
    check_hosts(host, {name: one.settings.folder for name, one in services.items()}, proxy)
    app = create_collections_app(services, keys)
    config = server_config(app, Limits(), host=host, port=port, proxy=proxy)
    run_server(config, lambda server: on_ready(address_of(server)))
