"""Which features a model keeps: features chosen by a learner, and models of generated data of low rank.

Features are ranked on the training part: by the lengths of the rows of a learnt matrix (of X where W = X X'),
or by a function of items and labels (mRMR, CSFS). A method without a learner keeps all features, or with the
parameter ``order = "random"`` takes them in a random order.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import simstream
from simstream import datasets, metrics

from ..clock import working_seconds
from ..records import Cell
from .common import (
    TUNING_SHARE,
    WARM_UP,
    Curves,
    LabelledItems,
    ProtocolSettings,
    add_point,
    choose,
    digest,
    make,
    model_measures,
    record,
    retrieval_measures,
    split_per_class,
    teach,
    triplet_stream,
    warm_up,
)
from .retrieval import RetrievalSettings, parts


class FeatureRanking(NamedTuple):
    """Features in the order of a method, and what it learnt."""

    order: np.ndarray
    #: Lengths of rows in the order of the features, and the model; None where a function ranks.
    weights: np.ndarray | None
    model: Any
    seconds: float


def rank_features(
    cell: Cell,
    train: LabelledItems,
    triplets: np.ndarray,
    n_wanted: int,
    *,
    unit_rows: bool = False,
) -> FeatureRanking:
    """Rank the features on the training part by the method of a cell; functions rank only those wanted."""
    if not cell.learner:
        order = np.random.default_rng(cell.seed).permutation(train.items.shape[1])
        return FeatureRanking(order, None, None, 0.0)
    learner = getattr(simstream, cell.learner)
    if not inspect.isclass(learner):
        few = np.arange(min(len(train.labels), WARM_UP))
        warm_up(learner, train.items[few], train.labels[few], 1, **cell.parameters)
        start = working_seconds()
        order = learner(train.items, train.labels, n_wanted, **cell.parameters)
        return FeatureRanking(order, None, None, working_seconds() - start)
    items = datasets.prepare(train.items, "unit-norm").items if unit_rows else train.items
    model = make(cell)
    seconds = teach(model, LabelledItems(items, train.labels), triplets)
    weights = row_lengths(model)
    return FeatureRanking(np.argsort(-weights, kind="stable"), weights, model, seconds)


def row_lengths(model: Any) -> np.ndarray:
    """How much each feature counts in a model: the length of its row of X where W = X X', otherwise of W."""
    found = getattr(model, "feature_importances_", None)
    if found is None:
        found = np.linalg.norm(model.get_bilinear_matrix(), axis=1)
    return np.asarray(found)


# -- choosing features ------------------------------------------------------------------------------------


class SelectionSettings(RetrievalSettings, frozen=True, kw_only=True):
    """Settings of `selection`."""

    #: Numbers of features.
    n_features: tuple[int, ...]
    #: Whether learners from triplets see rows of unit length (the nearest neighbour does not).
    unit_rows: bool = False


def run_selection(cell: Cell, settings: SelectionSettings) -> dict[str, Any]:
    """Rank the features on the training part of this seed, judge them on its test part.

    Each test item gets the class of the training item that is nearest in the first q features, by the
    Euclidean distance.
    """
    train, test = parts(cell, settings, cell.seed)
    triplets = triplet_stream(train.labels, settings.n_triplets, cell.seed)
    counts = settings.n_features
    ranking = rank_features(cell, train, triplets, max(counts), unit_rows=settings.unit_rows)
    measures = _accuracies(cell, ranking, train, test, counts)
    if ranking.model is not None:
        measures |= model_measures(ranking.model)
        measures["rows of zeros"] = float(np.count_nonzero(ranking.weights == 0))
    measures["seconds"] = ranking.seconds
    more = {"chosen features": ranking.order[: max(counts)].tolist(), "stream": digest(triplets)}
    n_train, n_test = len(train.labels), len(test.labels)
    return record(cell, measures, {}, ranking.seconds, **more, n_train=n_train, n_test=n_test)


def tune(cell: Cell, settings: SelectionSettings) -> dict[str, Any]:
    """Choose parameters on 80 % of the training part, by the mean accuracy over `n_features` on the rest."""
    whole, _ = parts(cell, settings, cell.data_seed)
    rng = np.random.default_rng(10_000 + cell.data_seed)
    rows, held_out = split_per_class(whole.labels, rng, share=TUNING_SHARE)
    train, test = whole.rows(rows), whole.rows(held_out)
    n = settings.tuning_triplets or settings.n_triplets
    triplets = triplet_stream(train.labels, n, 10_000)
    counts = settings.n_features

    def evaluate(candidate: Cell) -> float:
        ranking = rank_features(
            candidate, train, triplets, max(counts), unit_rows=settings.unit_rows
        )
        return float(np.mean(list(_accuracies(candidate, ranking, train, test, counts).values())))

    return choose(cell, evaluate)


def accuracy(train: LabelledItems, test: LabelledItems, features: np.ndarray) -> float:
    """Share of the test items whose nearest training item in these features is of their class."""
    known, asked = train.items[:, features], test.items[:, features]
    plain = simstream.Euclidean(preprocessor=known)
    plain.prepare()
    error = metrics.knn_error_curve(plain, asked, test.labels, known, train.labels, (1,))
    return 1.0 - float(error[0])


