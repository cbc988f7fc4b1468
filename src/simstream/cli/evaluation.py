"""What ``simstream evaluate`` does: measure a model and the baselines on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..data import FormatError, read_pairs, read_triplets
from ..data.samplers import nearer_first
from ..metrics import knn_error_curve, ranking_report, triplet_accuracy
from . import algorithms
from .algorithms import is_distance
from .inputs import Comparison, OpenedModel, labels_of, open_model, read_for_model
from .output import as_count, logger
from .tasks import knows_tasks, names_in, tasks_of_items, what_all_share

#: What the learnt model is called beside the baselines.
LEARNT = "learnt"
TRIPLET_ACCURACY = "triplet accuracy"
PAIR_ACCURACY = "pair accuracy"
ROC_AUC = "ROC AUC"
_KNN_ERROR = "k-NN error@"

#: Facts of a ranking report that are no measure of the model.
_NOT_MEASURES = ("random_P", "n_queries", "n_left_out")


class EvaluateOptions(NamedTuple):
    """The options of ``simstream evaluate``; see its help."""

    model: Path
    items: Path
    labels_file: Path | None
    label_column: str | int | None
    queries: Path | None
    query_labels: Path | None
    tasks_file: Path | None
    query_tasks: Path | None
    triplets: Path | None
    pairs: Path | None
    on_error: str
    k: tuple[int, ...]
    baseline: tuple[str, ...]


class Evaluation(NamedTuple):
    """Measures of every model, and what they were taken on."""

    #: Model name -> measure -> value, the average over tasks where there are tasks; the learnt one first.
    results: dict[str, dict[str, float]]
    #: Counts: queries, triplets, pairs, bad records, tasks.
    facts: dict[str, Any]
    #: Task -> model name -> measure -> value.
    by_task: dict[str, dict[str, dict[str, float]]]


class JudgedTriplets(NamedTuple):
    """Triplets, the nearer candidate first, and their tasks where these are known."""

    triplets: np.ndarray
    tasks: np.ndarray | None


def evaluate_model(options: EvaluateOptions) -> Evaluation:
    """Measure as the options say."""
    if options.tasks_file is not None and options.pairs is not None:
        raise click.UsageError("--pairs have no tasks: expected --triplets or labels with --tasks")
    if options.query_tasks is not None and options.queries is None:
        raise click.UsageError("--query-tasks are those of --queries: expected both, got one")
    model = open_model(options.model)
    data = read_for_model(model, options.items, options.queries, options.label_column)
    labels = _labels(options, data)
    if labels is None and not _judges_tuples(options):
        raise click.UsageError(
            f"{options.items} has no labels: expected --labels, --label-column, --triplets or --pairs, "
            "got none"
        )
    contestants = _contestants(model, options.baseline)
    tasks = _tasks(options, model, data)
    facts: dict[str, Any] = {"model": str(options.model), "items": str(options.items)}
    triplets = None
    if options.triplets is not None:
        whole, n_bad = _read_all(options.triplets, "triplets", options, data)
        triplets = _judged(whole, None if tasks is None else tasks.queries)
        facts |= {"n_triplets": len(triplets.triplets), "n_bad_records": n_bad}
    if tasks is not None or (triplets is not None and triplets.tasks is not None):
        from .task_evaluation import evaluate_tasks

        return evaluate_tasks(contestants, data, labels, tasks, triplets, options.k, facts)
    if len(names_in(model.learner)):
        contestants[LEARNT] = what_all_share(model.learner)
        facts["measured"] = "what all tasks have in common"
        logger.info(
            "no tasks are given: the model is measured by what all its tasks have in common; --tasks is for "
            "what each has learnt"
        )
    results: dict[str, dict[str, float]] = {name: {} for name in contestants}
    if labels is not None:
        for name, contestant in contestants.items():
            report, counts = rank(contestant, data, labels, options.k)
            facts |= counts
            results[name] |= report
    for contestant in contestants.values() if _judges_tuples(options) else ():
        contestant.set_params(preprocessor=preprocessor(data))
    if triplets is not None:
        for name, contestant in contestants.items():
            results[name][TRIPLET_ACCURACY] = triplet_accuracy(contestant, triplets.triplets)
    if options.pairs is not None:
        (pairs, y), n_bad = _read_all(options.pairs, "pairs", options, data)
        facts |= {"n_pairs": len(pairs), "n_similar": int(np.sum(y > 0))}
        facts["n_bad_records"] = facts.get("n_bad_records", 0) + n_bad
        facts["threshold"] = _threshold(model.learner)
        if facts["threshold"] is None:
            logger.info("no pair accuracy: the model has no threshold")
        for name, contestant in contestants.items():
            results[name] |= _pair_measures(contestant, pairs, y)
        if not results[LEARNT]:
            raise FormatError(
                f"{options.pairs}: nothing to measure without a threshold; expected similar and "
                "dissimilar pairs, got one kind"
            )
    return Evaluation(results, facts, {})


def is_error(measure: str) -> bool:
    """Whether less of it is better."""
    return measure.startswith(_KNN_ERROR)


def _judges_tuples(options: EvaluateOptions) -> bool:
    return options.triplets is not None or options.pairs is not None


def _threshold(learner: Any) -> float | None:
    """The model's threshold of squared distances, None if it has none."""
    from sklearn.exceptions import NotFittedError

    if not is_distance(learner):
        return None
    try:
        return learner.threshold_
    except NotFittedError:
        return None


