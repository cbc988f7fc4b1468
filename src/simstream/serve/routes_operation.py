"""Routes of versions, and of those who keep the service running."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse

from .. import Bilinear, __version__
from . import admissions, schemas
from .errors import NotFoundError
from .metrics import RequestMetrics, gauge_lines
from .routes_shared import Wait, written
from .service import Service
from .status import status_of
from .writer import Part


def add_version_routes(app: FastAPI, service: Service) -> None:
    """The model as a file, pinned versions, rollback."""

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

    @app.post("/v1/pin", response_model=schemas.Written, tags=["model"])
    async def pin(body: schemas.MaybeAt, wait: Wait = True) -> Any:
        """Serve what was learnt up to a position, whatever is learnt later; null: the newest again."""
        return (await written(service, [Part(admissions.pin(body.position))], wait)).told()

    @app.post("/v1/rollback", response_model=schemas.Written, tags=["model"])
    async def roll_back(body: schemas.At, wait: Wait = True) -> Any:
        """Forget what was learnt after a position. The log keeps it."""
        return (await written(service, [Part(admissions.roll_back(body.position))], wait)).told()


def add_operation_routes(app: FastAPI, service: Service, metrics: RequestMetrics) -> None:
    """Status for people, health and counters for machines."""
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
            text = "learning has diverged, an older model is served: roll back, or replay with less"
            return JSONResponse({"status": text}, 503, {"retry-after": "60"})
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
            # Of what counts now: undo and rollback make these smaller.
            "triplets": ("gauge", tally.triplets),
            "diverged": ("gauge", tally.diverged),
            "questions": ("gauge", tally.questions),
            "answers": ("gauge", tally.answers),
            "random_answers": ("gauge", tally.random),
            "random_answers_right": ("gauge", tally.learnt_right),
            "random_answers_right_baseline": ("gauge", tally.baseline_right),
            "snapshots_refused_total": ("counter", service.engine.snapshots.n_refused),
            "restart_seconds": ("gauge", service.engine.restart_seconds),
            "uptime_seconds": ("gauge", time.time() - started),
        }
        text = "\n".join([*gauge_lines(values), *metrics.lines(), ""])
        return Response(text, media_type="text/plain; version=0.0.4")
