"""Ranking within tasks by similarities learnt from triplets of several tasks.

Every class of every task is divided into folds; the seed says which fold is tested (seeds beyond the number
of folds divide anew). Triplets are drawn within tasks from the other folds; each test item ranks the other
test items of its task with that task's similarity. Measures are averaged over a task, then over tasks.

A learner whose ``query`` is "random" asks at the rate that one with "active" and the same ``ask_delta`` turns
out to ask at on the same stream, so that both are compared at an equal query ratio. Parameters are chosen on
80 % of a training part, by mAP@k with the largest k on the other 20 %.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from simstream import OGRSL, OMTRSL, TaskTripletSampler, datasets, metrics
from simstream.data.samplers import nearer_first

from .. import reference
from ..records import Cell
from .common import (
    WARM_UP,
    Curves,
    LabelledItems,
    ProtocolSettings,
    choose,
    dataset,
    digest,
    extrapolated_seconds,
    make,
    model_measures,
    record,
    seconds_of,
    seconds_of_labels,
    teach,
)

_TUNING_SEED = 10_000


class TaskSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `tasks`."""

    #: Length of the stream, and its length while parameters are chosen (default: the same).
    n_triplets: int
    tuning_triplets: int | None = None
    n_folds: int = 5
    #: List lengths of P@k and mAP@k, recorded as measures and as curves over k.
    k: tuple[int, ...]
    #: Task -> its classes, for data sets that have no tasks of their own.
    class_groups: dict[str, list[int]] | None = None
    #: Number of steps of the textbook version of the learner that are timed, where there is one.
    eager_steps: int = 0


class TaskPart(NamedTuple):
    """Items with their labels and tasks."""

    items: Any
    labels: np.ndarray
    tasks: np.ndarray

    def rows(self, rows: np.ndarray) -> TaskPart:
        """Some of them."""
        return TaskPart(self.items[rows], self.labels[rows], self.tasks[rows])


class Stream(NamedTuple):
    """Questions about triplets, their answers (+1: the first candidate is nearer) and their tasks."""

    triplets: np.ndarray
    y: np.ndarray
    tasks: np.ndarray

    def first(self, n: int) -> Stream:
        """The first n of them."""
        return Stream(*(values[:n] for values in self))


def task_stream(train: TaskPart, n: int, seed: int) -> Stream:
    """The questions that every method of a run sees."""
    return Stream(*TaskTripletSampler(train.labels, train.tasks, seed).draw(n))


def folds(part: TaskPart, n_folds: int, rng: np.random.Generator) -> np.ndarray:
    """Number of the fold of each item; every class of every task is spread over all folds.

    Examples
    --------
    >>> part = TaskPart(np.eye(20), np.tile([0, 1], 10), np.repeat(["ann", "bob"], 10))
    >>> numbers = folds(part, 5, np.random.default_rng(0))
    >>> [np.bincount(numbers[(part.tasks == "ann") & (part.labels == 1)]).tolist()]
    [[1, 1, 1, 1, 1]]
    """
    found = np.empty(len(part.labels), np.int64)
    for task in np.unique(part.tasks):
        for label in np.unique(part.labels[part.tasks == task]):
            members = rng.permutation(np.flatnonzero((part.tasks == task) & (part.labels == label)))
            found[members] = np.arange(len(members)) % n_folds
    return found


def _parts(cell: Cell, settings: TaskSettings, seed: int) -> tuple[TaskPart, TaskPart]:
    """Training and test part, preprocessed by statistics of the training part."""
    data = dataset(cell.data)
    if settings.class_groups is not None:
        data = replace(data, groups=None, class_groups=settings.class_groups)
    tasks = data.tasks()
    if tasks is None:
        raise ValueError(
            f"{cell.data}: expected a data set with tasks, or the setting class_groups"
        )
    rows = np.flatnonzero(tasks != datasets.OUTSIDE)
    whole = TaskPart(data.items, np.asarray(data.labels), tasks).rows(rows)
    division, fold = divmod(seed, settings.n_folds)
    numbers = folds(whole, settings.n_folds, np.random.default_rng(division))
    train, test = np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)
    prepared = datasets.prepare(whole.items, cell.preprocessing, fit_rows=train).items
    whole = whole._replace(items=prepared)
    return whole.rows(train), whole.rows(test)


