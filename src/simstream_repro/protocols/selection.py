"""Choosing features, judged by the nearest neighbour on the chosen ones.

Every class is divided into a training and a test part. Features are ranked on the training part: by the
lengths of the rows of a learnt matrix (of X where W = X X'), or by a function of items and labels (mRMR,
CSFS). A method without a learner keeps all features, or with the parameter ``order = "random"`` takes them as
they come. Then each test item gets the class of the training item that is nearest in the first q features, by
the Euclidean distance. Settings: those of `retrieval`, and

n_features
    Numbers q of features.
unit_rows
    Whether learners from triplets see rows of length one (the nearest neighbour is judged as without).

Parameters are chosen on 80 % of the training part, by the mean accuracy over `n_features` on the other 20 %.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import simstream
from simstream import datasets, metrics

from ..clock import working_seconds
from ..plan import Cell
from .common import Part, digest, make, model_measures, split_per_class, teach, triplet_stream
from .common import choose as choose_parameters
from .retrieval import parts

_TUNING_SHARE = 0.8


class Ranking(NamedTuple):
    """Features in the order of a method, and what it learnt."""

    order: np.ndarray
    #: Lengths of rows in the order of the features, and the model; None where a function ranks.
    weights: np.ndarray | None
    model: Any
    seconds: float


def rank_features(cell: Cell, train: Part, triplets: np.ndarray, n_wanted: int) -> Ranking:
    """The features by what the method of a cell makes of the training part; at least so many of them."""
    if not cell.learner:
        order = np.random.default_rng(cell.seed).permutation(train.items.shape[1])
        return Ranking(order, None, None, 0.0)
    learner = getattr(simstream, cell.learner)
    if not inspect.isclass(learner):
        start = working_seconds()
        order = learner(train.items, train.labels, n_wanted, **cell.parameters)
        return Ranking(order, None, None, working_seconds() - start)
    items = train.items
    if cell.settings.get("unit_rows"):
        items = datasets.prepare(items, "unit-norm").items
    model = make(cell)
    seconds = teach(model, Part(items, train.labels), triplets)
    weights = row_lengths(model)
    return Ranking(np.argsort(-weights, kind="stable"), weights, model, seconds)


def row_lengths(model: Any) -> np.ndarray:
    """How much each feature counts in a model: the length of its row of X where W = X X', otherwise of W."""
    found = getattr(model, "feature_importances_", None)
    if found is None:
        found = np.linalg.norm(model.get_bilinear_matrix(), axis=1)
    return np.asarray(found)


def accuracy(train: Part, test: Part, features: np.ndarray) -> float:
    """Share of the test items whose nearest training item in these features is of their class."""
    known, asked = train.items[:, features], test.items[:, features]
    plain = simstream.Euclidean(preprocessor=known)
    plain.prepare()
    error = metrics.knn_error_curve(plain, asked, test.labels, known, train.labels, (1,))
    return 1.0 - float(error[0])


def _accuracies(
    cell: Cell, ranking: Ranking, train: Part, test: Part, counts: Sequence[int]
) -> dict[str, float]:
    """By number of features; with all of them where nothing is chosen."""
    if not cell.learner and "order" not in cell.parameters:
        same = accuracy(train, test, ranking.order)
        return {measure_name(q): same for q in counts}
    return {measure_name(q): accuracy(train, test, ranking.order[:q]) for q in counts}


def measure_name(q: int) -> str:
    """What the accuracy with q features is called in records."""
    return f"accuracy, {q} features"


def run(cell: Cell) -> dict[str, Any]:
    """Rank the features on the training part of this seed, judge them on its test part."""
    train, test = parts(cell, cell.seed)
    triplets = triplet_stream(train.labels, cell.settings["n_triplets"], cell.seed)
    counts = cell.settings["n_features"]
    ranking = rank_features(cell, train, triplets, max(counts))
    measures = _accuracies(cell, ranking, train, test, counts)
    if ranking.model is not None:
        measures |= model_measures(ranking.model)
        measures["rows of zeros"] = float(np.count_nonzero(ranking.weights == 0))
    return {
        "measures": measures | {"seconds": ranking.seconds},
        "curves": {},
        "parameters": cell.parameters,
        "chosen features": ranking.order[: max(counts)].tolist(),
        "seconds": ranking.seconds,
        "stream": digest(triplets),
        "n_train": len(train.labels),
        "n_test": len(test.labels),
    }


def tune(cell: Cell) -> dict[str, Any]:
    """Choose parameters on the training part of the seed whose data the cell works on."""
    whole, _ = parts(cell, cell.data_seed)
    rng = np.random.default_rng(10_000 + cell.data_seed)
    rows, held_out = split_per_class(whole.labels, rng, share=_TUNING_SHARE)
    train, test = whole.rows(rows), whole.rows(held_out)
    n = cell.settings.get("tuning_triplets", cell.settings["n_triplets"])
    triplets = triplet_stream(train.labels, n, 10_000)
    counts = cell.settings["n_features"]

    def evaluate(candidate: Cell) -> float:
        ranking = rank_features(candidate, train, triplets, max(counts))
        return float(np.mean(list(_accuracies(candidate, ranking, train, test, counts).values())))

    return choose_parameters(cell, evaluate)
