"""Where a service stands, for people."""

from __future__ import annotations

from typing import Any

from ..metrics import sparsity
from .service import Service


def status_of(service: Service) -> dict[str, Any]:
    """Items, events, losses and accuracy as JSON values."""
    version, tally = service.version, service.version.tally
    matrix, measure = version.model.common, service.settings.measure
    curve = [
        {"triplets": (place + 1) * tally.stride, "loss": loss}
        for place, loss in enumerate(tally.losses)
    ]
    return {
        "algorithm": service.settings.learning.as_json(),
        "items": len(service.engine.items),
        "n_features": service.engine.items.n_features,
        "has_tasks": service.has_tasks,
        "tasks": [task for task in version.model.of_task if task is not None],
        "position": version.position,
        "served": version.model.position,
        "pinned": version.model.position if version.is_pinned else None,
        "lag": service.engine.lag,
        "triplets": tally.triplets,
        "diverged": tally.diverged,
        "feedback": tally.feedback,
        "questions": tally.questions,
        "answers": tally.answers,
        "skips": tally.skips,
        "query_ratio": tally.query_ratio(),
        "accuracy": tally.accuracy(),
        "losses": curve,
        "learner": version.statistics,
        "sparsity": None if matrix is None else sparsity(matrix),
        "throughput": service.throughput(),
        "demo": None if measure is None else measure(version.model),
    }
