"""What a model of generated data of low rank looks like inside, where the truth is known.

Each seed generates a data set of its own (`simstream.datasets.make_low_rank`), and a stream from its training
part. Recorded are

* the rank of W, and the curve "singular values" (largest first, as shares of the largest);
* "informative of the first 5": how many of the five features that carry the data are among the five with the
  longest rows (of X where W = X X', otherwise of W), or among the five that mRMR or CSFS choose; by chance
  1.25. The curve "feature weights" has the lengths of all rows as shares of the longest, the informative
  features first, in either part the longest first;
* with the setting ``cost_every``, the curves "cost F" (mean hinge loss of ``cost_triplets`` fixed triplets of
  the training part, 1000 by default, and gamma times the sum of the lengths of the rows) and "rank" every so
  many steps;
* 1-NN error and mAP on the test part.

Other settings: n_triplets, the length of the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simstream import datasets

from ..plan import Cell
from .common import Part, digest, make, model_measures, retrieval_measures, teach, triplet_stream
from .selection import rank_features, row_lengths

#: Singular values below this share of the largest count as none, as in `rank_` of the learners of low rank.
_NO_RANK = 1e-6


def run(cell: Cell) -> dict[str, Any]:
    """Learn from the data of this seed, and look inside."""
    data = datasets.make_low_rank(cell.data.removeprefix("synthetic-"), cell.seed)
    rows = data.splits["train"]
    items = datasets.prepare(data.items, cell.preprocessing, fit_rows=rows).items
    whole = Part(items, np.asarray(data.labels))
    train, test = whole.rows(rows), whole.rows(data.splits["test"])
    triplets = triplet_stream(train.labels, cell.settings["n_triplets"], cell.seed)
    informative = np.asarray(data.informative)
    n_wanted = 5
    ranking = rank_features(cell, train, triplets, n_wanted)
    measures: dict[str, float] = {"seconds": ranking.seconds}
    curves: dict[str, dict[str, list[float]]] = {}
    if len(informative) < train.items.shape[1]:
        found = np.isin(ranking.order[:n_wanted], informative)
        measures["informative of the first 5"] = float(found.sum())
    if ranking.model is not None:
        shares = _singular_values(ranking.model)
        measures |= model_measures(ranking.model)
        measures["rank"] = float(np.count_nonzero(shares > _NO_RANK))
        measures["rows of zeros"] = float(np.count_nonzero(ranking.weights == 0))
        measures |= retrieval_measures(ranking.model, test, train, ())
        curves["singular values"] = _curve(range(1, len(shares) + 1), shares)
        curves["feature weights"] = _weights(row_lengths(ranking.model), informative)
        if "cost_every" in cell.settings:
            curves |= _along(cell, train, triplets)
    return {
        "measures": measures,
        "curves": curves,
        "parameters": cell.parameters,
        "seconds": ranking.seconds,
        "stream": digest(triplets),
        "n_train": len(train.labels),
        "n_test": len(test.labels),
    }


def _along(cell: Cell, train: Part, triplets: np.ndarray) -> dict[str, dict[str, list[float]]]:
    """Cost and rank every so many steps of one more pass over the same stream."""
    every = cell.settings["cost_every"]
    fixed = triplet_stream(
        train.labels, cell.settings.get("cost_triplets", 1000), 10_000 + cell.seed
    )
    gamma = float(cell.parameters.get("gamma", 0.0))
    steps: list[int] = []
    costs: list[float] = []
    ranks: list[float] = []

    def at_stop(step: int, model: Any) -> None:
        hinge = float(np.maximum(0.0, 1.0 - model.triplet_margin(fixed)).mean())
        steps.append(step)
        costs.append(hinge + gamma * float(row_lengths(model).sum()))
        ranks.append(float(np.count_nonzero(_singular_values(model) > _NO_RANK)))

    teach(make(cell), train, triplets, stops=range(every, len(triplets), every), at_stop=at_stop)
    return {"cost F": _curve(steps, costs), "rank": _curve(steps, ranks)}


def _singular_values(model: Any) -> np.ndarray:
    """As shares of the largest."""
    values = getattr(model, "singular_values_", None)
    if values is None:
        values = np.linalg.svd(model.get_bilinear_matrix(), compute_uv=False)
    return np.asarray(values) / max(float(np.max(values)), np.finfo(float).tiny)


def _weights(weights: np.ndarray, informative: np.ndarray) -> dict[str, list[float]]:
    """Informative features first, in either part the longest row first."""
    is_informative = np.isin(np.arange(len(weights)), informative)
    sorted_parts = [np.sort(weights[mask])[::-1] for mask in (is_informative, ~is_informative)]
    shares = np.concatenate(sorted_parts) / max(float(weights.max()), np.finfo(float).tiny)
    return _curve(range(1, len(shares) + 1), shares)


def _curve(x: Any, y: Any) -> dict[str, list[float]]:
    return {"x": list(x), "y": [round(float(value), 9) for value in y]}
