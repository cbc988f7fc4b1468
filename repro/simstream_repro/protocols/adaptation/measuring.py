"""One contender on one task: learn within a clock, then measure on what was held out."""

from __future__ import annotations

from typing import Any

import numpy as np

from simstream import metrics

from ...clock import working_seconds
from ...memory import resident_megabytes, watch_peak
from ...records import Cell
from ..common import ProtocolSettings, record
from . import tasks
from .contenders import CONTENDERS, Kind, Learnt, Scores

#: Items of the task that is learnt before the clock starts, so that libraries and compiled code are loaded.
_WARM_UP = 40


class SearchSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `run_search`."""

    #: Only the first so many training queries.
    n_queries: int | None = None
    #: Whether relevant items of the test are new.
    new_items: bool = False


class HeldOutSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `run_labels` and `run_triplets`: none beyond the common ones."""


def run_search(cell: Cell, settings: SearchSettings) -> dict[str, Any]:
    """Learn from judged queries; rank all items for the test queries."""
    task, test = tasks.search_task(
        tasks.read_collection(cell.data),
        cell.seed,
        n_queries=settings.n_queries,
        new_items=settings.new_items,
    )
    learnt, cost = _learn(cell, "search", task)
    report = metrics.ranking_report_from_scores(
        learnt.scores(test.queries, test.items), test.relevant, exclude=test.excluded, k=(1, 10)
    )
    measures = {name: report[name] for name in ("nDCG@10", "mAP", "P@1", "recall@10")}
    return _record(
        cell,
        learnt,
        measures | cost,
        n_train=len(task.queries),
        n_judgements=len(task.relevance),
        n_test=len(test.queries),
        n_items=len(test.items),
    )


def run_labels(cell: Cell, settings: HeldOutSettings) -> dict[str, Any]:
    """Learn from half of every class; each item of the other half ranks the others of it."""
    task, test = tasks.label_task(cell.data, cell.preprocessing, cell.seed)
    learnt, cost = _learn(cell, "labels", task)
    report = metrics.ranking_report(_Model(learnt.scores), test.items, test.labels, k=(1,))
    measures = {name: report[name] for name in ("mAP", "P@1")}
    counts = {"n_train": len(task.labels), "n_test": len(test.labels)}
    return _record(cell, learnt, measures | cost, **counts)


def run_triplets(cell: Cell, settings: HeldOutSettings) -> dict[str, Any]:
    """Learn from half of the answers; which share of the others is predicted?"""
    task, held_out = tasks.triplet_task(cell.data, cell.preprocessing, cell.seed)
    learnt, cost = _learn(cell, "triplets", task)
    scores = np.asarray(learnt.scores(task.items, task.items))
    anchor, near, far = held_out.T
    measures = {"accuracy": float((scores[anchor, near] > scores[anchor, far]).mean())}
    counts = {"n_train": len(task.triplets), "n_test": len(held_out)}
    return _record(cell, learnt, measures | cost, **counts)


class _Model:
    """Scores as `simstream.metrics` wants them."""

    def __init__(self, scores: Scores) -> None:
        self.score_items = scores


def _learn(cell: Cell, kind: Kind, task: Any) -> tuple[Learnt, dict[str, float]]:
    """What a contender learnt, with its CPU seconds and memory.

    ``memory MB`` is what learning added to the process; ``process MB`` its peak, libraries and data included.
    """
    contender = CONTENDERS[cell.method]
    contender.learn(kind, _small_task(kind, task))
    before = resident_megabytes()
    peak = watch_peak()
    start = working_seconds()
    learnt = contender.learn(kind, task)
    seconds = working_seconds() - start
    highest = peak()
    return learnt, {
        "seconds": seconds,
        "memory MB": max(0.0, highest - before),
        "process MB": highest,
    }


def _small_task(kind: Kind, task: Any) -> Any:
    """A task of the same kind and width, for warming up."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((_WARM_UP, task.items.shape[1])).astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    if kind == "search":
        pairs = np.column_stack([np.arange(_WARM_UP) // 2, np.arange(_WARM_UP)])
        return tasks.SearchTask(items[: _WARM_UP // 2].copy(), items, pairs, 0)
    if kind == "labels":
        return tasks.LabelTask(items, np.arange(_WARM_UP) % 2, 0)
    triplets = np.argsort(rng.random((_WARM_UP, _WARM_UP)), axis=1)[:, :3]
    return tasks.TripletTask(items, triplets, 0)


def _record(cell: Cell, learnt: Learnt, measures: dict[str, Any], **counts: int) -> dict[str, Any]:
    return record(cell, measures, {}, measures["seconds"], details=dict(learnt.details), **counts)
