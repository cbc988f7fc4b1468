"""What ``simstream evaluate`` does: measure a model and the baselines on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..formats import FormatError, read_triplets
from ..metrics import ranking_report, triplet_accuracy
from . import algorithms
from .inputs import Comparison, OpenedModel, labels_of, open_model, read_for_model
from .output import as_count, logger

#: What the learnt model is called beside the baselines.
LEARNT = "learnt"
TRIPLET_ACCURACY = "triplet accuracy"

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
    triplets: Path | None
    on_error: str
    k: tuple[int, ...]
    baseline: tuple[str, ...]


class Evaluation(NamedTuple):
    """Measures of every model, and what they were taken on."""

    #: Model name -> measure -> value; the learnt one first.
    results: dict[str, dict[str, float]]
    #: Counts: queries, triplets, bad records.
    facts: dict[str, Any]


def evaluate_model(options: EvaluateOptions) -> Evaluation:
    """Measure as the options say."""
    model = open_model(options.model)
    data = read_for_model(model, options.items, options.queries, options.label_column)
    labels = _labels(options, data)
    if labels is None and options.triplets is None:
        raise click.UsageError(
            f"{options.items} has no labels: expected --labels, --label-column or --triplets, got none"
        )
    contestants = _contestants(model, options.baseline)
    results: dict[str, dict[str, float]] = {name: {} for name in contestants}
    facts: dict[str, Any] = {"model": str(options.model), "items": str(options.items)}
    if labels is not None:
        for name, contestant in contestants.items():
            report = _rank(contestant, data, labels, options.k)
            facts |= {key: report.pop(key) for key in _NOT_MEASURES}
            results[name] |= report
    if options.triplets is not None:
        triplets, n_bad = _read_all_triplets(options, data)
        facts |= {"n_triplets": len(triplets), "n_bad_records": n_bad}
        for name, contestant in contestants.items():
            contestant.set_params(preprocessor=_preprocessor(data))
            results[name][TRIPLET_ACCURACY] = triplet_accuracy(contestant, triplets)
    return Evaluation(results, facts)


class _Labels(NamedTuple):
    items: np.ndarray
    queries: np.ndarray | None


def _labels(options: EvaluateOptions, data: Comparison) -> _Labels | None:
    """Labels to rank by, or None where there are none and triplets are judged instead."""
    asked_for = options.labels_file is not None or options.label_column is not None
    labels = labels_of(options.items, data.items, options.labels_file)
    if labels is None:
        return None
    if len(np.unique(labels)) < 2:
        if options.triplets is not None and not asked_for:
            return None  # a LIBSVM file has a first column even where it says nothing
        raise FormatError(
            f"{options.labels_file or options.items}: labels of one class; expected at least two"
        )
    if data.queries is None:
        return _Labels(labels, None)
    assert options.queries is not None
    query_labels = labels_of(options.queries, data.queries, options.query_labels)
    if query_labels is None:
        if options.triplets is not None and not asked_for:
            return None
        raise click.UsageError(
            f"{options.queries} has no labels: expected --query-labels, got none"
        )
    return _Labels(labels, query_labels)


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


def _rank(model: Any, data: Comparison, labels: _Labels, k: tuple[int, ...]) -> dict[str, Any]:
    if data.queries is None:
        return ranking_report(model, data.items.items, labels.items, k=k)
    return ranking_report(
        model, data.queries.items, labels.queries, data.items.items, labels.items, k=k
    )


def _preprocessor(data: Comparison) -> Any:
    if data.queries is None:
        return data.items.items
    return data.queries.items, data.items.items


def _read_all_triplets(options: EvaluateOptions, data: Comparison) -> tuple[np.ndarray, int]:
    n_items = data.items.items.shape[0]
    n_anchors = n_items if data.queries is None else data.queries.items.shape[0]
    assert options.triplets is not None
    batches = list(
        read_triplets(options.triplets, on_error=options.on_error, n_items=(n_anchors, n_items))
    )
    triplets = np.concatenate([np.empty((0, 3), np.int64), *(batch.triplets for batch in batches)])
    n_bad = sum(batch.n_skipped for batch in batches)
    if not len(triplets):
        raise FormatError(f"{options.triplets}: no good triplets; expected at least one, got none")
    if n_bad:
        logger.info("%s bad records skipped", as_count(n_bad))
    return triplets, n_bad
