"""The routes: each checks a request, hands it to the service, and says what happened."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi import Path as PathField
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.concurrency import run_in_threadpool

from .. import __version__
from ..ids import repeated_ids
from . import import_export, schemas
from .access import BadRequestError, KeyRing, NotFoundError
from .events import SparseVector
from .graph import GraphIndex
from .item_stores import StoreIndex
from .log import LogError
from .mirror import MOST_ROWS, encode_rows
from .service import Service, digest_of
from .tracing import span
from .writer import Judgement, Ledger, Receipt, Write, check_shape

Key = Annotated[
    schemas.Name | None,
    Header(
        alias="Idempotency-Key",
        description="However often a request is sent with the same key, it is done once.",
    ),
]
ItemId = Annotated[schemas.Name, PathField()]
Wait = Annotated[
    bool,
    Query(
        description="Answer once readers can see it, not as soon as it is durable; but after ten seconds "
        "at the latest, with `visible` false."
    ),
]

#: Longest time in seconds that a caller waits to see what it wrote.
_LONGEST_WAIT = 10.0

#: Time between two looks whether there are events that a follower waits for.
_LOOK_SECONDS = 0.05

#: Upper bounds of the histogram of request times, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def add_routes(app: FastAPI, service: Service, metrics: Metrics, keys: KeyRing) -> None:
    """Add all routes of the API."""
    _add_item_routes(app, service)
    _add_search_route(app, service)
    _add_feedback_routes(app, service)
    _add_model_routes(app, service)
    _add_operation_routes(app, service, metrics, keys)


async def _write(
    service: Service, writes: Sequence[Write], wait: bool
) -> tuple[list[Receipt], bool]:
    """Submit a request; once it is durable, return its receipts, and whether readers can see its events."""
    with span("write", writes=len(writes)) as traced:
        receipts = await asyncio.wrap_future(service.submit(writes))
        last = max(receipt.last for receipt in receipts)
        if traced is not None:
            traced.set_attribute("simstream.position", last)
    if wait:
        # In the event loop: those who wait must not occupy the threads that searches run in.
        seen = asyncio.gather(*map(asyncio.wrap_future, service.seen_by_all(last)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(seen, _LONGEST_WAIT)
    return receipts, service.is_seen(last)


async def _write_one(service: Service, write: Write, wait: bool) -> dict[str, Any]:
    """Submit a request with a single write; return the answer to it."""
    (receipt,), is_visible = await _write(service, [write], wait)
    return {
        "position": receipt.first,
        "events": receipt.events,
        "repeated": receipt.is_repeated,
        "visible": is_visible,
    }


def _created(answer: dict[str, Any]) -> Response:
    return JSONResponse(answer, 200 if answer["repeated"] else 201)


def answers(model: Any, about: str = "Successful Response") -> dict[int | str, dict[str, Any]]:
    """For the description alone: answers are not checked against it."""
    return {200: {"model": model, "description": about}}


def _repeats(model: Any) -> dict[int | str, dict[str, Any]]:
    return answers(model, "An earlier request with the same key did it.")


def sends(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """For the description: an answer that is no JSON."""
    content = {one: {"schema": {"type": "string"}} for one in media_types}
    return {200: {"content": content}}


def _once(
    key: str | None, kind: str, content: Any, change: Callable[..., None], *args: Any
) -> Write:
    """A write that is done once under its key, if it has one; keys of different kinds are independent."""
    if key is None:
        return Write(change, args)
    return Write(change, args, f"{kind}:{key}", digest_of(content))


def _with_payload(service: Service, found: dict[str, Any], wanted: bool = True) -> dict[str, Any]:
    """A result, with text and picture if wanted."""
    if wanted and service.store is None:
        with contextlib.suppress(NotFoundError):  # deleted in the meantime
            found |= service.item(found["id"])[2]
    return found


# -- items and search -------------------------------------------------------------------------


def _names_picture(request: Request) -> bool:
    """Whether an address ends with /image, and not with an id that does: its slash is sent as %2F."""
    return bool(request.scope["raw_path"].partition(b"?")[0].endswith(b"/image"))


async def _is_no_picture(request: Request) -> None:
    if _names_picture(request):
        raise HTTPException(405)


def _add_item_routes(app: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @app.post(
        "/v1/items",
        status_code=201,
        response_model=schemas.Written,
        responses=_repeats(schemas.Written),
        tags=["items"],
    )
    async def add_items(body: schemas.Items, key: Key = None, wait: Wait = True) -> Any:
        """Add items: all of them, or none."""
        if len(body.items) > limits.vectors:
            raise BadRequestError(
                f"items: expected at most {limits.vectors}, got {len(body.items)}"
            )
        if twice := repeated_ids([item.id for item in body.items]):
            raise BadRequestError(f"items: expected every id at most once, got {twice} twice")
        items = [item.as_item(item.id) for item in body.items]
        write = _once(key, "items", body, Ledger.add_items, items)
        return _created(await _write_one(service, write, wait))

    @app.get("/v1/items", responses=answers(schemas.Listed), tags=["items"])
    def list_items(
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        payload: bool = False,
    ) -> Any:
        """List the ids of items, page by page, in the order in which they were added."""
        positions = service.version.view.ids
        names = [service.engine.items.names[int(p)] for p in positions[offset : offset + limit]]
        return {
            "total": len(positions),
            "items": [_with_payload(service, {"id": name}, payload) for name in names],
        }

    @app.get(
        "/v1/items/{id:path}/image",
        response_class=Response,
        responses=sends("image/png", "image/jpeg", "image/gif", "image/webp"),
        tags=["items"],
    )
    def get_image(request: Request, id: ItemId) -> Any:
        """The picture of an item."""
        if not _names_picture(request):
            return JSONResponse(get_item(f"{id}/image"))
        image = service.item(id)[2].get("image")
        if image is None:
            raise NotFoundError("image: the item has none")
        media_type, content = schemas.decode_picture(image)
        headers = {"content-security-policy": "default-src 'none'; sandbox"}
        return Response(content, media_type=media_type, headers=headers)

    @app.get("/v1/items/{id:path}", responses=answers(schemas.Stored), tags=["items"])
    def get_item(id: ItemId) -> Any:
        """An item with its vector, text and picture."""
        position, vector, content = service.item(id)
        if isinstance(vector, SparseVector):
            values: Any = {"indices": vector.indices.tolist(), "values": vector.values.tolist()}
        else:
            values = vector.tolist()
        return {"id": id, "position": position, "vector": values, **content}

    @app.put(
        "/v1/items/{id:path}",
        response_model=schemas.Written,
        dependencies=[Depends(_is_no_picture)],
        tags=["items"],
    )
    async def put_item(
        id: ItemId, body: schemas.Content, key: Key = None, wait: Wait = True
    ) -> Any:
        """Add or replace an item. What was learnt with the old one stays."""
        write = _once(key, "put", [id, body], Ledger.put_item, body.as_item(id))
        return await _write_one(service, write, wait)

    @app.delete(
        "/v1/items/{id:path}",
        response_model=schemas.Written,
        dependencies=[Depends(_is_no_picture)],
        tags=["items"],
    )
    async def delete_item(id: ItemId, key: Key = None, wait: Wait = True) -> Any:
        """Delete an item. What was learnt with it stays."""
        write = _once(key, "delete", id, Ledger.delete_item, id)
        return await _write_one(service, write, wait)


def _add_search_route(app: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @app.post("/v1/search", responses=answers(schemas.SearchAnswer), tags=["search"])
    async def search(body: schemas.Search) -> Any:
        """The items most similar to an item or a vector, best first."""
        if body.k > limits.k:
            raise BadRequestError(f"k: expected at most {limits.k}, got {body.k}")
        if body.task is not None and not service.has_tasks:
            raise BadRequestError("task: this service learns one similarity for all")
        version, query = service.version, body.anchor()
        n_features = service.engine.items.n_features
        if not isinstance(query, str) and n_features is not None:
            check_shape(query, n_features, service.settings.n_features is not None)

        async def look(*, learnt: bool) -> list[tuple[str, float]]:
            ask = functools.partial(
                service.search_later, query, body.k, body.task, learnt=learnt, version=version
            )
            with span("search", k=body.k, learnt=learnt, position=version.model.position):
                # An item of a database is read from there: not in the event loop.
                later = ask() if service.store is None else await run_in_threadpool(ask)
                return service.named(await asyncio.wrap_future(later))

        async def shown(hits: list[tuple[str, float]]) -> list[dict[str, Any]]:
            found = [{"id": name, "score": score} for name, score in hits]
            if not body.payload:
                return found
            add = functools.partial(_with_payload, service)
            return await run_in_threadpool(lambda: [add(one) for one in found])

        try:
            hits = await look(learnt=True)
            randomised = service.randomise(hits)
            answer = {"position": version.model.position, "results": await shown(hits)}
            if randomised is not None:
                answer["randomised"] = randomised
            if body.baseline:
                answer["baseline"] = await shown(await look(learnt=False))
        except LogError:
            raise
        except ValueError as error:  # products that overflow float32
            raise BadRequestError(str(error)) from None
        # Pictures may make it large: not in the event loop.
        return (
            await run_in_threadpool(JSONResponse, answer) if body.payload else JSONResponse(answer)
        )


# -- feedback, questions and answers ----------------------------------------------------------


def _add_feedback_routes(app: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @app.post(
        "/v1/feedback",
        status_code=201,
        response_model=schemas.FeedbackWritten,
        responses=_repeats(schemas.FeedbackWritten),
        tags=["feedback"],
    )
    async def give_feedback(body: schemas.FeedbackBody, key: Key = None, wait: Wait = False) -> Any:
        """Give one judgement, or a list of them: all are kept, or none."""
        given = body if isinstance(body, list) else [body]
        if len(given) > limits.batch:
            raise BadRequestError(f"feedback: expected at most {limits.batch}, got {len(given)}")
        if key is not None and any(one.key is not None for one in given):
            raise BadRequestError("key: expected it in the header or with each judgement, not both")
        n_built = sum(one.n_built() for one in given)
        if n_built > limits.pairs:
            raise BadRequestError(
                f"feedback: expected at most {limits.pairs} pairs to learn or to measure in one request, "
                f"got {n_built}"
            )

        def build() -> tuple[list[Judgement], list[Write]]:
            judgements = [one.as_judgement() for one in given]
            if key is not None:
                return judgements, [_once(key, "feedback", given, Ledger.judge, *judgements)]
            return judgements, [
                _once(one.key, "feedback", one, Ledger.judge, judgement)
                for one, judgement in zip(given, judgements, strict=True)
            ]

        # Lists may become many pairs: not in the event loop.
        judgements, writes = await run_in_threadpool(build)
        before: list[Write] = []
        if service.store is not None:
            before.append(await run_in_threadpool(service.read_items, judgements))
        receipts, is_visible = await _write(service, [*before, *writes], wait)
        receipts = receipts[len(before) :]
        return _created(
            {
                "positions": [p for r in receipts for p in range(r.first, r.last + 1)],
                "repeated": all(receipt.is_repeated for receipt in receipts),
                "visible": is_visible,
            }
        )

    @app.get("/v1/query", responses=answers(schemas.Asked), tags=["questions"])
    async def get_question(task: Annotated[schemas.Name | None, Query()] = None) -> Any:
        """The next question for a person to answer. The log keeps that it was asked."""
        question = await run_in_threadpool(service.choose_question, task)
        asked = await _write_one(service, Write(Ledger.ask, (question,)), False)
        return await run_in_threadpool(_question, service, asked["position"])

    @app.post(
        "/v1/answer",
        status_code=201,
        response_model=schemas.AnswerWritten,
        responses=_repeats(schemas.AnswerWritten),
        tags=["questions"],
    )
    async def give_answer(body: schemas.Answer, wait: Wait = True) -> Any:
        """Answer or skip a question. Repeating the same answer changes nothing; another one is refused."""
        write = Write(
            Ledger.answer,
            (body.question, body.winner),
            f"answer:{body.question}",
            digest_of(body.winner),
        )
        answer = await _write_one(service, write, wait)
        return _created(answer | {"accuracy": service.version.tally.accuracy()})

    @app.post(
        "/v1/retract",
        status_code=201,
        response_model=schemas.RetractWritten,
        response_model_exclude_unset=True,
        tags=["questions"],
    )
    async def take_back(body: schemas.At, wait: Wait = True) -> Any:
        """Undo feedback or an answer: the model becomes what it would be without it."""
        answer = await _write_one(service, Write(Ledger.retract, (body.position,)), wait)
        if answer["events"] == 2:  # the question of the answer is open again
            position = answer["position"] + 1
            answer["question"] = await run_in_threadpool(_question, service, position)
        return answer

    @app.get(
        "/v1/responses",
        response_class=Response,
        responses=sends("application/jsonl", "text/csv"),
        tags=["questions"],
    )
    def get_responses(format: Literal["jsonl", "csv"] = "jsonl") -> Response:
        """All comparisons of items that count, as JSON lines or CSV.

        The header X-Left-Out counts the comparisons left out because their query was a vector, not an item.
        """
        until = service.version.position
        headers = {"X-Left-Out": str(import_export.count_left_out(service.log, until))}
        records = import_export.responses(service.log, service.engine.items, until)
        if format == "csv":
            lines = import_export.as_csv(records, has_tasks=service.has_tasks)
        else:
            lines = import_export.as_jsonl(records)
        media_type = "text/csv" if format == "csv" else "application/jsonl"
        chunks = import_export.in_chunks(lines)
        return StreamingResponse(chunks, headers=headers, media_type=media_type)


def _question(service: Service, position: int) -> dict[str, Any]:
    event = service.log.get(position)
    assert event is not None
    anchor, first, second = (_with_payload(service, {"id": name}) for name in event.body["names"])
    return {
        "question": position,
        "anchor": anchor,
        "candidates": [first, second],
        "task": event.body["task"],
    }


# -- the model --------------------------------------------------------------------------------


def _add_model_routes(app: FastAPI, service: Service) -> None:
    @app.get(
        "/v1/model",
        response_class=Response,
        responses=sends("application/octet-stream"),
        tags=["model"],
    )
    def get_model(task: Annotated[schemas.Name | None, Query()] = None) -> Response:
        """The similarity that searches use, as a file for ``simstream.load``."""
        model = service.version.model
        similarity = model.similarity(task)
        if similarity is None:
            raise NotFoundError("model: nothing has been learnt yet")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            similarity.save(path, extra={"position": model.position})
            content = path.read_bytes()
        name = f'attachment; filename="model-{model.position}.safetensors"'
        return Response(
            content, media_type="application/octet-stream", headers={"content-disposition": name}
        )

    @app.get("/v1/versions", responses=answers(schemas.Versions), tags=["model"])
    def get_versions() -> Any:
        """What is served, and which positions have a snapshot, so that returning to them is fast."""
        version = service.version
        return {
            "position": version.position,
            "served": version.model.position,
            "pinned": version.model.position if version.is_pinned else None,
            "snapshots": service.engine.snapshots.positions(),
        }

    @app.post("/v1/pin", response_model=schemas.Written, tags=["model"])
    async def pin(body: schemas.MaybeAt, wait: Wait = True) -> Any:
        """Serve the model of a position, whatever is learnt later; null serves the newest again."""
        return await _write_one(service, Write(Ledger.pin, (body.position,)), wait)

    @app.post("/v1/rollback", response_model=schemas.Written, tags=["model"])
    async def roll_back(body: schemas.At, wait: Wait = True) -> Any:
        """Forget what was learnt after a position. The log keeps it."""
        return await _write_one(service, Write(Ledger.roll_back, (body.position,)), wait)


# -- operation --------------------------------------------------------------------------------


def not_ready(service: Service, keys: KeyRing) -> str | None:
    """Why a service does not work as it should, if so."""
    keys.refresh()
    stopped = service.stopped()
    if stopped is not None:
        return stopped
    if keys.problem is not None:
        return "keys cannot be read"
    if service.version.has_diverged:
        return (
            "learning has diverged and an older model is served: roll back, or replay with a "
            "smaller step"
        )
    return None


def add_liveness_route(app: FastAPI) -> None:
    """Add the route of a process that answers, whatever it serves."""

    @app.get("/healthz", responses=answers(schemas.Health), tags=["operation"])
    async def is_alive() -> Any:
        """Whether the process answers."""
        return {"status": "alive", "version": __version__}


def _add_operation_routes(app: FastAPI, service: Service, metrics: Metrics, keys: KeyRing) -> None:
    @app.get("/v1/status", responses=answers(dict[str, Any]), tags=["operation"])
    def get_status() -> Any:
        """Items, events, losses and accuracy; which similarity is served, and why."""
        return service.status()

    add_liveness_route(app)

    @app.get(
        "/readyz",
        responses={**answers(schemas.Health), 503: {"model": schemas.Health}},
        tags=["operation"],
    )
    async def is_ready() -> Any:
        """Whether the service works: 503 once writing, learning or following has stopped."""
        problem = not_ready(service, keys)
        if problem is not None:
            return JSONResponse({"status": problem}, 503, {"retry-after": "10"})
        return {"status": "ready", "position": service.version.position, "lag": service.engine.lag}

    @app.get(
        "/v1/log", response_class=Response, responses=sends("application/jsonl"), tags=["operation"]
    )
    async def get_log(
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = MOST_ROWS,
        wait: Annotated[int, Query(ge=0, le=10, description="Seconds to wait for events.")] = 0,
    ) -> Response:
        """Events after a position as they are stored, for services that follow this one.

        The first line says which log it is, where it ends, and its hash at `after`.
        """
        end = time.monotonic() + wait
        while service.writer.last == after and time.monotonic() < end:
            await asyncio.sleep(_LOOK_SECONDS)
        content = await run_in_threadpool(encode_rows, service.log, after, limit)
        return Response(content, media_type="application/jsonl")

    @app.get("/metrics", response_class=Response, responses=sends("text/plain"), tags=["operation"])
    def get_metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")


class Metrics:
    """The metrics of a service for Prometheus: requests are counted, the others are read when asked for."""

    def __init__(self, service: Service) -> None:
        self._service, self._started = service, time.time()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        counting = self.registry if service.settings.shared is None else None
        if service.settings.shared is not None:  # the counts of all processes, by their files there
            MultiProcessCollector(self.registry, str(service.settings.shared))
        self._counts = Counter(
            "simstream_requests", "Requests.", ("route", "status"), registry=counting
        )
        self._searches = [
            Counter(f"simstream_{name}", about, registry=counting)
            for name, about in (
                ("searches", "Searches."),
                ("search_products", "Products that answered them."),
                ("recall_searches", "Searches compared with the exact answer."),
                ("recall_wanted", "Items of the exact answers."),
                ("recall_found", "Of these, found by the index."),
                ("index_failures", "Searches the database did not answer."),
            )[: len(self._searched())]
        ]
        self._counted = [0] * len(self._searches)
        self._counting = threading.Lock()
        self._times = Histogram(
            "simstream_request_seconds",
            "Time to answer a request.",
            ("route",),
            buckets=_BUCKETS,
            registry=counting,
        )

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._counts.labels(route, status).inc()
        self._times.labels(route).observe(seconds)
        self._count_searches()

    def _searched(self) -> list[int]:
        """What this process has searched."""
        searches, index = self._service.searches, self._service.index
        counted = [searches.n_searches, searches.n_products]
        if searches.recall is not None:
            recall = searches.recall
            counted += [recall.n_compared, recall.n_wanted, recall.n_found]
        if isinstance(index, StoreIndex):
            counted.append(index.n_failed)
        return counted

    def _count_searches(self) -> None:
        with self._counting:
            counted = self._searched()
            for counter, now, before in zip(self._searches, counted, self._counted, strict=True):
                counter.inc(now - before)
            self._counted = counted

    def collect(self) -> Iterable[Metric]:
        """The metrics now. Counters never fall; what undo and rollback make smaller is a gauge."""
        self._count_searches()  # others are collected after this
        service, version = self._service, self._service.version
        tally = version.tally
        counters = {
            "commits": ("Commits to the log.", service.writer.n_commits),
            "snapshots_refused": ("Snapshots refused.", service.engine.snapshots.n_refused),
            "snapshots_unsaved": ("Snapshots not written.", service.engine.n_unsaved),
            "reader_restarts": (
                "Readers that ended and were started again.",
                0 if service.readers is None else service.readers.n_restarts,
            ),
        }
        gauges: dict[str, tuple[str, float]] = {
            "items": ("Items.", len(service.engine.items)),
            "log_position": ("Last position of the log.", service.writer.last),
            "published_position": ("Position that readers see.", version.position),
            "lag_events": ("Events not yet published.", service.engine.lag),
            "log_away": ("Whether the database of the log cannot be reached.", service.log.is_lost),
            "log_lost": ("Whether acknowledged events are missing.", service.engine.has_lost),
            "lag_triplets": ("Triplets not yet learnt.", service.engine.n_triplets_waiting),
            "waiting_requests": ("Requests waiting to be written.", service.writer.n_waiting),
            "waiting_searches": ("Searches waiting for others.", service.searches.n_waiting),
            "triplets": ("Triplets learnt.", tally.triplets),
            "diverged": ("Triplets left out, because learning would diverge.", tally.diverged),
            "questions": ("Questions asked.", tally.questions),
            "answers": ("Questions answered.", tally.answers),
            "random_answers": ("Answers to random questions.", tally.random),
            "random_answers_right": ("Of these, predicted by the model.", tally.learnt_right),
            "random_answers_right_baseline": (
                "Of these, predicted by the inner product.",
                tally.baseline_right,
            ),
            **_published(service.published()),
            "restart_seconds": ("Duration of the last start.", service.engine.restart_seconds),
            "uptime_seconds": ("Time since the start.", time.time() - self._started),
        }
        if service.index is not None:
            gauges |= _of_index(service)
        for name, (about, count) in counters.items():
            yield CounterMetricFamily(f"simstream_{name}", about, count)
        for name, (about, value) in gauges.items():
            yield GaugeMetricFamily(f"simstream_{name}", about, value)


def _of_index(service: Service) -> dict[str, tuple[str, float]]:
    """Gauges of an approximate index."""
    recall, index = service.searches.recall, service.index
    assert recall is not None
    gauges = {"recall": ("Share found, of the last compared searches.", recall.recent)}
    if isinstance(index, GraphIndex):
        gauges["index_late"] = ("Items not in the index yet, searched exactly.", index.n_late)
    return gauges


def _published(told: dict[str, Any]) -> dict[str, tuple[str, float]]:
    """Gauges of what is served, NaN where there is no number yet."""
    gauges = {"trust": ("Trust in what was learnt: 0 serves the inner product.", told["trust"])}
    if told["promote"] == "safe":
        gain, bound = (told["gain"][name] for name in ("mean", "lower_bound"))
        gauges |= {
            "measured_events": ("Events measured before learning.", told["events"]),
            "gain": ("Mean gain over the inner product.", math.nan if gain is None else gain),
            "gain_lower_bound": ("Its lower bound.", math.nan if bound is None else bound),
        }
    return gauges
