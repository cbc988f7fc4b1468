"""Measuring task by task: queries and candidates of one task, scored with that task's matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data import FormatError
from ..metrics import triplet_accuracy
from .evaluation import (
    LEARNT,
    TRIPLET_ACCURACY,
    Evaluation,
    JudgedTriplets,
    Labels,
    preprocessor,
    rank,
)
from .inputs import Comparison
from .output import logger
from .tasks import TaskNames, knows_tasks, names_in, tell_left_out

#: Model name -> measure -> value.
Results = dict[str, dict[str, float]]


def evaluate_tasks(
    contestants: dict[str, Any],
    data: Comparison,
    labels: Labels | None,
    tasks: Labels | None,
    triplets: JudgedTriplets | None,
    k: tuple[int, ...],
    facts: dict[str, Any],
) -> Evaluation:
    """Measure every task by itself, and average over tasks.

    Parameters
    ----------
    contestants : models by name, the learnt one called `LEARNT`
    data : items and queries
    labels, tasks : of items and queries; rankings need both
    triplets : triplets to judge
    k : lengths of lists
    facts : what is known already
    """
    learnt = contestants[LEARNT]
    names = names_in(learnt)
    by_task: dict[str, Results] = {}
    if labels is not None and tasks is not None:
        counts = _rank_tasks(contestants, names, data, labels, tasks, k, by_task)
        facts = facts | counts
    elif labels is not None:
        logger.info("labels are not used: ranking by tasks needs --tasks; the triplets have some")
    if triplets is not None and triplets.tasks is not None:
        for task in dict.fromkeys(triplets.tasks.tolist()):
            chosen = triplets.triplets[triplets.tasks == task]
            results = by_task.setdefault(task, {name: {} for name in contestants})
            for name, model in for_task(contestants, names, task).items():
                model.set_params(preprocessor=preprocessor(data))
                results[name][TRIPLET_ACCURACY] = triplet_accuracy(model, chosen)
    # A model without named tasks has one similarity for all.
    strangers = [task for task in by_task if task not in names] if len(names) else []
    if strangers:
        logger.info(
            "%d of %d tasks are unknown to the model (such as %s): measured with what all have in common",
            len(strangers),
            len(by_task),
            strangers[0],
        )
    facts = facts | {"n_tasks": len(by_task), "n_unknown_tasks": len(strangers)}
    return Evaluation(_average(by_task, list(contestants)), facts, by_task)


def for_task(contestants: dict[str, Any], names: TaskNames, task: str) -> dict[str, Any]:
    """The models that measure a task: of those that know tasks, the task's own one."""
    return {
        name: model.for_task(names.find(task)) if knows_tasks(type(model)) else model
        for name, model in contestants.items()
    }


def _rank_tasks(
    contestants: dict[str, Any],
    names: TaskNames,
    data: Comparison,
    labels: Labels,
    tasks: Labels,
    k: tuple[int, ...],
    by_task: dict[str, Results],
) -> dict[str, Any]:
    """Rankings inside each task, written to `by_task`; returns what they were taken on."""
    parts = {task: _part(data, labels, tasks, task) for task in dict.fromkeys(_asked(tasks))}
    usable = {task: part for task, part in parts.items() if part is not None}
    tell_left_out([task for task in parts if task not in usable])
    if not usable:
        raise FormatError(
            "tasks: expected one with two classes and a query with a relevant candidate, got none in "
            f"{len(parts)}"
        )
    # The same lists for all tasks: an average over some of them would be another measure.
    smallest = min(
        part.items.items.shape[0] - (part.queries is None) for part, _ in usable.values()
    )
    knn = tuple(length for length in k if length <= smallest)
    totals: dict[str, list[float]] = {}
    for task, (part, part_labels) in usable.items():
        by_task[task] = {}
        for name, model in for_task(contestants, names, task).items():
            by_task[task][name], counts = rank(model, part, part_labels, k, knn)
        for key, value in counts.items():
            totals.setdefault(key, []).append(value)
    n_left_out = len(parts) - len(usable)
    return {
        "random_P": float(np.mean(totals["random_P"])),
        "n_queries": int(np.sum(totals["n_queries"])),
        "n_left_out": int(np.sum(totals["n_left_out"])),
        "n_tasks_left_out": n_left_out,
    }


def _asked(tasks: Labels) -> list[str]:
    return (tasks.items if tasks.queries is None else tasks.queries).tolist()


def _part(
    data: Comparison, labels: Labels, tasks: Labels, task: str
) -> tuple[Comparison, Labels] | None:
    """Items and queries of one task, None where nothing can be measured on them."""
    rows = np.flatnonzero(tasks.items == task)
    items = data.items._replace(items=data.items.items[rows])
    item_labels = labels.items[rows]
    if data.queries is None:
        classes, sizes = np.unique(item_labels, return_counts=True)
        if len(classes) < 2 or sizes.max() < 2:
            return None
        return Comparison(items, None), Labels(item_labels, None)
    assert labels.queries is not None
    assert tasks.queries is not None
    asked = np.flatnonzero(tasks.queries == task)
    query_labels = labels.queries[asked]
    if len(np.unique(item_labels)) < 2 or not np.isin(query_labels, item_labels).any():
        return None
    queries = data.queries._replace(items=data.queries.items[asked])
    return Comparison(items, queries), Labels(item_labels, query_labels)


def _average(by_task: dict[str, Results], names: list[str]) -> Results:
    """The average of each measure over the tasks that have it."""
    averages: Results = {}
    for name in names:
        values: dict[str, list[float]] = {}
        for results in by_task.values():
            for measure, value in results[name].items():
                values.setdefault(measure, []).append(value)
        averages[name] = {measure: float(np.mean(found)) for measure, found in values.items()}
    return averages