def _pair_measures(model: Any, pairs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy for a model with a threshold, and the area under the ROC curve where there are both kinds."""
    from sklearn.metrics import roc_auc_score

    measures = {}
    if _threshold(model) is not None:
        measures[PAIR_ACCURACY] = float(np.mean(model.predict_pairs(pairs) == y))
    if len(np.unique(y)) == 2:
        measures[ROC_AUC] = float(roc_auc_score(y, model.pair_score(pairs)))
    return measures


class Labels(NamedTuple):
    """Labels, or tasks, of items and of queries where these are other items."""

    items: np.ndarray
    queries: np.ndarray | None


def _labels(options: EvaluateOptions, data: Comparison) -> Labels | None:
    """Labels to rank by, or None where there are none and triplets are judged instead."""
    asked_for = options.labels_file is not None or options.label_column is not None
    labels = labels_of(options.items, data.items, options.labels_file)
    if labels is None:
        return None
    if len(np.unique(labels)) < 2:
        if _judges_tuples(options) and not asked_for:
            return None  # a LIBSVM file has a first column even where it says nothing
        raise FormatError(
            f"{options.labels_file or options.items}: labels of one class; expected at least two"
        )
    if data.queries is None:
        return Labels(labels, None)
    assert options.queries is not None
    query_labels = labels_of(options.queries, data.queries, options.query_labels)
    if query_labels is None:
        if _judges_tuples(options) and not asked_for:
            return None
        raise click.UsageError(
            f"{options.queries} has no labels: expected --query-labels, got none"
        )
    return Labels(labels, query_labels)


def _tasks(options: EvaluateOptions, model: OpenedModel, data: Comparison) -> Labels | None:
    """Tasks of items and queries: those asked for, or those in the file for a model of many tasks."""
    if options.tasks_file is None and not knows_tasks(type(model.learner)):
        return None
    tasks = tasks_of_items(options.items, data.items.items.shape[0], options.tasks_file)
    if tasks is None or data.queries is None:
        return None if tasks is None else Labels(tasks, tasks)
    assert options.queries is not None
    n_queries = data.queries.items.shape[0]
    asked = tasks_of_items(options.queries, n_queries, options.query_tasks)
    if asked is None:
        if options.tasks_file is None:
            return None
        raise click.UsageError(f"{options.queries} has no tasks: expected --query-tasks, got none")
    return Labels(tasks, asked)


def _judged(whole: tuple[np.ndarray, ...], anchor_tasks: np.ndarray | None) -> JudgedTriplets:
    """Triplets to judge; the task of a triplet that does not say is that of its anchor."""
    triplets, *besides = whole
    tasks = besides[1] if len(besides) > 1 else None
    if tasks is None and anchor_tasks is not None:
        tasks = anchor_tasks[triplets[:, 0]]
    return JudgedTriplets(nearer_first(triplets, besides[0]) if besides else triplets, tasks)


def _contestants(model: OpenedModel, baselines: Sequence[str]) -> dict[str, Any]:
    """The learnt model and the baselines that make sense beside it."""
    found = {LEARNT: model.learner}
    if model.shape[0] != model.shape[1]:
        logger.info("no baselines: queries and items have different features")
        return found
    for name in baselines:
        if algorithms.ALGORITHMS[name] != type(model.learner).__name__:
            found[name] = algorithms.untrained(name, model.shape[0], model.dtype)
    return found


def rank(
    model: Any,
    data: Comparison,
    labels: Labels,
    k: tuple[int, ...],
    knn: tuple[int, ...] | None = None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Ranking measures and errors of k-NN, and what they were taken on.

    Parameters
    ----------
    model : what scores
    data, labels : items, and queries where these are other items
    k : lengths of lists
    knn : numbers of neighbours, k where left out
    """
    if data.queries is None:
        report = ranking_report(model, data.items.items, labels.items, k=k)
    else:
        report = ranking_report(
            model, data.queries.items, labels.queries, data.items.items, labels.items, k=k
        )
    counts = {key: report.pop(key) for key in _NOT_MEASURES}
    return report | _knn_errors(model, data, labels, k if knn is None else knn), counts


def _knn_errors(
    model: Any, data: Comparison, labels: Labels, k: tuple[int, ...]
) -> dict[str, float]:
    """Error of k-NN for the lengths that do not exceed the number of candidates."""
    is_own_pool = data.queries is None
    n_candidates = data.items.items.shape[0] - is_own_pool
    fitting = [length for length in k if length <= n_candidates]
    if not fitting:
        return {}
    asked = data.items.items if data.queries is None else data.queries.items
    asked_labels = labels.items if labels.queries is None else labels.queries
    errors = knn_error_curve(
        model,
        asked,
        asked_labels,
        data.items.items,
        labels.items,
        fitting,
        exclude_self=is_own_pool,
    )
    return {f"{_KNN_ERROR}{length}": float(e) for length, e in zip(fitting, errors, strict=True)}


def preprocessor(data: Comparison) -> Any:
    """The items behind row numbers."""
    if data.queries is None:
        return data.items.items
    return data.queries.items, data.items.items


def _read_all(
    path: Path, tuples: str, options: EvaluateOptions, data: Comparison
) -> tuple[tuple[np.ndarray, ...], int]:
    """All triplets, or pairs and labels, of a file, and the number of bad records in it."""
    n_items = data.items.items.shape[0]
    read: Any = read_pairs if tuples == "pairs" else read_triplets
    sizes = n_items if data.queries is None else (data.queries.items.shape[0], n_items)
    batches = list(read(path, on_error=options.on_error, n_items=sizes))
    n_bad = sum(batch.n_skipped for batch in batches)
    if not any(len(batch.tuples[0]) for batch in batches):
        raise FormatError(f"{path}: no good {tuples}; expected at least one, got none")
    if n_bad:
        logger.info("%s bad records skipped", as_count(n_bad))
    parts = zip(*(batch.tuples for batch in batches), strict=True)
    return tuple(np.concatenate(arrays) for arrays in parts), n_bad
