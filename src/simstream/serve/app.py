"""The HTTP interface: routes that check, hand over, and tell what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi import Path as PathField
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from .. import Bilinear, __version__
from . import admissions, exports, schemas
from .auth import KeyRing
from .docs_page import docs_page
from .errors import BadRequestError, NotFoundError, ServiceError
from .events import SparseVector
from .guard import Guard, error_body
from .metrics import RequestMetrics, gauge_lines
from .service import Service, digest_of
from .status import status_of
from .writer import Part, Receipt

_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

Key = Annotated[
    schemas.Name | None,
    Header(
        alias="Idempotency-Key", description="The same key is done once, however often it is sent."
    ),
]
ItemId = Annotated[schemas.Name, PathField()]
#: Whether to answer only when readers can see it.
Wait = Annotated[
    bool, Query(description="Answer when it can be seen, not only when it is durable.")
]

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
    _add_item_routes(app, service)
    _add_search_routes(app, service)
    _add_feedback_routes(app, service)
    _add_version_routes(app, service)
    _add_operation_routes(app, service, metrics)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ServiceError)
    async def refused(_: Request, error: ServiceError) -> Response:
        status, headers, body = error_body(error)
        return Response(body, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # What was sent is not sent back: it may hold anything.
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse({"error": f"{place or 'body'}: {first['msg']}"[:500]}, 422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _written(service: Service, parts: Sequence[Part], wait: bool) -> list[Receipt]:
    """Hand over parts of a request; return when they are durable, or visible."""
    receipts = await asyncio.wrap_future(service.submit(parts))
    if wait:
        last = max(receipts, key=lambda receipt: receipt.first + receipt.events)
        await run_in_threadpool(service.wait_for, last)
    return receipts


def _told(receipt: Receipt) -> dict[str, Any]:
    return {
        "position": receipt.first,
        "events": receipt.events,
        "repeated": receipt.is_repeated,
    }


def _add_item_routes(app: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @app.post("/v1/items", status_code=201, tags=["items"])
    async def add_items(body: schemas.Items, key: Key = None, wait: Wait = True) -> Any:
        """Add items, all of them or none."""
        if len(body.items) > limits.vectors:
            raise BadRequestError(
                f"items: expected at most {limits.vectors}, got {len(body.items)}"
            )
        names = [item.id for item in body.items]
        if len(set(names)) < len(names):
            raise BadRequestError("items: expected every id once")
        digest = digest_of(body.model_dump(mode="json")) if key else ""
        admit = admissions.add_items([item.as_item(item.id) for item in body.items])
        (receipt,) = await _written(service, [Part(admit, _named(key, "items"), digest)], wait)
        return JSONResponse(_told(receipt), 200 if receipt.is_repeated else 201)

    @app.get("/v1/items", tags=["items"])
    def list_items(
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        payload: bool = False,
    ) -> Any:
        """Ids of items in the order in which they were added, some at a time."""
        view = service.version.view
        positions = [] if view is None else view.ids
        names = [service.engine.items.names[int(p)] for p in positions[offset : offset + limit]]
        return {
            "total": len(positions),
            "items": [_with_payload(service, {"id": name}, payload) for name in names],
        }

    @app.get("/v1/items/{id:path}/image", tags=["items"])
    def get_image(id: ItemId) -> Response:
        """The picture of an item."""
        image = service.item(id)[2].get("image")
        if image is None:
            raise NotFoundError("image: the item has none")
        media_type, content = schemas.decode_picture(image)
        headers = {"content-security-policy": "default-src 'none'; sandbox"}
        return Response(content, media_type=media_type, headers=headers)

    @app.get("/v1/items/{id:path}", tags=["items"])
    def get_item(id: ItemId) -> Any:
        """An item with its vector and what people see of it."""
        position, vector, content = service.item(id)
        if isinstance(vector, SparseVector):
            values: Any = {"indices": vector.indices.tolist(), "values": vector.values.tolist()}
        else:
            values = vector.tolist()
        return {"id": id, "position": position, "vector": values, **content}

    @app.put("/v1/items/{id:path}", tags=["items"])
    async def put_item(
        id: ItemId, body: schemas.Content, key: Key = None, wait: Wait = True
    ) -> Any:
        """Add or replace an item. What was learnt with the old one stays."""
        digest = digest_of([id, body.model_dump(mode="json")]) if key else ""
        part = Part(admissions.put_item(body.as_item(id)), _named(key, "put"), digest)
        (receipt,) = await _written(service, [part], wait)
        return _told(receipt)

    @app.delete("/v1/items/{id:path}", tags=["items"])
    async def delete_item(id: ItemId, key: Key = None, wait: Wait = True) -> Any:
        """Take an item away. What was learnt with it stays."""
        part = Part(admissions.delete_item(id), _named(key, "delete"), digest_of(id) if key else "")
        (receipt,) = await _written(service, [part], wait)
        return _told(receipt)


def _named(key: str | None, what: str) -> str | None:
    """Keys of different kinds of requests do not meet."""
    return None if key is None else f"{what}:{key}"


def _with_payload(service: Service, found: dict[str, Any], wanted: bool) -> dict[str, Any]:
    if wanted:
        with contextlib.suppress(NotFoundError):  # deleted since
            found |= service.item(found["id"])[2]
    return found


def _add_search_routes(app: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @app.post("/v1/search", tags=["search"])
    def search(body: schemas.Search) -> Any:
        """The most similar items of an item or a vector, best first."""
        if body.k > limits.k:
            raise BadRequestError(f"k: expected at most {limits.k}, got {body.k}")
        if body.task is not None and not service.has_tasks:
            raise BadRequestError("task: this service learns one similarity for all")
        version = service.version
        query = body.anchor()
        _check_query(service, query)
        look = functools.partial(service.search, query, body.k, body.task, version=version)

        def told(hits: list[tuple[str, float]]) -> list[dict[str, Any]]:
            return [
                _with_payload(service, {"id": name, "score": score}, body.payload)
                for name, score in hits
            ]

        answer = {"position": version.model.position, "results": told(look())}
        if body.baseline:
            answer["baseline"] = told(look(learnt=False))
        return JSONResponse(answer)


def _check_query(service: Service, query: Any) -> None:
    """Raise if a vector does not fit the items."""
    n_features = service.engine.items.n_features
    if isinstance(query, str) or n_features is None:
        return
    is_sparse = isinstance(query, SparseVector)
    if is_sparse != (service.settings.n_features is not None):
        raise BadRequestError("vector: expected it dense or sparse as the items are")
    if is_sparse:
        if len(query.indices) and query.indices[-1] >= n_features:
            raise BadRequestError(f"vector: expected indices below {n_features}")
    elif len(query) != n_features:
        raise BadRequestError(f"vector: expected {n_features} numbers, got {len(query)}")


def _add_feedback_routes(app: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @app.post("/v1/feedback", status_code=201, tags=["feedback"])
    async def give_feedback(body: schemas.FeedbackBody, key: Key = None, wait: Wait = False) -> Any:
        """One judgement, or a list of them: all are kept, or none."""
        judgements = body if isinstance(body, list) else [body]
        if len(judgements) > limits.batch:
            raise BadRequestError(
                f"feedback: expected at most {limits.batch}, got {len(judgements)}"
            )
        if key is not None and any(judgement.key is not None for judgement in judgements):
            raise BadRequestError("key: expected it in the header or with each judgement, not both")
        parts = [
            service.judgement(
                one.as_judgement(),
                _named(one.key, "feedback"),
                digest_of(one.model_dump(mode="json")) if one.key else "",
            )
            for one in judgements
        ]
        if key is not None:

            def admit_all(draft: Any, parts: Sequence[Part] = tuple(parts)) -> None:
                for part in parts:
                    part.admit(draft)

            digest = digest_of([one.model_dump(mode="json") for one in judgements])
            parts = [Part(admit_all, _named(key, "feedback"), digest)]
        receipts = await _written(service, parts, wait)
        if key is not None:
            (receipt,) = receipts
            positions = list(range(receipt.first, receipt.first + receipt.events))
        else:
            positions = [receipt.first for receipt in receipts]
        repeated = all(receipt.is_repeated for receipt in receipts)
        return JSONResponse(
            {"positions": positions, "repeated": repeated}, 200 if repeated else 201
        )

    @app.get("/v1/query", tags=["questions"])
    async def get_question(task: Annotated[schemas.Name | None, Query()] = None) -> Any:
        """The next question to a person; it is kept that it was asked."""
        admit = await run_in_threadpool(service.question, task)
        (receipt,) = await _written(service, [Part(admit)], False)
        return await run_in_threadpool(_question, service, receipt.first)

    @app.post("/v1/answer", status_code=201, tags=["questions"])
    async def give_answer(body: schemas.Answer, wait: Wait = True) -> Any:
        """Answer or skip a question. The same answer again changes nothing; another one is refused."""
        admit = admissions.answer(body.question, body.winner)
        part = Part(admit, f"answer:{body.question}", digest_of(body.winner))
        (receipt,) = await _written(service, [part], wait)
        accuracy = service.version.tally.accuracy()
        return JSONResponse(
            _told(receipt) | {"accuracy": accuracy}, 200 if receipt.is_repeated else 201
        )

    @app.post("/v1/retract", status_code=201, tags=["questions"])
    async def take_back(body: schemas.At, wait: Wait = True) -> Any:
        """Take back feedback or an answer: the model becomes what it would have been without."""
        (receipt,) = await _written(service, [Part(admissions.retract(body.position))], wait)
        told = _told(receipt)
        if receipt.events == 2:  # the question of the answer is open again
            told["question"] = await run_in_threadpool(_question, service, receipt.first + 1)
        return told

    @app.get("/v1/responses", tags=["questions"])
    def get_responses(format: Literal["jsonl", "csv"] = "jsonl") -> Response:
        """Every comparison that counts, as JSON lines or CSV."""
        records = exports.responses(service.log, service.engine.items, service.version.position)
        if format == "csv":
            return StreamingResponse(exports.as_csv(records), media_type="text/csv")
        return StreamingResponse(exports.as_jsonl(records), media_type="application/jsonl")


def _question(service: Service, position: int) -> dict[str, Any]:
    event = service.log.get(position)
    assert event is not None
    anchor, first, second = (
        _with_payload(service, {"id": name}, True) for name in event.body["names"]
    )
    return {
        "question": position,
        "anchor": anchor,
        "candidates": [first, second],
        "task": event.body["task"],
    }


def _add_version_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/model", tags=["model"])
    def get_model(task: Annotated[schemas.Name | None, Query()] = None) -> Response:
        """The similarity that is searched with, as a file that ``simstream.load`` reads."""
        model = service.version.model
        matrix = model.matrix(task)
        if matrix is None:
            raise NotFoundError("model: nothing was learnt yet")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            Bilinear(matrix).save(path, extra={"position": model.position})
            content = path.read_bytes()
        name = f'attachment; filename="model-{model.position}.safetensors"'
        return Response(
            content, media_type="application/octet-stream", headers={"content-disposition": name}
        )

    @app.get("/v1/versions", tags=["model"])
    def get_versions() -> Any:
        """What is served, and what can be gone back to at once (any position can, in time)."""
        version = service.version
        return {
            "position": version.position,
            "served": version.model.position,
            "pinned": version.model.position if version.is_pinned else None,
            "snapshots": service.engine.snapshots.positions(),
        }

    @app.post("/v1/pin", tags=["model"])
    async def pin(body: schemas.MaybeAt, wait: Wait = True) -> Any:
        """Serve what was learnt up to a position, whatever is learnt later; null: the newest again."""
        (receipt,) = await _written(service, [Part(admissions.pin(body.position))], wait)
        return _told(receipt)

    @app.post("/v1/rollback", tags=["model"])
    async def roll_back(body: schemas.At, wait: Wait = True) -> Any:
        """Forget what was learnt after a position. The log keeps it."""
        (receipt,) = await _written(service, [Part(admissions.roll_back(body.position))], wait)
        return _told(receipt)


def _add_operation_routes(app: FastAPI, service: Service, metrics: RequestMetrics) -> None:
    started = time.time()

    @app.get("/v1/status", tags=["operation"])
    def get_status() -> Any:
        """Where the service stands: items, events, losses, accuracy."""
        return status_of(service)

    @app.get("/healthz", tags=["operation"])
    async def is_alive() -> Any:
        """Whether the process answers."""
        return {"status": "alive", "version": __version__}

    @app.get("/readyz", tags=["operation"])
    async def is_ready() -> Any:
        """Whether it can do its work: 503 once learning has stopped."""
        failure = service.engine.failure
        if failure is not None:
            return JSONResponse({"status": "learning has stopped"}, 503, {"retry-after": "10"})
        if service.version.has_diverged:
            told = "learning has diverged, an older model is served: roll back, or replay with a smaller step"
            return JSONResponse({"status": told}, 503, {"retry-after": "60"})
        return {"status": "ready", "position": service.version.position, "lag": service.engine.lag}

    @app.get("/metrics", tags=["operation"])
    def get_metrics() -> Response:
        """Counters in the text format of Prometheus."""
        version, tally = service.version, service.version.tally
        values: dict[str, tuple[str, float]] = {
            "items": ("gauge", len(service.engine.items)),
            "log_position": ("counter", service.writer.last),
            "published_position": ("gauge", version.position),
            "lag_events": ("gauge", service.engine.lag),
            "waiting_requests": ("gauge", service.writer.n_waiting),
            "commits_total": ("counter", service.writer.n_commits),
            "triplets_total": ("counter", tally.triplets),
            "diverged_total": ("counter", tally.diverged),
            "questions_total": ("counter", tally.questions),
            "answers_total": ("counter", tally.answers),
            "random_answers_total": ("counter", tally.random),
            "random_answers_right_total": ("counter", tally.learnt_right),
            "random_answers_right_baseline_total": ("counter", tally.baseline_right),
            "snapshots_refused_total": ("counter", service.engine.snapshots.n_refused),
            "restart_seconds": ("gauge", service.engine.restart_seconds),
            "uptime_seconds": ("gauge", time.time() - started),
        }
        text = "\n".join([*gauge_lines(values), *metrics.lines(), ""])
        return Response(text, media_type="text/plain; version=0.0.4")


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