def _accuracies(
    cell: Cell,
    ranking: FeatureRanking,
    train: LabelledItems,
    test: LabelledItems,
    counts: Sequence[int],
) -> dict[str, float]:
    """By number of features; with all of them where nothing is chosen."""
    keeps_all = not cell.learner and "order" not in cell.parameters
    same = accuracy(train, test, ranking.order) if keeps_all else None
    return {
        f"accuracy, {q} features": accuracy(train, test, ranking.order[:q])
        if same is None
        else same
        for q in counts
    }


# -- generated data of low rank ---------------------------------------------------------------------------

#: Singular values below this share of the largest count as zero, as in `rank_` of the learners of low rank.
_ZERO_RANK = 1e-6
#: Number of features that carry the generated data, and so of those looked for.
_N_INFORMATIVE = 5


class LowRankSettings(ProtocolSettings, frozen=True, kw_only=True):
    """Settings of `low_rank`."""

    #: Length of the stream.
    n_triplets: int
    #: Record the curves "cost F" and "rank" every so many steps; cost by so many fixed triplets.
    cost_every: int | None = None
    cost_triplets: int = 1000


def run_low_rank(cell: Cell, settings: LowRankSettings) -> dict[str, Any]:
    """What a model learns of generated data (`simstream.datasets.make_low_rank`), where the truth is known.

    Each seed generates a data set of its own, and draws a stream from its training part. Recorded are

    * the rank of W, and the curve "singular values" (largest first, as shares of the largest);
    * "informative of the first 5": how many of the five features that carry the data rank among the first
      five; by chance 1.25. The curve "feature weights" has the lengths of all rows as shares of the longest:
      the informative features first, in either part the longest first;
    * with ``cost_every``, the curves "cost F" (mean hinge loss of fixed triplets of the training part, plus
      gamma times the sum of the lengths of the rows) and "rank";
    * 1-NN error and mAP on the test part.
    """
    data = datasets.make_low_rank(cell.data.removeprefix("synthetic-"), cell.seed)
    rows = data.splits["train"]
    items = datasets.prepare(data.items, cell.preprocessing, fit_rows=rows).items
    whole = LabelledItems(items, np.asarray(data.labels))
    train, test = whole.rows(rows), whole.rows(data.splits["test"])
    triplets = triplet_stream(train.labels, settings.n_triplets, cell.seed)
    informative = np.asarray(data.informative)
    ranking = rank_features(cell, train, triplets, _N_INFORMATIVE)
    measures: dict[str, float] = {"seconds": ranking.seconds}
    curves: Curves = {}
    if len(informative) < train.items.shape[1]:
        found = np.isin(ranking.order[:_N_INFORMATIVE], informative)
        measures["informative of the first 5"] = float(found.sum())
    if ranking.model is not None:
        shares = _singular_values(ranking.model)
        measures |= model_measures(ranking.model)
        measures["rank"] = float(np.count_nonzero(shares > _ZERO_RANK))
        measures["rows of zeros"] = float(np.count_nonzero(ranking.weights == 0))
        measures |= retrieval_measures(ranking.model, test, train, ())
        curves["singular values"] = _numbered(shares)
        curves["feature weights"] = _weights(row_lengths(ranking.model), informative)
        if settings.cost_every is not None:
            curves |= _along(cell, settings, settings.cost_every, train, triplets)
    more = {"n_train": len(train.labels), "n_test": len(test.labels)}
    return record(cell, measures, curves, ranking.seconds, stream=digest(triplets), **more)


def _along(
    cell: Cell, settings: LowRankSettings, every: int, train: LabelledItems, triplets: np.ndarray
) -> Curves:
    """Cost and rank along one more pass over the same stream."""
    fixed = triplet_stream(train.labels, settings.cost_triplets, 10_000 + cell.seed)
    gamma = float(cell.parameters.get("gamma", 0.0))
    curves: Curves = {}

    def at_stop(step: int, model: Any) -> None:
        hinge = float(np.maximum(0.0, 1.0 - model.triplet_margin(fixed)).mean())
        cost = hinge + gamma * float(row_lengths(model).sum())
        add_point(curves, "cost F", step, round(cost, 9))
        rank = np.count_nonzero(_singular_values(model) > _ZERO_RANK)
        add_point(curves, "rank", step, float(rank))

    teach(make(cell), train, triplets, stops=range(every, len(triplets), every), at_stop=at_stop)
    return curves


def _singular_values(model: Any) -> np.ndarray:
    """As shares of the largest."""
    values = getattr(model, "singular_values_", None)
    if values is None:
        values = np.linalg.svd(model.get_bilinear_matrix(), compute_uv=False)
    return np.asarray(values) / max(float(np.max(values)), np.finfo(float).tiny)


def _weights(weights: np.ndarray, informative: np.ndarray) -> dict[str, list[Any]]:
    """Informative features first, in either part the longest row first."""
    is_informative = np.isin(np.arange(len(weights)), informative)
    sorted_parts = [np.sort(weights[mask])[::-1] for mask in (is_informative, ~is_informative)]
    return _numbered(np.concatenate(sorted_parts) / max(float(weights.max()), np.finfo(float).tiny))


def _numbered(values: np.ndarray) -> dict[str, list[Any]]:
    """A curve over 1, 2, 3 .."""
    return {"x": list(range(1, len(values) + 1)), "y": [round(float(v), 9) for v in values]}