def run(cell: Cell, settings: TaskSettings) -> dict[str, Any]:
    """Train on all folds but one, measure on that one."""
    train, test = _parts(cell, settings, cell.seed)
    stream = task_stream(train, settings.n_triplets, cell.seed)
    model, seconds = _learn(cell, train, stream)
    lengths = settings.k
    measures = task_measures(model, test, lengths)
    curves: Curves = {
        name: {"x": list(lengths), "y": [measures[f"{name}@{k}"] for k in lengths]}
        for name in ("P", "mAP")
    }
    if hasattr(model, "query_ratio_"):
        measures["query ratio"] = float(model.query_ratio_)
    if settings.eager_steps and isinstance(model, OMTRSL):
        measures["eager seconds"] = _eager_seconds(model, train, stream, settings.eager_steps)
    measures |= model_measures(model) | {"cpu seconds": seconds}
    more = {"n_train": len(train.labels), "n_test": len(test.labels)}
    seen = digest(stream.triplets, stream.y)
    return record(cell, measures, curves, seconds, stream=seen, **more)


def _eager_seconds(model: OMTRSL, train: TaskPart, stream: Stream, eager_steps: int) -> float:
    names, numbers = np.unique(stream.tasks, return_inverse=True)
    if isinstance(model, OGRSL):  # one matrix for all
        names, numbers = names[:1], np.zeros_like(numbers)
    coupling = model.get_params().get("coupling", 0.0)

    def learn(n: int) -> None:
        vectors = reference.triplet_vectors(train.items, stream.triplets[:n])
        steps = ((x, z, y, k) for (x, z), y, k in zip(vectors, stream.y, numbers, strict=False))
        starts = [np.eye(train.items.shape[1]) for _ in names]
        reference.omtrsl.last(starts, steps, model.C, coupling)

    return extrapolated_seconds(learn, eager_steps, len(numbers))


def tune(cell: Cell, settings: TaskSettings) -> dict[str, Any]:
    """Choose parameters on the training part of the first fold (of each seed's, if every run does)."""
    whole, _ = _parts(cell, settings, cell.data_seed)
    numbers = folds(whole, 5, np.random.default_rng(_TUNING_SEED))
    train, test = (whole.rows(np.flatnonzero(rows)) for rows in (numbers != 0, numbers == 0))
    n = settings.tuning_triplets or settings.n_triplets
    stream = task_stream(train, n, _TUNING_SEED)
    longest = max(settings.k)

    def evaluate(candidate: Cell) -> float:
        model, _ = _learn(candidate, train, stream)
        return task_measures(model, test, (longest,))[f"mAP@{longest}"]

    return choose(cell, evaluate)


def task_measures(model: Any, test: TaskPart, k: Any) -> dict[str, float]:
    """Each item ranks the others of its task by the task's similarity; the mean over tasks of their means."""
    names = ["mAP", *(f"{name}@{one}" for name in ("P", "mAP") for one in k)]
    found = []
    for task in np.unique(test.tasks):
        part = test.rows(np.flatnonzero(test.tasks == task))
        one = model.for_task(task) if hasattr(model, "for_task") else model
        report = metrics.ranking_report(one, part.items, part.labels, k=tuple(k))
        found.append([report[name] for name in names])
    return dict(zip(names, np.mean(found, axis=0).tolist(), strict=True))


def _learn(cell: Cell, train: TaskPart, stream: Stream) -> tuple[Any, float]:
    """The learner of a cell, trained on the training part, and the CPU seconds of its training."""
    learner = make(cell)
    if not hasattr(learner, "for_task"):  # one similarity for all, whatever the task of a triplet
        triplets = nearer_first(stream.triplets, stream.y)
        return learner, teach(learner, LabelledItems(train.items, train.labels), triplets)
    if learner.natural_tuples == "labels":
        part = LabelledItems(train.items, train.labels)
        return learner, seconds_of_labels(learner, part, train.tasks)
    known = learner.get_params()
    given = {"preprocessor": train.items, "random_state": cell.data_seed}
    if "n_tasks" in known:
        given["n_tasks"] = len(np.unique(train.tasks))
    _answer(make(cell, **given), stream.first(WARM_UP))
    if known["query"] == "random":
        active = make(cell, **given, query="active")
        _answer(active, stream)
        given["ask_rate"] = active.query_ratio_
    learner = make(cell, **given)
    return learner, seconds_of(_answer, learner, stream)


def _answer(learner: Any, stream: Stream) -> None:
    """Answer the questions that a new learner asks along the stream."""
    learner.partial_fit(stream.triplets, tasks=stream.tasks, oracle=stream.y)
